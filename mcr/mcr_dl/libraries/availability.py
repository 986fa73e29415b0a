# SPDX-License-Identifier: Apache-2.0
"""Whether this process can use a backend, by torch.distributed's functions."""

from __future__ import annotations

import contextlib
from typing import Any

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError
from mcr_dl.libraries import registry


def is_backend_available(backend: str) -> bool:
    """Whether this process can start a backend of mcr_dl or torch; True for ``"mcr"`` and ``"auto"``.

    Loads the library, as ``available_backends`` does, which also gives the reasons.
    Source: torch.distributed.is_backend_available.
    """
    given: Any = backend
    if not isinstance(given, str):
        message = f"backend: expected a name, got {given!r}"
        raise InvalidTypeError(message)
    name = given.strip().lower()
    device, colon, rest = name.partition(":")
    if colon and device in ("cpu", "cuda"):
        name = rest  # as init_process_group takes it
    if name in ("mcr", "auto"):
        return True
    with contextlib.suppress(InvalidArgumentError):
        if parts := _C.CandidateName(name).parts:  # as of "stripe(gloo,mpi)"
            return all(map(is_backend_available, parts))
    if name not in registry.known_names():
        return torch_dist.is_backend_available(name)
    return not registry.condition(name, 1, named=True).problem


def is_gloo_available() -> bool:
    """Whether this process can use gloo (torch.distributed.is_gloo_available)."""
    return is_backend_available("gloo")


def is_mpi_available() -> bool:
    """Whether this process can use an MPI library; torch need not be built with MPI
    (torch.distributed.is_mpi_available)."""
    return is_backend_available("mpi")


def is_nccl_available() -> bool:
    """Whether this process can use NCCL and a CUDA device (torch.distributed.is_nccl_available)."""
    return is_backend_available("nccl")
