# SPDX-License-Identifier: Apache-2.0
"""The example models on a rank, at small sizes, with optimizers that reveal a gradient of the wrong size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

import mcr_dl
from mcr_dl.examples import dlrm, dlrm_model, gpt, gpt_model, mixes, program
from mcr_dl.examples.comm import Comm, make_groups
from ranks import session

DLRM = dlrm_model.Shape(tables=4, rows=60, below=(64, 64), above=(128, 128, 1))
SAMPLES = 256
GPT = gpt_model.Shape(width=64, heads=4, blocks=2, hidden=128, context=128)
WINDOWS = 2  # of each copy of the model
MEGABYTES = 0.3
STEPS = 6
SPLIT = "stripe(gloo,mpi,60)"
RATE = 0.5
TABLE_RATE = 20.0  # a row's gradient is a mean over all samples, few of which have the row

Result = dict[str, tuple[list[float], dict[tuple[str, str], int]]]


def _modes(kinds: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """gloo, mpi, whole operations on either, messages cut in two, and auto."""
    modes = {name: dict.fromkeys(kinds, name) for name in ("gloo", "mpi", "auto")}
    modes["mixed"] = dict(zip(kinds, ("mpi", "gloo"), strict=False))
    modes["split"] = dict.fromkeys(kinds, SPLIT)
    return modes


def _losses(workload: program.Workload, steps: int, prepare: Callable[[program.Trainer], None]) -> Result:
    """By mode, the losses of all steps, means over ranks, and the bytes by kind and candidate."""
    new_group = partial(mcr_dl.new_group, backend=mixes.with_stripes(("gloo", "mpi")))
    groups = make_groups(workload.layout(), mcr_dl.get_rank(), new_group)
    found: Result = {}
    for mode, routes in _modes(workload.kinds).items():
        trainer = workload.trainer(mode, Comm(routes, groups=groups))
        prepare(trainer)
        for _ in range(steps):
            trainer.step(measured=True)
        found[mode] = trainer.record.averaged().curve, dict(trainer.comm.nbytes)
    for group in {id(group): group for group in groups.values()}.values():
        mcr_dl.destroy_process_group(group)
    return found


def dlrm_losses() -> Result:
    """The losses of the recommendation model."""
    session.start()

    def prepare(trainer: program.Trainer) -> None:
        assert isinstance(trainer, dlrm.Trainer)
        trainer.optimizer = torch.optim.SGD(trainer.dense.parameters(), lr=RATE)
        trainer.table_optimizer = torch.optim.SGD(trainer.tables.parameters(), lr=TABLE_RATE)

    return _losses(dlrm.Workload(DLRM, SAMPLES), STEPS, prepare)


class _Recording(Comm):
    """Records when all_to_alls are started and waited for."""

    def __init__(self, routes: dict[str, str], events: list[str]) -> None:
        super().__init__(routes)
        self.events = events

    def start_all_to_all(self, output: torch.Tensor, input: torch.Tensor, group: Any, candidate: str) -> Any:
        work, events = super().start_all_to_all(output, input, group, candidate), self.events
        number = events.count("start")
        events.append("start")

        class Recorded:
            def wait(self) -> None:
                work.wait()
                events.append(f"wait {number}")

        return Recorded()


def dlrm_events() -> list[str]:
    """The order of events in the second step of the recommendation model; exchanges are numbered from 0 on."""
    session.start()
    workload, events = dlrm.Workload(DLRM, SAMPLES), list[str]()
    trainer = workload.trainer("gloo", _Recording(dict.fromkeys(workload.kinds, "gloo"), events))
    trainer.dense.above.register_forward_hook(lambda *_: events.append("above"))
    trainer.dense.above[0].weight.register_hook(lambda _: events.append("above, backward"))
    trainer.step(measured=False)
    seen = len(events)
    trainer.step(measured=False)
    return events[seen:]


def gpt_losses() -> Result:
    """The losses of the dense model."""
    session.start()

    def prepare(trainer: program.Trainer) -> None:
        assert isinstance(trainer, gpt.Trainer)
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=RATE)
        trainer.steps = program.WARM_UP  # after the rise of the rate

    copies = gpt.Grid(mcr_dl.get_rank(), mcr_dl.get_world_size()).copies
    with patch.object(gpt, "RATE", RATE):
        return _losses(gpt.Workload(GPT, WINDOWS * copies, megabytes=MEGABYTES), STEPS, prepare)


def refusals() -> list[str]:
    """The errors of the workloads for sizes that two ranks cannot share."""
    session.start()
    said = []
    for shape, samples in ((dlrm_model.Shape(tables=3), 64), (DLRM, 1)):
        try:
            dlrm.Workload(shape, samples)
        except program.WorkloadError as error:
            said.append(str(error))
    return said
