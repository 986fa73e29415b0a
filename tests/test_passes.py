# SPDX-License-Identifier: Apache-2.0
"""Passes: a user's own in Python, the agreement on a group's chain, and tensor fusion."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

import mcr_dl
from harness import Pools
from mcr_dl import InvalidArgumentError, InvalidTypeError
from mcr_dl.passes import Fuse
from ranks import fusion, passed_calls, passes, session

backends = pytest.mark.parametrize("backend", [*session.BACKENDS, "auto"])
real = pytest.mark.parametrize("backend", session.BACKENDS)
sizes = pytest.mark.parametrize("size", [2, 3])


@sizes
@real
@pytest.mark.parametrize(
    "name",
    [
        "sees",
        "changes",
        "widened",
        "keeps_views",
        "keeps_views_of_held_calls",
        "asks",
        "answers",
        "holds",
        "releases",
        "mends",
    ],
)
def test_a_pass_in_python(pools: Pools, size: int, backend: str, name: str) -> None:
    pools.get("processes", size).run(getattr(passes, name), backend)


@real
def test_calls_of_a_pass_name_no_backend(pools: Pools, backend: str) -> None:
    """In a block of ``use()``."""
    pools.get("processes", 2).run(fusion.names_no_backend, backend)
    pools.get("processes", 2).run(fusion.names_no_backend_on_autograds_thread, backend)


@sizes
@real
@pytest.mark.parametrize(
    "name",
    [
        "keeps_values",
        "replaces_a_factors_tensor",
        "copies_in_inference_mode",
        "keeps_views",
        "keeps_counts",
        "releases_tensors",
        "ends_with_handle",
    ],
)
def test_a_call_after_the_action(pools: Pools, size: int, backend: str, name: str) -> None:
    pools.get("processes", size).run(getattr(passed_calls, name), backend)


@real
def test_code_in_a_blocking_call(pools: Pools, backend: str) -> None:
    pools.get("processes", 2).run(passed_calls.are_in_no_call, backend)


def test_a_held_call_that_fails(pools: Pools) -> None:
    pools.get("processes", 2).run(passed_calls.counts_a_held_call_that_fails)


@pytest.mark.parametrize("name", ["mistakes", "order", "agreement", "init_gives_them"])
def test_the_chain(pools: Pools, name: str) -> None:
    pools.get("processes", 2).run(getattr(passes, name))


@pytest.mark.parametrize("size", [2, 3, 4])
@backends
def test_ranks_of_different_speeds_flush_the_same(pools: Pools, size: int, backend: str) -> None:
    pools.get("processes", size).run(fusion.fused, backend)


@real
@pytest.mark.parametrize("group", ["ends", "turned"])
def test_fusion_in_subgroups(pools: Pools, backend: str, group: str) -> None:
    pools.get("processes", 3).run(fusion.fused, backend, group)


@sizes
@backends
@pytest.mark.parametrize(
    "name",
    ["fused_and_ordinary", "held_at_a_change", "held_while_a_group_is_made", "multiplied", "encoded_broadcasts"],
)
def test_fusion_among_other_calls(pools: Pools, size: int, backend: str, name: str) -> None:
    pools.get("processes", size).run(getattr(fusion, name), backend)


@sizes
@real
@pytest.mark.parametrize("name", ["asks_while_others_are_held", "asks_its_own_group", "asks_in_a_step"])
def test_passes_behind_fusion_make_calls(pools: Pools, size: int, backend: str, name: str) -> None:
    pools.get("processes", size).run(getattr(fusion, name), backend)


def test_fusion_under_open_mpi(pools: Pools) -> None:
    pools.get("mpiexec-openmpi", 2).run(fusion.fused, "mpi")


@sizes
@backends
@pytest.mark.parametrize("names", list(permutations(("log", "fuse", "compress"))), ids="-".join)
def test_all_passes_together(pools: Pools, size: int, backend: str, names: tuple[str, ...]) -> None:
    pools.get("processes", size).run(fusion.together, backend, names)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"buffer_bytes": 0}, "buffer_bytes: expected 1 or more, got 0"),
        ({"hold_microseconds": -1}, "hold_microseconds: expected 0 or more, got -1"),
        ({"hold_microseconds": True}, "hold_microseconds: expected 0 or more, got True"),
        ({"largest_bytes": 1.5}, "largest_bytes: expected 1 or more, got 1.5"),
        ({"buffer_bytes": 10, "largest_bytes": 11}, "at most buffer_bytes (10), got 11"),
    ],
)
def test_wrong_options(options: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Fuse(**options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, (1 << 18, 200, 1 << 15)),
        ({"largest_bytes": 1 << 20}, (1 << 20, 200, 1 << 20)),
        ({"largest_bytes": 100}, (1 << 18, 200, 100)),
        ({"buffer_bytes": 1000}, (1000, 200, 1000)),
        ({"buffer_bytes": 1000, "largest_bytes": 500, "hold_microseconds": 0}, (1000, 0, 500)),
    ],
)
def test_limits(options: dict[str, int], limits: tuple[int, int, int]) -> None:
    """Options, completed with MPI's defaults."""
    found = Fuse(**options).limits("mpi")
    assert (found.buffer_bytes, found.hold_microseconds, found.largest_bytes) == limits


def test_what_can_be_registered() -> None:
    """An object with handle(), under its own name."""
    with pytest.raises(InvalidTypeError, match="a method handle"):
        mcr_dl.register_pass(object())
    with pytest.raises(
        InvalidTypeError, match=r"^register_pass: expected an object, got the class Handler: write Handler\(\)"
    ):
        mcr_dl.register_pass(passes.Handler)
    with pytest.raises(InvalidArgumentError, match="'fuse'"):
        mcr_dl.register_pass(passes.Handler(lambda call: call.proceed()), "fuse")


def test_outside_init() -> None:
    with pytest.raises(mcr_dl.NotInitializedError):
        mcr_dl.set_passes(["fuse"])
    with pytest.raises(InvalidArgumentError, match="got 'fuze'"):
        mcr_dl.init_process_group("null", passes=["fuze"])
    given: Any = [Fuse]
    with pytest.raises(InvalidTypeError, match=r"^passes: expected an object, got the class Fuse: write Fuse\(\)"):
        mcr_dl.init_process_group("null", passes=given)
    assert not mcr_dl.is_initialized()
