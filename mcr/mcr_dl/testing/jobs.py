# SPDX-License-Identifier: Apache-2.0
"""Jobs of ranks that end, for tests and measurements of failures."""

from __future__ import annotations

import time
from pathlib import Path

from mcr_dl.measure.ranks import environments
from mcr_dl.testing.nursery import Child, Nursery

__all__ = ["ENDED", "LIMIT", "LOST", "REPORTED", "agent_store", "await_text", "end", "expect", "start"]

LIMIT = 40.0
"""Seconds for a job to end; longer means a hang."""
REPORTED = 3
"""A program's own code after an exception."""
ENDED = 70
"""The code of a process that is ended inside a library."""

_STORE = Path(__file__).with_name("store.py")

# Rank 1 may be before the call that the others wait in, or gone since it made that call: in a storm both happen. No
# text on another rank may come in between.
_RANK_1 = r"rank 1(?: has made \d+ collectives?(?:(?!rank \d).)*;|:) "
LOST = {
    "kill": r"rank 1: process \d+ on \S+ has ended",
    "stop": r"rank 1: process \d+ on \S+ is stopped",
    "raise": _RANK_1 + "it has raised ValueError: bad batch",
    "exit": _RANK_1 + "it has ended",
}
"""The other ranks' text on rank 1, a regular expression, by what happened to it."""


def agent_store(nursery: Nursery, size: int) -> tuple[Child, list[dict[str, str]]]:
    """A process that holds the store, as torchrun's agent does, and the environments of its ranks."""
    ranks = list(environments(size, {}).values())
    holder = nursery.start(_STORE, [ranks[0]["MASTER_PORT"]], {})
    await_text([holder], "ready")
    return holder, [{**each, "TORCHELASTIC_USE_AGENT_STORE": "True"} for each in ranks]


def start(nursery: Nursery, program: Path, arguments: list[str], size: int, **variables: str) -> list[Child]:
    """The ranks of a job whose store is held by a separate process."""
    _, ranks = agent_store(nursery, size)
    return [nursery.start(program, arguments, {**each, **variables}) for each in ranks]


def _require(children: list[Child]) -> None:
    """A check of no children would always pass."""
    assert children, "expected one or more children, got none"


def await_text(children: list[Child], text: str, limit: float = LIMIT) -> None:
    """Wait until all children have printed the text; AssertionError after ``limit`` seconds."""
    _require(children)
    deadline = time.monotonic() + limit
    while not all(text in child.text for child in children):
        assert time.monotonic() < deadline, f"no {text!r} from {[child.text for child in children]}"
        time.sleep(0.02)


def expect(children: list[Child], code: int, *texts: str) -> None:
    """Check that all children have ended with this code, and have printed all of these texts."""
    _require(children)
    for child in children:
        assert child.code == code, f"code {child.code}\n{child.text}"
        for text in texts:
            assert text in child.text, child.text


def end(nursery: Nursery, children: list[Child], limit: float = LIMIT) -> None:
    """Wait until the children have ended by themselves; AssertionError after ``limit`` seconds."""
    _require(children)
    ended = nursery.wait(children, limit)
    told = "\n".join(f"--- {child.pid}: code {child.code}\n{child.text}" for child in children)
    assert ended, f"some have not ended within {limit:.0f} s:\n{told}"
