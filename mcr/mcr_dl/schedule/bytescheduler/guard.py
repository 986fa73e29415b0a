# SPDX-License-Identifier: Apache-2.0
"""A few bytes of every step, in an all_reduce (MAX): which parameters are in use, and a check of what was issued.

A rank sends the digest of what it has issued, and the digest's complement: the largest bytes of all ranks complement
each other only if all have sent the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from mcr_dl.base.errors import McrError
from mcr_dl.schedule.bytescheduler.issue import Partition

_NBYTES = 8  # of a digest and its complement


class Use:
    """The parameters that the backward passes of some rank have used since the last reduction.

    ``partition``: what is sent for it.
    """

    def __init__(self, count: int) -> None:
        """``count``: of all parameters."""
        self.partition = Partition("the use of parameters", count + _NBYTES)
        self._earlier = bytearray(count)  # used here in backward passes without a reduction, before this one
        self._flags = torch.zeros(count, dtype=torch.uint8, device="cpu")  # these and this one; then on any rank
        self._issued: int | None = None

    def add(self, index: int) -> None:
        """A backward pass without a reduction has used this parameter here."""
        self._earlier[index] = 1

    def begin(self, digest: int) -> None:
        """A backward pass that reduces begins; ``digest``: of what this rank has issued in all earlier ones.

        Raises McrError, on all ranks, if they had issued different operations before the last one.
        """
        if self._issued is not None and bytes(self._flags[-_NBYTES:].tolist()) != _sent(self._issued):
            message = (
                "ByteScheduler: the ranks have issued different operations: expected one order on all ranks; the "
                "gradients of the last steps may be wrong; end the job, and continue from a checkpoint"
            )
            raise McrError(message)
        self._issued = digest

    def end(self, fresh: Iterable[bool]) -> torch.Tensor:
        """The backward pass has ended, which has used the parameters that are fresh: what is to be sent."""
        used = [now or before for now, before in zip(fresh, self._earlier, strict=True)]
        self._earlier = bytearray(len(self._earlier))
        self._flags = torch.tensor([*used, *_sent(self._issued or 0)], dtype=torch.uint8, device="cpu")
        return self._flags

    def anywhere(self, index: int) -> bool:
        """Whether some rank has used this parameter; known when the partition is complete."""
        return bool(self._flags[index])


def _sent(digest: int) -> bytes:
    """The bytes of a digest of 32 bits."""
    own = digest.to_bytes(_NBYTES // 2, "big")
    return own + bytes(255 - each for each in own)
