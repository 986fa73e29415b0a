# SPDX-License-Identifier: Apache-2.0
"""The default group while it is being made, and after a start that has failed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as torch_dist

import mcr_dl
from mcr_dl import _C
from mcr_dl.base import launcher
from mcr_dl.libraries import registry
from mcr_dl.runtime import core_groups, rendezvous, state


def _start() -> None:
    mcr_dl.init_process_group("gloo", store=torch_dist.HashStore(), rank=0, world_size=1, timeout=20)


def _while_it_starts(monkeypatch: pytest.MonkeyPatch, action: Callable[[Any], object]) -> None:
    """Start and end; in between, give the default group to the action when its backends are connected."""
    equip = core_groups.equip

    def watched(group: Any) -> None:
        equip(group)
        action(group)

    monkeypatch.setattr(core_groups, "equip", watched)
    _start()
    mcr_dl.destroy_process_group()


_CALLS: dict[str, Callable[[], object]] = {
    "get_rank": mcr_dl.get_rank,
    "get_world_size": mcr_dl.get_world_size,
    "new_group": mcr_dl.new_group,
    "barrier": mcr_dl.barrier,
}


@pytest.mark.parametrize("name", _CALLS)
def test_a_call_before_it_is_complete(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may make one while the backends connect: it is as before the start."""
    found: list[bool] = []

    def call(_: Any) -> None:
        found.extend((state.has_begun(), mcr_dl.is_initialized()))
        with pytest.raises(mcr_dl.NotInitializedError, match="the default group has not been initialized"):
            _CALLS[name]()

    _while_it_starts(monkeypatch, call)
    assert found == [True, False]


def test_a_start_that_fails_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when the traceback of the error is deleted; the next start works."""
    made: list[Any] = []

    def fail(group: Any) -> None:
        made.append(group)
        raise RuntimeError("no memory")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="no memory"):
        _while_it_starts(patched, fail)
    assert [group._closed for group in made] == [True]
    assert not state.has_begun()
    _start()
    mcr_dl.destroy_process_group()


def test_a_meeting_over_mpi_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group ends; here on a backend without other ranks."""
    made: list[Any] = []

    def broadcast(_: object, *, group: Any, **__: object) -> None:
        made.append(group)
        raise mcr_dl.CollectiveTimeoutError("no address")

    monkeypatch.setattr(registry, "rendezvous", lambda: "null")
    monkeypatch.setattr(_C, "broadcast", broadcast)
    with pytest.raises(mcr_dl.CollectiveTimeoutError, match="no address"):
        rendezvous._store_over_mpi(launcher.Launch("mpiexec", 1, 2), timedelta(seconds=20))
    assert [group._closed for group in made] == [True]
