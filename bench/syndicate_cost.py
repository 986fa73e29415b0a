# SPDX-License-Identifier: Apache-2.0
"""The time that Syndicate adds to calls, and to training steps of the example's models.

Interleaved rounds without passes, with the log, while it watches, when no plan is better, and with a plan that changes
nothing; medians.

    python bench/syndicate_cost.py            # 2 ranks on one host
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

import mcr_dl
import script
from mcr_dl.examples.syndicate import MODELS
from mcr_dl.planner import capture
from mcr_dl.schedule import step
from mcr_dl.schedule.syndicate.execution import Document
from mcr_dl.schedule.syndicate.iteration import Iteration
from mcr_dl.testing.plans import Planned

CALLS = 40  # of an iteration
SIZES = (1, 1024)  # elements, in turns
FOUND = 10  # iterations after which a plan is in force
STEPS = 30  # timed in each turn of a model
FIRST_STEPS = 60  # before them, so that a plan is in force


def unchanged(iteration: Iteration, _most: int) -> list[Document]:
    """A plan that does each call as it is."""
    calls = [["whole", [record.backend], [0]] for record in iteration.calls if capture.call_of(record)]
    return [{"name": "as it is", "calls": calls, "order": [[index, 0, 0] for index in range(len(calls))]}]


def nothing(_iteration: Iteration, _most: int) -> list[Document]:
    """No plan is better."""
    return []


def spread(values: list[float]) -> str:
    """The lowest and the highest."""
    return f"{min(values):.3f} to {max(values):.3f}"


class Log:
    """The log alone."""

    def __enter__(self) -> None:
        mcr_dl.set_passes(["log"])

    def __exit__(self, *_: object) -> None:
        mcr_dl.set_passes([])


WAYS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], int]] = {
    "no passes": (nullcontext, 0),
    "the log": (Log, 0),
    "watching": (lambda: Planned(nothing), 0),
    "no plan is better": (lambda: Planned(nothing), FOUND),
    "a plan": (lambda: Planned(unchanged, rounds=1), FOUND + 12),
}
"""How each way begins, and iterations before it is measured."""


def iterate(backend: str, tensors: list[torch.Tensor], waits: bool) -> None:
    """One iteration of blocking calls, or of pairs of calls that are started together."""
    step()
    if waits:
        for tensor in tensors:
            mcr_dl.all_reduce(tensor, backend=backend)
        return
    for first, second in zip(tensors[::2], tensors[1::2], strict=True):
        works = [mcr_dl.all_reduce(each, async_op=True, backend=backend) for each in (first, second)]
        for work in works:
            work.wait()


def measure(backend: str, rounds: int, iterations: int) -> dict[str, dict[str, float]]:
    """Median µs per call by way, for blocking and started calls."""
    tensors = [torch.zeros(SIZES[index % 2]) for index in range(CALLS)]
    taken: dict[str, dict[str, list[float]]] = {name: {"blocking": [], "started": []} for name in WAYS}
    for turn in range(rounds + 1):
        for name, (way, before) in list(WAYS.items())[:: -1 if turn % 2 else 1]:
            for kind in ("blocking", "started"):
                with way() as found:
                    for _ in range(before or 1):
                        iterate(backend, tensors, kind == "blocking")
                    if isinstance(found, Planned) and before:
                        assert found.phase == "steady", found.events
                    mcr_dl.barrier(backend=backend)
                    for _ in range(iterations):
                        begin = time.perf_counter()
                        iterate(backend, tensors, kind == "blocking")
                        if turn > 0:
                            taken[name][kind].append((time.perf_counter() - begin) / CALLS * 1e6)
    return {name: {kind: statistics.median(each) for kind, each in both.items()} for name, both in taken.items()}


def ratios(model: str, rounds: int, steps: int) -> dict[str, list[float]]:
    """By way, for each round: the median time of a training step over that without passes."""
    make, batch = MODELS[model]
    train = make(batch)
    for _ in range(FOUND):
        train()
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(rounds):
        taken = {}
        for name, (way, before) in list(WAYS.items())[:: -1 if turn % 2 else 1]:
            with way() as plan:
                for _ in range(FIRST_STEPS if before else 10):
                    train()
                if isinstance(plan, Planned) and before:
                    assert plan.phase == "steady", plan.events
                times = []
                for _ in range(steps):
                    begin = time.perf_counter()
                    train()
                    times.append(time.perf_counter() - begin)
            taken[name] = statistics.median(times)
        for name, seconds in taken.items():
            found[name].append(seconds / taken["no passes"])
    return found


def main() -> None:
    """Measure on two ranks."""
    parser = script.parser(__doc__, figures=True)
    parser.add_argument("--rounds", type=int, default=5, help="of all ways (5)")
    parser.add_argument("--models", nargs="*", choices=sorted(MODELS), default=sorted(MODELS), help="whose steps (all)")
    parser.set_defaults(iterations=4, steps=STEPS)
    given = script.parse(parser, rounds=1, steps=2, models=["ddp"])
    script.with_ranks(2)
    mcr_dl.init_process_group(["mpi", "gloo", "shm"])
    found = {backend: measure(backend, given.rounds, given.iterations) for backend in ("shm", "mpi", "gloo")}
    models = {model: ratios(model, given.rounds, given.steps) for model in given.models}
    if mcr_dl.get_rank() == 0:
        for backend, ways in found.items():
            for name, both in ways.items():
                print(f"{backend:5} {name:18} blocking {both['blocking']:8.2f} µs   started {both['started']:8.2f} µs")
        for model, steps in models.items():
            for name, values in steps.items():
                middle = statistics.median(values)
                print(f"{model:5} {name:18} step {middle:6.3f} of that without passes ({spread(values)})")
        script.keep(given, {"calls": CALLS, "backends": found, "models": models})
    mcr_dl.destroy_process_group()


if __name__ == "__main__":
    main()
