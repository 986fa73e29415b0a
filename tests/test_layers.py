# SPDX-License-Identifier: Apache-2.0
"""The check of the layers of ``src`` (tests/lint/layers.py) finds wrong includes."""

from __future__ import annotations

import pytest

from lint import layers


@pytest.mark.parametrize(
    ("name", "includes", "expected"),
    [
        ("base/call.h", ["base/ops.h"], None),
        ("base/call.h", ["engine/pass.h"], "src/base/call.h: includes engine/pass.h, which is not below it"),
        ("engine/dispatch.cc", ["base/call.h", "group/group.h", "engine/pass.h"], None),
        ("engine/dispatch.cc", ["passes/fuse/fuse.h"], "includes passes/fuse/fuse.h"),
        ("backends/mpi/mpi.cc", ["plugin/backend.h", "backends/mpi/library.h"], None),
        ("backends/mpi/mpi.cc", ["choose/select.h"], "includes choose/select.h"),
        ("backends/mpi/mpi.cc", ["backends/nccl/lanes.h"], "includes backends/nccl/lanes.h"),
        ("engine/pass.h", ["engine/pass.h"], "these headers include each other"),
        ("misc/some.h", [], "src/misc: expected a folder of LAYERS"),
    ],
)
def test_includes(name: str, includes: list[str], expected: str | None) -> None:
    """Upward includes, other backends, cycles and unknown folders are named; the rest passes."""
    found = layers.problems({name: includes})
    assert not found if expected is None else len(found) == 1 and expected in found[0]


def test_the_sources() -> None:
    """The tree is checked, not an empty folder."""
    assert layers.main() == 0
    assert len(list(layers.SOURCES.rglob("*.h"))) > 50
