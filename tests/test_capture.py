# SPDX-License-Identifier: Apache-2.0
"""Capture: the iteration of a program from its log, as a graph that can be planned."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.planner import capture, graph
from mcr_dl.planner.plans import Planner
from mcr_dl.records.log import Record
from mcr_dl.trace import _files, cli
from traces import MS, record_of, trace_of


def _record(op: str, issue: int, end: int, **more: Any) -> Record:
    """A call of 64 floats, from ``issue`` to ``end`` in ns."""
    return record_of(op, issue / MS, end / MS, **{"in_count": 64, "out_count": 64, "nbytes": 256, **more})


def _program(count: int, waits: bool = True) -> list[Record]:
    """An asynchronous call, 40 ns of computation, a blocking call, 30 ns, the wait, 20 ns."""
    found = [_record("broadcast", 0, 5, root=0)]
    for start in range(1000, 1000 + 200 * count, 200):
        wait = {"wait_begin": start + 90, "wait_end": start + 120} if waits else {}
        end = start + 120 if waits else start + 85
        found.append(_record("all_reduce", start, end, asynchronous=True, start=start + 10, **wait))
        found.append(_record("all_to_all", start + 50, start + 60))
    return found


@pytest.mark.parametrize("waits", [True, False])
def test_an_iteration_is_found_between_others(waits: bool) -> None:
    found = capture.capture([_program(5, waits)])
    assert [(node.key, node.time) for node in found.nodes] == [
        ("all_reduce 0", None),
        ("compute 0", 40),
        ("all_to_all 1", None),
        ("compute 1", 30 if waits else 25),
        ("compute 2", 80 if waits else 115),
    ]
    after = {node.key: set(node.after) for node in found.nodes}
    assert after["all_reduce 0"] == {"compute 2@-1"}
    assert after["compute 1"] == {"compute 0", "all_to_all 1"}
    assert after["compute 2"] == {"compute 1", "all_reduce 0"}
    assert [cost["points"] for cost in found.costs] == [[[256, 110 if waits else 75]], [[256, 10]]]
    # Both calls use one channel, which does one call at a time: the all_to_all waits for the end of the all_reduce.
    assert Planner(found).program_order().iteration == (110 + 10 + 30 + 80 if waits else 75 + 10 + 25 + 115)


def test_a_wait_in_the_next_iteration() -> None:
    """Asynchronous calls of 150 ns whose results are needed 20 ns into the next iteration, of 200 ns."""
    records = []
    for start in range(1000, 2200, 200):
        more = {"asynchronous": True, "start": start + 10, "wait_begin": start + 220, "wait_end": start + 225}
        records.append(_record("all_reduce", start, start + 160, **more))
        records.append(_record("all_to_all", start + 50, start + 60))
    found = capture.capture([records])
    assert [(node.key, node.time) for node in found.nodes] == [
        ("all_reduce 0", None),
        ("compute 0", 10),
        ("compute 1", 25),
        ("all_to_all 1", None),
        ("compute 2", 140),
    ]
    assert {node.key: set(node.after) for node in found.nodes} == {
        "all_reduce 0": {"compute 2@-1"},
        "compute 0": {"compute 2@-1"},
        "compute 1": {"compute 0", "all_reduce 0@-1"},
        "all_to_all 1": {"compute 1"},
        "compute 2": {"compute 1", "all_to_all 1"},
    }


def test_the_time_of_a_call_is_the_shortest_of_the_ranks_that_make_it() -> None:
    ranks = [
        [_record("all_reduce", start, start + time, in_count=count) for start in range(0, 500, 100)]
        for time, count in ((20, 64), (12, 64), (5, 32))
    ]
    assert [cost["points"] for cost in capture.capture(ranks).costs] == [[[256, 12]]]


@pytest.mark.parametrize(
    ("op", "counts", "root", "expected"),
    [
        ("broadcast", (64, 64), 1, (64, 1)),
        ("all_reduce", (64, 64), None, (64, 0)),
        ("all_gather", (64, 128), None, (64, 0)),
        ("reduce_scatter", (128, 64), None, (64, 0)),
    ],
)
def test_counts_are_those_of_the_motif_algebra(
    op: str, counts: tuple[int, int], root: int | None, expected: tuple[int, int]
) -> None:
    call = capture.call_of(_record(op, 0, 5, in_count=counts[0], out_count=counts[1], root=root))
    assert call is not None
    assert (call.op, call.ranks, call.count, call.root) == (op, 2, *expected)


def test_ranks_that_take_no_part() -> None:
    """A rank with fewer calls than an iteration has makes others."""
    records = [_record("all_reduce", start, start + 10, in_count=3 + start % 200) for start in range(0, 800, 100)]
    assert len(capture.capture([records, records[:1], []]).calls) == 2


def test_calls_outside_the_algebra_stay_as_they_are() -> None:
    records = [_record("barrier", start, start + 10, in_count=0, out_count=0) for start in range(0, 500, 100)]
    found = capture.capture([records])
    assert found.calls[0].options[0].pieces[0].time == 10
    assert Planner(found).search(chains=1).plan.iteration == 100


def test_a_call_that_ends_as_it_is_made_takes_the_time_since_its_issue() -> None:
    records = [_record("all_reduce", start, start + 20, start=start + 20) for start in range(0, 500, 100)]
    assert [cost["points"] for cost in capture.capture([records]).costs] == [[[256, 20]]]


def test_equal_calls_are_one_iteration_if_their_number_is_given() -> None:
    records = [_record("all_reduce", 100 * place + 20 * (place % 2), 100 * place + 50) for place in range(8)]
    found = [capture.capture([records], calls) for calls in (None, 2)]
    assert [len(each.calls) for each in found] == [1, 2]
    assert [node.time for node in found[1].nodes if node.time is not None] == [70, 50]
    with pytest.raises(InvalidArgumentError, match="expected at least 9 calls, got 8"):
        capture.capture([records], 9)


def test_the_period_of_any_calls() -> None:
    """The shortest, as its definition says."""
    rng = random.Random(1)
    for _ in range(2000):
        part = [(rng.randrange(2),) for _ in range(rng.randint(1, 6))]
        calls = [(rng.randrange(2),) for _ in range(rng.randrange(6))] + part * rng.randint(1, 5)
        count = len(calls)
        runs = [
            next((run for run in range(count - each) if calls[-1 - run] != calls[-1 - run - each]), count - each)
            for each in range(count // 2 + 1)
        ]
        periods = [each for each, run in enumerate(runs) if 0 < each <= run >= count // 3]
        if periods:
            assert capture.period(calls) == periods[0], calls
        else:
            with pytest.raises(InvalidArgumentError, match="calls that repeat themselves"):
                capture.period(calls)


def test_a_program_that_does_not_repeat_itself_is_refused() -> None:
    records = [_record("all_reduce", 100 * place, 100 * place + 9, in_count=place) for place in range(6)]
    with pytest.raises(InvalidArgumentError, match="expected calls that repeat themselves"):
        capture.capture([records])
    with pytest.raises(InvalidArgumentError, match="three equal iterations at least, got 2"):
        capture.capture([_program(2)[1:]])
    records = [_record("all_reduce", 100 * place, 100 * place + 9, in_count=place % 3) for place in range(20)]
    assert len(capture.capture([records]).calls) == 3
    with pytest.raises(InvalidArgumentError, match="expected calls that repeat themselves every 4 calls, got 8 at the"):
        capture.capture([records], 4)
    with pytest.raises(InvalidArgumentError, match="three equal iterations at least, got 2: log more"):
        capture.capture([records], 9)


@pytest.mark.parametrize(("given", "calls"), [([], 1), (["--calls", "2"], 2)])
def test_the_command_takes_the_number_of_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], calls: int
) -> None:
    """Of an iteration of equal calls, which is found too short without it."""
    records = [_record("all_reduce", 100 * place + 20 * (place % 2), 100 * place + 50) for place in range(8)]
    _files.write(trace_of(records), tmp_path)
    assert cli.main(["capture", str(tmp_path), *given, "-o", str(tmp_path / "graph.json")]) == 0
    assert len(graph.read(tmp_path / "graph.json").calls) == calls
    assert re.search(rf": {calls} calls per iteration", capsys.readouterr().out)


def test_the_command_writes_a_graph(tmp_path: Path) -> None:
    _files.write(trace_of(_program(4)), tmp_path)
    assert cli.main(["capture", str(tmp_path), "-o", str(tmp_path / "graph.json")]) == 0
    assert len(graph.read(tmp_path / "graph.json").calls) == 2
    assert cli.main(["plan", str(tmp_path / "graph.json"), "--json", str(tmp_path / "report.json")]) == 0
    assert len(json.loads((tmp_path / "report.json").read_text())["plans"]) == 4


def test_traces_in_place_of_a_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says how to make one of them."""
    assert cli.main(["plan", str(tmp_path)]) == 2
    words = f"got a folder; name a file in it, or make a graph with mcr-trace capture {tmp_path} -o graph.json"
    assert capsys.readouterr().err.endswith(f"{words}\n")
