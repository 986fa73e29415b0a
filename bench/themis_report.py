# SPDX-License-Identifier: Apache-2.0
"""The report of bench/themis.py, next to the paper's figures and those of the authors' simulator."""

from __future__ import annotations

import statistics
from datetime import date
from typing import Any

from markdown_text import table
from themis_networks import (
    AUTHORS,
    GAINS,
    PAPER,
    PAPER_EXPOSED,
    PAPER_FIFO,
    PAPER_IDEAL,
    PAPER_MOST,
    WITH_LATENCY,
    WORKLOADS,
)

POLICIES = ("baseline", "themis-fifo", "themis-scf")
FIFO, SCF = POLICIES[1:]

INTRODUCTION = """\
# Themis in the simulator

`python bench/themis.py` on {today}. All times here are simulated, as in the paper, and no machine here has such a
network. [themis-runs.md](themis-runs.md) has real runs on emulated hosts. The only measurement is the time to plan.
[Themis](../themis.md) says what the model contains. Sizes and rates are decimal. "Authors" is the authors' own
simulator (ASTRA-sim, branch ASTRA-sim-1.0) with its own scheduler and latencies near 0; "other" is an independent
simulator of the same model. Utilization is that of the paper's section 3, all dimensions weighted by bandwidth.

![Two schedules of four chunks](../images/themis-figure5.png)
"""


def _figure_5(found: dict[str, float]) -> list[str]:
    paper = {"baseline": "8", FIFO: "-", SCF: "7"}
    rows = [[policy, f"{found[policy]:g}", paper[policy]] for policy in POLICIES]
    return [
        "## Figure 5",
        "",
        "256 MB in four chunks on 4 x 4 ranks, dimension 2 at half the rate of dimension 1, in units. The load of",
        "dimension 2 is 7, so no schedule with these orders is shorter. Themis with first come first served gains",
        "nothing here.",
        "",
        *table(["policy", "here", "paper"], rows),
    ]


def _bandwidth_only(found: dict[str, Any]) -> list[str]:
    rows = []
    for name, row in found.items():
        used, theirs = row["utilization"], AUTHORS[name]
        rows.append(
            [
                name,
                *(f"{used[policy]:.1f}" for policy in POLICIES),
                f"{row['speedup'][FIFO]:.2f}",
                f"{row['speedup'][SCF]:.2f}",
                f"{row['bound']:.2f}",
                f"{theirs.baseline:g} / {theirs.fifo:g} / {theirs.scf:g}",
                f"{theirs.speedup:g}",
            ]
        )
    means = [statistics.mean(row["utilization"][policy] for row in found.values()) for policy in POLICIES]
    gains = [statistics.mean(row["speedup"][policy] for row in found.values()) for policy in (FIFO, SCF)]
    bounds = statistics.mean(row["bound"] for row in found.values())
    theirs = AUTHORS["mean"]
    cells = [*(f"{each:.2f}" for each in means), *(f"{each:.2f}" for each in gains), f"{bounds:.2f}"]
    rows.append(["**mean**", *cells, f"{theirs.baseline:g} / {theirs.fifo:g} / {theirs.scf:g}", f"{theirs.speedup:g}"])
    most = max(row["speedup"][SCF] for row in found.values())
    paper = f"{PAPER.baseline:g} / {PAPER.fifo:g} / {PAPER.scf:g}"
    return [
        "## The paper's six topologies, bandwidth only",
        "",
        "An all_reduce in 64 chunks, one step in flight in each dimension, no latencies. The figures hardly depend on",
        f"the size (only where steps end at the same time). Paper, mean over sizes: {paper} %, {PAPER_FIFO:g} x",
        f"(FIFO), {PAPER.speedup:g} x (SCF), at most {PAPER_MOST:g} x; here at most {most:.2f} x. Bound: what the best",
        "mix of orders gains, by a linear program. SW: switch, FC: fully connected, Ring: ring; one word for each",
        "dimension, the innermost first; homo: equal rates, hetero: different rates (names of the paper).",
        "",
        *table(
            [
                "topology",
                "baseline %",
                "FIFO %",
                "SCF %",
                "FIFO x",
                "SCF x",
                "bound x",
                "authors: baseline / FIFO / SCF %",
                "authors: SCF x",
            ],
            rows,
        ),
    ]


def _latencies(found: list[dict[str, Any]]) -> list[str]:
    rows = []
    for depth in dict.fromkeys(row["in_flight"] for row in found):
        own = [row for row in found if row["in_flight"] == depth]
        used = [statistics.mean(row["utilization"][policy] for row in own) for policy in POLICIES]
        gains = [statistics.mean(row["speedup"][policy] for row in own) for policy in (FIFO, SCF)]
        base, fifo, fifo_gain, scf, scf_gain = WITH_LATENCY[depth]
        rows.append(
            [
                str(depth),
                f"{used[0]:.1f}",
                f"{used[1]:.1f}, {gains[0]:.2f}",
                f"{used[2]:.1f}, {gains[1]:.2f} ({max(row['speedup'][SCF] for row in own):.2f})",
                f"{base:g}",
                f"{fifo:g}, {fifo_gain:.2f}",
                f"{scf:g}, {scf_gain:.2f}",
            ]
        )
    header = ["in flight", "baseline %", "FIFO %, x", "SCF %, x (most)"]
    lines = [
        "## With Table 2's latencies",
        "",
        "64 chunks; means over the six topologies and 100, 250, 500 and 1000 MB. With one step in flight, 64 chunks",
        "are too many: the authors' simulator has 50.6 % (baseline), 55.6 % and 1.15 x (FIFO), 58.6 % and 1.20 x (SCF)",
        "there.",
        "",
        *table([*header, "other: baseline %", "other: FIFO %, x", "other: SCF %, x"], rows),
        "Speed-up of SCF at 100 / 250 / 500 / 1000 MB:",
        "",
    ]
    depths = [depth for depth in (1, 8) if any(row["in_flight"] == depth for row in found)]
    rows = []
    for name in dict.fromkeys(row["topology"] for row in found):
        cells = [
            " / ".join(
                f"{row['speedup'][SCF]:.2f}" for row in found if (row["topology"], row["in_flight"]) == (name, depth)
            )
            for depth in depths
        ]
        rows.append([name, *cells])
    return lines + table(["topology", *(f"{depth} in flight" for depth in depths)], rows)


def _auto(found: list[dict[str, Any]]) -> list[str]:
    sizes = list(dict.fromkeys(row["mb"] for row in found))
    rows = []
    for depth in dict.fromkeys(row["in_flight"] for row in found):
        cells = []
        for size in sizes:
            gains = [row["gain"] for row in found if (row["mb"], row["in_flight"]) == (size, depth)]
            expected = GAINS.get(depth, {}).get(size)
            other = f"; {expected:.2f}" if expected else ""
            cells.append(f"{statistics.mean(gains):.2f} ({min(gains):.2f} to {max(gains):.2f}{other})")
        rows.append([str(depth), *cells])
    counts = sorted({row["chunks"] for row in found})
    return [
        "## auto",
        "",
        "`auto` simulates all policies with 1 to 512 chunks and takes the best: gain over the baseline with *its* best",
        "number of chunks, which is fairer than the paper's 64. Mean over the six topologies with their latencies",
        f"(least to most; mean of the other simulator). Chunks chosen: {counts[0]} to {counts[-1]}.",
        "",
        *table(["in flight", *(f"{size} MB" for size in sizes)], rows),
    ]


def _figure_8(found: list[dict[str, Any]]) -> list[str]:
    rows = [
        [
            row["topology"],
            str(row["mb"]),
            *(f"{row['us'][policy]:,.0f}" for policy in POLICIES),
            f"{row['speedup'][SCF]:.2f}",
        ]
        for row in found
        if row["in_flight"] == 8
    ]
    mean = statistics.mean(row["speedup"][SCF] for row in found if row["in_flight"] == 8)
    return [
        "## Figures 8 and 11: times and utilization by size",
        "",
        "![Times by size](../images/themis-sizes.png)",
        "",
        f"µs of an all_reduce with latencies, 64 chunks, 8 steps in flight. Mean speed-up of SCF {mean:.2f} x; paper",
        f"{PAPER.speedup:g} x. The paper prints no numbers for single bars.",
        "",
        *table(["topology", "MB", *POLICIES, "SCF x"], rows),
    ]


def _figure_9(found: dict[str, list[list[float]]]) -> list[str]:
    rows = [[policy, *(f"{100 * statistics.mean(each):.0f}" for each in found[policy])] for policy in POLICIES]
    return [
        "## Figure 9: activity",
        "",
        "![Activity of the dimensions](../images/themis-activity.png)",
        "",
        "1000 MB on 3D-SW_SW_SW_homo, bandwidth only: the share of time in which a dimension has a chunk, in %.",
        "",
        *table(["policy", "dimension 1", "dimension 2", "dimension 3"], rows),
    ]


def _figure_10(found: list[dict[str, Any]]) -> list[str]:
    paper = {4: "43.1 / 48.6", 512: "87.8 / 91.2"}
    rows = []
    for chunks in dict.fromkeys(row["chunks"] for row in found):
        used = {row["network"]: row["utilization"] for row in found if row["chunks"] == chunks}
        cells = [" / ".join(f"{each[policy]:.1f}" for policy in POLICIES) for each in used.values()]
        rows.append([str(chunks), *cells, paper.get(chunks, "-")])
    return [
        "## Figure 10: number of chunks",
        "",
        "![Utilization by number of chunks](../images/themis-chunks.png)",
        "",
        "Utilization in % of 100 MB, mean of 3D-SW_SW_SW_hetero and 4D-Ring_FC_Ring_SW: baseline / FIFO / SCF. The",
        "paper gives FIFO / SCF for 4 and 512 chunks, and includes packet headers, which this model does not.",
        "",
        *table(["chunks", "bandwidth only, 1 in flight", "latencies, 64 in flight", "paper"], rows),
    ]


def _figure_12(found: list[dict[str, Any]]) -> list[str]:
    sources = "; ".join(f"{work.name}: {work.nbytes / 1e6:,.1f} MB, {work.source}" for work in WORKLOADS)
    rows = []
    for row in found:
        us = row["us"]
        times = [f"{us[key]:,.1f}" for key in ("baseline", SCF, "auto", "ideal")]
        gains = [f"{us['baseline'] / us[key]:.2f}" for key in (SCF, "auto", "ideal")]
        rows.append([f"{row['workload']}, {row['topology']}", *times, *gains])
    large = [row["us"] for row in found if row["bytes"] > 100_000_000]
    means = {key: statistics.mean(us["baseline"] / us[key] for us in large) for key in (SCF, "auto", "ideal")}
    return [
        "## Figure 12: communication of the training workloads",
        "",
        "![Communication of the workloads](../images/themis-workloads.png)",
        "",
        "One all_reduce of each workload, in µs, 64 chunks, 8 in flight; ideal: all bandwidth is used. Compute times,",
        "which the rest of the paper's figure 12 shows, need its accelerators and are not here. The paper gives models",
        f"but no message sizes; these are used: {sources}. Transformer-1T's gradients use the last dimension alone and",
        "gain nothing.",
        "",
        f"Mean over the workloads above 100 MB: SCF {means[SCF]:.2f} x, auto {means['auto']:.2f} x, ideal",
        f"{means['ideal']:.2f} x. Paper, exposed communication over all workloads: {PAPER_EXPOSED:g} x, ideal",
        f"{PAPER_IDEAL:g} x. 64 chunks of DLRM's 3.2 MB are mostly latency: there `auto` takes fewer.",
        "",
        *table(
            ["workload, topology", "baseline", "SCF", "auto", "ideal", "SCF x", "auto x", "ideal x"],
            rows,
        ),
    ]


def _machines(found: list[dict[str, Any]]) -> list[str]:
    rows = [
        [
            row["machine"],
            "yes" if row["spare"] else "no",
            f"{row['bound']:.3f}",
            f"{row[SCF]:.3f}",
            f"{row['auto']:.3f}",
        ]
        for row in found
    ]
    return [
        "## Machines of today",
        "",
        "1000 MB, bandwidth only, against the baseline with its best number of chunks. Rates are vendors' figures from",
        "memory, in GB/s of one GPU in one direction, in the table; none was measured. Spare: an outer dimension has",
        "more bandwidth than the hierarchical order can use (BW 1 < size 1 x BW 2). Bound: the most that any orders",
        "can gain.",
        "",
        *table(["machine", "spare", "bound x", "SCF, 64 chunks x", "auto x"], rows),
        "On boxes of eight GPUs with NVLink inside and one NIC per GPU outside there is nothing to gain: the NICs are",
        "the bottleneck in every order, least of all in the hierarchical one. Near the balance, Themis with 64 chunks",
        "loses, and `auto` takes the baseline or another number of chunks.",
        "",
    ]


def _planning(found: dict[str, float]) -> list[str]:
    return [
        "## Time to plan",
        "",
        "An all_reduce of 512 chunks on the four-dimensional topologies, 1 and 8 in flight, all policies: median",
        f"{found['plan_ms']} ms of processor time, slowest case {found['slowest_plan_ms']} ms. `auto`, which tries",
        f"baseline, FIFO and SCF with 18 numbers of chunks: {found['auto_ms']} ms. Called from Python, without the",
        "list of steps, which is made when it is read. Plans are cached. The general simulator of schedules takes",
        f"{found['general_ms']} ms for one plan, and finds the same makespan.",
        "",
    ]


def markdown(document: dict[str, Any]) -> str:
    """The report."""
    lines = [
        INTRODUCTION.format(today=date.today()),
        *_figure_5(document["figure_5_units"]),
        *_bandwidth_only(document["bandwidth_only"]),
        *_latencies(document["latencies"]),
        *_auto(document["auto"]),
        *_figure_8(document["latencies"]),
        *_figure_9(document["figure_9"]),
        *_figure_10(document["figure_10"]),
        *_figure_12(document["figure_12"]),
        *_machines(document["machines"]),
        *_planning(document["planning"]),
    ]
    return "\n".join(lines)
