# SPDX-License-Identifier: Apache-2.0
"""The calls of ranks/shm.py with rank 1 as another user, or in a PID namespace of its own: isolated.py user|processes.

Both need root. One rank at least cannot read the other's memory.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

CLONE_NEWPID = 0x20000000
OTHER_USER = 65534


def enter_namespace() -> None:
    """Go on as process 1 of a new PID namespace; this process ends with that one's code."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWPID) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert os.getpid() == 1


def become_other_user() -> None:
    """Start again as a user who may read all files, such as those of this checkout, but not root's memory."""
    if os.getuid() == OTHER_USER:
        return
    user = [f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups"]
    rights = [
        f"--{kind}={'-all,' if kind == 'inh-caps' else ''}+dac_read_search" for kind in ("inh-caps", "ambient-caps")
    ]
    tests = {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    os.execvpe("setpriv", ["setpriv", *user, *rights, sys.executable, *sys.argv], {**os.environ, **tests})


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        {"user": become_other_user, "processes": enter_namespace}[sys.argv[1]]()
    import mcr_dl
    from ranks import shm

    shm.several_sizes()
    shm.shared_tensors()
    mcr_dl.finalize()
    print("done", flush=True)
