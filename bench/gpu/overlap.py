# SPDX-License-Identifier: Apache-2.0
"""Overlap on a device: a collective behind matrix products, Listing 3 of the MCR-DL paper, lanes, staging.

    python -m gpu.overlap --ranks 2 FOLDER

Times are of whole rounds, from the first call to the device's end, in ms; medians over rounds that take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpu import jobs
from gpu.device import Device
from gpu.overhead import Agreement

_ROUNDS = 9
_NOTHING = "nothing"
_LEAST_MS = 1e-4  # so that ratios exist
_LANES = (1, 4)
_CHUNKS = {"256K": str(256 << 10), "1M": str(1 << 20), "4M": str(4 << 20), "16M": str(16 << 20), "off": "off"}


def in_turns(device: Device, ways: Mapping[str, Callable[[], object]], rounds: int = _ROUNDS) -> dict[str, float]:
    """Median ms of each way, after one warm-up round, minus the time of a way that does nothing."""
    timed: dict[str, Callable[[], object]] = {**ways, _NOTHING: lambda: None}
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(rounds + 1):
        for name, way in timed.items():
            device.synchronize()
            begin = time.perf_counter()
            way()
            device.synchronize()
            if turn:
                taken[name].append((time.perf_counter() - begin) * 1e3)
    nothing = statistics.median(taken.pop(_NOTHING))
    return {name: max(_LEAST_MS, statistics.median(values) - nothing) for name, values in taken.items()}


class _Pieces:
    """A collective and products that take about as long."""

    def __init__(self, device: Device, backend: str, nbytes: int, ranks: int, agree: Agreement) -> None:
        import mcr_dl

        self.mcr, self.device, self.backend = mcr_dl, device, backend
        self.source = torch.ones(nbytes // 4, device=device.kind)
        self.target = torch.ones(nbytes // 4 * ranks, device=device.kind)
        edge = 1024 if device.real else 256  # short enough that several take as long as the collective
        self.left = torch.ones(edge, edge, device=device.kind)
        self.product = torch.empty_like(self.left)
        self.products = 1
        alone = in_turns(device, {"c": self.communicate, "p": self.compute}, 3)
        self.products = int(agree.number(min(2000.0, max(1.0, alone["c"] / max(alone["p"], 1e-3)))))

    def start(self) -> Any:
        """Gather every rank's tensor on all ranks: a copy for one rank, where an all_reduce would do nothing."""
        return self.mcr.all_gather_single(self.target, self.source, backend=self.backend, async_op=True)

    def communicate(self) -> None:
        self.start().wait()

    def compute(self) -> None:
        for _ in range(self.products):
            torch.mm(self.left, self.left, out=self.product)

    def both(self) -> None:
        work = self.start()
        self.compute()
        work.wait()

    def naive(self) -> None:
        """Figure 4(a): everything on the default stream, and the host waits for it."""
        self.mcr.all_gather_single(self.target, self.source, backend=self.backend)
        self.device.synchronize()
        self.compute()


def overlap(pieces: _Pieces) -> dict[str, Any]:
    """How much of the shorter one overlaps with the other; and Listing 3, with the product in place of y + y."""
    ways = {"communication": pieces.communicate, "products": pieces.compute, "both": pieces.both, "naive": pieces.naive}
    times = in_turns(pieces.device, ways)
    shorter = min(times["communication"], times["products"])
    hidden = (times["communication"] + times["products"] - times["both"]) / max(shorter, 1e-6)
    return {
        "ms": times,
        "products": pieces.products,
        "hidden": hidden,
        "gain_over_naive": times["naive"] / times["both"],
    }


def listing3(device: Device, backend: str) -> dict[str, Any]:
    """The listing with its own sizes: one element, where only the host's time differs."""
    import mcr_dl

    x, y = torch.rand(1, 1, device=device.kind), torch.rand(1, 1, device=device.kind)

    def naive() -> None:
        mcr_dl.all_reduce(backend, x, op=mcr_dl.ReduceOp.MAX)
        device.synchronize()
        x + (y + y)

    def events() -> None:
        work = mcr_dl.all_reduce(backend, x, op=mcr_dl.ReduceOp.MAX, async_op=True)
        z = y + y
        work.wait()
        x + z

    def repeated(one: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(20):
                one()

        return run

    times = in_turns(device, {"naive": repeated(naive), "events": repeated(events)})
    return {"us": {name: value * 1000 / 20 for name, value in times.items()}, "gain": times["naive"] / times["events"]}


def lanes(device: Device, backend: str) -> dict[str, Any]:
    """16 small pending all_reduces, on groups made with one lane and with four."""
    import mcr_dl
    from gpu.checks import group_with_lanes

    ways: dict[str, Callable[[], object]] = {}
    for number in _LANES:
        group = group_with_lanes(number)
        for nbytes in (1 << 10, 64 << 10):
            tensors = [torch.zeros(nbytes // 4, device=device.kind) for _ in range(16)]

            def run(tensors: list[torch.Tensor] = tensors, group: Any = group) -> None:
                works = [mcr_dl.all_reduce(each, group=group, backend=backend, async_op=True) for each in tensors]
                for work in works:
                    work.wait()

            ways[f"{number} lane{'s' * (number != 1)}, {nbytes >> 10} KiB"] = run
    return {"us": {name: value * 1000 for name, value in in_turns(device, ways, 21).items()}}


def on_rank(backend: str, kind: str, folder: str, name: str) -> None:
    """One rank: measure the overlap."""
    import mcr_dl
    from gpu import device as devices
    from mcr_dl.runtime import state

    device = devices.of(kind)
    mcr_dl.init_process_group(backend, tuning_table="none")
    rank, ranks = mcr_dl.get_rank(), mcr_dl.get_world_size()
    agree, notes = Agreement(state.current().store, rank), jobs.Notes(folder, name, rank)
    nbytes = (1 << 30 if ranks == 1 else 16 << 20) if device.real else 1 << 20
    notes.write(overlap=overlap(_Pieces(device, backend, nbytes, ranks, agree)), nbytes=nbytes)
    notes.write(listing3=listing3(device, backend))
    if backend == "nccl" and ranks > 1:  # a single rank gives NCCL nothing to do
        notes.write(lanes=lanes(device, backend))
    mcr_dl.destroy_process_group()


def staging_on_rank(host: str, kind: str, nbytes: int, folder: str, name: str) -> None:
    """One rank: an all_reduce of device tensors on a host library, by the size of a chunk, in two turns."""
    import mcr_dl
    from gpu import device as devices

    device = devices.of(kind)
    x = torch.zeros(nbytes // 4, device=device.kind)
    taken: dict[str, list[float]] = {chunk: [] for chunk in _CHUNKS}
    for _ in range(2):
        for chunk, size in _CHUNKS.items():
            os.environ["MCR_DL_STAGING_CHUNK"] = size  # read when the runtime starts
            mcr_dl.init_process_group(host, tuning_table="none")
            rank = mcr_dl.get_rank()
            taken[chunk].append(in_turns(device, {"ms": lambda: mcr_dl.all_reduce(host, x)}, 5)["ms"])
            mcr_dl.destroy_process_group()
    jobs.Notes(folder, name, rank).write(ms={chunk: min(times) for chunk, times in taken.items()})


def _staging(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Measure each usable host library, while time is left."""
    from mcr_dl.libraries import registry

    usable = registry.available_backends()
    results: dict[str, Any] = {}
    for host in ("gloo", "mpi"):
        if not usable.get(host, "").startswith("ok"):
            results[host] = usable.get(host, "unknown")
            continue
        name = f"staging-{host}"
        args = (host, given.device, given.staging_bytes, str(given.folder), name)
        problem = jobs.run(
            "gpu.overlap:staging_on_rank", args, ranks=2, kind=given.device, limit=given.limit, log=given.folder / name
        )
        if problem:
            return results, f"{name}: {problem}"
        results[host] = jobs.read(given.folder, name, 2)[0]["ms"]
    return results, ""


def _staging_line(results: dict[str, Any], nbytes: int) -> str:
    parts = [
        f"{host} " + ", ".join(f"{chunk} {ms:.1f}" for chunk, ms in found.items()) if isinstance(found, dict) else
        f"{host} {found}"
        for host, found in results.items()
    ]  # fmt: skip
    return f"all_reduce of {nbytes >> 20} MiB in ms by chunk: " + "; ".join(parts)


def _line(notes: dict[str, Any]) -> str:
    parts = []
    if "overlap" in notes:
        found = notes["overlap"]
        share, gain = found["hidden"], found["gain_over_naive"]
        parts.append(f"communication and products: {share:.0%} of the shorter one overlaps, {gain:.2f}x over naive")
    if "listing3" in notes:
        parts.append(f"Listing 3: {notes['listing3']['gain']:.2f}x over naive")
    if "lanes" in notes:
        times = ", ".join(f"{name} {us:.0f}" for name, us in notes["lanes"]["us"].items())
        parts.append(f"16 all_reduces in µs: {times}")
    return "; ".join(parts)


def main() -> int:
    """Start the ranks; exit code 1 if they did not finish."""
    parser = jobs.parser(__doc__)
    parser.add_argument("--staging", action="store_true", help="instead: chunk sizes of staged host libraries")
    parser.add_argument("--staging-bytes", type=int, default=64 << 20)
    given = parser.parse_args()
    if given.staging:
        results, problem = _staging(given)
        document: dict[str, Any] = {"staging": results, "line": _staging_line(results, given.staging_bytes)}
        return jobs.finish(given.folder, "staging", document, problem)
    name = f"overlap-{given.ranks}"
    args = (given.backend, given.device, str(given.folder), name)
    problem = jobs.run(
        "gpu.overlap:on_rank", args, ranks=given.ranks, kind=given.device, limit=given.limit, log=given.folder / name
    )
    notes = jobs.read(given.folder, name, given.ranks)[0]
    return jobs.finish(given.folder, name, {**notes, "line": _line(notes), "failed": "overlap" not in notes}, problem)


if __name__ == "__main__":
    sys.exit(main())
