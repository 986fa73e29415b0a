# SPDX-License-Identifier: Apache-2.0
"""The parameters and buffers of a model, which all ranks take from the first one, as DistributedDataParallel does."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from mcr_dl import _C


def begin(module: nn.Module, group: _C.Group, backend: str) -> None:
    """Give all ranks the parameters and buffers of the group's first rank: collective over the group.

    ``backend``: the candidate, as for ``broadcast``.
    """
    for each in module.parameters():
        broadcast([each], group, backend)
    broadcast(module.buffers(), group, backend)


def broadcast(tensors: Iterable[torch.Tensor], group: _C.Group, backend: str) -> None:
    """Give all ranks the tensors of the group's first rank, in one operation: collective over the group.

    ``backend``: the candidate; "auto" for the group's choice.
    """
    given = list(tensors)
    if not given:
        return
    with torch.no_grad():
        flat = torch.cat([each.contiguous().view(-1).view(torch.uint8) for each in given])
        # Asynchronous, because a blocking call of MPI keeps this rank's other threads from issuing the partitions that
        # are left of the last step, for which another rank may wait before it comes here.
        _C.broadcast(flat, group.ranks[0], group, True, backend=backend).wait()
        if group.rank() == 0:
            return
        place = 0
        for each in given:
            begin, place = place, place + each.numel() * each.element_size()
            # `clone`, because the part's address need not suit the type; `data`, because a graph may keep the tensor.
            each.data.copy_(flat[begin:place].clone().view(each.dtype).view(each.shape))
