# SPDX-License-Identifier: Apache-2.0
"""Views of the log: each against records whose numbers can be checked by hand, and on traces of real ranks."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as torch_dist

from harness import Pools
from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.commands.console import Console
from mcr_dl.commands.text import colours
from mcr_dl.records import statistics
from mcr_dl.records.log import Record, RecordedGroup
from mcr_dl.trace import _breakdown as breakdown
from mcr_dl.trace import _clock, _files, _stragglers, plot, show
from mcr_dl.trace._chrome import chrome
from mcr_dl.trace._files import Trace
from mcr_dl.trace._flight_recorder import flight_recorder
from mcr_dl.trace._param import param
from mcr_dl.trace._regions import Region
from mcr_dl.trace.cli import main
from ranks import log

MS = 1_000_000
WORLD = (0, 1)


def _group(rank: int = 0, name: str = "default", ranks: tuple[int, ...] = WORLD) -> RecordedGroup:
    return RecordedGroup(name, 0, rank, ranks)


def _record(op: str, begin: float, end: float | None, **more: Any) -> Record:
    """A blocking call of 1000 floats from `begin` to `end`, in ms, unless `more` says otherwise."""
    values: dict[str, Any] = {**dict.fromkeys(Record._fields), **Record._field_defaults}
    values.update(
        number=1, seq=1, group=_group(), op=op, vectored=False, peer=op in ("send", "recv"), dtype="float32",
        backend="mpi", asynchronous=False, in_count=0, out_count=1000, in_splits=(), out_splits=(), truncated=False,
        nbytes=4000, fused=False, issue=int(begin * MS), start=int(begin * MS),
        end=None if end is None else int(end * MS), waited=0, state="issued" if end is None else "completed", thread=7,
    )  # fmt: skip
    return Record(**{**values, **more})


def _work(op: str, begin: float, start: float, end: float, wait: tuple[float, float] | None, **more: Any) -> Record:
    """An asynchronous call that was handed over at `start` and waited for in `wait`."""
    times: dict[str, Any] = {"asynchronous": True, "start": int(start * MS)}
    if wait is not None:
        first, last = int(wait[0] * MS), int(wait[1] * MS)
        times.update(wait_begin=first, wait_end=last, waited=last - first)
    return _record(op, begin, end, **{**times, **more})


def _trace(
    records: Sequence[Record], *, rank: int = 0, ranks: int = 1, regions: Sequence[Region] = (), **more: Any
) -> Trace:
    clock = more.pop("clock", _clock.Clock(0, 0, _clock.SAME, 0, 0))
    return Trace(rank, ranks, clock, list(records), list(regions), more.pop("lost", 0), 100 * MS, {"host": "h"})


# ---- statistics


def test_means_leave_outliers_out() -> None:
    assert statistics.trimmed_mean([100.0, *[2.0] * 8, 0.0]) == 2.0
    assert statistics.trimmed_mean([1.0, 2.0]) == 1.5
    assert statistics.trimmed_mean([]) == 0.0


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """1 MB in 1 ms is 8 Gbps; the bus carries 2(n-1)/n of an all_reduce and (n-1)/n of an all_gather's total."""
    ranks = (0, 1, 2, 3)
    for op, factor in (("all_reduce", 1.5), ("all_gather", 0.75), ("broadcast", 1.0)):
        record = _record(op, 1, 2, nbytes=1_000_000, group=_group(ranks=ranks))
        assert statistics.rates(record) == pytest.approx((8.0, 8.0 * factor))
    assert statistics.rates(_record("recv", 1, 2, nbytes=1_000_000)) == pytest.approx((8.0, 8.0))
    assert statistics.rates(_record("barrier", 1, 2, nbytes=0)) == (0.0, 0.0)


def test_a_line_of_a_summary() -> None:
    records = [_record("all_reduce", 0, each) for each in (1, 2, 3, 4, 100)]
    line = statistics.Line.of(records)
    assert (line.count, line.total_latency_ms, line.p50_latency_ms) == (5, 110, 3)
    assert line.avg_latency_ms == 22  # a tenth of five is none
    parts = statistics.by_size([*records, _record("all_reduce", 0, 1, nbytes=8), _record("all_reduce", 0, None)])
    assert {key: len(part) for key, part in parts.items()} == {("all_reduce", 8): 1, ("all_reduce", 4000): 5}
    assert statistics.label(_record("all_reduce", 0, 1, caller="step")) == "all_reduce | [Caller Func: step]"
    assert [statistics.size_text(each) for each in (0, 1023, 4096, 1 << 20)] == [
        "0.0 B",
        "1023.0 B",
        "4.0 KB",
        "1.0 MB",
    ]


def test_stragglers_are_matched_by_number() -> None:
    """Rank 1 is 3 ms late for the first call and lacks the third; messages are left out."""
    first = [
        _record("all_reduce", 0, 4),
        _record("all_reduce", 5, 6, seq=2),
        _record("all_reduce", 7, 8, seq=3),
        _record("send", 8, 9),
    ]
    second = [_record("all_reduce", 3, 4), _record("all_reduce", 5, 7, seq=2)]
    rows = _stragglers.match([_stragglers.mine(first), _stragglers.mine(second)])
    matched = {(group, instance, seq): (least, rank) for group, instance, seq, least, rank in rows}
    assert matched == {("default", 0, 1): (MS, 1), ("default", 0, 2): (MS, 0)}
    entry = _stragglers.analysis(first, matched)["all_reduce"][4000]
    assert (entry["count"], entry["total_comm_lat_ms"], entry["total_straggler_ms"]) == (2, 2, 3)
    assert entry["last_ranks"] == {0: 1, 1: 1}
    assert _stragglers.analysis(second, matched)["all_reduce"][4000]["total_straggler_ms"] == 1


# ---- the breakdown of time


def test_stragglers_of_a_large_ring() -> None:
    """The newest collectives of a rank fit into one value at the store, also with groups of long names."""
    group = _group(name="tensor_parallel_group_of_the_second_pipeline_stage_7")
    records = [_record("all_reduce", 0, 1e3, seq=number, group=group) for number in range(1, 4)]
    with mock.patch.object(_stragglers, "MOST", 2):
        assert [row[2] for row in _stragglers.mine(records)] == [2, 3]
    (row, *_) = _stragglers.mine(records)
    largest = [[row[0], 1000, 1 << 40, row[3], 100_000]]
    assert len(agreement.encode(largest)) * _stragglers.MOST < agreement._LARGEST


def test_stragglers_of_many_groups() -> None:
    """The answer for the whole job has the newest collectives of each group, and is limited as a rank's value is."""
    everyone = [[[f"pair {rank // 2}", 0, seq, MS, 2] for seq in range(1, 6)] for rank in range(6)]
    with mock.patch.object(_stragglers, "MOST", 7):
        assert sorted((row[0], row[2]) for row in _stragglers.match(everyone)) == [
            (f"pair {pair}", seq) for pair in range(3) for seq in (4, 5)
        ]


def test_breakdown() -> None:
    """From 0 to 20 ms: 4 in a blocking call, 1 + 3 in an asynchronous one, which ran during 6 ms of computation."""
    trace = _trace([_record("all_reduce", 0, 4), _work("all_to_all", 5, 6, 15, (12, 15)), _record("barrier", 20, 20)])
    found = breakdown.whole(trace)
    assert found.total == pytest.approx(0.020)
    assert found.exposed == pytest.approx({"all_reduce": 0.004, "all_to_all": 0.004})
    assert found.compute == pytest.approx(0.012)
    assert found.overlapped == pytest.approx(0.006)


def test_a_region_with_the_name_of_the_whole() -> None:
    """It is a region like any other."""
    records = [_record("all_reduce", 0, 4)]
    regions = [Region(breakdown.WHOLE, 0, 20 * MS, 7)]
    traces = [_trace(records, rank=rank, ranks=2, regions=regions) for rank in range(2)]
    (bar,) = plot.bars(traces)
    assert (bar.name, bar.total) == (breakdown.WHOLE, pytest.approx(0.020))
    written = io.StringIO()
    show.show(traces, Console(file=written))
    assert "Where the time went: all" in written.getvalue()


def test_a_trace_that_is_too_large_to_be_read(tmp_path: Path) -> None:
    """A warning when it is written."""
    with mock.patch.object(_files, "LARGEST", 100), pytest.warns(UserWarning, match="of at most 100 bytes, which mcr-"):
        assert _files.write(_trace([]), tmp_path).exists()


def test_breakdown_of_many_ranks() -> None:
    """A column for each."""
    written, ranks = io.StringIO(), 150
    traces = [_trace([_record("all_reduce", 0, 4)], rank=rank, ranks=ranks) for rank in range(ranks)]
    show.show(traces, Console(file=written))
    head = next(line for line in written.getvalue().splitlines() if "rank 0" in line)
    assert head.split() == [*" ".join(f"rank {rank}" for rank in range(ranks)).split(), "mean"]


def test_breakdown_counts_no_time_twice() -> None:
    """Two threads are in calls at once; a call that is still running lasts until the trace was saved (100 ms)."""
    found = breakdown.whole(_trace([_record("all_reduce", 0, 10), _record("broadcast", 5, 12, thread=8)]))
    assert found.exposed == pytest.approx({"all_reduce": 0.010, "broadcast": 0.002})
    assert found.compute == pytest.approx(0)
    assert breakdown.whole(_trace([_record("all_reduce", 90, None)])).exposed == pytest.approx({"all_reduce": 0.010})
    assert breakdown.whole(_trace([])).total == 0


def test_breakdown_by_region() -> None:
    """Each region counts its own time, over all of its occurrences; a region that not all ranks have is left out."""
    records = [_record("all_reduce", 1, 3), _record("all_reduce", 9, 12), _work("all_gather", 20, 20, 26, (24, 26))]
    regions = [Region("a", 0, 10 * MS, 7), Region("b", 10 * MS, 20 * MS, 7), Region("a", 20 * MS, 30 * MS, 7)]
    trace = _trace(records, ranks=2, regions=regions)
    first, second = breakdown.by_region(trace)
    assert (first.name, first.total, second.name) == ("a", pytest.approx(0.020), "b")
    assert first.exposed == pytest.approx({"all_gather": 0.002, "all_reduce": 0.003})
    assert first.overlapped == pytest.approx(0.004)
    assert second.exposed == pytest.approx({"all_reduce": 0.002})
    other = _trace(records, rank=1, ranks=2, regions=regions[:1])
    assert list(breakdown.tables([trace, other])) == ["a"]
    mean = breakdown.mean(breakdown.tables([trace, other])["a"])
    assert mean.total == pytest.approx(0.015)
    assert mean.exposed == pytest.approx({"all_gather": 0.001, "all_reduce": 0.003})


def test_regions_that_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary and the picture name them, as the time in them is in no table."""
    records = [_record("all_reduce", 1, 3)]
    names = [["step", "evaluate"], ["step"], ["step", "evaluate", "save"]]
    for rank, regions in enumerate(names):
        spans = [Region(name, 0, 10 * MS, 7) for name in regions]
        _files.write(_trace(records, rank=rank, ranks=3, regions=spans), tmp_path / "traces")
    texts = ["region 'evaluate', which only ranks 0, 2 recorded", "region 'save', which only rank 2 recorded"]
    for arguments in (["summary"], ["plot", "-o", str(tmp_path / "chart.png")]):
        assert main([arguments[0], str(tmp_path / "traces"), *arguments[1:]]) == 0
        said = capsys.readouterr().out
        assert re.findall("left out: (.*)", said) == texts, said
    assert main(["summary", str(tmp_path / "traces"), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (list(found["regions"]), found["left_out"]) == (["step"], {"evaluate": [0, 2], "save": [2]})


def test_the_bars_are_the_breakdown() -> None:
    trace = _trace([_record("all_reduce", 0, 4), _work("all_to_all", 5, 6, 15, (12, 15)), _record("barrier", 20, 20)])
    axes = plot.figure_of([trace]).axes[0]
    heights = [patch.get_height() for patch in axes.patches]
    assert heights == pytest.approx([0.012, 0.004, 0.004])
    texts = [text.get_text() for text in axes.texts]
    assert "12.0 ms  60%" in texts
    assert "20.0 ms" in texts


@pytest.mark.parametrize("regions", [["step"], [], ["gloo", "mpi", "a $x_{$ costs $1", "auto"]], ids=len)
def test_the_picture_shows_its_words(regions: list[str]) -> None:
    """Its title and legend are inside it, apart from each other and from the bars; each operation has a color."""
    names = [str(row["name"]) for row in _C.ops()]
    records = [_record(name, 2 * place + 1, 2 * place + 2) for place, name in enumerate(names)]
    spans = [Region(name, 0, 90 * MS, 7) for name in regions]
    figure = plot.figure_of([_trace(records, rank=rank, ranks=2, regions=spans) for rank in (0, 1)])
    figure.savefig(io.BytesIO(), format="png")  # places everything
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    assert figure.get_suptitle().startswith("Compute and exposed communication: ")
    title, names_box = figure._suptitle.get_window_extent(), legend.get_window_extent()
    for box in (title, names_box):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert not title.overlaps(names_box)
    assert axes.bbox.x1 <= names_box.x0
    assert [text.get_text() for text in legend.get_texts()] == ["compute", *sorted(names)][::-1]
    assert len({patch.get_facecolor() for patch in legend.get_patches()}) == len(names) + 1
    assert [tick.get_text() for tick in axes.get_xticklabels()] == (regions or ["rank 0", "rank 1"])


def test_every_name_has_a_colour_of_its_own() -> None:
    """Operations, and candidates such as the variants of many backends."""
    names = [f"backend:{number}" for number in range(40)]
    found = colours(names)
    assert len(set(found.values())) == len(names)
    assert found == colours(reversed(names))
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in found.values())


# ---- trace files and clocks


def test_files_keep_everything(tmp_path: Path) -> None:
    records = [
        _record("all_to_all", 0, 4, vectored=True, in_splits=(1, 2), out_splits=(3, 4), codec="bf16", sent_bytes=9),
        _work("all_gather", 1, 2, 3, None, group=_group(0, "tail", (0,)), number=2),
    ]
    clock = _clock.Clock(5, 6, _clock.PING, 7, 8)
    trace = _trace(records, regions=[Region("step", 1, 2, 3)], clock=clock, lost=4)
    assert _files.read(_files.write(trace, tmp_path / "a")) == trace
    file = _files.write(trace, tmp_path / "b" / "run.json")
    assert file.name == "run.rank0.json"
    assert _files.read_all(tmp_path / "b" / "run.json") == _files.read_all(tmp_path / "a") == [trace]


def test_files_of_an_older_version(tmp_path: Path) -> None:
    """Candidates are read with their current names; missing fields have their defaults."""
    records = [_record("broadcast", 0, 1, backend=name) for name in ("mpi:p2p", "gloo+mpi:67", None)]
    file = _files.write(_trace(records), tmp_path)
    document = json.loads(file.read_text())
    assert document["fields"][-2:] == ["priority", "key"]
    document["fields"] = document["fields"][:-2]
    document["records"] = [row[:-2] for row in document["records"]]
    file.write_text(json.dumps(document))
    read = _files.read(file)
    assert [record.backend for record in read.records] == ["mpi:p2p", "stripe(gloo,mpi,67)", None]
    assert {(record.priority, record.key) for record in read.records} == {(0, None)}


def test_files_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the file and the error, and exit code 2."""

    def said(path: Path) -> str:
        assert main(["summary", str(path)]) == 2
        return capsys.readouterr().err

    assert "got none" in said(tmp_path)
    file = _files.write(_trace([], ranks=2), tmp_path)
    assert "each of 2 ranks, got those of ranks [0]" in said(tmp_path)
    whole = json.loads(file.read_text())
    file.write_text(json.dumps({**whole, "version": 99}))
    assert "rank0.json: expected a trace of version 1, got mcr-dl trace 99" in said(tmp_path)
    file.write_text("{")
    assert "rank0.json: expected a trace" in said(tmp_path)


def test_clocks_by_ping() -> None:
    """Two ranks that share a clock but do not know it: the measured offset is 0 within the stated error."""
    store, found = torch_dist.HashStore(), {}

    def rank(number: int) -> None:
        prefixed = torch_dist.PrefixStore("p", store)
        domain = f"host {number}".__str__
        found[number] = _clock.measure(prefixed, number, 2, timedelta(seconds=20), domain=domain)

    threads = [threading.Thread(target=rank, args=(each,)) for each in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    offset, error, method = found[1]
    assert found[0] == (0, 0, _clock.SAME)
    assert method == _clock.PING
    assert abs(offset) <= error


def test_offsets() -> None:
    """Rank 0's clock if all were compared with it; otherwise the hosts' wall clocks."""
    ping = _clock.Clock(50, 5, _clock.PING, 1000, 9000)
    wall = _clock.Clock(0, None, _clock.WALL, 1000, 9000)
    zero = _trace([], clock=_clock.Clock(0, 0, _clock.SAME, 2000, 9500))
    assert _files.offsets([zero, _trace([], clock=ping)]) == [0, 50]
    assert _files.offsets([zero, _trace([], clock=wall)]) == [0, 500]


# ---- formats of other tools


def _slices(document: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    return [event for event in events if all(event[name] == value for name, value in wanted.items())]


def test_chrome_of_hand_made_records() -> None:
    """Times in µs from the first event on, on rank 0's clock; works that overlap lie on different tracks."""
    mine = [
        _record("all_reduce", 10, 12),
        _work("all_gather", 13, 14, 20, (16, 20)),
        _work("broadcast", 15, 15, 18, None),
    ]
    theirs = [_record("all_reduce", 2, 5)]
    ahead = _clock.Clock(9 * MS, 1000, _clock.PING, 0, 0)
    document = chrome([_trace(mine, ranks=2), _trace(theirs, rank=1, ranks=2, clock=ahead)])
    (first,) = _slices(document, cat="blocking", pid=0)
    (second,) = _slices(document, cat="blocking", pid=1)
    assert (first["ts"], first["dur"], first["name"]) == (0, 2000, "all_reduce [mpi]")
    assert (second["ts"], second["dur"]) == (1000, 3000)
    assert first["args"]["seq"] == 1
    assert first["args"]["nbytes"] == 4000
    works = _slices(document, cat="asynchronous")
    assert [(work["ts"], work["dur"]) for work in works] == [(3000, 7000), (5000, 3000)]
    assert works[0]["tid"] != works[1]["tid"]
    (wait,) = _slices(document, cat="wait")
    assert (wait["ts"], wait["dur"], wait["tid"]) == (6000, 4000, first["tid"])
    assert document["otherData"]["clocks"]["1"] == {"method": "ping over the store", "error_ns": 1000}


def _check_chrome(document: dict[str, Any], ranks: int) -> None:
    """The rules of the trace-event format: complete events nest on their track, arrows have a begin and steps."""
    events = document["traceEvents"]
    assert {event["pid"] for event in events} == set(range(ranks))
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in _slices(document):
        assert event["dur"] >= 0
        assert event["ts"] >= 0
        tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        open_until: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.001
            open_until.append(end)
    named = {(event["pid"], event["tid"]) for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    assert named == set(tracks)
    flows = [event for event in events if event["ph"] in "stf"]
    for number in {event["id"] for event in flows}:
        phases = [event["ph"] for event in flows if event["id"] == number]
        assert phases in (["s", "t"], ["s", "t", "f"])


def test_chrome_of_several_threads() -> None:
    """Regions and calls of each thread have tracks of their own, whatever the numbers of the threads."""
    regions = [Region("a", 0, 10 * MS, 999_999), Region("b", 5 * MS, 15 * MS, 1_000_000)]
    calls = [_work("all_gather", 1, 2, 9, (3, 9), thread=thread) for thread in (999_999, 1_000_000)]
    document = chrome([_trace(calls, regions=regions)])
    _check_chrome(document, 1)
    assert len({each["tid"] for each in _slices(document)}) == 6


def test_param_of_hand_made_records() -> None:
    """Groups first, then calls and waits in order; sizes in elements, ranks of the job."""
    tail = _group(1, "tail", (1, 2))
    records = [
        _work("all_reduce", 1, 2, 9, (7, 9), number=5),
        _record(
            "all_to_all",
            3,
            4,
            vectored=True,
            in_splits=(1, 2),
            out_splits=(3, 4),
            in_count=3,
            out_count=7,
            number=6,
            seq=2,
        ),
        _record("broadcast", 5, 6, group=tail, root=0, number=7),
        _record("send", 6, 6.5, group=tail, root=0, number=8),
        _record("gather", 7, 8, vectored=True, seq=3),
        _record("all_reduce", 8, 9, dtype="complex64", seq=4),
    ]
    export = param([_trace(records, rank=0)])
    (entries,) = export.ranks
    assert entries[0] == {"comms": "init", "pg_id": 0, "req": -1, "world_size": 2, "global_ranks": [0, 1]}
    assert entries[1]["global_ranks"] == [1, 2]
    order = [(entry["comms"], entry["req"]) for entry in entries[2:]]
    assert order == [
        ("all_reduce", 5), ("all_to_allv", 6), ("wait", 6), ("broadcast", 7), ("wait", 7), ("send", 8), ("wait", 8),
        ("wait", 5),
    ]  # fmt: skip
    by_name = {entry["comms"]: entry for entry in entries}
    assert (by_name["all_reduce"]["in_msg_size"], by_name["all_reduce"]["out_msg_size"]) == (1000, 1000)
    assert (by_name["all_to_allv"]["in_split"], by_name["all_to_allv"]["out_split"]) == ([1, 2], [3, 4])
    assert (by_name["broadcast"]["root"], by_name["broadcast"]["pg_id"]) == (1, 1)
    assert (by_name["send"]["src_rank"], by_name["send"]["dst_rank"], by_name["send"]["use_batch"]) == (2, 1, False)
    assert sum(export.left_out.values()) == 2
    assert any("gatherv" in reason for reason in export.left_out)
    assert any("complex64" in reason for reason in export.left_out)


def test_param_leaves_out_on_all_ranks_what_one_leaves_out() -> None:
    """Otherwise a replay waits: for collectives that one rank has no counts of, and for messages without their half."""
    more = {"vectored": True, "in_splits": (1, 1), "out_splits": (1, 1)}
    mine = [
        _record("all_reduce", 1, 2),
        _record("all_to_all", 3, 4, seq=2, **more),
        _record("all_reduce", 5, 6, seq=3),
        _record("all_reduce", 7, 8, seq=4),
        _record("send", 9, 10, root=1, tag=0, seq=1),
        _record("send", 11, 12, root=1, tag=0, seq=2),
        _record("send", 13, 14, root=1, tag=5, seq=3),
        _record("all_reduce", 15, 16, seq=0, state="failed"),  # refused on this rank alone
    ]
    second = _group(1)
    theirs = [record._replace(group=second) for record in mine[:4]]
    theirs[1] = theirs[1]._replace(in_splits=(), out_splits=(), truncated=True)
    theirs[2] = theirs[2]._replace(state="failed")
    theirs += [
        _record("recv", 9, 10, group=second, root=0, tag=0, seq=1),
        _record("recv", 11, None, group=second, root=-1, tag=None, seq=2),
        _record("recv", 13, 14, group=second, root=0, tag=5, seq=3),
    ]
    export = param([_trace(mine, ranks=2), _trace(theirs, rank=1, ranks=2)])
    first, other = ([entry for entry in entries if entry["comms"] not in ("init", "wait")] for entries in export.ranks)
    assert [entry["comms"] for entry in first] == ["all_reduce", "all_reduce", "send", "send"]
    assert [entry["startTime_ns"] for entry in first] == [1 * MS, 7 * MS, 9 * MS, 13 * MS]
    assert [entry["comms"] for entry in other] == ["all_reduce", "all_reduce", "recv", "recv"]
    assert [entry["startTime_ns"] for entry in other] == [1 * MS, 7 * MS, 9 * MS, 13 * MS]
    assert export.left_out == {
        "vectored calls whose splits were not kept": 2,
        "calls that failed": 3,
        "messages that the other rank did not complete": 1,
        "receives from any rank that did not end": 1,
    }


def test_flight_recorder_leaves_out_what_one_ring_has_lost() -> None:
    whole = [_record("all_reduce", each, each + 1, seq=each) for each in range(1, 5)]
    second = [record._replace(group=_group(1)) for record in whole[2:]]
    first, other = flight_recorder([_trace(whole, ranks=2), _trace(second, rank=1, ranks=2, lost=2)])
    for dump in (first, other):
        assert [entry["collective_seq_id"] for entry in dump["entries"]] == [3, 4]
        assert [entry["record_id"] for entry in dump["entries"]] == [0, 1]


def test_flight_recorder_of_a_ring_that_has_lost_a_whole_group() -> None:
    """The calls of that group are left out on all ranks."""
    part = [_record("broadcast", each, each + 1, seq=each, group=_group(1, "part", (0, 1))) for each in range(1, 4)]
    lost = _trace([_record("all_reduce", 1, 2)], ranks=2, lost=3)
    first, other = flight_recorder([lost, _trace(part, rank=1, ranks=2)])
    assert len(first["entries"]) == 1
    assert other["entries"] == []


# ---- on real ranks


@pytest.mark.parametrize(("world", "backends"), [(2, ["mpi", "gloo"]), (3, ["gloo", "null"])])
def test_the_whole_way(
    pools: Pools, tmp_path: Path, capsys: pytest.CaptureFixture[str], world: int, backends: list[str]
) -> None:
    """Save on all ranks, then every command."""
    traces = tmp_path / "traces"
    files = pools.get("processes", world).run(log.traced, str(traces), backends)
    assert [Path(file).name for file in files] == [f"rank{rank}.json" for rank in range(world)]
    assert main(["merge", str(traces), "-o", str(tmp_path / "trace.json")]) == 0
    assert "same clock" in capsys.readouterr().out
    document = json.loads((tmp_path / "trace.json").read_text())
    _check_chrome(document, world)
    assert {event["name"] for event in _slices(document, cat="region")} == {"step"}
    assert len(_slices(document, cat="asynchronous", name=f"all_to_all [{backends[-1]}]")) == 2 * world
    assert main(["summary", str(traces)]) == 0
    said = capsys.readouterr().out
    assert "Where the time went: step" in said
    assert all(word in said for word in ("compute", "all_gatherv", "all_to_all", "overlapped"))
    assert main(["summary", str(traces), "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["regions"]["step"]
    assert [row["rank"] for row in rows] == list(range(world))
    for row in rows:
        assert row["communication.all_to_all"] > 0
        assert row["compute"] + row["communication"] == pytest.approx(row["total"])
    assert main(["plot", str(traces), "-o", str(tmp_path / "chart.png")]) == 0
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert main(["export", str(traces), "--format", "param", "-o", str(tmp_path / "param")]) == 0
    entries = [json.loads((tmp_path / "param" / f"{rank}.json").read_text()) for rank in range(world)]
    collectives = [[entry["comms"] for entry in rank if "src_rank" not in entry] for rank in entries]
    assert collectives[0].count("all_reduce") == 5
    assert [name for name in collectives[0] if name != "wait"] == [name for name in collectives[1] if name != "wait"]


@pytest.mark.parametrize("world", [2, 3])
def test_views_of_a_log_that_is_off_say_so(pools: Pools, tmp_path: Path, world: int) -> None:
    """log_summary on rank 0, save on every rank; a log that is on but still empty is different."""
    ranks = pools.get("processes", world)
    said = ranks.run(log.off, str(tmp_path))
    advice = "the log is off and has no records: turn it on with mcr_dl.set_passes"
    assert [printed.startswith(f"log_summary: {advice}") for printed, _, _ in said] == [True] + [False] * (world - 1)
    assert all(warning.startswith(f"trace.save: {advice}") for _, warning, _ in said)
    assert all(result["summary"] == {} for _, _, result in said)
    quiet = ranks.run(log.on_without_calls, str(tmp_path))
    assert "Communication of this rank" in quiet[0][0]
    assert [warnings for _, warnings in quiet] == [0] * world


def test_traces_by_environment(pools: Pools, tmp_path: Path) -> None:
    """MCR_DL_TRACE alone puts the log first and writes a file for each rank at the end."""
    for names in pools.get("processes", 2).run(log.automatic, str(tmp_path)):
        assert names == ["log"]
    traces = _files.read_all(tmp_path)
    assert [[record.op for record in trace.records] for trace in traces] == [["all_reduce"]] * 2
    assert all(trace.clock.method == _clock.SAME for trace in traces)
    assert all(trace.provenance["software"]["torch"] for trace in traces)
