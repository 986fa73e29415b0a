# SPDX-License-Identifier: Apache-2.0
"""The JSON of results: one row per line, in what the code writes and in what is committed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcr_dl.base import documents

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_results_have_one_row_per_line(path: Path) -> None:
    """A script that writes a result again changes only the lines whose figures change."""
    text = path.read_text(encoding="utf-8")
    assert text == documents.rows(json.loads(text)) + "\n", "write it with mcr_dl.base.documents.write_rows"


def test_rows(tmp_path: Path) -> None:
    """A row is one line, however long; texts stay as they are; what was written is read back."""
    long = {"name": "µs of a row", "times": list(range(60))}
    document = {
        "short": {"a": 1, "b": [2, 3]},
        7: [long, {"flat": "x" * 200}],
        "empty": [[], {}] * 40,
        "pair": (1, None),
    }
    path = tmp_path / "result.json"
    documents.write_rows(path, document)
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == json.loads(json.dumps(document))
    lines = text.splitlines()
    assert '  "short": {"a": 1, "b": [2, 3]},' in lines
    assert f'      "times": {json.dumps(long["times"])}' in lines
    assert '      "name": "µs of a row",' in lines
    assert f"    {json.dumps({'flat': 'x' * 200})}" in lines
    assert lines.count("    [],") + lines.count("    {},") == 79
    assert documents.rows([]) == "[]"
    assert documents.rows(1.5) == "1.5"
