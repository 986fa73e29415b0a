# SPDX-License-Identifier: Apache-2.0
"""The basis of the tests: time limits of second attempts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import launchers

_LIMIT = 100.0  # seconds; each of these takes a few

# A file of this name runs a failed test once more.
_TIMED = "test_tune.py"
_HANGS = {
    "second attempt": """
        import threading
        attempts = []
        def test():
            attempts.append(None)
            assert len(attempts) > 1, "the first attempt"
            threading.Event().wait()
    """,
    "end": """
        import threading, pytest
        @pytest.fixture
        def hangs():
            yield
            threading.Event().wait()
        def test(hangs):
            raise AssertionError("the first attempt")
    """,
}


@pytest.mark.parametrize("method", ["signal", "thread"])
@pytest.mark.parametrize("place", _HANGS)
def test_what_follows_a_failure_has_a_time_limit(tmp_path: Path, place: str, method: str) -> None:
    """The second attempt of a test, and the end of its fixtures."""
    lines = _HANGS[place].splitlines()
    (tmp_path / _TIMED).write_text("\n".join(line[8:] for line in lines))
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "--timeout=2", f"--timeout-method={method}"]
    code, text = launchers.finish([*command, _TIMED], tmp_path, launchers.environment(), _LIMIT)
    assert code == 1, text
    assert "Timeout" in text, text
    assert "threading.Event().wait()" in text, text
