# SPDX-License-Identifier: Apache-2.0
"""The calls of ranks/shm.py with rank 1 as another user, or in a PID namespace of its own: isolated.py user|processes.

Both need root. Neither rank's system lets it read the other's memory, in one direction at least.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

CLONE_NEWPID = 0x20000000
NOBODY = 65534


def enter_namespace() -> None:
    """Go on as process 1 of a new PID namespace; this process ends with that one's code."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWPID) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert os.getpid() == 1


def become_nobody() -> None:
    """Give up root's rights, among them that of reading other users' memory."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


if __name__ == "__main__":
    isolated = os.environ["RANK"] == "1"
    if isolated and sys.argv[1] == "processes":
        enter_namespace()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    import mcr_dl
    from ranks import shm

    if isolated and sys.argv[1] == "user":  # after the imports, which this user may not be able to read
        become_nobody()
    shm.several_sizes()
    shm.shared_tensors()
    mcr_dl.finalize()
    print("done", flush=True)
