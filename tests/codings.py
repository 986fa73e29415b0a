# SPDX-License-Identifier: Apache-2.0
"""Tensors that codecs have encoded and decoded."""

from __future__ import annotations

import torch

from mcr_dl import passes


def around(tensor: torch.Tensor, codec: str) -> torch.Tensor:
    """The tensor, encoded and decoded."""
    return passes.decode(passes.encode(tensor, codec), tensor, codec)


def assert_equal(got: torch.Tensor, want: torch.Tensor) -> None:
    """Values, signs of zeros, and NaNs are the same."""
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(0.5), want.nan_to_num(0.5))
    assert torch.equal(torch.signbit(got)[~got.isnan()], torch.signbit(want)[~want.isnan()])
