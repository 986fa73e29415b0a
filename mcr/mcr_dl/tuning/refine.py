# SPDX-License-Identifier: Apache-2.0
"""Refines ``auto`` while a program runs: it tries other candidates, and the ranks agree on the results.

Every rank counts in src/choose/refine.cc which call tries which candidate, so all ranks count alike. Times stay on
their rank until refine_step().
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.runtime import changes, handles

_log = logging.getLogger("mcr_dl")
_WRONG = -1  # the period of an invalid share


@dataclass(frozen=True)
class Change:
    """From now on calls of about this size use another candidate. ``nbytes`` as ``explain`` counts them."""

    operation: str
    nbytes: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.operation}, {self.nbytes} bytes: {self.new} instead of {self.old}"


def _period(share: float) -> int:
    """The number of calls per trial; 0 for no trials."""
    if not isinstance(share, int | float) or not 0 <= share <= 0.5:  # also catches NaN
        return _WRONG
    return 0 if share == 0 else round(1 / max(share, 1e-9))


def _common_period(values: list[Any]) -> int:
    for rank, value in enumerate(values):
        if value["period"] == _WRONG:
            message = f"share: expected 0 to 0.5 on every rank, got {value['share']} on rank {rank}"
            raise InvalidArgumentError(message)
        if value["period"] != values[0]["period"]:
            agreement.require_equal("share", [each["share"] for each in values[: rank + 1]])
    return int(values[0]["period"])


def _largest_costs(values: list[Any]) -> list[int]:
    """The largest values over the ranks, index by index."""
    for rank, value in enumerate(values):
        if value["calls"] != values[0]["calls"]:
            message = (
                "expected the same blocking collectives without a backend's name on all ranks since refine(), got "
                f"others on rank {rank} than on rank 0"
            )
            raise InvalidArgumentError(message)
    return [max(costs) for costs in zip(*(value["costs"] for value in values), strict=True)]


def _agreed(group: _C.Group, values: list[Any]) -> dict[str, Any]:
    """The largest costs, or what differs between ranks that all call refine_step."""
    try:
        changes.require_one_point(group, "refine_step", [value["newest"] for value in values])
        return {"costs": _largest_costs(values)}
    except InvalidArgumentError as error:
        return {"different": str(error)}


def refine(share: float = 0.02, group: handles.Group = None) -> None:
    """Let a share of the blocking collectives that name no backend try another candidate; 0 ends that.

    Every rank of the group calls this, with the same share, at the same point in the group's calls. Nothing changes
    before ``refine_step``. While refinement is on, all ranks must make the same calls on the group, and agree on which
    calls name a backend and which are asynchronous. Calls of torch.distributed on a group with ``uniform=False`` try
    nothing, as their form may differ between the ranks. Results come from the candidate tried: sums of floating-point
    numbers may differ in their last bits.

    Args:
        share: of the calls of one kind and size; 0 to 0.5. Candidates that take twice as long are tried half as often.
        group: the default group if None.

    Raises InvalidArgumentError on all ranks if the share is out of range on one, or differs between ranks.
    """
    if handles.left_out(group, "refine"):
        return
    where = handles.core_group(group)
    where._refine(changes.agree(where, "refine", {"period": _period(share), "share": repr(share)}, _common_period))


def refine_step(group: handles.Group = None) -> list[Change]:
    """Agree on the results of the trials, and use them from now on; every rank calls this, between two steps.

    The ranks exchange their medians over the store. For each kind of call for which all ranks have timed two candidates
    often enough, the costs in memory become the largest of the ranks' medians.

    Returns the changes, equal on all ranks. Raises InvalidArgumentError on all ranks if they have not made the same
    calls since ``refine``, or call this after different ones; refinement is then off, and the group stays usable. If
    some ranks make another change instead, such as ``set_passes``, the error leaves refinement as it is.
    """
    if handles.left_out(group, "refine_step"):
        return []
    where = handles.core_group(group)
    period, fingerprint, costs = where._refinement()
    mine = {"newest": _C.newest_collective(where), "calls": [period, fingerprint], "costs": costs}
    # Ranks that make another change get an error of agree() too, and turn nothing off: this one does as they do.
    agreed = changes.agree(where, "refine_step", mine, partial(_agreed, where), anywhere=True)
    if "different" in agreed:
        where._refine(0)
        message = f"refinement (group {where.name()!r}): {agreed['different']}; refinement is off now"
        raise InvalidArgumentError(message)
    made = [Change(*change) for change in where._adopt(agreed["costs"])] if agreed["costs"] else []
    if where.rank() == 0:
        for change in made:
            _log.info("refinement (group %r): %s", where.name(), change)
    return made
