# SPDX-License-Identifier: Apache-2.0
"""Refinement on one rank: it learns equal values on all ranks, and results equal those without it."""

from __future__ import annotations

import hashlib
import random

import torch

import mcr_dl
from mcr_dl import _C
from ranks import choice, session

SIZE = 64  # bytes of the small all_reduce


def _start(table: str) -> None:
    session.stop()
    mcr_dl.init_process_group(["mpi", "gloo"], tuning_table=table)


def _small(backend: str | None = None, async_op: bool = False) -> torch.Tensor:
    values = torch.full((SIZE // 4,), mcr_dl.get_rank() + 1, dtype=torch.int32)
    work = mcr_dl.all_reduce(values, backend=backend, async_op=async_op)
    if work is not None:
        work.wait()
    return values


def _explained() -> tuple[str, str]:
    found = mcr_dl.explain("all_reduce", SIZE, dtype=torch.int32)
    return found.candidate, str(found)


def correct(table: str, share: float, count: int) -> tuple[list[mcr_dl.Change], str, str, int]:
    """Make small calls with a table that is wrong about them, then a step; changes, choice, explanation, the sum."""
    _start(table)
    mcr_dl.refine(share)
    total = sum(int(_small().sum()) for _ in range(count))
    changes = mcr_dl.refine_step()
    answer = (changes, *_explained(), total)
    session.stop()
    return answer


def _results(seed: int, count: int, stepped: bool) -> str:
    """The hash of all results of random calls on integers; with a step now and then."""
    draw = random.Random(seed)
    digest = hashlib.sha256()
    for index in range(count):
        name = draw.choice(choice._EQUAL)
        elements = draw.choice((1, 3, 64, 1000))
        arguments = choice._move(name, elements, torch.int64)
        for place, value in enumerate(arguments.values()):
            if isinstance(value, torch.Tensor):
                value.copy_(torch.arange(value.numel()) + 7 * index + place + mcr_dl.get_rank())
        if draw.random() < 0.2:
            getattr(mcr_dl, name)(**arguments, async_op=True).wait()
        else:
            getattr(mcr_dl, name)(**arguments)
        digest.update(next(iter(arguments.values())).numpy().tobytes())
        if stepped and index % 100 == 99:
            mcr_dl.refine_step()
    return digest.hexdigest()


def storm(folder: str, seed: int, count: int) -> tuple[bool, str]:
    """Random calls without and with refinement; whether the results are equal, and the hash of all choices after."""
    _start(f"{folder}/{mcr_dl.base.launcher.detect().rank}.json")
    without = _results(seed, count, stepped=False)
    mcr_dl.refine(0.3)
    refined = _results(seed, count, stepped=True)
    digest = hashlib.sha256()
    for operation in ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for exponent in range(4, 18):
            digest.update(str(mcr_dl.explain(operation, 2**exponent, dtype=torch.int64)).encode())
    session.stop()
    return without == refined, digest.hexdigest()


def shares(values: list[float]) -> str:
    """Turn it on with this rank's share; returns the error's text. Afterwards the group works, with refinement off."""
    _start("none")
    rank = mcr_dl.get_rank()
    try:
        mcr_dl.refine(values[rank])
        text = "none"
    except mcr_dl.McrError as error:
        text = f"{type(error).__name__}: {error}"
    _small()
    assert text == "none" or _C.world()._refinement()[0] == 0
    session.stop()
    return text


def different(what: str) -> tuple[str, list[mcr_dl.Change], int]:
    """Different calls that the libraries match: the step's error, a later step, a later sum."""
    _start("none")
    chosen = mcr_dl.get_backend()
    first = mcr_dl.get_rank() == 0
    if what != "off on one" or first:
        _C.world()._refine(1000)
    for index in range(5):
        if what == "named on one" and first and index == 3:
            _small(backend=chosen)
        else:
            _small()
    try:
        mcr_dl.refine_step()
        text = "none"
    except mcr_dl.InvalidArgumentError as error:
        text = str(error)
    answer = (text, mcr_dl.refine_step(), int(_small()[0]))
    session.stop()
    return answer


def quiet(table: str, count: int) -> tuple[int, list[mcr_dl.Change], str]:
    """Without refine(): nothing is counted, a step changes nothing."""
    _start(table)
    before = _explained()
    for _ in range(count):
        _small()
    counted = len(_C.world()._refinement()[2])
    changes = mcr_dl.refine_step()
    assert _explained() == before
    session.stop()
    return counted, changes, before[0]


def apart(table: str) -> list[str]:
    """Each group refines for itself, independently of the members' calls on their own groups."""
    _start(table)
    groups = session.groups()
    mcr_dl.refine(0.5)
    alone = next(group for name, group in groups.items() if group is not None and group.size() == 1)
    for _ in range(100 * (mcr_dl.get_rank() + 1)):
        mcr_dl.barrier(group=alone)
    for _ in range(100):
        _small()
    mcr_dl.refine_step()
    pair = groups["reversed"]
    answer = [
        mcr_dl.explain("all_reduce", SIZE, dtype=torch.int32, group=each).reason for each in (mcr_dl.group.WORLD, pair)
    ]
    session.stop()
    return answer


def another_change() -> tuple[str, list[int], int]:
    """Rank 0 takes a step while the others set passes: the error, the periods of all ranks, a later sum."""
    _start("none")
    mcr_dl.refine(0.1)
    _small()
    try:
        if mcr_dl.get_rank() == 0:
            mcr_dl.refine_step()
        else:
            mcr_dl.set_passes(["log"])
        text = "none"
    except mcr_dl.InvalidArgumentError as error:
        text = str(error)
    mine = torch.tensor([_C.world()._refinement()[0]])
    periods = torch.empty(mcr_dl.get_world_size(), dtype=torch.int64)
    mcr_dl.all_gather_single(periods, mine, backend=mcr_dl.get_backend())
    total = sum(int(_small()[0]) for _ in range(100)) // 100
    mcr_dl.refine_step()
    session.stop()
    return text, periods.tolist(), total
