# SPDX-License-Identifier: Apache-2.0
"""Forked children of ranks: whatever they call, the ranks' job goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

import jobs
from mcr_dl.testing.nursery import Nursery


@pytest.mark.parametrize("backend", ["mpi", "gloo", "shm"])
def test_a_child_leaves_the_job_of_its_parent_alone(nursery: Nursery, tmp_path: Path, backend: str) -> None:
    """Functions that end, change or make groups raise NotInitializedError in a forked process, and do nothing else."""
    ranks = jobs.start(nursery, "forking", [backend, str(tmp_path)], 2)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0, "CHILD {}", "CODE 7", "DONE")
