# SPDX-License-Identifier: Apache-2.0
"""Plans in the form in which the ranks agree on them and the core executes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcr_dl import _C
from mcr_dl.planner import capture
from mcr_dl.planner import lanes as planned_lanes
from mcr_dl.planner.plans import Place, Plan, Planner
from mcr_dl.schedule.syndicate import measured
from mcr_dl.schedule.syndicate.iteration import Iteration, Seen

Document = dict[str, Any]
"""``name``; ``calls``: form, candidates and lanes of each call, or None where it stays as it is; ``order``: call, motif
and ahead."""


def document(planner: Planner, plan: Plan, groups: Sequence[int], used: Sequence[str], most: int) -> Document | None:
    """The plan in JSON's types; None if it changes nothing, or its order needs more than ``most`` lanes.

    ``groups``: the index of each call's group; ``used``: the channel that each call uses without a plan.
    """
    places = [place for place, node in enumerate(planner.graph.nodes) if node.time is None]
    number = {place: call for call, place in enumerate(places)}
    chosen = [planner.options[place][plan.chosen[place]] for place in places]
    whole = [(number[place], motif, ahead) for place, motif, ahead in plan.order]
    done = {
        call
        for call, option in enumerate(chosen)
        if option.form != capture.AS_IT_IS
        and not (option.form == "whole" and option.pieces[0].channel == used[call] and _in_program_order(whole, call))
    }
    order: list[Place] = [place for place in whole if place[0] in done]
    found = planned_lanes.assign(order, dict(enumerate(groups)), most)
    if found is None:
        return None
    calls: list[Any] = []
    for call, option in enumerate(chosen):
        candidates = [measured.candidate_of(piece.channel) for piece in option.pieces]
        row = (
            [option.form, candidates, [found[call, motif] for motif in range(len(candidates))]]
            if call in done
            else None
        )
        calls.append(row)
    return {"name": plan.name, "calls": calls, "order": [list(place) for place in order]} if done else None


def _in_program_order(order: Sequence[Place], call: int) -> bool:
    """Whether a call of one motif comes after all earlier calls and before all later ones of its iteration."""
    at = next(index for index, place in enumerate(order) if place[0] == call)
    return (
        order[at][2] == 0
        and all(other < call and ahead == 0 for other, _, ahead in order[:at])
        and all(other > call and ahead == 0 for other, _, ahead in order[at + 1 :])
    )


def install(control: _C.PlanControl, plan: Document | None, seen: Sequence[Seen]) -> None:
    """Let the calls of an iteration follow a plan from the present call on; without one they stay as they are.

    ``seen``: the calls of an iteration on this rank.
    """
    groups: dict[str, list[tuple[int, int, str, list[str], list[int]]]] = {}
    for call, made in enumerate(seen):
        row = None if plan is None else plan["calls"][call]
        form, candidates, lanes = row or ("whole", [], [])
        groups.setdefault(made.group, []).append((made.signature, call, form, candidates, lanes))
    order = [] if plan is None else [(call, motif, ahead) for call, motif, ahead in plan["order"]]
    control.set_plan(groups, order, len(seen))


def problem(plans: Sequence[Document], iteration: Iteration) -> str:
    """The reason why this rank cannot execute some of the plans for an iteration; empty if it can."""
    groups = {group.name(): group for group in iteration.groups}
    return next(filter(None, (_problem(plan, iteration.seen, groups) for plan in plans)), "")


def _problem(plan: Document, seen: Sequence[Seen], groups: dict[str, _C.Group]) -> str:
    if len(plan["calls"]) != len(seen):
        return f"expected a plan of {len(seen)} calls, got one of {len(plan['calls'])}"
    for row, made in zip(plan["calls"], seen, strict=True):
        missing = [] if row is None else [name for name in row[1] if not groups[made.group]._has(name)]
        if missing:
            return f"expected candidates of group {made.group!r}, got {missing[0]!r}"
    return ""
