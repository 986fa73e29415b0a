# SPDX-License-Identifier: Apache-2.0
"""Messages that are cut over two libraries, on one rank."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as torch_dist

import mcr_dl
from mcr_dl import _C, InvalidArgumentError, NotInitializedError
from mcr_dl.measure import shares
from mcr_dl.measure.cases import Prepared
from mcr_dl.measure.timing import Statistics, TorchControl
from mcr_dl.testing.calls import Case
from mcr_dl.testing.expect import expect
from mcr_dl.tuning import worker
from mcr_dl.tuning._journal import Plan, Progress, Unit
from ranks import operations, session

BACKENDS = ("mpi", "gloo", "shm", "stripe(gloo,mpi)", "stripe(mpi,gloo)", "stripe(shm,mpi)")


def run_all(cases: Sequence[Case]) -> int:
    """Run the cases; returns how many there were."""
    session.start(*BACKENDS)
    session.groups()
    for case in cases:
        operations.run_supported(case)
    return len(cases)


def mixed() -> None:
    """Cut calls, mixed with others on the same libraries and groups, and in any order of waiting."""
    session.start(*BACKENDS)
    size = mcr_dl.get_world_size()
    groups = [group for group in session.groups().values() if group is not None and size == group.size()]
    for turn in range(6):
        works, tensors = [], []
        for group in groups:
            for backend in ("mpi", "stripe(gloo,mpi,67)", "gloo", "stripe(mpi,gloo,25)", "stripe(gloo,mpi)"):
                tensors.append(torch.full((40_000,), float(turn)))
                works.append(mcr_dl.all_reduce(tensors[-1], group=group, backend=backend, async_op=True))
                tensors.append(torch.full((40_000,), float(turn)))
                mcr_dl.all_reduce(tensors[-1], group=group, backend=backend)
        for work in works[:: -1 if turn % 2 else 1]:
            work.wait()
        for tensor in tensors:
            assert tensor.eq(turn * size).all()


def choices() -> list[str]:
    """The candidates of `auto` for an operation that is cut and for one that is not."""
    session.start(*BACKENDS)
    for op in ("all_reduce", "gather"):
        told = str(mcr_dl.explain(op, 1 << 20))
        assert ("stripe(gloo,mpi,67)" in told) == (op == "all_reduce"), told
    world = _C.world()
    assert world is not None
    return world.candidates


def any_share() -> None:
    """Shares without measurements, in calls of different forms."""
    session.start(*BACKENDS)
    mcr_dl.set_passes(["log", "fuse", "compress"])
    size = mcr_dl.get_world_size()
    for share in (1, 40, 99):
        name = f"stripe(gloo,mpi,{share})"
        tensor = torch.ones(40_000)
        mcr_dl.all_reduce(tensor, backend=name)
        mcr_dl.all_reduce(tensor, backend=f"gloo+mpi:{share}", async_op=True).wait()
        with mcr_dl.use(name):
            mcr_dl.all_reduce(tensor)
        mcr_dl.all_reduce(tensor, backend=f"{name}|bf16")
        assert tensor.eq(size**4).all(), name
        blocks = torch.full((size * 20_000,), -1.0)
        mcr_dl.all_gather_into_tensor(blocks, torch.full((20_000,), float(mcr_dl.get_rank())), backend=name)
        assert blocks.view(size, -1).eq(torch.arange(size).view(-1, 1)).all(), name
        assert [record.backend for record in mcr_dl.log_records()[-5:]] == [name] * 5
    mcr_dl.set_passes([])


_THREE_TO_ONE = {"gloo": 3.0, "mpi": 1.0}  # µs per byte


def computed_share() -> None:
    """A stripe's shares follow from its parts' costs, and explain() states them."""
    session.start(*BACKENDS)
    world = _C.world()
    assert world is not None
    times = {name: {size: cost * size for size in (1 << 14, 1 << 22)} for name, cost in _THREE_TO_ONE.items()}
    assert mcr_dl.explain("all_reduce", 1 << 20).shares["stripe(gloo,mpi)"] == 0.5
    shares.Shares([world], TorchControl()).give(shares.Kind("all_reduce", "float32", "cpu", False), times)
    found = mcr_dl.explain("all_reduce", 1 << 20)
    assert abs(found.shares["stripe(gloo,mpi)"] - 0.25) < 0.01, found.shares
    assert f"stripe(gloo,mpi): {found.shares['stripe(gloo,mpi)']:.1%} on gloo" in str(found)
    assert mcr_dl.explain("all_reduce", 4).shares == {}
    tensor = torch.ones(1 << 18)
    mcr_dl.all_reduce(tensor, backend="stripe(gloo,mpi)")
    assert tensor.eq(mcr_dl.get_world_size()).all()
    world._tune([], True, [], [], [])


def tuned_shares(plan: Plan, progress: Progress, journal: Path, limit: float) -> int:
    """worker.work() where gloo seems to be three times as slow as mpi: stripes are timed with the shares for that."""
    given: list[dict[str, list[int]]] = []
    cut: set[str] = set()
    give, results = shares.Shares.give, worker.Worker.results

    def give_other(self: shares.Shares, kind: shares.Kind, times: Mapping[str, Mapping[int, float]]) -> None:
        given.append({name: sorted(curve) for name, curve in times.items()})
        give(self, kind, {name: {size: _THREE_TO_ONE[name] * size for size in curve} for name, curve in times.items()})

    def check(self: worker.Worker, unit: Unit, part: dict[str, Prepared], found: dict[str, Statistics]) -> None:
        for name, prepared in part.items():
            if shares.computes(name):
                told = self.group._explain(unit.operation, prepared.nbytes, unit.dtype, "SUM", "cpu", unit.async_op)
                assert abs(told["shares"].get(name, 250) - 250) < 10, told  # small calls are not cut
                cut.update(told["shares"])
        results(self, unit, part, found)

    shares.Shares.give, worker.Worker.results = give_other, check  # type: ignore[method-assign]
    code = worker.work(plan, progress, journal, limit)
    assert cut == {"stripe(gloo,mpi)"}
    assert given == [{"gloo": list(unit.sizes), "mpi": list(unit.sizes)} for unit in plan.units], given
    return code


PAIRS = (("gloo", "stripe(gloo,mpi)"), ("mpi", "stripe(mpi,gloo)"), ("stripe(gloo,mpi)", "stripe(mpi,gloo)"))


def fused_in_any_order() -> None:
    """Held calls on backends that share a communicator, waited for in another order on each rank: right values."""
    session.start(*BACKENDS)
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    mcr_dl.set_passes([mcr_dl.passes.Fuse(hold_microseconds=60_000_000)])
    for turn in range(4):
        for pair in PAIRS:
            tensors = [torch.full((8,), value) for value in (1.0, 100.0)]
            calls = zip(tensors, pair, strict=True)
            works = [mcr_dl.all_reduce(tensor, backend=backend, async_op=True) for tensor, backend in calls]
            for work in works[:: -1 if (rank + turn) % 2 else 1]:
                work.wait()
            assert [tensor.unique().tolist() for tensor in tensors] == [[size], [100 * size]], pair
    mcr_dl.set_passes([])


def compressed_in_any_order() -> None:
    """Exchanges after the first ones, which end in another order on each rank: right values."""
    session.start(*BACKENDS)
    rank, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    mcr_dl.set_passes(["compress"])
    pace = random.Random(rank)
    for turn in range(100):
        pair = PAIRS[turn % len(PAIRS)]
        tensors = [torch.full((40_000,), value) for value in (1.0, 100.0)]
        calls = zip(tensors, pair, strict=True)
        works = [mcr_dl.all_reduce(tensor, backend=name, codec="bf16", async_op=True) for tensor, name in calls]
        if pace.random() < 0.5:
            time.sleep(pace.random() * 0.002)
        for work in works[:: -1 if (rank + turn) % 2 else 1]:
            work.wait()
        assert [tensor.unique().tolist() for tensor in tensors] == [[size], [100 * size]], (turn, pair)
    mcr_dl.set_passes([])


def ends() -> None:
    """When a library ends, calls that are cut over it end too; the rest continues."""
    session.start("mpi", "gloo", "stripe(gloo,mpi)")
    mcr_dl.finalize(["gloo"])
    assert mcr_dl.get_backends() == ["mpi"]
    tensor = torch.ones(40_000)
    mcr_dl.all_reduce(tensor)
    assert tensor.eq(mcr_dl.get_world_size()).all()
    expect(NotInitializedError, lambda: mcr_dl.all_reduce(tensor, backend="stripe(gloo,mpi)"), "stripe(gloo,mpi)")


def ends_in_a_group() -> None:
    """Also calls of a group whose stripe is not among the job's backends."""
    session.start("mpi", "gloo")
    group = mcr_dl.new_group(backend=["mpi", "gloo", "stripe(gloo,mpi)"])
    mcr_dl.finalize(["gloo"])
    for each in (group, mcr_dl.split_group(group, [list(range(mcr_dl.get_world_size()))])):
        assert mcr_dl.get_backends(each) == ["mpi"]
        tensor = torch.ones(40_000)
        mcr_dl.all_reduce(tensor, group=each)
        assert tensor.eq(mcr_dl.get_world_size()).all()


def wrong_names() -> None:
    """The parts of a name must exist, must be two, and must be known; the error says what was expected."""
    session.stop()
    first = "expected 'gloo' before it"
    expect(InvalidArgumentError, lambda: mcr_dl.init_process_group(["mpi", "stripe(gloo,mpi)"]), first)
    expect(InvalidArgumentError, lambda: mcr_dl.init_process_group("stripe(gloo,mpi),gloo,mpi"), first)
    for name, texts in WRONG.items():
        expect(InvalidArgumentError, lambda n=name: mcr_dl.init_process_group(["gloo", "mpi", n]), "backend: ", *texts)
    session.start(*BACKENDS)
    expect(InvalidArgumentError, lambda: mcr_dl.new_group(backend="stripe(gloo,mpi)"), first)
    tensor = torch.ones(40_000)
    for name, texts in WRONG.items():
        if "brings its variants" not in texts:
            expect(InvalidArgumentError, lambda n=name: mcr_dl.all_reduce(tensor, backend=n), "backend: ", *texts)
    for name in ("stripe(gloo,mpi)|nonsense", "stripe(gloo,mpi,40)|nonsense"):
        expect(InvalidArgumentError, lambda n=name: mcr_dl.all_reduce(tensor, backend=n), name.partition("|")[2])
    expect(
        NotInitializedError, lambda: mcr_dl.all_reduce(tensor, backend="stripe(gloo,null)"), "not named", "(gloo,mpi)"
    )
    assert tensor.eq(1).all()
    mcr_dl.all_reduce(tensor, backend="stripe(gloo,mpi,67)")
    assert tensor.eq(mcr_dl.get_world_size()).all()


_SHARE = "expected a share of 1 to 99 percent, a whole number, for gloo in place of "
WRONG = {
    "gloo+gloo": ["expected two different backends", "got 'gloo+gloo'"],
    "stripe(gloo,gloo)": ["expected two different backends"],
    "gloo+mip": ["unknown name 'mip' in 'gloo+mip'"],
    "stripe(gloo,mip)": ["unknown name 'mip' in 'stripe(gloo,mip)'"],
    "gloo+": ["expected the name of a backend in place of ''"],
    "gloo+mpi+null": ["expected two backends, as stripe(gloo,mpi)"],
    "strip(gloo,mpi)": [
        "expected stripe(FIRST,SECOND), hier(INNER,OUTER) or themis(INNER,OUTER), got 'strip(gloo,mpi)'"
    ],
    "stripe(gloo,mpi": ["expected ')' at the end"],
    "stripe(gloo,mpi,0)": [_SHARE + "'0'"],
    "stripe(gloo,mpi,100)": [_SHARE + "'100'"],
    "stripe(gloo,mpi,67.5)": [_SHARE + "'67.5'"],
    "stripe(gloo,mpi,half)": [_SHARE + "'half'"],
    "gloo+mpi:-1": [_SHARE + "'-1'"],
    "stripe(gloo,mpi,40)": ["expected a backend", "brings its variants"],
    "stripe(gloo,mpi,67)": ["expected a backend", "brings its variants"],
    "gloo+mpi:67": ["expected a backend", "brings its variants"],
}


def spellings(settings: Sequence[str | Sequence[str]]) -> None:
    """Old and new names mean the same candidates in all places that take a name."""
    for setting in settings:
        session.stop()
        mcr_dl.init_process_group(setting)
        assert mcr_dl.get_backends() == ["mpi", "gloo", "stripe(gloo,mpi)"]
        world = _C.world()
        assert world is not None
        candidates = world.candidates
        group = mcr_dl.new_group(backend="gloo,mpi, gloo+mpi")
        assert mcr_dl.get_backends(group) == ["gloo", "mpi", "stripe(gloo,mpi)"]
        made = torch_dist.new_group(backend="mcr", pg_options=mcr_dl.Options(["gloo", "mpi", "gloo+mpi"]))
        assert mcr_dl.get_backends(made) == ["gloo", "mpi", "stripe(gloo,mpi)"]
        mcr_dl.set_passes(["log", "compress"])
        for name, wanted in SPELLINGS.items():
            tensor = torch.ones(40_000)
            mcr_dl.all_reduce(tensor, backend=name)
            with mcr_dl.use(name):
                mcr_dl.all_reduce(tensor)
                torch_dist.all_reduce(tensor)
            assert tensor.eq(mcr_dl.get_world_size() ** 3).all(), name
            mcr_dl.all_reduce(tensor, backend=f"{name}|bf16")
            records = mcr_dl.log_records()[-4:]
            assert {record.backend for record in records} == {wanted}, records
            assert [record.codec for record in records] == [None, None, None, "bf16"]
            assert wanted in candidates
        mcr_dl.synchronize("gloo+mpi")
        assert mcr_dl.get_rank("gloo+mpi") == mcr_dl.get_rank("stripe(gloo,mpi)") == mcr_dl.get_rank()
        expect(InvalidArgumentError, lambda: mcr_dl.use("mpi|bf16").__enter__(), "without a codec")
        expect(
            InvalidArgumentError,
            lambda: mcr_dl.all_reduce(torch.ones(3), backend="mpi|bf16", codec="int8"),
            "codec: expected no codec",
        )
        mcr_dl.finalize(["gloo+mpi"])
        assert mcr_dl.get_backends() == ["mpi", "gloo"]


SPELLINGS = {
    "mpi": "mpi",
    "gloo+mpi": "stripe(gloo,mpi)",
    "stripe(gloo,mpi)": "stripe(gloo,mpi)",
    "stripe( gloo, mpi )": "stripe(gloo,mpi)",
    "gloo+mpi:67": "stripe(gloo,mpi,67)",
    "stripe(gloo,mpi,67)": "stripe(gloo,mpi,67)",
    "gloo+mpi:25": "stripe(gloo,mpi,25)",
}


def by_table(path: str, rules: str, sizes: Sequence[int]) -> list[str]:
    """The choices of `auto` by a table and rules, and its output."""
    session.stop()
    os.environ["MCR_DL_TUNE"] = rules
    os.environ["MCR_DL_BACKENDS"] = "gloo,mpi,gloo+mpi"
    try:
        mcr_dl.init_process_group(tuning_table=path)
    finally:
        del os.environ["MCR_DL_TUNE"], os.environ["MCR_DL_BACKENDS"]
    mcr_dl.set_passes(["log"])
    chosen = []
    for size in sizes:
        tensor = torch.ones(size // 4)
        mcr_dl.all_reduce(tensor)
        assert tensor.eq(mcr_dl.get_world_size()).all()
        told = mcr_dl.explain("all_reduce", size)
        assert told.candidate == mcr_dl.log_records()[-1].backend
        assert not any("+" in name for name in told.predicted_us)
        chosen.append(told.candidate)
    return chosen
