# SPDX-License-Identifier: Apache-2.0
"""The report of `make lab`, made from the files of the stages. It lists the stages that have written nothing as
missing.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from lab import ROOT, figures, plan, report_figures, stages
from lab.plan import Shape
from markdown_text import size_text, table
from mcr_dl.base.documents import rows

_IMAGE = "lab-{}.png"

NICS = """\
## What the NICs carry

Plain TCP from the first host to the last, and all_reduces of 8 MiB of float32; medians, Mbit/s that host 0 sends on
eth0 + eth1, with all headers. *At once*: both libraries are started with 8 MiB each, then both waited for; in brackets
the time as a share of one after the other (0.67 is what NICs of 400 and 200 Mbit/s allow, 1 would be no overlap).
*Cut*: one message of 8 MiB, two thirds of it on gloo and a third on MPI; in brackets how much faster than gloo alone
(at most 1.5). Both bounds hold if each library sends the same bytes alone and together, and both send equally many.
"""

RAILS = """\
Can one library use both NICs? gloo with `GLOO_SOCKET_IFNAME=eth0,eth1`, UCX with `UCX_NET_DEVICES=eth0,eth1,lo` and
two rails; one call, and four calls of a quarter that are under way together:
"""

RAILS_SEEN = """\
gloo gives whole calls to its NICs in turn, so that one call alone uses one of them. UCX cuts messages; it takes veth
devices for equally fast and cuts in halves, so that the slower NIC decides. Both thus reach about twice the slower
NIC; two libraries, each on a NIC of its own, reach the sum of the NICs.
"""

OPERATIONS = """\
## Every operation

The cases of the test suite (`mcr/mcr_dl/testing/cases.py`), each result compared with plain torch on every rank. A
fixed rule selects them: the same number of cases for every function, backend and element type, spread over the table,
and large messages of three types for every function. The number of cases run is compared between the ranks.
"""

CHOICES = """\
## What `mcr-tune` chose

`mcr-tune --quick` with float32, 4 bytes to 1 MiB, on each cluster, and for two ranks within a host (1x2). The cheapest
candidate from 0 bytes on; `93: mpi` means mpi from 93 bytes on (K: 1024 bytes); the number in `stripe(gloo,mpi,67)` is
gloo's share in %, and without one the share is computed. `auto` chooses from this table in all that follows.
"""

DEMO = """\
## The demo

`python -m mcr_dl.examples.moe --steps 20 --batch 12`: tokens per second in each mode. The program checks that the final
losses are equal (to 1e-5).
"""

INTRODUCTION = """\
# The lab: several hosts on one machine

`make lab` on {date}: {cores} cores ({cpu}), Linux {kernel}, torch {torch}. Load average {before} before, {after} after;
{seconds:.0f} minutes. {verdict}

What was emulated, and how: each host is a network namespace with a name, shared memory and a core of its own (where
there are more hosts than cores they share them), and has two NICs. Each NIC is a veth cable to a switch (a bridge in a
namespace of its own), shaped by `tc tbf` at both ends: {rates} Mbit/s in each direction, bursts of {burst}, queues of
{queue} ms. No latency is added. gloo has `eth0`, MPI (MPICH on UCX, TCP) `eth1`; ranks of one host use its shared
memory for MPI, and the loopback for gloo.

```
     host 0 (rank 0)          host 1 (rank 1)     ...
    eth0        eth1         eth0        eth1
 400 Mbit/s  200 Mbit/s   400 Mbit/s  200 Mbit/s
     |           |            |           |
     |           +------------|-----------+------- ...   switch 1: MPI
     +------------------------+------------------- ...   switch 0: gloo, and where the ranks meet
```
"""


def conditions() -> dict[str, Any]:
    """The conditions of the machine, before the stages."""
    import torch

    from mcr_dl.tables.host import host

    return {
        "date": str(date.today()),
        "cores": len(plan.available_cores()),
        "cpu": host().cpu,
        "kernel": platform.release().partition("-")[0],
        "torch": str(torch.__version__),
        "load_at_the_start": list(os.getloadavg()),
        "rates": list(stages.NICS),
    }


def load(folder: Path, shape: Shape, name: str) -> dict[str, Any] | None:
    """The document of a stage, if it has written one."""
    path = folder / f"{shape}-{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def write(document: Mapping[str, Any], work: Path, docs: Path) -> None:
    """Write lab.md, lab.json and the pictures below `docs`: to results/ and images/, or all to one folder."""
    results, images = (docs / "results", docs / "images") if docs != work else (work, work)
    failed = {record["stage"] for record in document["stages"] if record["problems"]}
    measured = {str(shape): results_of(work, shape, failed) for shape in (*stages.SHAPES, stages.ALONE)}
    link = os.path.relpath(images, results)
    from lab import drawing

    drawing.topology(stages.SHAPES[-1], images / _IMAGE.format("topology"))
    parts = [introduction(document)]
    for section in (bandwidths, operations, choices, demo):
        parts.append("\n".join(section(measured, work, images, link)))
    parts.append("\n".join(report_figures.section(measured, document["conditions"]["cores"], images, link)))
    parts.append("\n".join(stage_table(document)))
    (results / "lab.md").write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    text = rows({**document, "results": measured}).replace(f"{ROOT}/", "")
    (results / ("lab.json" if docs != work else "lab-results.json")).write_text(text + "\n", encoding="utf-8")


def results_of(work: Path, shape: Shape, failed: Collection[str]) -> dict[str, Any]:
    """The documents of a cluster's stages that have not failed, without the details of single steps."""
    here = [stage for stage in stages.all_stages(work) if stage.shape == shape and stage.name != "tune"]
    found = {stage.name: load(work, shape, stage.name) for stage in here if stage.key not in failed}
    return {name: _short(each) for name, each in found.items() if each is not None}


def _short(value: Any) -> Any:
    """The value without long lists and process ids, which a report does not need."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key != "provenance"}
        return {key: _short(each) for key, each in kept.items() if not (isinstance(each, list) and _long(each))}
    return [_short(each) for each in value] if isinstance(value, list) else value


def _long(values: list[Any]) -> bool:
    return len(values) > 4 and all(isinstance(each, float) for each in values)


def introduction(document: Mapping[str, Any]) -> str:
    """The emulated clusters, the machine and the date."""
    facts = document["conditions"]
    failed = [record["stage"] for record in document["stages"] if record["problems"]]
    return INTRODUCTION.format(
        **{**facts, "rates": " and ".join(map(str, facts["rates"]))},
        before=f"{facts['load_at_the_start'][0]:.1f}",
        after=f"{facts['load_at_the_end'][0]:.1f}",
        seconds=document["seconds"] / 60,
        burst=size_text(plan.BURST_BYTES),
        queue=plan.QUEUE_MS,
        verdict=f"**Failed: {', '.join(failed)}.**" if failed else "All stages passed.",
    )


Measured = Mapping[str, Mapping[str, Any]]


def _with(measured: Measured, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The clusters in which this stage has written something."""
    for shape, found in measured.items():
        if name in found:
            yield shape, found[name]


def bandwidths(measured: Measured, work: Path, images: Path, link: str) -> list[str]:
    """The throughput of each NIC and library."""
    del work
    lines = [NICS]
    rows, rates = [], {}
    for shape, found in _with(measured, "bandwidth"):
        tcp = " / ".join(f"{8e-6 * found['bytes'] / seconds:.0f}" for seconds in found["tcp"])
        seconds = {name: each["seconds"] for name, each in found["all_reduce"].items()}
        share = seconds["both at once"] / seconds["one after the other"]
        rates[shape] = {name: stages.rate(found, name) for name in ("gloo", "mpi", "both at once", "cut over both")}
        cells = [_sum(rates[shape][name]) for name in rates[shape]]
        faster = seconds["gloo"] / seconds["cut over both"]
        rows.append([shape, tcp, *cells[:2], f"{cells[2]} ({share:.2f})", f"{cells[3]} ({faster:.2f})"])
    if not rows:
        return [*lines, "Not measured.", ""]
    lines += table(["hosts x ranks", "TCP eth0 / eth1", "gloo", "MPI", "at once", "cut"], rows)
    lines.append(RAILS)
    rows = []
    for shape, found in _with(measured, "rails"):
        several = {name: stages.rate(found, name) for name in found["all_reduce"] if name in report_figures.RAIL_WAYS}
        rates.setdefault(shape, {})
        rates[shape] |= {f"{name}, every NIC": several[f"{name}, 4 calls at once"] for name in figures.SINGLE}
        rows.append([shape, *(_sum(several[name]) for name in report_figures.RAIL_WAYS)])
    lines += table(["hosts x ranks", *report_figures.RAIL_WAYS], rows)
    lines += [RAILS_SEEN, f"![Mbit/s of each NIC]({link}/{_IMAGE.format('nics')})", ""]
    from lab import charts

    charts.nics(rates, stages.NICS, images / _IMAGE.format("nics"))
    return lines


def _sum(rates: Sequence[float]) -> str:
    return " + ".join(f"{rate:.0f}" for rate in rates)


def operations(measured: Measured, work: Path, images: Path, link: str) -> list[str]:
    """The table of operations."""
    del work, images, link
    lines = [OPERATIONS]
    rows = [
        [
            shape,
            f"{found['cases']:,}",
            str(found["functions"]),
            str(found["dtypes"]),
            f"{found['backends']['gloo']:,} / {found['backends']['mpi']:,}",
            f"{found['asynchronous']:,}",
            f"{found['seconds']:.0f}",
        ]
        for shape, found in _with(measured, "operations")
    ]
    header = ["hosts x ranks", "cases, all right", "functions", "types", "gloo / MPI", "asynchronous", "seconds"]
    return [*lines, *(table(header, rows) if rows else ["Not run.", ""])]


def choices(measured: Measured, work: Path, images: Path, link: str) -> list[str]:
    """The choices of mcr-tune."""
    from lab import charts
    from mcr_dl.commands.text import winners_text
    from mcr_dl.tables import table as tables

    del measured
    lines = [CHOICES]
    path = work / "table.json"
    if not path.exists():
        return [*lines, "Not measured.", ""]
    scales = tables.read(path).scales
    names = list(dict.fromkeys(winner.operation for scale in scales for winner in scale.winners))

    def chosen(scale: Any, name: str) -> str:
        for winner in scale.winners:
            if winner.operation == name:
                return winners_text(scale, winner)
        return ""

    lines += [
        *table(
            ["", *(scale.name for scale in scales)],
            [[name, *(chosen(scale, name) for scale in scales)] for name in names],
        ),
        f"![The cheapest by operation and size]({link}/{_IMAGE.format('choices')})",
        "",
    ]
    charts.choices(scales, images / _IMAGE.format("choices"))
    return lines


def demo(measured: Measured, work: Path, images: Path, link: str) -> list[str]:
    """The mixture-of-experts example."""
    del work, images, link
    lines = [DEMO]
    rows, modes = [], []
    for shape, found in _with(measured, "demo"):
        modes = [mode["mode"] for mode in found["modes"]]
        losses = [mode["loss_end"] for mode in found["modes"]]
        rates = [f"{mode['tokens_per_second']:,.0f}" for mode in found["modes"]]
        rows.append([shape, *rates, f"{max(losses) - min(losses):.0e}", f"{losses[0]:.4f}"])
    header = ["hosts x ranks", *modes, "loss difference", "loss"]
    return [*lines, *(table(header, rows) if rows else ["Not run.", ""])]


def stage_table(document: Mapping[str, Any]) -> list[str]:
    """All stages, with their times and results."""
    rows = [
        [record["stage"], f"{record['seconds']:.0f}", f"{record['load']:.1f}", _verdict(record)]
        for record in document["stages"]
    ]
    return ["## Stages", "", *table(["stage", "seconds", "load before", "result"], rows)]


def _verdict(record: Mapping[str, Any]) -> str:
    if not record["problems"]:
        return str(record["text"])
    return "**failed**: " + "; ".join(record["problems"]).replace("|", "\\|")
