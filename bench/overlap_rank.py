# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/overlap.py: an asynchronous all_reduce, or a copying thread, behind matrix products."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import mcr_dl
import script
from mcr_dl.measure.ranks import bind

BACKENDS = ("shm", "mpi", "gloo")
COPY = "a copying thread"
SPARE = "a spare core"
PLACES = {
    "a core each": "each rank's main thread has a core of its own, which its helper threads share with it",
    SPARE: "the main threads of both ranks share one core, so that the others are free for helper threads",
}
_COPIED = 1 << 20  # bytes of a copy


class Copier:
    """A thread that copies tensors as often as asked, without Python's lock, and whose end can be awaited."""

    def __init__(self) -> None:
        self.source, self.target = torch.ones(_COPIED, dtype=torch.uint8), torch.empty(_COPIED, dtype=torch.uint8)
        self.asked, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.copies = 16
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self.asked.acquire()
            for _ in range(self.copies):
                self.target.copy_(self.source)
            self.done.release()

    def start(self) -> Callable[[], Any]:
        """Begin; the result waits for the end."""
        self.asked.release()
        return self.done.acquire


def run(start: Callable[[], Callable[[], Any]]) -> None:
    """Start a communication or a copy, and wait for it."""
    start()()


def largest(value: float) -> float:
    """The largest value of all ranks."""
    box = torch.tensor([value], dtype=torch.float64)
    mcr_dl.all_reduce(box, mcr_dl.ReduceOp.MAX, backend="gloo")
    return float(box)


def timed(call: Callable[[], Any]) -> float:
    """Seconds from the first rank's begin of a call to the last rank's end, as ranks that share a core take turns."""
    mcr_dl.barrier(backend="gloo")  # ranks that wait in it sleep, which matters where they share a core
    begin = time.monotonic()
    call()
    end = time.monotonic()
    return largest(end) + largest(-begin)


def middle(call: Callable[[], Any]) -> float:
    """The median seconds of a call."""
    return statistics.median(timed(call) for _ in range(9))


def measure_way(start: Callable[[], Callable[[], Any]], products: int, rounds: int) -> list[list[float]]:
    """In each round: seconds of the communication alone, of the products, and of both."""
    left = torch.ones(512, 512)

    def compute() -> None:
        for _ in range(products):
            left @ left

    def both() -> None:
        wait = start()
        compute()
        wait()

    return [[timed(call) for call in (partial(run, start), compute, both)] for _ in range(rounds)]


def measure_all(nbytes: int, rounds: int, output: str) -> None:
    """The samples of each placement and way; rank 0 writes them."""
    torch.set_num_threads(1)
    mcr_dl.init_process_group(list(BACKENDS))
    tensor, left = torch.ones(nbytes // 4), torch.ones(512, 512)
    copier = Copier()

    def reduce(backend: str) -> Callable[[], Any]:
        return mcr_dl.all_reduce(tensor, mcr_dl.ReduceOp.MAX, backend=backend, async_op=True).wait

    ways: dict[str, Callable[[], Callable[[], Any]]] = {backend: partial(reduce, backend) for backend in BACKENDS}
    for start in ways.values():
        run(start)
        time.sleep(0.01)  # the helper thread exists before the main thread is bound, so that it stays free
    ways = {COPY: copier.start, **ways}
    shared = min(os.sched_getaffinity(0))
    bind()
    # With a core each, a way's products take as long as its communication, and the copies as long as that of shm.
    copier.copies = max(
        1, round(copier.copies * middle(partial(run, ways["shm"])) / middle(partial(run, copier.start)))
    )
    product = middle(lambda: [left @ left for _ in range(4)]) / 4
    products = {way: max(1, round(middle(partial(run, start)) / product)) for way, start in ways.items()}
    found: dict[str, dict[str, list[list[float]]]] = {}
    for place in PLACES:
        if place == SPARE:
            os.sched_setaffinity(0, {shared})
        found[place] = {way: measure_way(start, products[way], rounds) for way, start in ways.items()}
        if mcr_dl.get_rank() == 0:
            print(f"  {place}", flush=True)
    script.write_samples(output, found)
    mcr_dl.finalize()
