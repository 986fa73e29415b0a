# SPDX-License-Identifier: Apache-2.0
"""Runs motifs of all ranks in one process, in a random order, with starts and ends of motifs in parallel mixed.

And lists the transfers that a motif consists of.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from mcr_dl.planner.motifs import BLOCKS, Expression, Motif, Span, cut, steps

Memory = np.ndarray  # [rank, element]
Write = tuple[int, Span, np.ndarray]  # rank, elements, values


def before(op: str, count: int, ranks: int) -> Memory:
    """Different values for each rank and element; outputs hold -1."""
    width = count * ranks if op in BLOCKS else count
    memory = np.arange(ranks * width, dtype=np.int64).reshape(ranks, width) ** 2 % 10007
    if op == "all_gather":
        for rank in range(ranks):
            own = memory[rank, rank * count : (rank + 1) * count].copy()
            memory[rank] = -1
            memory[rank, rank * count : (rank + 1) * count] = own
    return memory


def after(op: str, count: int, memory: Memory, root: int = 0) -> list[tuple[int, Span, np.ndarray]]:
    """The result that the operation defines: the elements of each rank that it determines, and their values."""
    ranks, width = memory.shape
    own = [(rank * count, (rank + 1) * count) for rank in range(ranks)]
    total = memory.sum(axis=0)
    if op == "all_reduce":
        return [(rank, (0, width), total) for rank in range(ranks)]
    if op == "reduce":
        return [(root, (0, width), total)]
    if op == "broadcast":
        return [(rank, (0, width), memory[root]) for rank in range(ranks)]
    if op == "reduce_scatter":
        return [(rank, own[rank], total[slice(*own[rank])]) for rank in range(ranks)]
    if op == "all_gather":
        gathered = np.concatenate([memory[rank, slice(*own[rank])] for rank in range(ranks)])
        return [(rank, (0, width), gathered) for rank in range(ranks)]
    exchanged = [
        np.concatenate([memory[sender, slice(*own[rank])] for sender in range(ranks)]) for rank in range(ranks)
    ]
    return [(rank, (0, width), exchanged[rank]) for rank in range(ranks)]


def _perform(motif: Motif, source: Memory) -> list[Write]:
    """The elements that a motif writes, by the definition of its operation in each of its groups."""
    writes: list[Write] = []
    for group in motif.groups:
        members = list(group)
        if motif.op == "all_to_all":
            assert motif.shifts is not None
            for index, rank in enumerate(group):
                for shift in range(*motif.shifts):
                    to = (index + shift) % len(group)
                    writes.append((group[to], motif.spans[index], source[rank, slice(*motif.spans[to])].copy()))
        elif motif.op in ("all_reduce", "reduce"):
            total = source[members, slice(*motif.spans[0])].sum(axis=0)
            receivers = members if motif.root is None else [members[motif.root]]
            writes += [(rank, motif.spans[0], total) for rank in receivers]
        elif motif.op == "broadcast":
            assert motif.root is not None
            value = source[members[motif.root], slice(*motif.spans[0])].copy()
            writes += [(rank, motif.spans[0], value) for rank in members]
        elif motif.op == "reduce_scatter":
            for rank, span in zip(group, motif.spans, strict=True):
                writes.append((rank, span, source[members, slice(*span)].sum(axis=0)))
        else:
            for owner, span in zip(group, motif.spans, strict=True):
                writes += [(rank, span, source[owner, slice(*span)].copy()) for rank in members]
    return writes


def transfers(motif: Motif) -> Iterator[tuple[int, int, int]]:
    """(sender, receiver, elements) of a motif, by the patterns of appendix A.1.

    Rings for ``reduce_scatter`` and ``all_gather``, and an ``all_reduce`` counts as both; ``reduce`` converges on the
    root, ``broadcast`` diverges from it.
    """
    for ranks in motif.groups:
        size = len(ranks)
        if motif.root is not None:
            root, count = ranks[motif.root], motif.elements
            for rank in ranks[: motif.root] + ranks[motif.root + 1 :]:
                yield (rank, root, count) if motif.op == "reduce" else (root, rank, count)
        elif motif.shifts is not None:
            for index in range(size):
                for shift in range(*motif.shifts):
                    to = (index + shift) % size
                    if to != index:
                        yield ranks[index], ranks[to], motif.spans[to][1] - motif.spans[to][0]
        else:
            blocks = cut(motif.spans[0], size) if motif.op == "all_reduce" else motif.spans
            for index in range(size):
                for step in range((size - 1) * (2 if motif.op == "all_reduce" else 1)):
                    begin, end = blocks[(index - step) % size]
                    yield ranks[index], ranks[(index + 1) % size], end - begin


def run(expression: Expression, op: str, memory: Memory, seed: int) -> Memory:
    """The memory after all motifs: of an all_to_all the output, otherwise in place.

    A motif reads when it starts and writes when it ends; in between, others that need not wait for it start and end.
    """
    chance = random.Random(seed)
    found = steps(expression)
    result = np.full_like(memory, -1) if op == "all_to_all" else memory.copy()
    left, done = set(range(len(found))), set()
    flying: list[tuple[int, list[Write]]] = []
    while left or flying:
        ready = [index for index in left if done.issuperset(found[index][1])]
        if ready and (not flying or chance.random() < 0.5):
            index = chance.choice(sorted(ready))
            left.remove(index)
            flying.append((index, _perform(found[index][0], memory if op == "all_to_all" else result)))
            continue
        index, writes = flying.pop(chance.randrange(len(flying)))
        for rank, span, values in writes:
            result[rank, slice(*span)] = values
        done.add(index)
    return result
