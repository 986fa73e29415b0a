# SPDX-License-Identifier: Apache-2.0
"""Expected results of compressed calls: parts are encoded, decoded, combined in rank order (docs/compression.md)."""

from __future__ import annotations

import torch

from mcr_dl import _C
from mcr_dl.base import reductions
from mcr_dl.measure import _values
from mcr_dl.measure._layout import Segment


def _around(part: torch.Tensor, codec: str) -> torch.Tensor:
    return _C.decode(_C.encode(part, codec), part, codec)


def expected(
    segment: Segment, op: str, codec: str, dtype: torch.dtype, red: str | None, ranks: int, salt: int
) -> torch.Tensor:
    """A segment of an output, exact to the bit: all ranks decode the same bytes, and sums use the tensor's own type."""

    def sent(rank: int, start: int, length: int) -> torch.Tensor:
        part = torch.empty(length, dtype=dtype, device="cpu")
        _values.fill(part, _values.pattern(dtype, red, rank, ranks, salt), start)
        return _around(part, codec)

    source, start, length, _ = segment
    if source is not None or red is None:
        return sent(0 if source is None else source, start, length)
    if op != "all_reduce":
        return reductions.combined(red, [sent(rank, start, length) for rank in range(ranks)], ranks)
    share = -(-length // ranks)
    places = [(at, min(share, length - at)) for at in range(0, length, share)]
    sums = [reductions.combined(red, [sent(rank, *place) for rank in range(ranks)], ranks) for place in places]
    return torch.cat([_around(each, codec) for each in sums])
