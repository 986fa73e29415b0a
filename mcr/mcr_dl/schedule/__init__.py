# SPDX-License-Identifier: Apache-2.0
"""Schedulers of a training step's communication (docs/scheduling.md)."""

from mcr_dl.schedule.bytescheduler import ByteScheduler
from mcr_dl.schedule.known import Event, Turn
from mcr_dl.schedule.planning import Plan
from mcr_dl.schedule.syndicate import Syndicate, step
from mcr_dl.schedule.timeline import Traced
from mcr_dl.schedule.tuning import Trial

__all__ = ["ByteScheduler", "Event", "Plan", "Syndicate", "Traced", "Trial", "Turn", "step"]
