# SPDX-License-Identifier: Apache-2.0
"""The cost that MCR-DL adds to a call of the MPI library.

One pair of processes, one MPI library, interleaved blocks: a C loop of MPI calls, mcr_dl, mpi4py, and (separately, as
it has its own threads) torch.distributed on gloo. Medians over blocks; the cost is the median of the differences of
neighboring blocks. Run by ``make bench``; writes ``docs/results/overhead.{json,md}``.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, TimeRemainingColumn

import script
from overhead_report import markdown, summarize

HERE = Path(sys.prefix)
SIZES = [4 * 4**i for i in range(12)]  # 4 B ... 16 MiB
OPS = ("all_reduce", "all_to_all_single", "broadcast", "all_gather_single")
ASYNC = "all_reduce async + wait"
BLOCK_SECONDS = 0.008
Blocks = dict[str, list[float]]


def launch(arguments: list[str], launcher: str) -> int:
    """Start two ranks of this script under MPICH's mpiexec or torchrun."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MCR_DL_MPI_LIB": "mpich", "MCR_BENCH_RANK": "1"}
    start = {
        "mpiexec": [str(HERE / "bin" / "mpiexec"), "-n", "2", sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    }[launcher]
    return subprocess.run([*start, __file__, *arguments], env=environment, check=False).returncode


def compile_loop(folder: str) -> str:
    """Compile the C loop against the MPI headers of this Python's environment."""
    library = f"{folder}/mpi_loop.so"
    compiler = os.environ.get("CC", "cc")
    source = str(Path(__file__).with_name("mpi_loop.c"))
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", f"-I{HERE}/include", source, "-o", library], check=True)
    return library


def timed(call: Callable[[], object], calls: int) -> float:
    """Seconds per call of a function without arguments."""
    return timeit.Timer(call).timeit(calls) / calls


class Pair:
    """The two ranks with all the ways to make one call."""

    def __init__(self, loop: Any) -> None:
        import torch
        from mpi4py import MPI

        import mcr_dl

        self.torch, self.mcr, self.mpi, self.loop = torch, mcr_dl, MPI, loop
        self.comm = MPI.COMM_WORLD.Dup()
        self.rank = mcr_dl.get_rank()
        self.size = mcr_dl.get_world_size()
        self.mcr.barrier()

    def ways(self, op: str, nbytes: int) -> dict[str, Callable[[int], float]]:
        """Name -> function from a number of calls to seconds per call."""
        torch, mcr, size = self.torch, self.mcr, self.size
        count = max(nbytes // 4, size if op == "all_to_all_single" else 1)
        source = torch.ones(count)
        target = torch.ones(count * (size if op == "all_gather_single" else 1))
        a, b = source.numpy(), target.numpy()
        index = [*OPS, ASYNC].index(op)

        def in_c(calls: int) -> float:
            return float(self.loop.mcr_loop(index, calls, source.data_ptr(), target.data_ptr(), count * 4))

        mpi, comm, largest = self.mpi, self.comm, mcr.ReduceOp.MAX
        ours, theirs = {
            "all_reduce": ("f(out, op)", "f(place, b, op)"),
            "all_to_all_single": ("f(out, source)", "f(a, b)"),
            "broadcast": ("f(out, 0)", "f(b, 0)"),
            "all_gather_single": ("f(out, source)", "f(a, b)"),
            ASYNC: ("f(out, op, async_op=True).wait()", "f(place, b, op).Wait()"),
        }[op]
        theirs_name = {
            "all_reduce": "Allreduce",
            "all_to_all_single": "Alltoall",
            "broadcast": "Bcast",
            "all_gather_single": "Allgather",
            ASYNC: "Iallreduce",
        }[op]
        function = getattr(mcr, "all_reduce" if op == ASYNC else op)
        peer = {"f": getattr(comm, theirs_name), "a": a, "b": b, "place": mpi.IN_PLACE, "op": mpi.MAX}
        return {
            "C": in_c,
            "mcr_dl": script.timed_statement(ours, {"f": function, "out": target, "source": source, "op": largest}),
            "mpi4py": script.timed_statement(theirs, peer),
        }

    def agreed(self, value: float) -> float:
        """Rank 0's value on both ranks."""
        box = self.torch.tensor([value], dtype=self.torch.float64)
        self.mcr.broadcast(box, 0)
        return float(box)


def measure(pair: Pair, op: str, nbytes: int, blocks: int) -> Blocks:
    """Interleaved blocks of all ways, in an order that is shuffled for each round and equal on both ranks."""
    ways = pair.ways(op, nbytes)
    for way in ways.values():
        way(5)
    calls = max(3, int(BLOCK_SECONDS / pair.agreed(ways["C"](20))))
    shuffle = random.Random(nbytes)
    result: Blocks = {name: [] for name in ways}
    for _ in range(blocks):
        order = list(ways)
        shuffle.shuffle(order)
        for name in order:
            result[name].append(ways[name](calls))
    return result


def measure_gloo(pair: Pair, sizes: list[int], blocks: int) -> dict[int, Blocks]:
    """An all_reduce by torch.distributed's gloo and by mcr_dl's, interleaved."""
    import torch.distributed as torch_dist

    torch, mcr = pair.torch, pair.mcr
    group = torch_dist.new_group(backend="gloo")
    result: dict[int, Blocks] = {}
    for nbytes in sizes:
        target = torch.ones(nbytes // 4)
        ways = {
            "torch.distributed gloo": lambda t=target: torch_dist.all_reduce(t, torch_dist.ReduceOp.MAX, group),
            "mcr_dl gloo": lambda t=target: mcr.all_reduce("gloo", t, mcr.ReduceOp.MAX),
        }
        calls = max(3, int(4 * BLOCK_SECONDS / pair.agreed(timed(ways["mcr_dl gloo"], 10))))
        timings: Blocks = {name: [] for name in ways}
        for _ in range(blocks):
            for name, way in ways.items():
                timings[name].append(timed(way, calls))
        result[nbytes] = timings
    torch_dist.destroy_process_group(group)
    return result


def measure_overlap(pair: Pair, nbytes: int, rounds: int) -> dict[str, dict[str, float]]:
    """How much of an asynchronous all_reduce overlaps with a matrix product that takes about as long."""
    torch, mcr = pair.torch, pair.mcr
    result = {}
    tensor = torch.ones(nbytes // 4)
    left = torch.ones(512, 512)
    for backend in ("mpi", "gloo"):

        def communicate(backend: str = backend) -> None:
            mcr.all_reduce(backend, tensor, mcr.ReduceOp.MAX, async_op=True).wait()

        alone = statistics.median(timed(communicate, 1) for _ in range(rounds))
        products = max(1, int(pair.agreed(alone / timed(lambda: left @ left, 20))))

        def compute(products: int = products) -> None:
            for _ in range(products):
                left @ left

        def both(backend: str = backend, compute: Callable[[], None] = compute) -> None:
            work = mcr.all_reduce(backend, tensor, mcr.ReduceOp.MAX, async_op=True)
            compute()
            work.wait()

        mcr.barrier()
        samples = [(timed(communicate, 1), timed(compute, 1), timed(both, 1)) for _ in range(rounds)]
        comm, comp, together = (statistics.median(column) for column in zip(*samples, strict=True))
        hidden = (comm + comp - together) / min(comm, comp)
        result[backend] = {"communication_s": comm, "compute_s": comp, "both_s": together, "hidden": hidden}
    return result


def measure_memory(pair: Pair, calls: int) -> dict[str, int]:
    """Growth of resident memory over many calls, and the memory of pending operations."""
    torch, mcr = pair.torch, pair.mcr
    tensor = torch.ones(1)
    warm_up = min(calls, 10_000)
    timed(lambda: mcr.all_reduce("mpi", tensor), warm_up)
    timed(lambda: mcr.all_reduce("mpi", tensor, async_op=True).wait(), warm_up)
    before = script.resident()
    timed(lambda: mcr.all_reduce("mpi", tensor), calls)
    blocking = script.resident() - before
    before = script.resident()
    timed(lambda: mcr.all_reduce("mpi", tensor, async_op=True).wait(), calls // 10)
    asynchronous = script.resident() - before
    tensors = [torch.ones(1) for _ in range(warm_up)]
    # The peer comes late, so that none of them can end.
    mcr.barrier()
    before = script.resident()
    works = [mcr.irecv(one, 1 - pair.rank, tag=tag, backend="mpi") for tag, one in enumerate(tensors)]
    outstanding = script.resident() - before
    mcr.barrier("mpi")
    for tag, one in enumerate(tensors):
        mcr.send(one, 1 - pair.rank, tag=tag, backend="mpi")
    for work in works:
        work.wait()
    return {
        "blocking_calls": calls,
        "blocking_growth_bytes": blocking,
        "async_calls": calls // 10,
        "async_growth_bytes": asynchronous,
        "outstanding": len(tensors),
        "outstanding_bytes": outstanding,
    }


def pair_of(library: str) -> Pair:
    """The runtime of this rank, which has started on MPI, and the C loop in that library."""
    from mcr_dl.libraries import mpi

    path = mpi.find().path
    os.environ["MPI4PY_LIBMPI"] = path
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)  # MCR-DL keeps MPI's symbols to itself; the loop needs them
    loop = ctypes.CDLL(library)
    loop.mcr_loop.restype = ctypes.c_double
    loop.mcr_loop.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    loop.mcr_loop_start()
    return Pair(loop)


def start(library: str) -> Pair:
    """One rank."""
    import mcr_dl

    mcr_dl.init_process_group(["mpi", "gloo"], tuning_table="none")  # all on mpi, by its own choice of algorithms
    return pair_of(library)


def measure_small(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Parts of a call, in runtimes of this process alone."""
    import chain
    import choosing

    return {
        "choosing_ns": choosing.measure(choosing.SMOKE_CALLS if given.smoke else choosing.CALLS),
        "chain_ns": chain.measure(chain.SMOKE_CALLS if given.smoke else chain.CALLS),
    }


def run(given: argparse.Namespace) -> None:
    """Run one rank."""
    import mcr_dl
    from mcr_dl.commands.console import Console, bars

    pair = start(given.loop)
    report: dict[str, Any] = {"date": str(date.today()), "machine": script.machine(), "mpi": {}}
    report["launcher"] = given.launcher
    report["libraries"] = f"{mcr_dl.available_backends()['mpi'].removeprefix('ok: ')}, torch {pair.torch.__version__}"
    columns = ("measuring", BarColumn(), TimeRemainingColumn())
    with bars(Console(stderr=True), columns, disable=pair.rank != 0) as progress:
        task = progress.add_task("", total=(len(OPS) + 1) * len(given.sizes) + 4)
        for op in (*OPS, ASYNC):
            report["mpi"][op] = {}
            for nbytes in given.sizes:
                report["mpi"][op][nbytes] = summarize(measure(pair, op, nbytes, given.blocks))
                progress.advance(task)
        gloo = measure_gloo(pair, given.sizes[::2], max(3, given.blocks // 3))
        report["gloo"] = {n: {k: statistics.median(v) * 1e6 for k, v in blocks.items()} for n, blocks in gloo.items()}
        progress.advance(task)
        report["overlap"] = measure_overlap(pair, given.overlap_bytes, given.overlap_rounds)
        progress.advance(task)
        report["memory"] = measure_memory(pair, given.calls)
        progress.advance(task)
        mcr_dl.destroy_process_group()
        report |= measure_small(given)
        progress.advance(task)
    if pair.rank == 0:
        script.publish(given, "overhead", report, markdown)


def main() -> int:
    """Start the ranks, or be one."""
    parser = script.parser(__doc__, reports=True)
    parser.add_argument("--blocks", type=int, default=21, help="rounds of interleaved blocks for each size")
    parser.add_argument("--calls", type=int, default=1_000_000, help="blocking calls of the memory measurement")
    parser.add_argument("--launcher", choices=("mpiexec", "torchrun"), default="mpiexec", help="what starts the ranks")
    parser.add_argument("--loop", help=argparse.SUPPRESS)
    parser.set_defaults(sizes=SIZES, overlap_bytes=16 << 20, overlap_rounds=15)
    sizes = [4, 1024, 65536]
    given = script.parse(parser, blocks=3, calls=100, sizes=sizes, overlap_bytes=1 << 16, overlap_rounds=3)
    if "MCR_BENCH_RANK" in os.environ:
        run(given)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return launch([*sys.argv[1:], "--loop", compile_loop(folder)], given.launcher)


if __name__ == "__main__":
    sys.exit(main())
