# SPDX-License-Identifier: Apache-2.0
"""The costs of schedules' tasks: the tuning table's measurements, and the host's own work as measured here."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from mcr_dl import _C
from mcr_dl.base import agreement
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError, McrError
from mcr_dl.runtime import changes, handles

_SIZES = [1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 24]  # bytes
_ROUNDS = 5
_ELEMENT = {"float32": 4, "bfloat16": 2, "int32": 4}  # one type of each class

_Task = tuple[str, str, str]


def _tasks(codecs: Iterable[str]) -> list[_Task]:
    """Kind, element type and codec of the timed tasks."""
    if isinstance(codecs, (str, set, frozenset)):  # the order of a set differs between processes
        raise InvalidTypeError(f"codecs: expected a list of names, got {codecs!r}")
    plain = [("copy", "float32", ""), *(("combine", dtype, "") for dtype in _ELEMENT)]
    return plain + [(kind, "float32", codec) for codec in codecs for kind in ("encode", "decode")]


def _times(task: _Task) -> list[int]:
    """Nanoseconds of a task at each size, on this rank."""
    kind, dtype, codec = task
    counts = [size // _ELEMENT[dtype] for size in _SIZES]
    return [statistics.median_low(_C.time_task(kind, count, dtype, codec, _ROUNDS)) for count in counts]


def _medians(values: list[Any]) -> list[list[int]]:
    """The lower median over the ranks of each time."""
    agreement.require_equal("cost_model: tasks", [value["tasks"] for value in values])
    by_task = zip(*(value["times"] for value in values), strict=True)
    return [[statistics.median_low(times) for times in zip(*ranks, strict=True)] for ranks in by_task]


def cost_model(group: handles.Group = None, codecs: Iterable[str] = ()) -> _C.CostModel:
    """The costs of a group's calls and of the host's tasks, for ``simulate()``: a collective, equal on all ranks.

    Calls cost what the agreed tuning table says of each candidate; a candidate without measurements has no cost.
    Copies, combinations and the named codecs are timed on every rank for a few tenths of a second; the costs are the
    medians over the ranks. On each rank, candidates of one backend share a resource with the backend's name, and the
    host's tasks share one named ``thread``.

    Raises InvalidArgumentError on all ranks if the codecs differ, one is unknown, or they cannot be read on one of
    them, InvalidTypeError if they are a set, whose order differs between processes, and BackendUnavailableError if a
    codec's library is missing on one of them.
    """
    where = handles.core_group(group)
    tasks: list[_Task] = []
    mine: dict[str, Any] = {}
    problem: Exception | None = None
    try:
        tasks = _tasks(codecs)
        mine["tasks"] = [list(task) for task in tasks]
        mine["times"] = [_times(task) for task in tasks]
    except McrError as error:  # as for a codec whose library only other ranks have
        mine, problem = {}, type(error)(f"cost_model: {error}")
    except Exception as error:  # the other ranks wait, whatever the argument does
        mine, problem = {}, InvalidArgumentError(f"cost_model: codecs: {type(error).__name__}: {error}")
    agreed = changes.agree(where, "cost_model", mine, _medians, problem=problem, anywhere=True)
    model = where._cost_model()
    thread = model.add_resource("thread", slots=1)
    for (kind, dtype, codec), times in zip(tasks, agreed, strict=True):
        types = "any" if kind == "copy" else _C.dtype_class(dtype)
        points = list(zip(_SIZES, times, strict=True))
        model.add_cost(kind, codec, types=types, demands=[(thread, 0)], points=points)
    return model
