# SPDX-License-Identifier: Apache-2.0
"""How much of an asynchronous all_reduce takes place behind matrix products, by backend, on two ranks of one host.

    python bench/overlap.py

A thread that copies tensors behind the same products shows how much can be hidden at all: it needs a core, too. Writes
docs/results/overlap.{json,md}.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

import mcr_dl
import script
from markdown_text import paragraph, table
from mcr_dl.bench.ranks import bind

BACKENDS = ("shm", "mpi", "gloo")
COPY = "a copying thread"
PLACES = {
    "a core each": "each rank's main thread has a core of its own, which its helper threads share with it",
    "a spare core": "the main threads of both ranks share one core, so that the others are free for helper threads",
}
AIM = 0.6  # of what a copying thread hides


class Copier:
    """A thread that copies a tensor as often as asked, without Python's lock, and whose end can be awaited."""

    def __init__(self, nbytes: int) -> None:
        self.source, self.target = torch.ones(nbytes // 4), torch.empty(nbytes // 4)
        self.asked, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.copies = 1
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


def timed(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def run(start: Callable[[], Callable[[], Any]]) -> None:
    """Start a communication or a copy, and wait for it."""
    start()()


def largest(value: float) -> float:
    """The largest value of all ranks."""
    box = torch.tensor([value], dtype=torch.float64)
    mcr_dl.all_reduce(box, mcr_dl.ReduceOp.MAX, backend="mpi")
    return float(box)


def measure_way(start: Callable[[], Callable[[], Any]], rounds: int) -> list[list[float]]:
    """In each round: seconds alone, of products that take as long, and of both; the longest of all ranks."""
    left = torch.ones(512, 512)
    alone = largest(statistics.median(timed(partial(run, start)) for _ in range(5)))
    products = max(1, round(largest(alone / statistics.median(timed(lambda: left @ left) for _ in range(9)))))

    def compute() -> None:
        for _ in range(products):
            left @ left

    def both() -> None:
        wait = start()
        compute()
        wait()

    samples = []
    for _ in range(rounds):
        sample = []
        for call in (partial(run, start), compute, both):
            mcr_dl.barrier(backend="mpi")
            sample.append(largest(timed(call)))
        samples.append(sample)
    return samples


def measure_all(nbytes: int, rounds: int, output: str) -> None:
    """The samples of each placement and way; rank 0 writes them."""
    torch.set_num_threads(1)
    mcr_dl.init_process_group(list(BACKENDS))
    tensor = torch.ones(nbytes // 4)
    copier = Copier(nbytes)

    def reduce(backend: str) -> Callable[[], Any]:
        return mcr_dl.all_reduce(tensor, mcr_dl.ReduceOp.MAX, backend=backend, async_op=True).wait

    ways: dict[str, Callable[[], Callable[[], Any]]] = {backend: partial(reduce, backend) for backend in BACKENDS}
    for start in ways.values():
        run(start)
        time.sleep(0.01)  # the helper thread exists before the main thread is bound, so that it stays free
    shared = min(os.sched_getaffinity(0))
    found: dict[str, dict[str, list[list[float]]]] = {}
    for place in PLACES:
        if place == "a core each":
            bind()
        else:
            os.sched_setaffinity(0, {shared})
        copier.copies = 1
        took = [timed(partial(run, copier.start)) for _ in range(5)]
        reduced = [timed(partial(run, ways["shm"])) for _ in range(5)]
        copier.copies = max(1, round(largest(statistics.median(reduced) / statistics.median(took))))
        found[place] = {way: measure_way(start, rounds) for way, start in {COPY: copier.start, **ways}.items()}
        if mcr_dl.get_rank() == 0:
            print(f"  {place}", flush=True)
    if mcr_dl.get_rank() == 0:
        Path(output).write_text(json.dumps(found))
    mcr_dl.finalize()


def hidden(samples: list[list[float]]) -> float:
    """The part of the communication that took place behind the products: median over the rounds."""
    return statistics.median((alone + products - both) / min(alone, products) for alone, products, both in samples)


def markdown(found: dict[str, dict[str, list[list[float]]]], nbytes: int, rounds: int) -> str:
    """The report."""
    lines = [
        "# Communication behind matrix products",
        "",
        *paragraph(
            f"`python bench/overlap.py` on {date.today()}: {platform.machine()}, {os.cpu_count()} cores; "
            f"torch {torch.__version__}."
        ),
        *paragraph(
            f"An asynchronous all_reduce of {nbytes >> 20} MiB on two ranks of one host, then matrix products that "
            "take about as long, then `wait()`. Milliseconds are those of the slower rank, medians over "
            f"{rounds} rounds. *Hidden*: (communication + products - both) / the shorter of the two. "
            "A thread that copies tensors behind the same products shows how much a host can hide: like "
            "communication through memory, it needs a core, and memory bandwidth. *Of the copy* is a backend's "
            f"hidden part over that of the copy; the aim of `shm` is {AIM:.0%} where there is something to hide. "
            + "; ".join(f"*{place}*: {text}" for place, text in PLACES.items())
            + "."
        ),
    ]
    header = ["way", "communication ms", "products ms", "both ms", "hidden", "of the copy"]
    for place, ways in found.items():
        bound = hidden(ways[COPY])
        rows = []
        for way, samples in ways.items():
            middle = [statistics.median(column) * 1e3 for column in zip(*samples, strict=True)]
            share = "" if way == COPY or bound < 0.1 else f"{hidden(samples) / bound:.0%}"
            rows.append([way, *(f"{value:.2f}" for value in middle), f"{hidden(samples):.0%}", share])
        lines += [f"## {place[0].upper()}{place[1:]}", "", *table(header, rows)]
    return "\n".join(lines)


def main() -> None:
    """Run the command."""
    parser = script.parser(__doc__, reports=True)
    parser.set_defaults(nbytes=16 << 20)
    parser.add_argument("--rounds", type=int, default=31)
    given = script.parse(parser, rounds=2, nbytes=1 << 16)
    found = script.samples(measure_all, given.nbytes, given.rounds)
    script.publish(given, "overlap", found, markdown(found, given.nbytes, given.rounds))


if __name__ == "__main__":
    main()
