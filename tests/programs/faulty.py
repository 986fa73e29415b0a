# SPDX-License-Identifier: Apache-2.0
"""A job with a fault on rank 1: faulty.py BACKEND PHASE FAULT.

BACKEND may be several with semicolons, of which the last one makes the calls: "gloo;mpi;stripe(gloo,mpi)". PHASE is the
state of the other ranks: ``idle`` (their next call meets the fault), ``collective`` (a blocking one), ``future`` (an
asynchronous one that no thread waits for), ``storm`` (many asynchronous ones of several groups). A rank that gets an
exception prints it and exits with 3. ``backward``: training steps of DistributedDataParallel; ``sparse``: of one with
sparse gradients. For measurements, the
times of the fault, of the call that meets it, and of its exception are printed too.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from itertools import count

import torch
from activity import once_in_a_call
from torch.nn.parallel import DistributedDataParallel

import mcr_dl as dist

LIMIT = timedelta(seconds=float(os.environ.get("FAULTY_LIMIT", "1")))
STORM_LIMIT = timedelta(seconds=float(os.environ.get("FAULTY_LIMIT", "6")))  # on a busy machine, calls take a second
START = timedelta(seconds=30)  # of the calls before the fault
DELAY = float(os.environ.get("FAULTY_DELAY", "0.3"))  # seconds; by then the other ranks are inside the call, or outside
REPORTED = 3

began = 0.0  # the start of the latest call


def say(what: str, when: float) -> None:
    """Print a time at once."""
    print(f"{what} {when}", flush=True)


def fault(kind: str) -> None:
    """Cause the fault."""
    say("fault", time.monotonic())
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "raise":
        raise ValueError("bad batch")
    if kind == "exit":
        sys.exit(0)
    if kind == "sleep":
        time.sleep(60)


def storm(fails: str | None, backend: str) -> None:
    """Calls on two groups, repeatedly; the fault comes in the middle of one round."""
    global began
    groups = [dist.group.WORLD, dist.new_group(list(range(dist.get_world_size())))]
    tensors = [torch.ones(size) for size in (1, 100, 30000, 100000)]
    begin = time.monotonic()
    for turn in count():
        began = time.monotonic()
        works = [
            dist.all_reduce(x, group=group, async_op=True, timeout=STORM_LIMIT, backend=backend)
            for x in tensors
            for group in groups
        ]
        if fails is not None and time.monotonic() > begin + DELAY and turn > 2:
            fault(fails)
        for work in works:
            work.wait()
        for x in tensors:
            x.fill_(1)


def train(fails: str | None, sparse: bool) -> None:
    """Training steps of DistributedDataParallel; the fault comes before one of its backward passes."""
    layers = [torch.nn.Linear(200, 200) for _ in range(4)]
    table = torch.nn.EmbeddingBag(50, 200, sparse=True)
    model = DistributedDataParallel(table if sparse else torch.nn.Sequential(*layers), bucket_cap_mb=1)
    for step in count():
        loss = model(torch.arange(8).view(1, 8) if sparse else torch.ones(8, 200)).square().mean()
        if fails is not None and step > 2:
            fault(fails)
        if fails is None and step == 3:  # in which rank 1 has its fault
            once_in_a_call(print, "WAITING")
        loss.backward()  # type: ignore[no-untyped-call]


def main(backend: str, phase: str, kind: str) -> None:
    """One rank."""
    global began
    names = backend.split(";")
    backend = names[-1]
    dist.init_process_group(names, timeout=START)
    failing = kind if dist.get_rank() == 1 and kind != "none" else None
    x = torch.ones(1000)
    dist.all_reduce(x, backend=backend)
    print("ready", flush=True)
    if phase == "storm":
        storm(failing, backend)
    if phase in ("backward", "sparse"):
        train(failing, phase == "sparse")
    if failing is not None:
        if phase in ("collective", "future"):
            time.sleep(DELAY)
        fault(failing)
    if phase == "idle":
        time.sleep(DELAY)
    began = time.monotonic()
    say("began", began)
    if phase == "future":
        work = dist.all_reduce(x, async_op=True, timeout=LIMIT, backend=backend)
        while not work.is_completed():
            time.sleep(0.01)
        work.wait()
    else:
        dist.all_reduce(x, timeout=LIMIT, backend=backend)
    if kind != "none":
        raise AssertionError("a call without rank 1 has ended well")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except dist.McrError as error:
        say("raised", time.monotonic())
        say("began", began)
        print(f"REPORTED {type(error).__name__}: {error}", flush=True)
        sys.exit(REPORTED)
