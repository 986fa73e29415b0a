# SPDX-License-Identifier: Apache-2.0
"""Graphs of training iterations for tests and benchmarks of the planner."""

from __future__ import annotations

import random

from mcr_dl.planner.graph import Channel, Graph, Node, Option, Piece

__all__ = ["UNIT", "dlrm", "fixed", "paper"]

UNIT = 1000
"""A unit of the costs below, in ns."""


def fixed(name: str, channel: str, time: int, parts: int = 1) -> Option:
    """An option whose parts, of equal time, may run in any order."""
    return Option(name, tuple(Piece(channel, time // parts) for _ in range(parts)))


def paper() -> Graph:
    """SYNDICATE's motivating example (figure 6), with communication only.

    The paper's figure is a picture without numbers in its text; these costs give its 11 and 9.5 units.
    """
    channels = (Channel("NVLink", ("nvlink",)), Channel("PCIe", ("pcie",)))
    reduces = [
        Node(key, options=(fixed("all_reduce", "NVLink", time),))
        for key, time in zip("bcd", (4000, 3000, 2500), strict=True)
    ]
    exchange = Node("a", options=(fixed("NVLink", "NVLink", 1500), fixed("PCIe", "PCIe", 3000)))
    return Graph(channels, (*reduces, exchange))


def dlrm(seed: int, calls: int = 10, options: int = 3) -> Graph:
    """A recommendation model's iteration: computation in program order, and calls that later computation waits for.

    Every call has ``options`` ways: whole or in two parts on either of two channels, with random times.
    """
    chance = random.Random(seed)
    nodes: list[Node] = []
    waiting: list[str] = []
    before = ""
    for index in range(calls):
        after = [before] if before else []
        if waiting and chance.random() < 0.6:
            after.append(waiting.pop(chance.randrange(len(waiting))))
        if not before:
            after += [f"{key}@-1" for key in (f"compute {calls - 1}", f"call {calls - 1}", f"call {calls - 2}")]
        before = f"compute {index}"
        nodes.append(Node(before, tuple(after), time=chance.randrange(200, 2000)))
        time = chance.randrange(400, 3000) * 2
        slower = time * chance.randrange(11, 30) // 20 * 2
        ways = (fixed("fast", "fast", time), fixed("slow", "slow", slower), fixed("cut", "fast", time + 100, 2))
        nodes.append(
            Node(f"call {index}", (before,), options=(*ways, fixed("slow cut", "slow", slower + 100, 2))[:options])
        )
        waiting.append(f"call {index}")
    return Graph((Channel("fast", ("fast",)), Channel("slow", ("slow",))), tuple(nodes))
