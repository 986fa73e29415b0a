# SPDX-License-Identifier: Apache-2.0
"""Values and tensors of a call after the action of a pass: as the pass got them, and kept no longer than it needs."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import mcr_dl
from mcr_dl import _C, InvalidArgumentError, InvalidTypeError
from mcr_dl.passes import PassedCall, known_codecs, register_codec
from mcr_dl.testing.expect import expect
from ranks import session
from ranks.codec_faults import Broken
from ranks.passes import Handler, chain, handler

_FACTS = ("op", "backend", "dtype", "reduction", "root", "tag", "vectored", "nbytes", "input_counts", "output_counts")
_COUNT = 16_000  # elements: memory that the allocator soon gives to others

held: list[PassedCall] = []
looked: list[tuple[str, list[Any]]] = []


def _facts(call: PassedCall) -> dict[str, Any]:
    facts = {name: getattr(call, name) for name in _FACTS}
    for name in ("input", "output"):
        view = getattr(call, name)
        facts[name] = None if view is None else (view.data_ptr(), view.numel(), view.dtype)
    return facts


def _finish(work: Any) -> None:
    if work is not None:
        work.wait()


def _hold(call: PassedCall) -> Any:
    held.append(call)
    return call.hold()


def keeps_values(backend: str) -> None:
    """Though the rest of the chain, and what replaces a library's missing reductions, may change the call."""
    seen: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def handle(call: PassedCall) -> Any:
        before = _facts(call)
        short = torch.zeros(call.output.numel(), dtype=torch.bfloat16)
        if call.async_op and call.op == "all_gather":
            result = call.hold()
            seen.append((before, _facts(call)))
            call.proceed()
        elif call.op == "broadcast":
            result = call.proceed(output=short, backend="gloo")
        else:
            result = call.proceed()
        seen.append((before, _facts(call)))
        return result

    session.start()
    size = mcr_dl.get_world_size()
    options: list[dict[str, Any]] = [
        {"backend": name, "async_op": mode} for name in (backend, None) for mode in (False, True)
    ]
    with handler(handle):
        for each in options:
            for reduction in (mcr_dl.ReduceOp.MAX, mcr_dl.ReduceOp.AVG):
                _finish(mcr_dl.all_reduce(torch.full((4,), 1.5), op=reduction, **each))
            _finish(mcr_dl.broadcast(torch.ones(3), 0, **each))
            counts = [3] * size
            _finish(mcr_dl.all_to_all_single(torch.zeros(3 * size), torch.ones(3 * size), counts, counts, **each))
            gathered = torch.zeros(2 * size)
            _finish(mcr_dl.all_gather_single(gathered, gathered[:2], **each))
            _finish(mcr_dl.all_gather([torch.zeros(4) for _ in range(size)], torch.ones(4), **each))
    assert len(seen) == 4 * 6 + 2 * 2  # the all_gathers, of which the asynchronous ones are held, in two forms
    for before, after in seen:
        assert before == after


def replaces_a_factors_tensor(backend: str) -> None:
    """A sum with a factor in another dtype, which must be one that takes a factor."""
    refused: list[str] = []

    def handle(call: PassedCall) -> Any:
        output, short = call.output, call.output.bfloat16()
        expect(InvalidTypeError, lambda: call.proceed(output=short.int()), "PREMUL_SUM is not defined for int32")
        refused.append(call.reduction)
        call.after(lambda: output.copy_(short))
        return call.proceed(output=short)

    session.start()
    size = mcr_dl.get_world_size()
    with handler(handle):
        for mode in (False, True):
            tensor = torch.full((5,), 1.00390625)  # bfloat16 rounds it to 1
            factor = torch.distributed._make_nccl_premul_sum(2.0)
            _finish(mcr_dl.all_reduce(tensor, op=factor, backend=backend, async_op=mode))
            assert tensor.tolist() == [2.0 * size] * 5
    assert refused == ["PREMUL_SUM"] * 2


def copies_in_inference_mode(backend: str) -> None:
    """The step after an asynchronous call has the mode of the call, as the pass's views are of that mode."""

    def handle(call: PassedCall) -> Any:
        if call.op != "all_reduce":
            return call.proceed()
        output, short = call.output, call.output.float()
        call.after(lambda: output.copy_(short))
        return call.proceed(output=short)

    session.start()
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    tensor, left = torch.ones(5, dtype=torch.float64), torch.ones(1)
    with handler(handle):
        if me > 0:
            mcr_dl.irecv(left, 0, backend=backend).wait()  # the call is complete only when rank 0 has left the mode
        with torch.inference_mode():
            work = mcr_dl.all_reduce(tensor, backend=backend, async_op=True)
        for rank in range(1, size) if me == 0 else ():
            mcr_dl.isend(left, rank, backend=backend).wait()
        work.wait()
    assert tensor.tolist() == [size] * 5


def keeps_views(backend: str) -> None:
    """Tensors that a pass takes after its action stay valid, although the program has dropped its own."""
    kept: list[torch.Tensor] = []

    def proceeds(call: PassedCall) -> Any:
        result = call.proceed()
        kept.append(call.output)
        return result

    def answers(call: PassedCall) -> Any:
        call.output.fill_(2)
        result = call.done()
        kept.append(call.output)
        return result

    session.start()
    size = mcr_dl.get_world_size()
    for handle in (proceeds, answers):
        for mode in (False, True):
            with handler(handle):
                for _ in range(4):
                    tensor = torch.full((_COUNT,), 2.0 / size)
                    _finish(mcr_dl.all_reduce(tensor, backend=backend, async_op=mode))
                    parts = [torch.zeros(_COUNT // size) for _ in range(size)]
                    _finish(
                        mcr_dl.all_gather(parts, torch.full((_COUNT // size,), 2.0), backend=backend, async_op=mode)
                    )
                    del tensor, parts
            others = [torch.full((_COUNT,), 7.0) for _ in range(20)]
            assert len(kept) == 8
            for view in kept:
                torch.testing.assert_close(view, torch.full_like(view, 2.0))
                view.zero_()  # memory of its own
            assert all(bool(other.eq(7).all()) for other in others), (handle, mode)
            kept.clear()


def keeps_counts(backend: str) -> None:
    """A held call that has gone on, and whose Work the program has dropped, still has its counts."""
    session.start()
    size = mcr_dl.get_world_size()
    counts = [3] * size
    with handler(_hold):
        for _ in range(4):
            out = torch.zeros(3 * size)
            work = mcr_dl.all_to_all_single(out, torch.ones(3 * size), counts, counts, backend=backend, async_op=True)
            held[-1].proceed()
            work.wait()
            assert out.tolist() == [1.0] * 3 * size
            del out, work
        others = [torch.full((2,), 9) for _ in range(2000)]
        for call in held:
            assert (call.input_counts, call.output_counts, call.nbytes) == (counts, counts, 12 * size)
    held.clear()
    del others


def counts_a_held_call_that_fails() -> None:
    """As other ranks may have sent theirs: a later pass counts it although nothing was sent here."""
    session.start()
    mcr_dl.register_pass(Handler(_hold), "mine")
    with chain("mine", "log"):
        numbers = []
        for codec in ("bf16", None):  # the first needs a pass that is not there
            work = mcr_dl.all_reduce(torch.ones(3), codec=codec, async_op=True)
            held.pop().proceed()
            if codec is None:
                work.wait()
            else:
                expect(InvalidArgumentError, work.wait, "expected the pass")
            numbers.append(mcr_dl.log_records()[-1].seq)
        assert 0 < numbers[0] == numbers[1] - 1


def _await_none(reference: Callable[[], Any], limit: float = 20) -> None:
    deadline = time.monotonic() + limit
    while reference() is not None:
        assert time.monotonic() < deadline, "the tensor is still there"
        gc.collect()
        time.sleep(0.01)


def ends_with_handle(backend: str) -> None:
    """Values of a call that the pass has not held raise once handle() has returned."""
    kept: list[PassedCall] = []

    def handle(call: PassedCall) -> Any:
        kept.append(call)
        return call.proceed()

    session.start()
    with handler(handle):
        for mode in (False, True):
            _finish(mcr_dl.all_reduce(torch.ones(3), backend=backend, async_op=mode))
    for call in kept:
        for name in (*_FACTS, "async_op", "input", "output"):
            expect(InvalidArgumentError, partial(getattr, call, name), "the call is over")


def releases_tensors(backend: str) -> None:
    """The tensors of a held call end with it, though a step of the pass refers to the call."""

    def handle(call: PassedCall) -> Any:
        call.after(lambda: call.op)
        return _hold(call)

    session.start()
    with handler(handle):
        tensor = torch.ones(_COUNT)
        reference = weakref.ref(tensor)
        work = mcr_dl.all_reduce(tensor, backend=backend, async_op=True)
        held.pop().proceed()
        work.wait()
        del tensor, work
        _await_none(reference)


def _look(where: str) -> None:
    """Write down the calls that this thread is in, as the watch sees them."""
    looked.append((where, [each for each in _C.activities() if each["thread"] == threading.get_native_id()]))


class _Looking(Broken):
    """A codec that looks."""

    def capacity(self, count: int, dtype: str) -> int:
        _look("capacity")
        return super().capacity(count, dtype)

    def encode(self, values: Any, out: Any) -> int:
        _look("encode")
        return super().encode(values, out)

    def decode(self, data: Any, out: Any) -> None:
        _look("decode")
        super().decode(data, out)


def are_in_no_call(backend: str) -> None:
    """Passes, their steps and codecs in Python: the watch would end the process at the timeout of their call."""

    def handle(call: PassedCall) -> Any:
        _look("handle")
        call.after(lambda: _look("step"))
        return call.proceed()

    session.start()
    if "looking" not in known_codecs():
        register_codec(_Looking("nowhere"), "looking")
    looked.clear()
    mcr_dl.register_pass(Handler(handle), "mine")
    with chain("mine", "compress"):
        mcr_dl.broadcast(torch.ones(300), 0, backend=backend, codec="looking")
        mcr_dl.all_reduce(torch.ones(300), backend=backend, codec="looking")
    assert {where for where, _ in looked} >= {"handle", "step", "encode", "decode"}  # a capacity may be known already
    assert all(not calls for _, calls in looked), looked
