# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the pools of rank processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import Pools


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """Pools of ranks by launcher and size; a pool that a failure has ended is replaced by a fresh one."""
    session = Pools()
    yield session
    session.close()
