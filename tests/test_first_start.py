# SPDX-License-Identifier: Apache-2.0
"""A start without measurements measures, once for each machine and scale."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import grids
import jobs
import tables
from mcr_dl import _C
from mcr_dl.groups import first_start
from mcr_dl.measure import start
from mcr_dl.tables import choice
from mcr_dl.tables import table as files
from mcr_dl.tables.host import host, software
from mcr_dl.tables.model import Curve, Exclusion, Sample, Scale, Table
from mcr_dl.testing.nursery import Nursery

LIMIT = 100.0
SAID = "mcr_dl: no measurements for "


def _start(
    nursery: Nursery, cache: Path, ranks: int, *arguments: str, table: str = "", **others: str
) -> tuple[list[dict[str, Any]], str]:
    """The facts of all ranks, and all that they have written."""
    variables = {"MCR_DL_TUNING_TABLE": table, "XDG_CACHE_HOME": str(cache), **others}
    children = jobs.start(nursery, "first_start", list(arguments), ranks, **variables)
    jobs.end(nursery, children, LIMIT)
    jobs.expect(children, 0)
    text = "\n".join(child.text for child in children)
    facts = {int(rank): json.loads(found) for rank, found in re.findall(r"facts (\d+) (\{.*\})$", text, re.MULTILINE)}
    return [facts[rank] for rank in range(ranks)], text


def _hasten(path: Path) -> None:
    """Divide all times of a table by 1000."""
    table = files.read(path)

    def faster(sample: Sample) -> Sample:
        times = (sample.min_us, sample.median_us, sample.p99_us)
        return Sample(sample.bytes, sample.n, *(each / 1000 for each in times))

    scales = tuple(
        replace(
            scale,
            curves=tuple(replace(curve, samples=tuple(map(faster, curve.samples))) for curve in scale.curves),
        )
        for scale in table.scales
    )
    files.write(replace(table, scales=scales), path)


def test_it_measures_once(nursery: Nursery, tmp_path: Path) -> None:
    """The results go to the cache. Later starts use them, until a candidate is new."""
    first, text = _start(nursery, tmp_path, 2, "mpi,gloo")
    assert text.count(SAID) == 1
    assert first[0] == first[1]
    (path,) = tmp_path.rglob("*.json")
    (scale,) = files.read(path).scales
    assert first[0]["source"] == str(path)
    assert (scale.ranks, scale.quick) == (2, True)
    assert {"mpi", "gloo"} <= scale.candidates
    assert set(first[0]["chosen"]) <= scale.candidates
    _hasten(path)  # a later start may find that this one was disturbed, but not that its calls were too fast
    left = path.read_bytes()
    again, text = _start(nursery, tmp_path, 2, "mpi,gloo")
    assert "measuring" not in text
    assert path.read_bytes() == left
    assert again[0] == again[1]
    assert again[0]["source"] == str(path)
    assert again[0]["scales"] == json.loads(json.dumps([choice.costs_of(each) for each in files.read(path).scales]))
    _, text = _start(nursery, tmp_path, 2, "mpi,gloo,shm")
    assert text.count(SAID) == 1
    assert "shm" in files.read(path).scales[0].candidates


def _leave_table(cache: Path, times: dict[int, float], *, quick: bool) -> Path:
    """A table of this machine for two ranks: shm with these times by size, and gloo with twice as much."""
    curves = tuple(
        tables.curve(name, *(us * factor for us in times.values()), sizes=list(times), spread=1)
        for name, factor in (("shm", 1), ("gloo", 2))
    )
    path = cache / "mcr_dl" / "tuning" / f"{host().fingerprint}.json"
    made = tables.scale(curves=curves, winners=(), quick=quick)
    files.write(tables.make(made, host=host(), software=software(_C.backend_status())), path)
    return path


@pytest.mark.parametrize(
    ("quick", "times", "warned"), [(False, (1e6, 1e6), True), (True, (1e-3, 1e-3), True), (False, (1e6, 1e-3), False)]
)
def test_a_table_of_another_machine(
    nursery: Nursery, tmp_path: Path, quick: bool, times: tuple[float, float], warned: bool
) -> None:
    """A start warns if all sizes that it compares differ from the table, in one direction."""
    path = _leave_table(tmp_path, {4 << 10: times[0], 1 << 20: times[1]}, quick=quick)
    facts, text = _start(nursery, tmp_path, 2, "gloo,shm")
    assert facts[0]["source"] == str(path)
    assert ("all_reduce of 1048576 bytes on shm takes" in text) is warned, text
    assert "measuring" not in text


def test_a_first_start_that_was_disturbed(nursery: Nursery, tmp_path: Path) -> None:
    """Calls are much faster than its times: the next start measures again."""
    path = _leave_table(tmp_path, {4 << 10: 1e6, 1 << 20: 1e6}, quick=True)
    facts, text = _start(nursery, tmp_path, 2, "gloo,shm")
    assert facts[0] == facts[1]
    assert text.count("were disturbed (all_reduce of 4096 bytes on shm takes") == 1, text
    (scale,) = files.read(path).scales
    assert max(each.median_us for curve in scale.curves for each in curve.samples if each.bytes == 4096) < 1e6


def test_other_scales_join(nursery: Nursery, tmp_path: Path) -> None:
    """Three ranks measure for themselves; the scale of two stays."""
    _start(nursery, tmp_path, 2, "gloo,shm")
    three, text = _start(nursery, tmp_path, 3, "gloo,shm")
    assert SAID in text
    assert three[0] == three[1] == three[2]
    (path,) = tmp_path.rglob("*.json")
    assert [scale.ranks for scale in files.read(path).scales] == [2, 3]


@pytest.mark.parametrize("backends", ["gloo", "mpi,gloo"])
def test_nothing_is_measured(nursery: Nursery, tmp_path: Path, backends: str) -> None:
    """There is no choice, or the user wants no table."""
    facts, text = _start(nursery, tmp_path, 2, backends, table="" if backends == "gloo" else "none")
    assert SAID not in text
    assert facts[0]["scales"] == []
    assert not list(tmp_path.rglob("*.json"))


def test_a_cache_that_cannot_be_written(nursery: Nursery, tmp_path: Path) -> None:
    """The job uses the measurements, and says once that they are lost."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    facts, text = _start(nursery, blocked, 2, "gloo,shm")
    assert facts[0]["scales"]
    assert text.count("the next start measures again") == 1
    assert text.count("XDG_CACHE_HOME sets another folder") == 1


def test_a_table_that_cannot_be_read(nursery: Nursery, tmp_path: Path) -> None:
    """It may have measurements of mcr-tune: it stays as it is."""
    path = _leave_table(tmp_path, {4 << 10: 1.0}, quick=False)
    path.write_text("{")
    facts, text = _start(nursery, tmp_path, 2, "gloo,shm")
    assert facts[0]["scales"]
    assert text.count("the next start measures again") == 1
    assert path.read_text() == "{"


def test_without_gloo(nursery: Nursery, tmp_path: Path) -> None:
    """The ranks agree over gloo during the measurement; without it, the job starts and says so."""
    facts, text = _start(nursery, tmp_path, 2, "shm,mpi", GLOO_SOCKET_IFNAME="nothing")
    assert facts[0]["scales"] == facts[1]["scales"] == []
    assert text.count("no measurement, as its ranks agree over gloo, which fails") == 1


@pytest.mark.parametrize("errors", ["full", "none"])
def test_a_standard_error_that_takes_nothing(nursery: Nursery, tmp_path: Path, errors: str) -> None:
    """The job measures all the same, and says nothing elsewhere."""
    facts, text = _start(nursery, tmp_path, 2, "gloo,shm", FIRST_START_ERRORS=errors)
    assert facts[0]["scales"]
    assert SAID not in text


def test_a_candidate_with_wrong_results_is_left_out(nursery: Nursery, tmp_path: Path) -> None:
    """It is never chosen, and the table says why."""
    facts, _ = _start(nursery, tmp_path, 2, "gloo,shm", "shm")
    assert set(facts[0]["chosen"]) == {"gloo"}
    (path,) = tmp_path.rglob("*.json")
    excluded = files.read(path).scales[0].excluded
    assert ("all_reduce", "shm", "1 wrong elements at 4 bytes") in {
        (each.operation, each.candidate, each.reason) for each in excluded
    }


def test_exclusions_of_mcr_tune_hold_in_later_starts(nursery: Nursery, tmp_path: Path) -> None:
    """Also if a first start has measured a nearer scale. Curves of the candidate that is left are enough."""
    path = _leave_table(tmp_path, {4 << 10: 1.0}, quick=False)
    table = files.read(path)
    gone = tuple(Exclusion(name, "float32", "shm", "signal 11") for name in _C.operations())
    tuned = replace(table.scales[0], curves=(), excluded=gone)
    nearer = replace(tuned, ranks=3, ranks_per_node=3, quick=True)
    files.write(replace(table, scales=(tuned, nearer)), path)
    facts, text = _start(nursery, tmp_path, 4, "gloo,shm", "shm")  # a call on shm would give wrong values
    assert text.count(SAID) == 1
    assert set(facts[0]["chosen"]) == {"gloo"}
    scale = files.read(path).scale(4)
    assert {each.reason for each in scale.excluded} == {"left out for 2 ranks"}
    assert {each.candidate for each in scale.curves} == {"gloo"}
    _hasten(path)  # a later start may find that this one was disturbed, but not that its calls were too fast
    _, text = _start(nursery, tmp_path, 4, "gloo,shm")
    assert "measuring" not in text


# ---- what is measured, and what comes of it


def _samples(times: dict[int, float]) -> list[Sample]:
    return [Sample(size, 3, us, us, us) for size, us in times.items()]


def test_all_operations_are_measured_the_frequent_ones_first() -> None:
    """Each point once; sends before large calls, as they are never tried later."""
    points = list(start._points())
    assert len(points) == len(set(points))
    assert {kind.operation for kind, _ in points} == set(_C.operations())
    assert {kind.operation for kind, _ in points[:20]} == {
        "broadcast",
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
    }
    order = [(kind.operation, nbytes) for kind, nbytes in points]
    assert order.index(("send", 1 << 20)) < order.index(("all_reduce", 4 << 20))


def test_expected_times() -> None:
    """They come from the nearest smaller size, or the smallest, and grow with the size above 16 KiB."""
    found = start._Results({"shm": _samples({8: 1.0, 1 << 20: 100.0})})
    assert found.expected("shm", 4) == found.expected("shm", 16 << 10) == pytest.approx(1e-6)
    assert found.expected("shm", 64 << 10) == pytest.approx(4e-6)
    assert found.expected("shm", 4 << 20) == pytest.approx(4e-4)
    assert found.expected("mpi", 4) == 0.0
    assert found.most("shm", 8) == 100.0


@pytest.mark.parametrize("nbytes", [4, 1 << 20])
def test_a_point_at_which_only_a_stripe_is_right(nbytes: int) -> None:
    """The candidates without a share are timed before those with one: there are none."""
    measurement, found = object.__new__(start.Measurement), start._Results()
    measurement._control = SimpleNamespace()  # type: ignore[assignment]
    measurement._time(found, nbytes, {}, 0.0)
    assert not found.samples


@pytest.mark.parametrize(("largest", "kept"), [(4 << 10, False), (1 << 20, True)])
@pytest.mark.parametrize(("operation", "async_op"), [("all_reduce", True), ("all_gatherv", False)])
def test_a_form_measured_in_part(operation: str, async_op: bool, largest: int, kept: bool) -> None:
    """It uses the curves of blocking calls with equal counts instead of its own."""
    measurement = object.__new__(start.Measurement)
    found = start._Results({"shm": _samples({4: 1.0, largest: 2.0})}, {"mpi": "1 wrong elements"})
    measurement._results = {start._kind("all_reduce"): found, start._kind(operation, async_op=async_op): found}
    scale = measurement._scale(choice.Shape(2, 1, 2))
    own = [curve for curve in scale.curves if (curve.operation, curve.async_op) == (operation, async_op)]
    assert bool(own) is kept
    assert len(scale.curves) == 1 + len(own)
    assert {(each.operation, each.async_op, each.candidate) for each in scale.excluded} == {
        ("all_reduce", False, "mpi"),
        (operation, async_op, "mpi"),
    }


@pytest.mark.parametrize(
    "candidate", ["mpi:p2p", "stripe(gloo,mpi)", "hier(shm,mpi)", "themis(gloo,mpi)", "themis(shm,mpi,baseline)"]
)
def test_tables_of_all_kinds_of_candidates(tmp_path: Path, candidate: str) -> None:
    """And of equal sizes: with 64 ranks, blocks of 4 and of 256 bytes have an element for each rank."""
    measurement = object.__new__(start.Measurement)
    found = start._Results({candidate: [*_samples({256: 2.0}), *_samples({256: 1.0, 4096: 3.0})]})
    measurement._results = {start._kind("all_gather"): found}
    scale = measurement._scale(choice.Shape(64, 2, 32))
    path = tmp_path / "t.json"
    files.write(Table(files.now(), host(), software({}), {}, (scale,)), path)
    (curve,) = files.read(path).scales[0].curves
    assert curve.candidate == candidate
    assert curve.samples == tuple(_samples({256: 1.0, 4096: 3.0}))


# ---- whose measurements count


def _scale(*, quick: bool, candidate: str = "mpi") -> Scale:
    curve = Curve("all_reduce", "float", "float32", candidate, (Sample(4, 3, 1.0, 2.0, 3.0),))
    return Scale(2, 1, 2, "cpu", files.now(), (curve,), quick=quick)


@pytest.mark.parametrize(
    ("quick", "candidates", "known"),
    [(False, {"mpi", "shm"}, True), (True, {"mpi", "shm"}, False), (True, {"mpi"}, True)],
)
def test_which_scales_suffice(quick: bool, candidates: set[str], known: bool) -> None:
    """mcr-tune's always do, quick ones if they have all candidates."""
    knowledge = choice.Knowledge("", [0, 0], [False, False], [choice.costs_of(_scale(quick=quick))])
    assert knowledge.measured(choice.Shape(2, 1, 2), candidates) is known
    assert not knowledge.measured(choice.Shape(3, 1, 3), candidates)


def test_exclusions_of_another_shape() -> None:
    """Exclusions of mcr-tune hold: a candidate may kill its ranks. A first start's are checked again."""
    gone = (Exclusion("all_reduce", "float32", "gloo", "signal 11"), Exclusion("send", "float32", "gloo", "x", "bf16"))
    tuned, quick = (choice.costs_of(replace(_scale(quick=each), excluded=gone)) for each in (False, True))
    assert tuned["excluded"] == quick["excluded"] == [["all_reduce", False, "gloo"]]
    nearer = {**quick, "ranks": 3, "ranks_per_node": 3, "name": "3 ranks"}
    knowledge = choice.Knowledge("", [0] * 4, [False] * 4, [tuned, nearer])
    assert knowledge.of_mcr_tune().scales == [tuned]
    group = SimpleNamespace(candidates=["gloo", "mpi"], ranks=[*range(4)], given=[])
    group._tune = lambda *given: group.given.append(given[-1])
    left_out = partial(first_start._leave_out, group, shape=choice.Shape(4, 1, 4))  # type: ignore[arg-type]
    assert left_out(tuned=knowledge.of_mcr_tune()) == "2 ranks"
    assert group.given == [[("all_reduce", False, "cpu", "gloo")]]
    assert left_out(tuned=replace(knowledge, scales=[nearer]).of_mcr_tune()) == ""
    assert len(group.given) == 1
    measurement = object.__new__(start.Measurement)
    others = ["mpi", "shm", "stripe(gloo,mpi)", "hier(shm,mpi)", "hier(shm,stripe(gloo,mpi))"]
    told = {"candidates": others, "excluded": ["gloo"]}
    measurement._group = SimpleNamespace(  # type: ignore[assignment]
        candidates=["gloo", *others], _explain=lambda *_: told
    )
    kind = start._kind("all_reduce")
    left = dict.fromkeys(["gloo", "stripe(gloo,mpi)", "hier(shm,stripe(gloo,mpi))"], "left out for 2 ranks")
    assert measurement._left_out(kind, "2 ranks") == left
    assert measurement._left_out(kind, "") == {}


@pytest.mark.parametrize(
    ("ranks", "nodes", "most", "name"),
    [(4, 1, 4, "4 ranks"), (4, 2, 2, "4 ranks (2x2)"), (3, 2, 2, "3 ranks (2 nodes, up to 2 on each)")],
)
def test_names_of_scales(ranks: int, nodes: int, most: int, name: str) -> None:
    assert replace(_scale(quick=True), ranks=ranks, nodes=nodes, ranks_per_node=most).name == name


def test_layouts_are_told_apart() -> None:
    """Of scales with as many ranks and nodes, the one with as many ranks on a node counts; else the nearest."""
    even, uneven = (choice.costs_of(replace(_scale(quick=True), ranks=6, nodes=2, ranks_per_node=n)) for n in (3, 5))
    for scales in ([even, uneven], [uneven, even]):
        knowledge = choice.Knowledge("", [0, 0, 0, 0, 0, 1], [False] * 6, scales)
        shape = knowledge.shape(list(range(6)))
        assert shape == choice.Shape(6, 2, 5)
        assert knowledge.scale_for(shape, "cpu") is uneven
        assert knowledge.scale_for(choice.Shape(6, 2, 3), "cpu") is even
        other = choice.Shape(6, 2, 4)
        assert knowledge.scale_for(other, "cpu") is uneven
        assert knowledge.scale_for(choice.Shape(5, 1, 5), "cpu") is None, "ranks of one node"
        assert not knowledge.measured(other, set())
        assert other.unlike(even) == knowledge.text_of(other) == "6 ranks on 2 nodes, up to 4 on each"
        assert knowledge.text_of(choice.Shape(8, 2, 4)) == "8 ranks on 2 nodes"
        joined = knowledge.with_scale({**even, "name": "new"}, "")
        assert [each["ranks_per_node"] for each in joined.scales] == [5, 3]


@pytest.mark.parametrize(
    ("ranks", "seconds", "said"),
    [(3, choice.SECONDS, False), (3, 0.0, True), (4, choice.SECONDS, True)],
    ids=["all ranks", "all ranks, not measured", "some ranks"],
)
def test_the_nearest_scale_is_named_unless_the_start_measures(
    ranks: int, seconds: float, said: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A start measures the shape of all ranks, and no other group's."""
    monkeypatch.setattr(choice, "_said", set())
    tuned = choice.costs_of(_scale(quick=False))
    knowledge = choice.Knowledge("", [0] * ranks, [False] * ranks, [tuned], seconds=seconds)
    group: Any = SimpleNamespace(candidates=["gloo", "mpi"], ranks=[0, 1, 2], rank=lambda: 0, _tune=lambda *_: None)
    choice.tune(group, knowledge)
    assert ("no measurements for 3 ranks on 1 node; using those for 2 ranks" in caplog.text) is said


def test_quick_samples_count_by_their_minimum() -> None:
    """There are too few for a median that other load on the machine does not change."""
    (quick,), (slow,) = (choice.costs_of(_scale(quick=each))["curves"] for each in (True, False))
    assert quick[-1][0][1] == slow[-1][0][1] - 65536


@pytest.mark.parametrize(("largest", "points"), [(4, 2), (16 << 10, 1), (1 << 20, 1)])
def test_a_curve_that_ends_at_a_small_size(largest: int, points: int) -> None:
    """It grows with the size from 16 KiB on, not from its last sample."""
    scale = _scale(quick=False)
    (curve,) = scale.curves
    (costs,) = choice.costs_of(replace(scale, curves=(replace(curve, samples=tuple(_samples({largest: 2.0}))),)))[
        "curves"
    ]
    assert len(costs[-1]) == points
    assert costs[-1][-1] == (max(largest, 16 << 10), costs[-1][0][1])


@pytest.mark.parametrize(("name", "value"), [("MCR_DL_DEBUG", "detail"), ("MCR_DL_MPI_INTERRUPTIBLE", "1")])
def test_polled_calls_are_not_kept(nursery: Nursery, tmp_path: Path, name: str, value: str) -> None:
    """Programs whose calls block would choose by their times."""
    (first, second), text = _start(nursery, tmp_path, 2, "mpi,gloo", **{name: value})
    assert text.count(SAID) == 1
    assert first == second
    assert first["scales"]
    assert list(tmp_path.rglob("*.json")) == []


@pytest.mark.parametrize("quick", [True, False])
def test_measurements_of_mcr_tune_are_kept(tmp_path: Path, quick: bool) -> None:
    """A table of other versions is replaced only if a start has measured it."""
    old = replace(software({}), torch="1.0")
    path = tmp_path / "t.json"
    files.write(Table(files.now(), host(), old, {"quick": quick}, (_scale(quick=quick),)), path)
    found = first_start._table_with(path, _scale(quick=True, candidate="gloo"), [])
    if quick:
        assert found is not None
        assert [curve.candidate for curve in found.scales[0].curves] == ["gloo"]
    else:
        assert found is None


def test_programs_with_other_backends_share_a_scale(tmp_path: Path) -> None:
    """A start keeps the candidates that it has not compared, for the calls that both have measured."""

    def measured(us: dict[str, float], *operations: str) -> Scale:
        curves = tuple(
            Curve(name, "float", "float32", candidate, tuple(_samples({4: time})))
            for name in operations
            for candidate, time in us.items()
        )
        return replace(_scale(quick=True), curves=curves)

    gone = Exclusion("reduce", "float32", "mpi", "1 wrong elements")
    first = replace(measured({"gloo": 5.0, "mpi": 2.0}, "all_reduce", "reduce_scatter"), excluded=(gone,))
    trial = Curve("all_reduce", "integer", "int32", "mpi", tuple(_samples({4: 1.0})))
    path = tmp_path / "t.json"
    files.write(Table(files.now(), host(), software({}), {}, (replace(first, trials=(trial,)),)), path)
    second = measured({"gloo": 6.0, "shm": 3.0}, "all_reduce", "all_gather")
    found = first_start._table_with(path, second, [])
    assert found is not None
    files.write(found, path)
    (scale,) = files.read(path).scales
    times = {(curve.operation, curve.candidate): curve.samples[0].median_us for curve in scale.curves}
    assert times == {("all_reduce", "gloo"): 6.0, ("all_reduce", "mpi"): 2.0, ("all_reduce", "shm"): 3.0}
    assert [winner.at(4) for winner in scale.winners] == ["mpi"]
    assert (scale.excluded, scale.trials) == ((gone,), ())
    knowledge = choice.Knowledge("", [0, 0], [False, False], [choice.costs_of(scale)])
    for candidates in ({"gloo", "mpi"}, {"gloo", "shm"}):
        assert knowledge.measured(choice.Shape(2, 1, 2), candidates)
    again = first_start._table_with(path, measured({"gloo": 1.0, "mpi": 1.0, "shm": 1.0}, "reduce"), [])
    assert again is not None
    assert {curve.operation for curve in again.scales[0].curves} == {"reduce"}


def test_another_default_device_and_type(nursery: Nursery, tmp_path: Path) -> None:
    """Tensors that MCR-DL makes for itself are on the CPU and have types of their own, whatever the program's are."""
    path = grids.write(tmp_path / "topology.json", 2, 2)
    none = {"MCR_DL_TUNING_TABLE": "", "XDG_CACHE_HOME": str(tmp_path)}
    pairs = jobs.start(nursery, "defaults", ["mpi,gloo,shm"], 2, **none)
    jobs.end(nursery, pairs, LIMIT)
    jobs.expect(pairs, 0, "DONE")
    assert SAID in "".join(child.text for child in pairs)
    grid = jobs.start(nursery, "defaults", ["shm,gloo,themis(shm,gloo)"], 4, **none, MCR_DL_TOPOLOGY=path)
    jobs.end(nursery, grid, LIMIT)
    jobs.expect(grid, 0, "DONE")
