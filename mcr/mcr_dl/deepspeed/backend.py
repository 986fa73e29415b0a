# SPDX-License-Identifier: Apache-2.0
"""The object behind ``deepspeed.comm``: DeepSpeed's interface, mcr_dl's calls.

Import it only where DeepSpeed is installed. It follows ``deepspeed.comm.torch.TorchBackend``, its base class, method by
method; only symmetric memory stays torch's own. A method without a docstring is torch.distributed's function of that
name, most of them mcr_dl's own, which take DeepSpeed's arguments. DeepSpeed's switches (``backward_comm_off`` and
others) turn off what they turn off in TorchBackend.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
import torch.distributed as torch_dist
from deepspeed.accelerator import get_accelerator
from deepspeed.comm.backend import Backend
from deepspeed.comm.reduce_op import ReduceOp
from deepspeed.comm.torch import Noop, TorchBackend

from mcr_dl import _C
from mcr_dl.base import launcher
from mcr_dl.base.arguments import whole
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.groups import barriers, batches, default_group, making, objects, queries, torch_groups
from mcr_dl.libraries.c10d import OURS
from mcr_dl.runtime import handles, rendezvous, state
from mcr_dl_autoload import _deepspeed

_switches = import_module(TorchBackend.__module__)  # its attribute `torch` in deepspeed.comm is torch itself
_REDUCTIONS = {
    getattr(ReduceOp, name): getattr(torch_dist.ReduceOp, name)
    for name in ("SUM", "PRODUCT", "AVG", "MIN", "MAX", "BAND", "BOR", "BXOR")
}
_SUM = torch_dist.ReduceOp.SUM
Tensors = Sequence[torch.Tensor]


def _own_device() -> torch.device | None:
    if get_accelerator().device_name() != "cuda":
        return None
    index = launcher.number(os.environ, "LOCAL_RANK", -1)
    if index < 0:
        raise InvalidArgumentError("LOCAL_RANK: expected the number of this rank's GPU, got none")
    return torch.device("cuda", index)


class McrBackend(TorchBackend):  # type: ignore[misc]
    """DeepSpeed's communication on mcr_dl.

    Args:
        backend: the argument of ``init_distributed``; the backends that do the work are those of ``install``.
        timeout, init_method, rank, world_size: as for ``mcr_dl.init_process_group``, which is called unless it has run.
        name: the backend's name in DeepSpeed's texts.

    Raises the errors of ``mcr_dl.init_process_group`` and its operations.
    """

    def __init__(
        self,
        backend: str | None = "mcr",
        timeout: timedelta | None = None,
        init_method: str | None = None,
        rank: int = -1,
        world_size: int = -1,
        name: str = "mcr",
    ) -> None:
        Backend.__init__(self, name=name)  # not TorchBackend's, which starts torch.distributed
        self.shm_comm_op = None
        self.has_all_reduce_coalesced = True
        self.has_coalescing_manager = True
        self.all_gather_function = self.get_all_gather_function()
        self.reduce_scatter_function = self.get_reduce_scatter_function()
        self.single_gpu_mode = True
        self.init_process_group(backend, timeout, init_method, rank, world_size)
        self.initialized = True

    def init_process_group(
        self, backend: str | None, timeout: timedelta | None, init_method: str | None, rank: int, world_size: int
    ) -> None:
        """Start the runtime if it is not running; DeepSpeed's engines then find LOCAL_RANK under any launcher."""
        del backend
        if not rendezvous.names_ranks(init_method):  # else the ranks of the host are known once they have met
            launcher.export_local_rank(whole("rank", rank))
        if not state.is_initialized():
            default_group.init_process_group(
                _deepspeed.backends(),
                init_method=init_method,
                timeout=timeout,
                rank=rank,
                world_size=world_size,
                device_id=_own_device(),
            )
        os.environ.setdefault("LOCAL_RANK", str(queries.get_node_local_rank()))
        self.using_mpi = False  # True would put a barrier after every call that DeepSpeed logs

    # ---- capabilities

    @classmethod
    def get_all_gather_function(cls) -> Any:
        return _C.all_gather_into_tensor

    @classmethod
    def get_reduce_scatter_function(cls) -> Any:
        return _C.reduce_scatter_tensor

    def _reduce_op(self, op: Any) -> Any:
        """DeepSpeed's reduction as torch's; torch's own stay as they are."""
        if not isinstance(op, ReduceOp):
            return op
        if op not in _REDUCTIONS:
            message = f"op: expected one of {', '.join(each.name for each in _REDUCTIONS)}, got {op.name}"
            raise InvalidArgumentError(message)
        return _REDUCTIONS[op]

    # ---- collectives

    def all_reduce(self, tensor: torch.Tensor, op: Any = _SUM, group: Any = None, async_op: bool = False) -> Any:
        return _C.all_reduce(tensor, self._reduce_op(op), group, async_op)

    def inference_all_reduce(self, tensor: torch.Tensor, op: Any, group: Any = None) -> Any:
        """Blocking all_reduce; returns the tensor if this rank is alone, as TorchBackend does."""
        if queries.get_world_size(group) <= 1:
            return tensor
        return _C.all_reduce(tensor, self._reduce_op(op), group)

    def all_reduce_coalesced(
        self, tensors: Tensors, op: Any = _SUM, group: Any = None, async_op: bool = False
    ) -> batches.CoalescingManager | None:
        """all_reduce of several tensors that start together."""
        reduction = self._reduce_op(op)
        with batches.coalescing_manager(group, async_ops=async_op) as manager:
            for tensor in tensors:
                _C.all_reduce(tensor, reduction, group)
        return manager if async_op and not handles.not_a_member(group) else None

    def reduce(
        self, tensor: torch.Tensor, dst: int, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        if _switches.DS_COMM_REDUCE_OFF:
            return Noop()
        return _C.reduce(tensor, dst, self._reduce_op(op), group, async_op)

    def reduce_scatter(
        self, output: torch.Tensor, input_list: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        if _switches.DS_COMM_REDUCE_SCATTER_OFF:
            return Noop()
        return _C.reduce_scatter(output, input_list, self._reduce_op(op), group, async_op)

    def reduce_scatter_tensor(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        op: Any = ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        return _C.reduce_scatter_tensor(output_tensor, input_tensor, self._reduce_op(op), group, async_op)

    def broadcast(self, tensor: torch.Tensor, src: int, group: Any = None, async_op: bool = False) -> Any:
        if _switches.DS_COMM_BROADCAST_OFF:
            return Noop()
        return _C.broadcast(tensor, src, group, async_op)

    def all_gather(self, tensor_list: Any, tensor: torch.Tensor, group: Any = None, async_op: bool = False) -> Any:
        if _switches.DS_COMM_ALL_GATHER_OFF:
            return Noop()
        return _C.all_gather(tensor_list, tensor, group, async_op)

    all_gather_into_tensor = _C.all_gather_into_tensor

    def all_gather_base(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> Any:
        """all_gather_into_tensor under its old name."""
        if _switches.DS_COMM_ALL_GATHER_OFF:
            return Noop()
        return _C.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)

    def all_gather_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, group: Any = None, async_op: bool = False
    ) -> batches.CoalescingManager | None:
        """all_gather_into_tensor of several pairs that start together."""
        with batches.coalescing_manager(group, async_ops=async_op) as manager:
            for output, input in zip(output_tensors, input_tensors, strict=True):
                _C.all_gather_into_tensor(output, input, group)
        return manager if async_op and not handles.not_a_member(group) else None

    all_to_all_single = _C.all_to_all_single
    all_to_all = _C.all_to_all
    gather = _C.gather
    scatter = _C.scatter
    barrier = _C.barrier
    broadcast_object_list = staticmethod(objects.broadcast_object_list)
    all_gather_object = staticmethod(objects.all_gather_object)
    monitored_barrier = staticmethod(barriers.monitored_barrier)

    # ---- point-to-point

    send = _C.send
    recv = _C.recv
    isend = _C.isend
    irecv = _C.irecv

    def batch_isend_irecv(self, p2p_op_list: Sequence[Any]) -> list[_C.Work]:
        """Start DeepSpeed's P2POps together; returns their works."""
        return batches.batch_isend_irecv(
            [batches.P2POp(getattr(_C, op.op), op.tensor, op.peer, op.group, op.tag) for op in p2p_op_list]
        )

    # ---- groups

    get_rank = staticmethod(queries.get_rank)
    get_world_size = staticmethod(queries.get_world_size)
    get_backend = staticmethod(queries.get_backend)
    get_global_rank = staticmethod(queries.get_global_rank)
    is_initialized = staticmethod(state.is_initialized)
    new_group = staticmethod(making.new_group)
    get_world_group = staticmethod(torch_groups.world)
    destroy_process_group = staticmethod(default_group.destroy_process_group)

    def init_device_mesh(self, mesh_shape: tuple[int, ...], mesh_dim_names: tuple[str, ...]) -> Any:
        """torch's DeviceMesh, with groups of mcr_dl even if torch's default group belongs to another backend."""
        kind = get_accelerator().current_device_name().partition(":")[0]
        ours = torch_dist.group.WORLD is torch_groups.world()
        other: dict[str, Any] = {} if ours else {"backend_override": dict.fromkeys(mesh_dim_names, OURS)}
        return torch_dist.device_mesh.init_device_mesh(kind, mesh_shape, mesh_dim_names=mesh_dim_names, **other)
