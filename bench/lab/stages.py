# SPDX-License-Identifier: Apache-2.0
"""The stages of `make lab`: programs, clusters, time limits and the conditions on results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import ROOT
from lab.plan import Shape

NICS = (400, 200)
SHAPES = (Shape(2, 1, NICS), Shape(4, 1, NICS), Shape(2, 2, NICS))
ALONE = Shape(1, 1, NICS)  # the baseline of scaling
WITHIN = Shape(1, 2, NICS)  # for the table's choices in groups within a host
WORKLOADS = ("moe", "dlrm", "dense")
RAIL_ROWS = ("gloo", "mpi", "gloo+fuse", "mpi+fuse")  # of the runs in which a library has every NIC
SECONDS = {False: "60", True: "50"}  # by multi-rail: a measurement begins no round of all rows that would end later
LIMIT = 420.0  # seconds of a stage: on a quiet machine none takes a third of it
_LIBRARIES = ("gloo", "mpi")

Found = Mapping[str, Any]


def nothing(found: Found, shape: Shape) -> list[str]:
    """The check of stages that accept any figures."""
    del found, shape
    return []


@dataclass(frozen=True)
class Stage:
    """One program as every rank of a cluster. It writes its results to `out` in the folder of results.

    `check` lists the problems of the results, `say` summarizes them.
    """

    name: str
    shape: Shape
    program: Sequence[str]
    out: str
    limit: float
    multi_rail: bool = False
    tuned: bool = False  # auto uses the table of the stage `tune`
    check: Callable[[Found, Shape], list[str]] = nothing
    say: Callable[[Found], str] = field(default=lambda found: f"{len(found)} values")

    @property
    def key(self) -> str:
        """Its name among all stages."""
        return f"{self.shape}-{self.name}"


def check_bandwidth(found: Found, shape: Shape) -> list[str]:
    """Each library must use its own NIC, no NIC may be faster than its rate, and both must overlap."""
    problems = []
    for nic, (rate, seconds) in enumerate(zip(shape.rates, found["tcp"], strict=True)):
        reached = 8e-6 * found["bytes"] / seconds
        if not 0.5 * rate <= reached <= 1.05 * rate:
            problems.append(f"plain TCP on eth{nic}: expected up to {rate} Mbit/s, got {reached:.0f}")
    for nic, library in enumerate(_LIBRARIES):
        sent = found["all_reduce"][library]["sent"]
        if sent[nic] < 0.9 * sum(sent):
            problems.append(f"{library}: expected its bytes on eth{nic}, got {sent} on eth0, eth1")
    seconds = {name: each["seconds"] for name, each in found["all_reduce"].items()}
    if seconds["both at once"] > 0.95 * seconds["one after the other"]:
        problems.append(
            f"gloo and MPI at once take {seconds['both at once']:.2f} s, one after the other "
            f"{seconds['one after the other']:.2f} s: they do not overlap"
        )
    return problems


def rate(found: Found, name: str) -> list[float]:
    """Mbit/s that each NIC of host 0 has sent meanwhile."""
    each = found["all_reduce"][name]
    return [8e-6 * sent / each["seconds"] for sent in each["sent"]]


def _say_bandwidth(found: Found) -> str:
    seconds = {name: each["seconds"] for name, each in found["all_reduce"].items()}
    rates = ", ".join(f"{name} {max(rate(found, name)):.0f}" for name in _LIBRARIES)
    return f"{rates} Mbit/s; at once {seconds['both at once'] / seconds['one after the other']:.2f} of the time"


def _say_rails(found: Found) -> str:
    texts = []
    for name in _LIBRARIES:
        rates = rate(found, f"{name}, 4 calls at once")
        texts.append(f"{name} {' + '.join(f'{each:.0f}' for each in rates)} Mbit/s")
    return "; ".join(texts)


def check_operations(found: Found, shape: Shape) -> list[str]:
    """At least one case must have run for every function and type."""
    del shape
    from mcr_dl import _C
    from mcr_dl.testing.calls import SIGNATURES

    want = {"functions": len(SIGNATURES), "dtypes": len(_C.dtypes())}
    return [f"{name}: expected {number}, got {found[name]}" for name, number in want.items() if found[name] != number]


def _say_operations(found: Found) -> str:
    return f"{found['cases']:,} cases right: {found['functions']} functions, {found['dtypes']} types, both backends"


def check_table(found: Found, shape: Shape) -> list[str]:
    """The table must have this cluster's scale, without exclusions."""
    wanted = (shape.ranks, shape.hosts)
    scales = [each for each in found["scales"] if (each["ranks"], each["nodes"]) == wanted]
    if len(scales) != 1:
        return [f"table: expected one scale of {wanted[0]} ranks on {wanted[1]} nodes, got {len(scales)}"]
    return [
        f"left out: {each['candidate']} for {each['operation']}: {each['reason']}" for each in scales[0]["excluded"]
    ]


def _say_table(found: Found) -> str:
    scales = found["scales"]
    return f"{len(scales)} scale{'s' * (len(scales) != 1)}, {len(scales[-1]['winners'])} operations and types"


def _say_demo(found: Found) -> str:
    losses = {mode["loss_end"] for mode in found["modes"]}
    return f"{len(found['modes'])} modes, final losses {max(losses) - min(losses):.1e} apart"


def _say_figure(found: Found) -> str:
    number = len(found["rows"])
    return f"{number} row{'s' * (number != 1)}"


def _rank(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def _backends(shape: Shape) -> list[str]:
    """The backends that `auto` compares on a cluster, and within a host."""
    if shape.hosts == 1:
        return ["shm", *_LIBRARIES]
    stripe = f"stripe({','.join(_LIBRARIES)})"
    hierarchies = [f"hier(shm,{each})" for each in (*_LIBRARIES, stripe)] if shape.ranks_per_host > 1 else []
    return [*_LIBRARIES, stripe, *hierarchies]


def _tune(shape: Shape, folder: Path) -> Stage:
    table = str(folder / "table.json")
    tune = ["--quick", "--backends", ",".join(_backends(shape)), "--dtypes", "float32", "--max", "1M", "--factor", "8"]
    tune += ["--budget", "0.12", "--output", table]
    return Stage("tune", shape, _rank("mcr_dl.tuning", *tune), table, LIMIT, check=check_table, say=_say_table)


def of_shape(shape: Shape, folder: Path) -> list[Stage]:
    """The stages of one cluster, in order."""

    def out(name: str) -> str:
        return str(folder / f"{shape}-{name}.json")

    def bandwidth(name: str) -> list[str]:
        return _rank("lab.bandwidth_rank", "--rates", ",".join(map(str, shape.rates)), "--out", out(name))

    demo = ("--steps", "20", "--batch", "12", "--no-chart", "--chart", out("demo"))
    stages = [
        Stage(
            "bandwidth",
            shape,
            bandwidth("bandwidth"),
            out("bandwidth"),
            LIMIT,
            check=check_bandwidth,
            say=_say_bandwidth,
        ),
        Stage("rails", shape, bandwidth("rails"), out("rails"), LIMIT, multi_rail=True, say=_say_rails),
        Stage(
            "operations",
            shape,
            _rank("lab.operations_rank", "--out", out("operations")),
            out("operations"),
            LIMIT,
            check=check_operations,
            say=_say_operations,
        ),
        _tune(shape, folder),
        Stage("demo", shape, _rank("mcr_dl.examples.moe", *demo), out("demo"), LIMIT, tuned=True, say=_say_demo),
    ]
    return [*stages, *figures(shape, folder)]


def figures(shape: Shape, folder: Path) -> list[Stage]:
    """The measurements of the paper's figures on one cluster: all rows, then single libraries with every NIC."""
    stages = []
    for workload in WORKLOADS:
        for suffix, rows, rails in (("", (), False), ("-rails", RAIL_ROWS, True)):
            if rails and shape == ALONE:
                continue
            name = f"{workload}{suffix}"
            out = str(folder / f"{shape}-{name}.json")
            program = [sys.executable, str(ROOT / "bench" / "lab" / "figures_rank.py"), "--workload", workload]
            program += ["--out", out, "--seconds", SECONDS[rails]]
            chosen = RAIL_ROWS[:1] if shape == ALONE else rows
            if chosen:  # all of them otherwise
                program += ["--rows", ",".join(chosen)]
            stages.append(Stage(name, shape, program, out, LIMIT, multi_rail=rails, tuned=True, say=_say_figure))
    return stages


def all_stages(folder: Path) -> list[Stage]:
    """All stages, cluster by cluster."""
    clusters = [stage for shape in SHAPES for stage in of_shape(shape, folder)]
    return [_tune(WITHIN, folder), *clusters, *figures(ALONE, folder)]
