# SPDX-License-Identifier: Apache-2.0
"""Wrong values of environment variables: one error that names the variable, from commands and from programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import launchers
from mcr_dl.base import variables
from mcr_dl.base.errors import McrError
from mcr_dl.groups import environment

WRONG = {
    "MCR_DL_BACKENDS": "mpj",
    "MCR_DL_MPI_LIB": "/none/libmpi.so",
    "MCR_DL_MPI_THREAD_LEVEL": "single",
    "MCR_DL_NCCL_LIB": "/none/libnccl.so",
    "MCR_DL_NCCL_LANES": "9",
    "MCR_DL_SHM_BYTES": "9223372036854775808",
    "MCR_DL_SHM_DIRECT": "yes",
    "MCR_DL_SHM_TENSOR_BYTES": "-1",
    "MCR_DL_MPI_INTERRUPTIBLE": "true",
    "MCR_DL_MPI_STREAMS": "cuda",
    "MCR_DL_UNIFORM": "2",
    "MCR_DL_DEEPSPEED": "yes",
    "MCR_DL_STAGING_CHUNK": "4M",
    "MCR_DL_TUNING_TABLE": "none.json",
    "MCR_DL_TUNE": "all_reduce:0-4k",
    "MCR_DL_TOPOLOGY": "/none/topology.json",
    "MCR_DL_SCHEDULE": "fifo",
    "MCR_DL_PASSES": "fusee",
    "MCR_DL_LOG": "loud",
    "MCR_DL_HOST_TIMEOUT": "2",
    "MCR_DL_DEBUG": "detial",
}
OTHERS = {"MCR_DL_TRACE", "MCR_DL_DUMP_DIR"}  # any value is right


def test_every_variable_is_listed() -> None:
    """Here or there."""
    assert {each.name for each in variables.VARIABLES} == WRONG.keys() | OTHERS


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable, or what its file is."""
    monkeypatch.setenv(name, WRONG[name])
    with pytest.raises(McrError) as caught:
        environment.require()
    files = {"MCR_DL_TUNING_TABLE": "tuning table none.json", "MCR_DL_TOPOLOGY": "topology /none/topology.json"}
    assert files.get(name, name) in str(caught.value)
    monkeypatch.delenv(name)
    environment.require()


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("MCR_DL_LOG", ["inof"], "one of debug, info, warning, error"),
        ("MCR_DL_MPI_INTERRUPTIBLE", ["yes"], "0 or 1"),
        ("MCR_DL_HOST_TIMEOUT", ["-1", "1", "five", "nan", "1e9"], "0, or a number of seconds from 3 to 100000"),
    ],
)
def test_what_is_expected(name: str, values: list[str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says it, and what came."""
    for value in values:
        monkeypatch.setenv(name, value)
        with pytest.raises(McrError, match=f"^{name}: expected {expected}, got '{value}'$"):
            environment.require()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MCR_DL_HOST_TIMEOUT", "0"),
        ("MCR_DL_HOST_TIMEOUT", "3.5"),
        ("MCR_DL_HOST_TIMEOUT", "100000"),
        ("MCR_DL_LOG", "INFO"),
        ("MCR_DL_DEBUG", "Detail"),
        ("MCR_DL_SHM_BYTES", "67108864"),
        ("MCR_DL_STAGING_CHUNK", "off"),
        ("MCR_DL_STAGING_CHUNK", ""),
        ("MCR_DL_TUNE", "all_reduce:0-64k:mpi:p2p#all_to_all:*:stripe(gloo,mpi)"),
        ("MCR_DL_PASSES", "log, fuse"),
        ("MCR_DL_SCHEDULE", "syndicate"),
        ("MCR_DL_TUNING_TABLE", "none"),
    ],
)
def test_right_values(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are accepted."""
    monkeypatch.setenv(name, value)
    environment.require()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("mcr-bench", ["mcr_dl.bench", "--backends", "gloo", "--max-bytes", "4"]),
        ("mcr-tune", ["mcr_dl.tuning", "--quick"]),
        ("mcr-info", ["mcr_dl.info"]),
        ("python -m mcr_dl.testing", ["mcr_dl.testing", "--backend", "gloo"]),
        ("python -m mcr_dl.examples.moe", ["mcr_dl.examples.moe"]),
    ],
)
def test_commands_refuse_wrong_values(name: str, command: list[str], tmp_path: Path) -> None:
    """In one line, before ranks start, even if they would not use the value."""
    code, out, err = launchers.python("-m", *command, folder=tmp_path, MCR_DL_NCCL_LANES="abc")
    assert (code, out) == (2, "")
    assert err == f"{name}: error: MCR_DL_NCCL_LANES: expected a number from 1 to 8, got 'abc'\n"


@pytest.mark.parametrize("name", ["MCR_DL_PASSES", "MCR_DL_SCHEDULE"])
def test_commands_without_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They accept names that only a program has registered, and refuse other wrong values."""
    monkeypatch.setenv(name, "half")
    environment.require(passes=False)
    monkeypatch.setenv("MCR_DL_TUNE", WRONG["MCR_DL_TUNE"])
    with pytest.raises(McrError, match="MCR_DL_TUNE"):
        environment.require(passes=False)


def test_init_refuses_wrong_values() -> None:
    """Also those that no started backend reads."""
    program = "import mcr_dl; mcr_dl.init_process_group('gloo')"
    code, _, err = launchers.python("-c", program, MCR_DL_NCCL_LANES="abc")
    assert code == 1
    assert "InvalidArgumentError: MCR_DL_NCCL_LANES: expected a number from 1 to 8, got 'abc'" in err
