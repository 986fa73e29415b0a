# SPDX-License-Identifier: Apache-2.0
"""Programs of torch.distributed on its own backend and on "mcr", by the same ranks, with equal results; and the time of
a training step on each, in turns.

    python -m gpu.training --ranks 1 FOLDER
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from gpu import jobs
from mcr_dl.testing.lives import forget_groups

Results = list[torch.Tensor]
PROGRAMS: dict[str, Callable[[torch.device], Results]] = {}
_STEPS = 4
_TURNS, _TURNS_SHARED = 7, 3  # with one rank, and with several that share the device
_TIMED = 10  # steps of a turn
# Gradients of several ranks may be added in another order.
_TOLERANCE = 1e-5


def program(function: Callable[[torch.device], Results]) -> Callable[[torch.device], Results]:
    """Add a program to the list."""
    PROGRAMS[function.__name__] = function
    return function


def _model(width: int = 256, layers: int = 6) -> nn.Sequential:
    torch.manual_seed(1)
    rows = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*rows, nn.Linear(width, 10))


def _batch(step: int, device: torch.device, width: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """The rank's own batch of a step."""
    made = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    x, y = torch.randn(32, width, generator=made), torch.randint(10, (32,), generator=made)
    return x.to(device), y.to(device)


def _train(model: nn.Module, device: torch.device, steps: int = _STEPS) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x, y = _batch(step, device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _world() -> dist.ProcessGroup:
    """The default group."""
    world = dist.group.WORLD
    assert world is not None
    return world


@program
def data_parallel(device: torch.device) -> Results:
    """DistributedDataParallel with several buckets."""
    model = DistributedDataParallel(_model().to(device), bucket_cap_mb=1)
    _train(model, device)
    return [each.detach().clone() for each in model.parameters()]


@program
def fully_sharded(device: torch.device) -> Results:
    """FSDP2 on a mesh of all ranks."""
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    model = _model().to(device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _train(model, device)
    return [each.full_tensor().detach().clone() for each in model.parameters()]  # type: ignore[attr-defined]


@program
def collectives(device: torch.device) -> Results:
    """Calls, futures, functional collectives, objects, and a group of its own."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.arange(1001.0, device=device) + rank
    summed = x.clone()
    dist.all_reduce(summed)
    doubled = dist.all_reduce(x.clone(), async_op=True).get_future().then(lambda done: done.value()[0] * 2).wait()
    gathered = x.new_empty(ranks * x.numel())
    dist.all_gather_into_tensor(gathered, x)
    scattered = torch.empty_like(x)
    dist.reduce_scatter_tensor(scattered, gathered.clone())
    exchanged = torch.empty_like(gathered)
    dist.all_to_all_single(exchanged, gathered)
    listed = [torch.empty_like(x) for _ in range(ranks)]
    dist.all_gather(listed, x)
    functional_sum = functional.all_reduce(x, "sum", _world()) + 0
    objects: list[Any] = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": each} for each in range(ranks)], objects
    group = dist.new_group(list(range(ranks)))
    dist.broadcast(x, 0, group=group)
    dist.barrier(group=group)
    assert isinstance(doubled, torch.Tensor)
    return [x, summed, doubled, gathered, scattered, exchanged, *listed, functional_sum]


@program
def coalesced(device: torch.device) -> Results:
    """Several calls in one launch."""
    first = torch.arange(1001.0, device=device) + dist.get_rank()
    second = first * 2
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        dist.all_reduce(first)
        dist.all_reduce(second)
    manager.wait()
    return [first, second]


@program
def compiled(device: torch.device) -> Results:
    """A functional collective between two operations of one compiled function."""

    @torch.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = functional.all_reduce(x * 2, "sum", _world())
        return summed + 1

    return [step(torch.arange(1001.0, device=device))]


@contextlib.contextmanager
def life(backend: str, device: torch.device, store: dist.Store, number: int) -> Iterator[None]:
    """torch's default process group on a backend."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own = dist.PrefixStore(f"life {number}", store)
    bound = device if device.type == "cuda" else None
    dist.init_process_group(backend, store=own, rank=rank, world_size=ranks, device_id=bound)
    try:
        yield
    finally:
        forget_groups()
        dist.destroy_process_group()


def _same(ours: Results, theirs: Results) -> str:
    """Return the differences; empty if there are none."""
    if len(ours) != len(theirs):
        return f"expected {len(theirs)} tensors, got {len(ours)}"
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if not torch.allclose(mine, other, rtol=_TOLERANCE, atol=_TOLERANCE):
            return f"tensor {index}: largest difference {(mine - other).abs().max().item():.3g}"
    return ""


def _run(device: torch.device) -> tuple[dict[str, Results], dict[str, str]]:
    """The results of all programs, and the problems of those that raised."""
    results: dict[str, Results] = {}
    problems: dict[str, str] = {}
    for name, function in PROGRAMS.items():
        try:
            results[name] = function(device)
            dist.barrier()
        except Exception as error:
            traceback.print_exc()
            problems[name] = f"{type(error).__name__}: {error}"[:300]
    return results, problems


def _step_ms(device: torch.device) -> float:
    """The median time of a step of data-parallel training, in ms."""
    model = DistributedDataParallel(_model(1024, 8).to(device), bucket_cap_mb=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = _batch(0, device, 1024)
    taken = []
    for turn in range(_TIMED + 5):
        begin = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if turn >= 5:
            taken.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(taken)


def on_rank(kind: str, folder: str, name: str) -> None:
    """One rank: all programs on both backends, then the times."""
    device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    rank, theirs = int(os.environ["RANK"]), "nccl" if kind == "cuda" else "gloo"
    store, _, _ = next(iter(dist.rendezvous("env://", rank, int(os.environ["WORLD_SIZE"]))))
    notes = jobs.Notes(folder, name, rank)
    with life(theirs, device, store, 0):
        wanted, without = _run(device)
    notes.write(torch_problems=without)
    with life("mcr", device, store, 1):
        notes.write(mcr_backend=dist.get_backend())
        found, problems = _run(device)
    for title in found.keys() & wanted.keys():
        if difference := _same(found[title], wanted[title]):
            problems[title] = difference
    notes.write(ran=sorted(found), problems={key: text for key, text in problems.items() if key not in without})
    taken: dict[str, list[float]] = {theirs: [], "mcr": []}
    for turn in range(_TURNS if int(os.environ["WORLD_SIZE"]) == 1 else _TURNS_SHARED):
        for offset, backend in enumerate(taken if turn % 2 else reversed(taken)):
            with life(backend, device, store, 2 + 2 * turn + offset):
                taken[backend].append(_step_ms(device))
        notes.write(step_ms={backend: statistics.median(times) for backend, times in taken.items()}, turns=turn + 1)


def main() -> int:
    """Start the ranks; exit code 1 if a program failed on "mcr" that runs on torch's own backend."""
    given = jobs.parser(__doc__, backend=False).parse_args()
    name = f"training-{given.ranks}"
    args = (given.device, str(given.folder), name)
    problem = jobs.run(
        "gpu.training:on_rank", args, ranks=given.ranks, kind=given.device, limit=given.limit, log=given.folder / name
    )
    all_notes = jobs.read(given.folder, name, given.ranks)
    problems = {title: text for notes in all_notes for title, text in notes.get("problems", {}).items()}
    notes = all_notes[0]
    compared = [title for title in PROGRAMS if title not in notes.get("torch_problems", {})]
    equal = [title for title in compared if title in notes.get("ran", ()) and title not in problems]
    line = f"{len(equal)} of {len(compared)} programs equal torch's"
    line += "".join(f", {title} FAILED: {text}" for title, text in problems.items())
    line += "".join(f", {title} fails on torch's too" for title in notes.get("torch_problems", {}))
    if notes.get("step_ms"):
        (theirs, their_ms), (ours, our_ms) = notes["step_ms"].items()
        line += f"; a DDP step in ms: {theirs} {their_ms:.3f}, {ours} {our_ms:.3f}, ratio {our_ms / their_ms:.3f}"
    document = {**notes, "failed": bool(problems) or "ran" not in notes, "line": line}
    return jobs.finish(given.folder, name, document, problem)


if __name__ == "__main__":
    sys.exit(main())
