# SPDX-License-Identifier: Apache-2.0
"""The topology of a group: its dimensions, this rank's coordinates, and a group for each dimension."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from mcr_dl import _C
from mcr_dl.base.arguments import whole
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError, NotInitializedError
from mcr_dl.groups import factory, torch_groups
from mcr_dl.libraries import registry
from mcr_dl.runtime import changes, handles, state, topologies


@dataclass(frozen=True)
class Dimension:
    """One dimension: bytes per second and nanoseconds of its links (0: not known), and the backend that serves it."""

    name: str
    size: int
    bandwidth: int = 0
    latency: int = 0
    backend: str = ""


class Topology:
    """The arrangement of a group's ranks in dimensions, outermost first: ``topology(group)`` makes it.

    Names, sizes and backends are equal on all ranks.
    """

    def __init__(self, group: handles.Group = None) -> None:
        """As ``topology``. Raises InvalidTypeError for an argument that is not a group of this rank, and
        NotInitializedError if the group has ended, also if it is kept after a loss, and not closed.
        """
        self._of = handles.core_group(group)
        held = state.current().peek(self._of.name()).topology
        if held is None:
            raise NotInitializedError(f"group: expected a living group, got the destroyed {self._of!r}")
        self._held = held

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """All dimensions, outermost first."""
        return tuple(Dimension(*row) for row in self._held.grid.dimensions)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the dimensions."""
        return tuple(each.name for each in self.dimensions)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions; their product is the number of ranks."""
        return tuple(each.size for each in self.dimensions)

    def coordinates(self, rank: int | None = None) -> tuple[int, ...]:
        """The coordinates of a rank of the group; by default of this one."""
        return tuple(self._held.grid.coordinates(self._rank(rank)))

    def ranks(self, name: str, rank: int | None = None) -> tuple[int, ...]:
        """The ranks of the group that differ from this one (or ``rank``) only in that dimension, including itself."""
        return tuple(self._held.grid.line(self._rank(rank), self._index(name)))

    def group(self, name: str) -> Any:
        """The group of ``ranks(name)``, for all operations; the whole group if the dimension has all ranks.

        Raises InvalidArgumentError for an unknown dimension, for one of size 1, in which a rank is alone, and for one
        without a group, as in groups that were made from an mpi4py communicator, for a dimension, or before this
        process came (``rejoin``).
        """
        index = self._index(name)
        found = self._held.groups.get(name)
        if found is None:
            if self.shape[index] != self._of.size() or self.shape[index] == 1:
                reason = "has size 1"
                if self.shape[index] > 1:
                    reason = (
                        "has no group: this one was made from an mpi4py communicator, for a dimension, or before this "
                        "process came"
                    )
                raise InvalidArgumentError(f"topology: expected a dimension with a group, got {name!r}, which {reason}")
            found = self._of
        return torch_groups.handle_made_alone(found)

    def _rank(self, rank: int | None) -> int:
        number = self._of.rank() if rank is None else whole("rank", rank)
        if not 0 <= number < self._of.size():
            raise InvalidArgumentError(f"rank: expected 0 to {self._of.size() - 1}, got {number}")
        return number

    def _index(self, name: str) -> int:
        if not isinstance(name, str):
            raise InvalidTypeError(f"name: expected the name of a dimension, got {name!r}")
        return self._held.grid.index_of(name)

    def __repr__(self) -> str:
        """The shape and this rank's coordinates."""
        shape = " x ".join(f"{each.size} {each.name}" for each in self.dimensions)
        return f"<Topology {shape}, rank {self._of.rank()} at {self.coordinates()}>"


def topology(group: handles.Group = None) -> Topology:
    """The topology of a group (None: of the default group).

    It was set by ``set_topology``, is the group's part of the one in ``MCR_DL_TOPOLOGY``, or else comes from the ranks'
    hosts: ``rail`` over the hosts and ``host`` within one; only ``host`` on a single host, or only ``rail`` with one
    rank per host. It is one dimension ``ranks`` if hosts have different numbers of ranks, or if the group's ranks form
    no grid in the file's topology.
    """
    return Topology(group)


def _arrangement(topology: DeviceMesh | Topology) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows of the dimensions, and the global ranks in the order of their coordinates."""
    if isinstance(topology, Topology):
        rows = [{key: value for key, value in asdict(each).items() if value} for each in topology.dimensions]
        return rows, [topology._of.ranks[rank] for rank in topology._held.grid.ranks]
    names = topology.mesh_dim_names or tuple(f"dim{index}" for index in range(topology.mesh.ndim))
    rows = [{"name": name, "size": size} for name, size in zip(names, topology.mesh.shape, strict=True)]
    return rows, topology.mesh.flatten().tolist()


def _document_of(topology: object, group: _C.Group) -> dict[str, Any]:
    if isinstance(topology, (DeviceMesh, Topology)):
        kind = type(topology).__name__
        rows, members = _arrangement(topology)
        ranks = [group._group_rank(rank) for rank in members]
        if -1 in ranks:
            raise InvalidArgumentError(f"topology: expected a {kind} of the group's ranks, got one with others")
        document = {"format": topologies.FORMAT, "version": 1, "dimensions": rows, "ranks": ranks}
        return topologies.check(document, f"topology: {kind}")
    if isinstance(topology, str) and topology.lstrip().startswith("{"):
        raise InvalidArgumentError("topology: expected a file's path, or its content as a dictionary, got JSON text")
    if isinstance(topology, (str, os.PathLike)):
        return topologies.read(topology)
    if isinstance(topology, Mapping):
        return topologies.check(dict(topology), "topology")
    expected = "a DeviceMesh, a Topology, the path of a file or its content"
    raise InvalidTypeError(f"topology: expected {expected}, got {type(topology).__name__}")


def _groups_of_mesh(mesh: DeviceMesh) -> dict[str, _C.Group]:
    """The mesh's own groups by dimension, if all of them are mcr_dl's."""
    names = mesh.mesh_dim_names or tuple(f"dim{index}" for index in range(mesh.mesh.ndim))
    found = {name: _C.group_of(mesh.get_group(index)) for index, name in enumerate(names) if mesh.mesh.shape[index] > 1}
    return {name: each for name, each in found.items() if each is not None} if all(found.values()) else {}


def set_topology(
    topology: DeviceMesh | Topology | str | os.PathLike[str] | Mapping[str, Any], group: handles.Group = None
) -> None:
    """Give a group a topology: a DeviceMesh, a Topology of these ranks, a file's path as for ``MCR_DL_TOPOLOGY``, or
    such a file's content.

    All ranks of the group call this with the same topology, after the same collective of the group. The groups of a
    mesh are used if all ranks give one, and mcr_dl made them; otherwise a group is made for each dimension. The groups
    that were made for the previous topology are destroyed; those of a mesh are kept.

    Raises InvalidArgumentError on all ranks, and changes nothing, if the topology does not fit the group, or if the
    topologies or the calls before this one differ. If a group for a dimension cannot be made, nothing changes either:
    the ranks that noticed raise the error itself, the others an error with its text, which names such a rank.
    """
    members = handles.core_group(group)
    current = state.current()
    turn = current.count("topology", members.name())
    value: dict[str, Any] = {"document": None, "problem": "", "turn": turn, "given": False}
    given: dict[str, _C.Group] = {}
    try:
        value["document"] = _document_of(topology, members)
        backends = [*members.backends, *(part for name in members.backends for part in registry.parts_of(name))]
        topologies.check_backends(value["document"], lambda _: [*dict.fromkeys(backends)])
        given = _groups_of_mesh(topology) if isinstance(topology, DeviceMesh) else {}
        value["given"] = bool(given)
    except (InvalidArgumentError, InvalidTypeError) as error:
        value["problem"] = str(error)
    except Exception as error:  # the other ranks wait, whatever the argument does
        value["problem"] = f"topology: {type(error).__name__}: {error}"
    size = members.size()

    def decide(values: list[Any]) -> list[Any]:
        # A rank that was elsewhere while the others' attempt failed has counted less.
        turn, all_given = max(each["turn"] for each in values), all(each["given"] for each in values)
        return [topologies.decide(values, size), turn, all_given]

    document, turn, all_given = changes.agree(members, "set_topology", value, decide)
    grid = topologies.grid_of(document, size)
    assert grid is not None
    held = topologies.Held(grid, given if all_given else {})
    before = current.default_document
    if members is _C.world():
        current.default_document = document  # the backends of the new groups depend on it
    try:
        for index in [] if all_given else topologies.with_groups(grid, size):
            with changes.on_all(members, "set_topology"):  # before they make more
                torch_groups.publish(factory.make_line(members, held, index, turn), parent=members)
    except BaseException:
        current.default_document = before
        factory.end_lines(held)
        raise
    factory.replace_dimensions(members, held)
