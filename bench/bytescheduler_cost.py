# SPDX-License-Identifier: Apache-2.0
"""Cost of ByteScheduler with an unlimited partition and credit: step times over those of plain hooks.

Two copies of each model train in turns: one reduces each gradient from a hook as soon as it is ready and waits for all
before the optimizer's step, the other is ByteScheduler with an unlimited partition and credit in program order, so that
it issues the same operations. Both use the same candidate. Layers wait for their time, so that the ranks leave the
cores free; there is no slow network to wait for.

python bench/bytescheduler_cost.py
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

import mcr_dl
import script
from markdown_text import table
from mcr_dl.commands.console import Console, bars
from mcr_dl.examples import bytescheduler_models as models
from mcr_dl.measure.timing import quartiles
from mcr_dl.schedule.bytescheduler.planning import Plan

CANDIDATES = ("gloo", "shm")
MODELS = ("vgg16", "resnet50", "transformer-base")
WAYS = (models.HOOKS, models.WHOLE)


def measure(model: str, group: Any, turns: int, steps: int, advance: partial[None]) -> dict[str, list[float]]:
    """Milliseconds per step, by way and turn."""
    made = models.ways(group)
    trainers = {name: models.Trainer(model, made[name], group) for name in WAYS}
    for trainer in trainers.values():
        trainer.warm_up()
    scheduler = trainers[models.WHOLE].model
    assert isinstance(scheduler, mcr_dl.schedule.ByteScheduler)
    scheduler.synchronize()
    scheduler._adopt(Plan(()))  # simulation may prefer to join gradients
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for turn in range(turns):
        for name in WAYS[:: 1 if turn % 2 else -1]:
            times[name].append(1e3 * trainers[name].turn(steps))
        advance()
    return times


def main() -> None:
    """Measure, and print the table."""
    parser = script.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="ranks to start, where no launcher has (2)")
    parser.add_argument("--turns", type=int, default=30, help="turns of each way (30)")
    parser.add_argument("--steps", type=int, default=5, help="steps of a turn (5)")
    given = script.parse(parser, turns=2, steps=1)
    script.with_ranks(given.ranks)
    mcr_dl.init_process_group([*CANDIDATES], tuning_table="none")
    console = Console(stderr=True, quiet=mcr_dl.get_rank() != 0)
    rows = []
    with bars(console, ["{task.description}"]) as progress:
        for candidate in CANDIDATES:
            group = mcr_dl.new_group(backend=candidate)
            for model in MODELS:
                task = progress.add_task(f"{model} on {candidate}", total=given.turns)
                times = measure(model, group, given.turns, given.steps, partial(progress.advance, task))
                ratios = [own / plain for plain, own in zip(*(times[name] for name in WAYS), strict=True)]
                low, middle, high = quartiles(ratios)
                medians = [f"{median(times[name]):.2f}" for name in WAYS]
                rows.append([model, candidate, *medians, f"{middle:.3f} ({low:.3f} to {high:.3f})"])
    if mcr_dl.get_rank() == 0:
        header = ["model", "candidate", "hooks, ms", "ByteScheduler, ms", "time over hooks (quartiles)"]
        print("\n".join(table(header, rows)))
    mcr_dl.destroy_process_group()


if __name__ == "__main__":
    main()
