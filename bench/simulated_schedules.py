# SPDX-License-Identifier: Apache-2.0
"""Calls as schedules, made by hand, for simulated.py. The place for the engine's own schedules of such calls."""

from __future__ import annotations

from dataclasses import dataclass

from mcr_dl import _C, passes

FLOAT = 4  # bytes of an element


@dataclass(frozen=True)
class Whole:
    """A call: the schedule of each rank, what its parts stand for, and the codec of its encodings."""

    schedules: list[_C.Schedule]
    parts: tuple[str, ...]
    codec: str = ""


def encoded_bytes(codec: str, count: int) -> int:
    """Bytes of that many float32 elements, encoded."""
    import torch

    return passes.encode(torch.zeros(count), codec).numel()


def cut(nbytes: int, percent: int) -> tuple[int, int]:
    """The two pieces of a striped message: whole grains of 64 elements for the first library."""
    length = nbytes // FLOAT
    first = length // 100 * percent // 64 * 64
    return first * FLOAT, (length - first) * FLOAT


def striped(nbytes: int, ranks: int, first: str, second: str, percent: int) -> Whole:
    """An all_reduce cut over two libraries."""
    schedules = [_C.Schedule() for _ in range(ranks)]
    for schedule in schedules:
        for part, piece in enumerate(cut(nbytes, percent)):
            schedule.issue("all_reduce", piece, [], part)
    return Whole(schedules, (first, second))


def shares(nbytes: int, ranks: int) -> int:
    """Elements of one rank's part of a compressed all_reduce; the sizes here divide, but for three ranks."""
    return -(-nbytes // FLOAT // ranks)


def compressed(nbytes: int, ranks: int, backend: str, codec: str) -> Whole:
    """An all_reduce: each rank encodes all parts, combines its own of all ranks, and encodes the sum for all."""
    share = shares(nbytes, ranks)
    size = encoded_bytes(codec, share)
    schedules = [_C.Schedule() for _ in range(ranks)]
    for schedule in schedules:
        encoded = [schedule.encode(share, "float32", size) for _ in range(ranks)]
        last = schedule.issue("all_to_all", size * ranks, encoded, dtype="uint8")
        last = schedule.decode(share, "float32", size, [last])
        for _ in range(ranks - 1):
            last = schedule.decode(share, "float32", size, [last])
            last = schedule.combine(share, "float32", [last])
        last = schedule.encode(share, "float32", size, [last])
        last = schedule.issue("all_gather", size * ranks, [last], dtype="uint8")
        for _ in range(ranks):
            last = schedule.decode(share, "float32", size, [last])
    return Whole(schedules, (backend,), codec)


def emulated(op: str, nbytes: int, ranks: int, backend: str, dtype: str, element: int) -> Whole:
    """What the core makes of an operation that the library lacks, with messages of ``nbytes``."""
    schedules = [_C.Schedule.emulated(op, nbytes // element, dtype, rank, ranks) for rank in range(ranks)]
    return Whole(schedules, (backend,))
