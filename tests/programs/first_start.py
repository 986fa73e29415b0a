# SPDX-License-Identifier: Apache-2.0
"""Starts on the backends of the first argument, and prints what ``auto`` knows then. A candidate named by the second
argument gives wrong results in the first measurement. FIRST_START_ERRORS: the standard error of rank 0 during the
start, "full" or "none"."""

import json
import os
import sys
from typing import TextIO

import torch

import mcr_dl
from mcr_dl.measure import start
from mcr_dl.measure.cases import Case, Prepared, Tensors
from mcr_dl.runtime import state

wrong = sys.argv[2] if len(sys.argv) > 2 else ""


def maybe_wrong(case: Case, candidate: str, group: mcr_dl._C.Group, tensors: Tensors | None = None) -> Prepared:
    """As the original, with one wrong element."""
    one = Prepared(case, candidate, group, tensors)
    if candidate == wrong:
        one.check = lambda: 1  # type: ignore[method-assign]
    return one


ERRORS: dict[str, TextIO | None] = {"full": open("/dev/full", "w"), "none": None}  # noqa: SIM115
start.Prepared = maybe_wrong  # type: ignore[assignment,misc]
if "FIRST_START_ERRORS" in os.environ and os.environ["RANK"] == "0":
    sys.stderr = ERRORS[os.environ["FIRST_START_ERRORS"]]  # type: ignore[assignment]
mcr_dl.init_process_group(sys.argv[1])
sys.stderr = sys.__stderr__
x = torch.ones(3)
mcr_dl.all_reduce(x)
assert x.tolist() == [mcr_dl.get_world_size()] * 3
knowledge = state.current().knowledge
facts = {
    "source": knowledge.source,
    "scales": knowledge.scales,
    "chosen": [mcr_dl.explain("all_reduce", size).candidate for size in (4, 1 << 10, 1 << 20)],
}
sys.stdout.write(f"facts {mcr_dl.get_rank()} {json.dumps(facts)}\n")  # one write, as ranks share the output
mcr_dl.destroy_process_group()
