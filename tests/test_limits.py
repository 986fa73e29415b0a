# SPDX-License-Identifier: Apache-2.0
"""Limits of waits, and of operations whose group ends, on real processes."""

from __future__ import annotations

import re

import pytest

import jobs
from mcr_dl.testing.nursery import Nursery


@pytest.mark.parametrize("module", ["mcr_dl", "torch"])
@pytest.mark.parametrize("backend", ["mpi", "shm"])
def test_a_wait_for_longer_than_the_timeout(nursery: Nursery, backend: str, module: str) -> None:
    """The call does not fail before that wait ends, and another call does so at its timeout."""
    ranks = jobs.start(nursery, "limits", ["waits", backend, module], 2)
    jobs.end(nursery, ranks)
    assert ["DONE" in rank.text for rank in ranks] == [True] * 2, [rank.text for rank in ranks]
    assert ["RAISED" in rank.text for rank in ranks] == [True, False], [rank.text for rank in ranks]
    assert re.search(r"RAISED CollectiveTimeoutError .* timed out: .* after the timeout of 1000 ms", ranks[0].text)


@pytest.mark.parametrize("chain", ["", "fuse"])
@pytest.mark.parametrize("backend", ["mpi", "shm"])
def test_a_group_ends_with_pending_calls(nursery: Nursery, backend: str, chain: str) -> None:
    """Calls that the other ranks join complete first. Others are named in a warning and fail; the group ends anyway."""
    ranks = jobs.start(nursery, "limits", ["ends", backend, chain], 2)
    jobs.end(nursery, ranks)
    assert [rank.code for rank in ranks] == [0, 0], [rank.text for rank in ranks]
    assert [rank.text.count("ENDED") for rank in ranks] == [2, 2], [rank.text for rank in ranks]
    warning = r"WARNED .*some operations of group 'group-\d+' were still running and are abandoned"
    assert re.search(warning, ranks[0].text), ranks[0].text
    assert re.search(r"RAISED .*the group has been destroyed", ranks[0].text), ranks[0].text
    assert "WARNED []" in ranks[1].text, ranks[1].text
