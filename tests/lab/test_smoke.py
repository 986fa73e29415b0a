# SPDX-License-Identifier: Apache-2.0
"""The smoke mode of `bench/lab suite`: one stage on one cluster, with its report."""

from __future__ import annotations

import smoke


def test_smoke() -> None:
    text = smoke.run("lab", "suite")
    assert "1/1 2x1-bandwidth" in text
    assert "1 of" in text
