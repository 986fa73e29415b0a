# SPDX-License-Identifier: Apache-2.0
"""A deep learning recommendation model, its embedding tables distributed over the ranks, and data to train it on.

As in DLRM (Naumov et al., 2019): a perceptron for the dense features, a table of vectors for each categorical feature,
the products of all pairs of those vectors, and a perceptron on top that says how likely a click is. Layer sizes are
those of the MCR-DL paper (section VI): 512-512-64 below, 1024-1024-1024-1 above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Shape:
    """Sizes of the model. The last layer below and the tables' vectors are equally wide."""

    dense: int = 13  # features, as in Criteo's logs
    tables: int = 24
    rows: int = 5000  # of each table
    below: tuple[int, ...] = (512, 512, 64)
    above: tuple[int, ...] = (1024, 1024, 1024, 1)

    @property
    def width(self) -> int:
        """The width of a table's vectors."""
        return self.below[-1]

    @property
    def pairs(self) -> int:
        """The number of products of two different vectors: those of the tables, and the dense features' one."""
        return (self.tables + 1) * self.tables // 2


def perceptron(inputs: int, layers: Sequence[int]) -> nn.Sequential:
    """Linear layers with rectifiers between them."""
    modules: list[nn.Module] = []
    for index, outputs in enumerate(layers):
        modules += [nn.Linear(inputs, outputs), *([nn.ReLU()] if index < len(layers) - 1 else [])]
        inputs = outputs
    return nn.Sequential(*modules)


class Dense(nn.Module):
    """The two perceptrons, equal on all ranks."""

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.below = nn.Sequential(perceptron(shape.dense, shape.below), nn.ReLU())
        self.above = perceptron(shape.width + shape.pairs, shape.above)
        row, column = torch.tril_indices(shape.tables + 1, shape.tables + 1, offset=-1)
        self.register_buffer("pairs", row * (shape.tables + 1) + column)

    def interact(self, dense: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """The input of the upper perceptron.

        Args:
            dense: (samples, width), from the lower perceptron.
            vectors: (tables, samples, width), from the embedding tables.
        """
        everything = torch.cat([dense[None], vectors]).transpose(0, 1)
        products = torch.bmm(everything, everything.transpose(1, 2)).flatten(1)
        assert isinstance(self.pairs, torch.Tensor)
        return torch.cat([dense, products.index_select(1, self.pairs)], dim=1)


class Tables(nn.Module):
    """One rank's share of the embedding tables."""

    def __init__(self, shape: Shape, numbers: Sequence[int], seed: int) -> None:
        super().__init__()
        tables = []
        for number in numbers:
            # A table's initial values depend on its number, not on its rank.
            random = torch.Generator().manual_seed(seed * 1000 + number)
            values = (2 * torch.rand(shape.rows, shape.width, generator=random) - 1) / math.sqrt(shape.width)
            tables.append(nn.Embedding(shape.rows, shape.width, sparse=True, _weight=values))
        self.tables = nn.ModuleList(tables)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Look up (tables, samples) row numbers; returns (tables, samples, width)."""
        return torch.stack([table(one) for table, one in zip(self.tables, rows, strict=True)])


@dataclass(frozen=True)
class Batch:
    """Samples of all ranks: (samples, dense), (tables, samples) and (samples,)."""

    dense: torch.Tensor
    rows: torch.Tensor
    clicks: torch.Tensor


class Clicks:
    """An endless stream of made-up samples; equal seeds give equal streams.

    Few rows of a table are requested often and many rarely. The features determine whether there is a click: each dense
    feature has a weight, each row of each table a value, and a sample is a click if their sum is positive.
    """

    def __init__(self, shape: Shape, samples: int, seed: int, *, world: int) -> None:
        """`world` is the seed of weights and values, `seed` the seed of the samples."""
        rules = torch.Generator().manual_seed(world)
        self._shape = shape
        self._samples = samples
        self._weights = torch.randn(shape.dense, generator=rules) / math.sqrt(shape.dense)
        self._values = torch.randn(shape.tables, shape.rows, generator=rules) / math.sqrt(shape.tables)
        self._random = torch.Generator().manual_seed(seed)

    def next(self) -> Batch:
        """One step's samples, of all ranks."""
        shape = self._shape
        dense = torch.randn(self._samples, shape.dense, generator=self._random)
        uniform = torch.rand(shape.tables, self._samples, generator=self._random)
        rows = (shape.rows * uniform**3).long().clamp_(max=shape.rows - 1)
        score = dense @ self._weights + 0.5 * self._values.gather(1, rows).sum(dim=0)
        return Batch(dense, rows, (score > 0).float())
