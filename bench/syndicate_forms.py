# SPDX-License-Identifier: Apache-2.0
"""Forms of calls in real runs on emulated hosts with two networks, as in figures 16 to 18 of the SYNDICATE paper: an
all_reduce, an all_to_all, and both together. Needs root; about 10 minutes. Writes docs/results/syndicate-forms.md and
syndicate-forms.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import script
import syndicate_forms_rank
from lab import Lab
from markdown_text import size_text, table
from syndicate_forms_rank import Way

HOSTS, RATES = 4, (400, 200)  # Mbit/s: gloo uses the first network, MPI the second
KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 64 * KIB, MIB, 4 * MIB)
LIMIT = 900  # seconds

ON_BOTH = ["gloo", "gloo", "gloo", "mpi"]
ALL_REDUCE: dict[str, Way] = {
    **{
        f"{form} on {name}": [(form, [name] * motifs)]
        for name in ("gloo", "mpi")
        for form, motifs in (("whole", 1), ("ring", 2), ("tree 2", 4), ("tree 4", 2))
    },
    "segment 4 on gloo 3, mpi 1": [("segment 4", ON_BOTH)],
}
ALL_TO_ALL: dict[str, Way] = {
    **{
        f"{form} on {name}": [(form, [name] * motifs)]
        for name in ("gloo", "mpi")
        for form, motifs in (("whole", 1), ("spline 2", 2), ("spline 1", 4))
    },
    "segment 4 on gloo 3, mpi 1": [("segment 4", ON_BOTH)],
}
TOGETHER: dict[str, Way] = {
    "both on gloo": [("whole", ["gloo"]), ("whole", ["gloo"])],
    "both on mpi": [("whole", ["mpi"]), ("whole", ["mpi"])],
    "all_reduce on gloo, all_to_all on mpi": [("whole", ["gloo"]), ("whole", ["mpi"])],
    "all_reduce on mpi, all_to_all on gloo": [("whole", ["mpi"]), ("whole", ["gloo"])],
    "segment 4 of both on gloo 3, mpi 1": [("segment 4", ON_BOTH), ("segment 4", ON_BOTH)],
}

Case = tuple[list[tuple[str, int]], dict[str, Way]]


def cases(sizes: tuple[int, ...]) -> list[Case]:
    """All three figures."""
    figures = ((("all_reduce",), ALL_REDUCE), (("all_to_all",), ALL_TO_ALL), (("all_reduce", "all_to_all"), TOGETHER))
    return [([(op, size) for op in ops], ways) for ops, ways in figures for size in sizes]


def measured(given: list[Case], rounds: int) -> list[dict[str, float]]:
    """Median ms by plan of each case."""
    with tempfile.TemporaryDirectory() as folder, Lab(HOSTS, 1, RATES) as lab:
        output = Path(folder) / "found.json"
        arguments = json.dumps([given, rounds, str(output)])
        result = lab.start([sys.executable, syndicate_forms_rank.__file__, arguments]).wait(LIMIT)
        if not result.ok:
            raise SystemExit(result.text())
        found: list[dict[str, float]] = json.loads(output.read_text())["cases"]
        return found


PAPER = {
    "all_reduce": (
        "Figure 16",
        "a tree is fastest for small messages, a ring for large ones",
    ),
    "all_to_all": (
        "Figure 17",
        "the best form depends on the size, too",
    ),
    "all_reduce, all_to_all": (
        "Figure 18",
        "different libraries on channels that do not overlap are fastest: the all_reduce on NVLink and RDMA (NCCL), "
        "the all_to_all on PCIe and TCP (UCC)",
    ),
}


def markdown(document: dict[str, Any]) -> str:
    """The report: a table for each figure, sizes in columns, the fastest form in bold."""
    lines = [
        "# Forms of calls, next to the paper's figures 16 to 18",
        "",
        f"`python bench/syndicate_forms.py` on {document['date']}: {script.machine()} for",
        f"all hosts of the [lab](../lab.md): {HOSTS} hosts, one rank each, NICs of {RATES[0]} and {RATES[1]} Mbit/s.",
        "gloo uses the first, MPI the second; these stand for the paper's NVLink with RDMA, and PCIe with TCP. Times",
        f"in ms: medians of {4 * document['rounds']} iterations on the slowest rank; the forms take turns of six",
        "iterations, of which the first two do not count. The paper gives its figures as pictures, so the tables have",
        "its findings in words. Forms: see [motifs](../syndicate.md#motifs). *segment 4 on gloo 3, mpi 1*: four equal",
        "parts, three on gloo and one on MPI. Bold: the fastest.",
        "",
    ]
    figures: dict[str, list[dict[str, Any]]] = {}
    for row in document["rows"]:
        figures.setdefault(", ".join(op for op, _ in row["calls"]), []).append(row)
    for ops, rows in figures.items():
        figure, finding = PAPER[ops]
        best = [min(row["ms"].values()) for row in rows]
        body = []
        for name in rows[0]["ms"]:
            times = [row["ms"][name] for row in rows]
            body.append([name, *(f"**{t:.1f}**" if t == b else f"{t:.1f}" for t, b in zip(times, best, strict=True))])
        header = ["form", *(size_text(row["calls"][0][1]) for row in rows)]
        lines += [f"## {figure}: {ops}", "", f"The paper: {finding}.", "", *table(header, body)]
    return "\n".join(lines)


def main() -> None:
    """Measure and report."""
    parser = script.parser(__doc__, reports=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.set_defaults(sizes=SIZES)
    given = script.parse(parser, rounds=1, sizes=SIZES[:1])
    made = cases(given.sizes)
    rows = [{"calls": calls, "ms": found} for (calls, _), found in zip(made, measured(made, given.rounds), strict=True)]
    document = {"date": str(date.today()), "rounds": given.rounds, "rows": rows}
    script.publish(given, "syndicate-forms", document, markdown)


if __name__ == "__main__":
    main()
