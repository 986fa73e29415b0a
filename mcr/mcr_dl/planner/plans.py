# SPDX-License-Identifier: Apache-2.0
"""Plans of a graph: program order, greedy, critical path, search and brute force; and their timelines.

A plan's ``iteration`` is the time of one iteration in the steady state, by replay of the plan's order: each motif is
issued after those before it, as an executor would that keeps one order on all channels and ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.planner import options
from mcr_dl.planner.graph import BACK, Graph, Option

Place = tuple[int, int, int]  # node, motif, iterations ahead
Play = list[list[list[tuple[int, int, int]]]]  # ready, start, end by iteration, node and motif

REPLAYED = 6  # iterations, of which the last ones show the steady state
_LONGEST = 1e9  # seconds of a search: 31 years, which fit into 64 bits as ns
_UNROLLED = 3  # iterations in which an order is found: the one in the middle has neighbours on either side


@dataclass(frozen=True)
class Plan:
    """An option for each call, and the order of all motifs of an iteration. Times in ns.

    ``cost``: by the list scheduler, without an order that all channels share.
    """

    name: str
    chosen: tuple[int, ...]  # of each node
    order: tuple[Place, ...]
    cost: int
    iteration: int


@dataclass(frozen=True)
class Search:
    """The outcome of a search. ``chains``: the best cost of each."""

    plan: Plan
    chains: tuple[int, ...]
    evaluations: int
    complete: bool  # the stop rule ended it, not the budget


class Planner:
    """The plans of one graph. Raises InvalidArgumentError for a graph without options or out of range."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        model = graph.model()
        self.options: list[tuple[Option, ...]] = [options.of_node(node, graph, model) for node in graph.nodes]
        for node, found in zip(graph.nodes, self.options, strict=True):
            if node.time is None and not found:
                message = "expected costs of its operation on one channel at least, got none"
                raise InvalidArgumentError(f"{node.key!r}: {message}; add them to the graph's costs")
        lanes = list(dict.fromkeys(node.lane for node in graph.nodes if node.time is not None))
        self.channels = [channel.name for channel in graph.channels] + lanes
        self._numbers = {channel.name: index for index, channel in enumerate(graph.channels)}
        self._lanes = {lane: len(graph.channels) + index for index, lane in enumerate(lanes)}
        self.core = _C.PlanGraph(self._masks(lanes), self._nodes())

    def _masks(self, lanes: Sequence[str]) -> list[int]:
        resources = list(dict.fromkeys(name for channel in self.graph.channels for name in channel.resources))
        if len(resources) + len(lanes) > 64:
            raise InvalidArgumentError(f"expected at most 64 resources and lanes, got {len(resources) + len(lanes)}")
        masks = [sum(1 << resources.index(each) for each in set(one.resources)) for one in self.graph.channels]
        return masks + [1 << (len(resources) + place) for place in range(len(lanes))]

    def _nodes(self) -> list[tuple[str, list[tuple[int, int]], list[list[tuple[int, int, list[int]]]], bool]]:
        places = {node.key: index for index, node in enumerate(self.graph.nodes)}
        rows = []
        for node, found in zip(self.graph.nodes, self.options, strict=True):
            after = [(places[each.removesuffix(BACK)], int(each.endswith(BACK))) for each in node.after]
            ways = [
                [(each.time, self._numbers[each.channel], list(each.after)) for each in way.pieces] for way in found
            ]
            if node.time is not None:
                ways = [[(node.time, self._lanes[node.lane], [])]]
            rows.append((node.key, after, ways, node.time is None))
        return rows

    # ---- plans

    def _calls(self) -> list[int]:
        return [index for index, node in enumerate(self.graph.nodes) if node.time is None]

    def _start(self, play: Play, iteration: int) -> int:
        """When the program's own work of an iteration begins; without computation, its first call."""
        computing = [index for index, node in enumerate(self.graph.nodes) if node.time is not None]
        return min((play[iteration][node][0][1] for node in computing or range(len(self.graph.nodes))), default=0)

    def _orders(self, chosen: Sequence[int], play: Play) -> Iterable[list[Place]]:
        """Orders of the simulated starts: with and without motifs that run in another iteration's time.

        Sorted by (start, end, channel, key): SCHEDULERS' total order, equal on all ranks.
        """
        starts = [self._start(play, iteration) for iteration in range(_UNROLLED)]
        flat, folded = [], []
        for node in self._calls():
            pieces = self.options[node][chosen[node]].pieces
            for motif, (_, start, end) in enumerate(play[1][node]):
                key = (self._numbers[pieces[motif].channel], self.graph.nodes[node].key, motif)
                flat.append(((start, end, *key), (node, motif, 0)))
                ahead = int(start < starts[1]) - int(start >= starts[2])
                base = starts[1 - ahead]
                folded.append(((start - base, end - base, *key), (node, motif, ahead)))
        least = min((place[2] for _, place in folded), default=0)
        moved = [(key, (node, motif, ahead - least)) for key, (node, motif, ahead) in folded]
        for entries in (flat, moved):
            yield [place for _, place in sorted(entries)]

    def replay(self, chosen: Sequence[int], order: Sequence[Place]) -> int:
        """The time of an iteration if motifs are issued strictly in the order.

        Raises InvalidArgumentError, naming the first call that would wait forever, if the order contradicts the
        program's: a call that blocks the program would have to wait for calls that the program makes after it.
        """
        plan = _C.ExecutionPlan(list(chosen), [], "sequence", list(order))
        return self.core.cost(plan, REPLAYED)

    def _plan(
        self, name: str, chosen: Sequence[int], levels: Sequence[int], order: str, cost: int | None = None
    ) -> Plan:
        core = _C.ExecutionPlan(list(chosen), list(levels), order)
        found: Plan | None = None
        for places in self._orders(chosen, self.core.play(core, _UNROLLED)):
            try:
                time = self.replay(chosen, places)
            except InvalidArgumentError:  # iterations overlap in another way than a round can say; the flat order fits
                continue
            if found is None or time < found.iteration:
                found = Plan(name, tuple(chosen), tuple(places), cost or self.core.cost(core), time)
        assert found is not None  # no motif takes 0 ns
        return found

    def program_order(self) -> Plan:
        """Every call unchanged on its first channel, in the order in which calls are ready: as without a plan."""
        return self._plan("program order", [0] * len(self.graph.nodes), [], "ready")

    def greedy(self) -> Plan:
        """The fastest option of each call, in the order in which calls are ready."""
        return self._plan("greedy", self.core.fastest(), [], "ready")

    def critical_path(self) -> Plan:
        """The fastest option of each call; of ready motifs the one with the longest remaining path first."""
        return self._plan("critical path", self.core.fastest(), [], "critical")

    def priority(self) -> Plan:
        """Calls on their first channels, in four segments if possible; of ready ones the longest remaining path first.

        ByteScheduler (SOSP'19) treats gradients so: it partitions and orders them, and does not choose channels.
        """
        chosen = []
        for found in self.options:
            whole = found[0].pieces[0].channel if found else ""
            cut = [index for index, each in enumerate(found) if each.name == f"segment 4 on {whole}"]
            chosen.append(cut[0] if cut else 0)
        return self._plan("priority", chosen, [], "critical")

    def search(
        self,
        *,
        chains: int = 10,
        seed: int = 0,
        budget: float | None = None,
        evaluations: int = 0,
        levels: bool = True,
        start: Plan | None = None,
    ) -> Search:
        """The best plan of several Markov chains by replay, or program order if none is better.

        Args:
            chains: how many, one after the other.
            seed: of their random numbers; equal arguments without a budget give equal plans on every machine.
            budget: seconds for all chains; None: until their stop rule.
            evaluations: of each chain at most; 0: no limit.
            levels: whether calls may also go first or last, whatever their remaining path.
            start: where the first chain begins, such as the last plan.
        """
        starts = [] if start is None else [_C.ExecutionPlan(list(start.chosen))]
        limit = 0 if budget is None else max(1, round(min(budget, _LONGEST) * 1e9))
        found = self.core.search(chains, seed, evaluations, limit, levels, starts)
        plan = self.program_order()
        for (chosen, its_levels), cost in zip(found["plans"], found["chains"], strict=True):
            other = self._plan("search", chosen, its_levels, "critical", cost)
            plan = other if other.iteration < plan.iteration else plan
        plan = replace(plan, name="search")
        return Search(plan, tuple(found["chains"]), found["evaluations"], found["complete"])

    def brute_force(self, most: int = 1 << 20) -> Plan:
        """The best of all combinations of options. Raises InvalidArgumentError for more than ``most``."""
        counts = [len(found) or 1 for found in self.options]
        if math.prod(counts) > most:
            raise InvalidArgumentError(f"expected at most {most} plans to try, got more")
        # Of equal plans the first, with the first node's option changing fastest.
        every = (each[::-1] for each in itertools.product(*map(range, reversed(counts))))
        chosen = min(every, key=lambda each: self.core.cost(_C.ExecutionPlan(list(each))))
        return self._plan("brute force", chosen, [], "critical")

    def play(self, plan: Plan, iterations: int = 2) -> Play:
        """(ready, start, end) in ns by iteration, node and motif, by replay of the plan's order."""
        return self.core.play(_C.ExecutionPlan(list(plan.chosen), [], "sequence", list(plan.order)), iterations)
