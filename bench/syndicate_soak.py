# SPDX-License-Identifier: Apache-2.0
"""Runs programs under random plans of Syndicate for many iterations, with random delays, and checks all results.

Every 500 iterations a new Syndicate begins with a program and plans of its own: collectives of several kinds, started
or blocking, on two groups. In every second of these lives the program marks its iterations and the plan keeps an order
that the program can follow: then all ranks must issue the same motifs in the same order, without breaks. In the others,
plans have any order and leave out some calls, and the program sometimes makes a call that no plan expects. Exit code 1:
a result was wrong, or the order differed between ranks.

python bench/syndicate_soak.py --ranks 3 --iterations 10000
"""

from __future__ import annotations

import random
import time
from typing import Any, NamedTuple

import torch

import mcr_dl
import script
from mcr_dl.commands.console import Console, bars
from mcr_dl.schedule import step
from mcr_dl.testing.plans import Planned, random_plan

LIFE = 500  # iterations of one Syndicate
BACKENDS = ("mpi", "gloo", "shm")
KINDS = ("sum", "largest", "gather", "scatter", "exchange", "broadcast", "vectored")
SIZES = (1, 6, 300, 6000)  # elements of each rank
CALLS = (4, 9)  # of an iteration, at least and at most
EXTRA = 97  # iterations from one unexpected call to the next
DELAY = 0.0003  # seconds, at most, of one pause in four
LONG_DELAY = 0.03  # of one in 2000


# ---- programs


class Call(NamedTuple):
    """A call of an iteration: with ``wait``, it is started, and the program waits for it before that call."""

    kind: str
    size: int
    group: int
    wait: int | None
    backend: str | None

    def last_before_wait(self, index: int) -> int:
        """The last call that the program makes before it waits for this one."""
        return index if self.wait is None else self.wait - 1


def draw(seed: int, *, simple: bool) -> list[Call]:
    """A program; a simple one has only calls that a plan may contain."""
    rng = random.Random(seed)
    count = rng.randint(*CALLS)
    kinds = KINDS[:-1] if simple else KINDS
    return [
        Call(
            rng.choice(kinds),
            rng.choice(SIZES),
            rng.randrange(2),
            rng.choice([None, *range(index + 1, count + 1)]),
            rng.choice([None, None, *BACKENDS]),
        )
        for index in range(count)
    ]


def values(rank: int, count: int, salt: int) -> torch.Tensor:
    """A rank's input: small whole numbers, so that sums are exact."""
    return torch.arange(count, dtype=torch.float32) % 101 + 7 * rank + salt


class Made(NamedTuple):
    """A call that was made: what it gives, what it has to give, and how the program waits for it."""

    result: torch.Tensor
    expected: torch.Tensor
    work: Any

    def right(self) -> bool:
        """Wait, and compare."""
        if self.work is not None:
            self.work.wait()
        return torch.equal(self.result, self.expected)


def make(call: Call, salt: int, group: Any) -> Made:
    """Make a call. All ranks know each other's inputs."""
    rank, size, n = mcr_dl.get_rank(), mcr_dl.get_world_size(), call.size
    given: dict[str, Any] = {"group": group, "async_op": call.wait is not None, "backend": call.backend}
    count = n * size if call.kind in ("scatter", "exchange") else n
    inputs = [values(each, count, salt) for each in range(size)]
    mine, total = inputs[rank], torch.stack(inputs).sum(0)
    blocks = slice(rank * n, (rank + 1) * n)
    if call.kind == "sum":
        return Made(mine, total, mcr_dl.all_reduce(mine, **given))
    if call.kind == "largest":
        return Made(mine, inputs[-1].clone(), mcr_dl.all_reduce(mine, mcr_dl.ReduceOp.MAX, **given))
    if call.kind == "gather":
        out = torch.empty(n * size)
        return Made(out, torch.cat(inputs), mcr_dl.all_gather_into_tensor(out, mine, **given))
    if call.kind == "scatter":
        out = torch.empty(n)
        return Made(out, total[blocks], mcr_dl.reduce_scatter_tensor(out, mine, **given))
    if call.kind == "exchange":
        out = torch.empty(n * size)
        expected = torch.cat([each[blocks] for each in inputs])
        return Made(out, expected, mcr_dl.all_to_all_single(out, mine, **given))
    if call.kind == "broadcast":
        root = n % size
        return Made(mine, inputs[root].clone(), mcr_dl.broadcast(mine, root, **given))
    counts = [1 + (salt + each) % n for each in range(size)]  # they change from one iteration to the next
    out = torch.empty(sum(counts))
    expected = torch.cat([each[:number] for each, number in zip(inputs, counts, strict=True)])
    return Made(out, expected, mcr_dl.all_gatherv(out, mine[: counts[rank]].clone(), counts, **given))


class Program:
    """Iterates, and counts wrong results."""

    def __init__(self, calls: list[Call], groups: list[Any], delays: random.Random) -> None:
        self.calls, self.groups, self.delays = calls, groups, delays
        self.wrong = 0

    def iterate(self, number: int) -> None:
        """One iteration, whose values differ from those of the last ones."""
        open_calls: dict[int, list[Made]] = {}
        for index, call in enumerate(self.calls):
            self._finish(open_calls.pop(index, []))
            self._pause()
            made = make(call, number % 23, self.groups[call.group])
            if call.wait is None:
                self._finish([made])
            else:
                open_calls.setdefault(call.wait, []).append(made)
        self._pause()
        for each in open_calls.values():
            self._finish(each)

    def _finish(self, made: list[Made]) -> None:
        self.wrong += sum(not each.right() for each in made)

    def _pause(self) -> None:
        if self.delays.random() < 0.25:
            time.sleep(self.delays.random() * DELAY)
        if self.delays.random() < 0.0005:
            time.sleep(LONG_DELAY)


# ---- plans


def planned(seed: int, program: list[Call] | None) -> Planned:
    """Random plans; with a program, such as it can follow without a break."""
    rng = random.Random(seed)
    if program is None:
        return Planned(lambda iteration, most: [random_plan(iteration, rng, most)])

    def may(call: int, later: int) -> bool:
        return later <= program[call].last_before_wait(call)

    return Planned(lambda iteration, most: [random_plan(iteration, rng, most, left_out=0.0, may=may)])


# ---- lives


class Life(NamedTuple):
    """One Syndicate's events: calls and motifs on this rank, breaks and wrong results on all; the ranks' orders."""

    calls: int
    motifs: int
    breaks: int
    wrong: int
    ordered: bool  # the program could follow the plan
    equal: bool  # all ranks have issued the same motifs in the same order


def life(number: int, iterations: int, groups: list[Any], seed: int) -> Life:
    """One Syndicate, on all ranks."""
    ordered = number % 2 == 0
    calls = draw(seed, simple=ordered)
    program = Program(calls, groups, random.Random(seed * 64 + mcr_dl.get_rank()))
    with planned(seed, calls if ordered else None) as syndicate:
        for index in range(iterations):
            program.iterate(index)
            if ordered:
                step()
            elif index % EXTRA == EXTRA - 1:
                mcr_dl.barrier(group=groups[index % 2])
        found = syndicate.statistics()
        phase = syndicate.phase
    every: list[Any] = [None] * mcr_dl.get_world_size()
    mcr_dl.all_gather_object(every, {**found, "phase": phase, "wrong": program.wrong})
    breaks, wrong = (sum(each[name] for each in every) for name in ("breaks", "wrong"))
    equal = len({each["digest"] for each in every}) == 1
    return Life(found["calls"], found["motifs"], breaks, wrong, ordered and phase == "steady", equal)


def main() -> int:
    """Run all iterations, and say what was found."""
    parser = script.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=3, help="ranks to start, where no launcher has (3)")
    parser.add_argument("--iterations", type=int, default=10_000, help="iterations (10000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.set_defaults(life=LIFE)
    given = script.parse(parser, iterations=200, life=100)
    script.with_ranks(given.ranks)
    mcr_dl.init_process_group(list(BACKENDS), tuning_table="none", timeout=60)
    torch.set_num_threads(1)
    groups = [mcr_dl.group.WORLD, mcr_dl.new_group(list(range(mcr_dl.get_world_size())))]
    lived: list[Life] = []
    begin = time.monotonic()
    with bars(Console(stderr=True, quiet=mcr_dl.get_rank() != 0), ["{task.description}"]) as progress:
        for number in progress.track(range(-(-given.iterations // given.life)), description="lives"):
            iterations = min(given.life, given.iterations - number * given.life)
            lived.append(life(number, iterations, groups, 1000 * given.seed + number))
    ordered = [each for each in lived if each.ordered]
    unbroken = [each for each in ordered if each.breaks == 0]
    equal = sum(each.equal for each in unbroken)
    calls, moved, breaks, wrong = (sum(column) for column in zip(*(each[:4] for each in lived), strict=True))
    if mcr_dl.get_rank() == 0:
        print(
            f"{given.iterations:,} iterations of {len(lived)} programs on {mcr_dl.get_world_size()} ranks in "
            f"{time.monotonic() - begin:.0f} s: {calls:,} planned calls and {moved:,} motifs on rank 0, {breaks:,} "
            f"breaks on all ranks; {len(unbroken)} of {len(ordered)} programs in the plan's order had no break, equal "
            f"digests in {equal} of them; {wrong} wrong results"
        )
    mcr_dl.destroy_process_group()
    planned = calls > 0 and 2 * len(ordered) >= sum(number % 2 == 0 for number in range(len(lived)))
    return 1 if wrong or equal < len(unbroken) or not planned else 0


if __name__ == "__main__":
    raise SystemExit(main())
