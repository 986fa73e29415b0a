# SPDX-License-Identifier: Apache-2.0
"""The sockets of the connections between hosts: addresses, and how the kernel watches them."""

from __future__ import annotations

import contextlib
import socket

BACKLOG = 4096  # connections that wait to be accepted


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
