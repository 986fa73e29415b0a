# SPDX-License-Identifier: Apache-2.0
"""torch's analyzer of flight recorder dumps reads the traces of real ranks."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.flight_recorder import fr_trace

from harness import Pools
from mcr_dl.trace import _clock, _files
from mcr_dl.trace._flight_recorder import flight_recorder
from mcr_dl.trace.cli import main
from ranks import log
from traces import group_of, record_of, trace_of


def _analyse(traces: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The result of torch's own analyzer on the exported files."""
    assert main(["export", str(traces), "--format", "flight-recorder", "-o", str(folder)]) == 0
    capsys.readouterr()
    try:
        fr_trace.main([str(folder), "-o", str(folder.with_suffix(".db"))])
    finally:
        gc.enable()  # which the analyzer leaves off
    _, database = pickle.loads(folder.with_suffix(".db").read_bytes())
    return database


def test_torch_analyses_a_clean_run(pools: Pools, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for world, backends in ((2, ["mpi", "gloo"]), (3, ["gloo", "null"])):
        traces = tmp_path / f"{world}"
        pools.get("processes", world).run(log.traced, str(traces), backends)
        database = _analyse(traces, tmp_path / f"fr{world}", capsys)
        kinds = [collective.collective_name.partition(":")[2] for collective in database.collectives]
        assert all(collective.pass_check for collective in database.collectives)
        assert all(collective.missing_ranks is None for collective in database.collectives)
        collectives = ["all_reduce", "all_to_all"] * 2 + ["all_gather_v", "reduce", *["all_reduce"] * 3, "barrier"]
        assert [kind for kind in kinds if kind in collectives] == collectives
        assert len([kind for kind in kinds if kind.startswith(("send", "recv"))]) == 1


def test_refused_calls_are_left_out() -> None:
    """Of two messages that rank 0 makes and rank 1 receives once, one was not sent; a failed one was, perhaps."""
    ends = {"tag": 0, "state": "failed"}
    sends = [record_of("send", 0, 1, root=1, seq=seq, **ends) for seq in (0, 1)]
    receives = [record_of("recv", 0, 1, root=0, group=group_of(1), tag=0)]
    dumps = flight_recorder([trace_of(sends, ranks=2), trace_of(receives, rank=1, ranks=2)])
    for dump in dumps:
        assert [entry["p2p_seq_id"] for entry in dump["entries"]] == [1]


@pytest.mark.parametrize(
    ("op", "more", "name", "sizes"),
    [
        ("send", {"root": 1, "tag": 0}, "send 0->1", (8, 8)),
        ("recv", {"root": 1, "tag": 0}, "recv 0<-1", (8, 8)),
        ("gather", {"in_count": 4}, "gather", (4, 0)),
        ("scatter", {"in_count": 8}, "scatter", (0, 8)),
        ("all_gather", {"in_count": 4}, "_all_gather_base", (4, 8)),
        ("all_gather", {"in_count": 4, "vectored": True}, "all_gather_v", (0, 8)),
        ("reduce_scatter", {"in_count": 9, "vectored": True}, "reduce_scatter_v", (9, 0)),
        ("broadcast", {"root": 0}, "broadcast", (8, 8)),
    ],
)
def test_names_and_sizes_of_entries(op: str, more: dict[str, Any], name: str, sizes: tuple[int, int]) -> None:
    """As torch's analyzer compares them over the ranks: sizes that may differ are 0."""
    record = record_of(op, 1, 3, **{"seq": 5, "out_count": 8, **more})
    ((entry,),) = (dump["entries"] for dump in flight_recorder([trace_of([record], ranks=2)]))
    assert entry["profiling_name"].partition(":")[2] == name
    assert (entry["input_sizes"], entry["output_sizes"]) == ([[sizes[0]]], [[sizes[1]]])
    peer = op in ("send", "recv")
    assert (entry["collective_seq_id"], entry["p2p_seq_id"]) == ((1, 1) if peer else (5, 0))
    assert (entry["duration_ms"], entry["retired"], entry["is_p2p"]) == (2.0, True, peer)


def test_torch_finds_the_missing_call(pools: Pools, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 1 makes 8 collectives and a barrier where rank 0 makes 9 and a barrier."""
    traces = tmp_path / "traces"
    for rank, file in enumerate(pools.get("processes", 2).run(log.short, str(traces))):
        assert Path(file).name == f"rank{rank}.json"
    database = _analyse(traces, tmp_path / "fr", capsys)
    wrong = [each for each in database.collectives if not each.pass_check or each.missing_ranks]
    first = wrong[0]
    assert first.collective_name == "gloo:all_reduce"
    assert first.mismatch_collectives is not None
    assert first.mismatch_collectives[1].collective_name == "gloo:barrier"
    good = [each for each in database.collectives if each.pass_check and not each.missing_ranks]
    assert len(good) == 8


def test_torch_names_the_rank_that_others_wait_for(
    pools: Pools, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Traces that were saved while ranks were in a call, without asking the others."""
    traces = tmp_path / "traces"
    pools.get("processes", 3).run(log.stuck, str(traces))
    found = _files.read_all(traces)
    assert [trace.records[-1].state for trace in found] == ["issued", "completed", "issued"]
    assert found[0].records[-1].end is None
    assert {trace.clock.method for trace in found} == {_clock.WALL}
    (good, missing) = _analyse(traces, tmp_path / "fr", capsys).collectives
    assert good.missing_ranks is None
    assert missing.missing_ranks == {1}
    assert (missing.collective_name, missing.collective_state) == ("gloo:all_reduce", "scheduled")
    assert main(["merge", str(traces), "-o", str(tmp_path / "trace.json")]) == 0
    assert "by the hosts' time of day" in capsys.readouterr().out
