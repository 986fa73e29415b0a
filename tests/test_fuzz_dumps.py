# SPDX-License-Identifier: Apache-2.0
"""Dumps with changed, removed and new values: each is read, or refused with one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from fuzzing import edited, encoded, fuzz
from mcr_dl.watch import _report, dump

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def _dump_document() -> Any:
    call = {
        "seq": 1, "op": "all_reduce", "dtype": "float32", "red": "SUM", "root": None, "bytes": 4, "layout": None,
        "priority": 0, "backend": "mpi", "async": False, "caller": "step", "history": "0",
    }  # fmt: skip
    calls = [call, {**call, "seq": 2}]
    group = {"group": "g", "label": "group 'g'", "derived": False, "ranks": [0, 1], "collectives": 2, "calls": calls}
    inside = {"op": "recv", "backend": None, "label": "group 'g'", "seq": 3, "age": 1.25, "waits": False}
    return {
        "format": _report.FORMAT, "version": _report.VERSION, "rank": 0, "size": 3, "pid": 1, "host": "h", "time": 5.0,
        "groups": [group], "threads": [inside], "pending": [inside], "place": "a.py:1 in f", "unmatched": ["a send"],
        "alarm": {"by": 0, "kind": "timeout", "group": "g", "text": "late", "seq": 2, "message": False}, "job": "j",
    }  # fmt: skip


DUMP = _dump_document()


def _use_dump(folder: Path, document: Any) -> None:
    """Read it together with a good one of another rank, as it is and with an alarm of a message."""
    place = folder / "dumps"
    place.mkdir(exist_ok=True)
    other = {**DUMP, "rank": 1, "groups": [{**DUMP["groups"][0], "collectives": 1}]}
    for turn in range(2):
        if turn and isinstance(document, dict) and isinstance(document.get("alarm"), dict):
            document["alarm"]["message"] = True
        for rank, content in enumerate((document, other)):
            (place / f"alarm0.rank{rank}.json").write_bytes(encoded(content))
        json.dumps(dump.document(dump.read(place)))


@fuzz(400)
@given(document=edited(DUMP))
def test_dumps(folder: Path, document: Any) -> None:
    """A changed, removed or new value: every dump that can be read can be told."""
    _use_dump(folder, document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("groups",), [1]),
        (("groups",), [{}]),
        (("threads",), [{}]),
        (("pending",), [{}]),
        (("groups", 0, "calls"), [1]),
        (("groups", 0, "ranks"), [[0]]),
        (("groups", 0, "calls", 0, "backend"), ["mpi"]),
        (("time",), 1e300),
        (("time",), -1e300),
        (("size",), 10**12),
        (("rank",), 3),
        (("job",), [1]),
        (("place",), 1),
        (("unmatched",), [1]),
    ],
)
def test_values_of_a_dump(folder: Path, path: tuple[Any, ...], value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The dump is refused with one line, and the other one is used."""
    document = json.loads(json.dumps(DUMP))
    parent = document
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    _use_dump(folder, document)
    said = set(capsys.readouterr().err.splitlines())
    assert len(said) == 1
    assert "alarm0.rank0.json: " in said.pop()
