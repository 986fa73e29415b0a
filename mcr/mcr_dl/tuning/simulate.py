# SPDX-License-Identifier: Apache-2.0
"""``mcr-tune simulate``: the time of collectives on a network of several dimensions (docs/themis.md)."""

from __future__ import annotations

import argparse
from typing import Any

from rich.table import Table as Grid

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console
from mcr_dl.commands.sizes import parse_size, size_text
from mcr_dl.commands.text import time_text
from mcr_dl.networks import plans, timeline
from mcr_dl.networks.network import Network
from mcr_dl.networks.plans import Plan

NAME = "simulate"
_BASELINE = ("baseline",)
_AUTO = "auto"


def _size(text: str) -> int:
    if (size := parse_size(text)) > plans.MOST_BYTES:
        raise InvalidArgumentError(f"size: expected at most {size_text(plans.MOST_BYTES)}, got {text.strip()!r}")
    return size


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_size(each) for each in text.split(",")))


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    checked = arguments.checked
    parser.add_argument("--topology", required=True, metavar="FILE", help="the dimensions of the network, as JSON")
    one_of = arguments.one_of
    parser.add_argument(
        "--op",
        type=checked(one_of(lambda: list(plans.OPERATIONS))),
        default=plans.OPERATIONS[0],
        metavar="OP",
        help=f"{', '.join(plans.OPERATIONS)} (default: {plans.OPERATIONS[0]})",
    )
    sizes = parser.add_mutually_exclusive_group(required=True)
    text = "data of a rank; K, M, G: powers of 1024"
    sizes.add_argument("--bytes", type=checked(_size), metavar="SIZE", help=text)
    sizes.add_argument("--sizes", type=checked(_sizes), metavar="LIST", help="several sizes: 1M,16M,256M")
    policies = ", ".join(plans.POLICIES)
    text = f"{policies} (default: {_AUTO}, the best of the others with 1, 2, 3, 4, 6, 8, ... or 512 chunks)"
    policy = checked(one_of(lambda: list(plans.POLICIES)))
    parser.add_argument("--policy", type=policy, default=_AUTO, metavar="POLICY", help=text)
    text = "equal parts of the data, 1 to 512 (default: 64); with --policy auto, a number to try in addition to its own"
    parser.add_argument("--chunks", type=checked(arguments.count(1)), metavar="N", help=text)
    text = "steps that run at once in a dimension (default: 1)"
    parser.add_argument("--in-flight", type=checked(arguments.count(1)), default=1, metavar="N", help=text)
    parser.add_argument(
        "--plot", type=checked(arguments.plot), metavar="FILE.png", help="draw the baseline and the plan"
    )
    text = "write the plan as JSON, without FILE to the standard output"
    file = checked(arguments.json_file)
    parser.add_argument("--json", nargs="?", const=arguments.STDOUT, type=file, metavar="FILE", help=text)


def document(plan: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    return {
        "op": plan.operation,
        "bytes": plan.nbytes,
        "policy": plan.policy,
        "chunks": plan.chunks,
        "in_flight": plan.in_flight,
        "makespan_us": plan.makespan_us,
        "utilization": round(plan.utilization, 6),
        "orders": plan.orders,
    }


def _show(network: Network, found: list[tuple[Plan, Plan]], console: Console) -> None:
    first = found[0][0]
    console.say(f"{first.operation} on {network.name}; {first.in_flight} in flight in each dimension")
    grid = Grid()
    for name in ("bytes", "baseline", "chunks", "plan", "policy", "chunks", "utilization", "gain"):
        grid.add_column(name, justify="left" if name == "policy" else "right")
    for plan, baseline in found:
        grid.add_row(
            size_text(plan.nbytes),
            time_text(baseline.makespan_us),
            str(baseline.chunks),
            time_text(plan.makespan_us),
            plan.policy,
            str(plan.chunks),
            f"{100 * plan.utilization:.1f} %",
            f"{baseline.makespan / plan.makespan:.2f} x",
        )
    console.print_whole(grid, 100)
    console.say("baseline: with its best number of chunks. gain: baseline / plan")


def run(given: argparse.Namespace) -> int:
    """Plan, and show the plans; returns the exit code."""
    if given.plot and given.sizes:
        raise InvalidArgumentError("argument --plot: expected --bytes, got --sizes: a picture shows one size")
    network = Network.read(given.topology)
    sizes = given.sizes or (given.bytes,)
    settings = {"policy": given.policy, "chunks": given.chunks, "in_flight": given.in_flight}
    found = [
        (
            plans.plan(network, given.op, nbytes, **settings),
            plans.best(network, given.op, nbytes, _BASELINE, in_flight=given.in_flight),
        )
        for nbytes in sizes
    ]
    if given.plot:
        timeline.save([("baseline", found[0][1]), (found[0][0].policy, found[0][0])], given.plot)
    documents = [document(plan) for plan, _ in found]
    if not arguments.write_json(given.json, lambda: documents if given.sizes else documents[0]):
        _show(network, found, Console())
    return 0
