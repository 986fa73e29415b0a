# SPDX-License-Identifier: Apache-2.0
"""The smoke mode of bench/deepspeed_steps.py: every case on every kind of communication, for two steps."""

from __future__ import annotations

import smoke


def test_smoke() -> None:
    text = smoke.run("deepspeed_steps.py", limit=280.0)  # DeepSpeed takes seconds to start, six times
    assert "# DeepSpeed's step time" in text
