# SPDX-License-Identifier: Apache-2.0
"""The entry point that ``import torch`` runs where MCR-DL is installed: torch.distributed then knows the backend "mcr",
and finds its ranks under mpiexec and srun too.

It is a separate package so that torch's import stays fast: mcr_dl is imported when the backend is used. DeepSpeed knows
the backend too, once it is imported.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Register the backend with torch.distributed and DeepSpeed (torch's entry point ``torch.backends``)."""
    import torch
    import torch.distributed as dist

    from mcr_dl_autoload import _deepspeed, _rendezvous

    _deepspeed.watch()
    if not dist.is_available():
        return
    _rendezvous.extend()
    if not hasattr(dist.Backend, "MCR"):
        # torch's code asks for the current device of each type that a backend serves.
        devices = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]  # type: ignore[no-untyped-call]
        dist.Backend.register_backend("mcr", _create, extended_api=True, devices=devices)


def _create(options: Any, backend_options: Any) -> Any:
    from mcr_dl.groups import torch_groups

    return torch_groups.create(options, backend_options)
