# SPDX-License-Identifier: Apache-2.0
"""The planner of SYNDICATE (NSDI'23) on one process: the paper's example, the search against brute force, its speed.

Everything is simulated: no ranks, no network. The figures depend only on the seeds, except for the seconds.
"""

from __future__ import annotations

import os
import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

import script
from markdown_text import table
from mcr_dl import _C
from mcr_dl.planner import show
from mcr_dl.planner.plans import Planner
from mcr_dl.testing import plan_graphs

UNIT = plan_graphs.UNIT
BEST, MEAN, SECONDS = 0.004, 0.001, 9.0  # the targets

TEXT = """\
# SYNDICATE's planner

`bench/syndicate.py` on {date}: {machine}, load average {load}. All times of plans are simulated; nothing here was run
on a network. Seconds, and results of searches that a budget ended, depend on the machine; all else does not. What the
planner does is in [SYNDICATE](../syndicate.md).

## The paper's example

Figure 6 of the paper: an all_to_all `a` and three all_reduces `b`, `c`, `d`. Its costs are a picture; these give the
times in its text: `a` takes 1.5 units on NVLink or 3 on PCIe, `b`, `c`, `d` take 4, 3 and 2.5 on NVLink.

{example}
![Timelines of the greedy plan and of the search's](../images/syndicate.png)

## The search against brute force

{instances} random iterations of a recommendation model, each with {calls} calls in {options} forms on two channels
({plans} plans). The gap is how much longer an iteration takes than with brute force's best plan, by the list
scheduler's cost, without levels (marks that let a call go first or last), which brute force does not try. `one chain`
is the mean over all chains. Targets: at most {best:.1%} and {mean:.1%} on average for the best of 10 chains.

{gaps}
{levels}

## The speed of the search

Graphs of the same kind, budget {seconds:g} s, shared equally among 10 chains; *budget*: at least one chain used up its
share; {evaluated}

{speed}
## What a strict order costs

The search's cost lets each channel choose among its motifs by priority, whenever they are ready. A plan issues all
motifs in one order on all channels and ranks, and waits for the next one. Over the {instances} instances, an iteration
by replay of the plan takes {strict} of the search's cost (least, median, most).
"""


def example() -> dict[str, Any]:
    """The paper's example: the time of an iteration in units, by plan."""
    planner = Planner(plan_graphs.paper())
    plans = [planner.greedy(), planner.critical_path(), planner.search().plan, planner.brute_force()]
    return {plan.name: plan.iteration / UNIT for plan in plans}


def instance(seed: int, calls: int, options: int) -> dict[str, Any]:
    """One instance of which all plans can be tried. Costs in ns."""
    planner = Planner(plan_graphs.dlrm(seed, calls, options))
    begin = time.perf_counter()
    best = planner.brute_force()
    middle = time.perf_counter()
    found = planner.search(seed=seed, levels=False)
    seconds = time.perf_counter() - middle
    with_levels = planner.search(seed=seed)
    plain = [planner.program_order(), planner.greedy(), planner.critical_path()]
    return {
        "seed": seed,
        "best": best.cost,
        "chains": list(found.chains),
        "levels": min(with_levels.chains),
        "strict": found.plan.iteration,
        **{plan.name: plan.iteration for plan in plain},
        "seconds": [round(middle - begin, 3), round(seconds, 3)],
    }


def speed(calls: int, budget: float) -> dict[str, Any]:
    """The search on a larger graph."""
    planner = Planner(plan_graphs.dlrm(1, calls, 4))
    begin = time.perf_counter()
    found = planner.search(budget=budget)
    seconds = time.perf_counter() - begin
    plain = [planner.program_order(), planner.greedy(), planner.critical_path()]
    return {
        "calls": calls,
        "seconds": round(seconds, 2),
        "evaluations": found.evaluations,
        "complete": found.complete,
        "chains": list(found.chains),
        **{plan.name: plan.iteration for plan in [*plain, found.plan]},
    }


def against_simulate(calls: int) -> dict[str, float]:
    """Seconds of one evaluation, by the list scheduler and by simulate(), of one chain of motifs per call."""
    graph = plan_graphs.dlrm(1, calls, 4)
    planner = Planner(graph)
    plan = _C.ExecutionPlan([0] * len(graph.nodes))
    begin = time.perf_counter()
    for _ in range(20):
        planner.core.cost(plan)
    own = (time.perf_counter() - begin) / 20
    model = _C.CostModel()
    lanes = [model.add_resource(name, slots=1) for name in planner.channels]
    numbers = {node.key: index for index, node in enumerate(graph.nodes)}
    begin = time.perf_counter()
    for iterations in (1, 2):
        jobs = []
        for iteration in range(iterations):
            for node in graph.nodes:
                after = [
                    (iteration - each.endswith("@-1")) * len(graph.nodes) + numbers[each.removesuffix("@-1")]
                    for each in node.after
                    if iteration or not each.endswith("@-1")
                ]
                time_ns = node.time if node.time is not None else node.options[0].pieces[0].time
                lane = lanes[-1] if node.time is not None else lanes[0]
                jobs.append(_C.Job(None, after=after, work=time_ns, demands=[(lane, 0)]))
        _C.simulate(model, jobs, [[0]], order="priority")
    return {"list scheduler": own, "simulate": time.perf_counter() - begin}


def measure(instances: int, calls: int, sizes: list[int], budget: float) -> dict[str, Any]:
    """All figures."""
    return {
        "date": str(date.today()),
        "machine": script.machine(),
        "load": round(os.getloadavg()[0], 1),
        "example": example(),
        "calls": calls,
        "options": 3,
        "instances": [instance(seed, calls, 3) for seed in range(instances)],
        "budget": budget,
        "speed": [speed(size, budget) for size in sizes],
        "evaluation": against_simulate(max(sizes)),
    }


def gaps_of(rows: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Gaps to brute force: of the best chain of each instance, and of all chains."""
    best = [min(row["chains"]) / row["best"] - 1 for row in rows]
    return best, [cost / row["best"] - 1 for row in rows for cost in row["chains"]]


def markdown(document: dict[str, Any]) -> str:
    """The report."""
    rows = document["instances"]
    best, every = gaps_of(rows)
    cells = [["best of 10 chains", *(f"{value:.3%}" for value in (statistics.mean(best), max(best)))]]
    cells.append(["one chain", *(f"{value:.3%}" for value in (statistics.mean(every), max(every)))])
    for name in ("program order", "greedy", "critical path"):
        loss = [row[name] / row["best"] - 1 for row in rows]
        cells.append([name, f"{statistics.mean(loss):.1%}", f"{max(loss):.1%}"])
    found = [f"{statistics.median(row['seconds'][place] for row in rows):.2f} s" for place in (0, 1)]
    gain = [row["levels"] / row["best"] for row in rows]
    levels = (
        f"Median time: brute force {found[0]}, search {found[1]}. With levels, the search's cost is {min(gain):.3f} to "
        f"{max(gain):.3f} of brute force's."
    )
    fast = [
        [
            str(row["calls"]),
            f"{row['seconds']:.1f}",
            str(row["evaluations"]),
            "stop rule" if row["complete"] else "budget",
            *(f"{row[name] / 1e6:.2f}" for name in ("program order", "greedy", "critical path", "search")),
        ]
        for row in document["speed"]
    ]
    plans = [*("program order", "greedy", "critical path", "search")]
    header = ["calls", "seconds", "evaluations", "ended by", *(f"{name}, ms" for name in plans)]
    strict = sorted(row["strict"] / min(row["chains"]) for row in rows)
    own, other = document["evaluation"]["list scheduler"], document["evaluation"]["simulate"]
    return TEXT.format(
        **{name: document[name] for name in ("date", "machine", "load", "calls", "options")},
        instances=len(rows),
        plans=document["options"] ** document["calls"],
        example="\n".join(
            table(["plan", "units"], [[name, f"{each:g}"] for name, each in document["example"].items()])
        ),
        best=BEST,
        mean=MEAN,
        gaps="\n".join(table(["plan", "mean gap", "largest gap"], cells)),
        levels=levels,
        seconds=document["budget"],
        evaluated=f"one evaluation of the largest takes {own * 1e3:.2f} ms, with simulate() {other * 1e3:.1f} ms.",
        speed="\n".join(table(header, fast)),
        strict=", ".join(f"{value:.3f}" for value in (strict[0], statistics.median(strict), strict[-1])),
    )


def draw(_: dict[str, Any], path: Path) -> None:
    """The timelines of the paper's example."""
    planner = Planner(plan_graphs.paper())
    show.figure_of(planner, [planner.greedy(), planner.search().plan], 2, (UNIT, "units")).savefig(path)


def main() -> None:
    """Measure and report."""
    parser = script.parser(__doc__, reports=True)
    parser.add_argument("--instances", type=int, default=40)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--sizes", nargs="+", type=int, default=[50, 100, 200], help="calls of the larger graphs")
    parser.add_argument("--budget", type=float, default=SECONDS, help="seconds of a search")
    given = script.parse(parser, instances=2, calls=5, sizes=[20], budget=1.0)
    document = measure(given.instances, given.calls, given.sizes, given.budget)
    script.publish(given, "syndicate", document, markdown, draw)


if __name__ == "__main__":
    main()
