# SPDX-License-Identifier: Apache-2.0
"""The reductions on tensors of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch

_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,  # and a division
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def combined(red: str, parts: Sequence[torch.Tensor], ranks: int) -> torch.Tensor:
    """The parts, of one shape and type, combined element by element from the first on.

    AVG divides by ``ranks``; averages of whole numbers are rounded towards zero.
    """
    result = reduce(_COMBINE[red], parts)
    if red != "AVG":
        return result
    whole = not (result.is_floating_point() or result.is_complex())
    return torch.div(result, ranks, rounding_mode="trunc" if whole else None)
