# SPDX-License-Identifier: Apache-2.0
"""Changes that the ranks of a group make together, at one point in its calls and at different ones."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch

import grids
import mcr_dl
from mcr_dl import _C, CollectiveTimeoutError, InvalidArgumentError, PeerLostError
from mcr_dl.passes import Compress, Fuse, Log, PassedCall
from mcr_dl.passes import chain as chains
from mcr_dl.runtime import changes as runtime_changes
from mcr_dl.runtime import rounds
from mcr_dl.testing.expect import expect
from ranks import session
from ranks.passes import Handler

_NEVER = 60_000_000  # microseconds


def _made(backend: str, count: int, group: Any, value: float = 1.0) -> tuple[torch.Tensor, Any]:
    tensor = torch.full((count,), value)
    return tensor, mcr_dl.all_reduce(tensor, group=group, backend=backend, async_op=True)


def _last() -> bool:
    return mcr_dl.get_rank() == mcr_dl.get_world_size() - 1


CHANGES: dict[str, Callable[[Any], Any]] = {
    "set_passes": lambda group: mcr_dl.set_passes([], group),
    "refine": lambda group: mcr_dl.refine(0.1, group),
    "refine_step": mcr_dl.refine_step,
    "set_topology": lambda group: mcr_dl.set_topology(grids.document(mcr_dl.get_world_size(group)), group),
}


def elsewhere(backend: str, change: str) -> str:
    """The last rank makes the change a collective too late: returns its error. Then all make it at one point."""
    session.start()
    size = mcr_dl.get_world_size()
    group = mcr_dl.new_group()
    mcr_dl.set_passes([Fuse(hold_microseconds=_NEVER)], group)
    mcr_dl.all_reduce(torch.ones(1), group=group, backend=backend)
    early = _made(backend, 4, group) if _last() else None
    error = expect(InvalidArgumentError, lambda: CHANGES[change](group), "to call it after the same collective")
    assert mcr_dl.get_passes(group) == ["fuse"]
    tensor, work = early or _made(backend, 4, group)
    second, other = _made(backend, 4, group)
    assert not work.is_completed()  # it is held: the old passes are still in use
    for each in (work, other):
        each.wait()
    assert tensor.tolist() == second.tolist() == [float(size)] * 4
    CHANGES[change](group)
    assert mcr_dl.get_passes(group) == ([] if change == "set_passes" else ["fuse"])
    tensor, work = _made(backend, 4, group)
    work.wait()
    assert tensor.tolist() == [float(size)] * 4
    mcr_dl.destroy_process_group(group)
    return str(error)


def others() -> str:
    """The last rank makes another change at the same point: returns the error. Then all ranks make both."""
    session.start()
    group = mcr_dl.new_group()
    first, second = CHANGES["set_passes"], CHANGES["refine"]
    error = expect(InvalidArgumentError, lambda: (second if _last() else first)(group))
    for change in (first, second):
        change(group)
    mcr_dl.all_reduce(torch.ones(1), group=group)
    mcr_dl.destroy_process_group(group)
    return str(error)


def steps() -> str:
    """Rank 0 is in a later step of a change than the others: returns the error. Then all change together."""
    session.start()
    group = mcr_dl.new_group()
    core = _C.group_of(group)
    late = mcr_dl.get_rank() == 0
    error = expect(InvalidArgumentError, lambda: runtime_changes.agree(core, "set_passes", None, anywhere=late))
    mcr_dl.set_passes(["fuse"], group)
    mcr_dl.destroy_process_group(group)
    return str(error)


def _raising() -> Iterator[str]:
    yield "fuse"
    raise ValueError("no more passes")


def wrong_on_one(kind: str) -> tuple[str, str]:
    """One rank's list is invalid: the error of every rank, class and text."""
    session.start()
    wrong: dict[str, Any] = {"entry": [3], "number": 5, "raising": _raising()}
    try:
        mcr_dl.set_passes(wrong[kind] if _last() else ["fuse"])
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("expected an error")


class _Fails:
    """A pass that the last rank cannot make."""

    name = "fails"

    def terms(self) -> dict[str, Any]:
        return {}

    def make(self, group: _C.Group, shadow: Any) -> _C.Pass:
        del shadow
        if _last():
            raise MemoryError("no room")
        return _C.PythonPass(_seen([]), self.name, group)


def not_made(backend: str) -> tuple[str, str]:
    """One rank cannot make a pass: the error of every rank, class and text. The group keeps its passes."""
    session.start()
    group = mcr_dl.new_group()
    mcr_dl.set_passes([Fuse(hold_microseconds=_NEVER)], group)
    told = ("", "")
    try:
        mcr_dl.set_passes([_Fails(), Fuse()], group)
    except Exception as error:
        told = type(error).__name__, str(error)
    assert mcr_dl.get_passes(group) == ["fuse"]
    for _ in range(2):
        tensor, work = _made(backend, 4, group)
        work.wait()
        assert tensor.tolist() == [float(mcr_dl.get_world_size())] * 4
        mcr_dl.set_passes([], group)
    mcr_dl.destroy_process_group(group)
    return told


class _FailsBefore(_Fails):
    """As before; the other ranks wait for it to connect a shadow."""

    def make(self, group: _C.Group, shadow: Any) -> _C.Pass:
        made = super().make(group, shadow)
        shadow("fuse")
        return made


def not_begun(backend: str) -> None:
    """One rank fails before it begins to connect a shadow: the next change connects it."""
    session.start()
    group = mcr_dl.new_group(timeout=timedelta(seconds=2))
    kind = MemoryError if _last() else CollectiveTimeoutError
    expect(kind, lambda: mcr_dl.set_passes([_FailsBefore()], group))
    mcr_dl.set_passes(["fuse"], group)
    tensor, work = _made(backend, 4, group)
    work.wait()
    assert tensor.tolist() == [float(mcr_dl.get_world_size())] * 4
    mcr_dl.destroy_process_group(group)


def own_problem() -> None:
    """A rank that has a problem raises it, also if the exchange with the others fails."""
    session.start()
    group = mcr_dl.new_group()
    change = functools.partial(runtime_changes.agree, _C.group_of(group), "set_passes", None)
    with patch.object(rounds.Round, "conclude", side_effect=PeerLostError("lost rank 7")):
        expect(ValueError, lambda: change(problem=ValueError("of this rank")), "of this rank")
        expect(PeerLostError, change, "lost rank 7")
    mcr_dl.set_passes([], group)
    mcr_dl.destroy_process_group(group)


def outside() -> None:
    """A rank outside a group sees no passes of it, and is warned that a change does nothing."""
    session.start()
    group = mcr_dl.new_group([0])
    if mcr_dl.get_rank() != 0:
        assert mcr_dl.get_passes(group) == []
        with pytest.warns(UserWarning, match="does not belong to the given group"):
            mcr_dl.passes.reset_feedback(group)


def late(backend: str) -> tuple[str, float]:
    """The last rank comes after the timeout: the text on each rank, and the elapsed time. The group stays usable."""
    session.start()
    group = mcr_dl.new_group(timeout=timedelta(seconds=2))
    current = mcr_dl.runtime.state.current()
    store = mcr_dl.PrefixStore(f"late/{current.count('late')}", current.store)
    begin = time.monotonic()
    if _last():
        for rank in range(mcr_dl.get_world_size() - 1):
            store.get(str(rank))
    error = expect(CollectiveTimeoutError, lambda: mcr_dl.set_passes(["fuse"], group), "timed out")
    taken = time.monotonic() - begin
    if not _last():
        store.set(str(mcr_dl.get_rank()), "")
    assert mcr_dl.get_passes(group) == []
    mcr_dl.set_passes(["fuse"], group)
    tensor, work = _made(backend, 4, group)
    work.wait()
    assert tensor.tolist() == [float(mcr_dl.get_world_size())] * 4
    mcr_dl.destroy_process_group(group)
    return str(error), taken


# ---- with pending calls


class _Keeper:
    """A pass that holds asynchronous calls until the program releases them."""

    def __init__(self) -> None:
        self.held: list[PassedCall] = []

    def handle(self, call: PassedCall) -> Any:
        if not call.async_op:
            return call.proceed()
        self.held.append(call)
        return call.hold()


def _seen(names: list[str]) -> Handler:
    def handle(call: PassedCall) -> Any:
        names.append(call.op)
        return call.proceed()

    return Handler(handle)


def _held() -> tuple[Any, _Keeper, list[str], Fuse]:
    """A group, and passes for it: "keeper", "behind", which adds the operations that it sees to the list, and fuse."""
    session.start()
    keeper, behind = _Keeper(), list[str]()
    mcr_dl.register_pass(keeper, "keeper")
    mcr_dl.register_pass(_seen(behind), "behind")
    return mcr_dl.new_group(), keeper, behind, Fuse(hold_microseconds=_NEVER)


def in_flight(backend: str) -> None:
    """Large pending calls, fused ones and a call that a pass holds, while the chain changes repeatedly."""
    group, keeper, behind, fuse = _held()
    size = mcr_dl.get_world_size()
    made = []
    for chain in ([], ["keeper", "behind"], [fuse], [fuse, Compress("bf16", smallest=0)], [Log(), fuse], [], [fuse]):
        mcr_dl.set_passes(chain, group)
        made += [_made(backend, count, group) for count in (3, 1 << 18)]
        assert mcr_dl.get_passes(group) == [each if isinstance(each, str) else each.name for each in chain]
    mcr_dl.set_passes([], group)
    mcr_dl.all_reduce(torch.ones(1), group=group, backend=backend)
    assert len(keeper.held) == 2
    assert behind == []
    for call in keeper.held:
        call.proceed()
    assert behind == ["all_reduce"] * 2  # through the chain with which they began
    for tensor, work in made:
        work.wait()
        assert tensor.tolist() == [float(size)] * len(tensor)
    mcr_dl.destroy_process_group(group)


def held_before_fuse(backend: str) -> None:
    """A call that a pass in front of ``fuse`` holds goes through the passes behind it with which it was made."""
    group, keeper, behind, fuse = _held()
    size = mcr_dl.get_world_size()
    lists: list[list[Any]] = [
        ["keeper", fuse, "behind"],
        ["keeper", fuse],
        ["keeper", fuse, Compress("bf16", smallest=0)],
    ]
    value = 1.2345678  # bf16 rounds it
    made = []
    for passes in lists:
        mcr_dl.set_passes(passes, group)
        made.append(_made(backend, 4, group, value))
    mcr_dl.set_passes(["keeper", fuse], group)
    for call in keeper.held:
        call.proceed()
    for _, work in made:
        work.wait()
    assert behind == ["all_reduce"]
    exact = torch.full((4,), value).mul_(size)
    torch.testing.assert_close(made[0][0], exact)
    torch.testing.assert_close(made[1][0], exact)
    assert not torch.allclose(made[2][0], exact)
    mcr_dl.set_passes([], group)
    mcr_dl.destroy_process_group(group)


def not_released(backend: str) -> tuple[str, list[str]]:
    """The error of a change while a pass behind ``fuse`` keeps rank 0's flush, and the passes after it."""
    session.start()
    group, entered, released = mcr_dl.new_group(), threading.Event(), threading.Event()

    def keep(call: PassedCall) -> Any:
        if mcr_dl.get_rank() == 0 and call.async_op:
            entered.set()
            released.wait(30)
        return call.proceed()

    mcr_dl.register_pass(Handler(keep), "keeps")
    mcr_dl.set_passes([Fuse(hold_microseconds=_NEVER), "keeps"], group)
    tensor, work = _made(backend, 4, group)
    flushing = threading.Thread(target=work.wait)
    flushing.start()
    assert mcr_dl.get_rank() != 0 or entered.wait(30)
    with patch.object(chains, "_SYNCHRONIZE_LIMIT", timedelta(seconds=0.5)):
        error = expect(CollectiveTimeoutError, lambda: mcr_dl.set_passes([], group))
    names = mcr_dl.get_passes(group)
    released.set()
    flushing.join()
    assert tensor.tolist() == [float(mcr_dl.get_world_size())] * 4
    mcr_dl.set_passes([], group)  # the next one works
    mcr_dl.destroy_process_group(group)
    return str(error), names


def with_another_group(backend: str, changes: int) -> None:
    """A thread makes calls on another group while the chain of this one changes, with calls on it."""
    session.start()
    size = mcr_dl.get_world_size()
    mine, its = mcr_dl.new_group(), mcr_dl.new_group()
    mcr_dl.set_passes([Fuse(hold_microseconds=200)], its)
    failures: list[BaseException] = []

    def calls() -> None:
        try:
            for _ in range(4 * changes):
                made = [_made(backend, count, its) for count in (5, 5000, 7)]
                for tensor, work in made:
                    work.wait()
                    assert tensor.tolist() == [float(size)] * len(tensor)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=calls)
    thread.start()
    for number in range(changes):
        mcr_dl.set_passes([["log"], [Fuse(hold_microseconds=_NEVER), "compress"], []][number % 3], mine)
        made = [_made(backend, count, mine) for count in (5, 5000)]
        if number % 2:
            for _, work in made:
                work.wait()
    thread.join()
    assert not failures, failures
    mcr_dl.set_passes([], mine)
    mcr_dl.synchronize()
    for group in (mine, its):
        mcr_dl.destroy_process_group(group)
