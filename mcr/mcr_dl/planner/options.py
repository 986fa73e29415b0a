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
    reduces = call.op == "all_reduce" and call.ranks > 1
    if reduces:
        yield "ring", motifs.rewrite(whole, motifs.ring)
        for fan_in in _FAN_IN[: 1 if call.ranks <= 2 else 2]:
            yield f"tree {fan_in}", motifs.rewrite(whole, motifs.tree(fan_in))
    for parts in _SEGMENTS:
        if call.count >= parts:
            segments = motifs.rewrite(whole, motifs.segment(parts))
            yield f"segment {parts}", segments
            if reduces:
                yield f"segment {parts}, ring", motifs.rewrite(segments, motifs.ring)
    if call.op == "all_to_all":
        for peers in dict.fromkeys(-(-call.ranks // parts) for parts in (2, 4)):
            if peers < call.ranks:
                yield f"spline {peers}", motifs.rewrite(whole, motifs.spline(peers))


def _operation(motif: Motif, call: Call) -> str:
    """The core's operation for a motif: the reduces and broadcasts of a tree are messages."""
    return "send" if call.op == "all_reduce" and motif.root is not None else motif.op


def operations(call: Call) -> list[str]:
    """The operations whose costs the options of a call need."""
    parts = [motif for _, form in expressions(call) for motif, _ in motifs.steps(form)]
    return list(dict.fromkeys(_operation(motif, call) for motif in parts))


def _time(motif: Motif, call: Call, channel: Channel, model: _C.CostModel) -> int | None:
    """The time of a motif alone; None if the model lacks a cost that it needs.

    A tree's reduces and broadcasts cost what the root's messages do, one after the other.
    """
    size = getattr(torch, call.dtype).itemsize
    op = _operation(motif, call)
    messages = 1 if op == motif.op else max(map(len, motif.groups)) - 1
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


def of_call(call: Call, channels: Sequence[Channel], model: _C.CostModel) -> tuple[Option, ...]:
    """All options of a call whose costs the model has."""
    by_name = {channel.name: channel for channel in channels}
    found = []
    for name, expression in expressions(call):
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
