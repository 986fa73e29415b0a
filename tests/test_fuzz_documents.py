# SPDX-License-Identifier: Apache-2.0
"""Files from others: each is read and can be used, or is rejected with one InvalidArgumentError."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tables as made
from fuzzing import JUNK, damaged, edited, encoded, fuzz
from harness import Pools
from mcr_dl import _C, InvalidArgumentError
from mcr_dl.base import documents
from mcr_dl.commands.console import Console
from mcr_dl.networks.network import Network
from mcr_dl.networks.plans import plan
from mcr_dl.records.log import Record, RecordedGroup
from mcr_dl.runtime import topologies
from mcr_dl.tables import choice, table
from mcr_dl.tables.host import host
from mcr_dl.tables.model import Exclusion, Table, content
from mcr_dl.trace import _breakdown, _chrome, _configure, _files, _flight_recorder, _param
from mcr_dl.trace import show as views
from mcr_dl.trace._clock import SAME, Clock
from mcr_dl.trace._regions import Region
from mcr_dl.tuning import diff, show
from mcr_dl.tuning._journal import Journal, Plan, Progress, Unit
from mcr_dl.tuning.tuner import scale_of
from ranks import fuzz as on_rank

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


# ---- tuning tables


def _table_document() -> Any:
    exclusion = Exclusion("all_reduce", "bool", "gloo", "wrong result")
    whole = made.make(made.scale(2, excluded=(exclusion,)), made.scale(4, 2), settings={"quick": True, "x": 1.5})
    return json.loads(json.dumps({**content(whole), "checksum": whole.digest}))


TABLE = _table_document()


def _use_table(found: Table) -> None:
    """Do everything with a table; an error of mcr_dl is accepted."""
    other = made.make()
    console = Console(file=io.StringIO(), width=200)
    table.check(found, host())
    assert len(found.digest) == 64
    for scale in found.scales:
        costs = choice.costs_of(scale)
        _C.cheapest([points for *_, points in costs["curves"]])
        documents.parse(json.dumps(costs), "costs", limit=1 << 30)
    steps: list[Callable[[], Any]] = [
        lambda: show.show(found, console, None),
        lambda: show.show(found, console, "all_reduce"),
        lambda: diff.show(found, other, diff.differences(found, other), console),
        lambda: diff.show(other, found, diff.differences(other, found), console),
    ]
    for step in steps:
        with suppress(InvalidArgumentError):
            step()


def _table_of(folder: Path, content: bytes) -> Table | None:
    path = folder / "table.json"
    path.write_bytes(content)
    try:
        return table.read(path)
    except InvalidArgumentError as error:
        assert str(path) in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
        return None


@fuzz(250)
@given(document=edited(TABLE))
def test_tables(folder: Path, document: Any) -> None:
    """A changed, removed or new value: every table that can be read can be used."""
    found = _table_of(folder, encoded(document))
    if found is not None:
        _use_table(found)


@fuzz(150)
@given(content=damaged(encoded(TABLE)))
def test_damaged_tables(folder: Path, content: bytes) -> None:
    """Lost, changed and repeated bytes."""
    found = _table_of(folder, content)
    if found is not None:
        _use_table(found)


@pytest.mark.parametrize("value", [4.0, 1e300, 2**62, 2**63, 10**400, 0, -1])
@pytest.mark.parametrize(
    "path",
    [
        ("scales", 0, "ranks"),
        ("scales", 0, "curves", 0, "samples", 2, "bytes"),
        ("scales", 0, "curves", 0, "samples", 1, "n"),
        ("scales", 0, "curves", 0, "samples", 0, "median_us"),
        ("scales", 0, "winners", 0, "ranges", 1, "from"),
        ("host", "cores"),
    ],
    ids=lambda path: ".".join(map(str, path)),
)
def test_numbers_of_a_table(folder: Path, path: tuple[Any, ...], value: float) -> None:
    """Each number at the ends of its range, and far beyond."""
    document = json.loads(json.dumps(TABLE))
    parent = document
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    found = _table_of(folder, encoded(document))
    if found is not None:
        _use_table(found)


@fuzz(12)
@given(document=edited(TABLE["scales"][0]["curves"], [each for each in JUNK if not isinstance(each, str)]))
def test_tables_reach_a_group(pools: Pools, folder: Path, document: Any) -> None:
    """At init: the program starts and its calls are right, or the table is rejected."""
    content = {**TABLE, "scales": [{**TABLE["scales"][0], "curves": document}]}
    path = folder / "started.json"
    path.write_bytes(encoded(content))
    variables = {"MCR_DL_TUNING_TABLE": str(path)}
    answers = pools.get("processes", 2).run(on_rank.start_with, variables, ["gloo", "mpi"], limit=30.0)
    assert answers in (["started"] * 2, ["InvalidArgumentError"] * 2)


# ---- topologies

TOPOLOGY = {
    "format": "mcr-dl topology",
    "version": 1,
    "dimensions": [
        {"name": "rail", "size": 2, "bandwidth": 25 * 10**9, "latency": 3000, "backend": "mpi"},
        {"name": "host", "size": 2},
    ],
    "ranks": [0, 2, 1, 3],
}


def _use_topology(folder: Path, content: bytes) -> None:
    path = folder / "topology.json"
    path.write_bytes(content)
    told = topologies.own({"MCR_DL_TOPOLOGY": str(path)})
    if told["problem"]:
        assert str(path) in told["problem"]
        assert "\n" not in told["problem"]
        return
    try:
        document = topologies.decide([told, json.loads(json.dumps(told))], 4)
        assert document is not None
        topologies.check_backends(document, lambda _: ["mpi"])
        grid = topologies.grid_of(document, 4)
    except InvalidArgumentError:
        return
    assert grid is not None
    for rank in range(4):
        assert all(rank in grid.line(rank, index) for index in range(len(grid.dimensions)))


@fuzz(200)
@given(document=edited(TOPOLOGY))
def test_topologies(folder: Path, document: Any) -> None:
    """A changed, removed or new value: a topology of four ranks, or an error."""
    _use_topology(folder, encoded(document))


@fuzz(100)
@given(content=damaged(encoded(TOPOLOGY)))
def test_damaged_topologies(folder: Path, content: bytes) -> None:
    """Lost, changed and repeated bytes."""
    _use_topology(folder, content)


# ---- networks

NETWORK = {
    "dimensions": [
        {"kind": "ring", "size": 4, "gbps": 400, "latency_us": 0.5, "links": 2},
        {"kind": "switch", "size": 8, "gbps": 12.5, "latency_us": 2, "links": 1},
    ]
}


@fuzz(200)
@given(document=edited(NETWORK))
def test_networks(folder: Path, document: Any) -> None:
    """A network on which a call has a plan, or an InvalidArgumentError."""
    path = folder / "network.json"
    path.write_bytes(encoded(document))
    with suppress(InvalidArgumentError):
        found = plan(Network.read(path), "all_reduce", 1 << 20, policy="themis-scf", chunks=8)
        assert found.makespan > 0
        assert 0 < found.utilization <= 1


# ---- traces

GROUP = RecordedGroup("default", 0, 0, (0, 1))


def _record(number: int, **values: Any) -> Record:
    fields: dict[str, Any] = {
        "number": number, "seq": number, "group": GROUP, "op": "all_reduce", "vectored": False, "peer": False,
        "dtype": "float32", "red": "SUM", "root": None, "tag": None, "backend": "mpi", "asynchronous": True,
        "in_count": 4, "out_count": 4, "in_splits": (), "out_splits": (),
        "truncated": False, "nbytes": 16, "sent_bytes": None,
        "fused": False, "codec": None, "issue": 10 * number, "start": 10 * number + 1, "end": 10 * number + 5,
        "wait_begin": 10 * number + 3, "wait_end": 10 * number + 5, "waited": 2, "state": "completed", "thread": 7,
        "caller": None, **values,
    }  # fmt: skip
    return Record(**fields)


def _trace_document(folder: Path) -> Any:
    messages = {"op": "send", "peer": True, "root": 1, "tag": 3, "red": None, "asynchronous": False}
    splits = {"op": "all_to_all", "vectored": True, "in_splits": (1, 3), "out_splits": (2, 2), "red": None}
    records = [_record(1), _record(2, **messages), _record(3, **splits, codec="bf16", sent_bytes=8)]
    trace = _files.Trace(0, 1, Clock(0, 0, SAME, 5, 10**18), records, [Region("step", 1, 99, 7)], 0, 200)
    known = {"host": "h", "job": "j"}
    return json.loads(_files.write(replace(trace, provenance=known), folder).read_text())


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _trace_document(tmp_path_factory.mktemp("whole"))


def _use_traces(place: Path) -> None:
    """Do everything that mcr-trace does; an error of mcr_dl is accepted."""
    try:
        found = _files.read_all(place)
    except InvalidArgumentError as error:
        assert str(place) in str(error)  # noqa: PT017
        return
    steps: list[Callable[[], Any]] = [
        lambda: json.dumps(_chrome.chrome(found)),
        lambda: json.dumps(_param.param(found).ranks),
        lambda: _flight_recorder.flight_recorder(found),
        lambda: [_breakdown.whole(each) for each in found],
        lambda: views.show(found),
    ]
    for step in steps:
        with suppress(InvalidArgumentError):
            step()


def _in_folder(folder: Path, content: bytes) -> Path:
    place = folder / "traces"
    place.mkdir(exist_ok=True)
    (place / "rank0.json").write_bytes(content)
    return place


def test_traces(folder: Path, trace: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed, removed or new value: every trace that can be read can be shown and exported."""

    @fuzz(300)
    @given(document=edited(trace))
    def run(document: Any) -> None:
        _use_traces(_in_folder(folder, encoded(document)))
        capsys.readouterr()

    run()


@pytest.mark.parametrize("root", [2, 2**31, -2])
def test_roots_of_a_trace(folder: Path, trace: Any, root: int) -> None:
    """A root is a rank of its group; so is the recording rank."""
    document = json.loads(json.dumps(trace))
    document["records"][0][document["fields"].index("root")] = root
    with pytest.raises(InvalidArgumentError, match=r"records\.root: expected a rank of a group of 2"):
        _files.read_all(_in_folder(folder, encoded(document)))
    document = json.loads(json.dumps(trace))
    document["groups"][0]["rank"] = root
    with pytest.raises(InvalidArgumentError, match=r"groups\[0\]: expected a rank below 2"):
        _files.read_all(_in_folder(folder, encoded(document)))


def test_damaged_traces(folder: Path, trace: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Lost, changed and repeated bytes."""

    @fuzz(150)
    @given(content=damaged(encoded(trace)))
    def run(content: bytes) -> None:
        _use_traces(_in_folder(folder, content))
        capsys.readouterr()

    run()


# ---- journals, configurations

PLAN = Plan(2, ("mpi", "gloo"), (Unit("all_reduce", "float32", (4, 64)),), 0.1, 0.1, "cpu", ())
WHERE = {"operation": "all_reduce", "dtype": "float32"}
TIMES = {"n": 9, "min_us": 1.0, "median_us": 2.0, "p99_us": 3.0}
EVENTS: list[dict[str, Any]] = [
    {"event": "ready", "nodes": 1, "ranks_per_node": 2, "devices": 0, "bound": True, "libraries": {"mpi": "MPICH"}}
    | dict.fromkeys(("fingerprint", "mcr_dl", "torch", "python"), "x"),
    {"event": "step", **WHERE, "bytes": 4, "phase": "time", "candidates": ["mpi", "gloo"]},
    {"event": "sample", **WHERE, "candidate": "mpi", "bytes": 4, **TIMES},
    {"event": "excluded", **WHERE, "candidate": "gloo", "reason": "hung"},
    {"event": "apart", **WHERE},
    {"event": "done", **WHERE},
]


@fuzz(150)
@given(events=edited(EVENTS), cut=st.integers(0, 40))
@example([{"event": []}], 0)
@example([7], 0)
def test_journals(folder: Path, events: Any, cut: int) -> None:
    """--resume with a journal that was edited, or that ends anywhere."""
    path = folder / "journal"
    lines = [asdict(PLAN), *(events if isinstance(events, list) else [events])]
    content = b"".join(encoded(line) + b"\n" for line in lines)
    path.write_bytes(content[: len(content) - cut])
    progress = Progress()
    with suppress(InvalidArgumentError):
        progress = Journal(path).resume(PLAN)
    scale_of(PLAN, progress)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        *((2, "bytes", value) for value in (4.0, True, -1, 2**70)),
        *((2, "median_us", value) for value in (-1.0, 1e300, float("nan"), True)),
        (0, "nodes", "x"),
        (0, "libraries", {"mpi": 7}),
    ],
)
def test_values_of_a_journal(folder: Path, place: int, name: str, value: Any) -> None:
    """They are rejected, not taken for numbers."""
    path = folder / "journal"
    path.write_text("".join(json.dumps(line) + "\n" for line in (asdict(PLAN), {**EVENTS[place], name: value})))
    with pytest.raises(InvalidArgumentError, match="expected the journal of mcr-tune"):
        Journal(path).resume(PLAN)
    path.write_text("".join(json.dumps(line) + "\n" for line in (asdict(PLAN), EVENTS[place])))
    Journal(path).resume(PLAN)


def test_a_torn_journal(folder: Path) -> None:
    """A partial line of a killed process is removed when the next is written; no other line is skipped."""
    journal = Journal(folder / "journal")
    journal.begin(PLAN)
    journal.add("done", **WHERE)
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + b'{"event": "do')
    assert Journal(journal.path).resume(PLAN).done == {PLAN.units[0].key}
    journal.add("apart", **WHERE)
    assert journal.path.read_bytes().startswith(whole + b'{"event": "apart"')
    assert Journal(journal.path).resume(PLAN).apart == {PLAN.units[0].key}
    journal.path.write_bytes(whole + b'{"event": "do\n')
    with pytest.raises(InvalidArgumentError, match=r"expected the journal of mcr-tune, got .*start without --resume"):
        Journal(journal.path).resume(PLAN)


CONFIGURATION = {
    "train_batch_size": 8,
    "comms_logger": {"enabled": False, "prof_all": True, "prof_ops": ["all_reduce"]},
}


@fuzz(100)
@given(document=edited(CONFIGURATION))
def test_configurations(folder: Path, document: Any) -> None:
    """configure() with a DeepSpeed file: settings, or an error."""
    path = folder / "deepspeed.json"
    path.write_bytes(encoded(document))
    with suppress(InvalidArgumentError):
        for name, value in _configure._read(path).items():
            _configure._checked(name, value)


def test_the_documents_are_valid(folder: Path, trace: Any) -> None:
    """Each document that the tests above edit is accepted: else all edits would end in one early check."""
    assert _table_of(folder, encoded(TABLE)) is not None
    path = folder / "whole.json"
    path.write_bytes(encoded(TOPOLOGY))
    told = topologies.own({"MCR_DL_TOPOLOGY": str(path)})
    document = topologies.decide([told] * 4, 4)
    assert document is not None, told
    topologies.check_backends(document, lambda _: ["mpi"])
    path.write_bytes(encoded(NETWORK))
    assert plan(Network.read(path), "all_reduce", 1 << 20, policy="themis-scf", chunks=8).makespan > 0
    assert len(_files.read_all(_in_folder(folder, encoded(trace)))) == 1
    path.write_bytes(b"".join(encoded(line) + b"\n" for line in (asdict(PLAN), *EVENTS)))
    assert Journal(path).resume(PLAN).done == {PLAN.units[0].key}
    path.write_bytes(encoded(CONFIGURATION))
    assert {name: _configure._checked(name, value) for name, value in _configure._read(path).items()}


# ---- limits


def _readers(path: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "table", lambda: table.read(path)
    yield "trace", lambda: _files.read(path)
    yield "configuration", lambda: _configure._read(path)


READERS = ["table", "trace", "configuration"]


@pytest.mark.parametrize("reader", READERS)
def test_a_gigabyte(tmp_path: Path, reader: str) -> None:
    """A file that is far too large is rejected by its size: no more than the limit is read."""
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # a sparse file: it takes no space
    with pytest.raises(InvalidArgumentError, match=r"expected at most \d+ bytes, got 1073741824"):
        dict(_readers(path))[reader]()
    digest = choice._digest(path)
    assert digest is None


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "[" * 70 + "]" * 70, '{"a":' * 70 + "1" + "}" * 70], ids=str.__len__
)
def test_depth(tmp_path: Path, reader: str, text: str) -> None:
    """Deeply nested lists end in one clear error."""
    path = tmp_path / "deep.json"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match="inside each other"):
        dict(_readers(path))[reader]()


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_no_file(tmp_path: Path, reader: str) -> None:
    """No reader waits for data that may never be written."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(InvalidArgumentError, match="expected a regular file"):
        dict(_readers(path))[reader]()
    with pytest.raises(InvalidArgumentError, match="expected a regular file"):
        dict(_readers(Path("/dev/zero")))[reader]()


@pytest.mark.timeout(20)
def test_many_keys() -> None:
    """Looking for repeated keys takes time in proportion to their number."""
    text = "{" + ",".join(f'"k{index}":0' for index in range(200_000)) + ',"k7":1}'
    with pytest.raises(InvalidArgumentError, match="'k7' twice"):
        documents.parse(text, "it", limit=1 << 24)


@pytest.mark.parametrize("reader", READERS)
def test_half_a_character(tmp_path: Path, reader: str) -> None:
    """JSON can name lone surrogates, which cannot be printed: rejected."""
    path = tmp_path / "half.json"
    path.write_text('{"x": "\\ud800"}')
    with pytest.raises(InvalidArgumentError, match=r"expected valid Unicode, got the lone surrogate \\ud800"):
        dict(_readers(path))[reader]()


def test_names_of_any_bytes(tmp_path: Path) -> None:
    """Every name that Linux allows is written so that it can be read."""
    named = _files.Trace(0, 1, Clock(0, 0, SAME, 5, 10**18), [], [Region(os.fsdecode(b"a\xff\xc3\xa9"), 1, 2, 3)], 0, 9)
    place = _files.write(named, tmp_path)
    assert _files.read(place).regions[0].name == "a?é"
