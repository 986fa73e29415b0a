# SPDX-License-Identifier: Apache-2.0
"""``reports.py FOLDER``: counts the sanitizers' reports in FOLDER/report.*; exit code 1 if one has a frame of mcr_dl.

UBSan writes none: it ends the process, and the test that ran it fails with its text.
A report without such a frame comes from code compiled without sanitizers (Python, torch, MPICH): counted, not an error.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

# By library, or by source: not every sanitizer prints both.
SOURCES = f"{Path(__file__).resolve().parents[2] / 'src'}/"
OURS = (SOURCES, "libmcr_dl_core", "mcr_dl/_backends/", "_backends/null.so", "mcr_dl/_C.")


def _reports(text: str) -> list[str]:
    """Each report from its first line on."""
    found: list[str] = []
    for line in text.splitlines():
        if "ERROR: AddressSanitizer" in line or "WARNING: ThreadSanitizer" in line:
            found.append("")
        if found:
            found[-1] += line + "\n"
    return found


def _ours(report: str) -> str | None:
    """The first frame in a library of mcr_dl."""
    frames = [line.strip() for line in report.splitlines() if line.lstrip().startswith("#")]
    return next((frame for frame in frames if any(mark in frame for mark in OURS)), None)


def main(folder: str) -> int:
    reports = [
        report
        for file in sorted(Path(folder).glob("report.*"))
        for report in _reports(file.read_text(errors="replace"))
    ]
    places = Counter(
        (report.partition("\n")[0].partition(":")[2].partition("(pid")[0].strip()[:80], _ours(report))
        for report in reports
    )
    ours = {key: count for key, count in places.items() if key[1] is not None}
    print(f"{folder}: {len(reports)} reports, {sum(ours.values())} with a frame of mcr_dl")
    for (what, where), count in sorted(ours.items(), key=lambda each: -each[1]):
        print(f"  {count} x {what}\n      {where}")
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
