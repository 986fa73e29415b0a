# SPDX-License-Identifier: Apache-2.0
"""Ranks that start in some way, print the result, and end: starts.py NAME [ARGUMENTS...]."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as torch_dist

import mcr_dl as dist
from mcr_dl.base import launcher
from mcr_dl.groups import start_log
from mcr_dl.libraries import pmix, registry, shm
from mcr_dl.runtime import communicators, state
from mcr_dl.runtime.attempts import Attempt

RANK = int(os.environ["RANK"])


def use() -> None:
    """Print the started backends, and communicate on all of them."""
    for name in dist.get_backends():
        x = torch.ones(3)
        dist.all_reduce(x, backend=name)
        assert x.tolist() == [dist.get_world_size()] * 3
    print("STARTED", *dist.get_backends(), flush=True)
    dist.destroy_process_group()


def start(*names: str, timeout: Any = 20, device_id: Any = None) -> None:
    """Start, and print the error, if there is one; warnings go to stderr by themselves."""
    try:
        dist.init_process_group(list(names) or None, timeout=timeout, device_id=device_id)
    except dist.McrError as error:
        assert not dist.is_initialized()
        print(f"RAISED {type(error).__name__}: {error}", flush=True)
    else:
        use()


def plugged_in() -> None:
    """Another package has registered its own backend with torch; then start without a name, and through torch."""
    import torch.testing._internal.distributed.multi_threaded_pg  # noqa: F401  registers "threaded"

    for backend in (None, "mcr", "auto"):
        dist.init_process_group(backend, timeout=timedelta(seconds=20))
        use()
    torch_dist.init_process_group("mcr")
    use()


def loaded(rank: str, library: str, *names: str) -> None:
    """One rank has already loaded an Open MPI, which has no PMIx server."""
    if int(rank) == RANK:
        pmix.server_library = lambda _: None
        ctypes.CDLL(library, mode=os.RTLD_GLOBAL)
    start(*names)


def elsewhere(rank: str, *names: str) -> None:
    """One rank reports another host for the backends of one host."""
    if int(rank) == RANK:
        shm.LIBRARY.domain = lambda: "elsewhere"  # type: ignore[method-assign]
    start(*names)


def networks(number: str) -> None:
    """Every host has so many networks."""
    launcher.networks = lambda: int(number)
    start()


def within_hosts() -> None:
    """Print the backends of groups within this rank's host, of which one names its own, and of groups across hosts.

    Calls on all of them are right, and a pending one is complete at the end.
    """
    dist.init_process_group(timeout=20)
    pairs = [[0, 1], [2, 3]]
    torch_dist.barrier()
    made = [
        dist.new_subgroups(2)[0],
        dist.split_group(None, pairs),
        torch_dist.new_subgroups_by_enumeration(pairs)[0],
        dist.new_subgroups(2, backend="mpi")[0],
        dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])[0],
        dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])[0],
    ]
    x = torch.ones(3)
    for group in made:
        for name in dist.get_backends(group):
            dist.all_reduce(x, group=group, backend=name)
        dist.all_reduce(x, group=group)
    assert x.tolist() == [2.0 ** sum(len(dist.get_backends(group)) + 1 for group in made)] * 3
    print("WITHIN " + "; ".join(" ".join(dist.get_backends(group)) for group in made), flush=True)
    work = dist.all_reduce(x, group=made[0], async_op=True)
    dist.synchronize()
    assert work.is_completed()
    dist.destroy_process_group()


def broken_parts(ranks: str) -> None:
    """Some ranks cannot connect groups of a part of the ranks on shared memory."""

    def argument(_: object, group: dist.ProcessGroup) -> None:
        if group.size() < dist.runtime.state.current().launch.size:
            raise dist.BackendUnavailableError("no memory left on this host")

    if str(RANK) in ranks.split(","):
        shm.LIBRARY.argument = argument  # type: ignore[method-assign,assignment]
    start()


def fails_after_parts(rank: str) -> None:
    """Hierarchies fail on one rank once their parts are connected; print how many parts are left."""
    connect = communicators.connect

    def fail(group: Any, names: Any, **given: Any) -> None:
        connect(group, names, **given)
        if any(name.startswith("hier(") for name in names):
            raise OSError(24, "no more of them")

    if int(rank) == RANK:
        communicators.connect = fail
    dist.init_process_group(timeout=60)
    print("PARTS", len(state.current().of("default").shadows), flush=True)
    use()


def ends_between(rank: str, at: str) -> None:
    """A rank ends when it has connected its part of a hierarchy, and the others wait for its word."""
    names = "gloo,hier(shm,gloo)"
    if at == "group":
        dist.init_process_group("gloo", timeout=60)
    agree = Attempt.agree

    def end(attempt: Attempt, what: str, *given: Any, **named: Any) -> Any:
        if what.startswith("part/"):
            os._exit(1)
        return agree(attempt, what, *given, **named)

    if int(rank) == RANK:
        mock.patch.object(Attempt, "agree", end).start()
    try:
        if at == "group":
            dist.new_group(backend=names)
        else:
            dist.init_process_group(names, timeout=60)
    except dist.McrError as error:
        print(f"RAISED {type(error).__name__}: {error}", flush=True)
    os._exit(0)


def ends_before(rank: str, name: str) -> None:
    """A rank ends before the others can connect to it in a new group."""
    dist.init_process_group("gloo", timeout=60)
    if int(rank) == RANK:
        registry.describe(name).argument = lambda *_: os._exit(1)  # type: ignore[method-assign]
    try:
        dist.new_group(backend=name)
    except dist.McrError as error:
        print(f"RAISED {type(error).__name__}: {error}", flush=True)
    os._exit(0)


def no_descriptors(*names: str) -> None:
    """The system refuses rank 0 a file while it connects shared memory."""

    def argument(*_: object) -> None:
        raise OSError(24, "Too many open files")

    if RANK == 0:
        shm.LIBRARY.argument = argument  # type: ignore[method-assign,assignment]
    start(*names, timeout=3)


def wrong_argument(rank: str, name: str, value: str) -> None:
    """One rank gives an argument that is wrong."""
    start("gloo", **{name: value} if int(rank) == RANK else {})


def fails(rank: str) -> None:
    """One rank alone fails at the end of its start, while the others begin to communicate."""

    def fail(_: object) -> None:
        raise LookupError("on purpose")

    if int(rank) == RANK:
        start_log.started = fail
    try:
        dist.init_process_group("shm", timeout=60)
        dist.all_reduce(torch.ones(3))
    except (dist.McrError, LookupError) as error:
        print(f"RAISED {type(error).__name__}: {error}", flush=True)
        os._exit(0)


def on_rank(rank: str, variable: str, value: str, *names: str) -> None:
    """One rank sets a variable that the others do not."""
    if int(rank) == RANK:
        os.environ[variable] = value
    start(*names)


def late(rank: str, name: str) -> None:
    """One rank does not come to the start of the backend."""
    if int(rank) == RANK:
        communicators.connect = lambda *_, **__: time.sleep(60)  # type: ignore[assignment]
    try:
        dist.init_process_group(name, timeout=2)
    except dist.McrError as error:
        print(f"RAISED {type(error).__name__}: {error}", flush=True)
        time.sleep(3)  # the store is rank 0's, and others may still ask it
        os._exit(3)


def again(late: str, kind: str, folder: str) -> None:
    """Try until the ranks meet. One rank comes when the others have given up once."""
    given_up = [Path(folder, f"given up {rank}") for rank in range(int(os.environ["WORLD_SIZE"]))]
    others = [mark for rank, mark in enumerate(given_up) if rank != int(late)]
    while int(late) == RANK and not all(mark.exists() for mark in others):
        time.sleep(0.02)
    method = f"file://{folder}/store" if kind == "file" else None
    while not dist.is_initialized():
        try:
            dist.init_process_group("gloo", init_method=method, timeout=2)
        except dist.McrError as error:
            print(f"RAISED {type(error).__name__}: {error}", flush=True)
            given_up[RANK].touch()
    use()


def leaves() -> None:
    """Rank 0, which does not hold the store, ends its process; later, a call of the others times out."""
    store = torch_dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False)
    dist.init_process_group("shm", store=store, rank=RANK, world_size=3, timeout=30)
    group = dist.new_group([1, 2])
    if RANK == 0:
        store.set("process", str(os.getpid()))
        dist.destroy_process_group()
        return
    process = int(store.get("process"))
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(process, 0)
            time.sleep(0.02)
    if RANK == 2:
        store.get("timed out")
        os._exit(0)
    try:
        dist.all_reduce(torch.ones(3), group=group, timeout=1)
    except dist.McrError as error:
        print(f"RAISED {type(error).__name__}: {error}", flush=True)
    store.set("timed out", "")
    os._exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
