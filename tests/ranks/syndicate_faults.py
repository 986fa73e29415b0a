# SPDX-License-Identifier: Apache-2.0
"""A job under Syndicate with faults on one rank: syndicate_faults.py PHASES FAULT RANK SEED.

PHASES, with commas, is where the fault comes: see ``METHODS`` and ``INSIDE``. FAULT is ``kill``, ``raise``, ``stop``
(for two seconds) or ``long stop`` (for longer than the ranks wait for each other between two calls). Other jobs:
syndicate_faults.py behind RANK; syndicate_faults.py survive RANK ITERATION.

A rank that gets an exception of mcr_dl prints it and exits with 3; one that comes to the end prints what Syndicate did.
The times of the fault and of the exception are printed too.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import mcr_dl
from mcr_dl.schedule import Syndicate
from mcr_dl.schedule.syndicate import known, measured, slowdown
from mcr_dl.schedule.syndicate.iteration import Iteration
from mcr_dl.testing.plans import Planned
from ranks import session
from ranks.syndicate import ROUNDS, Program, random_plans_of

LIMIT = 5.0  # seconds, of the job's groups
STOPPED = {"stop": 2, "long stop": 7}  # seconds
SEARCH = 0.3  # seconds, so that the other ranks wait for it
REPORTED = 3
# Phases between two calls, each with the method that the fault comes before, and the number of that call of it.
METHODS = {
    "captured": ("_agree_on", 1),
    "prepared": ("_commit", 1),
    "committed": ("_follow", 1),
    "turn ended": ("_end_turn", 4),  # the last: the ranks agree on the fastest plan
    "decided": ("_follow", 2),
    "check": ("_check", 2),
    "again": ("_agree_on", 2),  # iterations have become slower
}
# Phases in which a fault comes between the calls of an iteration, and the number of the pause in that phase.
INSIDE = {"turn": ("trying", 8), "turn without a plan": ("trying", 23), "steady": ("steady", 20)}
PHASES = (*METHODS, "measuring", "searching", *INSIDE)

When = Callable[..., bool]


def fail(kind: str) -> None:
    """Cause the fault."""
    print(f"fault {time.monotonic()}", flush=True)
    if kind == "raise":
        raise ValueError("bad batch")
    if kind in STOPPED:
        subprocess.Popen(["sh", "-c", f"sleep {STOPPED[kind]}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)


def before(owner: Any, name: str, number: int, kind: str, when: When = lambda *_: True) -> None:
    """Cause the fault before a call of a function, counted among those that ``when`` admits."""
    inner, seen = getattr(owner, name), 0

    def replaced(*given: Any) -> Any:
        nonlocal seen
        seen += when(*given)
        if when(*given) and seen == number:
            fail(kind)
        return inner(*given)

    setattr(owner, name, replaced)


class Pauses(random.Random):
    """Random delays, with the fault at some of them."""

    def __init__(self, planned: Syndicate, phases: list[str], kind: str) -> None:
        super().__init__(mcr_dl.get_rank())
        self.planned, self.kind = planned, kind
        self.faults = {INSIDE[each] for each in phases if each in INSIDE}
        self.seen = dict.fromkeys(("watching", "trying", "steady", "off"), 0)

    def random(self) -> float:
        """The next delay's share of the longest one."""
        phase = self.planned.phase
        self.seen[phase] += 1
        if (phase, self.seen[phase]) in self.faults:
            fail(self.kind)
        return super().random()


def inject(planned: Syndicate, phase: str, kind: str) -> None:
    """Prepare this rank's fault, unless it comes in the program itself."""
    replanner = planned._replanner
    if phase in METHODS:
        before(replanner, *METHODS[phase], kind)
    elif phase == "measuring":
        before(measured, "_timed", 2, kind)
    elif phase == "searching" and mcr_dl.get_rank() == 0:
        before(replanner, "search", 1, kind)
    elif phase == "searching":
        before(replanner, "_meet", 1, kind, lambda *given: len(given) == 3)  # only this meeting has its own patience


def slow(search: Callable[..., Any]) -> Callable[..., Any]:
    """A search that takes its time."""

    def found(*given: Any) -> Any:
        time.sleep(SEARCH)
        return search(*given)

    return found


def planned_program(phases: list[str], kind: str, rank: int, seed: int) -> None:
    """Many collectives under random plans, with the faults of a rank."""
    known._CHECK_TIME = 0  # so that checks come soon, however short iterations are
    slowdown.WORTH = 0.0  # so that a new plan comes soon, however long the first one took
    # Ranks wait for a stopped one for a third of the limit.
    mcr_dl.init_process_group(list(session.BACKENDS), timeout=3 * LIMIT if kind in STOPPED else LIMIT)
    here = phases if mcr_dl.get_rank() == rank else []
    with Planned(random_plans_of(seed), again="again" in phases) as planned:
        replanner: Any = planned._replanner
        replanner.search = slow(replanner.search)
        for phase in here:
            inject(planned, phase, kind)
        program = Program(Pauses(planned, here, kind))
        for _ in range(ROUNDS):
            program.iterate()
        while "again" in phases and all(each.what != "slower" for each in planned.events):
            time.sleep(0.02)
            program.iterate()
        for _ in range(10 * ROUNDS):
            if planned.events[-1].what != "failed" or "again" in phases:
                break
            program.iterate()  # after a turn whose end a rank has missed, the turns go on
        for _ in range(2):
            program.iterate()
        last = planned.events[-1].what
        assert last == "failed" or (planned.plan is None) == (last == "dropped")
        events = [list(vars(each).values()) for each in planned.events]
    program.iterate()
    assert mcr_dl.get_passes() == []
    print("DONE", json.dumps({"phase": planned.phase, "events": events}), flush=True)
    mcr_dl.destroy_process_group()


# ---- smaller programs


def pair(group: Any = None, backend: str | None = None) -> None:
    """An iteration of two calls: an all_reduce that is started, and a blocking all_gather."""
    size = mcr_dl.get_world_size(group)
    value, gathered = torch.ones(1000), torch.empty(2 * size)
    work = mcr_dl.all_reduce(value, group=group, async_op=True)
    mcr_dl.all_gather_into_tensor(gathered, torch.ones(2), group=group, backend=backend)
    work.wait()
    assert torch.equal(value, torch.full((1000,), float(size)))
    assert torch.equal(gathered, torch.ones(2 * size))


def behind(rank: int) -> None:
    """A blocking call on shm, which is in no plan, waits for the first motif of a call on MPI, and the rank dies."""

    def ring_on_mpi(iteration: Iteration, _most: int) -> list[dict[str, Any]]:
        at = [record.op for record in iteration.calls].index("all_reduce")
        calls: list[Any] = [None, None]
        calls[at] = ["ring", ["mpi", "mpi"], [0, 0]]
        return [{"name": "ring", "calls": calls, "order": [[at, 0, 0], [at, 1, 0]]}]

    mcr_dl.init_process_group(list(session.BACKENDS), timeout=LIMIT)
    with Planned(ring_on_mpi) as planned:
        for _ in range(ROUNDS):
            pair(backend="shm")
        assert planned.plan is not None
        if mcr_dl.get_rank() == rank:
            fail("kill")
        pair(backend="shm")


def survive(rank: int, number: int) -> None:
    """The other ranks go on with a group of their own, and leave Syndicate."""
    session.BACKENDS = ("gloo", "shm")  # type: ignore[assignment]
    mcr_dl.init_process_group(list(session.BACKENDS), timeout=LIMIT)
    with Planned(random_plans_of(0)) as planned:
        try:
            for _ in range(number):
                pair()
            if mcr_dl.get_rank() == rank:
                fail("kill")
            pair()
        except mcr_dl.PeerLostError:
            group = mcr_dl.shrink(mcr_dl.group.WORLD)
        for _ in range(ROUNDS):
            pair(group)
        print("LEAVES", planned.phase, flush=True)
    print("DONE", flush=True)


def main(name: str, *given: str) -> None:
    """One rank."""
    if name == "behind":
        behind(int(given[0]))
    elif name == "survive":
        survive(int(given[0]), int(given[1]))
    else:
        planned_program(name.split(","), given[0], int(given[1]), int(given[2]))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except mcr_dl.McrError as error:
        print(f"raised {time.monotonic()}", flush=True)
        print(f"REPORTED {type(error).__name__}: {error}", flush=True)
        sys.exit(REPORTED)
