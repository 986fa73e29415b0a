# SPDX-License-Identifier: Apache-2.0
"""torch's debug level, which is read when a process starts."""

from __future__ import annotations

import pytest

from harness import launchers

pytestmark = pytest.mark.timed

PROGRAM = str(launchers.TESTS / "programs" / "debug_detail.py")


@pytest.mark.parametrize("underneath", ["mpi", "gloo"])
def test_detail(underneath: str) -> None:
    """See the program's docstring."""
    variables = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "ERROR", "MCR_DL_BACKENDS": underneath}
    codes, text = launchers.together(
        [([*launchers.TORCHRUN, "2", PROGRAM, "mcr"], {**variables, "MCR_DL_TUNING_TABLE": "none"})]
    )
    assert codes == [0], text
    assert text.count(": done") == 2
