# SPDX-License-Identifier: Apache-2.0
"""The address at which other hosts reach this one, and gloo there."""

from __future__ import annotations

import socket
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

from mcr_dl.base import addresses
from mcr_dl.libraries import c10d


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("fe80::1%eth0", False),
        ("10.0.0.1", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_addresses_of_the_loopback(address: str, expected: bool) -> None:
    assert addresses.is_loopback(address) is expected


@pytest.mark.parametrize(
    ("name", "host", "expected"),
    [
        ("192.0.2.7", "10.0.0.1", ""),  # the host's name is an address for others
        ("127.0.1.1", "10.0.0.1", "10.0.0.9"),
        ("name.invalid", "10.0.0.1", "10.0.0.9"),
        ("127.0.1.1", "own.invalid", "10.0.0.8"),  # the store is on this host
        ("127.0.1.1", "localhost", ""),
        ("127.0.1.1", "127.0.0.1", ""),
        ("127.0.1.1", "::1", ""),
        ("127.0.1.1", "", ""),
    ],
)
def test_the_address_in_place_of_a_name(monkeypatch: pytest.MonkeyPatch, name: str, host: str, expected: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(
        addresses, "on_way_to", lambda to: {"10.0.0.1": "10.0.0.9", "192.0.2.1": "10.0.0.8"}.get(to, "")
    )
    store: Any = SimpleNamespace(host=host)
    assert addresses.in_place_of_name(store) == expected


def test_the_host_of_a_store() -> None:
    store = torch_dist.TCPStore("127.0.0.1", 0, 1, True)
    assert addresses.store_host(torch_dist.PrefixStore("a", torch_dist.PrefixStore("b", store))) == "127.0.0.1"
    assert addresses.store_host(torch_dist.HashStore()) == ""
    assert addresses.on_way_to("127.0.0.1") == ""


def test_gloo_takes_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of another host cannot be taken; a variable of gloo counts instead."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)

    def made(address: str) -> torch_dist.Backend:
        monkeypatch.setattr(addresses, "in_place_of_name", lambda _: address)
        return c10d.GLOO.create(torch_dist.HashStore(), 0, 1, timedelta(seconds=20))

    x = torch.ones(3)
    made("127.0.0.2").allreduce([x]).wait()
    with pytest.raises(RuntimeError):
        made("192.0.2.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    made("192.0.2.1").allreduce([x]).wait()
    assert x.eq(1).all()
