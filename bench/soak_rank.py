# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/soak.py: random calls from a pool of prepared ones, part of which is constantly replaced.

A new case is compared with plain torch. When it is drawn again, its memory is reset to its initial content, and must
afterwards equal its content after the correct call: that costs so little that every call is checked.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

import mcr_dl
import script
from mcr_dl import _C, passes
from mcr_dl.testing import checks, position, session
from mcr_dl.testing.calls import OPS, SIGNATURES, Case, layouts, spell

SIZES = (0, 1, 1, 3, 3, 64, 64, 64, 1000, 1000, 5000, 40_000)
MIXES: tuple[tuple[str, ...], ...] = ((), ("log",), ("fuse",), ("log", "fuse"), ("compress",), ("log", "compress"))
POOL, NEW, WINDOW = 400, 0.005, 40
AGREE = 2000  # calls from one check of the clock to the next


class Settings(NamedTuple):
    """The settings of all ranks. ``patience`` is how much longer they may take before they count as hung."""

    calls: int
    seconds: float
    seed: int
    gloo: float
    backends: Sequence[str] = ("mpi", "shm")  # of the calls that gloo does not get
    patience: float = 90.0


@dataclass
class _Template:
    """A call that can be made again and again, and the content of its memory before and after a correct call."""

    case: Case
    halves: list[checks.Prepared]
    memory: list[torch.Tensor]
    before: list[torch.Tensor]
    after: list[torch.Tensor] = field(default_factory=list)
    works: list[mcr_dl.Work] = field(default_factory=list)

    def start(self) -> None:
        for tensor, was in zip(self.memory, self.before, strict=True):
            tensor.copy_(was)
        made = [spell(half.case, dict(half.arguments))() for half in self.halves]
        self.works = [each for each in made if isinstance(each, mcr_dl.Work)]

    def finish(self) -> None:
        for work in self.works:
            work.wait()
        self.works = []
        if not self.after:
            for half in self.halves:
                half.check()
            self.after = [tensor.clone() for tensor in self.memory]
            return
        for tensor, want in zip(self.memory, self.after, strict=True):
            if not torch.equal(_bits(tensor), _bits(want)):
                for half in self.halves:
                    half.check()  # names the error; an average may differ in its last bits
                if self.case.red != "AVG":
                    raise AssertionError(f"{self.case}: other memory than the first time")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1 else tensor


def _template(case: Case) -> _Template | None:
    ranks = session.members(case.group, mcr_dl.get_world_size())
    me = mcr_dl.get_rank()
    if me not in ranks or (OPS[case.op]["peer"] and len(ranks) == 1):
        return None
    rank = ranks.index(me)
    halves = [checks.prepare(case, rank, len(ranks))]
    if OPS[case.op]["peer"]:  # the counterpart goes first, as it must not block
        other = next(n for n, row in SIGNATURES.items() if row["starts"] and {row["op"], case.op} == {"send", "recv"})
        half = replace(case, function=other, asynchronous=False, style="keywords")
        halves.insert(0, checks.prepare(half, rank, len(ranks)))
    sides = [side for half in halves for side in (half.input, half.output) if side is not None]
    tensors = [tensor for side in sides for tensor in (side.base, *side.tensors)]
    memory = list({tensor.data_ptr(): tensor for tensor in tensors if tensor.numel()}.values())
    return _Template(case, halves, memory, [tensor.clone() for tensor in memory])


def _draw(rng: random.Random, number: int, world: int, settings: Settings) -> Case:
    function = rng.choice(sorted(SIGNATURES))
    op = OPS[SIGNATURES[function]["op"]]
    group = rng.choice(["world", *session.SUBGROUPS[world]])
    lossy = "compress" in group
    dtype = rng.choice(_C.dtypes())
    defined = [red for red in _C.reductions() if _C.reduction_defined(dtype, red) and not (lossy and red == "AVG")]
    asynchronous = not SIGNATURES[function]["starts"] and (op["peer"] or rng.random() < 0.5)
    return Case(
        function, dtype, rng.choice(defined) if op["reduces"] else "SUM", rng.choice(SIZES),
        rng.choice(layouts(function)), asynchronous=asynchronous, group=group,
        root=rng.randrange(len(session.members(group, world))),
        backend="gloo" if rng.random() < settings.gloo else rng.choice(settings.backends), seed=number,
    )  # fmt: skip


def _groups(world: int, backends: list[str]) -> None:
    """The groups of the tests, and one of all ranks for each mix of passes."""
    kinds: dict[str, Any] = {"log": "log", "fuse": "fuse", "compress": passes.Compress("bf16", smallest=0)}
    for mix in MIXES[1:]:
        session.SUBGROUPS[world]["+".join(mix)] = list(range(world))
    session.start(*backends)
    session.groups()
    for mix in MIXES[1:]:
        passes.set_passes([kinds[name] for name in mix], session.group("+".join(mix)))


class _Run:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.world, self.rank = mcr_dl.get_world_size(), mcr_dl.get_rank()
        self.common = random.Random(settings.seed)
        self.mine = random.Random(settings.seed * 1000 + self.rank + 1)
        self.cases: list[Case] = []
        self.templates: list[_Template | None] = []
        self.pending: list[_Template] = []
        self.counts: Counter[str] = Counter()
        self.drawn = 0

    def choose(self) -> int:
        """The index of the next call's template; equal on all ranks."""
        if len(self.cases) < POOL:
            self.cases.append(_draw(self.common, self.drawn, self.world, self.settings))
            self.templates.append(None)
            place = len(self.cases) - 1
        else:
            place = self.common.randrange(POOL)
            if self.common.random() >= NEW:
                return place
            self.cases[place] = _draw(self.common, self.drawn, self.world, self.settings)
        self.drawn += 1
        self.synchronize(self.templates[place])
        self.templates[place] = _template(self.cases[place])
        return place

    def synchronize(self, template: _Template | None) -> None:
        if template is not None and template in self.pending:
            self.pending.remove(template)
            template.finish()

    def call(self, number: int) -> None:
        place = self.choose()
        case, template = self.cases[place], self.templates[place]
        self.counts["calls"] += 1
        self.counts["asynchronous"] += case.asynchronous or bool(SIGNATURES[case.function]["starts"])
        self.counts[str(case.backend)] += 1
        self.counts["passes" if set(case.group.split("+")) & {"log", "fuse", "compress"} else "no passes"] += 1
        if template is None:
            return
        position.note(f"call {number}: {case}; {len(self.pending)} unfinished")
        self.synchronize(template)
        template.start()
        self.counts["checked"] += 1
        if template.works:
            self.pending.append(template)
        else:
            template.finish()
        while self.pending and (len(self.pending) > WINDOW or self.mine.random() < 0.4):
            self.pending.pop(self.mine.randrange(len(self.pending))).finish()

    def over(self, elapsed: float) -> bool:
        """Whether rank 0's clock has reached the end."""
        flag = torch.tensor([elapsed > self.settings.seconds])
        mcr_dl.broadcast(flag, 0, backend=self.settings.backends[0])
        return bool(flag)


def soak(settings: Settings, folder: str) -> int:
    """Make the calls, and write the results."""
    torch.set_num_threads(1)
    backends = [*settings.backends, "gloo"]
    mcr_dl.init_process_group(backends)
    _groups(mcr_dl.get_world_size(), backends)
    run, begin, said, memory = _Run(settings), time.monotonic(), 0.0, list[int]()
    position.start(Path(folder), run.rank)
    for number in range(settings.calls):
        run.call(number)
        if number % AGREE:
            continue
        elapsed = time.monotonic() - begin
        share = max(number / settings.calls, elapsed / settings.seconds)
        while len(memory) < share * 10 - 0.5:  # at 5 %, 15 %, ... of the run
            memory.append(script.resident())
        if run.rank == 0 and elapsed - said > 10:
            said = elapsed
            rate = number / elapsed
            print(
                f"{run.world} ranks: {number:,} of {settings.calls:,} calls, {rate:.0f} per second, {elapsed:.0f} s",
                flush=True,
            )
        if run.over(elapsed):
            break
    for template in run.pending:
        template.finish()
    mcr_dl.synchronize()
    seconds = time.monotonic() - begin
    names = ("calls", "checked", "asynchronous")
    by = {name: number for name, number in run.counts.items() if name not in names}
    result = {**{name: run.counts[name] for name in names}, "by": by, "cases": run.drawn}
    result |= {"seconds": seconds, "rss": [*memory, script.resident()]}
    (Path(folder) / f"{run.rank}.json").write_text(json.dumps(result))
    mcr_dl.finalize()
    return 0
