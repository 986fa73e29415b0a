# SPDX-License-Identifier: Apache-2.0
"""The part of the lab's report on the paper's Figures 8 to 11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import figures, stages
from markdown_text import table

GAINS = """\
Training with all communication on one library, on two by hand (`mixed`: whole operations; `split`: messages cut over
both), with `auto`, each with and without fusion, and the same training on torch.distributed and mpi4py. Rows take turns
of two steps in one run; *every NIC* (one library with both NICs) needs other settings and is a run of its own. Two NICs
of 400 and 200 Mbit/s carry at most 1.5 times what the first one does, and computing takes its part of a step.
"""

GAINS_READ = """\
*The NICs allow*: the gain over gloo if all communication of a step were 1.5 times as fast and none of it overlapped
with computing. It is an estimate, not a bound: a mix that overlaps more can gain more. The aims are the paper's. *Met*:
against one library with its own NIC, and with every NIC.
"""

WHERE = """\
Where a step's time goes (means over the ranks, medians over the steps; MiB: rank 0; *computing alone*: steps without
communication):
"""

FRAMEWORKS = """\
Throughput of mcr_dl, torch.distributed and mpi4py in each workload on {hosts} hosts; the figures are in the tables
above.
"""

RAIL_WAYS = ("gloo", "gloo, 4 calls at once", "mpi", "mpi, 4 calls at once")
_RAILS = "-rails"


def section(measured: Mapping[str, Mapping[str, Any]], cores: int, images: Path, link: str) -> list[str]:
    """Gains, then each workload, then the frameworks."""
    from lab import charts

    lines = ["## The paper's Figures 8 to 11", ""]
    clusters = [str(shape) for shape in stages.SHAPES]
    found = {
        name: {shape: measured[shape][name] for shape in ("1x1", *clusters) if name in measured[shape]}
        for name in stages.WORKLOADS
    }
    found = {name: each for name, each in found.items() if any(shape in each for shape in clusters)}
    if not found:
        return [*lines, "Not measured.", ""]
    rails = {
        name: {shape: measured[shape][name + _RAILS] for shape in clusters if name + _RAILS in measured[shape]}
        for name in found
    }
    lines += gains(found, rails)
    charts.gains(all_gains(found, rails), images / "lab-gains.png")
    lines += [f"![Gain of the best mix over the best single library]({link}/lab-gains.png)", ""]
    for name, documents in found.items():
        lines += workload(name, documents, rails[name], cores, images, link)
    lines += frameworks(found, images, link)
    return lines


def all_gains(found: Mapping[str, Any], rails: Mapping[str, Any]) -> dict[str, dict[str, figures.Gain]]:
    """The gain of mixing in each workload on each cluster of several ranks."""
    return {
        name: {shape: figures.gain(each, rails[name].get(shape)) for shape, each in documents.items() if shape != "1x1"}
        for name, documents in found.items()
    }


def gains(found: Mapping[str, Any], rails: Mapping[str, Any]) -> list[str]:
    """The gain of mixing, compared with the targets."""
    rows = []
    for name, shapes in all_gains(found, rails).items():
        for shape, each in shapes.items():
            document = found[name][shape]
            other = "" if each.rails_gain is None else f"{each.rails_gain:+.0%} ({each.rails})"
            verdict = "met" if each.met else "**missed**"
            most = figures.allowed(document, sum(stages.NICS) / stages.NICS[0])
            shares = [f"{each.gain:+.0%}", other, "" if most is None else f"{most:+.0%}", f"{each.aim:.0%}"]
            rows.append([f"{name}, {shape}", each.single, each.mix, *shares, verdict])
    others = ["gain", "over one library with every NIC", "the NICs allow", "aim", ""]
    return [GAINS, *table(["", "best single library", "best mix", *others], rows), GAINS_READ]


def workload(
    name: str, documents: Mapping[str, Any], rails: Mapping[str, Any], cores: int, images: Path, link: str
) -> list[str]:
    """One workload: its rows on all clusters, and where the time of a step goes."""
    from lab import charts

    first = next(iter(documents.values()))
    unit = figures.unit(first)
    clusters = [shape for shape in documents if shape != "1x1"]
    rows = list(dict.fromkeys(row for shape in clusters for row in figures.throughputs(documents[shape])))
    cells = []
    for row in rows:
        rates = [figures.throughputs(documents[shape]) for shape in clusters]
        cells.append([row, *(f"{each[row]:,.0f}" if row in each else "" for each in rates)])
    several = [figures.throughputs(rails[shape]) if shape in rails else {} for shape in clusters]
    for row in dict.fromkeys(row for each in several for row in each):
        cells.append([f"{row}, every NIC", *(f"{each[row]:,.0f}" if row in each else "" for each in several)])
    lines = [f"### {figures.TITLES[name]}", "", *_sizes(documents), ""]
    lines += table([f"{unit} per second", *clusters], cells)
    lines += scaling(documents, rows, cores)
    lines += _mixes(documents)
    lines += where(documents)
    lines += [f"![{figures.TITLES[name]}]({link}/lab-{name}.png)", ""]
    charts.workload(name, documents, rails, cores, images / f"lab-{name}.png")
    return lines


def scaling(documents: Mapping[str, Any], rows: Sequence[str], cores: int) -> list[str]:
    """Throughput relative to one rank alone."""
    clusters = [shape for shape in documents if shape != "1x1"]
    if "1x1" not in documents:
        return ["One rank alone was not measured, so that there is no scaling efficiency.", ""]
    found = [figures.efficiencies(documents[shape], documents["1x1"], cores) for shape in clusters]
    cells = [[row, *(f"{each[row]:.0%}" if row in each else "" for each in found)] for row in rows]
    return table(
        [f"throughput as a share of (one rank alone on a core x cores in use, at most {cores})", *clusters], cells
    )


def _sizes(documents: Mapping[str, Any]) -> list[str]:
    return [
        f"- {shape}: {document['setting']['title']}; {document['steps']} steps."
        for shape, document in documents.items()
    ]


def _mixes(documents: Mapping[str, Any]) -> list[str]:
    lines = []
    for shape, document in documents.items():
        for row, text in document.get("mixes", {}).items():
            lines.append(f"- {shape}, `{row}`: {text}.")
        for row, reason in document["refused"].items():
            if shape != "1x1":
                lines.append(f"- {shape}, `{row}` not measured: {reason}.")
    return [*lines, ""] if lines else []


def where(documents: Mapping[str, Any]) -> list[str]:
    """Where the time of a step goes, for the best single library, the best mix and auto."""
    cells = []
    for shape, document in documents.items():
        if shape == "1x1":
            continue
        rates = figures.throughputs(document)
        chosen = dict.fromkeys([figures.best(rates, figures.SINGLE), figures.best(rates, figures.MIXED), "auto"])
        rows = {row["row"]: row for row in document["rows"]}
        alone = document["compute_alone_seconds"]["median"]
        for name in chosen:
            if name not in rows:
                continue
            row = rows[name]
            blocked, hidden = sum(row["blocked_seconds"].values()), row["overlapped_seconds"]
            texts = [row["step_seconds"]["median"], alone, blocked, row["compute_seconds"], hidden or 0.0]
            sent = ", ".join(
                f"{library} {value / 2**20:.1f}" for library, value in sorted(row["bytes_per_step_by_library"].items())
            )
            cells.append([f"{shape}, {name}", *(f"{1e3 * value:.0f}" for value in texts), sent])
    header = [
        "ms",
        "step",
        "computing alone",
        "blocked in communication",
        "rest of the step",
        "communication hidden behind the rest",
        "MiB in calls",
    ]
    return [WHERE, *table(header, cells)]


def frameworks(found: Mapping[str, Any], images: Path, link: str) -> list[str]:
    """The paper's Figure 11, on the cluster with the most hosts."""
    from lab import charts

    shape = max((str(each) for each in stages.SHAPES), key=lambda text: int(text.partition("x")[0]))
    there = {name: documents[shape] for name, documents in found.items() if shape in documents}
    if not there:
        return []
    charts.frameworks(there, shape, images / "lab-frameworks.png")
    lines = [f"### Figure 11: frameworks, {shape}", "", FRAMEWORKS.format(hosts=shape.partition("x")[0])]
    return [*lines, f"![Frameworks]({link}/lab-frameworks.png)", ""]
