# SPDX-License-Identifier: Apache-2.0
"""Hooks of MkDocs (mkdocs.yml): pages of docs/ link to files of the repository as they do on the code host.

Three pages of the repository's root become pages of the site (``PAGES``). Every other file that a page links to becomes
a page with its text. A link to a file that does not exist is a warning, which ends a strict build.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LOG = logging.getLogger("mkdocs.hooks.links")
PAGES = {"README.md": "overview.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
FENCE = re.compile(r"^ *(```|~~~)")
# What a browser fetches from another host without being asked to.
FETCHED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)[^>]*>")
LANGUAGES = {".py": "python", ".json": "json", ".cff": "yaml", ".sh": "bash", ".h": "cpp", ".cc": "cpp"}


def target_of(link: str, folder: Path, root: Path, docs: Path) -> tuple[str, Path | None]:
    """The page of the site that a link leads to, with the file to show there; the link itself if it stays in docs/."""
    path, _, anchor = link.partition("#")
    if not path or re.match(r"[a-z]+:|/", path):
        return link, None
    file = (folder / path).resolve()
    if folder.is_relative_to(docs) and file.is_relative_to(docs):
        return link, None
    tail = f"#{anchor}" if anchor else ""
    if file.is_relative_to(docs):
        return file.relative_to(docs).as_posix() + tail, None
    name = file.relative_to(root).as_posix() if file.is_relative_to(root) else path
    if name in PAGES:
        return PAGES[name] + tail, None
    if not file.is_file():
        LOG.warning("%s: expected a file of the repository, got the link '%s'", folder, link)
        return link, None
    return f"files/{name}.md", file


def rewritten(text: str, folder: Path, base: str, root: Path, docs: Path) -> tuple[str, list[Path]]:
    """The text of a page in ``folder`` with links for the site's folder ``base``, and the files that it links to."""
    files: list[Path] = []

    def replace(match: re.Match[str]) -> str:
        target, file = target_of(match[1], folder, root, docs)
        files.extend([file] if file else [])
        return match[1] if target == match[1] else os.path.relpath(target, base or ".")

    lines, fenced = [], False
    for line in text.split("\n"):
        fenced ^= bool(FENCE.match(line))
        lines.append(line if fenced else LINK.sub(replace, line))
    return "\n".join(lines), files


def places(config: Any) -> tuple[Path, Path]:
    """The folder of the repository and its docs/."""
    return Path(config.config_file_path).resolve().parent, Path(config.docs_dir).resolve()


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, and a page for every file that some page links to."""
    root, docs = places(config)
    linked: set[Path] = set()
    for name, page in PAGES.items():
        text, found = rewritten((root / name).read_text(encoding="utf-8"), root, "", root, docs)
        files.append(File.generated(config, page, content=text))
        linked.update(found)
    for file in docs.rglob("*.md"):
        linked.update(rewritten(file.read_text(encoding="utf-8"), file.parent, "", root, docs)[1])
    for file in sorted(linked):
        name = file.relative_to(root).as_posix()
        text = file.read_text(encoding="utf-8")
        content = f"# {name}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text}\n````\n"
        files.append(File.generated(config, f"files/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead the links that leave docs/ to pages of the site."""
    del files
    if page.file.generated_by:
        return markdown
    root, docs = places(config)
    folder = Path(page.file.abs_src_path).resolve().parent
    return rewritten(markdown, folder, os.path.dirname(page.file.src_uri), root, docs)[0]


def on_post_build(config: Any) -> None:
    """Check that no page fetches anything from another host."""
    for file in sorted(Path(config.site_dir).rglob("*.html")):
        for url in FETCHED.findall(file.read_text(encoding="utf-8")):
            LOG.warning("%s: expected files of the site alone, got %s", file.relative_to(config.site_dir), url)
