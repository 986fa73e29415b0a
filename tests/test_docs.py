# SPDX-License-Identifier: Apache-2.0
"""The documentation's site: every page is in its menu, and what mkdocs warns of fails the build."""

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
