# SPDX-License-Identifier: Apache-2.0
"""The cost of a call through torch.distributed's backend "mcr", compared with mcr_dl's functions and torch's gloo.

Two ranks on one host. Each operation and size is called in five ways that take turns: mcr_dl's function on mpi;
torch.distributed's on an mcr_dl group on mpi, and on one with `uniform=False`; torch.distributed's on torch's gloo, and
on torch's fake. The first two also run on the backend without communication, where the difference is the layers of
torch and mcr_dl in between. Writes docs/results/dropin.md and dropin.json.
"""

from __future__ import annotations

import statistics
from datetime import date
from typing import Any

import torch

import dropin_rank
import script
from markdown_text import paragraph, size_text, table

TARGET_MICROSECONDS = 4.0


def added(point: dict[str, list[float]], to: str, base: str) -> float:
    """The median of the rounds' differences in µs."""
    return statistics.median(a - b for a, b in zip(point[to], point[base], strict=True))


def ratio(point: dict[str, list[float]]) -> float:
    """The median over the rounds of gloo's time relative to mcr_dl's through torch."""
    return statistics.median(a / b for a, b in zip(point["gloo"], point["torch"], strict=True))


def _row(nbytes: str, point: dict[str, list[float]]) -> list[str]:
    middle = {way: statistics.median(values) for way, values in point.items()}
    adds = added(point, "torch", "ours")
    layers = added(point, "torch, null", "ours, null")
    return [
        size_text(int(nbytes)),
        *(f"{middle[way]:,.2f}" for way in ("ours", "torch", "gloo")),
        f"{adds:.2f}",
        "yes" if adds <= TARGET_MICROSECONDS else "no",
        f"{added(point, 'torch, any form', 'ours'):.2f}",
        f"{layers:.2f}",
        f"{middle['torch, fake']:.2f}",
        f"{ratio(point):.2f}",
    ]


def markdown(found: dict[str, Any]) -> str:
    """The report."""
    points = [point for sizes in found.values() for point in sizes.values()]
    within = sum(added(point, "torch", "ours") <= TARGET_MICROSECONDS for point in points)
    faster = sum(ratio(point) > 1 for point in points)
    lines = [
        "# Through torch.distributed",
        "",
        *paragraph(f"`python bench/dropin.py` on {date.today()}: {script.machine()}; torch {torch.__version__}."),
        *paragraph(
            "Two ranks on one host, float32, blocking calls in turns; medians in µs, of the slowest rank. *mcr_dl* is "
            "its own function on mpi, *torch* is torch.distributed's on the backend mcr over mpi, *gloo* is "
            "torch.distributed's on torch's gloo. "
            "*Adds* is the median difference of torch to mcr_dl in the same round: in long calls, mostly noise. "
            "*any form* is that difference of a group made with `uniform=False`, whose calls are started and polled, "
            "as other ranks may make them asynchronously. *Layers* is the difference on the backend that does "
            "nothing: the layers of torch and of mcr_dl alone. *fake* is the time of a call on torch's own backend "
            "that does not communicate (it copies the input where there is a separate output): the layers of torch "
            "alone. Targets: torch adds at most 4 µs; faster than gloo at every size. "
            f"Met at {within} and at {faster} of {len(points)} points."
        ),
    ]
    header = ["size", "mcr_dl", "torch", "gloo", "adds", "at most 4 µs", "any form", "layers", "fake", "gloo / torch"]
    for operation, sizes in found.items():
        lines += [f"## {operation}", "", *table(header, [_row(nbytes, point) for nbytes, point in sizes.items()])]
    return "\n".join(lines)


def main() -> None:
    parser = script.parser(__doc__, reports=True)
    parser.set_defaults(sizes=dropin_rank.SIZES)
    parser.add_argument("--rounds", type=int, default=11, help="rounds of every point")
    parser.add_argument("--seconds", type=float, default=0.02, help="what each way gets in a round")
    given = script.parse(parser, sizes=dropin_rank.SIZES[:2], rounds=2, seconds=0.001)
    found = script.samples(dropin_rank.measure_all, given.sizes, given.rounds, given.seconds)
    script.publish(given, "dropin", found, markdown)


if __name__ == "__main__":
    main()
