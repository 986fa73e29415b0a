# SPDX-License-Identifier: Apache-2.0
"""Run a step of the Makefile: ``progress.py TITLE LOG COMMAND...``.

The command's output is appended to LOG. The screen shows the title, ninja's status ("[37/84] Building ...": one line
that changes on a terminal, an occasional line elsewhere) and the elapsed time, or the whole output if it fails. A
command that succeeds within a second shows nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

_STATUS = re.compile(r"\[\d+/\d+\] .*")
_CLEAR = "\r\x1b[K"  # the terminal's line
_SILENT = 1.0  # seconds
_EVERY = 10.0  # seconds between lines where there is no terminal


class _Screen:
    """Prints the title once the wait is noticeable, and the status below it. Used by two threads."""

    def __init__(self, title: str) -> None:
        self._title, self._lock = title, threading.Lock()
        self._terminal = sys.stdout.isatty()
        self._printed = time.monotonic()
        self.announced = False

    def announce(self) -> None:
        with self._lock:
            if not self.announced:
                self.announced = True
                print(self._title, flush=True)

    def status(self, text: str) -> None:
        if self._terminal:
            self.announce()
            print(_CLEAR, text[: shutil.get_terminal_size().columns - 1], sep="", end="", flush=True)
        elif time.monotonic() - self._printed >= _EVERY:
            self.announce()
            self._printed = time.monotonic()
            print(text, flush=True)

    def end(self, text: str) -> None:
        if self.announced:
            print(_CLEAR if self._terminal else "", self._title, ": ", text, sep="", flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def main() -> int:
    """Run the command and return its exit code."""
    title, log, *command = sys.argv[1:]
    begin = time.monotonic()
    screen = _Screen(title)
    timer = threading.Timer(_SILENT, screen.announce)
    timer.start()
    lines = []
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a") as file:
        print(f"== {title}: {' '.join(command)}", file=file, flush=True)
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            file.flush()
            lines.append(line)
            if status := _STATUS.search(line):
                screen.status(status[0])
        code = process.wait()
    timer.cancel()
    if code:
        screen.announce()
        screen.end(f"failed (exit code {code}); the output, also in {log}:")
        sys.stdout.writelines(lines)
        return 1
    screen.end(f"done in {_duration(time.monotonic() - begin)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
