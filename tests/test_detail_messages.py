# SPDX-License-Identifier: Apache-2.0
"""MCR_DL_DEBUG=detail: sends and receives are compared across ranks, docs/reliability.md "Different calls"."""

from __future__ import annotations

import io
import re
import signal
import sys
from pathlib import Path

import pytest

import jobs
from mcr_dl.testing.nursery import Nursery
from mcr_dl.watch import _messages
from mcr_dl.watch._messages import ANY, Messages, Taken

PROGRAM = "detail_messages"
NAME = "group 'g'"


def send(
    to: int, nbytes: int = 4, *, tag: int = 0, backend: str = "mpi", count: int = 1, dtype: str = "float32"
) -> Taken:
    """Equal sends of one rank."""
    return Taken(True, to, tag, backend, dtype, nbytes, None, f"a.py:{nbytes} in f", count)


def recv(
    source: int, nbytes: int = 4, *, tag: int = 0, backend: str = "mpi", count: int = 1, dtype: str = "float32"
) -> Taken:
    """Equal receives of one rank."""
    return Taken(False, source, tag, backend, dtype, nbytes, None, f"b.py:{nbytes} in g", count)


def told(*made: tuple[int, list[Taken]]) -> tuple[str | None, str | None]:
    """The text of the first comparison after a step that has one, and the text at the end."""
    messages = Messages("g")
    for rank, runs in made:
        messages.add(rank, runs, lost=False)
        found = messages.compare()
        if found is not None:
            return found, None
    return None, messages.compare_ends()


EQUAL = {
    "one message": [(0, [send(1)]), (1, [recv(0)])],
    "the receive is left first": [(1, [recv(0)]), (0, [send(1)])],
    "runs of different lengths": [
        (0, [send(1, count=5), send(1, 8), send(1, count=2)]),
        (1, [recv(0, count=2), recv(0, count=3), recv(0, 8), recv(0)]),
        (1, [recv(0)]),
    ],
    "both directions": [(0, [send(1), recv(1, 8)]), (1, [recv(0), send(0, 8)])],
    "tags in another order": [(0, [send(1, 4, tag=1), send(1, 8, tag=2)]), (1, [recv(0, 8, tag=2), recv(0, 4, tag=1)])],
    "backends in another order": [
        (0, [send(1, 4, backend="mpi"), send(1, 8, backend="gloo")]),
        (1, [recv(0, 8, backend="gloo"), recv(0, 4, backend="mpi")]),
    ],
    "from any rank": [(0, [send(2, 4)]), (1, [send(2, 8)]), (2, [recv(ANY, 8), recv(ANY, 4)])],
    "from any rank, left first": [(2, [recv(ANY, 8), recv(ANY, 4)]), (0, [send(2, 4)]), (1, [send(2, 8)])],
    "from one rank and then from any": [
        (0, [send(2, 4), send(2, 8)]),
        (2, [recv(0, 4), recv(ANY, 16), recv(ANY, 8)]),
        (1, [send(2, 16)]),
    ],
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_messages(name: str) -> None:
    """Nothing is said, and nothing is kept."""
    assert told(*EQUAL[name]) == (None, None)


DIFFERENT = {
    "size": (
        [(0, [send(1, count=2), send(1)]), (1, [recv(0, count=2), recv(0, 8)])],
        f"send 3 from rank 0 to rank 1 (tag 0) of {NAME} is send(float32, 4 bytes, mpi) on rank 0, called at a.py:4 in "
        "f, but recv(float32, 8 bytes, mpi) on rank 1, called at b.py:8 in g",
    ),
    "type": (
        [(1, [recv(0, dtype="int32", tag=3)]), (0, [send(1, tag=3)])],
        f"send 1 from rank 0 to rank 1 (tag 3) of {NAME} is send(float32, 4 bytes, mpi) on rank 0, called at a.py:4 in "
        "f, but recv(int32, 4 bytes, mpi) on rank 1, called at b.py:4 in g",
    ),
    "tag": (
        [(0, [send(1)]), (1, [recv(0, tag=5)])],
        f"a message from rank 0 to rank 1 of {NAME} is send(float32, 4 bytes, tag 0, mpi) on rank 0, called at a.py:4 "
        "in f, but recv(float32, 4 bytes, tag 5, mpi) on rank 1, called at b.py:4 in g",
    ),
    "backend": (
        [(0, [send(1)]), (1, [recv(0, backend="gloo")])],
        f"a message from rank 0 to rank 1 of {NAME} is send(float32, 4 bytes, tag 0, mpi) on rank 0, called at a.py:4 "
        "in f, but recv(float32, 4 bytes, tag 0, gloo) on rank 1, called at b.py:4 in g",
    ),
    "more sends": (
        [(0, [send(1, count=3), send(1, 8)]), (1, [recv(0)])],
        f"{NAME} ends with 3 more sends than receives from rank 0 to rank 1 (tag 0): the first send(float32, 4 bytes, "
        "mpi) on rank 0, called at a.py:4 in f",
    ),
    "one receive more": (
        [(0, [send(1)]), (1, [recv(0), recv(0)])],
        f"{NAME} ends with 1 more receive than sends from rank 0 to rank 1 (tag 0): recv(float32, 4 bytes, mpi) on "
        "rank 1, called at b.py:4 in g",
    ),
    "size from any rank": (
        [(0, [send(2)]), (1, [send(2)]), (2, [recv(ANY), recv(ANY, 8)])],
        f"a message to rank 2 of {NAME} is send(float32, 4 bytes, tag 0, mpi) on rank 1, called at a.py:4 in f, but "
        "recv(float32, 8 bytes, tag 0, mpi) on rank 2, called at b.py:8 in g",
    ),
    "one receive from any rank more": (
        [(0, [send(2)]), (2, [recv(ANY, count=2)])],
        f"{NAME} ends with 1 more receive than sends from any rank to rank 2 (tag 0): such as recv(float32, 4 bytes, "
        "mpi) on rank 2, called at b.py:4 in g",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_messages(name: str) -> None:
    """A difference in type or size is found at once, the others at the end."""
    made, text = DIFFERENT[name]
    assert told(*made) == ((text, None) if name in ("size", "type") else (None, text))


def test_equal_messages_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is bounded: messages of one form take one entry, matched ones none; too many end the comparison."""
    monkeypatch.setattr(_messages, "_NUMBERED", 10)
    messages = Messages("g")
    messages._most = 10
    for tag in range(100):
        messages.add(0, [send(1, tag=tag)], lost=False)
        messages.add(1, [recv(0, tag=tag)], lost=False)
        assert messages.compare() is None
    assert len(messages._places) <= 11
    messages.add(0, [send(1, count=1_000_000), send(1, count=1_000_000)], lost=False)
    assert messages.compare() is None
    assert messages._kept == 1
    messages.add(1, [recv(0, 8)], lost=False)
    assert str(messages.compare()).startswith("a send from rank 0 to rank 1 (tag 0)")


def test_too_many_messages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Beyond a limit, and if a rank has lost some, they are not compared any more, which is said once."""
    monkeypatch.setattr(_messages, "MOST", 10)
    for lost in (False, True):
        messages = Messages("g")
        for turn in range(20):
            messages.add(0, [send(1, turn)], lost=lost and turn == 5)
            assert messages.compare() is None
        assert messages.given_up
        assert messages.compare_ends() is None
        assert capsys.readouterr().err.count(f"mcr_dl: sends and receives of {NAME} are not compared any more") == 1


def test_too_many_messages_with_a_closed_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that cannot be written ends no thread."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    messages = Messages("g")
    messages.add(0, [send(1)], lost=True)
    assert messages.compare() is None
    assert messages.given_up


# ---- jobs


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("backends", ["mpi", "gloo", "shm", "shm,gloo"])
def test_correct_programs(nursery: Nursery, backends: str, size: int) -> None:
    """Rings, batches, tags in any order, receives from any rank, threads, subgroups, refused calls: all are equal."""
    ranks = jobs.start(nursery, PROGRAM, ["equal", backends], size, MCR_DL_DEBUG="detail")
    jobs.end(nursery, ranks)
    assert [(rank.code, rank.text) for rank in ranks] == [(0, "SAME\n")] * size


@pytest.mark.parametrize("backend", ["mpi", "shm"])
def test_compressed_messages(nursery: Nursery, backend: str) -> None:
    """The messages of a pass are not the program's."""
    ranks = jobs.start(nursery, PROGRAM, ["compressed", backend], 3, MCR_DL_DEBUG="detail")
    jobs.end(nursery, ranks)
    assert [(rank.code, rank.text) for rank in ranks] == [(0, "SAME\n")] * 3


FORMS = {
    "shorter": "float32, 3600 bytes",
    "longer": "float32, 4400 bytes",
    "type": "int32, 4000 bytes",
    "strides": r"float32, 4000 bytes, shape \(2, 500\) with strides \(1, 2\)",
}


@pytest.mark.parametrize("difference", FORMS)
@pytest.mark.parametrize(("backend", "size"), [("mpi", 2), ("mpi", 3), ("gloo", 2), ("gloo", 3), ("shm", 3)])
def test_messages_that_differ(nursery: Nursery, backend: str, size: int, difference: str) -> None:
    """All ranks raise, in this call and in later ones, and name both lines."""
    ranks = jobs.start(nursery, PROGRAM, ["differ", backend, difference], size, MCR_DL_DEBUG="detail")
    jobs.end(nursery, ranks)
    at = r"called at detail_messages\.py:\d+ in _exchange"
    text = (
        r"DesyncError:? .*the ranks have made different calls: send 3 from rank 0 to rank 1 \(tag 0\) of group "
        rf"'default' is send\(float32, 4000 bytes, {backend}\) on rank 0, {at}, but "
        rf"recv\({FORMS[difference]}, {backend}\) on rank 1, {at}\n"
    )
    for rank in ranks:
        assert re.search(text, rank.text), rank.text
    # gloo ends the process if a message is too long: the text is the same, the exit code differs.
    if (backend, difference) != ("gloo", "shorter"):
        assert [(rank.code, rank.text.count("RAISED")) for rank in ranks] == [(0, 2)] * size
    else:
        assert {rank.code for rank in ranks} <= {0, -signal.SIGABRT}


ENDS = {
    "tag": r"is send\(float32, 4000 bytes, tag 0, (\w+)\) on rank 0, {at}, but recv\(float32, 4000 bytes, tag 5, \1\) "
    "on rank 1, {at}",
    "sends": r"ends with 1 more send than receives from rank 0 to rank 1 \(tag 0\): send\(.*\) on rank 0, {at}",
    "receives": r"ends with 2 more receives than sends from rank 0 to rank 1 \(tag 0\): the first recv\(.*, {at}",
    "type from any": r"is send\(float32, .*\) on rank 0, {at}, but recv\(int32, .*\) on rank 1, {at}",
    "backend": r"is send\(.*, tag 0, shm\) on rank 0, {at}, but recv\(.*, tag 0, gloo\) on rank 1, {at}",
}


@pytest.mark.parametrize(
    ("backends", "difference"),
    [(backend, each) for backend in ("mpi", "gloo", "shm") for each in ENDS if each != "backend"]
    + [("shm,gloo", "backend")],
)
def test_messages_without_a_match(nursery: Nursery, backends: str, difference: str, tmp_path: Path) -> None:
    """All ranks raise at the end, and leave the traces that MCR_DL_TRACE asks for."""
    environment = {"MCR_DL_DEBUG": "detail", "MCR_DL_TRACE": str(tmp_path)}
    ranks = jobs.start(nursery, PROGRAM, ["ends", backends, difference], 3, **environment)
    jobs.end(nursery, ranks)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rank0.json", "rank1.json", "rank2.json"]
    text = ENDS[difference].format(at=r"called at detail_messages\.py:\d+ in [\w<>]+")
    for rank in ranks:
        assert re.search(rf"RAISED DesyncError the ranks have made different calls: .*{text}", rank.text), rank.text
        assert rank.code == jobs.REPORTED, rank.text


@pytest.mark.parametrize("backend", ["mpi", "shm"])
def test_messages_without_a_match_at_a_timeout(nursery: Nursery, backend: str) -> None:
    """The call that times out names the messages that wait, and the end of the program raises on both ranks."""
    ranks = jobs.start(nursery, PROGRAM, ["timed_out", backend], 2, MCR_DL_DEBUG="detail")
    jobs.end(nursery, ranks)
    at = r"called at detail_messages\.py:\d+ in timed_out"
    text = (
        rf"RAISED .* timed out: .*Messages without a match so far: send\(float32, 40 bytes, tag 0, {backend}\) on rank "
        rf"0, {at}, to rank 1; recv\(float32, 40 bytes, tag 5, {backend}\) on rank 1, {at}, from rank 0\."
    )
    assert re.search(text, ranks[1].text), ranks[1].text
    for rank in ranks:
        assert "DesyncError: the ranks have made different calls: a message from rank 0 to rank 1" in rank.text, (
            rank.text
        )


def test_without_detail(nursery: Nursery) -> None:
    """Nothing is compared: a type that differs is not noticed."""
    ranks = jobs.start(nursery, PROGRAM, ["ends", "shm", "type"], 2)
    jobs.end(nursery, ranks)
    assert [(rank.code, rank.text) for rank in ranks] == [(0, "")] * 2
