# SPDX-License-Identifier: Apache-2.0
"""The entry points of the first MCR-DL (OSU-Nowlab/MCR-DL v0.1), so that programs written for it start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as torch_dist

from mcr_dl.base import launcher
from mcr_dl.base.arguments import whole
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError, NotInitializedError
from mcr_dl.groups import queries
from mcr_dl.runtime import rendezvous, state

_ENGINES = ("mcr_dl", "torch")
_PORT = 29500  # torch's own
_engine = "mcr_dl"


def init_distributed(
    dist_backend: str | Iterable[str] | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = _PORT,
    verbose: bool = True,
    timeout: timedelta = state.DEFAULT_TIMEOUT,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any | None = None,
    rank: int = -1,
    world_size: int = -1,
    use_mcr_dl: bool = False,
) -> None:
    """Start mcr_dl (``use_mcr_dl=True``) or torch.distributed, unless it runs already.

    Args:
        dist_backend: a backend's name; for mcr_dl also several, or None as in init_process_group.
        auto_mpi_discovery: take rank and size from any launcher (torchrun, mpiexec, srun), and leave ``LOCAL_RANK`` in
            the environment for the program; False: from torchrun's variables or the arguments alone.
        distributed_port: where the ranks of one host meet for torch.distributed if the launcher gives no meeting point.
        verbose: print on rank 0 what was started.
        timeout: how long an operation may take.
        init_method: a torch rendezvous URL; by default the launcher's environment.
        dist_init_required: False: it must already run.
        config: for mcr_dl: the argument of ``mcr_dl.configure``, such as ``{"comms_logger": {"enabled": True}}``.
        rank: this process's rank, for programs without a launcher; give world_size too.
        world_size: the number of ranks, for programs without a launcher; give rank too.
        use_mcr_dl: which of the two to start; ``get_distributed_engine`` returns it from now on.

    Raises:
        NotInitializedError: ``dist_init_required=False``, and it does not run.
        InvalidArgumentError: an argument is wrong, or rank and size are not known.
        InvalidTypeError: rank or size is no whole number.
        BackendUnavailableError: a backend cannot be used here; the text says why.

    Source: init_distributed of OSU-Nowlab/MCR-DL, and of DeepSpeed before it.
    """
    global _engine
    rank, world_size = whole("rank", rank), whole("world_size", world_size)
    engine = "mcr_dl" if use_mcr_dl else "torch"
    if config is not None and not use_mcr_dl:
        message = "config: expected None where torch.distributed does the work, whose calls mcr_dl does not log"
        raise InvalidArgumentError(message)
    module = _module(engine)
    if not module.is_initialized():
        if dist_init_required is False:
            message = f"dist_init_required=False: expected {module.__name__} to run already, but it does not"
            raise NotInitializedError(message)
        in_url = rendezvous.names_ranks(init_method)  # then the environment has no rank, or another job's
        if auto_mpi_discovery and not in_url:
            launcher.export_local_rank(rank)
        elif not auto_mpi_discovery and rank < 0 and not in_url and not {"RANK", "WORLD_SIZE"} <= set(os.environ):
            message = "auto_mpi_discovery=False: expected RANK and WORLD_SIZE, or rank and world_size, got none"
            raise InvalidArgumentError(message)
        if engine == "torch" and auto_mpi_discovery and rank < 0 and not in_url:
            _tell_torch(distributed_port, meet=init_method is None)
        module.init_process_group(
            dist_backend, init_method=init_method, timeout=timeout, rank=rank, world_size=world_size
        )
        if use_mcr_dl:
            os.environ.setdefault("LOCAL_RANK", str(queries.get_node_local_rank()))
        if verbose and module.get_rank() == 0:
            print(f"{module.__name__} runs on {module.get_backend()}, {module.get_world_size()} ranks", flush=True)
    if config is not None:
        module.configure(config)
    _engine = engine


def init_processes(dist_engine: str, dist_backend: str | Iterable[str] | None = None) -> None:
    """Start an engine on a backend, each rank on a GPU of its own if there are any.

    Args:
        dist_engine: ``"mcr_dl"`` or ``"torch"``.
        dist_backend: as for ``init_distributed``.

    Raises InvalidArgumentError for another engine, and the errors of ``init_distributed``.
    Source: init_processes of OSU-Nowlab/MCR-DL.
    """
    if dist_engine not in _ENGINES:
        kind = InvalidArgumentError if isinstance(dist_engine, str) else InvalidTypeError
        message = f"dist_engine: expected one of {', '.join(_ENGINES)}, got {dist_engine!r}"
        raise kind(message)
    local_rank = launcher.detect().local_rank
    if torch.cuda.is_available() and local_rank >= 0:
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    init_distributed(dist_backend, use_mcr_dl=dist_engine == "mcr_dl")


def get_distributed_engine() -> ModuleType:
    """The module that communicates: mcr_dl, or torch.distributed if init_distributed or init_processes started it.

    Source: get_distributed_engine of OSU-Nowlab/MCR-DL.
    """
    return _module(_engine)


def _module(engine: str) -> ModuleType:
    return torch_dist if engine == "torch" else sys.modules[__name__.partition(".")[0]]


def _tell_torch(port: int, meet: bool) -> None:
    """Copy the launcher's values to the names that torch.distributed reads; ``meet``: also the ranks' meeting point."""
    found = launcher.detect()
    facts: dict[str, int | str] = {"RANK": found.rank, "WORLD_SIZE": found.size}
    if meet and "MASTER_ADDR" not in os.environ:
        if launcher.local_size() != found.size:
            message = (
                f"MASTER_ADDR: expected rank 0's address, as the {found.size} ranks are on several hosts, got none"
            )
            raise InvalidArgumentError(message)
        facts["MASTER_ADDR"] = "127.0.0.1"
    if meet:
        facts["MASTER_PORT"] = port
    for name, value in facts.items():
        os.environ.setdefault(name, str(value))
