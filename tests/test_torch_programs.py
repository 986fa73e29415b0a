# SPDX-License-Identifier: Apache-2.0
"""Whole torch programs on the backend "mcr": found without an import, and ended without output."""

from __future__ import annotations

import pytest

from harness import launchers


@pytest.mark.parametrize(
    ("end", "underneath"),
    [
        ("destroyed", "mpi,gloo"),
        ("forgotten", "mpi"),
        ("forgotten", "gloo"),
        ("group destroyed", "mpi,gloo"),
        ("works left", "mpi,gloo"),
    ],
)
def test_it_ends_without_a_word(end: str, underneath: str) -> None:
    """Exit code 0 and no output, whatever the program leaves behind."""
    codes, text = launchers.torch_alone(2, end, MCR_DL_BACKENDS=underneath)
    assert codes == [0, 0], text
    assert text.strip() == ""


def test_its_exit_code_is_its_own() -> None:
    """Even if it forgets to destroy the groups."""
    codes, text = launchers.torch_alone(3, "exit code", MCR_DL_BACKENDS="mpi")
    assert codes == [3] * 3, text
    assert text.strip() == ""


def test_unknown_library_underneath() -> None:
    """One error on every rank, which names the known ones."""
    codes, text = launchers.torch_alone(2, "destroyed", MCR_DL_BACKENDS="mpi,nothing")
    assert codes == [1, 1], text
    assert text.count("InvalidArgumentError: MCR_DL_BACKENDS: expected one of nccl, shm, mpi, gloo") == 2
    assert "'nothing'" in text


def test_library_that_cannot_be_used() -> None:
    """The error names the library and the reason."""
    codes, text = launchers.torch_alone(2, "destroyed", MCR_DL_BACKENDS="mpi", MCR_DL_MPI_LIB="/nowhere/libmpi.so")
    assert codes == [1, 1], text
    assert text.count("BackendUnavailableError: backend 'mpi' is unavailable") == 2
    assert "/nowhere/libmpi.so" in text
