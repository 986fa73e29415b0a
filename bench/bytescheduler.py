# SPDX-License-Identifier: Apache-2.0
"""ByteScheduler: its simulation against exhaustive searches, what overheads do to its settings, and steps in the lab.

.venv/bin/python bench/bytescheduler.py             # the simulation alone, without ranks
sudo .venv/bin/python bench/bytescheduler.py --lab  # also hosts with slow NICs; about half an hour
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import script
from bytescheduler_chart import draw
from markdown_text import paragraph, table
from mcr_dl.commands.console import Console, bars
from mcr_dl.examples import bytescheduler as example
from mcr_dl.examples import bytescheduler_emulated as emulated
from mcr_dl.schedule.bytescheduler.credit import Layer, Transfer, simulate
from mcr_dl.testing.orders import best, best_of_whole, ready_times

UNIT = Transfer(((1, 1),))
SCALE = 10  # of the overhead models' units of time, which become integers
LATENCY, PER_OPERATION = 10, 1  # in tenths of a unit
PARTITIONS = (None, 32, 16, 8, 4, 2, 1)  # units of bytes
CREDITS = (None, 8, 4, 2, 1)  # partitions
# Hosts with one rank each, Mbit/s of their NICs, candidate, models.
EMULATED = ("vgg16", "resnet50", "transformer-base")
SETTINGS = (
    (2, (400,), "gloo", EMULATED),
    (4, (400,), "gloo", EMULATED),
    (2, (400, 400), "gloo,mpi,stripe(gloo,mpi)", EMULATED),
    (4, (400, 400), "gloo,mpi,stripe(gloo,mpi)", EMULATED),
    (2, (400,), "gloo", ("vgg", "resnet", "transformer")),
)
# By layer in the order of the forward pass: units of bytes, units of time of the forward pass. The backward pass takes
# twice as long.
MODELS: dict[str, list[tuple[int, int]]] = {
    "VGG-like": [(1, 4), (1, 5), (1, 6), (3, 6), (4, 4), (51, 1), (8, 1), (2, 1)],
    "embedding first": [(24, 1), *[(6, 2)] * 6, (24, 2)],
    "equal layers": [(4, 3)] * 12,
}
# Of an independent calculation for similar models, whose exact layers we do not know: program order, best, optimum.
REFERENCE = {"VGG-like": (102.8, 89.3, 87.0), "embedding first": (108.8, 91.0, 86.0)}


def exhaustive(values: tuple[int, ...], progress: Any) -> dict[str, Any]:
    """All models of three layers with these times: the simulation against the best of all orders."""
    different, gains, whole = 0, [], []
    for times in progress.track(list(itertools.product(values, repeat=9)), description="exhaustive"):
        forward, backward, nbytes = times[:3], times[3:6], times[6:]
        ready = ready_times(backward)
        layers = [Layer(*each) for each in zip(ready, forward, nbytes, strict=True)]
        found = simulate(layers, UNIT, partition=1, credit=1).end
        different += found != best(ready, nbytes, forward)
        gains.append(simulate(layers, UNIT, priorities=False).end / found)
        whole.append(simulate(layers, UNIT, credit=1).end / best_of_whole(ready, nbytes, forward))
    return {
        "values": list(values),
        "models": len(gains),
        "different": different,
        "fifo_over_priority_mean": round(sum(gains) / len(gains), 4),
        "fifo_over_priority_max": round(max(gains), 4),
        "whole_not_optimal": sum(each > 1 for each in whole),
        "whole_worst": round(max(whole), 4),
    }


def _layers(model: list[tuple[int, int]]) -> list[Layer]:
    ready = ready_times([2 * SCALE * time for _, time in model])
    return [Layer(when, SCALE * time, nbytes) for when, (nbytes, time) in zip(ready, model, strict=True)]


def overheads(model: list[tuple[int, int]]) -> dict[str, Any]:
    """Ends of one iteration in units of time: program order, every setting, and the optimum without overheads."""
    layers = _layers(model)
    sizes = sorted({nbytes for nbytes, _ in model} | {each for each in PARTITIONS if each})
    costly = Transfer(tuple((size, SCALE * size + PER_OPERATION) for size in (*sizes, 1 << 20)), ((1 << 20, LATENCY),))
    free = Transfer(((1, SCALE),))
    grid: list[tuple[int | None, int | None, float]] = []
    for partition in PARTITIONS:
        for multiple in CREDITS:
            credit = None if multiple is None or partition is None else multiple * partition
            if partition is None and multiple is not None:
                continue
            end = simulate(layers, costly, partition=partition, credit=credit).end / SCALE
            grid.append((partition, credit, end))
    lowest = min(grid, key=lambda row: row[2])
    return {
        "layers": [list(layer) for layer in model],
        "program_order": simulate(layers, costly, priorities=False).end / SCALE,
        "whole_with_priorities": grid[0][2],
        "best": lowest,
        "without_overheads": simulate(layers, free, partition=1, credit=1).end / SCALE,
        "grid": grid,
    }


def in_the_lab(hosts: int, rates: tuple[int, ...], backend: str, models: list[str], steps: int) -> dict[str, Any]:
    """Step times on hosts of the lab."""
    from lab import Lab

    with tempfile.TemporaryDirectory() as folder, Lab(hosts, 1, rates) as lab:
        output = Path(folder) / "steps.png"
        program = [sys.executable, "-m", "mcr_dl.examples.bytescheduler", "--no-chart", "--chart", str(output)]
        command = [*program, "--steps", str(steps), "--backend", backend, "--models", *models]
        if hosts == 2 and len(rates) == 1:  # a search takes 500 steps
            command.append("--search")
        # Each job compares its plans anew; one backend needs no measurements.
        environment = {"XDG_CACHE_HOME": folder} if "," in backend else {"MCR_DL_TUNING_TABLE": "none"}
        result = lab.start(command, environment).wait(1800, 5)
        if not result.ok:
            raise SystemExit(result.text())
        found: dict[str, Any] = json.loads(output.with_suffix(".json").read_text())
    return {"hosts": hosts, "nics": list(rates), **found}


def report(document: dict[str, Any]) -> str:
    """The Markdown text."""
    lines = [
        "# ByteScheduler",
        "",
        f"`bench/bytescheduler.py` on {document['date']}: {document['machine']}. What the figures mean: "
        "[scheduling](../scheduling.md).",
        "",
        "## Simulation against exhaustive searches",
        "",
        *_exhaustive_text(document["exhaustive"]),
        "## Overheads",
        "",
        *paragraph(
            "Ends of one iteration by simulation, in units of time: a unit of bytes takes one, each operation 0.1 "
            "more, and the latency is 1. The best partition and credit (units of bytes) differ from model to model, so "
            "they are chosen by simulation. *Optimum*: unit partitions without overheads. *Reference*: program order, "
            "best and optimum from an independent calculation for similar models, whose exact layers we do not know. "
            "The layers here are in the JSON file."
        ),
    ]
    rows = []
    for name, found in document["overheads"].items():
        partition, credit, end = found["best"]
        plain = found["program_order"]
        chosen = f"{'whole' if partition is None else partition} / {'unlimited' if credit is None else credit}"
        rows.append([name, f"{plain:.1f}", f"{found['whole_with_priorities']:.1f}", f"{end:.1f}", chosen])
        rows[-1] += [f"{found['without_overheads']:.1f}", f"{plain / end:.2f}"]
        rows[-1].append(" / ".join(map(str, REFERENCE[name])) if name in REFERENCE else "-")
    header = ["model", "program order", "priorities, whole", "best", "partition / credit", "optimum", "gain"]
    header.append("reference")
    lines += table(header, rows)
    if document["steps"]:
        lines += ["", *LAB.format(turn=document["steps"][0]["turn"], scale=emulated.SCALE).splitlines(), ""]
    for steps in document["steps"]:
        lines += _steps_text(steps)
    return "\n".join(lines).rstrip() + "\n"


def _exhaustive_text(found: dict[str, Any]) -> list[str]:
    return paragraph(
        f"All {found['models']:,} models of three layers whose times and sizes are "
        f"{', '.join(map(str, found['values']))}, with partitions and a credit of one unit and no overheads (the "
        f"assumptions of SOSP'19, section 3): the simulated iteration differs from the best of all orders in "
        f"{found['different']}. Program order takes {found['fifo_over_priority_mean']:.3f} times as long on average, "
        f"{found['fifo_over_priority_max']:.3f} times at most. With whole gradients, which nothing interrupts, "
        f"priorities are not the best order in {found['whole_not_optimal']:,} models ({found['whole_worst']:.2f} times "
        "as long at most)."
    )


LAB = """## Step times in the lab

Emulated hosts with one rank each ([lab](../lab.md)); medians of turns of {turn} steps that alternate, each after a step
that does not count; times are from the end of one step to the end of another, so that equally much communication is
in flight at both; speeds are over the faster DDP, by turns (quartiles). vgg16, resnet50 and transformer-base have the
layers of VGG-16, ResNet-50 and the Transformer (base) with 1/{scale} of the parameters, and each layer waits for its
share of the step's time: an accelerator that leaves the host's cores free, with 400 Mbit/s in place of 25 Gbit/s.
vgg, resnet and transformer are small models that the host's cores compute, which communication slows down. *Program
order*: an operation for each gradient as soon as it is ready, from hooks that do nothing else. *Reduce_scatter form*:
DeAR's. *Whole gradients*: ByteScheduler with `partition=None, credit=None`. *Simulated plan*: `tuning="simulation"`.
*ByteScheduler*: `tuning="shortlist"`, the default. *Bayesian search*: `tuning="bayesian"`, on 2 hosts with one NIC.
*Simulated*: the plan's time by simulation. *Optimum*: the least simulated time of all plans that were compared; the
target is 0.95 of it. The bound is the longer of the computation alone and one all_reduce of all gradients alone. Where
a run is faster than that all_reduce (for which `auto` used only one network), the bound is the computation alone. With
several candidates, program order and DDP use `auto`, whose choice the first start's measurements and trials determine,
and ByteScheduler the one that it has measured to be the fastest. *Joined up to N B*: gradients that the forward pass
needs one after the other are one operation, up to N bytes; *buckets of N B*: in program order, gradients are collected
until they have N bytes.

The slides of SOSP'19 report these gains in training speed, over 16 machines of eight V100 with 100 Gbit/s. Nothing here
repeats those settings: parameter servers and GPUs are missing, and what hosts, networks and models are here is said
above.

| model | MXNet, parameter servers, RDMA | TensorFlow, parameter servers | PyTorch, NCCL over TCP |
| --- | ---: | ---: | ---: |
| VGG-16 | 97 to 125 % | 170 to 196 % | 7 to 13 % |
| ResNet-50 | 9 to 15 % | | |
| Transformer | 70 to 171 % | | |

![Speeds over the faster DDP](../images/bytescheduler.png)
"""


def _steps_text(steps: dict[str, Any]) -> list[str]:
    rates = " and ".join(map(str, steps["nics"]))
    lines = [f"### {steps['hosts']} hosts, {rates} Mbit/s, `{steps['backend']}`", ""]
    for row in steps["models"]:
        bound = example.bound(row)
        lines += [
            f"{row['model']}: {row['bytes'] / 1e6:.1f} MB of gradients; one all_reduce of all takes "
            f"{row['communication_ms']:.0f} ms; bound {bound:.0f} ms.",
            "",
        ]
        cells = []
        for name, values in row["turns"].items():
            middle, low, high = example.ratios(row["turns"], name)
            time, plan = median(values), row["plans"].get(name, {})
            simulated, optimum = plan.get("simulated_ms"), plan.get("optimum_ms")
            settings = re.split(r", [0-9.]+ ms a step", plan.get("settings", ""))[0]
            if plan.get("candidate") not in (None, steps["backend"]):
                settings += f", on `{plan['candidate']}`"
            cells.append([name, f"{time:.1f}", f"{middle:.2f} ({low:.2f} to {high:.2f})", f"{bound / time:.2f}"])
            cells[-1] += [f"{simulated:.1f}" if simulated else "", f"{optimum / time:.2f}" if optimum else "", settings]
        lines += table(["way", "ms per step", "speed", "bound / time", "simulated", "optimum / time", "plan"], cells)
    return lines


def main() -> None:
    """Run the parts, and write the report."""
    options = script.parser(__doc__, reports=True)
    options.add_argument("--lab", action="store_true", help="also run training steps in the lab; needs root")
    options.add_argument("--steps", type=int, default=40, help="measured steps of each way (40)")
    options.add_argument("--values", type=int, nargs="+", default=[1, 2, 3], help="times in the exhaustive set (1 2 3)")
    options.add_argument("--keep", type=Path, metavar="JSON", help="take the steps of this earlier report")
    given = script.parse(options, values=[1, 2])
    console = Console(stderr=True)
    with bars(console, ["{task.description}"]) as progress:
        found = exhaustive(tuple(given.values), progress)
    document = {
        "date": date.today().isoformat(),
        "machine": script.machine(),
        "exhaustive": found,
        "overheads": {name: overheads(model) for name, model in MODELS.items()},
        "steps": json.loads(given.keep.read_text())["steps"] if given.keep else [],
    }
    if found["different"]:
        raise SystemExit(f"the simulation differs from the best order in {found['different']} models")
    for hosts, rates, backend, models in SETTINGS if given.lab else ():
        document["steps"].append(in_the_lab(hosts, rates, backend, [*models], given.steps))
    script.publish(given, "bytescheduler", document, report, draw if document["steps"] else None)


if __name__ == "__main__":
    main()
