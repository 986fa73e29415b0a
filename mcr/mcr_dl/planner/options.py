# SPDX-License-Identifier: Apache-2.0
"""The ways to do a call that the search may choose among: rules of the motif algebra, each on one channel or on two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch

from mcr_dl import _C
from mcr_dl.planner import motifs
from mcr_dl.planner.graph import Call, Channel, Graph, Node, Option, Piece
from mcr_dl.planner.motifs import Expression, Motif

_SEGMENTS = (2, 4)
_FAN_IN = (2, 4)


def expressions(call: Call) -> Iterator[tuple[str, Expression]]:
    """The forms of a call, by name; the unchanged call first."""
    whole = motifs.call(call.op, call.count, call.ranks, call.root)
    yield "whole", whole
    forms: list[tuple[str, Expression]] = [("whole", whole)]
    if call.op == "all_reduce" and call.ranks > 1:
        forms.append(("ring", motifs.rewrite(whole, motifs.ring)))
        for fan_in in _FAN_IN[: 1 if call.ranks <= 2 else 2]:
            yield f"tree {fan_in}", motifs.rewrite(whole, motifs.tree(fan_in))
    if call.op == "all_to_all":
        for parts in (2, 4):
            peers = -(-call.ranks // parts)
            if peers < call.ranks and (parts == 2 or peers != -(-call.ranks // 2)):
                forms.append((f"spline {peers}", motifs.rewrite(whole, motifs.spline(peers))))
    for name, form in forms:
        if form is not whole:
            yield name, form
        for parts in _SEGMENTS:
            if call.count >= parts and not name.startswith("spline"):
                prefix = "" if form is whole else f"{name}, "
                yield f"{prefix}segment {parts}", motifs.rewrite(form, motifs.segment(parts))


def _time(motif: Motif, call: Call, channel: Channel, model: _C.CostModel) -> int | None:
    """The time of a motif alone; None if the model lacks a cost that it needs.

    The model's costs are of all ranks of the group. On fewer ranks, reduces and broadcasts cost what the root's
    messages do, one after the other.
    """
    size = torch.empty(0, dtype=getattr(torch, call.dtype)).element_size()
    ranks = max(map(len, motif.groups))
    op, messages = motif.op, 1
    if ranks < call.ranks:
        op, messages = "send", ranks - 1
    found = model.issue_cost(channel.name, op, _C.dtype_class(call.dtype), motif.elements * size)
    if found is None:
        return None
    more = max(motifs.in_degree(motif) - 1, 0) if channel.incast else 0
    return max(1, found[0] * messages * (1000 + channel.incast * more) // 1000)


def _assignments(count: int, channels: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Channels of ``count`` parts: all on one, or the first ones on one and the others on another."""
    for channel in channels:
        yield channel, [channel] * count
    for one, other in combinations(channels, 2):
        for first in sorted({count // 4, count // 2, count * 3 // 4} - {0}):
            yield f"{one} {first}, {other} {count - first}", [one] * first + [other] * (count - first)


def of_call(
    call: Call, channels: Sequence[Channel], model: _C.CostModel, *, executed: bool = False
) -> tuple[Option, ...]:
    """All options of a call whose costs the model has; with ``executed`` only those that the core can execute."""
    by_name = {channel.name: channel for channel in channels}
    found = []
    for name, expression in expressions(call):
        if executed and not _C.is_motif_form(name):
            continue
        steps = motifs.steps(expression)
        for place, assigned in _assignments(len(steps), list(by_name)):
            pieces = []
            for (motif, after), channel in zip(steps, assigned, strict=True):
                time = _time(motif, call, by_name[channel], model)
                if time is None:
                    break
                pieces.append(Piece(channel, time, after, str(motif)))
            if len(pieces) == len(steps):
                found.append(Option(f"{name} on {place}", tuple(pieces)))
    return tuple(found)


def of_node(node: Node, graph: Graph, model: _C.CostModel) -> tuple[Option, ...]:
    """The options of a node: as given, or by the algebra; a computation has none."""
    if node.call is None:
        return node.options
    return of_call(node.call, graph.channels, model)
