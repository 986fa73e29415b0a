# SPDX-License-Identifier: Apache-2.0
"""Checks of memory and graphs; see checks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import mcr_dl
from gpu.checks import LARGE, LATE_MS, NotRun, Setting, check, rank_value, same_parts

_HELD_MS = 5.0
_RELEASED_SECONDS = 2.0

# ---- memory


@check
def memory_is_kept(at: Setting) -> dict[str, Any]:
    """The memory of a tensor dropped right after an asynchronous call is not reused before the call has read it."""
    blocker, sink = at.full(LARGE, 1.0), at.full(LARGE * at.ranks, 0.0)
    count, reused, seen = 1 << 20, 0, 0
    for turn in range(40):
        at.device.sleep(_HELD_MS)  # the host finishes this turn while the call still runs
        held = at.gather(sink, blocker, async_op=True)  # delays the next call on the lane
        source, target = at.full(count, at.rank + 1.0 + turn), at.full(count * at.ranks, -1.0)
        place = source.data_ptr()
        work = at.gather(target, source, async_op=True)
        del source
        thieves = [at.full(count, -7.0) for _ in range(3)]  # allocated at once from free memory
        if at.device.real and not work.is_completed():
            assert place not in [thief.data_ptr() for thief in thieves], "memory of a running call was given away"
            seen += 1
        if turn % 2:
            work.wait()
        del work  # every other time without a wait
        mcr_dl.synchronize()
        at.device.synchronize()
        same_parts(at, target, rank_value(more=turn), "output of a dropped input")
        held.wait()
        reused += at.full(count, 0.0).data_ptr() == place
        del thieves
    assert seen or not at.device.real, "no call was still running when its input was dropped: nothing is proved"
    return {"reused_later": reused, "turns_while_running": seen}


@check
def memory_does_not_grow(at: Setting) -> dict[str, Any]:
    """Neither blocking nor asynchronous calls leak memory, waited for or not. Each has its own tensor."""
    at.need_real()
    x = at.full(1 << 20, 1.0)

    def calls(number: int) -> None:
        for turn in range(number):
            mcr_dl.all_reduce(at.backend, x.clone(), op=mcr_dl.ReduceOp.MAX)
            work = mcr_dl.all_reduce(at.backend, x.clone(), op=mcr_dl.ReduceOp.MAX, async_op=True)
            if turn % 2:
                work.wait()
        at.device.synchronize()

    calls(20)
    mcr_dl.synchronize()
    before = torch.cuda.memory_allocated()
    calls(200)
    mcr_dl.synchronize()
    end = time.monotonic() + _RELEASED_SECONDS  # calls without a wait release their memory a little later
    while (grown := torch.cuda.memory_allocated() - before) > 4 * x.nbytes and time.monotonic() < end:
        time.sleep(1e-3)
    assert grown <= 4 * x.nbytes, f"{grown} bytes more are allocated after 400 calls"
    return {"grown_bytes": grown}


# ---- graphs


def _captured(at: Setting, calls: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    """The calls turn x into y: twice the gathered values. Replayed with other inputs each time."""
    x, y = at.full(4096, 0.0), at.full(4096 * at.ranks, 0.0)
    with at.device.use(at.device.stream()):  # graphs need their work to have run before, on a side stream
        calls(x, y)
    at.device.synchronize()
    replay = at.device.capture(lambda: calls(x, y))
    for turn in range(1, 6):
        x.fill_((at.rank + 1.0) * turn)
        replay()
        same_parts(at, y, rank_value(times=2.0 * turn), f"replay {turn}")


@check
def graph_blocking(at: Setting) -> None:
    """Blocking calls are captured, one and several."""

    def one(x: torch.Tensor, y: torch.Tensor) -> None:
        at.gather(y, x)
        y.mul_(2)

    def several(x: torch.Tensor, y: torch.Tensor) -> None:
        one(x, y)
        mcr_dl.broadcast(y, 0, backend=at.backend)
        mcr_dl.all_reduce(at.backend, y, op=mcr_dl.ReduceOp.MAX)

    if at.backend != "nccl":
        raise NotRun("host libraries cannot be captured")
    _captured(at, one)
    _captured(at, several)


@check
def graph_asynchronous(at: Setting) -> None:
    """Asynchronous calls are captured with their waits, one and several pending at once."""

    def one(x: torch.Tensor, y: torch.Tensor) -> None:
        work = at.gather(y, x, async_op=True)
        work.wait()
        y.mul_(2)

    def several(x: torch.Tensor, y: torch.Tensor) -> None:
        parts = [torch.empty_like(y) for _ in range(4)]
        works = [at.gather(part, x, async_op=True) for part in parts]
        for work in works:
            work.wait()
        y.copy_((parts[0] + parts[1] + parts[2] + parts[3]) / 2)

    if at.backend != "nccl":
        raise NotRun("host libraries cannot be captured")
    _captured(at, one)
    _captured(at, several)
    source, target = at.full(17, at.rank + 1.0), at.full(17 * at.ranks, -1.0)  # and calls outside graphs still work
    at.gather(target, source, async_op=True).wait()
    same_parts(at, target, lambda rank: rank + 1.0, "all_gather after a capture")


@check
def graph_during_another_call(at: Setting) -> dict[str, Any]:
    """Earlier calls, which the progress thread still polls, do not disturb a capture."""
    if at.backend != "nccl":
        raise NotRun("host libraries cannot be captured")
    source, target = at.full(100_003, 0.0), at.full(100_003 * at.ranks, 0.0)
    x, y = at.full(4096, 0.0), at.full(4096 * at.ranks, 0.0)
    at.gather(target, source, async_op=True).wait()  # first uses block the host
    at.gather(y, x)
    at.device.synchronize()
    turns, concurrent = 10, 0
    for turn in range(turns):
        source.fill_(at.rank + 1.0 + turn)
        target.fill_(-1.0)
        at.device.sleep(LATE_MS / 2)
        work = at.gather(target, source, async_op=True)
        replay = at.device.capture_concurrently(lambda: at.gather(y, x))
        concurrent += not work.is_completed()
        x.fill_(at.rank + 1.0 - turn)
        replay()
        same_parts(at, y, rank_value(more=-turn), "a graph during another call")
        assert work.wait() is True
        same_parts(at, target, rank_value(more=turn), "a call from before a capture")
    if at.device.real:  # the host may be blocked now and then, but not mostly
        assert concurrent * 2 > turns, f"in {turns - concurrent} of {turns} turns the call had ended before the capture"
    return {"concurrent": concurrent}
