# SPDX-License-Identifier: Apache-2.0
"""Changes that all ranks of a group make together, between two calls: its passes, its topology, its tables.

Every rank brings its value and the number of collectives that it has issued on the group. Both go through the store,
because a rank may call this at a point where a collective of the group would not meet the other ranks' collectives. The
last rank to arrive decides for all, so that either all ranks make the change or none does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C, watch
from mcr_dl.base.errors import KINDS, CollectiveTimeoutError, InvalidArgumentError, McrError
from mcr_dl.runtime import state
from mcr_dl.runtime.rounds import Decide, Round, absent_of, absent_text, explained
from mcr_dl.runtime.watched_store import require_all_ranks

_LONGEST = 0.1  # seconds between two checks for the answer


def agree(
    group: _C.Group,
    what: str,
    value: Any,
    decide: Decide | None = None,
    *,
    problem: Exception | None = None,
    anywhere: bool = False,
    leave: bool = False,
) -> Any:
    """Give every rank of a group the result of ``decide`` on the ranks' values (JSON's types, in rank order).

    All ranks of the group call this after the same collective of the group, with the same ``what``: the function that
    the user called. ``decide`` must depend on the values alone, as it runs on any rank; without ``decide``, the values
    may differ. ``problem`` is the error that keeps this rank from giving a value. ``anywhere``: the ranks may have made
    different collectives. ``leave``: nothing stays at the store, for a change after which most groups make no other.

    A rank with a problem raises it, whether the others come or not; the others raise an error that names the rank.
    Every rank raises InvalidArgumentError, with one text, if the ranks do not make the same change, are not at the same
    point, or ``decide`` raises it; CollectiveTimeoutError if a rank does not arrive within the group's timeout, and
    PeerLostError if it has ended. Later changes are not affected.
    """
    watch.refuse_fork()  # a child's answer would be its parent's next one
    made, operation = _C.newest_collective(group)
    mine = {
        "what": what,
        "newest": None if anywhere else [made, operation],
        "value": value,
        "problem": None if problem is None else [_class_of(problem), str(problem)],
    }
    decide = decide or (lambda _: None)
    answer: dict[str, Any] = {}
    try:
        if group.size() > 1:
            answer = _exchanged(group, what, decide, mine, leave=leave)
        else:
            answer = _answer_of(group, decide, [mine])
    except Exception:
        if problem is None:
            raise
    if problem is not None:
        raise problem
    if "error" in answer:
        kind, text = answer["error"]
        raise KINDS[kind](text)
    return answer["value"]


@contextmanager
def on_all(group: _C.Group, what: str, *, anywhere: bool = False, leave: bool = False) -> Iterator[None]:
    """Make the block succeed on all ranks of a group, or raise on all of them. Arguments and errors as of ``agree``."""
    problem = None
    try:
        yield
    except Exception as error:
        problem = error
    agree(group, what, None, problem=problem, anywhere=anywhere, leave=leave)


def _class_of(error: Exception) -> str:
    name = type(error).__name__
    return name if name in KINDS else InvalidArgumentError.__name__


# ---- from the ranks' values to the answer


def _answer_of(group: _C.Group, decide: Decide, values: list[Any]) -> dict[str, Any]:
    try:
        for rank, each in enumerate(values):
            if each["problem"] is not None:
                kind, text = each["problem"]
                return {"error": [kind, f"rank {rank}: {text}"]}
        _compare(group, values)
        return {"value": decide([each["value"] for each in values])}
    except McrError as error:
        return {"error": [_class_of(error), str(error)]}
    except Exception as error:  # the others wait for an answer, whatever happens here
        return {"error": [InvalidArgumentError.__name__, f"rank {group.rank()}: {type(error).__name__}: {error}"]}


def _compare(group: _C.Group, values: list[Any]) -> None:
    """Raise InvalidArgumentError for the first rank that makes another change than rank 0, or at another point."""
    first = values[0]
    for rank, each in enumerate(values):
        if each["what"] != first["what"]:
            message = (
                f"{first['what']}: expected all ranks of group {group.name()!r} to make the same change, got "
                f"{first['what']} on rank 0 and {each['what']} on rank {rank}; make it in the same place on all ranks"
            )
            raise InvalidArgumentError(message)
        if (each["newest"] is None) != (first["newest"] is None):
            message = (
                f"{each['what']}: expected all ranks of group {group.name()!r} to be in the same step of it, got rank "
                f"{rank} and rank 0 in different ones, as one of them has left an earlier step by an exception; call "
                "it again on all ranks"
            )
            raise InvalidArgumentError(message)
    points = [each["newest"] for each in values]
    if None not in points:
        require_one_point(group, first["what"], points)


def require_one_point(group: _C.Group, what: str, points: list[list[Any]]) -> None:
    """Raise InvalidArgumentError for the first rank whose newest collective is not rank 0's."""
    for rank, point in enumerate(points):
        if point[0] != points[0][0]:
            message = (
                f"{what}: expected all ranks of group {group.name()!r} to call it after the same collective, "
                f"got {_place_text(points[0])} on rank 0 and {_place_text(point)} on rank {rank}; "
                "move it to the same place on all ranks"
            )
            raise InvalidArgumentError(message)


def _place_text(point: list[Any]) -> str:
    made, operation = point
    return f"after collective {made} ({operation})" if made else "before the first one"


# ---- exchange over the store


def _exchanged(group: _C.Group, what: str, decide: Decide, mine: dict[str, Any], *, leave: bool) -> dict[str, Any]:
    """The answer that all ranks get, over the store: each rank leaves its value, and one rank writes the answer.

    All changes of the group share one key per rank for the values: a rank writes its next value only after it has read
    the answer to the last change or has given up. The counter and the answer are deleted when all ranks have arrived at
    the next change, or with ``leave`` when all have the answer.
    """
    current = state.current()
    members = f"{group.name()}/{group.ranks[0]}"  # parts of one group may share a name
    turn = current.count("change", group.name())
    store = torch_dist.PrefixStore(f"change/{members}", current.store)
    this_round = Round(store, str(turn), group.rank(), group.size())
    name, seconds = f"{what} (group {group.name()!r})", group.timeout.total_seconds()

    def late(values: list[Any]) -> dict[str, Any]:
        text = f"{name} timed out: {absent_text(absent_of(group.ranks, values), seconds)}"
        made, _ = _C.newest_collective(group)
        return {"error": [CollectiveTimeoutError.__name__, watch.explain(text, group._label, made, True, True)]}

    with explained(name):
        answer: dict[str, Any] | None = this_round.conclude(
            this_round.arrive(mine),
            partial(_answer_of, group, decide),
            late,
            lambda error: {"error": [InvalidArgumentError.__name__, f"{name}: {error}"]},
            limit=seconds,
            check=partial(require_all_ranks, group._label, name),
            longest=_LONGEST,
        )
    if answer is None:
        raise CollectiveTimeoutError(f"{name} timed out: the last rank to come has not answered")
    if leave:
        this_round.leave()
    return answer
