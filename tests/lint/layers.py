# SPDX-License-Identifier: Apache-2.0
"""Checks that includes in ``src`` point downwards, and that no two headers include each other: layers.py [--draw].

A folder may include itself and the folders before it in ``LAYERS``. A backend may include the folders for plugins
(``PLUGIN``) and its own folder, so that every backend could live outside this repository.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"

# Lowest first.
LAYERS = (
    "base",  # types, operations, calls, errors, reductions
    "algorithms",  # calls as schedules
    "device",  # streams, events and memory of devices
    "plugin",  # the interface of a backend
    "observe",  # positions, activities, records, the profiler, stops
    "runtime",  # loaded backends, works and their progress
    "choose",  # the candidate of a call
    "codecs",
    "group",
    "engine",  # the path of every call
    "passes",
    "bindings",  # Python and torch
)
PLUGIN = {"base", "device", "plugin"}
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def includes(path: Path) -> list[str]:
    """The files of ``src`` that a file includes."""
    return [name for name in _INCLUDE.findall(path.read_text()) if (SOURCES / name).exists()]


def upward(name: str, included: Iterable[str]) -> list[str]:
    """The includes of a file that are not allowed."""
    folder = name.split("/", maxsplit=1)[0]
    if folder == "backends":
        family = "/".join(name.split("/")[:2]) + "/"
        return [each for each in included if each.split("/")[0] not in PLUGIN and not each.startswith(family)]
    allowed = LAYERS[: LAYERS.index(folder) + 1]
    return [each for each in included if each.split("/")[0] not in allowed]


def problems(files: dict[str, list[str]]) -> list[str]:
    """One line for each include that points upwards, and for a cycle of headers."""
    unknown = {name.split("/")[0] for name in files} - {*LAYERS, "backends"}
    found = [f"src/{folder}: expected a folder of LAYERS in tests/lint/layers.py" for folder in sorted(unknown)]
    for name, included in files.items():
        if name.split("/")[0] not in unknown:
            found += [f"src/{name}: includes {each}, which is not below it" for each in upward(name, included)]
    try:
        TopologicalSorter({name: included for name, included in files.items() if name.endswith(".h")}).prepare()
    except CycleError as error:
        found.append("these headers include each other: " + " -> ".join(error.args[1]))
    return found


def draw(files: dict[str, list[str]], layers: Sequence[str]) -> str:
    """The layers, highest first, with the number of includes from each to the others."""
    lines = []
    for layer in reversed(layers):
        below: dict[str, int] = {}
        for name, included in files.items():
            for each in included if name.startswith(f"{layer}/") else []:
                if not each.startswith(f"{layer}/"):
                    below[each.split("/")[0]] = below.get(each.split("/")[0], 0) + 1
        lines.append(f"{layer:13} {', '.join(f'{folder} {count}' for folder, count in sorted(below.items()))}")
    return "\n".join(lines)


def main() -> int:
    """Run the command."""
    paths = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".h", ".cc"))
    files = {str(path.relative_to(SOURCES)): includes(path) for path in paths}
    if "--draw" in sys.argv[1:]:
        print(draw(files, (*LAYERS, "backends")))
    found = problems(files)
    print("\n".join(found), end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
