# SPDX-License-Identifier: Apache-2.0
"""One rank of the lab's own check: the throughput of each NIC and each library, alone and together.

Rank 0 writes a JSON file: for plain TCP on each NIC, and for all_reduces of each library, medians of the seconds and
the bytes that each NIC of rank 0's host has sent meanwhile.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

import mcr_dl as dist
from lab import plan
from mcr_dl.base import launcher

_BACKENDS = ("gloo", "mpi")
_PORT = 28000
_CHUNK = 1 << 20


def sent(nics: int) -> list[int]:
    """Bytes that each NIC of this host has sent so far, including all headers."""
    return [int(Path(f"/sys/class/net/eth{nic}/statistics/tx_bytes").read_text()) for nic in range(nics)]


def stream(nic: int, nbytes: int, receiver: int, barrier: Callable[[], object]) -> float:
    """Seconds that plain TCP takes from host 0 to the receiver's host on a NIC; 0.0 on the other ranks."""
    me = dist.get_rank()
    where = (plan.address(receiver // launcher.local_size(), nic), _PORT + nic)
    listening = None
    if me == receiver:
        listening = socket.create_server(where)
    barrier()
    seconds = 0.0
    if me == receiver and listening is not None:
        connection, _ = listening.accept()
        with listening, connection:
            left = nbytes
            while left:
                got = connection.recv(min(left, _CHUNK))
                if not got:
                    raise ConnectionError(f"TCP on eth{nic}: {left} of {nbytes} bytes are missing")
                left -= len(got)
            connection.sendall(b"!")
    elif me == 0:
        with socket.create_connection(where, timeout=20) as connection:
            connection.settimeout(60)
            begin = time.perf_counter()
            chunk = bytes(_CHUNK)
            for start in range(0, nbytes, _CHUNK):
                connection.sendall(chunk[: min(_CHUNK, nbytes - start)])
            connection.recv(1)
            seconds = time.perf_counter() - begin
    barrier()
    return seconds


def calls(tensors: dict[str, torch.Tensor], rates: Sequence[int]) -> dict[str, Callable[[], object]]:
    """The timed calls: each library alone, several calls of it at once, both in sequence, both at once, and one
    message cut over both in proportion to the rates of their NICs.
    """

    def alone(backend: str) -> Callable[[], object]:
        return lambda: dist.all_reduce(tensors[backend], backend=backend)

    def in_flight(backend: str) -> Callable[[], None]:
        parts = tensors[backend].chunk(4)

        def go() -> None:
            works = [dist.all_reduce(part, backend=backend, async_op=True) for part in parts]
            for work in works:
                assert work is not None
                work.wait()

        return go

    def after() -> None:
        for backend in _BACKENDS:
            dist.all_reduce(tensors[backend], backend=backend)

    def at_once() -> None:
        works = [dist.all_reduce(tensors[backend], backend=backend, async_op=True) for backend in _BACKENDS]
        for work in works:
            assert work is not None
            work.wait()

    def cut() -> None:
        share = min(99, max(1, round(100 * rates[0] / (rates[0] + rates[-1]))))
        dist.all_reduce(tensors[_BACKENDS[0]], backend=f"stripe({','.join(_BACKENDS)},{share})")

    found: dict[str, Callable[[], object]] = {backend: alone(backend) for backend in _BACKENDS}
    found |= {f"{backend}, 4 calls at once": in_flight(backend) for backend in _BACKENDS}
    return {**found, "one after the other": after, "both at once": at_once, "cut over both": cut}


def measure(nbytes: int, rates: Sequence[int], rounds: int) -> dict[str, Any]:
    """Times of all ways, which take turns; a round's time is that of the slowest rank."""
    tensors = {backend: torch.zeros(nbytes // 4) for backend in _BACKENDS}
    ways, nics = calls(tensors, rates), len(rates)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    carried: dict[str, list[list[int]]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, call in ways.items():
            dist.barrier(backend="gloo")
            before, begin = sent(nics), time.perf_counter()
            call()
            took = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
            after = sent(nics)
            dist.all_reduce(took, dist.ReduceOp.MAX, backend="gloo")
            if turn > 0:  # the first turn makes connections
                seconds[name].append(float(took))
                carried[name].append([b - a for a, b in zip(before, after, strict=True)])
    return {
        name: {
            "seconds": statistics.median(times),
            "sent": [statistics.median(column) for column in zip(*carried[name], strict=True)],
        }
        for name, times in seconds.items()
    }


def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="400,200", help="of the NICs, in Mbit/s")
    parser.add_argument("--bytes", type=int, default=8 << 20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rates = plan.parse_rates(given.rates)
    backends = [*_BACKENDS, f"stripe({','.join(_BACKENDS)})"]
    dist.init_process_group(backends, timeout=timedelta(seconds=60), tuning_table="none")
    last = dist.get_world_size() - 1
    tcp = [stream(nic, given.bytes, last, lambda: dist.barrier(backend="gloo")) for nic in range(len(rates))]
    found = {"bytes": given.bytes, "tcp": tcp, "all_reduce": measure(given.bytes, rates, given.rounds)}
    if dist.get_rank() == 0:
        given.out.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
