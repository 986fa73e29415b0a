# SPDX-License-Identifier: Apache-2.0
"""Views of the log: each against records whose numbers can be checked by hand, and on traces of real ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness import Pools
from mcr_dl.base import stores
from mcr_dl.records import statistics
from mcr_dl.trace import _clock, _files, _stragglers, cli, saving
from mcr_dl.trace._chrome import chrome
from mcr_dl.trace._flight_recorder import flight_recorder
from mcr_dl.trace._param import param
from mcr_dl.trace._regions import Region
from mcr_dl.trace.cli import main
from ranks import log
from traces import MS, group_of, record_of, trace_of, work_of

# ---- statistics


def test_means_leave_outliers_out() -> None:
    assert statistics.trimmed_mean([100.0, *[2.0] * 8, 0.0]) == 2.0
    assert statistics.trimmed_mean([1.0, 2.0]) == 1.5
    assert statistics.trimmed_mean([]) == 0.0


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """1 MB in 1 ms is 8 Gbps; the bus carries 2(n-1)/n of an all_reduce and (n-1)/n of an all_gather's total."""
    ranks = (0, 1, 2, 3)
    for op, factor in (("all_reduce", 1.5), ("all_gather", 0.75), ("broadcast", 1.0)):
        record = record_of(op, 1, 2, nbytes=1_000_000, group=group_of(ranks=ranks))
        assert statistics.rates(record) == pytest.approx((8.0, 8.0 * factor))
    assert statistics.rates(record_of("recv", 1, 2, nbytes=1_000_000)) == pytest.approx((8.0, 8.0))
    assert statistics.rates(record_of("barrier", 1, 2, nbytes=0)) == (0.0, 0.0)


def test_a_line_of_a_summary() -> None:
    records = [record_of("all_reduce", 0, each) for each in (1, 2, 3, 4, 100)]
    line = statistics.Line.of(records)
    assert (line.count, line.total_latency_ms, line.p50_latency_ms) == (5, 110, 3)
    assert line.avg_latency_ms == 22  # a tenth of five is none
    parts = statistics.by_size([*records, record_of("all_reduce", 0, 1, nbytes=8), record_of("all_reduce", 0, None)])
    assert {key: len(part) for key, part in parts.items()} == {("all_reduce", 8): 1, ("all_reduce", 4000): 5}
    assert statistics.label(record_of("all_reduce", 0, 1, caller="step")) == "all_reduce | [Caller Func: step]"
    assert [statistics.size_text(each) for each in (0, 1023, 4096, 1 << 20)] == [
        "0.0 B",
        "1023.0 B",
        "4.0 KB",
        "1.0 MB",
    ]


def test_stragglers_are_matched_by_number() -> None:
    """Rank 1 is 3 ms late for the first call and lacks the third; messages are left out."""
    first = [
        record_of("all_reduce", 0, 4),
        record_of("all_reduce", 5, 6, seq=2),
        record_of("all_reduce", 7, 8, seq=3),
        record_of("send", 8, 9),
    ]
    second = [record_of("all_reduce", 3, 4), record_of("all_reduce", 5, 7, seq=2)]
    rows = _stragglers.match([_stragglers.mine(first), _stragglers.mine(second)])
    matched = {(group, instance, seq): (least, rank) for group, instance, seq, least, rank in rows}
    assert matched == {("default", 0, 1): (MS, 1), ("default", 0, 2): (MS, 0)}
    entry = _stragglers.analysis(first, matched)["all_reduce"][4000]
    assert (entry["count"], entry["total_comm_lat_ms"], entry["total_straggler_ms"]) == (2, 2, 3)
    assert entry["last_ranks"] == {0: 1, 1: 1}
    assert _stragglers.analysis(second, matched)["all_reduce"][4000]["total_straggler_ms"] == 1


def test_stragglers_of_a_large_ring() -> None:
    """The newest collectives of a rank fit into one value at the store, also with groups of long names."""
    group = group_of(name="tensor_parallel_group_of_the_second_pipeline_stage_7")
    records = [record_of("all_reduce", 0, 1e3, seq=number, group=group) for number in range(1, 4)]
    with mock.patch.object(_stragglers, "MOST", 2):
        assert [row[2] for row in _stragglers.mine(records)] == [2, 3]
    (row, *_) = _stragglers.mine(records)
    largest = [[row[0], 1000, 1 << 40, row[3], 100_000]]
    assert len(stores.encode(largest)) * _stragglers.MOST < stores._LARGEST


def test_stragglers_of_many_groups() -> None:
    """The answer for the whole job has the newest collectives of each group, and is limited as a rank's value is."""
    everyone = [[[f"pair {rank // 2}", 0, seq, MS, 2] for seq in range(1, 6)] for rank in range(6)]
    with mock.patch.object(_stragglers, "MOST", 7):
        assert sorted((row[0], row[2]) for row in _stragglers.match(everyone)) == [
            (f"pair {pair}", seq) for pair in range(3) for seq in (4, 5)
        ]


# ---- trace files and clocks


def test_files_keep_everything(tmp_path: Path) -> None:
    records = [
        record_of("all_to_all", 0, 4, vectored=True, in_splits=(1, 2), out_splits=(3, 4), codec="bf16", sent_bytes=9),
        work_of("all_gather", 1, 2, 3, None, group=group_of(0, "tail", (0,)), number=2),
    ]
    clock = _clock.Clock(5, 6, _clock.PING, 7, 8)
    trace = trace_of(records, regions=[Region("step", 1, 2, 3)], clock=clock, lost=4)
    assert _files.read(_files.write(trace, tmp_path / "a")) == trace
    file = _files.write(trace, tmp_path / "b" / "run.json")
    assert file.name == "run.rank0.json"
    assert _files.read_all(tmp_path / "b" / "run.json") == _files.read_all(tmp_path / "a") == [trace]


def test_files_of_an_older_version(tmp_path: Path) -> None:
    """Candidates are read with their current names; missing fields have their defaults."""
    records = [record_of("broadcast", 0, 1, backend=name) for name in ("mpi:p2p", "gloo+mpi:67", None)]
    file = _files.write(trace_of(records), tmp_path)
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
    file = _files.write(trace_of([], ranks=2), tmp_path)
    assert "each of 2 ranks, got those of ranks [0]" in said(tmp_path)
    whole = json.loads(file.read_text())
    file.write_text(json.dumps({**whole, "version": 99}))
    assert "rank0.json: expected a trace of version 1, got mcr-dl trace 99" in said(tmp_path)
    file.write_text("{")
    assert "rank0.json: expected a trace" in said(tmp_path)


@pytest.mark.parametrize("command", ["merge", "capture", "plot"])
def test_a_full_disk(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the file, which that of the system does not."""
    _files.write(trace_of([record_of("all_reduce", place, place + 0.5) for place in range(4)]), tmp_path)
    full = tmp_path / "full.svg"
    full.symlink_to("/dev/full")
    assert main([command, str(tmp_path), "-o", str(full)]) == 2
    assert capsys.readouterr().err == f"mcr-trace: error: cannot write {full}: no space left on device\n"


def test_offsets() -> None:
    """Rank 0's clock if all were compared with it; otherwise the hosts' wall clocks."""
    ping = _clock.Clock(50, 5, _clock.PING, 1000, 9000)
    wall = _clock.Clock(0, None, _clock.WALL, 1000, 9000)
    zero = trace_of([], clock=_clock.Clock(0, 0, _clock.SAME, 2000, 9500))
    assert _files.offsets([zero, trace_of([], clock=ping)]) == [0, 50]
    assert _files.offsets([zero, trace_of([], clock=wall)]) == [0, 500]


# ---- formats of other tools


def _slices(document: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    return [event for event in events if all(event[name] == value for name, value in wanted.items())]


def test_chrome_of_hand_made_records() -> None:
    """Times in µs from the first event on, on rank 0's clock; works that overlap lie on different tracks."""
    mine = [
        record_of("all_reduce", 10, 12),
        work_of("all_gather", 13, 14, 20, (16, 20)),
        work_of("broadcast", 15, 15, 18, None),
    ]
    theirs = [record_of("all_reduce", 2, 5)]
    ahead = _clock.Clock(9 * MS, 1000, _clock.PING, 0, 0)
    document = chrome([trace_of(mine, ranks=2), trace_of(theirs, rank=1, ranks=2, clock=ahead)])
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
    calls = [work_of("all_gather", 1, 2, 9, (3, 9), thread=thread) for thread in (999_999, 1_000_000)]
    document = chrome([trace_of(calls, regions=regions)])
    _check_chrome(document, 1)
    assert len({each["tid"] for each in _slices(document)}) == 6


def test_param_of_hand_made_records() -> None:
    """Groups first, then calls and waits in order; sizes in elements, ranks of the job."""
    tail = group_of(1, "tail", (1, 2))
    records = [
        work_of("all_reduce", 1, 2, 9, (7, 9), number=5),
        record_of(
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
        record_of("broadcast", 5, 6, group=tail, root=0, number=7),
        record_of("send", 6, 6.5, group=tail, root=0, number=8),
        record_of("gather", 7, 8, vectored=True, seq=3),
        record_of("all_reduce", 8, 9, dtype="complex64", seq=4),
        work_of("reduce", 9, 9.2, 9.5, None, root=0, number=11, seq=5),
    ]
    others = {"default": group_of(1), "tail": group_of(0, "tail", (1, 2))}
    theirs = [record._replace(group=others[record.group.name]) for record in records]
    theirs[3] = record_of("recv", 6, 6.5, group=others["tail"], root=1, number=8)
    export = param([trace_of(records, ranks=2), trace_of(theirs, rank=1, ranks=2)])
    entries, _ = export.ranks
    assert entries[0] == {"comms": "init", "pg_id": 0, "req": -1, "world_size": 2, "global_ranks": [0, 1]}
    assert entries[1]["global_ranks"] == [1, 2]
    order = [(entry["comms"], entry["req"]) for entry in entries[2:]]
    assert order == [
        ("all_reduce", 5), ("all_to_allv", 6), ("wait", 6), ("broadcast", 7), ("wait", 7), ("send", 8), ("wait", 8),
        ("wait", 5), ("reduce", 11), ("wait", 11),
    ]  # fmt: skip
    by_name = {entry["comms"]: entry for entry in entries}
    assert (by_name["all_reduce"]["in_msg_size"], by_name["all_reduce"]["out_msg_size"]) == (1000, 1000)
    assert (by_name["all_to_allv"]["in_split"], by_name["all_to_allv"]["out_split"]) == ([1, 2], [3, 4])
    assert (by_name["broadcast"]["root"], by_name["broadcast"]["pg_id"]) == (1, 1)
    assert (by_name["send"]["src_rank"], by_name["send"]["dst_rank"], by_name["send"]["use_batch"]) == (2, 1, False)
    assert list(export.left_out.values()) == [2, 2]
    assert any("gatherv" in reason for reason in export.left_out)
    assert any("complex64" in reason for reason in export.left_out)


def test_param_leaves_out_on_all_ranks_what_one_leaves_out() -> None:
    """Otherwise a replay waits: for collectives that one rank has no counts of, and for messages without their half."""
    more = {"vectored": True, "in_splits": (1, 1), "out_splits": (1, 1)}
    mine = [
        record_of("all_reduce", 1, 2),
        record_of("all_to_all", 3, 4, seq=2, **more),
        record_of("all_reduce", 5, 6, seq=3),
        record_of("all_reduce", 7, 8, seq=4),
        record_of("send", 9, 10, root=1, tag=0, seq=1),
        record_of("send", 11, 12, root=1, tag=0, seq=2),
        record_of("send", 13, 14, root=1, tag=5, seq=3),
        record_of("all_reduce", 15, 16, seq=0, state="failed"),  # refused on this rank alone
        record_of("all_reduce", 17, 18, seq=5),
    ]
    second = group_of(1)
    theirs = [record._replace(group=second) for record in mine[:4]]
    theirs[1] = theirs[1]._replace(in_splits=(), out_splits=(), truncated=True)
    theirs[2] = theirs[2]._replace(state="failed")
    theirs += [
        record_of("recv", 9, 10, group=second, root=0, tag=0, seq=1),
        record_of("recv", 11, None, group=second, root=-1, tag=None, seq=2),
        record_of("recv", 13, 14, group=second, root=0, tag=5, seq=3),
    ]
    export = param([trace_of(mine, ranks=2), trace_of(theirs, rank=1, ranks=2)])
    first, other = ([entry for entry in entries if entry["comms"] not in ("init", "wait")] for entries in export.ranks)
    assert [entry["comms"] for entry in first] == ["all_reduce", "all_reduce", "send", "send"]
    assert [entry["startTime_ns"] for entry in first] == [1 * MS, 7 * MS, 9 * MS, 13 * MS]
    assert [entry["comms"] for entry in other] == ["all_reduce", "all_reduce", "recv", "recv"]
    assert [entry["startTime_ns"] for entry in other] == [1 * MS, 7 * MS, 9 * MS, 13 * MS]
    assert export.left_out == {
        "vectored calls whose splits were not kept": 2,
        "calls that failed": 3,
        "collectives that another rank did not make": 1,
        "messages that the other rank did not complete": 1,
        "receives from any rank that did not end": 1,
    }


def test_flight_recorder_leaves_out_what_one_ring_has_lost() -> None:
    whole = [record_of("all_reduce", each, each + 1, seq=each) for each in range(1, 5)]
    second = [record._replace(group=group_of(1)) for record in whole[2:]]
    first, other = flight_recorder([trace_of(whole, ranks=2), trace_of(second, rank=1, ranks=2, lost=2)])
    for dump in (first, other):
        assert [entry["collective_seq_id"] for entry in dump["entries"]] == [3, 4]
        assert [entry["record_id"] for entry in dump["entries"]] == [0, 1]


def test_flight_recorder_of_a_ring_that_has_lost_a_whole_group() -> None:
    """The calls of that group are left out on all ranks."""
    part = [record_of("broadcast", each, each + 1, seq=each, group=group_of(1, "part", (0, 1))) for each in range(1, 4)]
    lost = trace_of([record_of("all_reduce", 1, 2)], ranks=2, lost=3)
    first, other = flight_recorder([lost, trace_of(part, rank=1, ranks=2)])
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


@pytest.mark.parametrize(("export", "name"), [(cli.export_param, "{}.json"), (cli.export_flight_recorder, "rank_{}")])
def test_an_export_replaces_one_of_more_ranks(
    tmp_path: Path, export: Callable[[Sequence[_files.Trace], Path], None], name: str
) -> None:
    kept = {"notes.json", "rank_x", "3.txt", "2024.json", "rank_20", "003.json"}
    for each in (*kept, *(name.format(rank) for rank in range(12))):
        (tmp_path / each).write_text("old")
    export([trace_of([record_of("all_reduce", 0, 1)])], tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {*kept, name.format(0)}
    assert (tmp_path / name.format(0)).read_bytes() != b"old"


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


@pytest.mark.parametrize("name", ["", "all.json"], ids=["folder", "name"])
def test_a_folder_for_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It is made at the start, and left empty; one that cannot be made leads to a warning then."""
    monkeypatch.setenv(saving.VARIABLE, str(tmp_path / "new" / "folder" / name))
    saving.prepare_folder()
    assert not list((tmp_path / "new" / "folder").iterdir())
    (tmp_path / "file").touch()
    monkeypatch.setenv(saving.VARIABLE, str(tmp_path / "file" / "folder" / name))
    with pytest.warns(UserWarning, match="MCR_DL_TRACE: expected a folder for traces, got .* cannot be written"):
        saving.prepare_folder()


def test_traces_by_environment(pools: Pools, tmp_path: Path) -> None:
    """MCR_DL_TRACE alone puts the log first and writes a file for each rank at the end."""
    for names in pools.get("processes", 2).run(log.automatic, str(tmp_path)):
        assert names == ["log"]
    traces = _files.read_all(tmp_path)
    assert [[record.op for record in trace.records] for trace in traces] == [["all_reduce"]] * 2
    assert all(trace.clock.method == _clock.SAME for trace in traces)
    assert all(trace.provenance["software"]["torch"] for trace in traces)
