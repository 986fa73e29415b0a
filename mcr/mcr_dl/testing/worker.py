# SPDX-License-Identifier: Apache-2.0
"""One rank of a pool: receives functions by name, runs them, answers with their result or the traceback."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import mcr_dl
from mcr_dl.base import launcher
from mcr_dl.measure.ranks import die_with
from mcr_dl.testing import position


def serve(connection: Connection[Any, Any], folder: Path, rank: int) -> None:
    """Answer calls until the pool ends the connection."""
    while True:
        call = connection.recv()
        if call is None:
            return
        module, name, args = call
        try:
            position.note(f"{module}.{name}{args}")
            result = getattr(importlib.import_module(module), name)(*args)
            answer = (True, result)
        except BaseException:
            answer = (False, f"last note: {position.read(folder, rank)}\n{traceback.format_exc()}")
        connection.send(answer)


def main() -> int:
    """Serve the pool that the environment names; returns the exit code."""
    if parent := os.environ.get("MCR_TEST_PARENT"):
        die_with(int(parent))
    folder = Path(os.environ["MCR_TEST_FOLDER"])
    rank = launcher.detect().rank
    position.start(folder, rank)
    with Client(str(folder / "socket"), "AF_UNIX", authkey=os.environ["MCR_TEST_KEY"].encode()) as connection:
        connection.send((rank, os.getpid()))
        serve(connection, folder, rank)
    if mcr_dl.is_initialized():
        mcr_dl.finalize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
