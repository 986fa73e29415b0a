# SPDX-License-Identifier: Apache-2.0
"""``python _rank.py CALL PARENT``: one of the processes that ``ranks.run_local`` starts.

It runs as a file: as a module it would first import torch, which takes seconds, and only then bind its lifetime to its
parent's.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent ends, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has already ended
        os.kill(os.getpid(), signal.SIGKILL)


def main(call: str, parent: int) -> int:
    """Run the call in that file, with its parent's module path; returns the exit code."""
    die_with(parent)
    with open(call, "rb") as file:
        sys.path[:] = pickle.load(file)
        entry, args = pickle.load(file)
    code = entry(*args)
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
