# SPDX-License-Identifier: Apache-2.0
"""The measurement of a job that starts on a machine and scale that have none, and where its results go."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base import agreement, documents
from mcr_dl.base.warning import say
from mcr_dl.measure import check, shares, start
from mcr_dl.measure.timing import TorchControl
from mcr_dl.runtime import core_groups, startup, state
from mcr_dl.tables import choice
from mcr_dl.tables import table as files
from mcr_dl.tables.earlier import with_others
from mcr_dl.tables.host import Software, host, software
from mcr_dl.tables.model import Scale, Table

_log = logging.getLogger("mcr_dl")
_AGREEMENT = timedelta(seconds=60)  # for the ranks to meet over gloo


def measure(world: _C.Group, store: torch_dist.Store) -> None:
    """Measure the default group's candidates if nothing is known about its shape; rank 0 adds them to its cache.

    If its shape is in the table, rank 0 warns where calls take twice as long, or half as long, as the table says. A
    first start's measurements that are too slow by so much are made again: another program probably disturbed them.

    Collective. All ranks decide alike, as they have one table and the same candidates. The calls are made on a group of
    their own, so that the default group's calls are numbered from its first.
    """
    known = state.current().knowledge
    if not (known.scales or known.seconds):
        return
    shape, compared = known.shape(world.ranks), start.all_candidates(world)
    if not compared:
        return
    # A stripe may have no measurement, if the time was over before the sizes that are cut.
    if not known.measured(shape, {name for name in compared if not shares.is_striped(name)}):
        if known.seconds:
            _measure(world, store, known, compared, f"no measurements for {known.text_of(shape)}")
        return
    group = _group(world, "check")
    try:
        found = check.deviations(world, group)
    finally:
        core_groups.forget_group(group)
    if not found:
        return
    texts = "; ".join(map(str, found))
    if known.seconds and known.quick(shape) and found[0].faster:
        _measure(world, store, known, compared, f"the measurements for {known.text_of(shape)} were disturbed ({texts})")
    elif world.rank() == 0:
        hint = "if the machine is not busy, measure it with mcr-tune"
        _log.warning("tuning table %s: %s (%s)", known.source or "of this job", texts, hint)


def polls() -> bool:
    """Whether this job polls calls that block in others, whose times would therefore differ."""
    return state.current().detail or os.environ.get("MCR_DL_MPI_INTERRUPTIBLE") == "1"


def _group(world: _C.Group, purpose: str) -> _C.Group:
    # One group for each purpose: the store keeps what a group of the same name has left there to connect.
    return core_groups.make(f"default/{purpose}", list(world.ranks), state.current().backends, world.timeout)


def _measure(
    world: _C.Group, store: torch_dist.Store, known: choice.Knowledge, compared: set[str], reason: str
) -> None:
    current, shape = state.current(), known.shape(world.ranks)
    if world.rank() == 0:
        names = ", ".join(sorted(compared))
        text = f"{reason}: measuring {names} for up to {known.seconds:.0f} s"
        hint = f"mcr-tune measures more; {choice.VARIABLE}=none turns this off"
        say(f"mcr_dl: {text} ({hint})")
    group = _group(world, "measure")
    try:
        control = _control(group, store)
        left_out_by = _leave_out(group, known.of_mcr_tune(), shape)
        scale = None if control is None else start.Measurement(group, control, known.seconds, left_out_by).run(shape)
    finally:
        core_groups.forget_group(group)
    if scale is None:
        return
    source = _keep(scale, current.backends) if world.rank() == 0 and not polls() else ""
    # Only rank 0's logarithms count.
    answer = agreement.agree(
        store, world.rank(), world.size(), "measured", source, lambda values: [choice.costs_of(scale), values[0]]
    )
    current.knowledge = known.with_scale(*answer)
    current.tune(world)


def _leave_out(group: _C.Group, tuned: choice.Knowledge, shape: choice.Shape) -> str:
    """Leave out of a group what mcr-tune has left out at the nearest of its scales, of which this returns the name.

    Empty without one. Scales of first starts may be nearer, and say nothing of candidates that they have not called.
    """
    scale = tuned.scale_for(shape, "cpu")
    if scale is None:
        return ""
    choice.tune(group, tuned, derived=True)
    return str(scale["name"])


def _control(group: _C.Group, store: torch_dist.Store) -> TorchControl | None:
    """The group over which the measurement agrees; None, on all ranks, if gloo does not work on all of them."""
    control, problem = None, ""
    try:
        control = TorchControl(group, min(group.timeout, _AGREEMENT))
    except (AttributeError, RuntimeError) as error:  # of a torch without gloo, or a host without a usable network
        problem = str(error) or type(error).__name__
    told = agreement.agree(store, group.rank(), group.size(), "measured over", problem, startup.problem_of)
    if not told:
        return control
    if group.rank() == 0:
        _log.warning("no measurement, as its ranks agree over gloo, which fails: %s", told)
    return None


def _keep(scale: Scale, backends: list[str]) -> str:
    """Add the scale to this machine's table in the cache. Returns the file's name; empty if it was not written."""
    path = files.default_path(host())
    try:
        with documents.locked(path):
            table = _table_with(path, scale, backends)
            if table is not None:
                files.write(table, path)
    except Exception as error:  # the other ranks wait for rank 0's answer
        advice = f"until then the next start measures again, unless {choice.VARIABLE} names a table of mcr-tune -o FILE"
        _log.warning("%s; %s", error, advice)
        return ""
    return "" if table is None else str(path)


def _table_with(path: Path, scale: Scale, backends: list[str]) -> Table | None:
    """The file's table with this scale; None if the file has measurements of mcr-tune with other versions.

    Programs with other backends have measured other candidates, which stay: each would measure again after the other.
    """
    running = running_software(backends)
    fresh = Table(created=files.now(), host=host(), software=running, settings={"quick": True})
    old = files.read(path) if path.exists() else fresh
    if files.outdated(old, host(), running):
        if any(not each.quick for each in old.scales):
            return None
        old = fresh
    for each in old.scales:
        if each.quick and each.key == scale.key:
            scale = with_others(scale, each)
    versions = {**old.software.backends, **running.backends}
    return files.merge(replace(old, software=replace(old.software, backends=versions)), scale)


def running_software(backends: list[str]) -> Software:
    """The versions of what this job runs."""
    status = _C.backend_status()
    return software({name: status[name] for name in backends})
