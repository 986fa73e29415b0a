# SPDX-License-Identifier: Apache-2.0
"""How much of an asynchronous all_reduce takes place behind matrix products, by backend, on two ranks of one host.

    python bench/overlap.py

A thread that copies tensors behind the same products shows how much can be hidden at all: it needs a core, too. Writes
docs/results/overlap.{json,md}.
"""

from __future__ import annotations

import statistics
from datetime import date
from functools import partial

import torch

import script
from markdown_text import paragraph, table
from overlap_rank import COPY, PLACES, measure_all

AIM = 0.6  # of what a copying thread hides


def hidden(samples: list[list[float]]) -> float:
    """The part of the communication that took place behind the products: median over the rounds."""
    return statistics.median((alone + products - both) / alone for alone, products, both in samples)


def markdown(found: dict[str, dict[str, list[list[float]]]], nbytes: int, rounds: int) -> str:
    """The report."""
    lines = [
        "# Communication behind matrix products",
        "",
        *paragraph(f"`python bench/overlap.py` on {date.today()}: {script.machine()}; torch {torch.__version__}."),
        *paragraph(
            f"An asynchronous all_reduce of {nbytes >> 20} MiB on two ranks of one host, then matrix products that "
            "take as long if each rank has a core for them, then `wait()`. Milliseconds are from the first rank's "
            f"begin to the last one's end, medians over {rounds} rounds. *Hidden*: (communication + products - both) / "
            "communication. A thread that copies tensors behind the same products, for as long as `shm`'s all_reduce "
            "takes, shows how much a host can hide: like communication through memory, it needs a core and memory "
            "bandwidth. *Of the copy* is a backend's hidden part over that of the copy; the aim of `shm` is "
            f"{AIM:.0%} where there is something to hide. "
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
    script.publish(given, "overlap", found, partial(markdown, nbytes=given.nbytes, rounds=given.rounds))


if __name__ == "__main__":
    main()
