# SPDX-License-Identifier: Apache-2.0
"""A program like those in PyTorch's tutorials. The tests run it unchanged, and with one line replaced:
``import mcr_dl as dist`` instead of the import of torch.distributed."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def point_to_point(rank, size):
    """Blocking and non-blocking messages around a ring."""
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        dist.send(tensor=tensor, dst=1)
    elif rank == 1:
        dist.recv(tensor=tensor, src=0)
    print("blocking:", tensor[0].item())
    incoming = torch.zeros(3)
    request = dist.isend(torch.full((3,), float(rank)), dst=(rank + 1) % size)
    sender = dist.irecv(incoming, src=(rank - 1) % size)
    request.wait()
    sender.wait()
    print("non-blocking:", incoming.tolist())
    anyone = torch.zeros(1)
    if rank == 0:
        senders = sorted(dist.recv(anyone) for _ in range(size - 1))
        print("from anyone:", senders)
    else:
        dist.send(torch.ones(1), 0)
    dist.barrier()
    right = torch.zeros(2)
    operations = [
        dist.P2POp(dist.isend, torch.full((2,), float(rank)), (rank + 1) % size),
        dist.P2POp(dist.irecv, right, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    print("batch:", right.tolist())


def collectives(rank, size):
    """All collectives, on the whole world and on a group."""
    group = dist.new_group([0, 1])
    tensor = torch.ones(1)
    if rank < 2:
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
        print("group:", tensor.item(), dist.get_rank(group), dist.get_world_size(group))
    tensor = torch.arange(4.0) + rank
    dist.broadcast(tensor, src=0)
    print("broadcast:", tensor.tolist())
    tensor = torch.arange(4.0) + rank
    dist.reduce(tensor, dst=0, op=dist.ReduceOp.MAX)
    if rank == 0:
        print("reduce:", tensor.tolist())
    pieces = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(pieces, torch.full((2,), float(rank)))
    print("all_gather:", [piece.tolist() for piece in pieces])
    dist.gather(torch.full((2,), rank + 0.5), gather_list=pieces if rank == 0 else None, dst=0)
    print("gather:", [piece.tolist() for piece in pieces])
    mine = torch.zeros(2)
    dist.scatter(mine, [torch.full((2,), float(i * i)) for i in range(size)] if rank == 1 else None, src=1)
    print("scatter:", mine.tolist())
    whole = torch.zeros(2 * size)
    dist.all_gather_into_tensor(whole, mine)
    dist.reduce_scatter_tensor(mine, whole)
    print("into tensors:", whole.tolist(), mine.tolist())
    swapped = torch.zeros(size)
    work = dist.all_to_all_single(swapped, torch.arange(float(size)) * (rank + 1), async_op=True)
    work.wait()
    print("all_to_all:", swapped.tolist(), work.is_completed())
    future = dist.all_reduce(swapped, op=dist.ReduceOp.AVG, async_op=True).get_future()
    print("future:", future.then(lambda done: done.value()[0] * 2).wait().tolist())
    if dist.get_backend() == "gloo":  # torch has it only for gloo
        dist.monitored_barrier()


def objects(rank, size):
    """Python objects instead of tensors."""
    results = [None] * size
    dist.all_gather_object(results, {"rank": rank})
    print("objects:", results)
    listed = ["foo", 12, {1: 2}] if rank == 0 else [None, None, None]
    dist.broadcast_object_list(listed, src=0)
    print("broadcast objects:", listed)
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank * 10, gathered, dst=0)
    print("gathered objects:", gathered)
    handed = [None]
    dist.scatter_object_list(handed, list("abcdef"[:size]) if rank == 0 else None, src=0)
    print("scattered object:", handed)


class ToyModel(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        """Shape (batch, 10) to (batch, 5)."""
        return self.net2(self.relu(self.net1(x)))


def average_gradients(model):
    """The tutorial's manual averaging, before it introduces DDP."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= float(dist.get_world_size())


def train(rank, size):
    """DDP on a part of the data per rank, a checkpoint by rank 0 that all load, the same by hand."""
    torch.manual_seed(1234)
    data = TensorDataset(torch.randn(32, 10), torch.randn(32, 5))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    by_hand, model = ToyModel(), ToyModel()
    by_hand.load_state_dict(model.state_dict())
    model = DDP(model)
    criterion = nn.MSELoss()
    optimizers = [optim.SGD(m.parameters(), lr=0.01, momentum=0.5) for m in (model, by_hand)]
    for epoch in range(2):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for x, y in loader:
            for m, optimizer in zip((model, by_hand), optimizers, strict=True):
                optimizer.zero_grad()
                loss = criterion(m(x), y)
                loss.backward()
                if m is by_hand:
                    average_gradients(m)
                optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        print(f"epoch {epoch}: {total.item() / size:.4f}")
    same = all(torch.allclose(a, b) for a, b in zip(model.module.parameters(), by_hand.parameters(), strict=True))
    print("by hand as by DDP:", same)
    path = [os.path.join(tempfile.mkdtemp(), "model.checkpoint") if rank == 0 else None]
    dist.broadcast_object_list(path, src=0)
    if rank == 0:
        torch.save(model.state_dict(), path[0])
    dist.barrier()
    model.load_state_dict(torch.load(path[0], map_location="cpu", weights_only=True))
    dist.barrier()
    if rank == 0:
        os.remove(path[0])
    print(f"checkpoint: {sum(parameter.sum().item() for parameter in model.parameters()):.4f}")


def meshes(rank, size):
    """A mesh and a tensor that is spread over it."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (size,), mesh_dim_names=("world",))
    assert isinstance(mesh, dist.DeviceMesh)
    spread = distribute_tensor(torch.arange(4.0 * size), mesh, [Shard(0)])
    print("mesh:", mesh.get_local_rank("world"), spread.to_local().tolist(), spread.sum().full_tensor().item())
    tensor = torch.ones(1) * rank
    dist.all_reduce(tensor, group=mesh.get_group("world"))
    print("on the mesh's group:", tensor.item())


def names():
    """Names that old and new programs use."""
    print("available:", dist.is_available(), dist.is_initialized(), dist.is_gloo_available())
    print("names:", dist.Backend.GLOO, dist.ReduceOp.SUM, dist.reduce_op.SUM, dist.default_pg_timeout)
    print("ranks:", dist.get_process_group_ranks(dist.group.WORLD), dist.get_rank(dist.group.WORLD))
    store = dist.HashStore()
    store.set("key", "value")
    print("store:", store.get("key"))
    try:
        dist.broadcast(torch.zeros(1), src=99)
    except (ValueError, RuntimeError):
        print("a wrong rank is refused")


if __name__ == "__main__":
    dist.init_process_group(os.environ.get("BACKEND", "gloo"))
    me, world = dist.get_rank(), dist.get_world_size()
    names()
    point_to_point(me, world)
    collectives(me, world)
    objects(me, world)
    train(me, world)
    meshes(me, world)
    dist.destroy_process_group()
    print("initialized:", dist.is_initialized())
