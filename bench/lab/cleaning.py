# SPDX-License-Identifier: Apache-2.0
"""Finds the remains of labs on the machine and removes them: processes first, then namespaces, then files.

A lab's name and id alone identify its processes and files, so this works even if the lab's own process was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lab.plan import MARK, PREFIX, LabError, lab_of

_SPACES = Path("/run/netns")
_FILES = Path("/run")
_PROC = Path("/proc")
_PATIENCE_SECONDS = 10.0


@dataclass
class Found:
    """A lab on this machine: `owner` is the process that made it, None if that process is gone."""

    lab: str
    owner: int | None = None
    shape: str = "?"
    spaces: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    file: Path | None = None


def _start_time(pid: int) -> str | None:
    """The start time of a process, in the kernel's ticks: with the process id it identifies a process for good."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]


def record_path(lab: str) -> Path:
    """The file that records who made a lab."""
    return _FILES / f"{PREFIX}-{lab}.json"


def record(lab: str, shape: str) -> None:
    """Record that this process makes a lab; called before anything else of it is made."""
    owner = os.getpid()
    record_path(lab).write_text(json.dumps({"owner": owner, "started": _start_time(owner), "shape": shape}))


def _spaces() -> dict[str, list[str]]:
    """Namespaces by lab."""
    found: dict[str, list[str]] = {}
    for path in sorted(_SPACES.glob(f"{PREFIX}-*")):
        lab = lab_of(path.name)
        if lab is not None:
            found.setdefault(lab, []).append(path.name)
    return found


def inode(space: str) -> int | None:
    """The kernel's inode of a network namespace; None if only the name is left."""
    try:
        found = os.stat(_SPACES / space)
    except OSError:
        return None
    return found.st_ino if found.st_dev != os.stat("/run").st_dev else None


def processes(inodes: Iterable[int], lab: str | None = None) -> list[int]:
    """The processes in these network namespaces, and all processes that carry the lab's mark."""
    wanted, mark = set(inodes), f"{MARK}={lab}".encode()
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid() or _start_time(int(entry.name)) is None:
            continue
        with contextlib.suppress(OSError):
            inside = os.stat(entry / "ns" / "net").st_ino in wanted
            if inside or (lab is not None and mark in (entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return sorted(found)


def _owner(file: Path) -> tuple[int | None, str]:
    try:
        document = json.loads(file.read_text())
        owner, shape = int(document["owner"]), str(document["shape"])
    except (OSError, ValueError, KeyError, TypeError):  # killed while it wrote
        return None, "?"
    return (owner if _start_time(owner) == document.get("started") else None), shape


def find() -> list[Found]:
    """All labs of this machine."""
    found: dict[str, Found] = {}
    for lab, spaces in _spaces().items():
        found[lab] = Found(lab, spaces=spaces)
    for file in sorted(_FILES.glob(f"{PREFIX}-*.json")):
        lab = file.stem.removeprefix(f"{PREFIX}-")
        each = found.setdefault(lab, Found(lab))
        each.file = file
        each.owner, each.shape = _owner(file)
    for each in found.values():
        each.pids = processes(filter(None, map(inode, each.spaces)), each.lab)
    return sorted(found.values(), key=lambda each: each.lab)


def kill(inodes: Iterable[int], lab: str | None = None) -> int:
    """End all processes in these namespaces or with the lab's mark; returns their number."""
    numbers, ended = list(inodes), set()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while left := processes(numbers, lab):
        if time.monotonic() > deadline:
            raise LabError(f"processes {left} of lab {lab} do not end")
        for pid in left:
            ended.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return len(ended)


def clean(lab: str) -> tuple[int, int]:
    """Remove a lab; returns the numbers of processes and namespaces. Safe to repeat.

    Raises:
        LabError: something could not be removed.
    """
    spaces = _spaces().get(lab, [])
    # A namespace that loses its name while a process is in it lives on, with its cables: processes go first.
    ended = kill(filter(None, map(inode, spaces)), lab)
    for space in spaces:
        found = subprocess.run(
            ["ip", "netns", "delete", space], capture_output=True, text=True, timeout=30, check=False
        )
        if found.returncode != 0 and (_SPACES / space).exists():
            raise LabError(f"namespace {space} cannot be removed: {found.stderr.strip()}")
    record_path(lab).unlink(missing_ok=True)
    return ended, len(spaces)
