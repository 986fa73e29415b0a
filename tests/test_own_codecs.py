# SPDX-License-Identifier: Apache-2.0
"""Users' codecs that are wrong: errors that name the codec, when it is registered or used."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mcr_dl
from mcr_dl import passes
from ranks import codec_faults


def test_a_capacity_that_raises() -> None:
    """The error names the codec, the arguments and the exception."""

    class Raising(codec_faults.Broken):
        def capacity(self, *_: Any) -> int:
            raise KeyError("table")

    passes.register_codec(Raising("nowhere"), "capacity-raises")
    wrong = r"^codec capacity-raises: capacity\(5, 'float32'\): KeyError: 'table'$"
    with pytest.raises(mcr_dl.InvalidArgumentError, match=wrong):
        passes.encode(torch.ones(5), "capacity-raises")
