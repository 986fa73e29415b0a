# SPDX-License-Identifier: Apache-2.0
"""fully_shard (FSDP2) with a backend for each collective: one gathers weights, one reduces gradients.

>>> network = fully_shard(network, mesh=mesh)
>>> mcr_dl.fully_sharded.set_backends(network, all_gather="mpi", reduce_scatter="gloo")

torch waits only for the ``torch.distributed.Work`` of a custom collective: such a class of the program's own must call
torch's functions, as those here do, and not mcr_dl's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_api

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError
from mcr_dl.libraries import registry
from mcr_dl.runtime import handles

# torch deprecates the older names where it has these.
_all_gather = getattr(torch_dist, "all_gather_single", torch_dist.all_gather_into_tensor)
_reduce_scatter = getattr(torch_dist, "reduce_scatter_single", torch_dist.reduce_scatter_tensor)

__all__ = ["AllGather", "ReduceScatter", "set_backends"]


class _Communication:
    """The common part of both collectives: memory from torch's allocator, and the backend's name."""

    def __init__(self, backend: str | None = None) -> None:
        """``backend`` names one of the group's backends, or "auto"; None leaves the choice to the group."""
        self.backend = backend

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An uninitialized tensor for a call."""
        return torch.empty(*size, dtype=dtype, device=device)

    def named(self) -> AbstractContextManager[None]:
        """The context of a call by torch."""
        return nullcontext() if self.backend is None else registry.use(self.backend)

    def __repr__(self) -> str:
        return f"mcr_dl.fully_sharded.{type(self).__name__}(backend={self.backend!r})"


class AllGather(_Communication, _fsdp_api.AllGather):
    """For ``FSDPModule.set_custom_all_gather``: the named backend gathers the weights.

    The mesh's group must use torch's backend "mcr". Mirrors torch's DefaultAllGather.
    """

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: torch_dist.ProcessGroup,
        async_op: bool = False,
    ) -> torch_dist.Work | None:
        """Gather ``input_tensor`` (n) of every rank into ``output_tensor`` (ranks * n), in rank order."""
        with self.named():
            work: torch_dist.Work | None = _all_gather(output_tensor, input_tensor, group, async_op)
        return work


class ReduceScatter(_Communication, _fsdp_api.ReduceScatter):
    """For ``FSDPModule.set_custom_reduce_scatter``: the named backend reduces the gradients.

    The mesh's group must use torch's backend "mcr". Mirrors torch's DefaultReduceScatter.
    """

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: torch_dist.ProcessGroup,
        op: torch_dist.ReduceOp | torch_dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> torch_dist.Work | None:
        """Reduce ``input_tensor`` (ranks * n) over all ranks; this rank's part is ``output_tensor`` (n)."""
        with self.named():
            work: torch_dist.Work | None = _reduce_scatter(output_tensor, input_tensor, op, group, async_op)
        return work


def set_backends(module: nn.Module, *, all_gather: str | None = None, reduce_scatter: str | None = None) -> None:
    """Name the backends of the collectives of a sharded module and of every sharded module in it: of all, or of none.

    Arguments:
        module: a module to which ``fully_shard`` was applied, or which contains such modules.
        all_gather: the backend that gathers weights; None leaves the choice to the group.
        reduce_scatter: the backend that reduces gradients; None leaves the choice to the group.

    Raises:
        InvalidTypeError: the module contains no sharded module, or a backend is named and a mesh's group does not use
            torch's backend "mcr".
        InvalidArgumentError: a name is unknown, or a sharded module has parameters on several meshes, for which torch
            takes no custom collective.
    """
    sharded = [part for part in module.modules() if isinstance(part, FSDPModule)]
    if not sharded:
        message = f"module: expected one that fully_shard() has been applied to, got {type(module).__name__}"
        raise InvalidTypeError(message)
    named = [registry.nameable(backend) for backend in (all_gather, reduce_scatter) if backend is not None]
    for part in sharded:
        _check(part, named)
    for part in sharded:
        part.set_custom_all_gather(AllGather(all_gather))
        part.set_custom_reduce_scatter(ReduceScatter(reduce_scatter))


def _check(part: FSDPModule, named: list[str]) -> None:
    """Raise if torch or the group of the part's mesh cannot take backends."""
    state: Any = part._get_fsdp_state()
    found = getattr(state, "_fsdp_param_groups", None)  # an older torch has one at most
    groups = [state._fsdp_param_group] if found is None else found
    if len(groups) > 1:
        message = f"module: expected parts whose parameters are on one mesh, got one with {len(groups)} groups of them"
        raise InvalidArgumentError(message)
    for each in groups if named else []:
        group = None if each is None else getattr(each.mesh_info, "shard_process_group", None)
        if group is not None and _C.group_of(group) is None:
            expected = f"expected a mesh whose group uses the backend 'mcr', to name {' and '.join(named)}"
            message = f"module: {expected}, got {handles.described(group)}"
            raise InvalidTypeError(message)
