# SPDX-License-Identifier: Apache-2.0
"""The address at which other hosts reach this one."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

import torch.distributed as torch_dist

_ELSEWHERE = "192.0.2.1"  # of no host: the system knows the way to other networks, and nothing is sent


def is_loopback(address: str) -> bool:
    """Whether this is a numeric address of the loopback interface."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0].removeprefix("::ffff:")).is_loopback
    return False


def store_host(store: torch_dist.Store) -> str:
    """The host of the job's store, as this process knows it; empty if it has none."""
    while isinstance(store, torch_dist.PrefixStore):
        store = store.underlying_store
    return str(getattr(store, "host", ""))


def on_way_to(host: str) -> str:
    """This host's address on the way to another one; empty if that is the loopback's, or if there is no way."""
    with contextlib.suppress(OSError):
        kind, protocol, number, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, protocol, number) as probe:
            probe.connect(address)  # sends nothing
            found = str(probe.getsockname()[0])
            return "" if is_loopback(found) else found
    return ""


def to_other_networks() -> str:
    """This host's address on the way to other networks; empty if there is none."""
    return on_way_to(_ELSEWHERE)


def in_place_of_name(store: torch_dist.Store) -> str:
    """This host's address on the store's network, if the host's own name is no address for other hosts.

    On some systems it is one of the loopback, or unknown. Empty if it is one, and in jobs whose store is at the
    loopback: these have one host.
    """
    with contextlib.suppress(OSError):
        named = str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
        if not is_loopback(named):
            return ""
    host = store_host(store)
    if host in ("", "localhost") or is_loopback(host):
        return ""
    return on_way_to(host) or to_other_networks()  # the latter: the store's host is this one
