# SPDX-License-Identifier: Apache-2.0
"""``follow.py COPY``: copies the repository, and writes the code blocks of docs/add-*.md where the pages say.

The paragraph before a block says what the block is, for people and for this program:

    `FILE`, before `TEXT`:              lines that go before the line with this text, or ``after``, ``in place of`` it
    `FILE`, in `SCOPE`, before `TEXT`:  the first such line behind the text SCOPE
    `FILE`, a new file:                 all of it
    ... on every rank:                  a program, which the tests run
    ... In a shell:                     commands, which the tests run
    ... of your package:                what belongs to another package

A place that does not exist, or exists twice, ends the program, and so does a block that is none of these.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("add-an-op", "add-a-backend", "add-an-algorithm")
KINDS = {"on every rank:": "program", "In a shell:": "shell", "of your package:": "package"}

_BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PLACE = re.compile(
    r"`(?P<file>[^`]+)`,(?: in `(?P<scope>[^`]+)`,)? "
    r"(?:(?P<where>before|after|in place of) `(?P<line>[^`]+)`|a new file):$"
)


class Misplaced(Exception):
    """A block that cannot be applied; the text says which, and why."""


@dataclass(frozen=True)
class Block:
    """One code block of a page. `kind` is "place" or one of KINDS."""

    page: str
    kind: str
    text: str
    file: str = ""
    scope: str = ""
    where: str = ""  # "": the text is the whole file
    line: str = ""

    def applied(self, content: str) -> str:
        """The file's content with the block applied."""
        start = content.find(self.scope)
        first = content.count("\n", 0, max(start, 0))
        found = [i for i, line in enumerate(content.splitlines()) if self.line in line and i >= first]
        if start < 0 or not found:
            behind = f" behind {self.scope!r}" if self.scope else ""
            raise Misplaced(f"{self}: expected {self.line!r}{behind} in {self.file}")
        if len(found) > 1 and not self.scope:
            raise Misplaced(f"{self}: {self.line!r} is {len(found)} times in {self.file}")
        return self._inserted(content.splitlines(keepends=True), found[0])

    def _inserted(self, lines: list[str], at: int) -> str:
        new = self.text.splitlines(keepends=True)
        if self.where == "in place of":
            return "".join([*lines[:at], *new, *lines[at + 1 :]])
        place = at if self.where == "before" else at + 1
        # If an empty line separates the neighbors, it also separates the block.
        neighbour = place - 1 if self.where == "before" else place
        set_off = 0 <= neighbour < len(lines) and not lines[neighbour].strip()
        gap = ["\n"] if set_off else []
        new = [*new, *gap] if self.where == "before" else [*gap, *new]
        return "".join([*lines[:place], *new, *lines[place:]])

    def __str__(self) -> str:
        return f"docs/{self.page}.md, `{self.text.strip().splitlines()[0]}`"


def blocks(page: str, root: Path = ROOT) -> Iterator[Block]:
    """All code blocks of a page, in order."""
    text = (root / "docs" / f"{page}.md").read_text()
    for match in _BLOCK.finditer(text):
        before = " ".join(text[: match.start()].rstrip().split("\n\n")[-1].split())
        place = _PLACE.search(before)
        kind = next((kind for ending, kind in KINDS.items() if before.endswith(ending)), "")
        if place is not None:
            fields = {name: value or "" for name, value in place.groupdict().items()}
            yield Block(page, "place", match[1], **fields)
        elif kind:
            yield Block(page, kind, match[1])
        else:
            raise Misplaced(f"docs/{page}.md: cannot tell where this block belongs: {before!r}")


def tracked() -> list[str]:
    """The repository's files, including new ones that git does not track yet."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60)
    return [name for name in os.fsdecode(listed.stdout).split("\0") if name and (ROOT / name).is_file()]


def followed() -> tuple[dict[str, bytes], int]:
    """The content of every file after all pages have been applied, and the number of blocks applied."""
    files = {name: (ROOT / name).read_bytes() for name in tracked()}
    number = 0
    for page in PAGES:
        for block in blocks(page):
            if block.kind != "place":
                continue
            number += 1
            if not block.where:
                if block.file in files:
                    raise Misplaced(f"{block}: {block.file} is there already")
                files[block.file] = block.text.encode()
            elif block.file in files:
                files[block.file] = block.applied(files[block.file].decode()).encode()
            else:
                raise Misplaced(f"{block}: expected a file {block.file}")
    return files, number


def write(files: dict[str, bytes], copy: Path) -> None:
    """Make the copy hold these files; unchanged files keep their time, so that a build can continue."""
    for path in [path for path in copy.rglob("*") if path.is_file() or path.is_symlink()]:
        name = str(path.relative_to(copy))
        if name not in files and not name.startswith(("build/", ".")):
            path.unlink()
    for name, content in files.items():
        path = copy / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        path.chmod((ROOT / name).stat().st_mode if (ROOT / name).exists() else 0o644)


def main(folder: str) -> int:
    """Apply the pages; returns the exit code."""
    try:
        files, number = followed()
    except Misplaced as problem:
        print(problem, file=sys.stderr)
        return 1
    write(files, Path(folder))
    # A separate repository: tools that read .gitignore would find that this one ignores all of build/.
    subprocess.run(["git", "init", "--quiet", folder], check=True, timeout=60)
    print(f"{number} blocks of {len(PAGES)} pages are in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
