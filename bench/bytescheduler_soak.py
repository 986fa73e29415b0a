# SPDX-License-Identifier: Apache-2.0
"""Trains by ByteScheduler for many steps while gradients come at random times, and checks the weights.

Each rank delays each gradient by a random time of its own. The weights of all ranks are compared with those of a copy
that is trained with the gradients of all ranks' data, without communication. Every thousand steps a new ByteScheduler
begins, which compares plans again: the plan changes about 25 times in each. Exit code 1: weights were wrong.

python bench/bytescheduler_soak.py --ranks 3 --steps 10000
"""

from __future__ import annotations

import copy
import random
import time
from functools import partial

import torch
from torch import nn

import mcr_dl
import script
from mcr_dl.commands.console import Console, bars

LIFE = 1000  # steps of one ByteScheduler
CHECK = 50  # steps between two comparisons
TOLERANCE = 1e-11  # of float64 weights, relative
BACKENDS = ("gloo", "shm", "mpi")  # in turns
DELAY = 0.0005  # seconds, at most, of one gradient in four
LONG_DELAY = 0.05  # of one in 2000


def network() -> nn.Module:
    """Small and large gradients, equal on all ranks."""
    torch.manual_seed(3)
    layers = [layer for _ in range(4) for layer in (nn.Linear(96, 96), nn.Tanh(), nn.LayerNorm(96))]
    return nn.Sequential(nn.Linear(16, 96), *layers, nn.Linear(96, 3)).double()


def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """Of one rank's data in a step."""
    generator = torch.Generator().manual_seed(step * 64 + rank)
    x = torch.randn(4, 16, generator=generator, dtype=torch.float64)
    result: torch.Tensor = model(x).square().mean()
    return result


def delayed(model: nn.Module) -> None:
    """Make each gradient come late by a random time, which differs between the ranks."""
    generator = random.Random(1000 + mcr_dl.get_rank())

    def wait(_: torch.Tensor) -> None:
        if generator.random() < 0.25:
            time.sleep(generator.random() * DELAY)
        if generator.random() < 0.0005:
            time.sleep(LONG_DELAY)

    for value in model.parameters():
        value.register_hook(wait)  # type: ignore[no-untyped-call]


def error(model: nn.Module, reference: nn.Module) -> float:
    """The largest difference of weights, relative to the largest weight, over all ranks."""
    pairs = [*zip(model.parameters(), reference.parameters(), strict=True)]
    largest = max(float(expected.detach().abs().max()) for _, expected in pairs)
    worst = max(float((value - expected).detach().abs().max()) for value, expected in pairs) / largest
    found = torch.tensor([worst], dtype=torch.float64)
    mcr_dl.all_reduce(found, mcr_dl.ReduceOp.MAX, backend="gloo")
    return float(found)


def life(number: int, steps: int, advance: partial[None]) -> tuple[float, int]:
    """One ByteScheduler: the largest error, and the number of plans that it compared."""
    ranks = range(mcr_dl.get_world_size())
    model = network()
    reference = copy.deepcopy(model)
    delayed(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9) for each in (model, reference)]
    backend = BACKENDS[number % len(BACKENDS)]
    scheduler = mcr_dl.schedule.ByteScheduler(model, optimizers[0], tuning="bayesian", backend=backend)
    worst = 0.0
    for step in range(steps):
        loss(scheduler, number * LIFE + step, mcr_dl.get_rank()).backward()  # type: ignore[no-untyped-call]
        optimizers[0].step()
        optimizers[0].zero_grad()
        for rank in ranks:
            (loss(reference, number * LIFE + step, rank) / len(ranks)).backward()  # type: ignore[no-untyped-call]
        optimizers[1].step()
        optimizers[1].zero_grad()
        if step % CHECK == CHECK - 1:
            scheduler.synchronize()
            worst = max(worst, error(model, reference))
            reference.load_state_dict(model.state_dict())  # rounding errors of a step do not add up
            advance(CHECK)
    scheduler.close()
    return worst, len(scheduler.trials)


def main() -> int:
    """Run all steps, and say what was found."""
    parser = script.parser(__doc__)
    parser.add_argument("--ranks", type=int, default=3, help="ranks to start, where no launcher has (3)")
    parser.add_argument("--steps", type=int, default=10_000, help="training steps (10000)")
    given = script.parse(parser, steps=CHECK)
    script.with_ranks(given.ranks)
    mcr_dl.init_process_group(["gloo", "mpi", "shm"], tuning_table="none")  # and so no settings are kept
    torch.set_num_threads(1)
    worst, plans, left = 0.0, 0, given.steps
    console = Console(stderr=True, quiet=mcr_dl.get_rank() != 0)
    begin = time.monotonic()
    with bars(console, ["{task.description}"]) as progress:
        task = progress.add_task("steps", total=given.steps)
        for number in range(-(-given.steps // LIFE)):
            found, compared = life(number, min(LIFE, left), partial(progress.advance, task))
            worst, plans, left = max(worst, found), plans + compared, left - LIFE
    if mcr_dl.get_rank() == 0:
        lives = -(-given.steps // LIFE)
        print(
            f"{given.steps:,} steps on {mcr_dl.get_world_size()} ranks in {time.monotonic() - begin:.0f} s: "
            f"{lives} ByteSchedulers compared {plans} plans; largest relative error {worst:.1e}"
        )
    mcr_dl.destroy_process_group()
    return 1 if worst > TOLERANCE else 0


if __name__ == "__main__":
    raise SystemExit(main())
