# SPDX-License-Identifier: Apache-2.0
"""Another program on emulated hosts: hosts.py HOSTS PROGRAM ARGUMENTS, with HOSTS as "0,0,1": each rank's host.

The rank has the name of that host, and takes ranks with other names for ranks of other hosts, which it cannot watch.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from pathlib import Path

if __name__ == "__main__":
    _, hosts, program, *arguments = sys.argv
    name = f"host{hosts.split(',')[int(os.environ['RANK'])]}"
    socket.gethostname = lambda: name
    # UCX would read memory of what it finds on this host, and end this process if the other one is gone.
    os.environ.setdefault("UCX_TLS", "tcp,self")
    sys.argv = [program, *arguments]
    runpy.run_path(str(Path(__file__).with_name(f"{program}.py")), run_name="__main__")
