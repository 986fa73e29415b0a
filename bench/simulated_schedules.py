# SPDX-License-Identifier: Apache-2.0
"""The engine's schedules of the calls that simulated.py measures."""

from __future__ import annotations

from dataclasses import dataclass

from mcr_dl import _C

FLOAT = 4  # bytes of an element
EMULATED = {"all_gather": ("float32", 4), "reduce_scatter": ("float32", 4), "all_reduce": ("bfloat16", 2)}


@dataclass(frozen=True)
class Whole:
    """A call: the schedule of each rank, the candidates of its parts, and the codec of its encodings."""

    schedules: list[_C.Schedule]
    parts: tuple[str, ...]
    codec: str = ""

    def issues(self) -> list[tuple[str, str, int, bool]]:
        """Operation, candidate and bytes of rank 0's calls to libraries, and whether a host task comes before them."""
        found: dict[tuple[str, str, int, bool], None] = {}
        for kind, op, nbytes, part, after in self.schedules[0].tasks(len(self.schedules)):
            if kind == "issue":
                found["send" if op == "recv" else op, self.parts[part], nbytes, bool(after)] = None
        return list(found)

    def touched(self) -> int:
        """Bytes of all host tasks on rank 0."""
        return sum(nbytes for kind, _, nbytes, _, _ in self.schedules[0].tasks(len(self.schedules)) if kind != "issue")

    def host_tasks(self) -> list[tuple[str, int]]:
        """Kind and bytes of the host's tasks on rank 0, each once."""
        tasks = self.schedules[0].tasks(len(self.schedules))
        return list(dict.fromkeys((kind, nbytes) for kind, _, nbytes, _, _ in tasks if kind != "issue"))


def whole(kind: str, name: str, nbytes: int, ranks: int) -> Whole:
    """An all_reduce ("stripe(gloo,mpi,67)", "mpi|bf16") or an emulated operation ("all_gather on gloo")."""
    if kind == "striped":
        candidate = _C.CandidateName(name)
        first, second = candidate.parts
        share = int(candidate.variant or 50) * 10
        schedules = [_C.Schedule.striped("all_reduce", nbytes // FLOAT, "float32", share, ranks) for _ in range(ranks)]
        return Whole(schedules, (first, second))
    if kind == "compressed":
        backend, codec = name.split("|")
        schedules = [
            _C.Schedule.compressed("all_reduce", nbytes // FLOAT, "float32", codec, rank, ranks)
            for rank in range(ranks)
        ]
        return Whole(schedules, (backend,), codec)
    op, backend = name.split(" on ")
    dtype, element = EMULATED[op]
    schedules = [_C.Schedule.emulated(op, nbytes // element, dtype, rank, ranks) for rank in range(ranks)]
    return Whole(schedules, (backend,))
