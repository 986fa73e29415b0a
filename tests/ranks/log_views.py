# SPDX-License-Identifier: Apache-2.0
"""Views of the log after calls and meetings that only some of the ranks took part in, and of torch's calls."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as torch_dist

import mcr_dl
from mcr_dl.passes.log import Log
from mcr_dl.records import log, printer
from mcr_dl.runtime import state
from mcr_dl.testing.expect import expect
from mcr_dl.trace import _clock
from ranks import session


def refused_on_one_rank() -> list[tuple[int, str, str]]:
    """Numbers, operations and states after rank 0 has made a call that is refused."""
    session.start()
    mcr_dl.set_passes([Log(), "compress"])
    mcr_dl.reset_log()
    if mcr_dl.get_rank() == 0:
        integers = torch.ones(8, dtype=torch.int32)
        expect(mcr_dl.InvalidTypeError, lambda: mcr_dl.all_reduce(integers, codec="bf16"), "bf16")
    mcr_dl.all_reduce(torch.ones(8))
    mcr_dl.broadcast(torch.ones(8), 0)
    records = mcr_dl.log_records()
    mcr_dl.set_passes([])
    before = records[-1].seq - 2
    return [(record.seq and record.seq - before, record.op, record.state) for record in records]


def refused_message() -> list[tuple[int, str, str]]:
    """Numbers, operations and states after rank 0 has made a send that is refused, and another one."""
    session.start()
    mcr_dl.set_passes([Log(), "compress"])
    mcr_dl.reset_log()
    if mcr_dl.get_rank() == 0:
        integers = torch.ones(8, dtype=torch.int32)
        expect(mcr_dl.InvalidTypeError, lambda: mcr_dl.send(integers, 1, codec="bf16"), "bf16")
        mcr_dl.send(torch.ones(8), 1)
    else:
        mcr_dl.recv(torch.ones(8), 0)
    records = mcr_dl.log_records()
    mcr_dl.set_passes([])
    before = records[-1].seq - 1
    return [(record.seq and record.seq - before, record.op, record.state) for record in records]


def of_an_ended_group() -> tuple[int, int, int]:
    """How many records a group has, and two later groups of its name: one without the log, one with it."""
    counts = []
    for logged in (True, False, True):
        session.stop()
        session.start()
        if logged:
            mcr_dl.set_passes(["log"])
        for _ in range(2 + len(counts)):
            mcr_dl.all_reduce(torch.ones(3))
        counts.append(len(mcr_dl.log_records(mcr_dl.group.WORLD)))
    session.stop()
    first, second, third = counts
    return first, second, third


def stragglers_of_a_subgroup() -> None:
    """All ranks of the job take part, those outside the group without records of it."""
    session.start()
    mcr_dl.set_passes(["log"])
    group = mcr_dl.new_group([0, 1])
    member = mcr_dl.get_rank() < 2
    if member:
        mcr_dl.set_passes(["log"], group)
        mcr_dl.all_reduce(torch.ones(4), group=group)
    mcr_dl.barrier()
    for wanted, count in ((group, 1 if member else 0), (None, None)):
        found = mcr_dl.log_summary(show_straggler=True, return_dict=True, group=wanted)
        assert found is not None
        lines = found["straggler_analysis"]
        assert count is None or sum(each["count"] for sizes in lines.values() for each in sizes.values()) == count
    if member:
        mcr_dl.destroy_process_group(group)
    mcr_dl.set_passes([])


def meetings_missed(folder: str) -> None:
    """A rank that waits for the others in vain gets an error which names them; the next call finds them again."""
    session.start()
    mcr_dl.set_passes(["log"])
    others = [f"rank {rank}: " for rank in range(1, mcr_dl.get_world_size())]
    with mock.patch.object(state.State, "default_timeout", timedelta(seconds=1)):
        if mcr_dl.get_rank() == 0:
            wanted = ("trace.save: timed out", "Not arrived: ", *others)
            expect(mcr_dl.CollectiveTimeoutError, lambda: mcr_dl.trace.save(folder), *wanted)
            expect(mcr_dl.CollectiveTimeoutError, lambda: mcr_dl.log_summary(True), "log_summary: timed out", "rank 1")
    mcr_dl.barrier()
    with mock.patch.object(state.State, "default_timeout", timedelta(seconds=60)):
        for _ in range(2):
            assert mcr_dl.trace.save(folder).exists()
            assert mcr_dl.log_summary(True, True) is not None
        if mcr_dl.get_rank() == 0:
            expect(mcr_dl.InvalidArgumentError, lambda: mcr_dl.trace.save(folder), "expected the same on all ranks")
        else:
            expect(mcr_dl.InvalidArgumentError, lambda: mcr_dl.log_summary(True), "expected the same on all ranks")
    mcr_dl.set_passes([])


def many_splits() -> list[tuple[str, bool]]:
    """Operations, and whether their counts are lost, after more counts than the ring can keep."""
    session.start()
    mcr_dl.set_passes([Log(capacity=100)])
    size = mcr_dl.get_world_size()
    value, result = torch.ones(size), torch.empty(size)
    for _ in range(16384 // (2 * size) + 10):
        mcr_dl.all_to_all_single(result, value, [1] * size, [1] * size)
    mcr_dl.all_reduce(value)
    found = [(record.name, record.truncated) for record in mcr_dl.log_records()[-2:]]
    mcr_dl.set_passes([Log(capacity=65536)])
    mcr_dl.set_passes([])
    return found


def lost_before_reset() -> tuple[int, int]:
    """How many records are lost, before and after the log is reset."""
    session.start()
    mcr_dl.set_passes([Log(capacity=10)])
    for _ in range(15):
        mcr_dl.barrier()
    before = log.lost()
    mcr_dl.reset_log()
    mcr_dl.barrier()
    found = before, log.lost()
    mcr_dl.set_passes([Log(capacity=65536)])
    mcr_dl.set_passes([])
    return found


def verbose_no_more() -> tuple[int, list[str]]:
    """How many lines are printed after other logs have taken the verbose one's place; the passes of a later life."""
    session.start()
    written = StringIO()
    with redirect_stderr(written):
        mcr_dl.configure(enabled=True, verbose=True)
        mcr_dl.all_reduce(torch.ones(4))
        mcr_dl.set_passes([])
        mcr_dl.set_passes(["log"])
        mcr_dl.all_reduce(torch.ones(4))
        session.stop()
        session.start()
        mcr_dl.set_passes(["log"])
        mcr_dl.all_reduce(torch.ones(4))
        printer.flush()
        mcr_dl.set_passes([])
    mcr_dl.configure(debug=True)
    passes = mcr_dl.get_passes()
    mcr_dl.configure(debug=False)
    return written.getvalue().count("comm op:"), [str(each) for each in passes]


def _made() -> list[tuple[str, str | None]]:
    """The records of two calls: operations and callers."""
    mcr_dl.reset_log()
    mcr_dl.barrier()
    mcr_dl.all_reduce(torch.ones(2))
    return [(record.op, record.caller) for record in mcr_dl.log_records()]


def changed() -> str:
    """Settings without ``enabled`` change the logs that are set, and no other groups; the output of a verbose time."""
    session.start()
    mcr_dl.set_passes([Log(ops=["barrier"])])
    written = StringIO()
    with redirect_stderr(written):
        mcr_dl.configure(debug=True)
        assert _made() == [("barrier", "_made")]
        mcr_dl.configure(verbose=True)
        assert _made() == [("barrier", "_made")]
        mcr_dl.configure(verbose=False)
        mcr_dl.configure(prof_all=False, prof_ops=["all_reduce"], debug=False)
        assert _made() == [("all_reduce", None)]
        printer.flush()
    assert mcr_dl.get_passes(mcr_dl.new_group()) == []
    mcr_dl.set_passes([])
    mcr_dl.configure(prof_all=True, debug=True)
    assert mcr_dl.get_passes() == []
    session.stop()
    with mock.patch.dict("os.environ", MCR_DL_PASSES="log"):
        session.start()
    mcr_dl.configure(verbose=False, debug=True, prof_all=False, prof_ops=["barrier"])
    for group in (None, mcr_dl.new_group()):
        assert mcr_dl.get_passes(group) == ["log"]
        mcr_dl.reset_log()
        mcr_dl.all_reduce(torch.ones(2), group=group)
        mcr_dl.barrier(group=group)
        assert [(record.op, record.caller) for record in mcr_dl.log_records()] == [("barrier", "changed")]
    session.stop()
    session.start()
    return written.getvalue()


def left_at_the_store(folder: str) -> list[int]:
    """How many keys the job's store has after some summaries and traces."""
    session.start()
    mcr_dl.set_passes(["log"])
    own = partial(_clock.measure, domain=lambda: str(mcr_dl.get_rank()))  # clocks that have to be compared
    found = []
    with redirect_stdout(StringIO()), mock.patch.object(_clock, "measure", own):
        for _ in range(4):
            mcr_dl.log_summary(show_straggler=True)
            mcr_dl.trace.save(folder)
            mcr_dl.barrier(backend="gloo")
            found.append(state.current().store.num_keys())
            mcr_dl.barrier(backend="gloo")
    mcr_dl.set_passes([])
    return found


def callers_of_torch() -> list[tuple[str, str | None]]:
    """Operations, and the functions that made them, of calls through torch.distributed and mcr_dl.

    The last function is that of a program in a folder with the name of the package.
    """
    session.start()
    mcr_dl.configure(enabled=True, debug=True)
    mcr_dl.reset_log()

    def evaluate() -> None:
        mcr_dl.all_reduce(torch.ones(4))

    def train() -> None:
        torch_dist.all_reduce(torch.ones(4))
        torch_dist.broadcast(torch.ones(4), 0)

    train()
    evaluate()
    train()
    source = "def step():\n    torch_dist.all_reduce(torch.ones(4))\n"
    program: dict[str, Any] = {"torch": torch, "torch_dist": torch_dist}
    exec(compile(source, "/home/user/mcr_dl/train.py", "exec"), program)
    program["step"]()
    found = [(record.op, record.caller) for record in mcr_dl.log_records()]
    mcr_dl.configure(enabled=False, debug=False)
    return found


def region_names(folder: str) -> None:
    """Names that a trace could not have are refused at once."""
    session.start()
    with mcr_dl.trace.region("step"):
        pass
    expect(mcr_dl.InvalidTypeError, lambda: mcr_dl.trace.region(7).__enter__(), "trace.region", "expected a str, got 7")  # type: ignore[arg-type]
    assert mcr_dl.trace.save(Path(folder)).exists()
