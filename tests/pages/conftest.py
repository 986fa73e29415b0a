# SPDX-License-Identifier: Apache-2.0
"""A check that is skipped has not passed."""

from __future__ import annotations

import pytest

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note it."""
    if report.skipped:
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run."""
    if _skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
