# SPDX-License-Identifier: Apache-2.0
"""The log: the content and number of its records, DeepSpeed's configuration and summary, torch.profiler."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness import Pools
from mcr_dl import InvalidArgumentError
from mcr_dl.passes.log import Log
from ranks import log, log_views, session


@pytest.mark.parametrize("backend", session.BACKENDS)
@pytest.mark.parametrize("world", [2, 3])
def test_records(pools: Pools, backend: str, world: int) -> None:
    """Every field of blocking, asynchronous, vectored and point-to-point calls; numbers are equal on all ranks."""
    answers = pools.get("processes", world).run(log.fields, backend)
    assert all(answer == answers[0] for answer in answers)
    first = answers[0][0][1]
    assert [seq - first for _, seq in answers[0]] == list(range(6))


def test_the_newest_records_stay(pools: Pools) -> None:
    for kept, lost, seqs in pools.get("processes", 2).run(log.overflow):
        assert (kept, lost) == (16, 24)
        assert seqs == list(range(16))


def test_groups_count_their_own_calls(pools: Pools) -> None:
    pools.get("processes", 3).run(log.several_groups)


def test_groups_of_one_name(pools: Pools) -> None:
    """An ended group's records are not those of a later group of its name."""
    assert pools.get("processes", 2).run(log_views.of_an_ended_group) == [(2, 0, 4)] * 2


def test_configure(pools: Pools) -> None:
    pools.get("processes", 2).run(log.configured)


def test_deepspeeds_configurations(pools: Pools, tmp_path: Path) -> None:
    pools.get("processes", 2).run(log.deepspeed, str(tmp_path))


def test_configure_refuses(pools: Pools) -> None:
    texts = pools.get("processes", 2).run(log.refused)[0]
    words = ["prof_op", "got 5", "expected a dict", "train_batch_size", "all_reduced", "prof_ops", "'yes'", "object"]
    words += ["no/such"]
    assert len(texts) == len(words)
    assert all(word in text for word, text in zip(words, texts, strict=True)), texts


def test_verbose(pools: Pools) -> None:
    """Rank 0 prints a line for the call, the others print nothing."""
    first, second = pools.get("processes", 2).run(log.verbose)
    assert "comm op: all_reduce | time (ms): " in first
    assert "msg size: 4.0 KB" in first
    assert "backend: gloo | completed" in first
    assert second == ""


def test_verbose_in_several_looks(pools: Pools) -> None:
    """Each look reads new records, those that were being written, and those of pending calls; rank 1 reads none."""
    first, second = pools.get("processes", 2).run(log.verbose_in_several_looks)
    assert first == [
        ([], [(0, 2)]),
        (["all_reduce", "all_reduce"], [(0, 1), (1, 2), (2, 3)]),
        (["recv", "barrier"], [(0, 1), (3, 4)]),
    ]
    assert second == [([], [])] * 3


def test_verbose_beyond_the_ring(pools: Pools) -> None:
    """Rank 0 says how many lines it could not print."""
    first, second = pools.get("processes", 2).run(log.verbose_beyond_the_ring)
    assert "mcr_dl: verbose: up to 4 lines left out, as the log keeps 16 records" in first
    assert len(re.findall("comm op: barrier", first)) == 16
    assert second == ""


@pytest.mark.parametrize("world", [2, 3])
def test_summary(pools: Pools, world: int) -> None:
    """Counts and sizes by backend, and the last rank."""
    answers = pools.get("processes", world).run(log.summary)
    for rank, (result, _) in enumerate(answers):
        line = result["summary"]["all_reduce"][1024]
        assert line["count"] == 4
        assert line["msg_size_str"] == "1.0 KB"
        assert {name: each["count"] for name, each in line["backends"].items()} == {"gloo": 3, "mpi": 1}
        assert line["total_latency_ms"] == pytest.approx(
            sum(each["total_latency_ms"] for each in line["backends"].values())
        )
        assert result["metadata"]["rank"] == rank
        waits = result["straggler_analysis"]["all_reduce"][1024]
        assert waits["count"] == 4
        assert waits["last_ranks"][1] >= 3
        total = waits["total_comm_lat_ms"] + waits["total_straggler_ms"]
        assert total == pytest.approx(line["total_latency_ms"])
    # Ranks that waited 3 x 100 ms for rank 1.
    assert answers[0][0]["straggler_analysis"]["all_reduce"][1024]["total_straggler_ms"] > 200
    printed = [text for _, text in answers]
    assert "busbw_avg (Gbps)" in printed[0]
    assert "Breakdown with straggler effect" in printed[0]
    assert not any(printed[1:])


def test_the_profiler_shows_backends(pools: Pools) -> None:
    for world in (1, 2):
        for names in pools.get("processes", world).run(log.profiled):
            assert {"mcr_dl.all_reduce[mpi]", "mcr_dl.all_gather[gloo]"} <= set(names)


def test_fused_calls_say_so(pools: Pools) -> None:
    for found in pools.get("processes", 2).run(log.fused):
        assert found == [("all_reduce", True, "completed")] * 4


def test_a_log_behind_fuse(pools: Pools) -> None:
    pools.get("processes", 2).run(log.behind_fuse)


def test_priorities_and_keys(pools: Pools) -> None:
    """Records have what the calls say; what is no priority or key is refused."""
    for found in pools.get("processes", 2).run(log.named):
        assert found == [(2, "head.weight"), (-1, "tail.weight"), (0, "step"), (0, None)]


def test_a_call_that_one_rank_refuses(pools: Pools) -> None:
    """It gets no number, so the numbers of later calls stay equal on all ranks."""
    first, *others = pools.get("processes", 3).run(log_views.refused_on_one_rank)
    calls = [(1, "all_reduce", "completed"), (2, "broadcast", "completed")]
    assert first == [(0, "all_reduce", "failed"), *calls]
    assert others == [calls, calls]


def test_a_message_that_one_rank_refuses(pools: Pools) -> None:
    """It gets no number, so views do not count it among those that were sent."""
    sender, receiver = pools.get("processes", 2).run(log_views.refused_message)
    assert sender == [(0, "send", "failed"), (1, "send", "completed")]
    assert receiver == [(1, "recv", "completed")]


def test_stragglers_of_a_subgroup(pools: Pools) -> None:
    """``log_summary`` of a group, on all ranks of the job."""
    pools.get("processes", 3).run(log_views.stragglers_of_a_subgroup)


@pytest.mark.parametrize("world", [2, 3])
def test_meetings_that_ranks_miss(pools: Pools, tmp_path: Path, world: int) -> None:
    """``trace.save`` and ``log_summary`` on some of the ranks, and then on all of them."""
    pools.get("processes", world).run(log_views.meetings_missed, str(tmp_path))


def test_more_counts_than_the_ring_keeps(pools: Pools) -> None:
    """Calls without counts have lost none."""
    for found in pools.get("processes", 2).run(log_views.many_splits):
        assert found == [("all_to_allv", False), ("all_reduce", False)]


def test_records_lost_before_a_reset(pools: Pools) -> None:
    for found in pools.get("processes", 2).run(log_views.lost_before_reset):
        assert found == (5, 0)


def test_verbose_ends(pools: Pools) -> None:
    """Only calls of groups with a verbose log are printed, and a later life of the runtime begins anew."""
    first, second = pools.get("processes", 2).run(log_views.verbose_no_more)
    assert (first, second) == ((1, []), (0, []))


def test_configure_keeps_the_logs_that_are_set(pools: Pools) -> None:
    """Rank 0 prints the one call that is recorded while `verbose` is on."""
    for rank, written in enumerate(pools.get("processes", 2).run(log_views.changed)):
        assert re.findall(r"comm op: (\w+)", written) == ["barrier"] * (rank == 0), written


def test_views_leave_nothing_at_the_store(pools: Pools, tmp_path: Path) -> None:
    """The values of a view are deleted by the next one: their number does not grow."""
    for found in pools.get("processes", 3).run(log_views.left_at_the_store, str(tmp_path)):
        assert len(set(found)) == 1, found


def test_callers_of_torchs_calls(pools: Pools) -> None:
    """The program's functions, not torch's, and not those of other calls."""
    train = [("all_reduce", "train"), ("broadcast", "train")]
    for found in pools.get("processes", 2).run(log_views.callers_of_torch):
        assert found == [*train, ("all_reduce", "evaluate"), *train, ("all_reduce", "step")]


def test_names_of_regions(pools: Pools, tmp_path: Path) -> None:
    pools.get("processes", 2).run(log_views.region_names, str(tmp_path))


def test_options_are_checked() -> None:
    assert Log(ops=["all_gather_into_tensor", "bcast", "all_gather"]).ops == ("all_gather", "broadcast")
    for options in ({"capacity": 0}, {"capacity": True}, {"ops": ["all_reduced"]}, {"ops": "all_reduce"}):
        with pytest.raises(InvalidArgumentError, match=r"Log: |ops: "):
            Log(**options)
