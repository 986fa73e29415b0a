# SPDX-License-Identifier: Apache-2.0
"""The overhead of MCR-DL on an NCCL call: the host's time per call and the device's, against raw NCCL from C++ and
against torch.distributed, interleaved in one run.

    python -m gpu.overhead --ranks 1 --seconds 30 FOLDER

Every round has a block of calls of each way, in a shuffled order that is equal on all ranks. Host time ends when the
last call of a block has returned. The device sleeps first, so that it starts after the host has issued the whole block:
its time, between two events, then does not include the host's. A row in which the host took longer than that sleep is
marked and does not count. Times are medians over rounds; the overhead is the median of the differences within a round.
NCCL does nothing for an in-place all_reduce of one rank, so the device's time of one rank is compared on an all_gather,
which then is a copy.
"""

from __future__ import annotations

import ctypes
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist

import script
from gpu import jobs, raw
from gpu.device import Device

SIZES = [4 * 4**i for i in range(14)]  # 4 B ... 256 MiB, of one rank's tensor
OPS = ("all_reduce", "all_gather_single")
MODES = ("blocking", "async")
WAYS = ("raw", "mcr_dl", "torch")
SMALL, LARGE = 64 << 10, 1 << 20  # the host's time has targets up to the first, the device's from the second on
_BLOCK_MS = 8.0
_LEAD_MS = 4.0  # how long the device sleeps
_LEAST_SMALL_CALLS = 8  # in a block of small calls, whose time is the host's
_MOST_CALLS = 64  # below the number of launches at which a stream blocks the host
_MOST_ROUNDS, _LEAST_ROUNDS = 21, 3
_TOO_LONG_MS = 150.0  # a size whose call takes longer is left out, and with it all larger ones
Way = Callable[[int], float]


class Ways:
    """All ways to make a call, on the same tensors."""

    def __init__(self, device: Device, yardstick: raw.Raw | None, ranks: int, peer: torch_dist.ProcessGroup) -> None:
        self.device, self.yardstick, self.ranks, self.peer = device, yardstick, ranks, peer

    def of(self, op: str, mode: str, nbytes: int) -> dict[str, Way]:
        """Name -> function from a number of calls to the host's seconds per call."""
        import mcr_dl

        count, asynchronous = nbytes // 4, mode == "async"
        source = torch.zeros(count, device=self.device.kind)
        target = torch.zeros(count * (1 if op == "all_reduce" else self.ranks), device=self.device.kind)
        ours = getattr(mcr_dl, op)
        theirs = torch_dist.all_reduce if op == "all_reduce" else torch_dist.all_gather_into_tensor
        arguments = "t" if op == "all_reduce" else "t, s"
        end = ", async_op=True).wait()" if asynchronous else ")"
        names = {"t": target, "s": source}
        ways: dict[str, Way] = {}
        if self.yardstick is not None:
            loop = self.yardstick.loop
            ways["raw"] = lambda calls: loop(op, calls, source, target, asynchronous=asynchronous)
        ways["mcr_dl"] = script.timed_statement(f"f({arguments}{end}", {**names, "f": ours})
        ways["torch"] = script.timed_statement(f"f({arguments}, group=g{end}", {**names, "f": theirs, "g": self.peer})
        return ways


def block(device: Device, way: Way, calls: int) -> tuple[float, float]:
    """The host's and the device's µs per call."""
    begin, end = device.event(), device.event()
    device.synchronize()
    device.sleep(_LEAD_MS)
    begin.record()
    host = way(calls)
    end.record()
    end.synchronize()
    return host * 1e6, begin.elapsed_time(end) * 1e3 / calls


class Agreement:
    """Gives rank 0's numbers to all ranks."""

    def __init__(self, store: Any, rank: int) -> None:
        self._store, self._rank, self._turn = store, rank, 0

    def number(self, value: float) -> float:
        self._turn += 1
        key = f"agreed/{self._turn}"
        if self._rank == 0:
            self._store.set(key, repr(value))
        return float(self._store.get(key).decode())


def measure(
    device: Device, ways: dict[str, Way], agree: Agreement, seconds: float, seed: int, least_calls: int = 1
) -> dict[str, Any] | None:
    """Interleaved blocks of all ways, with `least_calls` in each; None if a call takes too long."""
    for way in ways.values():
        block(device, way, 2)
    slowest = agree.number(max(max(block(device, way, 3)) for way in ways.values()) / 1e3)  # ms
    if slowest > _TOO_LONG_MS:
        return None
    calls = int(max(least_calls, min(_MOST_CALLS, _BLOCK_MS / slowest)))
    round_ms = (calls * slowest + (_LEAD_MS if device.real else 0.0)) * len(ways)
    rounds = int(max(_LEAST_ROUNDS, min(_MOST_ROUNDS, seconds * 1e3 / round_ms)))
    shuffle, order = random.Random(seed), list(ways)
    host: dict[str, list[float]] = {name: [] for name in ways}
    on_device: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            taken = block(device, ways[name], calls)
            host[name].append(taken[0])
            on_device[name].append(taken[1])
    return summarize(host, on_device, calls, rounds)


def summarize(host: dict[str, list[float]], device: dict[str, list[float]], calls: int, rounds: int) -> dict[str, Any]:
    """Medians in µs, and the overhead of mcr_dl and torch over raw calls of the same round."""
    row: dict[str, Any] = {
        "calls": calls,
        "rounds": rounds,
        "host_us": {name: statistics.median(values) for name, values in host.items()},
        "device_us": {name: statistics.median(values) for name, values in device.items()},
    }
    row["late"] = [name for name, us in row["host_us"].items() if us * calls > _LEAD_MS * 1e3]
    if "raw" in host:
        for name in ("mcr_dl", "torch"):
            pairs = zip(host[name], host["raw"], strict=True)
            row.setdefault("added_us", {})[name] = statistics.median(a - b for a, b in pairs)
            ratios = zip(device[name], device["raw"], strict=True)
            row.setdefault("device_ratio", {})[name] = statistics.median(a / max(b, 1e-3) for a, b in ratios)
    return row


def sweep(device: Device, ways: Ways, agree: Agreement, seconds: float, note: Callable[[dict[str, Any]], None]) -> None:
    """All sizes of all operations, the small ones first; `note` gets all rows after each."""
    points = [(op, mode, nbytes) for nbytes in SIZES for op in OPS for mode in MODES]
    deadline = time.monotonic() + seconds
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    ended: set[str] = set()
    for index, (op, mode, nbytes) in enumerate(points):
        left = agree.number(deadline - time.monotonic())
        if left <= 0 or op in ended:
            continue
        share, least = left / (len(points) - index), _LEAST_SMALL_CALLS if nbytes <= SMALL else 1
        row = measure(device, ways.of(op, mode, nbytes), agree, share, index, least)
        if row is None:
            ended.add(op)
            continue
        rows.setdefault(f"{op} {mode}", {})[str(nbytes)] = row
        note(rows)


def _environment(name: str) -> str:
    """A variable as C sees it: backends set some that os.environ does not have."""
    read = ctypes.CDLL(None).getenv
    read.restype = ctypes.c_char_p
    return (read(name.encode()) or b"").decode()


def on_rank(backend: str, kind: str, seconds: float, loop: str, folder: str, name: str) -> None:
    """One rank."""
    import mcr_dl
    from gpu import device as devices
    from mcr_dl.runtime import state

    device = devices.of(kind)
    mcr_dl.init_process_group(backend, tuning_table="none")
    rank, ranks = mcr_dl.get_rank(), mcr_dl.get_world_size()
    store = state.current().store
    theirs = "nccl" if device.real else "gloo"
    peer = torch_dist.new_group(backend=theirs)  # of torch's own: the default group is mcr_dl's
    notes = jobs.Notes(folder, name, rank)
    notes.write(torch_backend=theirs, rows={})
    yardstick = raw.Raw(Path(loop), store, rank, ranks, device) if loop else None
    notes.write(
        nccl="" if yardstick is None else yardstick.version, launch_order=_environment("NCCL_LAUNCH_ORDER_IMPLICIT")
    )
    ways = Ways(device, yardstick, ranks, peer)
    sweep(device, ways, Agreement(store, rank), seconds, lambda rows: notes.write(rows=rows))
    if yardstick is not None:
        yardstick.close()
    mcr_dl.destroy_process_group()


def verdicts(rows: dict[str, dict[str, dict[str, Any]]], ranks: int) -> dict[str, dict[str, Any]]:
    """Each target with its measurement; nothing for targets without a raw measurement."""
    found: dict[str, dict[str, Any]] = {}
    for mode in MODES:
        small = [
            row
            for op in OPS
            for n, row in rows.get(f"{op} {mode}", {}).items()
            if int(n) <= SMALL and "added_us" in row
        ]
        if small:
            added = statistics.median(row["added_us"]["mcr_dl"] for row in small)
            torchs = statistics.median(row["added_us"]["torch"] for row in small)
            found[f"host µs added to raw, {mode}"] = {"value": added, "target": 1.0, "met": added <= 1.0}
            share = added / torchs if torchs > 0 else float("inf")
            found[f"of what torch.distributed adds, {mode}"] = {"value": share, "target": 1 / 3, "met": share <= 1 / 3}
    compared = ("all_gather_single",) if ranks == 1 else OPS
    large = [
        row["device_ratio"]["mcr_dl"]
        for op in compared
        for n, row in rows.get(f"{op} blocking", {}).items()
        if int(n) >= LARGE and "device_ratio" in row and not {"raw", "mcr_dl"} & set(row["late"])
    ]
    if large:
        ratio = statistics.median(large)
        worst = max(large)
        found["device time over raw from 1 MiB"] = {
            "value": ratio,
            "worst": worst,
            "target": 1.01,
            "met": ratio <= 1.01,
        }
    return found


def _line(document: dict[str, Any]) -> str:
    parts = [
        f"{name} {found['value']:.2f} (target {found['target']:.2f}: {'met' if found['met'] else 'MISSED'})"
        for name, found in document["targets"].items()
    ]
    sizes = max((int(n) for rows in document["rows"].values() for n in rows), default=0)
    order = "; NCCL_LAUNCH_ORDER_IMPLICIT=1 holds for raw and torch too" if document.get("launch_order") == "1" else ""
    return "; ".join(parts or ["no raw yardstick"]) + f"; up to {sizes >> 10} KiB{order}"


def main() -> int:
    """Start the ranks. Exit code 1 if they did not finish; a missed target is a result, not a failure."""
    parser = jobs.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--no-raw", action="store_true", help="without raw NCCL calls")
    given = parser.parse_args()
    name = f"overhead-{given.ranks}"
    loop = "" if given.no_raw else str(raw.build(given.folder))
    seconds = jobs.working_seconds(given.seconds, given.limit)
    args = (given.backend, given.device, seconds, loop, str(given.folder), name)
    problem = jobs.run(
        "gpu.overhead:on_rank", args, ranks=given.ranks, kind=given.device, limit=given.limit, log=given.folder / name
    )
    notes = jobs.read(given.folder, name, given.ranks)[0]
    rows = notes.get("rows", {})
    document: dict[str, Any] = {**notes, "targets": verdicts(rows, given.ranks), "rows": rows, "failed": not rows}
    return jobs.finish(given.folder, name, {**document, "line": _line(document)}, problem)


if __name__ == "__main__":
    sys.exit(main())
