# SPDX-License-Identifier: Apache-2.0
"""The documentation: every page is in the site's menu, what mkdocs warns of fails the build, and the README quotes the
measured gains."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_page_is_in_the_menu() -> None:
    """Pages that no entry of ``nav`` names cannot be found on the site."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = set(re.findall(r"[\w/-]+\.md", nav))
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    hidden = {page for page in pages if page.startswith(("site/", "files/"))}
    assert pages - hidden - listed == set()


def test_warnings_fail_the_build() -> None:
    """``--quiet`` hides the warnings that ``--strict`` counts."""
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if "bin/mkdocs build" in line]
    assert "--strict" in line
    assert "-q" not in line.partition("bin/mkdocs build")[2]


def test_the_readme_quotes_the_lab() -> None:
    """The README's gains are those of the last committed measurement."""
    gain = r"\| ([+-]\d+)% \| ([+-]\d+)%"
    report = (ROOT / "docs" / "results" / "lab.md").read_text()
    measured = re.findall(r"^\| (?:moe|dlrm|dense), \w+ \|[^|]+\|[^|]+" + gain, report, re.MULTILINE)
    assert len(measured) == 9
    quoted = re.findall(r"\| ([+-]\d+) % \(([+-]\d+) %\)(?= \|)", (ROOT / "README.md").read_text())
    assert quoted == measured
