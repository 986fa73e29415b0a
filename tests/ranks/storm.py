# SPDX-License-Identifier: Apache-2.0
"""Random operations on overlapping groups and several backends at once: each rank waits in a different order."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import torch

import mcr_dl
from mcr_dl import _C
from mcr_dl.testing import checks
from mcr_dl.testing.calls import OPS, SIGNATURES, Case, layouts, spell
from mcr_dl.testing.position import note
from ranks import session

_SIZES = (0, 1, 3, 64, 1000, 5000, 40_000)
_LARGEST_WINDOW = 60  # largest number of operations that a rank leaves unfinished
_DROPPED = 0.05


@dataclass
class _Pending:
    number: int
    prepared: checks.Prepared
    work: mcr_dl.Work | None  # None: not kept; the operation still completes
    companion: tuple[checks.Prepared, mcr_dl.Work] | None

    def finish(self) -> None:
        assert self.work is not None
        self.work.wait()
        if self.companion is not None:
            self.companion[1].wait()
            self.companion[0].check()
        self.prepared.check()


def _draw(rng: random.Random, number: int, backends: list[str], world: int) -> Case:
    """One random case, equal on every rank."""
    function = rng.choice(sorted(SIGNATURES))
    op = OPS[SIGNATURES[function]["op"]]
    dtype = rng.choice(_C.dtypes())
    defined = [red for red in _C.reductions() if _C.reduction_defined(dtype, red)]
    group = rng.choice(["world", *session.SUBGROUPS[world]])
    return Case(
        function,
        dtype,
        rng.choice(defined) if op["reduces"] else "SUM",
        rng.choice(_SIZES),
        rng.choice(layouts(function)),
        asynchronous=not SIGNATURES[function]["starts"] and (op["peer"] or rng.random() < 0.9),
        group=group,
        root=rng.randrange(len(session.members(group, world))),
        backend=rng.choice(backends),
        seed=number,
    )


def _start(case: Case, mine: random.Random) -> _Pending | None:
    """Issue it on this rank; a synchronous one is finished at once."""
    ranks = session.members(case.group, mcr_dl.get_world_size())
    me = mcr_dl.get_rank()
    if me not in ranks or (OPS[case.op]["peer"] and len(ranks) == 1):
        return None
    rank = ranks.index(me)
    prepared = checks.prepare(case, rank, len(ranks))
    companion = checks.companion(case, rank, len(ranks))
    work = spell(case, dict(prepared.arguments))()
    if work is None:
        prepared.check()
        return None
    if mine.random() < _DROPPED and companion is None:
        del work  # it still completes; its tensors, of which half are not kept either, live as long as it needs them
        return _Pending(case.seed, prepared, None, None) if mine.random() < 0.5 else None
    return _Pending(case.seed, prepared, work, companion)


def storm(seed: int, operations_count: int, backends: list[str], sleeps: bool) -> dict[str, Any]:
    """Issue random operations; wait in a random order that differs from rank to rank; check all results but
    those that are not kept."""
    session.start()
    session.groups()
    common, mine = random.Random(seed), random.Random(seed * 1000 + mcr_dl.get_rank() + 1)
    pending: list[_Pending] = []
    without_work: list[_Pending] = []
    finished = 0
    for number in range(operations_count):
        case = _draw(common, number, backends, mcr_dl.get_world_size())
        note(f"storm {seed}: issuing {number}: {case}; unfinished: {[p.number for p in pending]}")
        started = _start(case, mine)
        if started is not None:
            (without_work if started.work is None else pending).append(started)
        if sleeps and mine.random() < 0.02:
            time.sleep(mine.random() * 0.02)
        while pending and (len(pending) > _LARGEST_WINDOW or mine.random() < 0.3):
            chosen = pending.pop(mine.randrange(len(pending)))
            # A wait may need what this rank has not issued yet only if another rank is ahead of it: never.
            note(f"storm {seed}: at {number}, waiting for {chosen.number}: {chosen.prepared.case}")
            chosen.finish()
            finished += 1
    mine.shuffle(pending)
    for left in pending:
        note(f"storm {seed}: at the end, waiting for {left.number}: {left.prepared.case}")
        left.finish()
        finished += 1
    note(f"storm {seed}: synchronize")
    mcr_dl.synchronize()
    for left in without_work:
        left.prepared.check()
    return {"finished": finished, "checked after synchronize": len(without_work)}


def messages(seed: int, count: int, backend: str) -> int:
    """Point to point: tags matched out of order, and receives from any rank, each message checked by its content."""
    session.start()
    note(f"messages {seed} on {backend}")
    size, me = mcr_dl.get_world_size(), mcr_dl.get_rank()
    common, mine = random.Random(seed), random.Random(seed + 77 * me)
    plan = [(*common.sample(range(size), 2), 1 + common.randrange(2000), tag) for tag in range(count)]
    sends = [(tag, dst, n) for src, dst, n, tag in plan if src == me]
    receives = [(tag, src, n) for src, dst, n, tag in plan if dst == me]
    mine.shuffle(sends)
    mine.shuffle(receives)
    works = [
        mcr_dl.isend(torch.full((n,), tag, dtype=torch.int32), dst, tag=tag, backend=backend) for tag, dst, n in sends
    ]
    got = []
    for tag, src, n in receives:
        buffer = torch.empty(n, dtype=torch.int32)
        anyone = mine.random() < 0.5
        work = mcr_dl.irecv(buffer, None if anyone else src, tag=tag, backend=backend)
        got.append((tag, src, buffer, work))
    mine.shuffle(got)
    for tag, src, buffer, work in got:
        note(f"messages {seed}: waiting for tag {tag} from {src} on {backend}")
        work.wait()
        assert work.source_rank() == src, f"tag {tag}: expected sender {src}, got {work.source_rank()}"
        assert bool((buffer == tag).all()), f"tag {tag}: wrong content"
    for work in works:
        work.wait()
    return len(got)
