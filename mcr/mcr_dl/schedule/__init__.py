# SPDX-License-Identifier: Apache-2.0
"""Schedulers of a training step's communication (docs/scheduling.md)."""

from mcr_dl.schedule.bytescheduler.planning import Plan
from mcr_dl.schedule.bytescheduler.scheduler import ByteScheduler
from mcr_dl.schedule.bytescheduler.turns import Trial
from mcr_dl.schedule.syndicate.known import Event, Turn
from mcr_dl.schedule.syndicate.scheduler import Syndicate, step
from mcr_dl.schedule.timelines import Traced

__all__ = ["ByteScheduler", "Event", "Plan", "Syndicate", "Traced", "Trial", "Turn", "step"]


def __dir__() -> list[str]:
    """The public names, without the modules that have them."""
    return sorted(__all__)
