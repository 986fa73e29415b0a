# SPDX-License-Identifier: Apache-2.0
"""The lab, as far as it can be tested without root: its plans. tests/lab has the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab import LabError, Result, Shape, cleaning, cli, figures, plan, selection, stages, suite
from mcr_dl import _C
from mcr_dl.testing.calls import SIGNATURES

BENCH = Path(__file__).resolve().parent.parent / "bench"

Found = dict[str, Any]

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
                bool(ours.fullmatch(command[index + 1])) for index, word in enumerate(command) if word == "netns"
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
    """gloo uses the first NIC and MPI the second, or both use all."""
    settings = plan.library_settings(Shape(2, 1, rates), multi_rail=multi_rail)
    assert settings["GLOO_SOCKET_IFNAME"] == gloo
    assert settings["UCX_NET_DEVICES"] == mpi
    assert settings.get("UCX_MAX_RNDV_RAILS") == ("2" if multi_rail else None)


def test_ranks() -> None:
    """Ranks of one host are neighbors, and all meet at host 0."""
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
    """A share for each host, or one core in turn."""
    assert [plan.cores_of(Shape(hosts), host, available) for host in range(hosts)] == want


def test_only_the_labs_names_are_the_labs() -> None:
    """The namespaces that `lab clean` may remove."""
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
    """The error says what was expected and what was got."""
    with pytest.raises(LabError, match=re.escape(words)):
        make()  # type: ignore[operator]


def test_the_programs_own_arguments() -> None:
    """Everything after `--` belongs to the program."""
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
    """One line, which names the failed rank."""
    assert result.text() == words
    assert result.ok == words.startswith("2 ranks")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """With no programs on PATH: their names, the packages, and exit code 2; nothing is skipped."""
    environment = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, str(BENCH / "lab"), "run", "--", "true"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == cli.WRONG
    assert "missing: the programs ip, tc," in found.stderr
    assert "sudo apt-get install iproute2 util-linux" in found.stderr


def test_a_process_is_found_by_its_mark() -> None:
    """In any namespace: by its environment."""
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
    """At least once, with large messages too, and no case more than once."""
    cases = selection.chosen(world, 1)
    want = {(name, backend, dtype) for name in SIGNATURES for backend in selection.BACKENDS for dtype in _C.dtypes()}
    assert {(case.function, case.backend, case.dtype) for case in cases} == want
    large = {(case.function, case.backend) for case in cases if case.count == selection.LARGE}
    assert large == {(name, backend) for name in SIGNATURES for backend in selection.BACKENDS}
    assert len(set(cases)) == len(cases)


def test_stages() -> None:
    """Every cluster has every stage, each with its own name, limit and file; the tables share one file."""
    found = stages.all_stages(Path("work"))
    assert len({stage.key for stage in found}) == len(found)
    by_shape = [{stage.name for stage in found if stage.shape == shape} for shape in stages.SHAPES]
    assert by_shape[0] >= {"bandwidth", "rails", "operations", "tune", "demo", *stages.WORKLOADS}
    assert all(names == by_shape[0] for names in by_shape)
    assert {stage.name for stage in found if stage.shape == stages.ALONE} == set(stages.WORKLOADS)
    outs = [stage.out for stage in found if stage.name != "tune"]
    assert len(set(outs)) == len(outs)
    assert {stage.multi_rail for stage in found if stage.name.endswith("rails")} == {True}
    some = suite.selected(found, ["4x1"], ["tune", "moe"])
    assert [stage.key for stage in some] == ["4x1-tune", "4x1-moe"]


def test_a_selection_without_stages(tmp_path: Path) -> None:
    """It is refused, as is a report before any run: both would show an earlier run's results as their own."""
    with pytest.raises(LabError, match="expected a stage that --shapes and --only select"):
        suite.main(["--shapes", "1x1", "--only", "bandwidth"])
    given = suite.parser().parse_args(["--report"])
    with pytest.raises(LabError, match=r"--report: expected .*lab\.json"):
        suite.measure(given, tmp_path)


def bandwidths(**changes: Any) -> Found:
    """The result of a sound lab of 400 and 200 Mbit/s for 5 MB."""
    ways = {
        "gloo": {"seconds": 0.1, "sent": [5e6, 0]},
        "mpi": {"seconds": 0.2, "sent": [0, 5e6]},
        "one after the other": {"seconds": 0.3, "sent": [5e6, 5e6]},
        "both at once": {"seconds": 0.2, "sent": [5e6, 5e6]},
    }
    return {"bytes": 5e6, "tcp": [0.105, 0.21], "all_reduce": ways} | changes


def test_what_a_sound_lab_carries() -> None:
    """The check finds no problem."""
    assert stages.check_bandwidth(bandwidths(), Shape(2)) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (bandwidths(tcp=[0.05, 0.21]), "plain TCP on eth0: expected up to 400 Mbit/s, got 800"),
        (bandwidths(tcp=[0.105, 1.0]), "plain TCP on eth1: expected up to 200 Mbit/s, got 40"),
        (
            bandwidths(all_reduce=bandwidths()["all_reduce"] | {"mpi": {"seconds": 0.1, "sent": [5e6, 0]}}),
            "mpi: expected its bytes on eth1",
        ),
        (
            bandwidths(all_reduce=bandwidths()["all_reduce"] | {"both at once": {"seconds": 0.3, "sent": [5e6, 5e6]}}),
            "they do not overlap",
        ),
    ],
)
def test_a_lab_that_is_not_sound_is_seen(found: Found, words: str) -> None:
    """A NIC that is not shaped or too slow, a library on the other's NIC, no overlap."""
    (problem,) = stages.check_bandwidth(found, Shape(2))
    assert words in problem


def test_a_table_without_the_cluster_is_seen() -> None:
    """Another scale is not enough, nor is one with an excluded candidate."""
    scale = {"ranks": 4, "nodes": 2, "excluded": [], "winners": []}
    assert stages.check_table({"scales": [scale]}, Shape(2, 2)) == []
    assert stages.check_table({"scales": [scale]}, Shape(4)) == [
        "table: expected one scale of 4 ranks on 4 nodes, got 0"
    ]
    gone = {"candidate": "mpi", "operation": "scatter", "reason": "2 wrong elements"}
    assert stages.check_table({"scales": [scale | {"excluded": [gone]}]}, Shape(2, 2)) == [
        "left out: mpi for scatter: 2 wrong elements"
    ]


def measured(ranks: int = 2, **rates: float) -> Found:
    """The parts of a figures_rank.py document that the tests need."""
    rows = [
        {"row": name.replace("_", "+"), "tokens_per_second": rate, "per_second_quartiles": [rate, rate]}
        for name, rate in rates.items()
    ]
    return {"workload": "dlrm", "setting": {"unit": "tokens"}, "conditions": {"ranks": ranks}, "rows": rows}


def test_gains() -> None:
    """The best mix over the best library, with fusion on both sides, and over libraries with every NIC."""
    document = measured(gloo=100.0, gloo_fuse=120.0, mpi=60.0, mixed=140.0, auto_fuse=156.0, torch=200.0)
    alone = figures.gain(document, None)
    assert (alone.single, alone.mix, alone.met) == ("gloo+fuse", "auto+fuse", True)
    assert alone.gain == pytest.approx(0.30)
    assert alone.rails_gain is None
    both = figures.gain(document, measured(gloo=100.0, mpi=120.0, mpi_fuse=130.0))
    assert (both.rails, both.met) == ("mpi+fuse", False)
    assert both.rails_gain == pytest.approx(0.20)
    with pytest.raises(ValueError, match="rows: expected one of mixed, split, auto, got gloo"):
        figures.gain(measured(gloo=1.0), None)


def test_scaling_efficiency() -> None:
    """Relative to one rank alone, times the cores in use."""
    alone = measured(1, gloo=100.0)
    assert figures.efficiencies(measured(2, gloo=150.0), alone, 2) == {"gloo": 0.75}
    assert figures.efficiencies(measured(4, gloo=150.0), alone, 2) == {"gloo": 0.75}
    assert figures.efficiencies(measured(4, gloo=150.0), alone, 8) == {"gloo": 0.375}
