# SPDX-License-Identifier: Apache-2.0
"""The breakdown as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from mcr_dl.commands.console import Console
from mcr_dl.commands.text import time_text
from mcr_dl.trace import _breakdown as breakdown
from mcr_dl.trace._breakdown import Breakdown
from mcr_dl.trace._files import Trace
from mcr_dl.watch import ranks_text


def _text(seconds: float, total: float) -> str:
    return f"{time_text(seconds * 1e6)} {seconds / total:>4.0%}" if total > 0 else "-"


def grid(parts: Sequence[Breakdown]) -> Table:
    """One region: a column for each rank and for their mean, a line for computation and for each operation."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    columns = [*parts, breakdown.mean(parts)] if len(parts) > 1 else list(parts)
    for index in range(len(parts)):
        table.add_column(f"rank {index}", justify="right")
    if len(parts) > 1:
        table.add_column("mean", justify="right")
    table.add_row("compute", *(_text(part.compute, part.total) for part in columns))
    for each in columns[-1].exposed:
        table.add_row(each, *(_text(part.exposed.get(each, 0.0), part.total) for part in columns))
    table.add_section()
    table.add_row("total", *(time_text(part.total * 1e6) for part in columns))
    table.add_row("communication", *(_text(part.communication, part.total) for part in columns))
    table.add_row("overlapped", *(_text(part.overlapped, part.total) for part in columns))
    return table


def document(traces: Sequence[Trace]) -> dict[str, Any]:
    """The breakdown as JSON: for each region a row for each rank, in seconds."""
    return {
        "regions": {
            name: [
                {
                    "rank": rank,
                    "total": part.total,
                    "compute": part.compute,
                    "communication": part.communication,
                    "overlapped": part.overlapped,
                    **{f"communication.{operation}": seconds for operation, seconds in part.exposed.items()},
                }
                for rank, part in enumerate(parts)
            ]
            for name, parts in breakdown.tables(traces).items()
        },
        "left_out": breakdown.left_out(traces),
        "lost_records": {str(trace.rank): trace.lost for trace in traces},
    }


def left_out_text(traces: Sequence[Trace]) -> str:
    """The regions that not all ranks have, a line for each; empty if there are none."""
    return "\n".join(
        f"left out: region {name!r}, which only {ranks_text(ranks)} recorded"
        for name, ranks in breakdown.left_out(traces).items()
    )


def show(traces: Sequence[Trace], console: Console | None = None) -> None:
    """Print one table for each region that all ranks have; without regions one table. Names the other regions."""
    console = console or Console()
    named = bool(breakdown.common_regions(traces))
    for name, parts in breakdown.tables(traces).items():
        console.say(f"Where the time went: {name}" if named else "Where the time went", style="italic")
        console.print_whole(grid(parts), 80)
    if text := left_out_text(traces):
        console.say(text)
    lost = {trace.rank: trace.lost for trace in traces if trace.lost}
    if lost:
        console.say(f"records that the rings had overwritten, by rank: {lost}")
