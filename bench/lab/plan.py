# SPDX-License-Identifier: Apache-2.0
"""The parts of a lab, as plain values: names, addresses, commands, and the environment of each rank.

Nothing here touches the system.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

PREFIX = "mcrlab"
MARK = "MCR_LAB"  # in the environment of every process of a lab: its id
FIRST_PORT = 29500

# The sender's TCP makes packets up to this length before they are cut into frames. Small enough for a small BURST, and
# still ten frames at a time, so that shaping costs little of a core.
PACKET_BYTES = 16 << 10
# The amount that tbf lets pass at once after a pause. It must hold two packets; more would let short messages pass
# unshaped (32 KiB are 0.7 ms of a NIC of 400 Mbit/s).
BURST_BYTES = 32 << 10
# The longest time of a packet in a queue. Long enough that several hosts may send to one without losing packets: TCP
# would otherwise stall for 200 ms, which would dominate the figures.
QUEUE_MS = 50


class LabError(RuntimeError):
    """The lab, or a program in it, cannot do what was requested; the text says what and why."""


@dataclass(frozen=True)
class Shape:
    """The number of hosts, of ranks on each, and the rate of each of a host's NICs in Mbit/s."""

    hosts: int
    ranks_per_host: int = 1
    rates: tuple[int, ...] = (400, 200)

    def __post_init__(self) -> None:
        for name, value, largest in (("hosts", self.hosts, 250), ("ranks per host", self.ranks_per_host, 64)):
            if not 1 <= value <= largest:
                raise LabError(f"{name}: expected 1 to {largest}, got {value}")
        if not 1 <= len(self.rates) <= 8 or min(self.rates) < 1:
            raise LabError(f"NICs: expected 1 to 8 rates of at least 1 Mbit/s, got {self.rates}")

    def __str__(self) -> str:
        return f"{self.hosts}x{self.ranks_per_host}"

    @property
    def ranks(self) -> int:
        """The size of the job."""
        return self.hosts * self.ranks_per_host


def parse_rates(text: str) -> tuple[int, ...]:
    """`400,200` as (400, 200)."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise LabError(f"NICs: expected rates in Mbit/s such as 400,200, got {text!r}") from None


def host_space(lab: str, host: int) -> str:
    """The network namespace of a host."""
    return f"{PREFIX}-{lab}-h{host}"


def switch_space(lab: str, nic: int) -> str:
    """The network namespace that holds the switch to which NIC number `nic` of every host is plugged in."""
    return f"{PREFIX}-{lab}-s{nic}"


def lab_of(space: str) -> str | None:
    """The id of the lab that a namespace belongs to; None for other namespaces."""
    parts = space.split("-")
    return parts[1] if len(parts) == 3 and parts[0] == PREFIX and parts[2][:1] in ("h", "s") else None


def host_name(host: int) -> str:
    """The host's own name."""
    return f"host{host}"


def address(host: int, nic: int) -> str:
    """The address of a NIC: one subnet for each switch."""
    return f"10.77.{nic}.{host + 1}"


def hosts_file(shape: Shape) -> str:
    """/etc/hosts of every host, so that names resolve without a name server."""
    lines = ["127.0.0.1 localhost"]
    for host in range(shape.hosts):
        # Also in the form of torch's store, which listens on IPv6 and sees IPv4 addresses like this.
        lines += [f"{prefix}{address(host, 0)} {host_name(host)}" for prefix in ("", "::ffff:")]
    return "\n".join(lines) + "\n"


def network(lab: str, shape: Shape) -> list[list[str]]:
    """The commands that make the network, in order. Both ends of every cable are created in the lab's namespaces."""
    switches = [switch_space(lab, nic) for nic in range(len(shape.rates))]
    hosts = [host_space(lab, host) for host in range(shape.hosts)]
    commands = [["ip", "netns", "add", space] for space in (*switches, *hosts)]
    for space in switches:
        commands.append(["ip", "-n", space, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0"])
        commands.append(["ip", "-n", space, "link", "set", "br0", "up"])
    for host, space in enumerate(hosts):
        commands.append(["ip", "-n", space, "link", "set", "lo", "up"])
        for nic, (switch, rate) in enumerate(zip(switches, shape.rates, strict=True)):
            commands += cable(space, f"eth{nic}", switch, f"h{host}", rate)
            commands.append(["ip", "-n", space, "address", "add", f"{address(host, nic)}/24", "dev", f"eth{nic}"])
    return commands


def cable(space: str, device: str, switch: str, port: str, rate: int) -> list[list[str]]:
    """A cable from a host's NIC to a switch's port, shaped to the rate at both ends, and so in both directions."""
    add = ["ip", "link", "add", device, "netns", space, "type", "veth", "peer", "name", port, "netns", switch]
    commands = [add]
    for place, end in ((space, device), (switch, port)):
        commands.append(["ip", "-n", place, "link", "set", end, "gso_max_size", str(PACKET_BYTES)])
        commands.append(shaping("add", place, end, rate))
    commands.append(["ip", "-n", switch, "link", "set", port, "master", "br0", "up"])
    commands.append(["ip", "-n", space, "link", "set", device, "up"])
    return commands


def shaping(change: str, place: str, end: str, rate: int) -> list[str]:
    """Shape one end of a cable to a rate; ``change``: "add" at first, "change" later."""
    given = ["tbf", "rate", f"{rate}mbit", "burst", str(BURST_BYTES), "latency", f"{QUEUE_MS}ms"]
    return ["tc", "-n", place, "qdisc", change, "dev", end, "root", *given]


def rate(lab: str, host: int, nic: int, rate: int) -> list[list[str]]:
    """Change the rate of a NIC, in both directions."""
    ends = ((host_space(lab, host), f"eth{nic}"), (switch_space(lab, nic), f"h{host}"))
    return [shaping("change", place, end, rate) for place, end in ends]


def link(lab: str, host: int, nic: int, state: str) -> list[str]:
    """Pull a NIC's cable (`down`) or put it back (`up`).

    This changes the switch's port: the host's NIC stays configured and sees no carrier, and no packet ends a
    connection, which is how a pulled cable looks from both sides.
    """
    return ["ip", "-n", switch_space(lab, nic), "link", "set", f"h{host}", state]


# The first process of a host: it keeps the namespaces and does nothing else. $1: its name, $2: /etc/hosts.
_BOOT = """
printf %s "$1" > /proc/sys/kernel/hostname
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
printf %s "$2" > /dev/shm/.hosts
mount --bind /dev/shm/.hosts /etc/hosts
[ ! -e /proc/sys/net/ipv6/conf/all/disable_ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
echo ready
exec sleep infinity
"""


def boot(lab: str, shape: Shape, host: int) -> list[str]:
    """The command that brings a host up: a name, and its own System V and POSIX shared memory."""
    keep = ["setpriv", "--pdeathsig", "KILL", "unshare", "--uts", "--mount", "--ipc"]
    script = ["sh", "-ec", _BOOT, "sh", host_name(host), hosts_file(shape)]
    return ["ip", "netns", "exec", host_space(lab, host), *keep, *script]


def cores_of(shape: Shape, host: int, available: Sequence[int], most: int | None = None) -> list[int]:
    """The cores of a host: an equal share if there are enough (`most` at most), else one core in turn.

    Otherwise every host would have all cores, and programs that bind local rank 0 to the first core would all share it.
    """
    share = len(available) // shape.hosts
    if share == 0:
        return [available[host % len(available)]]
    return list(available[host * share : (host + 1) * share][:most])


def enter(holder: int, cores: Sequence[int], folder: str, command: Sequence[str]) -> list[str]:
    """The command that runs a program on the host whose first process is `holder`; its process becomes the program."""
    spaces = ["nsenter", "--target", str(holder), "--net", "--uts", "--mount", "--ipc"]
    keep = ["setpriv", "--pdeathsig", "KILL", "taskset", "--cpu-list", ",".join(map(str, cores))]
    return [*spaces, *keep, "env", f"--chdir={folder}", *command]


def library_settings(shape: Shape, *, multi_rail: bool) -> dict[str, str]:
    """Which library uses which NIC: gloo the first and MPI the second, or both all NICs."""
    devices = [f"eth{nic}" for nic in range(len(shape.rates))]
    gloo, mpi = (devices, devices) if multi_rail else (devices[:1], devices[1:2] or devices[:1])
    settings = {
        "GLOO_SOCKET_IFNAME": ",".join(gloo),
        # Between hosts; ranks of one host use its shared memory, through MPICH itself and not UCX.
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": ",".join([*mpi, "lo"]),
        "UCX_WARN_UNUSED_ENV_VARS": "n",
    }
    if multi_rail:
        rails = str(len(devices))
        settings |= {"UCX_MAX_EAGER_RAILS": rails, "UCX_MAX_RNDV_RAILS": rails}
    return settings


def rank_environment(shape: Shape, rank: int, port: int) -> dict[str, str]:
    """The variables that torchrun would set on each rank."""
    host, local = divmod(rank, shape.ranks_per_host)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(shape.ranks),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(shape.ranks_per_host),
        "GROUP_RANK": str(host),
        "MASTER_ADDR": address(0, 0),
        "MASTER_PORT": str(port),
    }


def available_cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))
