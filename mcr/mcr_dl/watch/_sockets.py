# SPDX-License-Identifier: Apache-2.0
"""The sockets of the connections between hosts: addresses, and how the kernel watches them."""

from __future__ import annotations

import contextlib
import socket

import torch.distributed as torch_dist

BACKLOG = 4096  # connections that wait to be accepted


def store_host(store: torch_dist.Store) -> str:
    """The host of the job's store, as this process knows it; empty if it has none."""
    while isinstance(store, torch_dist.PrefixStore):
        store = store.underlying_store
    return str(getattr(store, "host", ""))


def own_address(store: torch_dist.Store) -> str:
    """This host's address on the store's network; empty if that is the loopback's, or if it is not known."""
    with contextlib.suppress(OSError):
        kind, protocol, number, _, address = socket.getaddrinfo(store_host(store), 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, protocol, number) as probe:
            probe.connect(address)  # sends nothing
            found = str(probe.getsockname()[0])
            return "" if found.removeprefix("::ffff:").startswith("127.") or found == "::1" else found
    return ""


def listening() -> socket.socket:
    """A socket that listens at a port of all interfaces, which the system chooses. Raises OSError."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    return socket.create_server(("", 0), backlog=BACKLOG)


def period(silence: float) -> int:
    """Seconds between two checks of a connection that may be without an answer for ``silence`` seconds."""
    return max(1, int(silence / 5))


def check_often(connection: socket.socket, silence: float) -> None:
    """Let the kernel end the connection when the other host's kernel has not answered for so many seconds."""
    seconds = period(silence)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
    # The kernel looks at it once in a period. Time to connect again is left.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int((silence - 2.5 * seconds) * 1000))
