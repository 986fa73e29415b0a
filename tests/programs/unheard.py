# SPDX-License-Identifier: Apache-2.0
"""One rank ends with a call that the others do not make, and stderr cannot be written: unheard.py BACKEND."""

from __future__ import annotations

import sys

import torch

import mcr_dl as dist


class Closed:
    """A stream as a pipe that no process reads."""

    def write(self, text: str) -> int:
        """Fail."""
        raise BrokenPipeError(len(text))

    def flush(self) -> None:
        """Do nothing, as there is nothing to write."""


dist.init_process_group(sys.argv[1], timeout=60)
x = torch.ones(10)
dist.all_reduce(x)
work = dist.all_reduce(x, async_op=True) if dist.get_rank() == 1 else None
sys.stderr = Closed()  # type: ignore[assignment]
