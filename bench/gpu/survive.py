# SPDX-License-Identifier: Apache-2.0
"""Loses a rank while the others' collectives occupy the device, goes on without it, and takes a new process for it.

python -m gpu.survive --backend nccl --ranks 3 FOLDER
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist

from gpu import jobs

_NAME = "survive"
_LOST = 1
_LIMIT = timedelta(seconds=25)
_COUNT = 1 << 20
_PAUSE = 0.05


def _check(device: Any, group: Any) -> None:
    """Values of both kinds of call on the group."""
    import mcr_dl

    ranks = mcr_dl.get_process_group_ranks(group)
    x = torch.full((_COUNT,), mcr_dl.get_rank() + 1.0, device=device.kind)
    mcr_dl.all_reduce(x, group=group)
    wanted = float(sum(rank + 1 for rank in ranks))
    found = x.cpu()
    if not bool((found == wanted).all()):
        values = found.unique().tolist()  # type: ignore[no-untyped-call]
        raise AssertionError(f"all_reduce: expected {wanted}, got {values}")
    parts = torch.empty(len(ranks), device=device.kind)
    mcr_dl.all_gather_into_tensor(
        parts, x[:1].clone().fill_(float(mcr_dl.get_rank())), group=group, async_op=True
    ).wait()
    assert parts.tolist() == [float(rank) for rank in ranks], parts.tolist()


def _lose(device: Any, store: torch_dist.Store, rank: int, ranks: int, notes: jobs.Notes) -> None:
    """The rank is killed once the others have issued calls that need it. The device must become free again."""
    import mcr_dl

    issued = [f"issued/{other}" for other in range(ranks) if other != _LOST]
    if rank == _LOST:
        store.wait(issued)
        time.sleep(0.2)  # for the device to begin what they have issued
        store.set("killed", str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    tensors = [torch.ones(_COUNT, device=device.kind) for _ in range(3)]
    text, key = "", f"issued/{rank}"
    try:
        if not device.real:  # calls on the host wait for the others at once
            store.set(key, "")
        works = [mcr_dl.all_reduce(each, async_op=True) for each in tensors]
        store.set(key, "")
        for work in works:
            work.wait()
        device.synchronize()
        mcr_dl.all_reduce(tensors[0])
    except mcr_dl.PeerLostError as error:
        text = str(error)
    assert f"lost rank {_LOST}" in text.lower(), f"expected PeerLostError, got {text or 'no error'}"
    device.synchronize()
    notes.write(free=time.monotonic() - float(store.get("killed")), error=text)


def on_rank(backend: str, kind: str, port: int, folder: str, rank: int, ranks: int, *, back: bool) -> None:
    """One rank, or the process that takes the lost one's place."""
    import mcr_dl
    from gpu import device as devices

    device = devices.of(kind)
    notes = jobs.Notes(folder, _NAME, ranks if back else rank)
    store = torch_dist.TCPStore("localhost", port, timeout=_LIMIT)
    group: torch_dist.ProcessGroup | None
    if back:
        group = mcr_dl.rejoin(store=store, rank=rank, world_size=ranks, timeout=_LIMIT)
    else:
        mcr_dl.init_process_group(backend, store=store, rank=rank, world_size=ranks, tuning_table="none")
        group = mcr_dl.group.WORLD
        _check(device, group)
        _lose(device, store, rank, ranks, notes)
        begin = time.monotonic()
        group = mcr_dl.shrink(group, _LIMIT)
        notes.write(shrunk=time.monotonic() - begin)
        _check(device, group)
        while mcr_dl.get_world_size(group) < ranks:
            begin = time.monotonic()
            group = mcr_dl.grow(group)
            notes.write(grown=time.monotonic() - begin)
            time.sleep(_PAUSE)
    _check(device, group)
    device.synchronize()
    notes.write(ok=True)
    mcr_dl.destroy_process_group()


def _start(given: argparse.Namespace, port: int, rank: int, *, back: bool) -> subprocess.Popen[bytes]:
    number = given.ranks if back else rank
    own = {"RANK": rank, "WORLD_SIZE": given.ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": given.ranks}
    command = [sys.executable, "-m", "gpu.survive", "--backend", given.backend, "--device", given.device]
    command += ["--ranks", str(given.ranks), "--rank", str(rank), "--port", str(port), *(["--back"] if back else [])]
    with (given.folder / _NAME / f"{number}.out").open("wb") as log:
        environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
        return subprocess.Popen([*command, str(given.folder)], env=environment, stdout=log, stderr=subprocess.STDOUT)


def _end(processes: list[subprocess.Popen[bytes]], deadline: float) -> str:
    """Wait for all; returns what is wrong."""
    problem = ""
    for index, each in enumerate(processes):
        try:
            code = each.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()
            problem = problem or f"process {index} not at its end in time"
        else:
            problem = problem or (f"process {index} ended with {code}" if code else "")
    return problem


def _job(given: argparse.Namespace) -> str:
    deadline = time.monotonic() + jobs.left(given.limit) - 2
    (given.folder / _NAME).mkdir(exist_ok=True)
    store = torch_dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    ranks = [_start(given, store.port, rank, back=False) for rank in range(given.ranks)]
    try:
        ranks[_LOST].wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        ranks[_LOST].kill()
        return f"rank {_LOST} did not come so far; " + _end(ranks, time.monotonic())
    ranks[_LOST] = _start(given, store.port, _LOST, back=True)
    return _end(ranks, deadline)


def main() -> int:
    """Start the processes; 1 if one of them has failed."""
    parser = jobs.parser(__doc__, ranks=3)
    for name, kind in (("--rank", int), ("--port", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--back", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        from mcr_dl.measure import devices

        devices.take(given.device)
        place = given.backend, given.device, given.port, str(given.folder), given.rank, given.ranks
        on_rank(*place, back=given.back)
        return 0
    problem = _job(given)
    notes = jobs.read(given.folder, _NAME, given.ranks + 1)
    good = [note for number, note in enumerate(notes) if number != _LOST and note.get("ok")]
    if problem:
        for path in sorted((given.folder / _NAME).glob("*.out")):
            print(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}")
    times = {key: max((note.get(key, 0.0) for note in notes), default=0.0) for key in ("free", "shrunk", "grown")}
    line = (
        f"{len(good)} of {given.ranks} processes have a group of all ranks again; in s: device free "
        f"{times['free']:.2f} after the loss, shrink {times['shrunk']:.2f}, grow {times['grown']:.2f}"
    )
    document = {**times, "line": line, "failed": len(good) < given.ranks}
    return jobs.finish(given.folder, f"{_NAME}-{given.ranks}", document, problem)


if __name__ == "__main__":
    sys.exit(main())
