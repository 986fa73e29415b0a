# SPDX-License-Identifier: Apache-2.0
"""Diagnosis from the ranks' reports: who has not arrived, where the ranks are, which calls differ first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcr_dl.base import launcher
from mcr_dl.watch._report import Report, pid_namespace

ARRIVED = "All ranks have arrived"
_NAMED = 8  # ranks that are described one by one
_COMPARED = ("op", "dtype", "red", "root", "bytes", "layout", "priority", "backend", "async")  # async last
_FORMS = " (torch.distributed's calls may differ so in a group that is made with mcr_dl.Options(uniform=False))"


def _some(texts: Sequence[str], what: str = "others") -> str:
    more = len(texts) - _NAMED
    return "; ".join(texts[:_NAMED]) + (f"; and {more} {what}" if more > 0 else "")


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 1, 2, 5``."""
    text = ", ".join(map(str, ranks[:_NAMED])) + (f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {text}"


def collectives_text(count: int) -> str:
    """``no collectives``, ``1 collective``, ``2 collectives``."""
    return f"{count or 'no'} collective{'' if count == 1 else 's'}"


def call_text(call: Mapping[str, Any]) -> str:
    """``all_reduce(SUM, float32, 4096 bytes, mpi)``."""
    parts = [call["red"], call["dtype"]]
    parts.append(None if call["bytes"] is None or call["dtype"] is None else f"{call['bytes']} bytes")
    parts.append(call.get("layout"))
    parts.append(None if call["root"] is None else f"root {call['root']}")
    parts.append(f"priority {call['priority']}" if call.get("priority") else None)
    parts.append(call["backend"])
    parts.append("async_op=True" if call["async"] else None)
    return f"{call['op']}({', '.join(part for part in parts if part)})"


def name_of(activity: Mapping[str, Any]) -> str:
    """``mpi.all_reduce (group 'default', rank 0 of 2)``."""
    backend = activity["backend"] or "auto"
    return f"{backend}.{activity['op']} ({activity['label']})"


def number_of(call: Mapping[str, Any]) -> str:
    """``collective 3 of 4096 bytes``, ``making a communicator``."""
    if call["op"] == "connect":
        return "making a communicator"
    size = f" of {call['bytes']} bytes" if call["bytes"] else ""
    return f"{'message' if call['message'] else 'collective'} {call['seq']}{size}"


def group_in(report: Report, group: str) -> dict[str, Any] | None:
    """The process's position in the calls of a group, from its report; None if it does not have the group."""
    return next((each for each in report["groups"] if each["group"] == group), None)


def whereabouts(report: Report) -> str:
    """The activity of a process, from its report: its current call, else its line of the program."""
    if report.get("ended"):
        return str(report["ended"])
    inside = max(report["threads"], key=lambda activity: float(activity["age"]), default=None)
    if inside is None:
        return f"it is at {report['place']}" if report.get("place") else "it is in no call"
    verb = "making the communicator of" if inside["op"] == "connect" else ("waiting for" if inside["waits"] else "in")
    call = inside["backend"] if inside["op"] == "connect" else f"{inside['backend'] or 'auto'}.{inside['op']}"
    number = "" if inside["op"] == "connect" else f", number {inside['seq']}"
    at = f", called at {report['place']}" if report.get("place") else ""
    return f"it is {verb} {call} ({inside['label']}{number}) for {inside['age']:.1f} s{at}"


def absent(member: Mapping[str, Any] | None) -> str:
    """Why a process may have sent no report. A process of this host can be inspected."""
    if member is None:
        return "it has not started"
    who = f"process {member['pid']} on {member['host']}"
    # In a container, process numbers are others.
    if member["system"] != launcher.host_identity() or member.get("processes", pid_namespace()) != pid_namespace():
        return f"it does not answer: {who} has ended, is stopped, or cannot be reached"
    try:
        state = Path(f"/proc/{member['pid']}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return f"{who} has ended"
    if state in "ZX":
        return f"{who} has ended"
    return f"{who} is stopped" if state in "Tt" else f"it does not answer: {who} lives"


def _not_arrived(rank: int, report: Report, group: str) -> str:
    position = group_in(report, group)
    if position is None:
        return f"rank {rank} has not made the group, or has destroyed it: {whereabouts(report)}"
    last = f", its last is {call_text(position['calls'][-1])}" if position["calls"] else ""
    return f"rank {rank} has made {collectives_text(position['collectives'])} of the group{last}; {whereabouts(report)}"


def first_difference(reports: Mapping[int, Report], group: str) -> str | None:
    """The first collective of the group that two ranks have made in different ways; None if there is none.

    The calls of derived groups, which follow from another group's, have one order for each backend alone.
    """
    calls: dict[int, dict[int, dict[str, Any]]] = {}
    for rank, report in reports.items():
        position = group_in(report, group)
        if position is not None and position["calls"] and not position.get("derived"):
            calls[rank] = {call["seq"]: call for call in position["calls"]}
    if len(calls) < 2:
        return None
    common = set.intersection(*(set(each) for each in calls.values()))
    pairs = sorted({seq for each in calls.values() for seq in each})
    for seq in pairs:
        told = difference({rank: each[seq] for rank, each in calls.items() if seq in each})
        if told is not None:
            return f"collective {seq} of group '{group}' is {told}"
    first = min(common, default=None)
    if first is not None and len({each[first]["history"] for each in calls.values()}) > 1:
        return f"the calls of group '{group}' differ before collective {first}, the oldest that is kept"
    return None


def difference(calls: Mapping[int, Mapping[str, Any]]) -> str | None:
    """The difference between the ranks' forms of one collective; None if they are equal."""
    forms: dict[tuple[Any, ...], list[int]] = {}
    for rank, call in sorted(calls.items()):
        forms.setdefault(tuple(call.get(key) for key in _COMPARED), []).append(rank)
    if len(forms) < 2:
        return None
    texts = []
    for ranks in list(forms.values())[:_NAMED]:
        call = calls[ranks[0]]
        at = f", called at {call['caller']}" if call["caller"] else ""
        texts.append(f"{call_text(call)} on {ranks_text(ranks)}{at}")
    return ", but ".join(texts) + (_FORMS if len({form[:-1] for form in forms}) == 1 else "")


def complete(text: str, label: str, told: str, *, timeout: bool) -> str:
    """The text of an error with the diagnosis. A library's own text, which may be long, comes last."""
    if not told:
        return text
    call, found, words = text.partition(f"({label}): ")
    if timeout or not found:
        return f"{text}. {told}"
    return f"{call}{found}failed. {told} The backend's own text: {words}"


def diagnose(
    reports: Mapping[int, Report],
    absences: Mapping[int, str],
    group: str,
    ranks: Sequence[int],
    seq: int,
    *,
    message: bool = False,
) -> str:
    """One paragraph on a call that does not end.

    Args:
        reports: by global rank, of those that have answered.
        absences: by global rank, why the others may not have.
        group, ranks: whose call it is, with its global ranks.
        seq: the collective's number in the group; nothing for a message.
        message: it is a send or receive, whose numbers ranks do not share.
    """
    silent = [f"rank {rank}: {absences.get(rank, 'no report')}" for rank in ranks if rank not in reports]
    members = {rank: reports[rank] for rank in ranks if rank in reports}
    sentences = []
    told = first_difference(members, group)
    if told is not None:
        sentences.append(f"The ranks have made different calls: {told}.")
    if message:
        where = [f"rank {rank}: {whereabouts(report)}" for rank, report in members.items()]
        unmatched = [text for report in members.values() for text in report.get("unmatched", [])]
        if unmatched:
            sentences.append(f"Messages without a match so far: {_some(unmatched)}.")
        sentences.append(f"Where the ranks are: {_some([*silent, *where])}.")
    else:
        late = {}
        for rank, report in members.items():
            position = group_in(report, group)
            if position is None or position["collectives"] < seq:
                late[rank] = report
        ended = {rank: report["ended"] for rank, report in members.items() if report.get("ended") and rank not in late}
        gone = [f"rank {rank}: {why}" for rank, why in ended.items()]
        missing = [*silent, *(_not_arrived(rank, report, group) for rank, report in late.items())]
        if missing:
            sentences.append(f"Not arrived: {_some(missing)}.")
        elif told is None:
            sentences.append(f"{ARRIVED}: the backend, or the network below it, has not completed it.")
        if gone:
            sentences.append(f"Had arrived, but are gone: {_some(gone)}.")
    return " ".join(sentences)
