# SPDX-License-Identifier: Apache-2.0
"""``log_summary``: DeepSpeed's table of communication, from the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mcr_dl.records import log, printer, statistics
from mcr_dl.records.log import Record
from mcr_dl.runtime import handles, state
from mcr_dl.trace import _stragglers

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = (
    "Comm. Op", "Message Size", "Backend", "Count", "Total Latency(ms)", "Avg Latency(ms)", "p50(ms)", "p99(ms)",
    "tput_avg (Gbps)", "busbw_avg (Gbps)",
)  # fmt: skip
_STRAGGLER_COLUMNS = (
    "Comm. Op", "Message Size", "Count", "Total comm lat(ms)", "Total straggler(ms)", "Avg comm lat(ms)",
    "Avg straggler(ms)", "Last rank (times)",
)  # fmt: skip
_WIDTH = 160  # characters of a line, where there is no terminal


def _sized(records: list[Record]) -> dict[str, dict[int, dict[str, Any]]]:
    result: dict[str, dict[int, dict[str, Any]]] = {}
    for (name, nbytes), part in statistics.by_size(records).items():
        result.setdefault(name, {})[nbytes] = {
            **asdict(statistics.Line.of(part)),
            "msg_size_bytes": nbytes,
            "msg_size_str": statistics.size_text(nbytes),
            "backends": {
                backend: asdict(statistics.Line.of(each)) for backend, each in statistics.by_backend(part).items()
            },
        }
    return result


def _codecs(records: list[Record]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        if record.codec is not None:
            entry = found.setdefault(record.codec, {"count": 0, "error_bound": record.error_bound})
            entry["count"] += 1
    return found


def _grid(title: str, columns: tuple[str, ...], texts: int) -> Table:
    from rich import box
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        grid.add_column(name, justify="left" if index < texts else "right")
    return grid


def _numbers(values: dict[str, Any], *names: str) -> list[str]:
    return [f"{values[name]:.2f}" if abs(values[name]) >= 0.1 else f"{values[name]:.3g}" for name in names]


def _rows(summary: dict[str, dict[int, dict[str, Any]]]) -> Iterator[list[str]]:
    for name, sizes in summary.items():
        head = name
        for entry in sizes.values():
            size = entry["msg_size_str"]
            for backend, line in entry["backends"].items():
                times = ("total_latency_ms", "avg_latency_ms", "p50_latency_ms", "p99_latency_ms")
                numbers = _numbers(line, *times, "tput_avg_gbps", "busbw_avg_gbps")
                yield [head, size, backend, str(line["count"]), *numbers]
                head = size = ""


def _print(result: dict[str, Any], lost: int, unfinished: int) -> None:
    from mcr_dl.commands.console import Console  # imported here, as programs that do not print it need not have rich

    console = Console()
    grid = _grid("Communication of this rank", _COLUMNS, 3)
    for row in _rows(result["summary"]):
        grid.add_row(*row)
    console.print_whole(grid, _WIDTH)
    if result["straggler_analysis"] is not None:
        grid = _grid("Breakdown with straggler effect", _STRAGGLER_COLUMNS, 2)
        for name, sizes in result["straggler_analysis"].items():
            for index, entry in enumerate(sizes.values()):
                last = ", ".join(f"{rank} ({times})" for rank, times in entry["last_ranks"].items())
                times = ("total_comm_lat_ms", "total_straggler_ms", "avg_comm_lat_ms", "avg_straggler_ms")
                head = "" if index else name
                grid.add_row(head, entry["msg_size_str"], str(entry["count"]), *_numbers(entry, *times), last)
        console.print_whole(grid, _WIDTH)
    for codec, entry in result["metadata"]["codecs"].items():
        console.say(f"codec {codec}: {entry['count']} calls, error at most {entry['error_bound']}")
    if unfinished:
        console.say(f"left out: {unfinished} calls that have failed or are still running")
    if lost:
        console.say(f"left out: {lost} older records that the ring has overwritten (Log(capacity=...))")


def log_summary(
    show_straggler: bool = False, return_dict: bool = False, group: handles.Group = None
) -> dict[str, Any] | None:
    """Print on rank 0 the communication since the log was turned on, by operation, message size and backend.

    If the log is off and has no records, prints that instead.

    Latencies are in ms, from the call to its end, on this rank; the latency of an asynchronous call includes time in
    which it waited for the program. Throughput and bus bandwidth are in Gbps (10^9 bits per second) and follow
    nccl-tests' definitions. Means leave out the largest and the smallest tenth, as DeepSpeed's do.

    Args:
        show_straggler: also print how much of the time ranks waited for the one that came last. Every rank of the job
            then calls this together; collectives are matched over the ranks by their sequence numbers, the newest
            524,288 of each rank, and of the whole job as many at most, an equal number of each group.
        return_dict: return the numbers too, on every rank: ``{"summary": {op: {bytes: {...}}}, "straggler_analysis":
            {op: {bytes: {...}}} or None, "metadata": {...}}``, DeepSpeed's keys and some more.
        group: use the records of this group alone, none on ranks that are not members; of all groups if None.

    Raises NotInitializedError before init and after finalize, ModuleNotFoundError on rank 0 without the package rich,
    and with ``show_straggler`` CollectiveTimeoutError if some ranks do not call it within the default group's timeout.
    Source: deepspeed.comm.log_summary.
    """
    current = state.current()
    printer.flush()
    records = [] if handles.not_a_member(group) else log.records(group)
    stragglers = _stragglers.analysis(records, _stragglers.exchange(records)) if show_straggler else None
    lost = log.lost()
    result = {
        "summary": _sized(records),
        "straggler_analysis": stragglers,
        "metadata": {
            "world_size": current.launch.size,
            "rank": current.launch.rank,
            "timestamp": datetime.now().isoformat(),
            "lost_records": lost,
            "codecs": _codecs(records),
        },
    }
    if current.launch.rank == 0 and not records and not log.is_on():
        print(f"log_summary: {log.OFF}")
    elif current.launch.rank == 0:
        _print(result, lost, len(records) - len(statistics.ended(records)))
    return result if return_dict else None
