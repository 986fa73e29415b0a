# SPDX-License-Identifier: Apache-2.0
"""The ranks of compress.py."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

import torch

import mcr_dl
import script
from mcr_dl import passes
from mcr_dl.measure.ranks import bind

_ROUNDS = 7
_SECONDS_PER_POINT = 6.0


def gradients(count: int) -> torch.Tensor:
    """Normal values whose scale changes along the tensor, as between the layers of a model."""
    generator = torch.Generator().manual_seed(1)
    scales = torch.exp(torch.randn(-(-count // 4096), generator=generator)).repeat_interleave(4096)[:count]
    return torch.randn(count, generator=generator) * scales * 1e-2


def throughput(codec: str, count: int) -> dict[str, float]:
    """Seconds per byte of float32 to encode and to decode, the encoded size per byte, and the errors."""
    values = gradients(count)
    encoded = passes.encode(values, codec)
    decoded = passes.decode(encoded, values, codec)
    taken: dict[str, list[float]] = {"encode": [], "decode": []}
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        passes.encode(values, codec)
        middle = time.perf_counter()
        passes.decode(encoded, values, codec)
        taken["encode"].append(middle - start)
        taken["decode"].append(time.perf_counter() - middle)
    loss = (decoded - values).double()
    return {
        **{way: statistics.median(times) / (4 * count) for way, times in taken.items()},
        "ratio": encoded.numel() / (4 * count),
        "relative error": float(loss.norm() / values.double().norm()),
        "largest error": float(loss.abs().max()),
    }


def _once(tensor: torch.Tensor, codec: str, clock: torch.Tensor) -> float:
    """Seconds of one call on the slowest rank."""
    mcr_dl.barrier()
    start = time.perf_counter()
    mcr_dl.all_reduce(tensor, codec=codec)
    clock[0] = time.perf_counter() - start
    mcr_dl.all_reduce(clock, mcr_dl.ReduceOp.MAX)
    return float(clock[0])


def _point(nbytes: int, codecs: list[str]) -> dict[str, Any]:
    """Median times of interleaved calls, and the median over rounds of each time relative to no codec."""
    values, clock, order = gradients(nbytes // 4), torch.zeros(1, dtype=torch.float64), random.Random(1)
    taken: dict[str, list[float]] = {codec: [] for codec in codecs}
    begun = time.perf_counter()
    for number in range(_ROUNDS + 1):
        for codec in order.sample(codecs, len(codecs)):
            elapsed = _once(values.clone(), codec, clock)
            if number > 0:  # the first round allocates the memory
                taken[codec].append(elapsed)
        clock[0] = time.perf_counter() - begun
        mcr_dl.all_reduce(clock, mcr_dl.ReduceOp.MAX)
        if number > 1 and float(clock[0]) > _SECONDS_PER_POINT:
            break
    return {
        codec: {
            "us": statistics.median(times) * 1e6,
            "ratio": statistics.median(mine / plain for mine, plain in zip(times, taken["none"], strict=True)),
        }
        for codec, times in taken.items()
    }


def measure(codecs: list[str], sizes: list[int], backend: str, output: str) -> None:
    """The measurement on each rank."""
    mcr_dl.init_process_group([backend], passes=["compress"])
    bind()
    found = {str(nbytes): _point(nbytes, ["none", *codecs]) for nbytes in sizes}
    alone = {codec: throughput(codec, 1 << 20) for codec in codecs} if mcr_dl.get_rank() == 0 else {}
    mcr_dl.barrier()
    script.write_samples(output, {"all_reduce": found, "codecs": alone})
    mcr_dl.finalize()
