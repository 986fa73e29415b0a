# SPDX-License-Identifier: Apache-2.0
"""Topologies of groups, on one rank."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as torch_dist
from torch.distributed.device_mesh import init_device_mesh

import mcr_dl
from grids import document
from mcr_dl import InvalidArgumentError, InvalidTypeError
from mcr_dl.runtime import state
from mcr_dl.testing.expect import expect
from ranks import session


@contextmanager
def _file(text: str | None) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        if text is not None:
            path = Path(folder) / "topology.json"
            path.write_text(text)
            os.environ["MCR_DL_TOPOLOGY"] = str(path)
        try:
            yield
        finally:
            os.environ.pop("MCR_DL_TOPOLOGY", None)


def _sum(group: Any) -> float:
    """The sum of the members' global ranks, by each of their backends."""
    sums = set()
    for backend in mcr_dl.get_backends(group):
        tensor = torch.full((3,), float(mcr_dl.get_rank()))
        mcr_dl.all_reduce(tensor, group=group, backend=backend)
        sums.add(float(tensor[0]))
    (found,) = sums
    return found


def found() -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...], bool, int]:
    """The topology of a job without a given one."""
    session.stop()
    session.start()
    topology = mcr_dl.topology()
    everyone = topology.group("host") is mcr_dl.group.WORLD
    made = len(mcr_dl.runtime.state.current().groups)
    return topology.names, topology.shape, topology.coordinates(), everyone, made


def given() -> tuple[Any, ...]:
    """A topology from a file: coordinates, groups of the dimensions, parts of it in other groups; then the end."""
    session.stop()
    with _file(json.dumps(document(2, 2, ranks=[0, 2, 1, 3]))):
        session.start()
        topology = mcr_dl.topology()
        sums = {name: _sum(topology.group(name)) for name in topology.names}
        assert isinstance(topology.group("a"), mcr_dl.ProcessGroup)
        assert mcr_dl.topology(topology.group("b")).shape == (1, 2)
        expect(InvalidArgumentError, lambda: topology.group("c"), "a, b", "'c'")
        part = mcr_dl.new_group([0, 1, 2])
        if mcr_dl.get_rank() < 3:
            assert mcr_dl.topology(part).names == ("ranks",)
        again = mcr_dl.new_group()
        inner = mcr_dl.topology(again).group("a")
        assert _sum(inner) == sums["a"]
        mcr_dl.destroy_process_group(again)
        expect(mcr_dl.NotInitializedError, lambda: mcr_dl.all_reduce(torch.ones(1), group=inner), "destroyed")
        again = mcr_dl.new_group()
        across = mcr_dl.topology(again).group("b")
        again.abort()
        expect(mcr_dl.NotInitializedError, lambda: mcr_dl.all_reduce(torch.ones(1), group=across), "destroyed")
        expect(ValueError, lambda: torch_dist.destroy_process_group(across), "Invalid process group")
        session.stop()
    return topology.shape, topology.names, sums


def made_by_torch() -> None:
    """torch starts the runtime and makes groups: each dimension's group works through torch, and ends."""
    session.stop()
    with _file(json.dumps(document(2, 2))):
        torch_dist.init_process_group("mcr", pg_options=mcr_dl.Options(uniform=False))
        groups = [torch_dist.group.WORLD, torch_dist.new_group(), mcr_dl.new_group()]
        groups.append(mcr_dl.split_group(groups[0], [list(range(4))]))
        for group, any_form in zip(groups, (True, False, False, True), strict=True):
            topology = mcr_dl.topology(group)
            if torch_dist.get_rank() == 0:  # makes the process group before the other ranks
                topology.group("b")
            torch_dist.barrier()
            for name in ("a", "b"):
                line = topology.group(name)
                assert isinstance(line, torch_dist.ProcessGroup)
                assert topology.group(name) is line
                assert mcr_dl._C.group_of(line)._any_form is any_form
                tensor = torch.full((3,), float(torch_dist.get_rank()))
                torch_dist.all_reduce(tensor, group=line)
                assert tensor.tolist() == [float(sum(topology.ranks(name)))] * 3
        before = len(state.current().groups)
        mcr_dl.destroy_process_group(line)
        assert len(state.current().groups) == before - 1
        expect(mcr_dl.NotInitializedError, lambda: line.allreduce([torch.ones(1)]), "destroyed")
        torch_dist.destroy_process_group(groups[1])
        assert len(state.current().groups) == before - 4
        torch_dist.destroy_process_group()
        assert not mcr_dl.is_initialized()


def wrong_files() -> None:
    """Files without a valid topology for these ranks, or that differ: one error on all ranks, then a good start."""
    session.stop()
    rank = int(os.environ.get("RANK", os.environ.get("PMI_RANK", "0")))
    texts = [
        (json.dumps(document(2, 2)), "make 3 ranks, got 2 a x 2 b"),
        (json.dumps(document(3, 0)), "dimensions[1].size"),
        (json.dumps(document(3, surprise=1)), "surprise"),
        (json.dumps(document(3, ranks=[0, 1, 1])), "1 twice"),
        (json.dumps({**document(3), "dimensions": [{"name": "a", "size": 3, "backend": "nccl"}]}), "mpi, gloo"),
        ("{", "complete JSON document"),
        (json.dumps(document(3) if rank == 0 else document(1, 3)), "$.dimensions[0].size: 3 on rank 0 and 1 on rank 1"),
        (json.dumps(document(3)) if rank == 0 else None, "on rank 0 and nothing on rank 1"),
        (json.dumps(document(3)) if rank < 2 else "[]", "rank 2: "),
        (json.dumps(document(3, ranks=[] if rank == 1 else [2, 1, 0])), "$.ranks"),
        (json.dumps(document(3, **({"ranks": []} if rank == 1 else {}))), "$.ranks"),
    ]
    for text, word in texts:
        with _file(text):
            expect(InvalidArgumentError, session.start, word)
    session.start()
    assert _sum(None) == 3


def meshes() -> tuple[Any, ...]:
    """A DeviceMesh of torch, whose groups are used; then a document, for which groups are made, also if only some ranks
    give it in place of the mesh; then wrong ones."""
    session.stop()
    session.start()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    mcr_dl.set_topology(mesh)
    topology = mcr_dl.topology()
    assert topology.group("inner") is mesh.get_group("inner")
    first = topology.names, topology.coordinates(), _sum(topology.group("inner"))
    rank = mcr_dl.get_rank()
    alike = {**document(ranks=[0, 1, 2, 3]), "dimensions": [{"name": name, "size": 2} for name in topology.names]}
    mcr_dl.set_topology(mesh if rank == 0 else alike)
    inner = mcr_dl.topology().group("inner")
    assert inner is not mesh.get_group("inner")
    assert _sum(inner) == first[2]
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(mesh, "get_group", _no_groups)
        expect(InvalidArgumentError, lambda: mcr_dl.set_topology(mesh), "rank 1: topology: RuntimeError: no groups")
    assert mcr_dl.topology().group("inner") is inner
    mcr_dl.set_topology({**document(1, 4), "dimensions": [{"name": "flat", "size": 4, "bandwidth": 10**9}]})
    assert mcr_dl.topology().dimensions == (mcr_dl.Dimension("flat", 4, 10**9),)
    assert _sum(mesh.get_group("inner")) == first[2]
    for turn in range(2):
        mcr_dl.set_topology(document(2, 2, ranks=[0, 1, 2, 3] if turn else [3, 1, 2, 0]))
        sums = {name: _sum(mcr_dl.topology().group(name)) for name in "ab"}
    expect(InvalidArgumentError, lambda: mcr_dl.set_topology(document(2, 3)), "make 4 ranks")
    expect(
        InvalidArgumentError, lambda: mcr_dl.set_topology(document(*([2, 2] if rank else [4]))), "on rank 0", "rank 1"
    )
    text = json.dumps(document(4))
    expect(InvalidArgumentError, lambda: mcr_dl.set_topology(text), "its content as a dictionary, got JSON text")
    expect(InvalidArgumentError, lambda: mcr_dl.set_topology(7 if rank == 1 else document(4)), "rank 1", "got int")
    assert {name: _sum(mcr_dl.topology().group(name)) for name in "ab"} == sums
    expect(InvalidTypeError, lambda: mcr_dl.topology(3), "int")
    made = mcr_dl.topology()
    mcr_dl.set_topology(document(4))
    mcr_dl.set_topology(made)
    assert {name: _sum(mcr_dl.topology().group(name)) for name in "ab"} == sums
    pair = mcr_dl.new_group([0, 1])
    if rank < 2:
        expect(InvalidArgumentError, lambda: mcr_dl.set_topology(made, pair), "rank 0", "a Topology of the group's")
    wrong: Any = [mcr_dl.Dimension("a", 4)]
    expect(InvalidTypeError, lambda: mcr_dl.Topology(wrong), "group: expected a process group", "got list")
    session.stop()
    return first, sums


def names_alike() -> None:
    """A dimension's name ends as the name of another topology's group would."""
    session.stop()
    rows = [{"name": name, "size": 2} for name in ("a-1", "b")]
    with _file(json.dumps({**document(4), "dimensions": rows})):
        session.start()
        first = mcr_dl.topology().group("a-1")
        sums = {name: _sum(mcr_dl.topology().group(name)) for name in ("a-1", "b")}
        for _ in range(3):
            mcr_dl.set_topology(document(2, 2))
            assert [_sum(mcr_dl.topology().group(name)) for name in "ab"] == [*sums.values()]
        expect(mcr_dl.NotInitializedError, lambda: mcr_dl.all_reduce(torch.ones(1), group=first), "destroyed")
        session.stop()


def failed() -> None:
    """Groups of a topology that cannot be made, an argument that one rank cannot read, or another change on one rank:
    the topology before stays, and all can set one afterwards."""
    session.stop()
    session.start("shm", "gloo")
    rank = mcr_dl.get_rank()
    mcr_dl.set_topology(document(2, 2))
    sums = {name: _sum(mcr_dl.topology().group(name)) for name in "ab"}
    groups = set(state.current().groups)
    other = document(2, 2, ranks=[0, 2, 1, 3])
    with pytest.MonkeyPatch.context() as patch:
        if rank == 2:  # the group of ranks 0 and 1 could be made
            patch.setenv("MCR_DL_SHM_BYTES", "1")
        expect(InvalidArgumentError, lambda: mcr_dl.set_topology(other), "MCR_DL_SHM_BYTES", "rank")
    assert state.current().default_document == document(2, 2)
    wrong = [
        ({**document(2, 2), "dimensions": [{"name": "a", "size": np.int64(4)}]}, "expected an integer, got"),
        ({**document(4), "version": _Unreadable()}, "no text"),
        ({**document(4), "dimensions": [{"name": "a\n", "size": 4}]}, "name: expected a text like"),
    ]
    for one, text in wrong:
        expect(InvalidArgumentError, lambda one=one: mcr_dl.set_topology(one if rank == 1 else document(4)), text)
    assert mcr_dl.topology().names == ("a", "b")
    assert {name: _sum(mcr_dl.topology().group(name)) for name in "ab"} == sums
    assert set(state.current().groups) == groups
    mixed = (lambda: mcr_dl.set_passes([])) if rank == 0 else (lambda: mcr_dl.set_topology(other))
    expect(InvalidArgumentError, mixed, "to make the same change")
    mcr_dl.set_topology(other)
    assert {name: _sum(mcr_dl.topology().group(name)) for name in "ab"} == {"a": sums["b"], "b": sums["a"]}
    session.stop()


def _no_groups(*_: object) -> None:
    raise RuntimeError("no groups")


class _Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")
