# SPDX-License-Identifier: Apache-2.0
"""A cluster of hosts on this machine: network namespaces with NICs of given rates, and programs that run in them."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from lab import cleaning, plan
from lab.job import Job, Sink
from lab.needs import missing
from lab.plan import LabError, Shape
from mcr_dl.testing.pool import without_launcher

_COMMAND_SECONDS = 30.0
_BOOT_SECONDS = 10.0
_printing = threading.Lock()


def show(rank: int, line: str) -> None:
    """Print a rank's line with its rank in front."""
    with _printing:
        print(f"[{rank}] {line}", flush=True)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM in the main thread: an interrupted removal would leave things behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Lab:
    """Hosts with NICs, each NIC plugged into the switch of its number, as a context manager.

    Programs end when the thread that started them ends. Leaving the block, for whatever reason, ends all programs
    and removes everything; `lab clean` removes the remains of a lab that was itself killed.

    Args:
        hosts: the number of hosts.
        ranks_per_host: the number of ranks of a job on each host.
        nics: the rate of each of a host's NICs in Mbit/s, in each direction.
        multi_rail: every library may use all NICs; otherwise gloo uses the first and MPI the second.
        cores: the largest number of cores for each host; by default the hosts share all cores.

    Raises:
        LabError: something is missing on this machine, or cannot be made; the text says what.
    """

    def __init__(
        self,
        hosts: int = 2,
        ranks_per_host: int = 1,
        nics: Sequence[int] = (400, 200),
        *,
        multi_rail: bool = False,
        cores: int | None = None,
    ) -> None:
        self.shape = Shape(hosts, ranks_per_host, tuple(nics))
        self.multi_rail = multi_rail
        self.cores = cores
        lacking = missing()
        if lacking:
            raise LabError(f"a lab cannot be made here; missing: {'; '.join(lacking)}")
        self.id = secrets.token_hex(3)
        self._holders: dict[int, subprocess.Popen[bytes]] = {}
        self._jobs: list[Job] = []
        self._inodes: dict[int, int] = {}

    def __enter__(self) -> Lab:
        try:
            cleaning.record(self.id, f"{self.shape}, {'/'.join(map(str, self.shape.rates))} Mbit/s")
            for command in plan.network(self.id, self.shape):
                self._do(command)
            for host in range(self.shape.hosts):
                self._boot(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, command: Sequence[str]) -> None:
        found = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
        if found.returncode != 0:
            raise LabError(f"`{' '.join(command)}` failed with {found.returncode}: {found.stderr.strip()}")

    def _boot(self, host: int) -> None:
        environment = {**os.environ, plan.MARK: self.id}
        command = plan.boot(self.id, self.shape, host)
        holder = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        self._holders[host] = holder
        assert holder.stdout is not None
        with holder.stdout:
            ready, _, _ = select.select([holder.stdout], [], [], _BOOT_SECONDS)
            if not ready or holder.stdout.readline() != b"ready\n":
                raise LabError(f"host {host} does not come up (exit code {holder.poll()})")
        number = cleaning.inode(plan.host_space(self.id, host))
        assert number is not None
        self._inodes[host] = number

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None, *, sink: Sink = show) -> Job:
        """Run a command as every rank of every remaining host, in this folder; `sink` gets each line of output.

        Raises:
            LabError: no host is left.
        """
        ranks = [rank for rank in range(self.shape.ranks) if self._host(rank) in self._holders]
        if not ranks:
            raise LabError("no host is left to run on")
        common = {
            **without_launcher(),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **plan.library_settings(self.shape, multi_rail=self.multi_rail),
            **self._sharing(),
            **(environment or {}),
            plan.MARK: self.id,
        }
        port = plan.FIRST_PORT + len(self._jobs)
        processes: dict[int, subprocess.Popen[bytes]] = {}
        job: Job | None = None
        try:
            for rank in ranks:
                own = plan.rank_environment(self.shape, rank, port)
                processes[rank] = self._popen(self._host(rank), command, {**common, **own})
            job = Job(processes, {rank: self._host(rank) for rank in ranks}, sink)
        finally:
            if job is None:
                for process in processes.values():
                    process.kill()
        self._jobs.append(job)
        return job

    def _cores(self, host: int) -> list[int]:
        return plan.cores_of(self.shape, host, plan.available_cores(), self.cores)

    def _sharing(self) -> dict[str, str]:
        """MPI's settings for hosts with more ranks than cores: programs without mcr_dl do not make them."""
        if self.shape.ranks_per_host <= len(self._cores(0)):
            return {}
        from mcr_dl.libraries import mpi

        return mpi.SHARED_CORES

    def _host(self, rank: int) -> int:
        return rank // self.shape.ranks_per_host

    def _popen(self, host: int, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            plan.enter(self._holders[host].pid, self._cores(host), str(Path.cwd()), command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def cut(self, host: int, nic: int) -> None:
        """Pull the cable of a NIC: from now on both sides receive nothing, and nothing notifies them."""
        self._check(host, nic)
        self._do(plan.link(self.id, host, nic, "down"))

    def restore(self, host: int, nic: int) -> None:
        """Put the cable back."""
        self._check(host, nic)
        self._do(plan.link(self.id, host, nic, "up"))

    def set_rate(self, host: int, nic: int, rate: int) -> None:
        """Change the rate of a NIC, in Mbit/s."""
        self._check(host, nic)
        for command in plan.rate(self.id, host, nic, rate):
            self._do(command)

    def remove_host(self, host: int) -> None:
        """Pull a host's plug: its cables first, so that its end is not noticed, then all its processes."""
        for nic in range(len(self.shape.rates)):
            self.cut(host, nic)
        cleaning.kill([self._inodes[host]])
        self._holders.pop(host).wait()

    def _check(self, host: int, nic: int) -> None:
        if host not in self._holders:
            raise LabError(f"host: expected one of {sorted(self._holders)}, got {host}")
        if not 0 <= nic < len(self.shape.rates):
            raise LabError(f"nic: expected 0 to {len(self.shape.rates) - 1}, got {nic}")

    def close(self) -> None:
        """End everything and remove it. May be called again."""
        with undisturbed():
            try:
                cleaning.clean(self.id)
            except LabError as error:
                print(f"lab {self.id}: {error}; `lab clean` removes what is left", file=sys.stderr)
                raise
            finally:
                for holder in self._holders.values():
                    holder.poll()
                for job in self._jobs:
                    job.running()  # collects their exit codes
