# SPDX-License-Identifier: Apache-2.0
"""The lab, as far as it can be tested without root: what it would do. tests/lab has the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
sys.path.append(str(BENCH))

from calls import SIGNATURES  # noqa: E402
from lab import LabError, Result, Shape, cleaning, cli, plan, selection  # noqa: E402
from mcr_dl import _C  # noqa: E402
from ranks import session  # noqa: E402

SHAPE = Shape(2, 2, (400, 200))


def test_every_command_stays_inside_the_labs_namespaces() -> None:
    """Each command names a namespace of this lab for all that it makes: nothing is made on the machine's network."""
    commands = plan.network("abc", Shape(3, 1, (400, 200, 100)))
    assert commands
    ours = re.compile(r"mcrlab-abc-[hs]\d+")
    for command in commands:
        if command[:3] == ["ip", "netns", "add"]:
            assert ours.fullmatch(command[3]), command
        elif command[:3] == ["ip", "link", "add"]:
            assert [
                bool(ours.fullmatch(command[place + 1])) for place, word in enumerate(command) if word == "netns"
            ] == [
                True,
                True,
            ]
        else:
            assert command[1] == "-n", command
            assert ours.fullmatch(command[2]), command


def test_every_nic_is_shaped_at_both_ends() -> None:
    """Two tbf of its rate for each NIC of each host."""
    shaped = [command for command in plan.network("abc", SHAPE) if command[0] == "tc"]
    rates = [command[command.index("rate") + 1] for command in shaped]
    assert sorted(rates) == sorted(["400mbit", "200mbit"] * 2 * SHAPE.hosts)
    assert len({(command[2], command[command.index("dev") + 1]) for command in shaped}) == len(shaped)


@pytest.mark.parametrize(
    ("multi_rail", "rates", "gloo", "mpi"),
    [
        (False, (400, 200), "eth0", "eth1,lo"),
        (True, (400, 200), "eth0,eth1", "eth0,eth1,lo"),
        (False, (100,), "eth0", "eth0,lo"),
    ],
)
def test_libraries_and_nics(multi_rail: bool, rates: tuple[int, ...], gloo: str, mpi: str) -> None:
    """gloo has the first NIC and MPI the second, or both have all."""
    settings = plan.library_settings(Shape(2, 1, rates), multi_rail=multi_rail)
    assert settings["GLOO_SOCKET_IFNAME"] == gloo
    assert settings["UCX_NET_DEVICES"] == mpi
    assert settings.get("UCX_MAX_RNDV_RAILS") == ("2" if multi_rail else None)


def test_ranks() -> None:
    """Ranks of one host are neighbours, and all meet at host 0."""
    found = [plan.rank_environment(SHAPE, rank, 7) for rank in range(SHAPE.ranks)]
    assert [(each["RANK"], each["GROUP_RANK"], each["LOCAL_RANK"]) for each in found] == [
        ("0", "0", "0"),
        ("1", "0", "1"),
        ("2", "1", "0"),
        ("3", "1", "1"),
    ]
    assert {(each["WORLD_SIZE"], each["LOCAL_WORLD_SIZE"], each["MASTER_ADDR"]) for each in found} == {
        ("4", "2", "10.77.0.1")
    }


@pytest.mark.parametrize(
    ("hosts", "available", "want"),
    [(2, [0, 1], [[0], [1]]), (4, [0, 1], [[0], [1], [0], [1]]), (2, [2, 3, 4, 5, 6], [[2, 3], [4, 5]])],
)
def test_cores(hosts: int, available: list[int], want: list[list[int]]) -> None:
    """A share for each host, or one in turn."""
    assert [plan.cores_of(Shape(hosts), host, available) for host in range(hosts)] == want


def test_only_the_labs_names_are_the_labs() -> None:
    """What `lab clean` may remove."""
    assert plan.lab_of(plan.host_space("1f", 3)) == "1f"
    assert plan.lab_of(plan.switch_space("1f", 0)) == "1f"
    for name in ("mcrlab", "mcrlab-1f", "mcrlab-1f-x0", "other-1f-h0", "mcrlab-1f-h0-more", "cni-1"):
        assert plan.lab_of(name) is None, name


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Shape(0), "hosts: expected 1 to 250, got 0"),
        (lambda: Shape(2, 0), "ranks per host: expected"),
        (lambda: Shape(2, 1, (400, 0)), "NICs: expected"),
        (lambda: plan.parse_rates("400;200"), "NICs: expected rates in Mbit/s such as 400,200, got '400;200'"),
    ],
)
def test_wrong_shapes(make: object, words: str) -> None:
    """What was expected and what was got."""
    with pytest.raises(LabError, match=re.escape(words)):
        make()  # type: ignore[operator]


def test_the_programs_own_arguments() -> None:
    """All after `--` is the program's."""
    given = cli.parser().parse_args(["run", "--hosts", "4", "--multi-rail", "--", "python", "x.py", "--hosts", "9"])
    assert (given.hosts, given.multi_rail) == (4, True)
    assert given.program == ["python", "x.py", "--hosts", "9"]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (Result({0: 0, 1: 0}, None, (), False, 1.0, {0: 0, 1: 1}), "2 ranks, 1.0 s"),
        (
            Result({0: -15, 1: 3}, 1, (0,), False, 1.0, {0: 0, 1: 1}),
            "rank 1 (host 1) failed with exit code 3; ended after it: rank 0 (host 0)",
        ),
        (Result({0: 0, 1: -9}, 1, (), False, 1.0, {0: 0, 1: 1}), "rank 1 (host 1) was killed by SIGKILL"),
        (Result({0: 0, 1: -15}, None, (1,), True, 9.0, {0: 0, 1: 1}), "not ready after 9 s; ended: rank 1 (host 1)"),
    ],
)
def test_how_it_ended(result: Result, words: str) -> None:
    """One line, which names the rank that failed."""
    assert result.text() == words
    assert result.ok == words.startswith("2 ranks")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """With no programs on PATH: which, the packages, and exit code 2; nothing is skipped."""
    environment = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, str(BENCH / "lab"), "run", "--", "true"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == cli.WRONG
    assert "missing: the programs ip, tc," in found.stderr
    assert "sudo apt-get install iproute2 util-linux" in found.stderr


def test_a_process_is_found_by_its_mark() -> None:
    """Wherever it is: by its environment."""
    lab = "0000test"
    child = subprocess.Popen(["sleep", "60"], env={**os.environ, plan.MARK: lab})
    try:
        assert cleaning.processes([], lab) == [child.pid]
        assert cleaning.kill([], lab) == 1
        assert child.wait(10) == -9
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("world", [2, 4])
def test_every_function_backend_and_type_is_chosen(world: int) -> None:
    """At least once, with large messages too, and a case at most once."""
    cases = selection.chosen(world, 1)
    want = {(name, backend, dtype) for name in SIGNATURES for backend in session.BACKENDS for dtype in _C.dtypes()}
    assert {(case.function, case.backend, case.dtype) for case in cases} == want
    large = {(case.function, case.backend) for case in cases if case.count == selection.LARGE}
    assert large == {(name, backend) for name in SIGNATURES for backend in session.BACKENDS}
    assert len(set(cases)) == len(cases)
