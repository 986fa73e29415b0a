# SPDX-License-Identifier: Apache-2.0
"""The table at the end of gpu_check.sh, and all results in one file.

    python -m gpu.table FOLDER [--rehearsal]

FOLDER/stages.tsv has a line for each stage: name, exit code or "-", seconds, and the reason if it did not run. A stage
whose JSON says "slow" may run out of time without failing. This needs neither torch nor mcr_dl, so it works even if the
build has failed.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

SHOWN = ("4", "1024", "65536", "1048576", "16777216", "268435456")  # sizes in bytes
_WIDTH = 118
_TIMED_OUT = (124, 137)
_NOT_RUN = ("-", "77")  # left out, or the stage does not apply here


def _result(folder: Path, stage: str) -> dict[str, Any]:
    path = folder / f"{stage}.json"
    if not path.exists():
        return {}
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def stages(folder: Path) -> list[dict[str, Any]]:
    """By stage: "ok", "FAILED" or "not run", its seconds and its text."""
    found = []
    for line in (folder / "stages.tsv").read_text().splitlines():
        name, code, seconds, words = line.split("\t")
        result = _result(folder, name)
        state = "not run" if code in _NOT_RUN else "ok" if code == "0" else "FAILED"
        if code.isdecimal() and int(code) in _TIMED_OUT:
            words = "ran past its time; " + words
            state = "not run" if result.get("slow") else state  # it may be too slow for the available time
        text = "; ".join(part for part in (words, result.get("line", ""), result.get("problem", "")) if part)
        found.append({"stage": name, "state": state, "seconds": float(seconds or 0), "text": text, "result": result})
    return found


def _wrapped(text: str, indent: int) -> list[str]:
    """Lines of at most _WIDTH characters, the later ones indented."""
    words, width = " ".join(text.split()), _WIDTH - indent
    return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False) or [""]


def _times(result: dict[str, Any]) -> list[str]:
    """Host and device µs of some sizes."""
    lines = []
    if any(row.get("late") for rows in result.get("rows", {}).values() for row in rows.values()):
        lines.append("  *: the device had to wait for the host, whose time this is")
    for title, rows in result.get("rows", {}).items():
        for nbytes in SHOWN:
            if nbytes in rows:
                row = rows[nbytes]
                host = " ".join(f"{name} {us:.1f}" for name, us in row["host_us"].items())
                late = row.get("late", ())
                device = " ".join(f"{name} {us:.1f}{'*' * (name in late)}" for name, us in row["device_us"].items())
                lines.append(f"  {title:24} {int(nbytes):>10} B   host µs: {host:40} device µs: {device}")
    return lines


def main() -> int:
    """Print the table, write FOLDER/gpu_check.json; exit code 1 if a stage failed or none has run."""
    folder, rehearsal = Path(sys.argv[1]), "--rehearsal" in sys.argv
    found = stages(folder)
    (folder / "gpu_check.json").write_text(
        json.dumps({"rehearsal": rehearsal, "stages": found}, indent=1, ensure_ascii=False) + "\n"
    )
    print()
    for each in found:
        if each["stage"].startswith("overhead") and each["result"].get("rows"):
            print(f"{each['stage']}:", *_times(each["result"]), sep="\n")
    print()
    if rehearsal:
        print("A REHEARSAL on the CPU: it shows that the scripts run, and nothing about a GPU.")
    for each in found:
        head = f"{each['stage']:16} {each['state']:8} {each['seconds']:5.0f} s  "
        first, *others = _wrapped(each["text"], len(head))
        print(head + first)
        for line in others:
            print(" " * len(head) + line)
    states = [each["state"] for each in found]
    print(f"{states.count('ok')} stages ok, {states.count('FAILED')} failed, {states.count('not run')} not run")
    return int("FAILED" in states or "ok" not in states)


if __name__ == "__main__":
    sys.exit(main())
