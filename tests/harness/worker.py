# SPDX-License-Identifier: Apache-2.0
"""One rank of a pool: receives functions by name, runs them, answers with their result or the traceback."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from multiprocessing.connection import Client, Connection
from pathlib import Path

from harness import position


def serve(connection: Connection) -> None:
    """Answer calls until the controller ends the connection."""
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


if __name__ == "__main__":
    folder = Path(os.environ["MCR_TEST_FOLDER"])
    import mcr_dl  # the slow part, done once per rank and session
    from mcr_dl.base import launcher

    rank = launcher.detect().rank
    position.start(folder, rank)
    with Client(str(folder / "socket"), "AF_UNIX", authkey=os.environ["MCR_TEST_KEY"].encode()) as connection:
        connection.send((rank, os.getpid()))
        serve(connection)
    if mcr_dl.is_initialized():
        mcr_dl.finalize()
    sys.exit(0)
