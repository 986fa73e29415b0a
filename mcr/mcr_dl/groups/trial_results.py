# SPDX-License-Identifier: Apache-2.0
"""Trials of the candidates of a new group's calls, whose results rank 0 adds to its cache when the group ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from mcr_dl import _C
from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.base.operations import dtype_class
from mcr_dl.groups import first_start
from mcr_dl.runtime import state, trials
from mcr_dl.tables import table as files
from mcr_dl.tables.host import host
from mcr_dl.tables.model import Curve, Sample, Scale
from mcr_dl.tables.winners import microseconds_of

_log = logging.getLogger("mcr_dl")


def follow(group: _C.Group) -> None:
    """Turn trials on where they belong (``trials.enable``), and keep their results. Collective over the members."""
    if trials.enable(group):
        state.current().of(group.name()).endings.append(partial(_keep, group))


def _keep(group: _C.Group) -> None:
    """Add the results to the quick measurements of the group's shape in the cache, on rank 0; others are forgotten.

    Only those of a group with all candidates count there, measured with the same versions: later jobs try none again.
    """
    if group._closed:
        return
    current = state.current()
    rows = group._trial_results()
    if current.launch.rank != 0 or not rows or first_start.polls():
        return
    shape = current.knowledge.shape(group.ranks)
    path = files.default_path(host())
    try:
        with documents.locked(path):
            table = files.read(path)
            if files.outdated(table, host(), first_start.running_software(current.backends)):
                return
            for scale in table.scales:
                measured = {curve.candidate for curve in scale.curves}
                here = scale.key == ("cpu", shape.ranks, shape.nodes, shape.ranks_per_node)
                if scale.quick and here and measured <= set(group.candidates):
                    files.write(files.merge(table, _with(scale, rows)), path)
    except (InvalidArgumentError, OSError) as error:
        _log.info("the results of trials (group %r) are not kept: %s", group.name(), error)


def _with(scale: Scale, rows: Iterable[tuple[Any, ...]]) -> Scale:
    """The scale with these results, in place of older ones of equal calls."""
    samples: dict[tuple[str, bool, str, str, str], dict[int, Sample]] = {}
    for old in scale.trials:
        key = (old.operation, old.async_op, old.dtype_class, old.dtype, old.candidate)
        samples[key] = {sample.bytes.bit_length(): sample for sample in old.samples}
    for operation, async_op, dtype, nbytes, costs in rows:
        for candidate, cost in costs:
            found = samples.setdefault((operation, async_op, dtype_class(operation, dtype), dtype, candidate), {})
            time = microseconds_of(cost)
            found[nbytes.bit_length()] = Sample(nbytes, 1, time, time, time)
    curves = tuple(
        Curve(operation, types, dtype, candidate, tuple(found[octave] for octave in sorted(found)), async_op=async_op)
        for (operation, async_op, types, dtype, candidate), found in sorted(samples.items())
    )
    return replace(scale, trials=curves)
