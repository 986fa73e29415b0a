# SPDX-License-Identifier: Apache-2.0
"""Message contents that every rank can compute for all others, and comparison with them.

A message repeats a pattern of `PERIOD` small integers that depend on the rank and on a salt. The expected result of an
operation is then a pattern too, so computing the result of a large reduction costs next to nothing.
"""

from __future__ import annotations

import torch

from mcr_dl.base import reductions

PERIOD = 1021  # a prime, so that no two blocks of a message begin at one offset of the pattern

# Sums must be exact in bfloat16 (integers up to 256) and int8, and products in bfloat16: so this many ranks take part
# in each element, and the others hold the neutral element.
_MOST_SUMMANDS = 120
_MOST_FACTORS = 3
_BIGGEST = 100  # where values are neither added nor multiplied
# The limit for 8-bit types: float8_e5m2 holds the integers up to 8.
_MOST_SHORT_SUMMANDS = 8
_SHORT = (torch.float8_e4m3fn, torch.float8_e5m2)

_COMPARABLE = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    **dict.fromkeys(_SHORT, torch.int8),  # no zero here has a sign
}
_TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-7, torch.complex128: 1e-7}


def _integers(low: int, high: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(low, high + 1, (PERIOD,), generator=generator, device="cpu")


def _magnitudes(dtype: torch.dtype, red: str | None, rank: int, ranks: int, generator: torch.Generator) -> torch.Tensor:
    """Integers whose reduction is exact. No zeros are added: repeated averages would reach slow subnormals."""
    if red in ("SUM", "AVG"):
        most, neutral = _MOST_SHORT_SUMMANDS if dtype in _SHORT else _MOST_SUMMANDS, 0
        high = min(12, max(1, most // ranks))
    elif red == "PRODUCT":
        most, neutral, high = _MOST_FACTORS, 1, 2 if dtype in _SHORT else 3
    else:
        return _integers(0, _BIGGEST, generator)
    values = _integers(1, high, generator)
    takes_part = (torch.arange(PERIOD, device="cpu") + rank) % ranks < most
    return torch.where(takes_part, values, torch.full_like(values, neutral))


def pattern(dtype: torch.dtype, red: str | None, rank: int, ranks: int, salt: int) -> torch.Tensor:
    """The values that `rank` sends: `PERIOD` elements, widest type of the dtype's kind; `red` None: no reduction."""
    generator = torch.Generator().manual_seed(salt * 100_003 + rank)
    if dtype == torch.bool:
        return _integers(0, 1, generator)
    values = _magnitudes(dtype, red, rank, ranks, generator)
    signed = dtype.is_floating_point or dtype.is_complex or dtype.is_signed
    if signed and red not in ("SUM", "AVG"):
        values = values * (2 * _integers(0, 1, generator) - 1)
    if dtype.is_complex:
        imaginary = _integers(-1, 1, generator)
        if red == "PRODUCT":  # only the ranks that take part, or the product would grow with the ranks
            imaginary = torch.where((torch.arange(PERIOD, device="cpu") + rank) % ranks < _MOST_FACTORS, imaginary, 0)
        return torch.complex(values.double(), imaginary.double())
    return values.double() if dtype.is_floating_point else values


def reduced(dtype: torch.dtype, red: str, ranks: int, salt: int, last: int | None = None) -> torch.Tensor:
    """The patterns of all ranks combined, or of ranks 0 to `last`. On bool, SUM is "any", PRODUCT "all", as in torch.

    AVG divides by the number of all ranks.
    """
    combining = range(ranks if last is None else last + 1)
    result = reductions.combined(red, [pattern(dtype, red, rank, ranks, salt) for rank in combining], ranks)
    return (result != 0).long() if dtype == torch.bool else result


def _parts(flat: torch.Tensor, values: torch.Tensor, start: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The repetitions of the pattern in a tensor, as rows, and the rest; each with its expected values."""
    period = values.roll(-start).to(flat.dtype).to(flat.device)
    whole = flat.numel() // PERIOD * PERIOD
    return [(flat[:whole].view(-1, PERIOD), period), (flat[whole:], period[: flat.numel() - whole])]


def fill(flat: torch.Tensor, values: torch.Tensor, start: int = 0) -> None:
    """Repeat a pattern over a one-dimensional tensor that begins at element `start` of a message."""
    for part, content in _parts(flat, values, start):
        part.copy_(content)


def wrong(flat: torch.Tensor, values: torch.Tensor, start: int, red: str | None) -> int:
    """How many elements differ from the pattern; averages of floating-point numbers may differ in their last bits.

    Averages of 8-bit types may not: they are exact sums, rounded once.
    """
    kind = _COMPARABLE.get(flat.dtype, flat.dtype)
    inexact = red == "AVG" and (flat.dtype.is_floating_point or flat.dtype.is_complex) and flat.dtype not in _SHORT
    count = 0
    for part, content in _parts(flat, values, start):
        if inexact:
            same = torch.isclose(part, content.expand_as(part), rtol=_TOLERANCE.get(flat.dtype, 1.3e-6), atol=1e-5)
            count += int((~same).sum())
        else:
            count += int((part.view(kind) != content.view(kind)).sum())
    return count
