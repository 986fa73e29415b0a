# SPDX-License-Identifier: Apache-2.0
"""Refinement of ``auto`` while a program runs: other candidates are tried, and what that shows is agreed by the ranks.

Every rank counts in src/choose/refine.cc which call tries which candidate, so all count alike. Times stay with their
rank until refine_step().
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from mcr_dl import _C, _groups
from mcr_dl._errors import InvalidArgumentError, UnsupportedError

ReduceOp = torch.distributed.ReduceOp
_log = logging.getLogger("mcr_dl")
_WRONG = -1  # the period of a share that is none


@dataclass(frozen=True)
class Change:
    """From now on calls of about this size go to another candidate. ``nbytes`` as ``explain`` counts them."""

    operation: str
    nbytes: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.operation}, {self.nbytes} bytes: {self.new} instead of {self.old}"


def _maximum(group: _C.Group, values: list[int]) -> list[int]:
    """The largest over the ranks, place by place. It names a backend, so that refinement does not count it."""
    able = [name for name in group.backends if group._support(name, "all_reduce", "int64", "MAX", False) != "-"]
    if not able:
        message = f"refinement: expected a backend that has all_reduce on the host, got {', '.join(group.backends)}"
        raise UnsupportedError(message)
    agreed = torch.tensor(values, dtype=torch.int64)
    _C.all_reduce(agreed, op=ReduceOp.MAX, group=group, backend=able[0])
    return [int(value) for value in agreed]


def _largest_and_least(group: _C.Group, *values: int) -> list[tuple[int, int]]:
    """Each value's largest and least over the ranks."""
    found = _maximum(group, [signed for value in values for signed in (value, -value)])
    return [(most, -least) for most, least in zip(found[::2], found[1::2], strict=True)]


def _period(share: float) -> int:
    """Of how many calls one is a trial; 0 for none."""
    if not isinstance(share, int | float) or not 0 <= share <= 0.5:  # also for NaN
        return _WRONG
    return 0 if share == 0 else round(1 / max(share, 1e-9))


def refine(share: float = 0.02, group: _groups.Group = None) -> None:
    """Let a share of the blocking collectives that name no backend try another candidate, or none (0).

    Every rank of the group calls this, with the same share, in the same place among the group's calls. Nothing changes
    before ``refine_step``. While it is on, all ranks must make the same calls on the group, also as to who names a
    backend and what is asynchronous. Results are those of the candidate tried: sums of floating-point numbers may
    differ in their last bits.

    Args:
        share: of the calls of one kind and size; 0 to 0.5. Those that take twice as long are tried half as often.
        group: the default group if None.

    Raises InvalidArgumentError on all ranks if the share is out of range on one, or differs between ranks.
    """
    if _groups._left_out(group, "refine"):
        return
    where = _groups._group(group)
    period = _period(share)
    ((most, least),) = _largest_and_least(where, period)
    if least == _WRONG:
        message = f"share: expected 0 to 0.5 on every rank, got {share!r} on rank {where.rank()}" + (
            "" if period == _WRONG else ", and another value on another rank"
        )
        raise InvalidArgumentError(message)
    if most != least:
        message = (
            f"share: expected the same on all ranks, got one of {1 / most if most else 0:.6g} "
            f"and one of {1 / least if least else 0:.6g}"
        )
        raise InvalidArgumentError(message)
    where._refine(period)


def refine_step(group: _groups.Group = None) -> list[Change]:
    """Agree on what the trials have shown, and go by it from now on; every rank calls this, between two steps.

    A small all_reduce, and a second one while refinement is on. The costs in memory become the largest of the ranks'
    medians for each kind of call of which all ranks have timed two candidates often enough.

    Returns the changes, equal on all ranks. Raises InvalidArgumentError on all ranks if they have not made the same
    calls since ``refine``; refinement is off then, and the group can be used on.
    """
    if _groups._left_out(group, "refine_step"):
        return []
    where = _groups._group(group)
    period, fingerprint, costs = where._refinement()
    periods, fingerprints = _largest_and_least(where, period, fingerprint)
    if len({*periods}) > 1 or len({*fingerprints}) > 1:
        where._refine(0)
        message = (
            f"refinement (group {where.name()!r}): expected the same blocking collectives without a backend's name on "
            "all ranks, got others on some; refinement is off now"
        )
        raise InvalidArgumentError(message)
    if not costs:
        return []
    changes = [Change(*change) for change in where._adopt(_maximum(where, costs))]
    if where.rank() == 0:
        for change in changes:
            _log.info("refinement (group %r): %s", where.name(), change)
    return changes
