# SPDX-License-Identifier: Apache-2.0
"""The expected result of every operation, in plain torch, defined once per operation.

Inputs are functions of a seed, so that every rank knows all of them. They are small integers: sums and products of
four of them are exact in every element type, and of more ranks only four take part in each element. So results are
compared exactly (averages with the type's tolerance; 8-bit averages are one rounding of an exact sum, and compared
exactly too).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mcr_dl.base import reductions

__all__ = ["assert_same", "expected", "thinned", "values"]

Counts = Sequence[int] | Sequence[Sequence[int]]
_FACTORS = 4  # of a sum or product, at most


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of an entry of ``_C.dtypes()``."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def values(dtype: torch.dtype, count: int, seed: int, red: str | None = None) -> torch.Tensor:
    """`count` elements that the reduction keeps exact in any order; unreduced ones use more of the type's range."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high + 1, (count,), generator=generator, device="cpu")

    if dtype == torch.bool:
        return integers(0, 1).to(dtype)
    short = dtype.is_floating_point and dtype.itemsize == 1  # e5m2 holds the integers up to 8, and even ones to 16
    if short and red == "PRODUCT":  # 0 and powers of two
        return ((2 ** integers(0, 2)) * integers(-1, 1)).to(dtype)
    low, high = (0, 100) if red in (None, "MIN", "MAX", "BAND", "BOR", "BXOR") else (0, 2 if short else 12)
    if red == "PRODUCT":
        low, high = 1, 3
    signed = dtype.is_floating_point or dtype.is_complex or dtype.is_signed
    if signed:
        low = -high
    if dtype.is_complex:
        return torch.complex(integers(low, high).double(), integers(low, high).double()).to(dtype)
    return integers(low, high).to(dtype)


def thinned(inputs: Sequence[torch.Tensor], red: str | None) -> list[torch.Tensor]:
    """The inputs of all ranks, of which a sum, an average or a product has four in each element, others in the next
    one; the other ranks hold the neutral value there. Up to four inputs stay as they are, as do other reductions'.
    """
    neutral = {"SUM": 0, "AVG": 0, "PRODUCT": 1}.get(red or "")
    size = len(inputs)
    if neutral is None or size <= _FACTORS:
        return list(inputs)

    def out(rank: int, count: int) -> torch.Tensor:
        return (rank - torch.arange(count, device="cpu")) % size >= _FACTORS

    return [
        torch.where(out(rank, each.numel()), torch.full_like(each, neutral), each) for rank, each in enumerate(inputs)
    ]


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The values in the kind's largest type, in which torch can compute and compare everything."""
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64 if tensor.dtype.is_floating_point else torch.int64)


def reduced(inputs: Sequence[torch.Tensor], red: str, last: int | None = None) -> torch.Tensor:
    """The inputs of all ranks, or of ranks 0 to `last`, combined element by element. On bool a sum is "any" and a
    product is "all", as in torch. AVG divides by the number of all ranks."""
    combining = inputs[: None if last is None else last + 1]
    result = reductions.combined(red, [wide(tensor) for tensor in combining], len(inputs))
    return result.to(inputs[0].dtype)


def _block(tensor: torch.Tensor, counts: Sequence[int], index: int) -> torch.Tensor:
    start = sum(counts[:index])
    return tensor[start : start + counts[index]]


class Expected:
    """One method per op: the expected output of `rank` of the group, packed; None: it has no output.

    `inputs` are the packed inputs of all ranks. `counts` are elements: of each rank's block, or for all_to_all
    ``counts[i][j]`` from rank i to rank j.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], counts: Counts, root: int, red: str, rank: int) -> None:
        self.inputs = inputs
        self.counts = counts
        self.root = root
        self.red = red
        self.rank = rank

    def broadcast(self) -> torch.Tensor:
        return self.inputs[self.root]

    def all_reduce(self) -> torch.Tensor:
        return reduced(self.inputs, self.red)

    def reduce(self) -> torch.Tensor:
        return reduced(self.inputs, self.red) if self.rank == self.root else self.inputs[self.rank]

    def all_gather(self) -> torch.Tensor:
        return torch.cat(list(self.inputs))

    def reduce_scatter(self) -> torch.Tensor:
        return _block(reduced(self.inputs, self.red), self.counts, self.rank)  # type: ignore[arg-type]

    def all_to_all(self) -> torch.Tensor:
        parts = zip(self.inputs, self.counts, strict=True)
        return torch.cat([_block(tensor, row, self.rank) for tensor, row in parts])  # type: ignore[arg-type]

    def gather(self) -> torch.Tensor | None:
        return torch.cat(list(self.inputs)) if self.rank == self.root else None

    def scatter(self) -> torch.Tensor:
        return _block(self.inputs[self.root], self.counts, self.rank)  # type: ignore[arg-type]

    def send(self) -> torch.Tensor:
        """In the ring of the tests every rank sends to the next one and receives from the one before."""
        return self.inputs[self.rank - 1]

    recv = send


def expected(
    op: str, inputs: Sequence[torch.Tensor], counts: Counts, root: int, red: str, rank: int
) -> torch.Tensor | None:
    """The packed output of one rank."""
    result: torch.Tensor | None = getattr(Expected(inputs, counts, root, red, rank), op)()
    return result


def rounded(wide_values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In an 8-bit type, as torch >= 2.13 casts: to nearest even; overflow is infinity, or the largest number."""
    if dtype == torch.float8_e4m3fn:
        wide_values = wide_values.clamp(-448, 448)  # NaN stays; earlier versions of torch turn larger values into NaN
    return wide_values.to(dtype)


def assert_same(got: torch.Tensor, want: torch.Tensor, what: str, red: str = "") -> None:
    """Check equality element by element; averages may differ in their last bits."""
    if red == "AVG" and (want.dtype.is_floating_point or want.dtype.is_complex) and want.dtype.itemsize > 1:
        torch.testing.assert_close(got, want, msg=lambda text: f"{what}: {text}")
        return
    if torch.equal(wide(got), wide(want)):
        return
    bad = (wide(got) != wide(want)).nonzero().flatten()
    first = int(bad[0]) if bad.numel() else -1
    raise AssertionError(
        f"{what}: {bad.numel()} of {want.numel()} elements differ, first at {first}: "
        f"expected {want.flatten()[first : first + 4].tolist()}, got {got.flatten()[first : first + 4].tolist()}"
    )
