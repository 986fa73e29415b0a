# SPDX-License-Identifier: Apache-2.0
"""The rows of the paper's Figures 8 to 11: which library carries a training's communication, and how."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed

import mcr_dl as dist
from mcr_dl.examples import mixes, program
from mcr_dl.examples.comm import Comm, make_groups

LIBRARIES = ("gloo", "mpi")  # which hosts have
FUSE = "+fuse"
MIXED, SPLIT = "mixed", "split"
AUTO = "auto"
OURS = (*LIBRARIES, MIXED, SPLIT, AUTO)
OTHERS = ("torch", "mpi4py")
COMPUTE = "compute"  # the training without any communication
_NAMED = "named"  # groups for calls that name candidates; those of auto have the job's backends alone


class Refused(ValueError):
    """The row makes no sense here; the text says why."""


class TorchComm(Comm):
    """The operations on torch.distributed's gloo, not through mcr_dl."""

    def ranks(self, kind: str) -> int:
        """The size of torch's group."""
        return torch.distributed.get_world_size(self.groups[kind])

    def start_all_to_all(self, output: torch.Tensor, input: torch.Tensor, group: Any, candidate: str) -> Any:
        del candidate
        return torch.distributed.all_to_all_single(output, input, group=group, async_op=True)

    def start_all_reduce(self, tensor: torch.Tensor, group: Any, candidate: str) -> Any:
        del candidate
        return torch.distributed.all_reduce(tensor, group=group, async_op=True)


class _Request:
    """A request of mpi4py, with the buffers that it uses."""

    def __init__(self, request: Any, *buffers: Any) -> None:
        self._request = request
        self._buffers = buffers

    def wait(self) -> None:
        """Return once it is complete."""
        self._request.Wait()
        self._buffers = ()


class Mpi4pyComm(Comm):
    """The operations through mpi4py, on the MPI that is already loaded."""

    def ranks(self, kind: str) -> int:
        """The size of mpi4py's communicator."""
        return int(self.groups[kind].Get_size())

    def start_all_to_all(self, output: torch.Tensor, input: torch.Tensor, group: Any, candidate: str) -> Any:
        del candidate
        buffers = input.numpy(), output.numpy()
        return _Request(group.Ialltoall(*buffers), *buffers)

    def start_all_reduce(self, tensor: torch.Tensor, group: Any, candidate: str) -> Any:
        del candidate
        from mpi4py import MPI

        buffer = tensor.numpy()
        return _Request(group.Iallreduce(MPI.IN_PLACE, buffer), buffer)


class _Done:
    def wait(self) -> None:
        """Return at once."""


class NoComm(Comm):
    """Sends nothing: each rank continues with its own values, and the training's result is meaningless."""

    def start_all_to_all(self, output: torch.Tensor, input: torch.Tensor, group: Any, candidate: str) -> Any:
        del group, candidate
        output.copy_(input)
        return _Done()

    def start_all_reduce(self, tensor: torch.Tensor, group: Any, candidate: str) -> Any:
        del tensor, group, candidate
        return _Done()


def _mpi4py() -> Any:
    """mpi4py's MPI, which neither starts nor ends the library."""
    if importlib.util.find_spec("mpi4py") is None:
        raise Refused("mpi4py is not installed")
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    if not MPI.Is_initialized():
        raise Refused(f"mpi4py has loaded another MPI than mcr_dl: {MPI.Get_library_version().splitlines()[0]}")
    if MPI.COMM_WORLD.Get_rank() != dist.get_rank():
        raise Refused(f"MPI numbers the ranks otherwise: {MPI.COMM_WORLD.Get_rank()} is {dist.get_rank()} here")
    return MPI


def _everyones(problem: str | None) -> None:
    """Raise Refused on all ranks if one has a problem, so that all leave the row out."""
    problems: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    found = [f"rank {rank}: {text}" for rank, text in enumerate(problems) if text is not None]
    if found:
        raise Refused("; ".join(found))


@dataclass
class Rows:
    """Makes rows of one workload; rows of one kind share groups, and the mixes are measured once.

    ``trials`` holds, by mix, the seconds of a step's communication alone, where they were measured.
    """

    workload: program.Workload
    trials: dict[str, float] = field(default_factory=dict)
    _groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    _mixes: dict[str, mixes.Mix] = field(default_factory=dict)

    def make(self, row: str) -> Comm:
        """The row's communication. Raises Refused on all ranks if it makes no sense here."""
        base = row.removesuffix(FUSE)
        if base not in (*OURS, *OTHERS):
            raise Refused(f"expected one of {', '.join((*OURS, *OTHERS))}, the first {len(OURS)} also with {FUSE}")
        if base == "torch" and row == base:
            return TorchComm(self._all("gloo"), groups=self._made("torch"))
        if base == "mpi4py" and row == base:
            problem = None
            try:
                _mpi4py()
            except Refused as error:
                problem = str(error)
            _everyones(problem)
            return Mpi4pyComm(self._all("mpi"), groups=self._made("mpi4py"))
        if base in OTHERS:
            raise Refused("fuse is a pass of mcr_dl's groups")
        mix = self._mix(base) if base in (MIXED, SPLIT) else self._all(base)
        return Comm(mix, groups=self._made((AUTO if base == AUTO else _NAMED) + row.removeprefix(base)))

    def compute(self) -> Comm:
        """No communication at all."""
        return NoComm(self._all("none"), groups=self._made(_NAMED))

    def chosen(self) -> dict[str, str]:
        """The meaning of `mixed` and `split` here, as text, if they were requested."""
        return {row: mixes.name_of(mix) for row, mix in self._mixes.items()}

    def _all(self, backend: str) -> mixes.Mix:
        return dict.fromkeys(self.workload.kinds, backend)

    def _made(self, kind: str) -> dict[str, Any]:
        """The groups of one kind, made at their first use: of another library, or named or auto's, also with FUSE."""
        if kind not in self._groups:
            layout, rank = self.workload.layout(), dist.get_rank()
            if kind == "mpi4py":
                world = _mpi4py().COMM_WORLD
                self._groups[kind] = {
                    name: world.Split(next(color for color, ranks in enumerate(division) if rank in ranks), rank)
                    for name, division in layout.items()
                }
            elif kind == "torch":
                self._groups[kind] = make_groups(
                    layout, rank, lambda ranks: torch.distributed.new_group(ranks, backend="gloo")
                )
            else:
                passes = ["log", "fuse"] if kind.endswith(FUSE) else ["log"]
                backends = mixes.with_stripes(LIBRARIES) if kind.startswith(_NAMED) else None
                self._groups[kind] = make_groups(layout, rank, lambda ranks: _with_passes(ranks, passes, backends))
        return self._groups[kind]

    def _mix(self, row: str) -> mixes.Mix:
        """The mix behind `mixed` or `split`: the fastest of its kind in a rehearsal of a step's communication."""
        if dist.get_world_size() == 1:
            raise Refused("one rank has no other rank to communicate with")
        if MIXED not in self._mixes:
            self._mixes[MIXED], seconds = program.choose(
                self.workload, self._made(_NAMED), LIBRARIES, rounds=1, repeats=2
            )
            self.trials.update(seconds)
        if row == MIXED:
            return self._mixes[MIXED]
        if len(self.workload.kinds) == 1:
            raise Refused("the same as mixed here, which cuts the one kind of operation that there is")
        if row not in self._mixes:
            self._mixes[row] = self._best_split()
        return self._mixes[row]

    def _best_split(self) -> mixes.Mix:
        alone = {name: self.trials[mixes.name_of(self._all(name))] for name in LIBRARIES}
        tried = mixes.striped(self.workload.kinds, LIBRARIES, alone)
        seconds = mixes.measure(self.workload.rehearse, tried, self._made(_NAMED), rounds=1, repeats=2)
        self.trials.update({mixes.name_of(mix): value for mix, value in zip(tried, seconds, strict=True)})
        best, _ = min(zip(tried, seconds, strict=True), key=lambda pair: pair[1])
        return best


def _with_passes(ranks: Sequence[int], passes: list[str], backends: list[str] | None) -> Any:
    group = dist.new_group(ranks, backend=backends)
    dist.set_passes(passes, group)
    return group


def bucket_bytes(row: str) -> int:
    """The size of the program's gradient buckets; 0 if the fuse pass joins the gradients."""
    return 0 if row.endswith(FUSE) else program.BUCKET_BYTES


def describe(row: str, comm: Comm) -> Mapping[str, str]:
    """As text: which library carries which operation, and what joins gradients."""
    size = bucket_bytes(row)
    joined = f"in buckets of {size >> 20} MiB" if size else "one call for each parameter, joined by the fuse pass"
    return {**comm.routes, "gradients_joined": joined}
