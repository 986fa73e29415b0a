# SPDX-License-Identifier: Apache-2.0
"""Jobs of ranks that end, for tests of what happens when something goes wrong."""

from __future__ import annotations

import time
from pathlib import Path

from harness import launchers
from harness.nursery import Child, Nursery

PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 40.0  # seconds for a job to end: a hang, where one is not


def agent_store(nursery: Nursery, size: int) -> tuple[Child, list[dict[str, str]]]:
    """A process that holds the store, as torchrun's agent does, and the environments of its ranks."""
    environments = launchers.rank_environments(size)
    holder = nursery.start(PROGRAMS / "store.py", [environments[0]["MASTER_PORT"]], {})
    await_text([holder], "ready")
    return holder, [{**each, "TORCHELASTIC_USE_AGENT_STORE": "True"} for each in environments]


def start(nursery: Nursery, program: str, arguments: list[str], size: int, **variables: str) -> list[Child]:
    """The ranks of a job whose store a process of its own holds."""
    _, environments = agent_store(nursery, size)
    path = PROGRAMS / f"{program}.py"
    return [nursery.start(path, arguments, {**each, **variables}) for each in environments]


def await_text(children: list[Child], text: str, limit: float = LIMIT) -> None:
    """Wait until all of them have printed something."""
    deadline = time.monotonic() + limit
    while not all(text in child.text for child in children):
        assert time.monotonic() < deadline, f"no {text!r} from {[child.text for child in children]}"
        time.sleep(0.02)


def expect(children: list[Child], code: int, *texts: str) -> None:
    """All of them have ended with this code, and have printed all of these texts."""
    for child in children:
        assert child.code == code, f"code {child.code}\n{child.text}"
        for text in texts:
            assert text in child.text, child.text


def end(nursery: Nursery, children: list[Child], limit: float = LIMIT) -> None:
    """Wait until they have ended by themselves."""
    ended = nursery.wait(children, limit)
    told = "\n".join(f"--- {child.pid}: code {child.code}\n{child.text}" for child in children)
    assert ended, f"some have not ended within {limit:.0f} s:\n{told}"
