# SPDX-License-Identifier: Apache-2.0
"""ByteScheduler's order of transfers, by simulation: partitions, priorities and a credit (SOSP'19, sections 3 and 4).

One iteration begins with the backward pass, which makes the layers' gradients ready at given times. The communicator
transfers one partition after the other. The next forward pass runs layer by layer, and each layer waits until all its
partitions are complete. All times are integers (nanoseconds), so that every rank computes the same order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

Partition = tuple[int, int]  # layer, index in the layer


@dataclass(frozen=True)
class Layer:
    """Parameters that the forward pass needs at one time; layers are numbered by their first use.

    ``ready``: when the gradient is there, from the start of the backward pass. ``forward``: the duration of the forward
    pass from this layer to the next one.
    """

    ready: int
    forward: int
    nbytes: int


@dataclass(frozen=True)
class Transfer:
    """The cost of a partition: it occupies the communicator, and completes some time after that.

    ``points``: (bytes, time of occupation), by ascending bytes; ``latencies``: (bytes, time after that). Between the
    points the times are interpolated, beyond the last one they grow in proportion.
    """

    points: tuple[tuple[int, int], ...]
    latencies: tuple[tuple[int, int], ...] = ((1 << 62, 0),)

    def occupation(self, nbytes: int) -> int:
        """The time for which a partition keeps the communicator busy."""
        return _at(self.points, nbytes)

    def latency(self, nbytes: int) -> int:
        """The time from then until the partition is complete."""
        return _at(self.latencies, nbytes)


def _at(points: Sequence[tuple[int, int]], nbytes: int) -> int:
    place = bisect_right(points, (nbytes, 1 << 62))
    if place == len(points):
        last, time = points[-1]
        return time * nbytes // last
    if place == 0:
        return points[0][1]
    (low, least), (high, most) = points[place - 1], points[place]
    return least + (most - least) * (nbytes - low) // (high - low)


@dataclass(frozen=True)
class Timeline:
    """One simulated iteration."""

    order: tuple[Partition, ...]  # as issued
    complete: tuple[int, ...]  # of each layer, from the start of the backward pass
    end: int  # of the next forward pass
    spans: tuple[tuple[int, int], ...] = ()  # of each partition in ``order``: issued, complete


def cut(nbytes: int, partition: int | None) -> list[int]:
    """The sizes of a layer's partitions."""
    if nbytes == 0 or partition is None or partition >= nbytes:
        return [nbytes] if nbytes else []
    whole, rest = divmod(nbytes, partition)
    return [partition] * whole + ([rest] if rest else [])


def simulate(
    layers: Sequence[Layer],
    transfer: Transfer,
    *,
    partition: int | None = None,
    credit: int | None = None,
    priorities: bool = True,
    backward: int = 0,
) -> Timeline:
    """One iteration in which the first ready partition by priority is issued while the credit lasts.

    A partition is issued if its bytes fit into the credit or if no other is in flight; it never overtakes the partition
    before it. ``credit``: bytes in flight; None: without limit. ``priorities`` False: the partitions keep the order in
    which they became ready. ``backward``: the duration of the backward pass; at least the last gradient's time.
    """
    pieces = [cut(layer.nbytes, partition) for layer in layers]
    arrivals = deque(sorted(range(len(layers)), key=lambda index: (layers[index].ready, -index)))
    turn = {layer: place for place, layer in enumerate(arrivals)}
    waiting: list[tuple[int, int, int]] = []  # priority, index, layer
    flying: deque[tuple[int, int]] = deque()  # end, bytes; one communicator completes them in this order
    order: list[Partition] = []
    spans: list[tuple[int, int]] = []
    complete = [layer.ready for layer in layers]
    now = free = last = used = 0  # last: the end of the last partition
    while arrivals or waiting:
        while arrivals and layers[arrivals[0]].ready <= now:
            layer = arrivals.popleft()
            for index in range(len(pieces[layer])):
                heapq.heappush(waiting, (layer if priorities else turn[layer], index, layer))
        while flying and flying[0][0] <= now:
            used -= flying.popleft()[1]
        while waiting:
            _, index, layer = waiting[0]
            nbytes = pieces[layer][index]
            if flying and credit is not None and used + nbytes > credit:
                break
            heapq.heappop(waiting)
            free = max(free, now) + transfer.occupation(nbytes)
            last = max(last, free + transfer.latency(nbytes))
            complete[layer] = max(complete[layer], last)
            flying.append((last, nbytes))
            used += nbytes
            order.append((layer, index))
            spans.append((now, last))
        events = [flying[0][0]] if waiting and flying else []
        events += [layers[arrivals[0]].ready] if arrivals else []
        now = min(events, default=now)
    return Timeline(tuple(order), tuple(complete), _forward_end(layers, complete, backward), tuple(spans))


def _forward_end(layers: Sequence[Layer], complete: Sequence[int], backward: int) -> int:
    end = max(backward, max((layer.ready for layer in layers), default=0))
    for layer, time in zip(layers, complete, strict=True):
        end = max(end, time) + layer.forward
    return end
