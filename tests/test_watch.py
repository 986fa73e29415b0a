# SPDX-License-Identifier: Apache-2.0
"""Error texts made from reports; dumps and their diagnosis."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as torch_dist

from harness.counted import CALL
from mcr_dl import _C, InvalidArgumentError
from mcr_dl.base import launcher, variables
from mcr_dl.trace.cli import main as mcr_trace
from mcr_dl.watch import _alarm, _losses, _report, dump
from mcr_dl.watch._alarm import Alarm, Exchange
from mcr_dl.watch._diagnosis import absent, call_text, complete, diagnose, first_difference
from mcr_dl.watch._inquiry import Inquiries
from mcr_dl.watch._losses import Losses
from mcr_dl.watch._watch import Watch
from waiting import await_true

RANKS = [0, 1, 2]


def call(seq: int, **other: Any) -> dict[str, Any]:
    """A collective in the form of a report."""
    return {"seq": seq, **CALL, **other}


def report(calls: list[dict[str, Any]], **other: Any) -> dict[str, Any]:
    """A rank's report with one group."""
    last = calls[-1]["seq"] if calls else 0
    group = {"group": "g", "label": "group 'g'", "ranks": RANKS, "collectives": last, "messages": 0, "calls": calls}
    known = {
        "format": _report.FORMAT,
        "version": _report.VERSION,
        "rank": 0,
        "size": 3,
        "pid": 1,
        "host": "h",
        "time": 0.0,
    }
    return {**known, "groups": [group], "threads": [], "pending": [], "place": "a.py:1 in f", **other}


def test_who_has_not_arrived() -> None:
    """Ranks with fewer calls, with their last call and their position; silent ranks, with the reason."""
    reports = {0: report([call(1), call(2)]), 1: report([call(1)])}
    text = diagnose(reports, {2: "process 7 on h has ended"}, "g", RANKS, 2)
    assert text == (
        "Not arrived: rank 2: process 7 on h has ended; rank 1 has made 1 collective of the group, its last is "
        "all_reduce(SUM, float32, 4 bytes, mpi); it is at a.py:1 in f."
    )


def test_all_have_arrived() -> None:
    """Then the library or the network is the cause."""
    reports = {rank: report([call(1)]) for rank in RANKS}
    assert diagnose(reports, {}, "g", RANKS, 1).startswith("All ranks have arrived")


def test_arrived_and_gone() -> None:
    """A rank that has ended since."""
    reports = {0: report([call(1)]), 1: report([call(1)], ended="it has raised E: x"), 2: report([call(1)])}
    assert "Had arrived, but are gone: rank 1: it has raised E: x." in diagnose(reports, {}, "g", RANKS, 1)


def test_no_such_group() -> None:
    """A rank that has not made the group, or has destroyed it."""
    reports = {0: report([call(1)]), 1: {**report([]), "groups": []}}
    assert "rank 1 has not made the group, or has destroyed it: it is at a.py:1 in f" in diagnose(
        reports, {}, "g", [0, 1], 1
    )


def test_inside_of_a_call() -> None:
    """The call of a late rank says more than its line."""
    inside = {"op": "recv", "backend": None, "label": "group 'h'", "seq": 3, "age": 1.25, "waits": False}
    late = report([], threads=[inside])
    text = diagnose({0: report([call(1)]), 1: late}, {}, "g", [0, 1], 1)
    assert "has made no collectives of the group; it is in auto.recv (group 'h', number 3) for 1.2 s, called at" in text


def test_messages() -> None:
    """Each rank numbers its own messages: all positions are reported."""
    text = diagnose({0: report([]), 1: report([])}, {2: "gone"}, "g", RANKS, 9, message=True)
    assert text == "Where the ranks are: rank 2: gone; rank 0: it is at a.py:1 in f; rank 1: it is at a.py:1 in f."


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("op", "reduce"),
        ("dtype", "Int"),
        ("red", "MAX"),
        ("root", 1),
        ("bytes", 8),
        ("backend", "gloo"),
        ("async", True),
    ],
)
def test_each_field_makes_a_difference(field: str, value: object) -> None:
    """The first different field is reported."""
    reports = {
        0: report([call(1), call(2), call(3)]),
        1: report([call(1), call(2, **{field: value}), call(3, bytes=0)]),
    }
    text = first_difference(reports, "g")
    assert text is not None
    assert text.startswith("collective 2 of group 'g' is all_reduce(SUM, float32, 4 bytes, mpi) on rank 0, but ")
    assert first_difference({0: reports[0], 1: reports[0]}, "g") is None


def test_a_difference_that_is_older() -> None:
    """Only the digests show it."""
    reports = {0: report([call(70, history="1")]), 1: report([call(70, history="2")])}
    assert (
        first_difference(reports, "g") == "the calls of group 'g' differ before collective 70, the oldest that is kept"
    )


def test_many_ranks() -> None:
    """Eight are named."""
    text = diagnose({0: report([call(1)])}, {}, "g", list(range(100)), 1)
    assert text.count("no report") == 8
    assert "; and 91 others." in text


def test_call_text() -> None:
    """Barriers have no type."""
    assert call_text(call(1, op="barrier", dtype=None, red=None, bytes=0, backend=None)) == "barrier()"


def test_absent_processes() -> None:
    """A process of this host can be inspected; one of another host cannot."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    known = {"rank": 1, "pid": child.pid, "host": "h", "system": launcher.host_identity()}
    try:
        assert "lives" in absent(known)
        child.send_signal(19)
        await_true(lambda: "is stopped" in absent(known))
    finally:
        child.kill()
    child.wait()
    assert absent(known) == f"process {child.pid} on h has ended"
    assert all("cannot be reached" in absent({**known, each: "elsewhere"}) for each in ("system", "processes"))
    assert absent(None) == "it has not started"


def test_a_report_of_this_process() -> None:
    """It can be sent as JSON, and has the main thread's position."""
    made = json.loads(json.dumps(_report.make(0, 1, _report.Ages(), None, whole=True)))
    assert made["pid"] == os.getpid()
    assert any("test_a_report_of_this_process" in line for line in made["stacks"]["MainThread"])


def leave_dump(folder: Path, rank: int, content: dict[str, Any], number: int = 0) -> None:
    """Write a rank's file."""
    alarm = {"by": 0, "kind": "timeout", "group": "g", "text": "mpi.all_reduce: late", "seq": 2, "message": False}
    folder.joinpath(f"alarm{number}.rank{rank}.json").write_text(json.dumps({"alarm": alarm, **content, "rank": rank}))


def test_diagnose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One paragraph from the dumps of some ranks."""
    leave_dump(tmp_path, 0, report([call(1), call(2)]))
    leave_dump(tmp_path, 1, report([call(1)]))
    leave_dump(tmp_path, 0, report([call(1), call(2)]), number=1)
    assert mcr_trace(["diagnose", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "timeout on rank 0: mpi.all_reduce: late. There are dumps of 2 of 3 ranks; rank 2 left none." in text
    assert "Not arrived: rank 2: it has left no dump; rank 1 has made 1 collective" in text
    assert "Later, alarm 1: timeout on rank 0" in text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "expected a complete JSON document"),
        ("[" * 100_000, "lists and objects inside each other"),
        ("[]", "expected a dump of version 1"),
        ('{"format": "mcr-dl dump", "version": 9}', "expected a dump of version 1"),
        (json.dumps({"format": "mcr-dl dump", "version": 1, "alarm": {}, "rank": "0"}), "rank: expected values of"),
    ],
)
def test_broken_dumps(tmp_path: Path, text: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the file."""
    (tmp_path / "alarm0.rank0.json").write_text(text)
    assert mcr_trace(["diagnose", str(tmp_path)]) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("part", ["kind", "by", "text", "group", "seq", "message"])
def test_dumps_without_a_part_of_the_alarm(tmp_path: Path, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names it."""
    leave_dump(tmp_path, 0, report([]))
    file = tmp_path / "alarm0.rank0.json"
    content = json.loads(file.read_text())
    del content["alarm"][part]
    file.write_text(json.dumps(content))
    assert mcr_trace(["diagnose", str(tmp_path)]) == 2
    assert f"alarm.{part}: expected" in " ".join(capsys.readouterr().err.split())


def test_a_dump_that_was_cut_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As on a full disk."""
    leave_dump(tmp_path, 0, report([call(1)]))
    (tmp_path / "alarm0.rank1.json").write_text("")
    assert mcr_trace(["diagnose", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "rank1.json: line 1: expected a complete JSON document" in told.err
    assert told.err.endswith("; the other dumps are used\n")
    assert "timeout on rank 0" in told.out


def test_the_folder_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program may change its folder later."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(dump.VARIABLE, "dumps of the start")
    dump.set_job("job")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert variables.path(dump.VARIABLE) == tmp_path / "dumps of the start"


def test_no_dumps(tmp_path: Path) -> None:
    """A folder without dumps, and a missing folder."""
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(InvalidArgumentError, match="expected a folder with dumps"):
            dump.read(place)


def test_dumps_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error on stderr; only the first alarms leave a dump."""
    monkeypatch.setenv(dump.VARIABLE, str(tmp_path / "file" / "folder"))
    (tmp_path / "file").write_text("")
    dump.write(0, report([]), {})
    assert "could not be written" in capsys.readouterr().err
    monkeypatch.setenv(dump.VARIABLE, str(tmp_path))
    dump.write(8, report([]), {})
    assert not list(tmp_path.glob("alarm*"))


def test_a_folder_for_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made, and left empty; one that cannot be made leads to a warning at the start."""
    monkeypatch.setenv(dump.VARIABLE, str(tmp_path / "new" / "folder"))
    dump.prepare_folder()
    assert not list((tmp_path / "new" / "folder").iterdir())
    (tmp_path / "file").touch()
    monkeypatch.setenv(dump.VARIABLE, str(tmp_path / "file" / "folder"))
    with pytest.warns(UserWarning, match="MCR_DL_DUMP_DIR: expected a folder for dumps, got .* cannot be written"):
        dump.prepare_folder()


def _busy(exchange: Exchange, seconds: float) -> None:
    """Occupy the thread that uses the store."""
    with contextlib.suppress(RuntimeError):
        exchange.ask(lambda: time.sleep(seconds), limit=0.05)


@pytest.mark.timed
def test_an_alarm_that_was_not_rung() -> None:
    """Its first rank has ended since; and the time of the inquiry is limited as a whole."""
    exchange = Exchange(torch_dist.HashStore(), 0, 2, lambda _: report([]), lambda *_: None)
    exchange.start()
    inquiries, alarm = Inquiries(exchange, Losses(exchange)), Alarm(0, "timeout", "g", "text", 1)
    exchange.store.add("alarm/0", 1)
    try:
        begin = time.monotonic()
        with contextlib.suppress(RuntimeError):
            inquiries.find_out(alarm, [0, 1], 0.3)
        assert time.monotonic() - begin < 1.2  # and not the time for another rank's diagnosis
        found = inquiries.find_out(alarm, [0, 1], 4.0)
        assert "rank 1: it has not started" in found.text
        assert exchange._until(lambda: exchange.number > 0, 10, time.monotonic() + 20)
    finally:
        exchange.stop()


def test_the_watch_goes_on_after_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """With its other steps; it is logged once."""
    made = Watch(torch_dist.HashStore(), 0, 1, list, detail=False, former=None)
    looks = threading.Semaphore(0)

    def fail() -> None:
        raise KeyError("what")

    made._steps = (fail, looks.release)  # type: ignore[assignment]
    made.start()
    try:
        for _ in range(3):
            assert looks.acquire(timeout=10)
    finally:
        made.stop("it ends", well=True)
    assert caplog.text.count("the watch has failed") == 1


def test_other_requests_during_an_inquiry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The news of a loss, which other threads read from the store, comes while a diagnosis waits for answers."""
    monkeypatch.setattr(_alarm, "ANSWERS", 50.0)
    exchange = Exchange(torch_dist.HashStore(), 0, 2, lambda _: report([]), lambda *_: None)
    exchange.start()
    lost: dict[int, str] = {}

    def ask() -> None:
        exchange.ask(lambda: None)
        lost[1] = "lost rank 1: process 7 on a has ended"

    begin, asking = time.monotonic(), threading.Thread(target=ask, daemon=True)
    try:
        number, first = exchange.raise_alarm(Alarm(0, "timeout", "g", "text"))
        assert first
        asking.start()
        answers = exchange.gather(number, [0, 1], begin + 60, lambda: lost)
        assert lost  # and not the 50 seconds
        assert time.monotonic() < begin + 40
        assert answers.silent == [1]
    finally:
        asking.join(60)
        exchange.stop()


@pytest.mark.timed
@pytest.mark.parametrize("well", [True, False, None])  # None: the note is that of an earlier process of the rank
def test_the_end_of_a_process_while_the_store_is_slow(well: bool | None) -> None:
    """A rank that has ended communication is not lost; the loss of another one is told once the store answers."""
    store = torch_dist.HashStore()
    exchange = Exchange(store, 0, 1, lambda _: report([]), lambda *_: None)
    exchange.start()
    losses = Losses(exchange)
    losses._nodes, losses._peers = [0, 0, 1], SimpleNamespace(running=set)  # type: ignore[assignment]
    note = {**_report.identity(1), "pid": 1 if well is None else os.getpid(), "well": well is not False, "ended": "it"}
    store.set("watch/ended/1", json.dumps({**note, "by_code": False}))
    try:
        _busy(exchange, 1.0)
        losses._ended(1, _report.identity(1), None)
        assert losses.any is (well is not True)
        rung = lambda: store.check(["watch/ring/0/0"]) or exchange.number > 0  # noqa: E731
        assert exchange._until(rung, 0.1 if well else 10, time.monotonic() + 20) is (well is not True)
    finally:
        exchange.stop()
        _C.regain(1)


@pytest.mark.parametrize("ended", [True, False])
def test_the_rank_that_tells_other_hosts(ended: bool) -> None:
    """The lowest one that watches: not one that has ended communication, or that ends before it could tell."""
    store = torch_dist.HashStore()
    exchange = Exchange(store, 1, 4, lambda _: report([]), lambda *_: None)
    exchange.start()
    losses, told = Losses(exchange), list[int]()
    losses._nodes, losses._peers = [0, 0, 0, 1], SimpleNamespace(running=lambda: {0})  # type: ignore[assignment]
    losses._tell = lambda rank, *_: told.append(rank)  # type: ignore[method-assign]
    note = json.dumps({**_report.identity(0), "well": True, "ended": "it has ended", "by_code": False})
    try:
        if ended:
            store.set("watch/ended/0", note)
        losses._ended(2, _report.identity(2), None)
        assert told == ([2] if ended else [])
        store.set("watch/ended/0", note)
        losses._ended(0, _report.identity(0), None)
        assert told == [2]
    finally:
        exchange.stop()
        _C.regain(2)


def test_identities_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """The rank says that it notices less, and still connects to other hosts."""
    exchange = Exchange(torch_dist.HashStore(), 0, 1, lambda _: report([]), lambda *_: None)
    exchange.lost = "it does not answer"
    losses = Losses(exchange)
    connected: list[bool] = []
    losses._connect = lambda *, wait: connected.append(wait)  # type: ignore[method-assign]
    losses.begin([0, 0, 1])
    assert connected == [True]
    assert "it does not answer" in caplog.text


def test_machines_of_equal_names() -> None:
    """Process numbers have a meaning on their own machine alone."""
    mine = _report.identity(1)
    assert _losses._is_near(mine)
    assert not _losses._is_near({**mine, "machine": f"{mine['host']}/another-boot"})


@pytest.mark.parametrize(
    ("timeout", "ends"), [(True, "words. Told."), (False, "failed. Told. The backend's own text: words")]
)
def test_the_order_of_an_error(timeout: bool, ends: str) -> None:
    """A library's text, which may have many lines, comes last; a timeout's is short, and comes first."""
    label = "group '): x', rank 0 of 2"
    text = complete(f"mpi.send ({label}): words", label, "Told.", timeout=timeout)
    assert text == f"mpi.send ({label}): {ends}"
    assert complete("words", label, "Told.", timeout=timeout) == "words. Told."
    assert complete("words", label, "", timeout=timeout) == "words"


def test_a_difference_comes_first() -> None:
    """The error then does not blame the backend, which has done nothing wrong."""
    reports = {0: report([call(1)]), 1: report([call(1, bytes=8)]), 2: report([])}
    text = diagnose({rank: reports[rank] for rank in (0, 1)}, {}, "g", [0, 1], 1)
    assert text.startswith("The ranks have made different calls: collective 1 of group 'g' is ")
    assert "All ranks have arrived" not in text
    assert re.match(r"The ranks .* different calls: .*\. Not arrived: rank 2 ", diagnose(reports, {}, "g", RANKS, 1))


def test_positions_of_this_process() -> None:
    """The core's data on a group."""
    group = _C.Group("alone", [0], 0, timedelta(seconds=1))
    found = next(each for each in _C.positions() if each["label"] == group._label)
    assert (found["group"], found["ranks"], found["collectives"], found["calls"]) == ("alone", [0], 0, [])
    group._close()
    assert all(each["label"] != group._label for each in _C.positions())
