# SPDX-License-Identifier: Apache-2.0
"""Works as futures."""

from __future__ import annotations

import torch

from mcr_dl import _C


def future_of(work: _C.Work) -> torch.futures.Future[list[torch.Tensor]]:
    """A future that gets the work's result tensors, or its error (also called by the C++ core).

    The future of a work on a device's stream has its value at once; its reader makes its stream wait, as with torch's.
    """
    place = work._stream()
    if place is not None:
        return _of_stream(work, *place)
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

    def complete() -> None:
        error = work.exception()
        if error is None:
            return future.set_result(work.result())
        if not isinstance(error, Exception):  # a user's function may raise SystemExit, which torch's futures reject
            raised = RuntimeError(f"{type(error).__name__}: {error}")
            raised.__cause__ = error
            error = raised
        return future.set_exception(error)  # type: ignore[arg-type]  # torch's annotation is that of results

    work._on_done(complete, future)
    return future


def _of_stream(work: _C.Work, index: int, stream_id: int) -> torch.futures.Future[list[torch.Tensor]]:
    device = torch.device("cuda", index)
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=[device])
    kind = torch.cuda.current_stream(device).device_type
    stream = torch.cuda.Stream(stream_id=stream_id, device_index=index, device_type=kind)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        future.set_result(work.result())
    return future
