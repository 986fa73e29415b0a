# SPDX-License-Identifier: Apache-2.0
"""Plans as JSON: the sequence number of every motif, versioned, with hashes; and what makes a plan invalid."""

from __future__ import annotations

import os
from typing import Any

from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.planner.graph import fields_of
from mcr_dl.planner.plans import Place, Plan, Planner

FORMAT, VERSION = "mcr-dl plan", 1
LARGEST = 64 * documents.MIB
_ROW = {"seq": int, "call": str, "motif": int, "ahead": int, "channel": str, "what": str}


def document(planner: Planner, plan: Plan) -> dict[str, Any]:
    """The plan in JSON's types. ``hash`` is of all other fields; ``graph`` is the hash of the graph that it fits.

    A row's ``seq`` is its place in the total order that holds on all ranks and channels. In the round of iteration i,
    it stands for the motif of iteration i + ``ahead``.
    """
    rows = []
    for seq, (node, motif, ahead) in enumerate(plan.order):
        piece = planner.options[node][plan.chosen[node]].pieces[motif]
        row = (seq, planner.graph.nodes[node].key, motif, ahead, piece.channel, piece.what)
        rows.append(dict(zip(_ROW, row, strict=True)))
    calls = {
        node.key: planner.options[index][plan.chosen[index]].name
        for index, node in enumerate(planner.graph.nodes)
        if node.time is None
    }
    content = {
        "format": FORMAT,
        "version": VERSION,
        "name": plan.name,
        "graph": planner.graph.hash(),
        "cost": plan.cost,
        "iteration": plan.iteration,
        "calls": calls,
        "order": rows,
    }
    return {**content, "hash": documents.hash_of(content)}


def write(path: str | os.PathLike[str], planner: Planner, plan: Plan) -> None:
    """Write a plan to a file."""
    documents.write_rows(path, document(planner, plan))


def _chosen(planner: Planner, calls: Any) -> list[int]:
    chosen = []
    keys = {node.key for node in planner.graph.calls}
    if not isinstance(calls, dict) or set(calls) != keys:
        raise ValueError(f"calls: expected an option of each of the graph's {len(keys)} calls")
    for index, node in enumerate(planner.graph.nodes):
        names = [option.name for option in planner.options[index]]
        if node.time is None and calls[node.key] not in names:
            raise ValueError(f"calls[{node.key!r}]: expected one of its options, got {str(calls[node.key])[:60]!r}")
        chosen.append(names.index(calls[node.key]) if node.time is None else 0)
    return chosen


def _order(planner: Planner, chosen: list[int], rows: Any) -> list[Place]:
    if not isinstance(rows, list):
        raise ValueError(f"order: expected a list, got a {type(rows).__name__}")
    places = {node.key: index for index, node in enumerate(planner.graph.nodes) if node.time is None}
    order = []
    for seq, row in enumerate(rows):
        where = f"order[{seq}]"
        fields_of(row, where, _ROW, {})
        if row["seq"] != seq:
            raise ValueError(f"{where}.seq: expected {seq}, got {row['seq']}")
        if row["call"] not in places:
            raise ValueError(f"{where}.call: expected a call of the graph, got {row['call'][:40]!r}")
        pieces = planner.options[places[row["call"]]][chosen[places[row["call"]]]].pieces
        if not 0 <= row["motif"] < len(pieces) or row["ahead"] < 0:
            raise ValueError(f"{where}: expected a motif from 0 to {len(pieces) - 1}, and 0 or more iterations ahead")
        if row["channel"] != pieces[row["motif"]].channel:
            message = f"expected {pieces[row['motif']].channel!r}, as the option of the call says"
            raise ValueError(f"{where}.channel: {message}, got {row['channel'][:40]!r}")
        order.append((places[row["call"]], row["motif"], row["ahead"]))
    return order


def of_document(value: Any, planner: Planner) -> Plan:
    """The plan of a JSON document for a planner's graph, checked.

    Raises InvalidArgumentError, naming the first difference: another format, version or graph, a changed document, an
    unknown option, a motif that is missing or twice, or an order that contradicts the program's.
    """
    try:
        if not isinstance(value, dict) or (value.get("format"), value.get("version")) != (FORMAT, VERSION):
            raise ValueError(f"expected {FORMAT!r} of version {VERSION}")
        content = {name: each for name, each in value.items() if name != "hash"}
        if value.get("hash") != documents.hash_of(content):
            raise ValueError("hash: expected that of the content, got another: the document was changed or cut")
        if value.get("graph") != planner.graph.hash():
            raise ValueError("graph: expected the hash of this graph, got another: plan it again")
        chosen = _chosen(planner, value.get("calls"))
        order = _order(planner, chosen, value.get("order"))
        numbers = [value.get(name) for name in ("cost", "iteration")]
        if any(type(number) is not int for number in numbers) or not isinstance(value.get("name"), str):
            raise ValueError("cost, iteration: expected whole numbers of ns, and a name")
        iteration = planner.replay(chosen, order)
    except (ValueError, InvalidArgumentError) as error:
        raise InvalidArgumentError(f"plan: {str(error).removeprefix('plan: ')}") from error
    return Plan(str(value["name"]), tuple(chosen), tuple(order), int(value["cost"]), iteration)


def read(path: str | os.PathLike[str], planner: Planner) -> Plan:
    """Read and check a plan. Raises InvalidArgumentError, in one line with the file's name."""
    found = documents.read(path, f"{path}: expected a plan", limit=LARGEST)
    try:
        return of_document(found, planner)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
