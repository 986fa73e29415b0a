# SPDX-License-Identifier: Apache-2.0
"""Calls of one process that wait at the same time share their diagnoses."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as torch_dist

from mcr_dl.watch import _watch
from mcr_dl.watch._watch import Watch


def _position(label: str, collectives: int) -> dict[str, Any]:
    return {"label": label, "group": "g", "ranks": [0, 1], "collectives": collectives, "messages": 0}


def test_calls_that_time_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later call of the group shares the diagnosis of an earlier one, unless all ranks have arrived at that."""
    made = Watch(torch_dist.HashStore(), 0, 2, list, detail=False, former=None)
    found = ["Not arrived: rank 1.", "All ranks have arrived: late.", "Not arrived: rank 1, again.", "Not rank 0."]
    texts = iter(found)
    monkeypatch.setattr(made, "_inquire", lambda *_: next(texts))
    monkeypatch.setattr(_watch, "_C", SimpleNamespace(positions=lambda **_: [_position("label", 7)]))

    def told(seq: int, message: bool = False) -> str:
        return made._explanation("text", "label", seq, message, "timeout", 1.0)

    assert told(5) == told(6) == told(7) == "Not arrived: rank 1."
    assert told(4).startswith("All ranks have arrived")
    assert told(5) == "Not arrived: rank 1, again."
    assert told(8) == "Not rank 0."  # it began after the others had failed


@pytest.mark.parametrize(
    ("begun", "spacing", "expected"),
    [(3, 1000.0, ". Found for a call of first: Not rank 1."), (2, 0.1, ". Not rank 0."), (2, 1000.0, "")],
    ids=["under way", "began later", "no time for an inquiry"],
)
def test_an_error_soon_after_another(
    monkeypatch: pytest.MonkeyPatch, begun: int, spacing: float, expected: str
) -> None:
    """An error takes the diagnosis of another group's call only if its own call was under way then."""
    monkeypatch.setattr(_watch, "_SPACING", spacing)
    made = Watch(torch_dist.HashStore(), 0, 2, list, detail=False, former=None)
    texts = iter(["Not rank 1.", "Not rank 0."])
    monkeypatch.setattr(made, "_inquire", lambda *_: next(texts))
    positions = [_position("first", 1), _position("second", begun)]
    monkeypatch.setattr(_watch, "_C", SimpleNamespace(positions=lambda **_: positions, lost=lambda _: None))
    made._explanation("text", "first", 1, False, "timeout", 1.0)
    assert made.explain("text", "second", 3, False, True) == f"text{expected}"


def test_operations_of_many_groups_that_time_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once inquiries have taken a while, the other groups share the last diagnosis."""
    monkeypatch.setattr(_watch, "_ROUND", -1.0)  # after the first one
    made, asked = Watch(torch_dist.HashStore(), 0, 2, list, detail=False, former=None), list[str]()
    expired: dict[str, str] = {}
    facts = {"limit": 1.0, "message": False, "op": "all_reduce", "bytes": 4}
    works = [(label, {"what": "all_reduce", "label": label, "seq": seq, **facts}) for seq, label in enumerate("abca")]

    def explain(_: str, label: str, seq: int, *__: Any) -> str:
        asked.append(label)
        begun = {each: _position(each, len(works)) for each in "abc"}
        made._known = _watch._Known(label, False, seq, "Not arrived: rank 1.", time.monotonic(), begun)
        return made._known.told

    monkeypatch.setattr(made, "_explanation", explain)
    core = SimpleNamespace(overdue=lambda _: works, expire=expired.__setitem__, lost=lambda _: None)
    monkeypatch.setattr(_watch, "_C", core)
    made._look_at_operations()
    assert asked == ["a", "a"]  # the second one is of the same group, whose diagnosis is its own
    assert "Not arrived: rank 1." in expired["a"]
    assert "Found for a call of a: Not arrived: rank 1." in expired["b"]
