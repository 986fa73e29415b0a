# SPDX-License-Identifier: Apache-2.0
"""Cost models of groups, on one rank."""

from __future__ import annotations

from typing import Any
from unittest import mock

import mcr_dl
from mcr_dl import _C, BackendUnavailableError, InvalidArgumentError
from mcr_dl.testing.expect import expect
from mcr_dl.tuning.costs import cost_model
from ranks import session

_COUNT = 1 << 16  # elements: 256 KiB


def _ends(model: _C.CostModel, size: int) -> dict[str, int]:
    """Nanoseconds of an all_reduce on mpi, one cut in halves over gloo and mpi, and one that travels as bf16."""
    wholes = {
        "mpi": ([_C.Schedule.striped("all_reduce", _COUNT, "float32", 0, size)] * size, ["mpi", "mpi"], ""),
        "halves": ([_C.Schedule.striped("all_reduce", _COUNT, "float32", 500, size)] * size, ["gloo", "mpi"], ""),
        "bf16": (
            [_C.Schedule.compressed("all_reduce", _COUNT, "float32", "bf16", rank, size) for rank in range(size)],
            ["mpi"],
            "bf16",
        ),
    }
    ends = {}
    for name, (schedules, parts, codec) in wholes.items():
        jobs = [_C.Job(each, rank, [(part, 0) for part in parts], codec) for rank, each in enumerate(schedules)]
        ends[name] = _C.simulate(model, jobs, [list(range(size))], together=True)["end"]
    return ends


def _exchanges(model: _C.CostModel) -> int:
    """Nanoseconds of the exchanges of the call that travels as bf16, each of which moves two bytes of each element."""
    found = [model.issue_cost("mpi", operation, "any", 2 * _COUNT) for operation in ("all_to_all", "all_gather")]
    return sum(cost[0] for cost in found if cost is not None)


def agreed(path: str) -> dict[str, int]:
    """The model of a table, simulated."""
    session.stop()
    mcr_dl.init_process_group(["mpi", "gloo"], tuning_table=path)
    try:
        model = cost_model(codecs=["bf16"])
        return {**_ends(model, mcr_dl.get_world_size()), "exchanges": _exchanges(model)}
    finally:
        mcr_dl.finalize()


def refused() -> None:
    """One rank's codec is unknown, no name, has no library or is another one: an error on all ranks; the group stays
    usable."""
    session.start()
    rank = mcr_dl.get_rank()
    expect(InvalidArgumentError, lambda: cost_model(codecs=["no_such"] * rank), "no_such" if rank else "cost_model")
    expect(InvalidArgumentError, lambda: cost_model(codecs=["bf16" if rank == 0 else "int8"]), "cost_model", "int8")
    for wrong in ([object()], 5):
        codecs: Any = [] if rank == 0 else wrong
        expect(InvalidArgumentError, lambda codecs=codecs: cost_model(codecs=codecs), "cost_model: codecs: TypeError")
    with mock.patch.dict("sys.modules", {"zfpy": None} if rank else {}):
        expect(BackendUnavailableError, lambda: cost_model(codecs=["zfp:rate=13"]), "cost_model", "zfpy")
    cost_model()
