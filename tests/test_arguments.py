# SPDX-License-Identifier: Apache-2.0
"""Arguments of the functions around the calls: types, names of backends, places in rendezvous URLs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mcr_dl
from harness import Pools, launchers
from mcr_dl import InvalidArgumentError, InvalidTypeError
from mcr_dl.libraries.registry import parse_backends
from mcr_dl.measure.ranks import free_port
from mcr_dl.runtime import exit_steps
from mcr_dl.trace import _configure
from mcr_dl.tuning.costs import cost_model
from ranks import arguments, session


def _p2p(**given: Any) -> mcr_dl.P2POp:
    return mcr_dl.P2POp(**{"op": mcr_dl.isend, "tensor": torch.ones(1), **given})


_TYPES: dict[str, tuple[Callable[[], Any], str]] = {
    "rank of init": (lambda: mcr_dl.init_process_group("gloo", rank="0", world_size=1), "rank: .* got '0'"),
    "size of init": (lambda: mcr_dl.init_process_group("gloo", rank=0, world_size="1"), "world_size: .* got '1'"),
    "URL of init": (lambda: mcr_dl.init_process_group("gloo", init_method=Path("/x")), "init_method: expected a URL"),
    "set of backends": (lambda: parse_backends({"gloo", "shm"}), "backend: expected names in order of preference"),
    "set of options": (lambda: mcr_dl.Options({"gloo"}), "backends: expected a name or a list of names, got {'gloo'}"),
    "number in options": (lambda: mcr_dl.Options(["gloo", 3]), "backends: expected names, got 3"),
    "no options": (lambda: mcr_dl.Options(None), "backends: expected a name or a list of names, got None"),
    "availability": (lambda: mcr_dl.is_backend_available(5), "backend: expected a name, got 5"),
}
_TYPES_IN_A_JOB: dict[str, tuple[Callable[[Any], Any], str]] = {
    "ranks": (lambda _: mcr_dl.new_group(1), "ranks: expected a list of whole numbers, got 1"),
    "description": (lambda _: mcr_dl.new_group([0], group_desc=5), "group_desc: expected a text or None, got 5"),
    "description of a part": (lambda _: mcr_dl.split_group(None, [[0]], group_desc=5), "group_desc: .* got 5"),
    "text as group_size": (lambda _: mcr_dl.new_subgroups("1"), "group_size: expected a whole number, got '1'"),
    "float as group_size": (lambda _: mcr_dl.new_subgroups(1.0), r"group_size: expected a whole number, got 1\.0"),
    "split_ranks": (lambda _: mcr_dl.split_group(None, [0]), r"split_ranks: expected a list of lists .* got \[0\]"),
    "enumeration": (lambda _: mcr_dl.new_subgroups_by_enumeration(3), "ranks_per_subgroup_list: .* got 3"),
    "get_global_rank": (lambda group: mcr_dl.get_global_rank(group, "0"), "group_rank: expected a whole number"),
    "float as group rank": (lambda group: mcr_dl.get_global_rank(group, 0.0), "group_rank: expected a whole number"),
    "get_group_rank": (lambda group: mcr_dl.get_group_rank(group, "0"), "global_rank: expected a whole number"),
    "group_dst": (lambda _: mcr_dl.gather_object(1, [None], group_dst=0.0), "group_dst: expected a whole number"),
    "src": (lambda _: mcr_dl.broadcast_object_list([1], src="0"), "src: expected a whole number, got '0'"),
    "group_peer": (lambda _: _p2p(group_peer="0"), "group_peer: expected a whole number, got '0'"),
    "peer": (lambda _: _p2p(peer="0"), "peer: expected a whole number, got '0'"),
    "tensor of a P2POp": (lambda _: _p2p(tensor="x", peer=0), "tensor: expected a torch.Tensor, .* got str"),
    "coordinates": (lambda _: mcr_dl.topology().coordinates("0"), "rank: expected a whole number, got '0'"),
    "ranks of a line": (lambda _: mcr_dl.topology().ranks("host", 0.0), "rank: expected a whole number"),
    "dimension of ranks": (lambda _: mcr_dl.topology().ranks(1), "name: expected the name of a dimension, got 1"),
    "dimension of a group": (lambda _: mcr_dl.topology().group(None), "name: expected the name of a dimension"),
    "codecs": (lambda _: cost_model(codecs={"bf16"}), "cost_model: codecs: expected a list of names"),
}
_VALUES_IN_A_JOB: dict[str, tuple[Callable[[Any], Any], str]] = {
    "large global rank": (lambda group: mcr_dl.get_group_rank(group, 2**70), r"global_rank: expected one of \[0\]"),
    "large rank": (lambda _: mcr_dl.topology().coordinates(2**31), "rank: expected 0 to 0, got 2147483648"),
    "negative rank": (lambda _: mcr_dl.topology().ranks("host", -1), "rank: expected 0 to 0, got -1"),
    "peer": (lambda _: _p2p(peer=99), r"peer: expected one of \[0\], got 99"),
    "group_peer": (lambda _: _p2p(group_peer=-1), "group_peer: expected 0 to 0, got -1"),
    "src": (lambda _: mcr_dl.broadcast_object_list([1], src=99), r"src: expected one of \[0\], got 99"),
    "group_src": (lambda _: mcr_dl.recv_object_list([1], group_src=1), "group_src: expected 0 to 0, got 1"),
    "dst and group_dst": (
        lambda _: mcr_dl.send_object_list([1], 0, group_dst=0),
        "dst and group_dst: expected one of the two, got dst=0, group_dst=0",
    ),
    "neither dst nor group_dst": (
        lambda _: mcr_dl.send_object_list([1]),
        "dst and group_dst: expected one of the two, got dst=None, group_dst=None",
    ),
    "device": (lambda _: mcr_dl.get_default_backend_for_device("xyz"), "device: expected cpu or cuda, got 'xyz'"),
    "name of a pass": (
        lambda _: mcr_dl.register_pass(type("Mine", (), {"handle": len})(), "schedule"),
        "register_pass: expected a name other than .*'schedule'",
    ),
    "operations of the log": (
        lambda _: mcr_dl.configure(prof_ops=["all_redcue"]),
        "configure: prof_ops: expected some of .* got 'all_redcue'",
    ),
}


@pytest.mark.parametrize("name", _TYPES)
def test_wrong_types(name: str) -> None:
    call, text = _TYPES[name]
    with pytest.raises(InvalidTypeError, match=f"^{text}"):
        call()
    assert not mcr_dl.is_initialized()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", _TYPES_IN_A_JOB)
def test_wrong_types_in_a_job(name: str) -> None:
    call, text = _TYPES_IN_A_JOB[name]
    with pytest.raises(InvalidTypeError, match=f"^{text}"):
        call(mcr_dl.group.WORLD)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", _VALUES_IN_A_JOB)
def test_wrong_values_in_a_job(name: str) -> None:
    call, text = _VALUES_IN_A_JOB[name]
    try:
        with pytest.raises(InvalidArgumentError, match=f"^{text}"):
            call(mcr_dl.group.WORLD)
    finally:
        _configure.reset()


@pytest.mark.usefixtures("alone")
def test_numbers_of_numpy() -> None:
    """They are whole numbers wherever Python's are."""
    world, zero = mcr_dl.group.WORLD, np.int64(0)
    assert mcr_dl.get_global_rank(world, zero) == mcr_dl.get_group_rank(world, zero) == 0
    assert mcr_dl.topology().coordinates(zero) == mcr_dl.topology().coordinates()
    gathered: list[Any] = [None]
    mcr_dl.gather_object("a", gathered, group_dst=zero)
    assert gathered == ["a"]
    assert mcr_dl.get_process_group_ranks(mcr_dl.split_group(None, np.array([[0]]))) == [0]
    assert mcr_dl.get_process_group_ranks(mcr_dl.new_subgroups(np.int64(1))[0]) == [0]


@pytest.mark.parametrize("given", ["gloo,stripe(gloo,mpi)", ["gloo", "stripe(gloo,mpi)"], ("gloo", "stripe(gloo,mpi)")])
def test_options_from_one_text(given: Any) -> None:
    """They take backends as other arguments do."""
    assert mcr_dl.Options(given).backends == ["gloo", "stripe(gloo,mpi)"]
    assert mcr_dl.Options(backends="gloo").backends == ["gloo"]


@pytest.mark.usefixtures("alone")
def test_a_tensor_without_memory() -> None:
    """As inside torch.func.functionalize, where a tensor's values are in another one."""

    def reduced(tensor: torch.Tensor) -> torch.Tensor:
        result = tensor + 1
        mcr_dl.all_reduce(result)
        return result

    with pytest.raises(InvalidTypeError, match=r"tensor: expected a tensor with memory of its own, got one without"):
        torch.func.functionalize(reduced)(torch.ones(4))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("backends", ["auto", "mcr", " AUTO ", ["auto"]])
def test_finalize_everything(backends: Any) -> None:
    mcr_dl.finalize(backends)
    assert not mcr_dl.is_initialized()


# ---- names of backends


@pytest.mark.parametrize("text", ["auto", "AUTO", " auto", ["auto"], "mcr", "MCR", ["mcr"]])
def test_spellings_of_auto(text: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an argument, and in the environment."""
    monkeypatch.delenv("MCR_DL_BACKENDS", raising=False)
    assert parse_backends(text) == []
    if isinstance(text, str):
        monkeypatch.setenv("MCR_DL_BACKENDS", text)
        assert parse_backends(None) == parse_backends("mcr") == []
        with mcr_dl.use(text if "auto" in text.lower() else "auto"):
            pass
    monkeypatch.setenv("MCR_DL_BACKENDS", "gloo")
    assert parse_backends(text) == (["gloo"] if "mcr" in str(text).lower() else [])


@pytest.mark.parametrize("text", ["mpi,auto", "cpu:auto", ["auto", "gloo"], ["mcr", "gloo"], "cpu:mcr,cuda:nccl"])
def test_auto_among_other_names(text: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^backend: expected '(auto|mcr)' alone, got "):
        parse_backends(text)


def test_availability_by_device() -> None:
    """As init_process_group takes the names."""
    for name in ("gloo", "mpi", "nccl", "auto"):
        assert mcr_dl.is_backend_available(f"cpu:{name}") == mcr_dl.is_backend_available(name)


# ---- rendezvous URLs


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("rank=2&world_size=2", "init_method: expected a rank from 0 to 1, got 2"),
        ("rank=-1&world_size=2", "init_method: expected a rank from 0 to 1, got -1"),
        ("rank=x&world_size=2", "init_method: expected whole numbers as rank and world_size, got 'x' and '2'"),
    ],
)
def test_a_url_with_a_rank_outside_of_the_job(query: str, text: str) -> None:
    """It would wait for ranks that never come; no process serves this port."""
    with pytest.raises(InvalidArgumentError, match=f"^{text}"):
        mcr_dl.init_process_group("gloo", init_method=f"tcp://127.0.0.1:1?{query}")
    assert not mcr_dl.is_initialized()


_LOCAL_RANK = """
import os, sys, mcr_dl
url = f"tcp://127.0.0.1:{sys.argv[2]}?rank={sys.argv[1]}&world_size=2"
mcr_dl.init_distributed("gloo", use_mcr_dl=True, verbose=False, init_method=url)
print("LOCAL_RANK", os.environ["LOCAL_RANK"], mcr_dl.get_node_local_rank())
mcr_dl.destroy_process_group()
"""


def test_the_local_rank_of_a_url() -> None:
    """It is known once the ranks have met."""
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _LOCAL_RANK, str(rank), port],
            env=launchers.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [rank.communicate(timeout=90)[0] for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], texts
    for rank, text in enumerate(texts):
        assert f"LOCAL_RANK {rank} {rank}" in text, text


# ---- on several ranks


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (arguments.local_groups, 2),
        (arguments.subgroups, 3),
        (arguments.monitored_barrier, 2),
        (arguments.missing_ranks, 3),
        (arguments.options, 2),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_on_ranks(pools: Pools, function: Callable[[], None], size: int) -> None:
    """The docstrings of `ranks.arguments` describe the cases."""
    pools.get("processes", size).run(function, limit=60.0)


@pytest.mark.parametrize("backend", session.BACKENDS)
@pytest.mark.parametrize("function", [arguments.batches, arguments.replaced_works], ids=lambda each: each.__name__)
def test_several_calls_at_once(pools: Pools, function: Callable[[str], None], backend: str) -> None:
    """The docstrings of `ranks.arguments` describe the cases."""
    pools.get("processes", 2).run(function, backend, limit=60.0)


# ---- arguments of groups


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "soon"])
@pytest.mark.parametrize(
    "function",
    [
        lambda timeout: mcr_dl.new_group([0], timeout=timeout),
        lambda timeout: mcr_dl.split_group(split_ranks=[[0]], timeout=timeout),
        lambda timeout: mcr_dl.monitored_barrier(timeout=timeout),
    ],
    ids=["new_group", "split_group", "monitored_barrier"],
)
def test_wrong_timeouts(function: Callable[[Any], Any], timeout: Any) -> None:
    """The text is the one of calls, from the shared conversion."""
    with pytest.raises(InvalidArgumentError, match=r"a positive datetime\.timedelta"):
        function(timeout)


@pytest.mark.usefixtures("alone")
def test_descriptions_of_groups() -> None:
    """A store takes no longer keys."""
    for text in ("x" * 1001, "ä" * 501):
        with pytest.raises(InvalidArgumentError, match=r"^group_desc: expected at most 1000 bytes of UTF-8, got 100"):
            mcr_dl.new_group([0], group_desc=text)
    mcr_dl.destroy_process_group(mcr_dl.new_group([0], group_desc="x" * 1000))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("ranks", [[0.9], ["0"], [None]])
def test_ranks_that_are_no_whole_numbers(ranks: Any) -> None:
    with pytest.raises(InvalidTypeError, match=f"^ranks: expected a whole number, got {ranks[0]!r}$"):
        mcr_dl.new_group(ranks)
    with pytest.raises(InvalidTypeError, match=f"^split_ranks: expected a whole number, got {ranks[0]!r}$"):
        mcr_dl.split_group(split_ranks=[ranks])


@pytest.mark.usefixtures("alone")
def test_timeouts_in_seconds() -> None:
    """Wherever a group is made, as in calls."""
    made = [mcr_dl.group.WORLD, mcr_dl.new_group([0], timeout=0.25), mcr_dl.split_group(split_ranks=[[0]], timeout=3)]
    seconds = [mcr_dl._C.group_of(group).timeout.total_seconds() for group in made]
    assert seconds == [20, 0.25, 3]


# ---- the end of an interactive session


def test_an_earlier_error_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not end the process, unlike the uncaught exception of a program."""
    error = ValueError("a typing error")
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    monkeypatch.delattr(sys, "ps1", raising=False)
    assert exit_steps.uncaught() is error
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert exit_steps.uncaught() is None
