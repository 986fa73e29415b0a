# SPDX-License-Identifier: Apache-2.0
"""The ranks of auto.py."""

from __future__ import annotations

from typing import Any

import mcr_dl
import script
from mcr_dl import _C
from mcr_dl.measure.cases import Case, Prepared
from mcr_dl.measure.ended_trials import end_trials
from mcr_dl.measure.ranks import bind
from mcr_dl.measure.timing import Sampling, TorchControl

SIZES = [4 * 4**i for i in range(12)]  # 4 B ... 16 MiB
PEER = "all_reduce"  # the operation that is also measured on other libraries
Times = dict[str, dict[int, dict[str, float]]]  # operation -> bytes -> candidate -> median µs


def candidates(group: Any, operation: str) -> list[str]:
    """The candidates that `auto` compares for this operation."""
    return list(group._explain(operation, 0, "float32", "SUM", "cpu")["candidates"])


def _measure_point(operation: str, nbytes: int, group: Any, control: TorchControl, budget: float) -> dict[str, float]:
    case = Case(operation, nbytes)
    prepared: dict[str, Any] = {}
    for name in ("auto", *candidates(group, operation)):
        shared = prepared["auto"].tensors if prepared else None
        prepared[name] = Prepared(case, name, group, shared)
        wrong = prepared[name].check()
        assert wrong == 0, (operation, nbytes, name, wrong)
    end_trials(prepared["auto"], control)
    found = Sampling(prepared, control, confidence=0.01).extend(budget, minimum_rounds=25)
    return {name: statistics.median_us for name, statistics in found.items()}


def measure_all(points: dict[str, list[int]], table: str | None, budget: float, output: str) -> None:
    """One pass on each rank."""
    mcr_dl.init_process_group("auto", tuning_table=table)
    group = _C.world()
    assert group is not None
    control = TorchControl()
    bind()
    times: Times = {}
    for operation, sizes in points.items():
        times[operation] = {nbytes: _measure_point(operation, nbytes, group, control, budget) for nbytes in sizes}
        if group.rank() == 0:
            print(f"  {operation}", flush=True)
    source = mcr_dl.explain(PEER, 4).table
    status = {name: _C.backend_status()[name] for name in mcr_dl.get_backends()}
    script.write_samples(output, {"times": times, "table": source, "libraries": status})
    mcr_dl.finalize()
