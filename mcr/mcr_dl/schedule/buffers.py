# SPDX-License-Identifier: Apache-2.0
"""The buffers of a model, which each training step takes from the first rank, as DistributedDataParallel does."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from mcr_dl import _C


def broadcast(buffers: Iterable[torch.Tensor], group: _C.Group) -> None:
    """Give all ranks the buffers of the group's first rank, in one operation: collective over the group."""
    given = list(buffers)
    if not given:
        return
    with torch.no_grad():
        flat = torch.cat([each.contiguous().view(-1).view(torch.uint8) for each in given])
        _C.broadcast(flat, group.ranks[0], group)
        if group.rank() == 0:
            return
        place = 0
        for each in given:
            begin, place = place, place + each.numel() * each.element_size()
            # `clone`, because the part's address need not suit the type; `data`, because a graph may keep the buffer.
            each.data.copy_(flat[begin:place].clone().view(each.dtype).view(each.shape))
