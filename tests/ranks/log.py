# SPDX-License-Identifier: Apache-2.0
"""Records of the log for calls that this rank makes together with the others."""

from __future__ import annotations

import json
import os
import re
import threading
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

import mcr_dl
from mcr_dl import _C, InvalidArgumentError, InvalidTypeError, UnsupportedError, passes
from mcr_dl.passes.log import Log
from mcr_dl.records import log, printer
from mcr_dl.records.log import Record
from mcr_dl.testing.expect import expect
from mcr_dl.trace import _regions
from ranks import session


def _on(*backends: str, **options: Any) -> None:
    session.start(*backends)
    mcr_dl.set_passes([Log(**options)])
    mcr_dl.reset_log()


def _off() -> None:
    mcr_dl.configure(enabled=False, prof_all=True, prof_ops=[], verbose=False, debug=False)
    mcr_dl.set_passes([])


def _check(record: Record, **expected: Any) -> None:
    got = {name: getattr(record, name) for name in expected}
    assert got == expected, (got, expected)


def fields(backend: str) -> list[tuple[str, int]]:
    """One call of each kind, with a check of its record; returns the names and numbers of all calls."""
    _on()
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    world = list(range(size))
    mcr_dl.all_reduce(torch.ones(5), op=mcr_dl.ReduceOp.MAX, backend=backend)
    mcr_dl.broadcast(torch.ones(3, dtype=torch.int32), src=size - 1, backend=backend)
    mcr_dl.all_gather_single(torch.empty(4 * size), torch.ones(4), backend=backend, async_op=True).wait()
    counts = [each + 1 for each in world]
    mcr_dl.all_to_allv(
        torch.empty((rank + 1) * size), torch.ones(sum(counts)), counts, [rank + 1] * size, backend=backend
    )
    mcr_dl.reduce_scatter_single(torch.empty(2), torch.ones(2 * size), backend=backend)
    mcr_dl.barrier(backend=backend)
    if rank == 0:
        mcr_dl.send(torch.ones(6), dst=1, tag=3, backend=backend)
    if rank == 1:
        mcr_dl.recv(torch.empty(6), tag=3, backend=backend)
    found = mcr_dl.log_records()
    _off()
    assert all(record.backend == backend and record.state == "completed" for record in found)
    assert all(record.group.name == "default" and record.group.ranks == tuple(world) for record in found)
    assert all(record.issue <= record.start <= record.end for record in found)
    assert [record.number for record in found] == sorted(record.number for record in found)
    first, second, third, fourth, fifth, sixth = found[:6]
    _check(first, op="all_reduce", dtype="float32", red="MAX", root=None, nbytes=20, out_count=5, asynchronous=False)
    _check(second, op="broadcast", dtype="int32", red=None, root=size - 1, nbytes=12, waited=0)
    _check(third, op="all_gather", in_count=4, out_count=4 * size, nbytes=16 * size, asynchronous=True)
    if third.wait_begin is not None:  # it was not complete before
        assert third.wait_begin >= third.start
        assert third.waited == third.wait_end - third.wait_begin
    out_splits = (rank + 1,) * size
    _check(fourth, name="all_to_allv", in_splits=tuple(counts), out_splits=out_splits, truncated=False)
    assert fourth.nbytes == 4 * max(sum(counts), sum(out_splits))
    _check(fifth, op="reduce_scatter", red="SUM", in_count=2 * size, out_count=2, nbytes=8 * size)
    _check(sixth, op="barrier", nbytes=0)
    if rank < 2:
        _check(found[6], op=("send", "recv")[rank], peer=True, root=1 - rank, tag=3, nbytes=24)
    return [(record.name, record.seq) for record in found if not record.peer]


def overflow() -> tuple[int, int, list[int]]:
    """More calls than the ring can hold: how many are left and lost, and their numbers."""
    _on(capacity=16)
    for _ in range(40):
        mcr_dl.barrier(backend="gloo")
    kept, lost = mcr_dl.log_records(), log.lost()
    mcr_dl.set_passes([Log(capacity=65536)])
    fresh = mcr_dl.log_records()
    _off()
    assert not fresh
    first = kept[0].seq
    return len(kept), lost, [record.seq - first for record in kept]


def several_groups() -> None:
    """Each group counts its own calls, and its records outlive it."""
    session.start()
    groups = {name: group for name, group in session.groups().items() if group is not None and group.size() > 1}
    for group in groups.values():
        mcr_dl.set_passes([Log()], group=group)
    mcr_dl.reset_log()
    before = {name: len(mcr_dl.log_records(group)) for name, group in groups.items()}
    assert not any(before.values())
    for group in groups.values():
        mcr_dl.barrier(group=group)
        mcr_dl.all_reduce(torch.ones(2), group=group)
    for group in groups.values():
        records = mcr_dl.log_records(group)
        assert [record.op for record in records] == ["barrier", "all_reduce"]
        assert records[1].seq == records[0].seq + 1
        assert records[0].group.ranks == tuple(mcr_dl.get_process_group_ranks(group))
        assert records[0].group.rank == group.rank()
    assert len(mcr_dl.log_records()) == 2 * len(groups)
    session.stop()
    assert len(mcr_dl.log_records()) == 2 * len(groups)
    session.start()


class _Mark:
    """A user's pass after the log."""

    name = "mark"

    def handle(self, call: Any) -> Any:
        return call.proceed()


def configured() -> None:
    """DeepSpeed's keys: the other passes stay, operations are selected by any name, callers are named."""
    session.start()
    mcr_dl.register_pass(_Mark())
    mcr_dl.set_passes(["mark"])
    mcr_dl.configure({"comms_logger": {"enabled": True, "prof_all": False, "prof_ops": ["all_gather_into_tensor"]}})
    assert mcr_dl.get_passes() == ["log", "mark"]
    mcr_dl.reset_log()
    mcr_dl.barrier()
    mcr_dl.all_gather_single(torch.empty(mcr_dl.get_world_size()), torch.ones(1))
    assert [record.op for record in mcr_dl.log_records()] == ["all_gather"]
    first = mcr_dl.log_records()[0].seq
    mcr_dl.configure(prof_all=True, debug=True)
    assert mcr_dl.get_passes() == ["log", "mark"]
    made = mcr_dl.new_group(list(range(mcr_dl.get_world_size())))
    assert mcr_dl.get_passes(made) == ["log"]
    mcr_dl.barrier()
    record = mcr_dl.log_records()[-1]
    assert (record.op, record.seq, record.caller) == ("barrier", first + 1, "configured")
    mcr_dl.configure(enabled=False)
    assert mcr_dl.get_passes() == ["mark"]
    mcr_dl.barrier()
    assert mcr_dl.log_records()[-1] == record
    _off()


def deepspeed(folder: str) -> None:
    """A configuration file of DeepSpeed, and its own config object."""
    session.start()
    file = Path(folder) / f"config.{mcr_dl.get_rank()}.json"
    file.write_text(json.dumps({"train_batch_size": 8, "comms_logger": {"enabled": True, "prof_all": True}}))
    mcr_dl.configure(file)
    assert mcr_dl.get_passes() == ["log"]
    logger = SimpleNamespace(enabled=False, verbose=False, prof_all=True, prof_ops=[], debug=False)
    part = SimpleNamespace(comms_logger_enabled=True, comms_logger=logger)  # enabled: it has the section
    mcr_dl.configure(SimpleNamespace(comms_config=SimpleNamespace(comms_logger_enabled=False)))  # no section
    assert mcr_dl.get_passes() == ["log"]
    mcr_dl.configure(SimpleNamespace(comms_config=part))
    assert mcr_dl.get_passes() == []
    mcr_dl.configure(SimpleNamespace(comms_config=part), enabled=True)  # arguments override it
    assert mcr_dl.get_passes() == ["log"]
    _off()


def refused() -> list[str]:
    """The errors of invalid settings; the log stays unchanged."""
    session.start()
    _off()
    texts = []
    for config, more in (
        ({"comms_logger": {"enabled": True, "prof_op": []}}, {}),
        ({"comms_logger": {"enabled": True, 5: 1}}, {}),
        ({"comms_logger": True}, {}),
        ({"train_batch_size": 8}, {}),
        (None, {"enabled": True, "prof_ops": ["all_reduced"], "prof_all": False}),
        (None, {"enabled": True, "prof_all": False}),
        (None, {"enabled": "yes"}),
        (object(), {}),
        ("no/such/file.json", {}),
    ):
        try:
            mcr_dl.configure(config, **more)
        except mcr_dl.InvalidArgumentError as error:
            texts.append(str(error))
        assert mcr_dl.get_passes() == []
    return texts


def verbose() -> str:
    """The output on this rank while calls are made."""
    session.start()
    written = StringIO()
    with redirect_stderr(written):
        mcr_dl.configure(enabled=True, verbose=True)
        mcr_dl.all_reduce(torch.ones(1024), backend="gloo")
        mcr_dl.reset_log()  # the line is still to come
        mcr_dl.configure(enabled=False)
    _off()
    return written.getvalue()


def verbose_beyond_the_ring() -> str:
    """The output on this rank for more calls between two looks at the log than it keeps."""
    session.start()
    written = StringIO()
    with redirect_stderr(written), patch.object(printer, "_PERIOD", 60.0):
        mcr_dl.set_passes([Log(capacity=16, verbose=True)])
        for _ in range(20):
            mcr_dl.barrier()
        mcr_dl.configure(enabled=False)
    mcr_dl.set_passes([Log(capacity=65536)])
    _off()
    return written.getvalue()


def verbose_in_several_looks() -> list[tuple[list[str], list[log.Span]]]:
    """The operations that each of three looks at the log prints on this rank, and the records that it reads.

    The first look misses the second call, as if its record was being written; the first call ends after two looks.
    """
    session.start()
    looks: list[tuple[list[str], list[log.Span]]] = []
    first = _C.log_made() + 1

    def look(missing: int | None = None) -> None:
        spans: list[log.Span] = []

        def read(given: list[log.Span]) -> list[Record]:
            spans.extend((begin - first, end - first) for begin, end in given)
            return [record for record in original(given) if record.number != missing]

        original, written = log.every_record, StringIO()
        with patch.object(log, "every_record", read), redirect_stderr(written):
            printer.flush()
        looks.append((re.findall(r"comm op: (\w+)", written.getvalue()), spans))

    with patch.object(printer, "_PERIOD", 60.0):
        mcr_dl.set_passes([Log(verbose=True)])
        pending = mcr_dl.irecv(torch.empty(4), src=1, backend="gloo") if mcr_dl.get_rank() == 0 else None
        mcr_dl.all_reduce(torch.ones(4), backend="gloo")
        look(missing=first + 1)
        mcr_dl.all_reduce(torch.ones(4), backend="gloo")
        look()
        mcr_dl.barrier(backend="gloo")  # the message comes after the second look
        if pending is None:
            mcr_dl.send(torch.ones(4), dst=0, backend="gloo")
        else:
            pending.wait()
        look()
        _off()
    return looks


def summary() -> tuple[dict[str, Any], str]:
    """The summary of some calls to which rank 1 comes late, and the output."""
    _on()
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    current = mcr_dl.runtime.state.current()
    store = mcr_dl.PrefixStore(f"late/{current.count('late')}", current.store)
    for turn in range(3):
        if rank == 1:
            for other in range(size):
                if other != 1:
                    store.get(f"{turn}/{other}")
            time.sleep(0.1)
        work = mcr_dl.all_reduce(torch.ones(256), backend="gloo", async_op=True)
        if rank != 1:
            store.set(f"{turn}/{rank}", "")
        work.wait()
    mcr_dl.all_reduce(torch.ones(256), backend="mpi")
    printed = StringIO()
    with redirect_stdout(printed):
        result = mcr_dl.log_summary(show_straggler=True, return_dict=True)
        assert mcr_dl.log_summary() is None
    _off()
    assert result is not None
    return result, printed.getvalue()


def traced(path: str, backends: list[str]) -> str:
    """Save a trace of some calls in a region and some after it; returns the file."""
    _on(*backends)
    _regions._regions.clear()  # those of earlier tests of this process
    rank, size, last = mcr_dl.get_rank(), mcr_dl.get_world_size(), backends[-1]
    with mcr_dl.trace.region("step"):
        for _ in range(2):
            mcr_dl.all_reduce(torch.ones(8), backend=backends[0])
            mcr_dl.all_to_all_single(torch.empty(4 * size), torch.ones(4 * size), backend=last, async_op=True).wait()
        mcr_dl.all_gatherv(torch.empty(sum(range(1, size + 1))), torch.ones(rank + 1), list(range(1, size + 1)))
        mcr_dl.reduce(torch.ones(3), dst=1)
    if rank == 0:
        mcr_dl.send(torch.ones(2), dst=1, backend=backends[0])
    if rank == 1:
        mcr_dl.recv(torch.ones(2), src=0, backend=backends[0])
    for _ in range(3):
        mcr_dl.all_reduce(torch.ones(2), backend=last)
    mcr_dl.barrier(backend=backends[0])
    file = mcr_dl.trace.save(path)
    _off()
    return str(file)


def off(path: str) -> tuple[str, str, dict[str, Any] | None]:
    """The views while the log is off: the output of log_summary, the warning of save, the numbers of log_summary."""
    session.start("null")
    _off()
    mcr_dl.reset_log()
    mcr_dl.all_reduce(torch.ones(2))
    printed = StringIO()
    with redirect_stdout(printed):
        result = mcr_dl.log_summary(return_dict=True)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        mcr_dl.trace.save(path)
    (warning,) = [str(each.message) for each in warned]
    return printed.getvalue(), warning, result


def on_without_calls(path: str) -> tuple[str, int]:
    """The views while the log is on, before the first call: the table, and the number of warnings."""
    _on("null")
    printed = StringIO()
    with redirect_stdout(printed):
        mcr_dl.log_summary()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        mcr_dl.trace.save(path)
    _off()
    return printed.getvalue(), len(warned)


def short(path: str) -> str:
    """Save a trace in which rank 1 has made 8 calls and the others 9, on the backend without communication."""
    _on("null")
    for _ in range(8 if mcr_dl.get_rank() == 1 else 9):
        mcr_dl.all_reduce(torch.ones(2))
    mcr_dl.barrier()
    file = mcr_dl.trace.save(path)
    session.stop()  # ranks that have made different calls cannot make changes together
    return str(file)


def stuck(path: str) -> None:
    """Rank 1 does not come to an all_reduce; the others save their traces meanwhile, from another thread."""
    _on("gloo")
    mcr_dl.barrier()
    current, rank = mcr_dl.runtime.state.current(), mcr_dl.get_rank()
    store = mcr_dl.PrefixStore(f"stuck/{current.count('stuck')}", current.store)

    def save_meanwhile() -> None:
        while mcr_dl.log_records()[-1].state != "issued":
            time.sleep(0.01)
        mcr_dl.trace.save(path, align=False)
        store.set(str(rank), "")

    if rank == 1:
        mcr_dl.trace.save(path, align=False)
        for other in range(mcr_dl.get_world_size()):
            if other != 1:
                store.get(str(other))
        mcr_dl.all_reduce(torch.ones(3))
    else:
        saver = threading.Thread(target=save_meanwhile)
        saver.start()
        mcr_dl.all_reduce(torch.ones(3))
        saver.join()
    _off()


def automatic(folder: str) -> list[str]:
    """A program without any call for logging, under MCR_DL_TRACE."""
    session.stop()
    os.environ["MCR_DL_TRACE"] = folder
    try:
        mcr_dl.init_process_group(["mpi", "gloo"])
        mcr_dl.reset_log()
        found = mcr_dl.get_passes()
        mcr_dl.all_reduce(torch.ones(4))
        mcr_dl.finalize()
    finally:
        del os.environ["MCR_DL_TRACE"]
    session.start()
    return found


def profiled() -> list[str]:
    """Names of mcr_dl's calls in torch.profiler."""
    session.start()
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        mcr_dl.all_reduce(torch.ones(4), backend=session.BACKENDS[0])
        mcr_dl.all_gather_single(
            torch.empty(4 * mcr_dl.get_world_size()), torch.ones(4), backend=session.BACKENDS[1], async_op=True
        ).wait()
    mcr_dl.barrier()
    return [event.key for event in seen.key_averages() if event.key.startswith("mcr_dl.")]


def fused() -> list[tuple[str, bool, str]]:
    """The records of calls that share a buffer."""
    session.start()
    mcr_dl.set_passes([Log(), passes.Fuse()])
    mcr_dl.reset_log()
    works = [mcr_dl.all_reduce(torch.ones(16), backend="gloo", async_op=True) for _ in range(4)]
    for work in works:
        work.wait()
    found = [(record.name, record.fused, record.state) for record in mcr_dl.log_records()]
    _off()
    return found


def behind_fuse() -> None:
    """A log behind ``fuse`` is changed by set_passes alone, which also ends it."""
    session.start()
    mcr_dl.set_passes(["fuse", "log"])
    changes: list[dict[str, Any]] = [{"enabled": False}, {"enabled": True}, {"prof_ops": ["barrier"]}]
    for change in changes:
        expect(UnsupportedError, lambda change=change: mcr_dl.configure(**change), "fuse, log", "set_passes")
    assert log.is_on()
    mcr_dl.reset_log()
    mcr_dl.all_reduce(torch.ones(4), async_op=True).wait()
    assert [record.op for record in mcr_dl.log_records()] == ["all_reduce"]
    for chain in (["fuse"], []):
        mcr_dl.set_passes(chain)
        assert not log.is_on()
        mcr_dl.all_reduce(torch.ones(4), async_op=True).wait()
    assert len(mcr_dl.log_records()) == 1


def named() -> list[tuple[int, str | None]]:
    """Priorities and keys of fused calls and of others, and refused ones."""
    session.start()
    mcr_dl.set_passes(["log", "fuse"])
    mcr_dl.reset_log()
    works = [
        mcr_dl.all_reduce(torch.ones(4), async_op=True, priority=2, key="head.weight"),
        mcr_dl.all_reduce(torch.ones(4), async_op=True, priority=-1, key="tail.weight"),
    ]
    for work in works:
        work.wait()
    mcr_dl.broadcast(torch.ones(1), src=0, key="step")
    mcr_dl.all_reduce(torch.ones(1))
    found = [(record.priority, record.key) for record in mcr_dl.log_records()]
    _off()
    expect(InvalidArgumentError, lambda: mcr_dl.all_reduce(torch.ones(1), priority=1 << 31), "priority", "32 bits")
    expect(InvalidTypeError, lambda: mcr_dl.all_reduce(torch.ones(1), priority="high"), "priority", "integer")
    expect(InvalidTypeError, lambda: mcr_dl.all_reduce(torch.ones(1), key=1), "key", "string")
    return found
