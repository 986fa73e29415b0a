# SPDX-License-Identifier: Apache-2.0
"""A skipped check counts as failed."""

from __future__ import annotations

import pytest

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note skipped checks."""
    if report.skipped:
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a check was skipped."""
    if _skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
