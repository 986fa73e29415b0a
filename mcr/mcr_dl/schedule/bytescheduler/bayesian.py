# SPDX-License-Identifier: Apache-2.0
"""Bayesian optimisation of ByteScheduler's settings, by optuna (``pip install optuna scipy``).

Source: SOSP'19, section 4.3. A Gaussian process of step times over the logarithms of the settings takes the place of
the paper's tuner.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

from mcr_dl.schedule.bytescheduler.planning import Plan, Settings
from mcr_dl.schedule.bytescheduler.turns import Probes

_log = logging.getLogger("mcr_dl")

NEEDED = ("optuna", "scipy")
RANDOM, GUIDED = 5, 10  # probes
# Logarithms of bytes per partition, partitions in flight, and bytes up to which gradients are joined.
SPACE = {"partition": (16.0, 23.0), "credit": (0.0, 3.0), "join": (14.0, 21.0)}
_ALIGNED = 16

Make = Callable[[Settings], Plan]
"""From settings to a plan."""

Share = Callable[[Any], Any]
"""From a value on each rank to that of rank 0; on all ranks at the same point."""


def missing() -> list[str]:
    """The packages that the search needs and that are not installed."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def probes(make: Make, share: Share, leads: bool, random: int = RANDOM, guided: int = GUIDED) -> Probes:
    """Plans of quasi-random settings, then of those that promise the most.

    Rank 0, which ``leads``, searches; the others get its settings, so all make the same plans, and end the search
    together if rank 0 has an error.
    """
    proposals = _Proposals(random) if leads else None
    took: int | None = None
    for _ in range(random + guided):
        settings = share(proposals.next(took) if proposals else None)
        if settings is None:
            break
        took = yield make(Settings(*settings))
    yield None


class _Proposals:
    """The settings that rank 0 proposes."""

    def __init__(self, random: int) -> None:
        self._random = random
        self._study: Any = None
        self._trial: Any = None

    def next(self, took: int | None) -> Settings | None:
        """The next ones, after the ns of a step with those before; None after an error, as the other ranks wait."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of packages below
                if self._study is None:
                    self._study = _study(self._random)
                else:
                    self._study.tell(self._trial, math.log(took or 1))
                self._trial = self._study.ask(_distributions())
                return _settings(self._trial.params)
        except Exception:
            _log.warning("ByteScheduler: the search for settings has failed, and ends", exc_info=True)
            return None


def _settings(point: dict[str, float]) -> Settings:
    partition = round(2 ** point["partition"]) // _ALIGNED * _ALIGNED
    return Settings(round(2 ** point["join"]), partition, round(partition * 2 ** point["credit"]))


def _distributions() -> dict[str, Any]:
    import optuna

    return {name: optuna.distributions.FloatDistribution(*limits) for name, limits in SPACE.items()}


def _study(random: int) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages below
        study = optuna.create_study(sampler=optuna.samplers.GPSampler(seed=1, n_startup_trials=random))
    engine: Any = torch.quasirandom.SobolEngine  # has no types
    points = engine(len(SPACE), scramble=True, seed=1).draw(random)
    for row in points.tolist():
        study.enqueue_trial(
            {name: low + part * (high - low) for part, (name, (low, high)) in zip(row, SPACE.items(), strict=True)}
        )
    return study
