# SPDX-License-Identifier: Apache-2.0
"""``mcr-trace plan``: plans of a captured training iteration, before and after the search."""

from __future__ import annotations

import argparse
from typing import Any

from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console
from mcr_dl.planner import document, show
from mcr_dl.planner.graph import read
from mcr_dl.planner.plans import Plan, Planner, Search

_BUDGET = 10.0  # seconds


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of the command."""
    text = "draw the timelines before and after"
    command.add_argument("-o", "--output", type=arguments.checked(arguments.plot), metavar="PICTURE", help=text)
    text = "write the plan as JSON"
    command.add_argument("--plan", type=arguments.checked(arguments.output), metavar="JSON", help=text)
    text = f"seconds for the search, at most (default: {_BUDGET:g})"
    command.add_argument(
        "--budget", type=arguments.checked(arguments.seconds), default=_BUDGET, metavar="SECONDS", help=text
    )
    text = "seed of the search (default: 0)"
    command.add_argument("--seed", type=arguments.checked(arguments.count(0)), default=0, metavar="N", help=text)
    arguments.add_json(command)


def report(plans: list[Plan], search: Search) -> dict[str, Any]:
    """The plans and the search in JSON's types; times in ns."""
    return {
        "plans": [{"name": each.name, "iteration": each.iteration, "motifs": len(each.order)} for each in plans],
        "chains": list(search.chains),
        "evaluations": search.evaluations,
        "complete": search.complete,
    }


def run(given: argparse.Namespace) -> None:
    """Plan the graph in a file, and show, draw and write what was asked for."""
    planner = Planner(read(given.file))
    with Console(stderr=True).status(
        f"searching plans of {len(planner.graph.calls)} calls, {given.budget:g} s at most"
    ):
        search = planner.search(seed=given.seed, budget=given.budget)
    plans = [planner.program_order(), planner.greedy(), planner.critical_path(), search.plan]
    if not arguments.write_json(given.json, lambda: report(plans, search)):
        show.show(planner, plans)
    if given.plan is not None:
        document.write(given.plan, planner, search.plan)
    if given.output is not None:
        show.plot(planner, [plans[0], search.plan], given.output)
