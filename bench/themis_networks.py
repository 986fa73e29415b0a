# SPDX-License-Identifier: Apache-2.0
"""Networks that bench/themis.py plans for, and figures that others found on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations, permutations

import numpy as np

from mcr_dl.schedule.themis import Dimension, Network

MB = 1_000_000
GB_PER_S = 8  # Gb/s


def _paper(sizes: str, kinds: str, link: str, links: str, latency: str) -> Network:
    """A row of Table 2: bandwidth of a link in Gb/s, links of an NPU, latency in nanoseconds."""
    names = {"SW": "switch", "Ring": "ring", "FC": "fully_connected"}
    rows = zip(*(text.split() for text in (sizes, kinds, link, links, latency)), strict=True)
    return Network.of(
        Dimension(names[kind], int(size), int(each) * int(count), int(delay) / 1000, int(count))  # type: ignore[arg-type]
        for size, kind, each, count, delay in rows
    )


# Table 2 of the paper.
TOPOLOGIES = {
    "2D-SW_SW": _paper("16 64", "SW SW", "200 800", "6 1", "700 1700"),
    "3D-SW_SW_SW_homo": _paper("16 8 8", "SW SW SW", "200 200 800", "4 4 1", "700 700 1700"),
    "3D-SW_SW_SW_hetero": _paper("16 8 8", "SW SW SW", "200 200 400", "8 4 1", "700 700 1700"),
    "3D-FC_Ring_SW": _paper("8 16 8", "FC Ring SW", "200 200 400", "7 4 1", "700 700 1700"),
    "4D-Ring_SW_SW_SW": _paper("4 4 8 8", "Ring SW SW SW", "1000 200 200 400", "2 8 4 1", "20 700 700 1700"),
    "4D-Ring_FC_Ring_SW": _paper("4 8 4 8", "Ring FC Ring SW", "1500 200 200 800", "2 7 6 1", "20 700 700 1700"),
}

# Figure 5: 64 MB of 256 MB take one unit, a millisecond, in dimension 1.
FIGURE_5 = Network.of((Dimension("switch", 4, 384), Dimension("switch", 4, 192)))


def without_latency(network: Network) -> Network:
    """Bandwidth only."""
    return Network.of(replace(each, latency_us=0.0) for each in network.dimensions)


@dataclass(frozen=True)
class Found:
    """Figures of one source: utilizations in percent, speed-ups over the baseline."""

    baseline: float
    fifo: float
    scf: float
    speedup: float


# The authors' simulator (ASTRA-sim, branch ASTRA-sim-1.0, with its analytical network), run with its own scheduler.
AUTHORS = {
    "2D-SW_SW": Found(63.9, 88.4, 96.8, 1.52),
    "3D-SW_SW_SW_homo": Found(35.5, 85.8, 96.0, 2.70),
    "3D-SW_SW_SW_hetero": Found(60.9, 98.0, 98.8, 1.62),
    "3D-FC_Ring_SW": Found(61.5, 79.6, 95.7, 1.56),
    "4D-Ring_SW_SW_SW": Found(55.5, 95.6, 96.4, 1.74),
    "4D-Ring_FC_Ring_SW": Found(62.4, 86.6, 95.2, 1.53),
    "mean": Found(56.58, 88.33, 96.03, 1.77),
}
PAPER = Found(56.31, 87.67, 95.14, 1.72)
PAPER_FIFO, PAPER_MOST = 1.58, 2.70

# An independent simulator of this model, with Table 2's latencies: baseline, FIFO, its speed-up, SCF, its speed-up, in
# the mean over 100, 250, 500 and 1000 MB.
WITH_LATENCY = {
    1: (51.2, 56.2, 1.14, 64.4, 1.30),
    2: (54.8, 71.6, 1.37, 81.1, 1.56),
    4: (55.7, 79.9, 1.50, 89.8, 1.70),
    8: (56.2, 85.1, 1.60, 94.2, 1.76),
    16: (56.4, 88.6, 1.66, 93.3, 1.73),
}
# The same simulator: gains over the baseline with its best number of chunks, by steps in flight and MB.
GAINS = {1: {1: 1.05, 10: 1.11, 100: 1.39, 1000: 1.69}, 8: {1: 1.21, 10: 1.39, 100: 1.74, 1000: 1.82}}


def _boxes(size: int, inner: float, count: int, outer: float) -> Network:
    """``count`` boxes of ``size`` GPUs: GB/s of one GPU in one direction inside and outside."""
    dimensions = (Dimension("switch", size, inner * GB_PER_S), Dimension("switch", count, outer * GB_PER_S))
    return Network.of(dimensions)


# Vendors' figures from memory, not measured here; GB/s of one GPU in one direction.
MACHINES = {
    "16 DGX A100: 8 GPUs, NVLink 300, NIC 25": _boxes(8, 300, 16, 25),
    "16 DGX H100 or H200: 8 GPUs, NVLink 450, NIC 50": _boxes(8, 450, 16, 50),
    "16 HGX B200: 8 GPUs, NVLink 900, NIC 50": _boxes(8, 900, 16, 50),
    "16 boxes near the balance: 8 GPUs, 525, NIC 75": _boxes(8, 525, 16, 75),
    "8 NVL72: 72 GPUs, NVLink 900, NIC 50": _boxes(72, 900, 8, 50),
    "8 NVL72: 72 GPUs, NVLink 900, NIC 100": _boxes(72, 900, 8, 100),
    "8 PCIe 4 boxes: 4 GPUs, PCIe 25, NIC 12.5": _boxes(4, 25, 8, 12.5),
    "torus 4 x 4 x 4, 50 in each dimension": Network.of([Dimension("ring", 4, 400, links=2)] * 3),
    "torus 16 x 16 x 16, 50 in each dimension": Network.of([Dimension("ring", 16, 400, links=2)] * 3),
}


@dataclass(frozen=True)
class Workload:
    """A training workload's collective: bytes per rank, and of which ranks."""

    name: str
    nbytes: int
    source: str
    most_ranks: int | None = None  # the first dimensions, up to so many ranks; None: all


# The paper names the models and the gradients' type (FP16), but has no table of message sizes.
WORKLOADS = (
    Workload("ResNet-152 gradients", 2 * 60_192_808, "60.2 million parameters"),
    Workload("GNMT gradients", 2 * 278_000_000, "278 million parameters (from memory)"),
    Workload(
        "DLRM MLP gradients", 3_191_808, "the sample workload in the authors' repository, one call for all layers"
    ),
    Workload(
        "Transformer-1T activations",
        2 * 16 * 2048 * 25600,
        "mini-batch 16; assumed: 2048 tokens, hidden size 25600",
        128,
    ),
)
PAPER_EXPOSED, PAPER_IDEAL = 1.65, 1.72


def first_dimensions(network: Network, ranks: int) -> Network:
    """The first dimensions, with so many ranks; of the last one only a part if need be."""
    kept: list[Dimension] = []
    left = ranks
    for each in network.dimensions:
        size = min(each.size, left)
        if size > 1:
            kept.append(replace(each, size=size))
            left //= size
    return Network.of(kept)


def bound(network: Network) -> float:
    """The most that orders of dimensions can gain on an all_reduce without latencies: the load of the most loaded
    dimension in the hierarchical order, by that of the best mix of orders (a linear program).
    """
    sizes = [each.size for each in network.dimensions]
    orders = []
    for order in permutations(range(len(sizes))):
        load, rest = [0.0] * len(sizes), 1.0
        for k in order:
            load[k] = rest * (sizes[k] - 1) / sizes[k] / network.dimensions[k].gbps
            rest /= sizes[k]
        orders.append(load)
    loads = np.array(orders)
    best = float(min(load.max() for load in loads))
    # A vertex of the program mixes as many orders as there are equally loaded dimensions.
    for count in range(2, len(sizes) + 1):
        for chosen in combinations(range(len(orders)), count):
            for tight in combinations(range(len(sizes)), count):
                matrix = np.ones((count + 1, count + 1))
                matrix[:count, :count] = loads[np.ix_(chosen, tight)].T
                matrix[:count, count], matrix[count, count] = -1.0, 0.0
                right = np.zeros(count + 1)
                right[count] = 1.0
                if abs(np.linalg.det(matrix / np.abs(matrix).max(axis=1, keepdims=True))) < 1e-14:
                    continue
                solution = np.linalg.solve(matrix, right)
                shares = solution[:count]
                if shares.min() >= -1e-12:
                    best = min(best, float((shares @ loads[list(chosen)]).max()))
    return float(loads[0].max()) / best
