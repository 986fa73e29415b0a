# SPDX-License-Identifier: Apache-2.0
"""The setting of a training and its course in each mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

import mcr_dl as dist
from mcr_dl.measure.timing import quartiles


@dataclass
class Setting:
    """The training's model and data."""

    title: str
    unit: str  # the unit of a step's size: tokens, samples
    per_step: int  # of all ranks together
    loss_unit: str
    lines: list[str]  # sizes, in words
    details: dict[str, Any]  # sizes, as numbers
    turn: int = 0  # steps
    trial_seconds: dict[str, float] = field(default_factory=dict)  # a step's communication alone, by mix
    ranks: int = field(default_factory=dist.get_world_size)
    threads: int = field(default_factory=torch.get_num_threads)  # of a rank


@dataclass
class Record:
    """The course of one mode's training."""

    mode: str
    backends: dict[str, str]  # by kind of operation
    loss_start: float = 0.0
    loss_end: float = 0.0
    curve: list[float] = field(default_factory=list)  # training loss, every step
    step_seconds: list[float] = field(default_factory=list)  # measured steps only, as in the two fields below
    communication: dict[str, list[float]] = field(default_factory=dict)  # by kind of operation

    def add(self, seconds: float, communication: Mapping[str, float]) -> None:
        """Record the times of a step."""
        self.step_seconds.append(seconds)
        for kind in self.backends:
            self.communication.setdefault(kind, []).append(communication[kind])

    def averaged(self) -> Record:
        """The mean over the ranks, step by step. (The held-out losses already cover all ranks.)"""
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (self.curve, self.step_seconds, self.communication))
        curves, steps, communications = zip(*everyone, strict=True)
        mean = {name: _mean([one[name] for one in communications]) for name in self.backends}
        return Record(self.mode, self.backends, self.loss_start, self.loss_end, _mean(curves), _mean(steps), mean)

    def communication_seconds(self, kind: str) -> float:
        """Median over the measured steps."""
        return median(self.communication[kind])


def _mean(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]


def speed(setting: Setting, record: Record) -> float:
    """Tokens, or samples, of all ranks per second, in the median step."""
    return setting.per_step / median(record.step_seconds)


def turns(setting: Setting, record: Record) -> list[float]:
    """The median step of each measured turn."""
    times = record.step_seconds
    return [median(times[start : start + setting.turn]) for start in range(0, len(times), setting.turn)]


def spread(setting: Setting, record: Record) -> tuple[float, float]:
    """Lower and upper quartile of the speed over the measured turns."""
    speeds = [setting.per_step / seconds for seconds in turns(setting, record)]
    low, _, high = quartiles(speeds)
    return low, high


def ratio(setting: Setting, record: Record, base: Record) -> tuple[float, float, float]:
    """The speedup over another mode: median and quartiles over turns that ran next to each other."""
    pairs = zip(turns(setting, record), turns(setting, base), strict=True)
    ratios = [theirs / ours for ours, theirs in pairs]
    low, middle, high = quartiles(ratios)
    return middle, low, high


def share(record: Record) -> float:
    """The part of the median step that the program spends in calls and waits."""
    return sum(map(record.communication_seconds, record.backends)) / median(record.step_seconds)


def alone(records: Sequence[Record]) -> list[Record]:
    """The modes that are one library."""
    return [record for record in records if set(record.backends.values()) == {record.mode} != {"auto"}]


def gains(setting: Setting, records: Sequence[Record]) -> str:
    """How much faster ``auto`` trains than each library alone, in words; empty without such modes."""
    auto = next((record for record in records if record.mode == "auto"), None)
    if auto is None or not alone(records):
        return ""
    times = [f"{ratio(setting, auto, record)[0]:.2f} times {record.mode}'s" for record in alone(records)]
    return f"auto trains at {', '.join(times)} speed"
