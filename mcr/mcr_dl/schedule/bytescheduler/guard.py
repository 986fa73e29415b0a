# SPDX-License-Identifier: Apache-2.0
"""Finds ranks that have issued different operations, from a few bytes in an all_reduce (MAX) of every step.

A rank sends the digest of what it has issued, and the digest's complement: the largest bytes of all ranks complement
each other only if all have sent the same.
"""

from __future__ import annotations

import torch

from mcr_dl.base.errors import McrError

NBYTES = 8


def sent(digest: int) -> bytes:
    """The bytes of a digest of 32 bits."""
    own = digest.to_bytes(NBYTES // 2, "big")
    return own + bytes(255 - each for each in own)


def compare(largest: torch.Tensor, digest: int) -> None:
    """Raise an error, on all ranks, if the largest bytes are not those that this rank has sent."""
    if bytes(largest.tolist()) != sent(digest):
        message = (
            "ByteScheduler: the ranks have issued different operations: expected one order on all ranks; the gradients "
            "of the last steps may be wrong; end the job, and continue from a checkpoint"
        )
        raise McrError(message)
