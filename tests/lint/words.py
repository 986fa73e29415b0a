# SPDX-License-Identifier: Apache-2.0
"""Refuses words that CONTRIBUTING.md bans: in documentation, comments, texts and names.

python tests/lint/words.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS = (
    "whoever",
    "nobody",
    "somebody",
    "of ours",
    "for ever",
    "beside",
    "besides",
    "at hand",
    "settle",
    "settles",
    "settled",
)
# A name's parts are words too: `for_ever`, `beside_gloo`.
BANNED = re.compile(
    r"(?<![A-Za-z])(" + "|".join(word.replace(" ", "[ _]") for word in WORDS) + r")(?![A-Za-z])", re.IGNORECASE
)
# A docstring, or a contract in a header, begins with a noun or a verb.
HEADLESS = re.compile(r"(?:\"\"\"|///\s)(What|Those|That(?=[,.])|Who)(?![A-Za-z'])")
SUFFIXES = {".cc", ".cff", ".h", ".md", ".py", ".pyi", ".sh", ".toml", ".txt", ".yml", ""}
# They list the words.
EXEMPT = ("CONTRIBUTING.md", "LICENSE", "tests/fuzz/corpus/", "tests/lint/words.py")
MEASURED = re.compile(r"docs/results/.*\.json")


def found(path: Path) -> list[str]:
    """The banned words of a file, each with its line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []
    return [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r}"
        for number, line in enumerate(lines, 1)
        for match in (*BANNED.finditer(line), *HEADLESS.finditer(line))
    ]


def main() -> None:
    """Print what was found; exit with 1 if there is anything."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and not name.startswith(EXEMPT)]
    names = [name for name in names if not MEASURED.fullmatch(name)]
    paths = [ROOT / name for name in names if Path(name).suffix in SUFFIXES and (ROOT / name).is_file()]
    problems = [text for path in paths for text in found(path)]
    if problems:
        sys.exit("\n".join([*problems, "banned words: CONTRIBUTING.md, Words, says what to write instead"]))


if __name__ == "__main__":
    main()
