# SPDX-License-Identifier: Apache-2.0
"""Which candidate carries which collective of a training, and the time and bytes of each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import mcr_dl as dist

ALL_TO_ALL = "all_to_all"
ALL_REDUCE = "all_reduce"
ACTIVATIONS = "activations"  # the two kinds of all_reduce of a tensor-parallel model
GRADIENTS = "gradients"


class Pending:
    """A started operation. The time spent in its wait() is time lost to communication."""

    def __init__(self, work: Any, kind: str, comm: Comm) -> None:
        self._work = work
        self._kind = kind
        self._comm = comm

    def wait(self) -> None:
        """Return when the result is complete."""
        with self._comm.timed(self._kind):
            self._work.wait()


class Comm:
    """The collectives of one mode of a training: the mode routes each kind of operation.

    Args:
        routes: by kind of operation, the candidate (or "auto") that carries it.
        codec: the codec that compresses all messages.
        groups: by kind, the group whose ranks take part; the default group for kinds without an entry.

    ``seconds`` holds, by kind, the time that the program has spent in calls and waits since it was last cleared; it
    does not include communication that runs while the program computes. ``nbytes`` holds the bytes of all messages by
    kind and candidate.
    """

    def __init__(
        self, routes: Mapping[str, str], *, codec: str = "none", groups: Mapping[str, Any] | None = None
    ) -> None:
        self.routes = dict(routes)
        self.codec = codec
        self.groups = dict(groups or {})
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.nbytes: defaultdict[tuple[str, str], int] = defaultdict(int)

    def ranks(self, kind: str) -> int:
        """How many ranks take part in an operation of this kind."""
        return dist.get_world_size(self.groups.get(kind))

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Add the time of the block to the kind's."""
        start = time.perf_counter()
        yield
        self.seconds[kind] += time.perf_counter() - start

    def all_to_all(self, output: torch.Tensor, input: torch.Tensor, kind: str = ALL_TO_ALL) -> Pending:
        """Start sending block i of the input to rank i, and receiving block j of the output from rank j."""
        candidate = self.routes[kind]
        self.nbytes[kind, candidate] += input.nbytes
        with self.timed(kind):
            return Pending(self.start_all_to_all(output, input, self.groups.get(kind), candidate), kind, self)

    def all_reduce(self, tensor: torch.Tensor, kind: str = ALL_REDUCE) -> Pending:
        """Start replacing the tensor by its sum over the ranks."""
        candidate = self.routes[kind]
        self.nbytes[kind, candidate] += tensor.nbytes
        with self.timed(kind):
            return Pending(self.start_all_reduce(tensor, self.groups.get(kind), candidate), kind, self)

    # Other libraries override these.

    def start_all_to_all(self, output: torch.Tensor, input: torch.Tensor, group: Any, candidate: str) -> Any:
        """Start the operation on one candidate; returns something with a wait()."""
        return dist.all_to_all_single(output, input, group=group, async_op=True, backend=candidate, codec=self.codec)

    def start_all_reduce(self, tensor: torch.Tensor, group: Any, candidate: str) -> Any:
        """Start the operation on one candidate; returns something with a wait()."""
        return dist.all_reduce(tensor, group=group, async_op=True, backend=candidate, codec=self.codec)


Layout = Mapping[str, Sequence[Sequence[int]]]  # by kind of operation, the ranks of each group; every rank is in one


def make_groups(layout: Layout, rank: int, new_group: Callable[[list[int]], Any]) -> dict[str, Any]:
    """This rank's group for each kind. Every rank calls this; kinds with the same ranks share a group.

    Args:
        layout: the groups, equal on all ranks.
        rank: this rank.
        new_group: makes one from its ranks; called on all ranks, in the same order.
    """
    made: dict[tuple[int, ...], Any] = {}
    for division in layout.values():
        for ranks in division:
            if tuple(ranks) not in made:
                made[tuple(ranks)] = new_group(list(ranks))
    return {kind: next(made[tuple(ranks)] for ranks in division if rank in ranks) for kind, division in layout.items()}
