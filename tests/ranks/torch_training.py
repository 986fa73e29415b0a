# SPDX-License-Identifier: Apache-2.0
"""Programs for torch.distributed, run once on gloo and once on "mcr" by the same ranks, with equal results."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import mcr_dl
from mcr_dl.base import launcher
from mcr_dl.testing.lives import forget_groups
from ranks import session

Results = dict[str, torch.Tensor]

TIMEOUT = timedelta(seconds=120)
# For float64 results on more than two ranks, where libraries add in different orders; a step's error is about 1e-16.
TOLERANCE = 1e-11

_store: dist.Store | None = None
_lives = 0


@contextmanager
def life(backend: str | None, **options: Any) -> Iterator[None]:
    """torch's default process group on this backend, from start to end; all ranks leave together."""
    global _store, _lives
    session.stop()
    launch = launcher.detect()
    if _store is None:  # kept as long as the process: other ranks still read rank 0's
        _store, _, _ = next(iter(dist.rendezvous("env://", launch.rank, launch.size, timeout=TIMEOUT)))
    _lives += 1
    store = dist.PrefixStore(f"life {_lives}", _store)
    dist.init_process_group(backend, store=store, rank=launch.rank, world_size=launch.size, timeout=TIMEOUT, **options)
    try:
        yield
        dist.barrier()
    finally:
        forget_groups()
        dist.destroy_process_group()


def compare(case: str, legs: tuple[str, ...], exact: bool) -> dict[str, float]:
    """Run ``module.function`` on each of the backends; results are equal, bit by bit if `exact`. Seconds by backend.

    The first backend is the reference; "mcr/gloo" is mcr_dl with gloo underneath. A case gets the backend's name and
    returns named tensors.
    """
    module, _, name = case.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    results: dict[str, Results] = {}
    seconds = {}
    for leg in legs:
        backend, _, library = leg.partition("/")
        with life(backend, **({"pg_options": mcr_dl.Options(backends=[library])} if library else {})):
            assert dist.get_backend() == backend
            torch.manual_seed(0)
            begin = time.perf_counter()
            results[leg] = function(backend)
            seconds[leg] = time.perf_counter() - begin
    for leg in legs[1:]:
        same(results[leg], results[legs[0]], exact)
    return seconds


def same(ours: Results, theirs: Results, exact: bool) -> None:
    """Check equal names, types, shapes and values."""
    assert theirs, "a case without results shows nothing"
    assert list(ours) == list(theirs)
    for name, expected in theirs.items():
        limit = 0.0 if exact else TOLERANCE
        assert exact or expected.dtype != torch.float32, f"{name}: sums of three or more ranks need float64"
        torch.testing.assert_close(
            ours[name], expected, rtol=limit, atol=limit, msg=lambda text, name=name: f"{name}: {text}"
        )


# ---- common parts of the cases


def dtype() -> torch.dtype:
    """float32 for two ranks, whose sums do not depend on the order; float64 for more."""
    return torch.float32 if dist.get_world_size() == 2 else torch.float64


class Block(nn.Module):
    """A small network with a normalization, twelve inputs, `outputs` outputs and an optional layer."""

    def __init__(self, outputs: int = 4, unused: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(12, 18)
        self.norm = nn.LayerNorm(18)
        self.second = nn.Linear(18, outputs)
        self.side = nn.Linear(18, outputs) if unused else None

    def forward(self, x: torch.Tensor, side: bool = False) -> torch.Tensor:
        """Shape (batch, 12) to (batch, outputs)."""
        hidden = self.norm(torch.nn.functional.gelu(self.first(x)))
        y: torch.Tensor = self.second(hidden)
        return y if self.side is None or not side else y + self.side(hidden)


def block(**options: Any) -> Block:
    """An equal network on every rank and in every life."""
    torch.manual_seed(7)
    return Block(**options).to(dtype())


def wide() -> nn.Module:
    """A network of several megabytes, enough for several DDP buckets."""
    torch.manual_seed(7)
    layers = (nn.Linear(12, 520), nn.Tanh(), nn.Linear(520, 520), nn.Tanh(), nn.Linear(520, 520), nn.Linear(520, 4))
    return nn.Sequential(*layers).to(dtype())


def batch(step: int, rank: int | None = None, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's inputs (size, 12) and targets (size, 4) of a step."""
    source = torch.Generator().manual_seed(1000 * step + (dist.get_rank() if rank is None else rank))
    kind = dtype()
    return torch.randn(size, 12, generator=source, dtype=kind), torch.randn(size, 4, generator=source, dtype=kind)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean squared error."""
    return torch.nn.functional.mse_loss(output, target)


def weights(module: nn.Module) -> Results:
    """Copies of parameters and buffers by name."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
