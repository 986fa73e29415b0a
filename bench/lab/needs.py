# SPDX-License-Identifier: Apache-2.0
"""The system requirements of a lab, and what to install if one is missing."""

from __future__ import annotations

import os
import shutil
import subprocess

_PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "taskset": "util-linux",
    "mount": "mount",
    "env": "coreutils",
    "sh": "dash",
}

# Everything that a lab does to the system, in namespaces that disappear with the last command.
_TRIAL = """
ip link add one type veth peer name two || { echo 'veth devices (kernel module veth)'; exit 1; }
tc qdisc add dev one root tbf rate 1mbit burst 16kb latency 50ms || { echo 'shaping (kernel module sch_tbf)'; exit 1; }
ip link add br0 type bridge || { echo 'bridges (kernel module bridge)'; exit 1; }
mount -t tmpfs tmpfs /dev/shm || { echo 'mounts in a namespace (capability CAP_SYS_ADMIN)'; exit 1; }
"""


def missing() -> list[str]:
    """The missing requirements, each a phrase that says how to get it; empty if a lab can be made."""
    absent = {name: package for name, package in _PROGRAMS.items() if shutil.which(name) is None}
    if absent:
        packages = " ".join(dict.fromkeys(absent.values()))
        return [f"the programs {', '.join(absent)}: `sudo apt-get install {packages}`"]
    if os.geteuid() != 0:
        return ["root: run it with sudo, as only root can make network namespaces"]
    command = ["unshare", "--net", "--uts", "--mount", "--ipc", "sh", "-c", _TRIAL]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return ["namespaces that work: a trial did not end within 30 s"]
    if found.returncode == 0:
        return []
    last = found.stderr.strip().splitlines()[-1:]
    what = found.stdout.strip() or "network namespaces (a container needs the capabilities NET_ADMIN and SYS_ADMIN)"
    return [f"{what}: {' '.join(last) or 'not permitted'}"]
