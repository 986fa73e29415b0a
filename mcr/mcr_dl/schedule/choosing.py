# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a group choose one plan together."""

from __future__ import annotations

from typing import Any

from mcr_dl import _C
from mcr_dl.runtime import changes
from mcr_dl.schedule import planning, search, tuning


def tuner(
    group: _C.Group, kind: str, known: planning.Costs, plans: list[planning.Plan], trials: list[tuning.Trial]
) -> tuning.Tuner | None:
    """What compares plans by training steps, into ``trials``; None if ``kind`` or the plans leave nothing to compare.

    ``kind``: ByteScheduler's argument ``tuning``. The ranks agree on every step time, that of the slowest rank.
    """

    def agree(times: list[int]) -> list[int]:
        agreed: list[int] = changes.agree(group, "ByteScheduler", times, tuning.slowest)
        return agreed

    def share(value: Any) -> Any:
        return changes.agree(group, "ByteScheduler", value, lambda values: values[0])

    turns = tuning.shortlist(plans, trials, agree)
    if kind == "bayesian":
        probes = search.bayesian(known.plan, share, group.rank() == 0)
        return tuning.Tuner(tuning.searched(turns, probes, trials, agree))
    return tuning.Tuner(turns) if kind == "shortlist" and len(plans) > 1 else None
