# SPDX-License-Identifier: Apache-2.0
"""Several communication libraries at once in programs for torch.distributed: the log shows which did what."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import mcr_dl
from mcr_dl.testing.expect import expect
from ranks import torch_fsdp, torch_tensors
from ranks.torch_training import Results, batch, block, life, loss, same, weights, wide


class Watched:
    """Records of the calls in a block, on mcr_dl's groups that exist or are made in it."""

    def __init__(self, *groups: Any) -> None:
        self.groups = groups

    def __enter__(self) -> Watched:
        for group in self.groups:
            mcr_dl.set_passes(["log"], group=group)
        mcr_dl.reset_log()
        return self

    def __exit__(self, *_: object) -> None:
        self.records = mcr_dl.log_records()
        for group in self.groups:
            mcr_dl.set_passes([], group=group)

    def by_backend(self, *operations: str) -> Counter[str]:
        """How often each backend did one of these operations (all of them by default)."""
        return Counter(str(r.backend) for r in self.records if not operations or r.op in operations)


def ddp_on_named() -> None:
    """use() sets the backend of DDP's all_reduce, which another thread issues in the backward pass."""
    with life("gloo"):
        expected = _one_step(DistributedDataParallel(wide(), bucket_cap_mb=1))
    with life("mcr", pg_options=mcr_dl.Options(backends=["mpi", "gloo"])):
        for name in ("mpi", "gloo"):
            model = DistributedDataParallel(wide(), bucket_cap_mb=1)
            with Watched(dist.group.WORLD) as watched, mcr_dl.use(name):
                result = _one_step(model)
            same(result, expected, exact=dist.get_world_size() == 2)
            counted = watched.by_backend("all_reduce")
            assert set(counted) == {name}, counted
            assert counted[name] > 1, "several buckets"


def _one_step(model: DistributedDataParallel) -> Results:
    for step in range(2):
        x, y = batch(step)
        loss(model(x), y).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def use_of_blocks() -> None:
    """Blocks nest and end, also on an error; a call's own name overrides them; a wrong name raises at once."""
    with life("mcr", pg_options=mcr_dl.Options(backends=["mpi", "gloo"])):
        tensor = torch.ones(3)
        with Watched(dist.group.WORLD) as watched:
            dist.all_reduce(tensor)
            with mcr_dl.use("gloo"):
                dist.all_reduce(tensor)
                with mcr_dl.use("mpi"):
                    dist.all_reduce(tensor)
                    mcr_dl.all_reduce(tensor)
                    mcr_dl.all_reduce(tensor, backend="gloo")
                dist.all_reduce(tensor)
            dist.all_reduce(tensor)
        used = [record.backend for record in watched.records]
        assert used[1:6] == ["gloo", "mpi", "mpi", "gloo", "gloo"], used
        assert used[0] == used[6], used
        assert tensor.tolist() == [float(dist.get_world_size() ** 7)] * 3

        def wrong() -> None:
            with mcr_dl.use("no such library"):
                dist.all_reduce(tensor)

        expect(mcr_dl.InvalidArgumentError, wrong, "no such library")
        dist.all_reduce(tensor)


def with_gloo() -> None:
    """torch's own gloo group and one of mcr_dl in one program, started in either order, in use at the same time."""
    for first, second in (("gloo", "mcr"), ("mcr", "gloo")):
        with life(first):
            other = dist.new_group(backend=second)
            assert (dist.get_backend(), dist.get_backend(other)) == (first, second)
            tensors = [torch.full((1000,), float(dist.get_rank() + index)) for index in range(8)]
            works = [
                dist.all_reduce(tensor, group=other if index % 2 else None, async_op=True)
                for index, tensor in enumerate(tensors)
            ]
            for work in reversed(works):
                work.wait()
            size = dist.get_world_size()
            for index, tensor in enumerate(tensors):
                assert bool((tensor == size * (size - 1) / 2 + index * size).all())
            models = [DistributedDataParallel(block(), process_group=group) for group in (None, other)]
            results = []
            for model in models:
                x, y = batch(0)
                loss(model(x), y).backward()
                results.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
            same(results[1], results[0], exact=size == 2)
            dist.destroy_process_group(other)
            dist.all_reduce(tensors[0])


def _mesh(names: tuple[str, str]) -> DeviceMesh:
    """A 2 x 2 mesh whose rows are on gloo and whose columns are on MPI."""
    override = {
        name: ("mcr", mcr_dl.Options(backends=[library])) for name, library in zip(names, ("gloo", "mpi"), strict=True)
    }
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=names, backend_override=override)


def meshes() -> None:
    """Each dimension of a mesh has its own library: HSDP, and tensor parallelism with data parallelism."""
    with life("gloo"):
        plain = torch_fsdp.hybrid("gloo")
        both = torch_tensors.tensor_and_data("gloo")
    with life("mcr", pg_options=mcr_dl.Options(backends=["mpi", "gloo"])):
        mesh = _mesh(("copy", "shard"))
        with Watched(mesh.get_group("copy"), mesh.get_group("shard")) as watched:
            same(torch_fsdp.train(torch_fsdp.sharded(mesh)), plain, exact=False)
        assert set(watched.by_backend("all_reduce")) == {"gloo"}
        assert set(watched.by_backend("all_gather", "reduce_scatter")) == {"mpi"}
        mesh = _mesh(("data", "tensor"))
        with Watched(mesh.get_group("data"), mesh.get_group("tensor")) as watched:
            same(torch_tensors.train_on_both(mesh), both, exact=False)
        assert set(watched.by_backend("reduce_scatter")) == {"gloo"}
        assert set(watched.by_backend("all_reduce")) == {"mpi"}


def fsdp_on_named() -> None:
    """set_backends(): one library gathers weights and the other reduces gradients, also in advance."""
    from mcr_dl import fully_sharded

    with life("gloo"):
        expected = torch_fsdp.reshard("gloo")
        network = torch_fsdp.sharded(torch_fsdp.mesh())
        expect(
            mcr_dl.InvalidTypeError,
            lambda: fully_sharded.set_backends(network, all_gather="mpi"),
            "module: expected a mesh whose group uses the backend 'mcr', to name mpi, got",
            "cpu:gloo",
        )
        fully_sharded.set_backends(network)
    with life("mcr", pg_options=mcr_dl.Options(backends=["mpi", "gloo"])):
        for gather, reduce in (("gloo", "mpi"), ("mpi", "gloo")):
            network = torch_fsdp.sharded(torch_fsdp.mesh())
            fully_sharded.set_backends(network, all_gather=gather, reduce_scatter=reduce)
            with Watched(dist.group.WORLD) as watched:
                result = torch_fsdp.train(network, before=lambda _, network=network: network.unshard(async_op=True))
            same(result, expected, exact=dist.get_world_size() == 2)
            gathers = watched.by_backend("all_gather")
            assert gathers[gather] > 0, gathers
            assert set(watched.by_backend("reduce_scatter")) == {reduce}
        expect(
            mcr_dl.InvalidTypeError, lambda: fully_sharded.set_backends(torch.nn.Linear(1, 1)), "module", "fully_shard"
        )
        expect(mcr_dl.InvalidArgumentError, lambda: fully_sharded.set_backends(network, all_gather="mpj"), "'mpj'")


def passes_in_ddp() -> None:
    """A group's passes see what DDP sends: gradients travel as bfloat16."""
    with life("gloo"):
        expected = _one_step(DistributedDataParallel(wide(), bucket_cap_mb=1))
    with life("mcr", pg_options=mcr_dl.Options(backends=["mpi", "gloo"])):
        mcr_dl.set_passes(["log", mcr_dl.passes.Compress("bf16")])
        mcr_dl.reset_log()
        result = _one_step(DistributedDataParallel(wide(), bucket_cap_mb=1))
        reduced = [record for record in mcr_dl.log_records() if record.op == "all_reduce"]
        mcr_dl.set_passes([])
        large = [record for record in reduced if record.nbytes > 100_000]
        assert len(large) > 2
        assert {record.codec for record in large} == {"bf16"}, [(r.nbytes, r.codec, r.sent_bytes) for r in reduced]
        for name, exact in expected.items():
            torch.testing.assert_close(result[name], exact, rtol=0.02, atol=0.02 * float(exact.abs().max()))


def after_destroy() -> None:
    """A destroyed group raises, and the runtime can start again."""
    with life("mcr"):
        other = dist.new_group()
        dist.destroy_process_group(other)
        tensor = torch.ones(1)
        try:
            dist.all_reduce(tensor, group=other)
        except (RuntimeError, ValueError) as error:
            assert str(error)  # noqa: PT017  torch and mcr_dl each have an error of their own for it
        else:
            raise AssertionError("expected an error")
        model = DistributedDataParallel(block())
        result = weights(model.module)
    with life("mcr"):
        same(weights(DistributedDataParallel(block()).module), result, exact=True)
