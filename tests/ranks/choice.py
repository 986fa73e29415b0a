# SPDX-License-Identifier: Apache-2.0
"""The choices of `auto` on one rank: equal to the other ranks', whatever files and variables this rank has."""

from __future__ import annotations

import hashlib
import os
import random
from typing import Any

import torch

import mcr_dl
from mcr_dl import _C
from mcr_dl.examples import moe, moe_model
from ranks import session

_DTYPES = (torch.float32, torch.bfloat16, torch.int32)
_DEMO = moe_model.Shape(width=32, blocks=2, hidden=32, context=32)


def _move(name: str, count: int, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments of a call with equal counts; `count` elements per rank."""
    size, mine = mcr_dl.get_world_size(), torch.ones(count, dtype=dtype)
    every = torch.ones(count * size, dtype=dtype)
    return {
        "all_reduce": {"tensor": mine},
        "broadcast": {"tensor": mine, "src": count % size},
        "reduce": {"tensor": mine, "dst": count % size},
        "all_gather_single": {"output_tensor": every, "input_tensor": mine},
        "reduce_scatter_single": {"output": mine, "input": every},
        "all_to_all_single": {"output": every, "input": every.clone()},
    }[name]


def _vectored(name: str, draw: random.Random, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments of a vectored call whose counts differ from rank to rank, over three orders of magnitude."""
    size, rank = mcr_dl.get_world_size(), mcr_dl.get_rank()
    matrix = [[draw.choice((0, 1, 7, 300)) for _ in range(size)] for _ in range(size)]
    sends, receives = matrix[rank], [row[rank] for row in matrix]
    if name == "all_gatherv":
        counts = matrix[0]
        return {
            "output": torch.empty(sum(counts), dtype=dtype),
            "input": torch.ones(counts[rank], dtype=dtype),
            "rcounts": counts,
        }
    return {
        "output": torch.empty(sum(receives), dtype=dtype),
        "input": torch.ones(sum(sends), dtype=dtype),
        "scounts": sends,
        "rcounts": receives,
    }


def without_null() -> None:
    """Each call that names no backend moves its data, though ``null`` would be the fastest; trials take place."""
    session.start("null", "mpi", "gloo")
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    for turn in range(300):
        x = torch.tensor([rank + turn])
        mcr_dl.all_reduce(x)
        assert int(x) == sum(range(size)) + size * turn
    assert "null" not in mcr_dl.explain("all_reduce", 8).predicted_us
    x = torch.tensor([rank])
    mcr_dl.all_reduce(x, backend="null")
    assert int(x) == rank


def without_fake() -> None:
    """The same with torch's ``fake``, which comes first."""
    session.start("fake", "gloo")
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    for asynchronous in (False, True):
        x = torch.tensor([rank])
        work = mcr_dl.all_reduce(x, async_op=asynchronous)
        if work is not None:
            work.wait()
        assert int(x) == sum(range(size))
    assert mcr_dl.explain("all_reduce", 8).candidate == "gloo"


_EQUAL = (
    "all_reduce", "broadcast", "reduce", "all_gather_single", "reduce_scatter_single", "all_to_all_single"
)  # fmt: skip


def _chosen(draw: random.Random) -> str:
    """One random call, equal on all ranks; returns the candidate that did it."""
    dtype = draw.choice(_DTYPES)
    if draw.random() < 0.25:
        name = draw.choice(("all_to_allv", "all_gatherv"))
        arguments = _vectored(name, draw, dtype)
    else:
        name = draw.choice(_EQUAL)
        arguments = _move(name, draw.choice((1, 3, 64, 1000)), dtype)
    work = getattr(mcr_dl, name)(**arguments, async_op=True)
    work.wait()
    return str(work)


def calls(folder: str, seed: int, count: int) -> tuple[str, dict[str, int]]:
    """Make random calls with a table of this rank's own; the hash of all choices, and how often each name came."""
    session.stop()
    mcr_dl.init_process_group(["mpi", "gloo"], tuning_table=f"{folder}/{mcr_dl.base.launcher.detect().rank}.json")
    draw = random.Random(seed)
    digest, seen = hashlib.sha256(), dict.fromkeys(_C.world().candidates, 0)
    for _ in range(count):
        name = _chosen(draw).split("mcr_dl.Work ")[1].partition(".")[0]
        seen[name] += 1
        digest.update(name.encode())
    session.stop()
    return digest.hexdigest(), seen


def questions(folder: str, seed: int, count: int) -> tuple[str, int]:
    """Ask for `count` choices of calls of every kind; the hash of the answers, and the number of different ones."""
    session.stop()
    mcr_dl.init_process_group(["mpi", "gloo"], tuning_table=f"{folder}/{mcr_dl.base.launcher.detect().rank}.json")
    draw = random.Random(seed)
    world, operations, dtypes = _C.world(), _C.operations(), _C.dtypes()
    digest, seen = hashlib.sha256(), set()
    for _ in range(count):
        dtype = draw.choice(dtypes)
        red = draw.choice([each for each in _C.reductions() if _C.reduction_defined(dtype, each)])
        found = world._explain(draw.choice(operations), int(2 ** (draw.random() * 30)) - 1, dtype, red, "cpu")
        digest.update(found["chosen"].encode())
        seen.add(found["chosen"])
    session.stop()
    return digest.hexdigest(), len(seen)


def forms(path: str) -> dict[str, Any]:
    """The choices for blocking and asynchronous calls, what the demo prints, and the candidate that does a call."""
    session.stop()
    mcr_dl.init_process_group(["mpi", "gloo"], tuning_table=path)

    def chosen(operation: str, **options: Any) -> tuple[str, str]:
        found = mcr_dl.explain(operation, 64, **options)
        return found.candidate, found.row

    work = mcr_dl.all_reduce(torch.ones(16), async_op=True)
    work.wait()
    found = {
        "blocking": chosen("all_reduce"),
        "asynchronous": chosen("all_reduce", async_op=True),
        "of another type": chosen("all_reduce", async_op=True, dtype=torch.bfloat16),
        "not measured": chosen("broadcast", async_op=True),
        "demo": moe._Explained(_DEMO, windows=2, megabytes=0.3).setting().lines[-1].split(": ")[2].partition(",")[0],
        "call": str(work).split("mcr_dl.Work ")[1].partition(".")[0],
    }
    session.stop()
    return found


def start(argument: str | None, variables: dict[str, str], question: tuple[str, int | None]) -> str:
    """Initialize with this rank's table and variables, and explain one call; returns the error's text if it raises."""
    session.stop()
    saved = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        mcr_dl.init_process_group(["mpi", "gloo"], tuning_table=argument)
        return str(mcr_dl.explain(*question))
    except mcr_dl.McrError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for name, value in saved.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        session.stop()


def behind(chain: str, options: dict[str, Any], rule: str) -> tuple[str, str]:
    """The candidate of a call through a pass, with a rule: as it is explained, and as it runs."""
    session.stop()
    os.environ["MCR_DL_TUNE"] = rule
    try:
        mcr_dl.init_process_group(["mpi", "gloo"], tuning_table="none", passes=[chain])
        work = mcr_dl.all_reduce(torch.ones(64), async_op=True, **options)
        work.wait()
        ran = str(work).split("mcr_dl.Work ")[1].partition(".")[0]
        return mcr_dl.explain("all_reduce", 256, async_op=True).candidate, ran
    finally:
        del os.environ["MCR_DL_TUNE"]
        session.stop()


def start_by_rank(arguments: list[str | None], variables: list[dict[str, str]], question: Any) -> str:
    """Call start() with this rank's entries."""
    rank = mcr_dl.base.launcher.detect().rank
    return start(arguments[rank], variables[rank], tuple(question))


def subgroups(path: str) -> list[tuple[int, str, str]]:
    """Sizes of this rank's groups with the choice for a small all_reduce in each, and the row that decided."""
    session.stop()
    mcr_dl.init_process_group(["mpi", "gloo"], tuning_table=path)
    answers = []
    for group in session.groups().values():
        if group is not None and group.size() > 1:
            found = mcr_dl.explain("all_reduce", 1024, group=group)
            answers.append((group.size(), found.candidate, found.row))
    session.stop()
    return answers
