# SPDX-License-Identifier: Apache-2.0
"""Syndicate in real runs on emulated hosts with two networks: training steps with and without plans, and a network
whose rate changes while a program runs. Needs root; about 20 minutes. Writes docs/results/syndicate-runs.md,
syndicate-runs.json and their chart.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn

import script
from lab import Lab
from markdown_text import paragraph, table
from mcr_dl.commands.console import Console, bars
from mcr_dl.measure.timing import quartiles

LIMIT = 600  # seconds of one job
AUTO, ORDERED = "", "priority"  # names of turns: without a plan, and with ByteScheduler's order
AIM = 1.2  # speed of the recommendation model over ORDERED
EARLY = 80  # steps, in which the first plan is made


class Cluster(NamedTuple):
    """Hosts, ranks on each, Mbit/s of their NICs: gloo uses the first, MPI the second."""

    hosts: int
    ranks: int
    rates: tuple[int, ...]

    @property
    def text(self) -> str:
        """As in the report."""
        each = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{self.hosts} hosts, {each} each, NICs of {' and '.join(map(str, self.rates))} Mbit/s"


CLUSTERS = (Cluster(2, 1, (400, 200)), Cluster(4, 1, (400, 200)), Cluster(2, 2, (400, 200)))
MODELS = ("dlrm", "moe", "gpt", "ddp")
NAMES = {
    "dlrm": "recommendation model (DLRM)",
    "moe": "mixture of experts",
    "gpt": "tensor-parallel GPT",
    "ddp": "transformer under DDP",
}


def run(cluster: Cluster, model: str, steps: int, *more: str, meanwhile: Callable[[Lab], None] | None = None) -> Any:
    """The report of the example program on a cluster. ``meanwhile``: what happens to the cluster while it runs."""
    with Lab(cluster.hosts, cluster.ranks, cluster.rates) as lab, tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / "found.png"
        given = ["--model", model, "--steps", str(steps), "--chart", str(chart), "--no-chart", *more]
        running = lab.start([sys.executable, "-m", "mcr_dl.examples.syndicate", *given], sink=lambda *_: None)
        if meanwhile is not None:
            meanwhile(lab)
        result = running.wait(LIMIT)
        path = chart.with_suffix(".json")
        if not result.ok or not path.exists():
            raise SystemExit(f"{model}: {result.text()}")
        return {"text": cluster.text, **json.loads(path.read_text())}


def compared(cluster: Cluster, model: str, rounds: int, steps: int) -> dict[str, Any]:
    """Turns of all plans of a model on a cluster."""
    return {"cluster": list(cluster), **run(cluster, model, steps, "--compare", "--rounds", str(rounds))}


def changed(cluster: Cluster, model: str, rate: int, after: float, steps: int) -> dict[str, Any]:
    """A program during which the first NIC of every host gets another rate."""
    moment = 0.0

    def change(lab: Lab) -> None:
        nonlocal moment
        time.sleep(after)
        for host in range(cluster.hosts):
            lab.set_rate(host, 0, rate)
        moment = time.time()

    found = run(cluster, model, steps, meanwhile=change)
    return {"rate": rate, "moment": round(moment, 3), **found}


def turns_of(row: dict[str, Any], name: str) -> list[list[float]]:
    """The times of the turns of a plan."""
    return [turn["ms"] for turn in row["turns"] if turn["plan"] == name]


def speed(row: dict[str, Any], name: str, over: str) -> tuple[float, float, float] | None:
    """Median and quartiles of a plan's speed over another one's, by rounds; a plan that is given up has fewer turns.

    None if one of them has no turn.
    """
    pairs = zip(turns_of(row, over), turns_of(row, name), strict=False)
    ratios = [median(other) / median(own) for other, own in pairs]
    if not ratios:
        return None
    low, middle, high = quartiles(ratios)
    return middle, low, high


def best(row: dict[str, Any]) -> str:
    """The plan that is kept; program order if none is."""
    return row["plan"]["name"] if row["plan"] else AUTO


def _ratio(row: dict[str, Any], name: str, over: str) -> str:
    found = speed(row, name, over)
    if found is None:
        return "-"
    middle, low, high = found
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _row(row: dict[str, Any]) -> list[str]:
    def ms(name: str) -> str:
        found = turns_of(row, name)
        return f"{median(time for turn in found for time in turn):.1f}" if found else "-"

    chosen = best(row)
    return [
        NAMES[row["model"]],
        ms(AUTO),
        ms(ORDERED),
        *(ms(name) for name in ("greedy", "critical path", "search")),
        chosen or "program order",
        _ratio(row, chosen, AUTO) if chosen else "1.00",
        _ratio(row, chosen, ORDERED),
    ]


def markdown(document: dict[str, Any]) -> str:
    """The report."""
    lines = [
        "# Syndicate in real runs",
        "",
        *paragraph(
            f"`sudo python bench/syndicate_runs.py --rounds {document['rounds']}` on {document['date']}: "
            f"{script.machine()} for all hosts of the [lab](../lab.md); gloo uses each "
            "host's first NIC, MPI the second. The programs are those of `python -m mcr_dl.examples.syndicate`; every "
            "call uses `auto`, with the measurements of a first start. Plans and program order take turns of six "
            f"iterations each, {document['rounds']} turns per plan; times are medians in ms on rank 0. `auto` is "
            "program order: what runs without Syndicate. `priority` stands for ByteScheduler: its order on the same "
            "engine, the longest remaining path first, in four segments on `auto`'s backends. Unlike ByteScheduler's, "
            "its segments are not tuned. A plan that equals another one is not tried. Gains are medians of the ratios "
            "of turns of one round, with quartiles."
        ),
        *paragraph(
            "The runs are made with `--compare`: up to ten plans take turns, including those from which simulation "
            "expects no gain (`Syndicate(tries=10, promising=-1.0)`). By default, three do, if simulation expects a "
            "gain of 2 % at least."
        ),
        *_notes(document),
        "![Speed over auto](../images/syndicate-runs.png)",
        "",
    ]
    header = ["program", "auto", "priority", "greedy", "critical path", "search", "kept", "gain over auto"]
    header += ["gain over priority"]
    for text in dict.fromkeys(row["text"] for row in document["rows"]):
        rows = [_row(row) for row in document["rows"] if row["text"] == text]
        lines += [f"## {text}", "", *table(header, rows)]
    lines += [*_of_the_paper(document["rows"]), *_changes(document["changes"])]
    return "\n".join(lines)


def _notes(document: dict[str, Any]) -> list[str]:
    """Remarks on the tables."""
    lines = []
    rows = document["rows"]
    unexpected = [row for row in rows if row["plan"] and any(_expects_nothing(event) for event in row["events"])]
    if unexpected:
        lines += ["So the defaults would have tried no plan, with a gain of 1.00, in:", "", *_listed(unexpected), ""]
    for row in rows:
        step, iterations = median(row["steps"]), [time for turn in turns_of(row, AUTO) for time in turn]
        if row["plan"] and iterations and median(iterations) < step / 2:
            calls = len(row["plan"]["calls"])
            (where,) = _listed([row])
            what = "a single call" if calls == 1 else f"{calls} calls"
            text = f"An iteration of this program is not a training step but {what} of a step of {step:.0f} ms, which "
            text += "makes many, so that its times and gains are not those of a step:"
            lines += [*paragraph(text), where, ""]
    early = [max(row["steps"][:EARLY]) / 1e3 for row in rows]
    later = "".join(f", and {max(each['steps'][EARLY:]) / 1e3:.1f} s after a change" for each in document["changes"])
    if early:
        span = f"{min(early):.1f} s to {max(early):.1f} s{later}"
        lines += paragraph(
            f"The ranks stop to measure and to plan: the longest of the first {EARLY} steps took {span}."
        )
    return lines


def _expects_nothing(event: dict[str, Any]) -> bool:
    return bool(event["what"] == "planned" and event["after"] > 0.98 * event["before"])


def _listed(rows: list[dict[str, Any]]) -> list[str]:
    return [f"- {NAMES[row['model']]}, {row['text'].partition(', NICs')[0]}" for row in rows]


PAPER = (
    ("dlrm", "A1 to A3: DLRM, hybrid-parallel", "1.74, 1.44, 1.38"),
    ("moe", "-", "-"),
    ("gpt", "A5: XLM-R-XL, model-parallel", "1.21"),
    ("ddp", "A6: RegNetZ, data-parallel", "0.97"),
)
"""The paper's models that are most like ours, and their gains over ByteScheduler (figure 11)."""


def _of_the_paper(rows: list[dict[str, Any]]) -> list[str]:
    body = []
    for model, theirs, gain in PAPER:
        found = [row for row in rows if row["model"] == model]
        ours = ", ".join(_ratio(row, best(row), ORDERED).split(" ")[0] for row in found)
        body.append([NAMES[model], ours or "-", theirs, gain])
    return [
        "## The gains in the paper",
        "",
        *paragraph(
            "Gains over ByteScheduler's order, on the clusters above in their order. The paper: 16 hosts with 8 V100 "
            "each, NVLink and 8 networks of 100 Gbit/s. Here two slow networks stand for these channels, and small "
            "models on the CPU for its models. A program for which no plan is kept runs in program order: its gain is "
            f"that of program order over `priority`. The aim was {AIM} for the recommendation model on each "
            f"cluster{_verdict(rows)}."
        ),
        *table(["ours", "gain", "the paper's", "gain"], body),
    ]


def _verdict(rows: list[dict[str, Any]]) -> str:
    """Where the aim was met and where it was missed; a plan without turns has no speed."""
    found: dict[str, list[str]] = {"met": [], "missed": [], "not measured": []}
    for row in rows:
        if row["model"] == "dlrm":
            over, where = speed(row, best(row), ORDERED), row["text"].partition(", NICs")[0]
            if over is None:
                found["not measured"].append(where)
            else:
                found["met" if over[0] >= AIM else "missed"].append(f"{where} ({over[0]:.2f})")
    parts = [f"{verdict} on {' and '.join(places)}" for verdict, places in found.items() if places]
    return "".join(f"; {part}" if at else f": {part}" for at, part in enumerate(parts))


def _changes(changes: list[dict[str, Any]]) -> list[str]:
    lines = ["## A rate that changes", ""]
    for each in changes:
        lines += paragraph(
            f"{each['text']}, {NAMES[each['model']]}: {each['moment'] - each['began']:.0f} s after the first step the "
            f"first NICs got {each['rate']} Mbit/s. Events by step: "
            + "; ".join(f"{event['step']} {event['what']}" for event in each["events"])
            + f". Steps from the change to the decision for a new plan: {each['reaction']}."
        )
    return lines


def reaction(found: dict[str, Any]) -> int | None:
    """Steps from the first one that the change made slower to the decision for a new plan; None without one."""
    now, begun = found["began"], len(found["steps"])
    for index, each in enumerate(found["steps"]):
        now += each / 1e3
        if now >= found["moment"]:
            begun = index
            break
    slower = [event["step"] for event in found["events"] if event["what"] == "slower" and event["step"] >= begun]
    return slower[0] - begun if slower else None


def draw(document: dict[str, Any], path: Path) -> None:
    """Speeds over auto: ByteScheduler's order, and the plan that is kept."""
    clusters = list(dict.fromkeys(row["text"] for row in document["rows"]))
    size = (4.2 * len(clusters), 3.4)
    figure, all_axes = script.pyplot().subplots(1, len(clusters), figsize=size, squeeze=False, sharey=True)
    for axes, text in zip(all_axes[0], clusters, strict=True):
        rows = [row for row in document["rows"] if row["text"] == text]
        for offset, colour, label in ((-0.2, "#808080", "priority order"), (0.2, "#009e73", "the plan that is kept")):
            found = [speed(row, ORDERED if offset < 0 else best(row), AUTO) for row in rows]
            speeds = [1.0 if each is None else each[0] for each in found]
            places = [place + offset for place in range(len(rows))]
            drawn = axes.bar(places, speeds, 0.38, color=colour, label=label)
            axes.bar_label(drawn, [f"{each:.2f}" for each in speeds], fontsize=8)
        axes.axhline(1.0, color="#333333", linewidth=0.8)
        axes.set_xticks(range(len(rows)), [row["model"] for row in rows])
        axes.set_title(text, fontsize=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0][0].set_ylabel("speed over auto")
    all_axes[0][0].set_ylim(top=1.08 * all_axes[0][0].get_ylim()[1])  # room for the numbers
    figure.legend(*all_axes[0][0].get_legend_handles_labels(), fontsize=8, loc="lower center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    script.save(figure, path)


def main() -> None:
    """Measure and report."""
    parser = script.parser(__doc__, reports=True)
    parser.add_argument("--rounds", type=int, default=6)
    parser.set_defaults(clusters=CLUSTERS, models=MODELS, last=40, change=True)
    given = script.parse(parser, rounds=1, clusters=CLUSTERS[:1], models=MODELS[3:], last=5, change=False)
    rows, changes = [], []
    jobs = [(cluster, model) for cluster in given.clusters for model in given.models]
    columns: list[str | ProgressColumn] = ["{task.description}", BarColumn(), MofNCompleteColumn()]
    with bars(Console(stderr=True), columns) as progress:
        for cluster, model in progress.track(jobs, description="jobs"):
            steps = 20 + 5 * 6 * given.rounds + given.last
            rows.append(compared(cluster, model, given.rounds, steps))
    if given.change:
        found = changed(CLUSTERS[0], "dlrm", 100, 60.0, 300)
        changes.append({**found, "reaction": reaction(found)})
    document = {"date": str(date.today()), "rounds": given.rounds, "rows": rows, "changes": changes}
    script.publish(given, "syndicate-runs", document, markdown, draw)


if __name__ == "__main__":
    main()
