# SPDX-License-Identifier: Apache-2.0
"""Evaluates the measurements of the paper's Figures 8 to 11: gains over one library, and efficiency.

A measurement is the JSON document of `figures_rank.py`. All compared rows come from one run, in which they take turns,
except for the libraries with every NIC, which need other settings and so a separate run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]

TITLES = {"moe": "Figure 8: mixture of experts", "dlrm": "Figure 9: DLRM", "dense": "Figure 10: dense, tensor-parallel"}
AIMS = {"moe": 0.31, "dlrm": 0.25, "dense": 0.20}  # the paper's gains over the best single backend
FUSE = "+fuse"
SINGLE = ("gloo", "mpi")
MIXED = ("mixed", "split", "auto")
PEERS = {"torch": "torch.distributed, gloo", "mpi4py": "mpi4py"}


def unit(document: Document) -> str:
    """The unit of throughput: tokens, samples."""
    return str(document["setting"]["unit"])


def throughputs(document: Document) -> dict[str, float]:
    """By row, at the median step."""
    return {row["row"]: float(row[f"{unit(document)}_per_second"]) for row in document["rows"]}


def quartiles(document: Document) -> dict[str, tuple[float, float]]:
    """By row, of the throughput."""
    return {row["row"]: (row["per_second_quartiles"][0], row["per_second_quartiles"][1]) for row in document["rows"]}


def best(found: Mapping[str, float], names: tuple[str, ...]) -> str:
    """The fastest of these rows, with fusion and without."""
    chosen = [name for name in found if name.removesuffix(FUSE) in names]
    if not chosen:
        raise ValueError(f"rows: expected one of {', '.join(names)}, got {', '.join(found) or 'none'}")
    return max(chosen, key=lambda name: found[name])


@dataclass(frozen=True)
class Gain:
    """The gain of the best mix over the best single library, as a fraction: 0.31 is 31 % more in the same time."""

    single: str
    mix: str
    gain: float
    rails: str | None  # the best single library with every NIC
    rails_gain: float | None
    aim: float

    @property
    def met(self) -> bool:
        """Whether the gain over the best single library reaches the target, with every NIC too if that was measured."""
        return self.gain >= self.aim and (self.rails_gain is None or self.rails_gain >= self.aim)


def gain(document: Document, rails: Document | None) -> Gain:
    """The gain of mixing in one workload on one cluster."""
    found = throughputs(document)
    single, mix = best(found, SINGLE), best(found, MIXED)
    rails_name, rails_gain = None, None
    if rails is not None:
        others = throughputs(rails)
        rails_name = best(others, SINGLE)
        rails_gain = found[mix] / others[rails_name] - 1
    return Gain(single, mix, found[mix] / found[single] - 1, rails_name, rails_gain, AIMS[document["workload"]])


def allowed(document: Document, speedup: float) -> float | None:
    """The gain over gloo if a step's whole communication were this many times as fast, and none of it overlapped with
    computation; None if the communication alone was not measured.
    """
    compute = float(document["compute_alone_seconds"]["median"])
    trials: Mapping[str, float] = document.get("communication_alone_seconds", {})
    for mix, seconds in trials.items():
        if all(part.endswith(" on gloo") for part in mix.split(" + ")):
            return (compute + seconds) / (compute + seconds / speedup) - 1
    return None


def efficiencies(document: Document, alone: Document, cores: int) -> dict[str, float]:
    """By row: throughput relative to one rank alone on one core, times the number of cores in use.

    The usual measure, N ranks against N times one, would be limited by how many ranks share a core here.
    """
    busy = min(int(document["conditions"]["ranks"]), cores)
    base = max(throughputs(alone).values()) * busy
    return {row: rate / base for row, rate in throughputs(document).items()}
