# SPDX-License-Identifier: Apache-2.0
"""The position of a rank, to diagnose a hang: a note in a mapped file, and the stacks of its threads."""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
from pathlib import Path

_SIZE = 1024
_note: mmap.mmap | None = None


def start(folder: Path, rank: int) -> None:
    """From now on `note()` is visible from outside, and SIGUSR1 writes the stacks of all threads."""
    global _note
    with open(folder / f"note.{rank}", "w+b") as file:
        file.truncate(_SIZE)
        _note = mmap.mmap(file.fileno(), _SIZE)
    stacks = os.open(folder / f"stacks.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)  # as long as the process lives
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)


def note(text: str) -> None:
    """Note this rank's next step; the note stays readable even if the rank hangs or dies."""
    if _note is not None:
        data = text.encode()[: _SIZE - 1]
        _note[: len(data) + 1] = data + b"\0"


def read(folder: Path, rank: int) -> str:
    """The last note of a rank."""
    try:
        return (folder / f"note.{rank}").read_bytes().partition(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""
