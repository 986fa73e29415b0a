# SPDX-License-Identifier: Apache-2.0
"""Joins a new measurement of a scale with what an earlier one has measured."""

from __future__ import annotations

from dataclasses import replace

from mcr_dl.base.operations import dtype_class
from mcr_dl.tables.model import Curve, Exclusion, Scale
from mcr_dl.tables.winners import winners_of


def completed(scale: Scale, earlier: Scale) -> Scale:
    """The scale with those measurements of an earlier one, of the same key, that it has not repeated."""
    before = {_key(each): _thorough(each) if earlier.quick else each for each in earlier.curves}
    curves = {_key(each): _widened(each, before.get(_key(each))) for each in scale.curves}
    failed = {_calls(each) for each in scale.excluded}
    repeated = {(_calls(each), each.dtype_class) for each in scale.curves}
    excluded = [
        each
        for each in earlier.excluded
        if _calls(each) not in failed and (_calls(each), dtype_class(each.operation, each.dtype)) not in repeated
    ]
    gone = {*failed, *map(_calls, excluded)}  # for all types
    subjects = {each.subject for each in scale.curves}
    joined = replace(
        scale,
        curves=(
            *(each for key, each in before.items() if key not in curves and _calls(each) not in gone),
            *(each for each in curves.values() if _calls(each) not in gone),
        ),
        excluded=(*excluded, *scale.excluded),
        trials=(*(each for each in earlier.trials if each.subject not in subjects), *scale.trials),
    )
    return replace(joined, winners=winners_of(joined))


def with_others(scale: Scale, earlier: Scale) -> Scale:
    """A first start's scale with an earlier one's measurements of the candidates that this one has not compared.

    Of equal keys, machines and versions, so that the times can be compared. Calls that only one of them has measured
    are left out, since the others' candidates would never be chosen for them: programs try all candidates for these
    calls. Results of trials are left out, too: they lack candidates.
    """
    others = [each for each in earlier.curves if each.candidate not in scale.candidates]
    if not others:
        return scale
    both = {each.subject for each in others} & {each.subject for each in scale.curves}
    excluded = [each for each in earlier.excluded if each.candidate not in scale.candidates]
    joined = replace(
        scale,
        curves=tuple(each for each in (*others, *scale.curves) if each.subject in both),
        excluded=(*excluded, *scale.excluded),
    )
    return replace(joined, winners=winners_of(joined))


def _key(curve: Curve) -> tuple[object, ...]:
    return *curve.subject, curve.label


def _calls(each: Curve | Exclusion) -> tuple[str, str, bool]:
    return each.operation, each.label, each.async_op


def _widened(curve: Curve, earlier: Curve | None) -> Curve:
    """The curve with an earlier one's samples of smaller and larger sizes."""
    if earlier is None:
        return curve
    first, last = curve.samples[0].bytes, curve.samples[-1].bytes
    smaller = [each for each in earlier.samples if each.bytes < first]
    larger = [each for each in earlier.samples if each.bytes > last]
    return replace(curve, samples=(*smaller, *curve.samples, *larger))


def _thorough(curve: Curve) -> Curve:
    """A curve of a first start, where the least time counts, for a scale in which the median does."""
    return replace(curve, samples=tuple(replace(each, median_us=each.min_us) for each in curve.samples))
