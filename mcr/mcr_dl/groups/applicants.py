# SPDX-License-Identifier: Apache-2.0
"""Processes that take the places of lost ranks: how they apply at the job's store, and what the others leave there."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as torch_dist

from mcr_dl import watch
from mcr_dl.base import launcher, stores
from mcr_dl.base.errors import CollectiveTimeoutError
from mcr_dl.libraries import registry
from mcr_dl.passes import chain
from mcr_dl.runtime import state, topologies
from mcr_dl.runtime.rounds import poll
from mcr_dl.tables import choice

_LONGEST = 0.02  # seconds between two looks at the store
_ALIVE = 2.0  # seconds for a process that waits to say that it still does
_AGAIN = 60.0  # seconds after which a process that was found and not taken applies again
_DISMISSED = "-"  # in the place of the name of an attempt
# The parts of State that the ranks have agreed on, in JSON's types.
_AGREED = (
    "job", "backends", "asked", "candidates", "staging", "given_document", "default_document", "groups_made", "detail",
)  # fmt: skip


class Applicant(NamedTuple):
    """A process that waits to take the place of a lost rank, as all members see it."""

    rank: int
    word: str  # names the application
    member: dict[str, Any]  # the process's identity
    node: int  # the number of its host
    text: str  # what happened to the process before


@dataclass(frozen=True)
class Answer:
    """The facts with which a process can take part in the job, and in making the new group."""

    name: str  # of the attempt to make the group
    forming: dict[str, Any]  # fields of Forming
    limit: int  # of the new group, in milliseconds
    timeout: int  # the default group's, in milliseconds
    agreed: dict[str, Any]
    counts: dict[str, dict[str, int]]  # of the groups that the process knows, by their names
    passes: list[Any]  # their terms
    knowledge: dict[str, Any]
    alarm: int
    lost: list[list[Any]]  # ranks and texts

    @property
    def former(self) -> watch.Former:
        """For the watch."""
        return watch.Former(self.alarm, dict(self.lost))


def that_take_others(names: Iterable[str]) -> list[str]:
    """The backends that a process can use which was not there when the job began."""
    return [name for name in names if not registry.collective_starters(name)]


def _desk(store: torch_dist.Store) -> torch_dist.Store:
    return torch_dist.PrefixStore("rejoin", store)


# ---- the members of a group that grows


def applicants(current: state.State, name: str) -> list[Applicant]:
    """The processes that wait to take the places of lost ranks. One member looks, for all of them.

    ``name``: of the attempt to make a group. Another group does not get these processes.
    """
    desk, found = _desk(current.store), list[Applicant]()
    for rank, text in sorted(watch.lost().items()):
        key = f"waiting/{rank}"
        word, member = stores.decode(desk.get(key), key) if desk.check([key]) else ("", {})
        if not word or desk.compare_set(f"taken/{word}", "", name) != name.encode():
            continue
        applicant = Applicant(rank, word, member, _node(current, rank, member, found), text)
        if poll(lambda word=word: bool(desk.check([f"here/{word}"])), _ALIVE, longest=_LONGEST):  # type: ignore[misc]
            found.append(applicant)
        else:  # the process has ended while it waited, or is slow
            dismiss(current, [applicant])
    return found


def dismiss(current: state.State, found: Iterable[Applicant]) -> None:
    """Processes that were found are not taken: those that still wait apply again."""
    for each in found:
        _desk(current.store).set(f"taken/{each.word}", _DISMISSED)


def _node(current: state.State, rank: int, member: dict[str, Any], found: Iterable[Applicant]) -> int:
    """The number of the host: that of other ranks on it, or of processes that were found before, or a new one."""
    nodes = current.knowledge.nodes
    for other in [rank, *range(len(nodes))]:
        known = watch.member(current.store, other)
        if known is not None and known["machine"] == member["machine"]:
            return int(nodes[other])
    new = {each.member["machine"]: each.node for each in found}
    return int(new.get(member["machine"], 1 + max([*nodes, *new.values()])))


def admit(current: state.State, applicant: Applicant) -> None:
    """Take the process for a rank of the job. Each member of the group calls this, with equal arguments."""
    # Of two processes that come together, each finds the other's identity.
    watch.leave_member(current.store, applicant.rank, applicant.member)
    watch.replace(applicant.rank, applicant.member, applicant.text, applicant.node)
    nodes = list(current.knowledge.nodes)
    nodes[applicant.rank] = applicant.node
    current.knowledge = replace(current.knowledge, nodes=nodes)
    current.backends = that_take_others(current.backends)


def answer(current: state.State, applicant: Applicant, name: str, forming: dict[str, Any], limit: timedelta) -> None:
    """Leave what the process needs at the store: see Answer. Each member calls this; the first one's answer counts."""
    former = watch.former()
    made = Answer(
        name,
        forming,
        limit // timedelta(milliseconds=1),
        current.default_timeout // timedelta(milliseconds=1),
        {key: getattr(current, key) for key in _AGREED},
        {group: current.counts.get(group, {}) for group in ("", "default", forming["name"])},
        chain.terms_of(current.passes),
        choice.answer_of(current.knowledge),
        former.alarm,
        sorted([rank, text] for rank, text in former.lost.items()),
    )
    desk = _desk(current.store)
    desk.compare_set(f"answer/{applicant.word}", "", stores.encode(made.__dict__))


# ---- the process


def apply(store: torch_dist.Store, rank: int, limit: timedelta) -> Answer:
    """Wait until a group takes this process for its lost rank.

    Raises CollectiveTimeoutError if none does within the limit.
    """
    desk, waiting = _desk(store), f"waiting/{rank}"
    words, found = list[str](), 0.0  # found: when a group has found the last word; 0: none has

    def put_down() -> None:
        nonlocal found
        words.append(uuid.uuid4().hex)
        desk.set(waiting, stores.encode([words[-1], watch.identity(rank)]))
        found = 0.0

    def comes() -> bool:
        nonlocal found
        taken = f"taken/{words[-1]}"
        if not found and desk.check([taken]):
            found = time.monotonic()
            desk.set(f"here/{words[-1]}", "")
        # The group was not made, or the rank that looked has ended before it could say so.
        if found and (desk.get(taken) == _DISMISSED.encode() or time.monotonic() > found + _AGAIN):
            put_down()
        return any(desk.check([f"answer/{word}"]) for word in words)

    put_down()
    try:
        if not poll(comes, limit.total_seconds(), longest=_LONGEST):
            message = (
                f"rejoin: no group has taken this process for rank {rank} within {limit.total_seconds():g} s: its "
                f"members have not called grow(), or the process that had the rank before is not lost"
            )
            raise CollectiveTimeoutError(message)
    except BaseException:
        with contextlib.suppress(*stores.STORE_ERRORS):
            desk.set(f"taken/{words[-1]}", _DISMISSED)  # a later process may wait under the same rank's key
        raise
    answered = next(key for key in (f"answer/{word}" for word in words) if desk.check([key]))
    return Answer(**stores.decode(desk.get(answered), answered))


def begin(
    answer: Answer, launch: launcher.Launch, store: torch_dist.Store, device: int, passes: list[Any]
) -> state.State:
    """The state of the job, as the other ranks have it."""
    limit = timedelta(milliseconds=answer.timeout)
    current = state.begin(launch, store, limit, [], device)
    for key in _AGREED:
        setattr(current, key, answer.agreed[key])
    current.counts = answer.counts
    watch.set_job(current.job)
    current.passes = passes
    current.given_grid = topologies.grid_of(current.given_document, launch.size)
    current.knowledge = choice.knowledge_of(answer.knowledge, None)  # the ranks have checked the rules
    return current


def problem(answer: Answer, names: Iterable[str]) -> str:
    """Why this process cannot take part in a group with these backends; empty if it can."""
    current = state.current()
    found = [registry.condition(name, current.launch.size, named=True).problem for name in names]
    own = stores.decode(stores.encode(chain.terms_of(current.passes)).encode(), "passes")
    if own != answer.passes:
        found.append(f"passes: expected {answer.passes} as on the other ranks, got {own}")
    return next((f"rank {current.launch.rank}: {text}" for text in found if text), "")
