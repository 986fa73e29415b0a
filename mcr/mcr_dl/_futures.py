# SPDX-License-Identifier: Apache-2.0
"""Works as futures."""

from __future__ import annotations

import torch

from mcr_dl import _C


def future_of(work: _C.Work) -> torch.futures.Future[list[torch.Tensor]]:
    """A future that gets the work's result tensors, or its error (also called by the C++ core)."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

    def complete() -> None:
        error = work.exception()
        if error is None:
            future.set_result(work.result())
        else:
            future.set_exception(error)  # type: ignore[arg-type]  # torch's annotation is that of results

    work._on_done(complete)
    return future
