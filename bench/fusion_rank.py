# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/fusion.py: batches of asynchronous calls on a plain group and on one that fuses."""

from __future__ import annotations

import time
from typing import Any

import torch

import mcr_dl
import script
from mcr_dl import _C
from mcr_dl.measure.ranks import bind
from mcr_dl.passes import Fuse
from mcr_dl.runtime import handles

BACKENDS = ("mpi", "gloo")
# Bytes of a tensor, and tensors of a batch.
SWEEP = [*((1 << power, 256) for power in range(7, 17)), (1 << 18, 64), (1 << 20, 16), (1 << 22, 8)]


def resnet50() -> list[int]:
    """Elements of the parameters of a ResNet-50, in the order in which the backward pass makes their gradients."""
    sizes = [64 * 3 * 7 * 7, 64, 64]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            out = 4 * width
            sizes += [width * channels, width, width, width * width * 9, width, width, out * width, out, out]
            if block == 0:
                sizes += [out * channels, out, out]
            channels = out
    return [*sizes, 1000 * 2048, 1000][::-1]


def gpt2_small() -> list[int]:
    """Elements of the parameters of a GPT-2 with 12 layers of 768 features, in the same order."""
    width = 768
    layer = [width, width, 3 * width * width, 3 * width, width * width, width]
    layer += [width, width, 4 * width * width, 4 * width, 4 * width * width, width]
    return [50257 * width, 1024 * width, *(layer * 12), width, width][::-1]


MODELS = {"ResNet-50": resnet50, "GPT-2 small": gpt2_small}


def _batch(tensors: list[torch.Tensor], group: Any, backend: str, pause: float = 0.0) -> float:
    """Microseconds from the first call to the end of the last, with ``pause`` seconds of computation between calls."""
    mcr_dl.barrier(group, backend="mpi")
    begin = time.perf_counter()
    works = []
    for number, tensor in enumerate(tensors, 1):
        works.append(mcr_dl.all_reduce(tensor, group=group, backend=backend, async_op=True))
        while time.perf_counter() - begin < number * pause:
            pass
    for work in works:
        work.wait()
    return (time.perf_counter() - begin) * 1e6


def _measure(sizes: list[int], groups: dict[str, Any], backend: str, budget: float) -> dict[str, list[float]]:
    """Interleaved batches; rank 0 decides when there are enough."""
    tensors = [torch.zeros(size) for size in sizes]
    times: dict[str, list[float]] = {name: [] for name in groups}
    more = torch.ones(1)
    begin = time.perf_counter()
    while more.item():
        rounds = len(next(iter(times.values())))
        # Alternate the order: the second one finds warmer caches.
        for name in list(groups) if rounds % 2 else reversed(groups):
            times[name].append(_batch(tensors, groups[name], backend))
        more.fill_(rounds < 6 or (rounds < 60 and time.perf_counter() - begin < budget))
        mcr_dl.broadcast(more, 0, backend="mpi")
    return {name: samples[1:] for name, samples in times.items()}


def _start() -> None:
    """Start the runtime, and bind this thread to a core; the progress threads, which calls start here, stay free."""
    mcr_dl.init_process_group(list(BACKENDS), tuning_table="none")
    for backend in BACKENDS:
        mcr_dl.all_reduce(torch.zeros(1), backend=backend, async_op=True).wait()
    bind()


def measure_pauses(options: dict[str, dict[str, int]], pause: float, output: str) -> None:
    """64 calls of 1 KiB with pauses, for each set of Fuse's options; rank 0 writes the samples."""
    _start()
    groups = _choices(options)
    tensors = [torch.zeros(256) for _ in range(64)]
    found: dict[str, dict[str, list[float]]] = {}
    for backend in BACKENDS:
        found[backend] = {name: [] for name in groups}
        for turn in range(21):
            for name in list(groups) if turn % 2 else reversed(groups):
                found[backend][name].append(_batch(tensors, groups[name], backend, pause))
    script.write_samples(output, found)
    mcr_dl.finalize()


def _choices(options: dict[str, dict[str, int]]) -> dict[str, Any]:
    """A plain group, and one for each way to fuse."""
    groups = {"plain": mcr_dl.new_group()}
    for name, values in options.items():
        groups[name] = mcr_dl.new_group()
        mcr_dl.set_passes([Fuse(**values)], groups[name])
    return groups


def _flushes(fuse: _C.Pass) -> int:
    assert isinstance(fuse, _C.FusePass), fuse.name
    return fuse.statistics()["flushes"]


def measure_all(
    options: dict[str, dict[str, int]], points: list[tuple[int, int]], budget: float, models: bool, output: str
) -> None:
    """All batches, for each set of Fuse's options; rank 0 writes the samples."""
    _start()
    groups = _choices(options)
    found: dict[str, Any] = {}
    for backend in BACKENDS:
        sweep = {size: _measure([size // 4] * count, groups, backend, budget) for size, count in points}
        found[backend] = {"sweep": [{"nbytes": size, "tensors": count, **sweep[size]} for size, count in points]}
        found[backend]["models"] = {
            name: {"tensors": len(sizes()), "nbytes": 4 * sum(sizes()), **_measure(sizes(), groups, backend, budget)}
            for name, sizes in (MODELS.items() if models else ())
        }
        if mcr_dl.get_rank() == 0:
            print(f"{backend}: done", flush=True)
    chains = {name: _C.passes(handles.core_group(group)) for name, group in groups.items()}
    found["flushes"] = {name: _flushes(chain[0]) for name, chain in chains.items() if chain}
    script.write_samples(output, found)
    mcr_dl.finalize()
