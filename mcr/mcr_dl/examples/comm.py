# SPDX-License-Identifier: Apache-2.0
"""Which backend carries which collective of a training, and the time and bytes of each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import mcr_dl as dist

ALL_TO_ALL = "all_to_all"
ALL_REDUCE = "all_reduce"
ACTIVATIONS = "activations"  # the two kinds of all_reduce of a tensor-parallel model
GRADIENTS = "gradients"

_GRAIN = 64  # elements; both pieces of a cut message begin on a cache line
_LEAST_CUT = 1 << 16  # bytes; below this, two messages cost more than they save


@dataclass(frozen=True)
class Split:
    """One message cut in two pieces that travel at the same time: the first backend carries the fraction `share`."""

    first: str
    second: str
    share: float

    def __str__(self) -> str:
        return f"{self.first} {self.share:.0%} + {self.second} {1 - self.share:.0%}"

    def cut(self, tensor: torch.Tensor, length: int) -> int:
        """How many of the `length` elements of a row go to the first backend; equal on all ranks, as sizes are."""
        if tensor.nbytes < _LEAST_CUT:
            return length if self.share >= 0.5 else 0
        return min(length, round(length * self.share / _GRAIN) * _GRAIN)


Route = str | Split  # a backend, "auto", or two backends


class Pending:
    """A started operation. The time spent in its wait() is time lost to communication."""

    def __init__(self, works: Sequence[Any], kind: str, comm: Comm, finish: Callable[[], None] | None = None) -> None:
        self._works = works
        self._kind = kind
        self._comm = comm
        self._finish = finish

    def wait(self) -> None:
        """Return when the result is complete."""
        with self._comm.timed(self._kind):
            for work in self._works:
                work.wait()
            if self._finish is not None:
                self._finish()


class Comm:
    """The collectives of one mode of a training: the mode routes each kind of operation.

    Args:
        routes: by kind of operation, the backend (or "auto", or a Split) that carries it.
        codec: the codec that compresses all messages.
        groups: by kind, the group whose ranks take part; the default group for kinds without an entry.

    ``seconds`` holds, by kind, the time that the program has spent in calls and waits since it was last cleared; it
    does not include communication that runs while the program computes. ``nbytes`` holds the bytes of all messages by
    kind and backend.
    """

    def __init__(
        self, routes: Mapping[str, Route], *, codec: str = "none", groups: Mapping[str, Any] | None = None
    ) -> None:
        self.routes = dict(routes)
        self.codec = codec
        self.groups = dict(groups or {})
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.nbytes: defaultdict[tuple[str, str], int] = defaultdict(int)

    @property
    def backends(self) -> dict[str, str]:
        """The routes in words."""
        return {kind: str(route) for kind, route in self.routes.items()}

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
        with self.timed(kind):
            route = self.routes[kind]
            if isinstance(route, str):
                return Pending([self._all_to_all(output, input, kind, route)], kind, self)
            rows, arriving = input.view(self.ranks(kind), -1), output.view(self.ranks(kind), -1)
            cut = route.cut(input, rows.shape[1])
            works, pieces = [], []
            for backend, part in ((route.first, slice(0, cut)), (route.second, slice(cut, None))):
                piece = rows[:, part].contiguous()
                if piece.numel() > 0:
                    received = torch.empty_like(piece)
                    pieces.append((part, received))
                    works.append(self._all_to_all(received, piece, kind, backend))

        def join() -> None:
            for part, received in pieces:
                arriving[:, part] = received

        return Pending(works, kind, self, join)

    def all_reduce(self, tensor: torch.Tensor, kind: str = ALL_REDUCE) -> Pending:
        """Start replacing the tensor by its sum over the ranks."""
        with self.timed(kind):
            route = self.routes[kind]
            if isinstance(route, str):
                return Pending([self._all_reduce(tensor, kind, route)], kind, self)
            flat = tensor.view(-1)
            cut = route.cut(tensor, flat.numel())
            pieces = ((route.first, flat[:cut]), (route.second, flat[cut:]))
            works = [self._all_reduce(piece, kind, backend) for backend, piece in pieces if piece.numel() > 0]
        return Pending(works, kind, self)

    def _all_to_all(self, output: torch.Tensor, input: torch.Tensor, kind: str, backend: str) -> Any:
        self.nbytes[kind, backend] += input.nbytes
        return self.start_all_to_all(output, input, self.groups.get(kind), backend)

    def _all_reduce(self, tensor: torch.Tensor, kind: str, backend: str) -> Any:
        self.nbytes[kind, backend] += tensor.nbytes
        return self.start_all_reduce(tensor, self.groups.get(kind), backend)

    # Other libraries override these.

    def start_all_to_all(self, output: torch.Tensor, input: torch.Tensor, group: Any, backend: str) -> Any:
        """Start the operation on one backend; returns something with a wait()."""
        return dist.all_to_all_single(output, input, group=group, async_op=True, backend=backend, codec=self.codec)

    def start_all_reduce(self, tensor: torch.Tensor, group: Any, backend: str) -> Any:
        """Start the operation on one backend; returns something with a wait()."""
        return dist.all_reduce(tensor, group=group, async_op=True, backend=backend, codec=self.codec)


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
