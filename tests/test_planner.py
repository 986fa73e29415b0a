# SPDX-License-Identifier: Apache-2.0
"""The planner: schedules as simulate() has them, searches against brute force, plans that are checked."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcr_dl import _C
from mcr_dl.base import documents
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.planner import document, graph, motifs, options, show
from mcr_dl.planner.graph import Call, Channel, Graph, Node
from mcr_dl.planner.plans import Plan, Planner
from mcr_dl.testing import plan_graphs
from mcr_dl.testing.plan_graphs import fixed
from mcr_dl.trace import cli
from motif_interpreter import transfers

# ---- the paper's example


def test_the_papers_example_takes_11_units_greedily_and_9_and_a_half_by_search() -> None:
    planner = Planner(plan_graphs.paper())
    greedy, found, best = planner.greedy(), planner.search().plan, planner.brute_force()
    assert [plan.iteration for plan in (greedy, found, best)] == [11000, 9500, 9500]
    assert planner.options[3][found.chosen[3]].name == "PCIe"


# ---- the list scheduler against simulate()


def _random_rows(seed: int) -> tuple[list[int], list[Any]]:
    """Channels that partly share resources, and nodes with one option of several motifs."""
    chance = random.Random(seed)
    masks = [1, 2, 3, 4, 6]
    rows = []
    for node in range(chance.randrange(1, 9)):
        after = [(each, 0) for each in range(node) if chance.random() < 0.3]
        after += [(each, 1) for each in range(9) if chance.random() < 0.1]
        parts = [
            (chance.randrange(0, 50), chance.randrange(5), [each for each in range(motif) if chance.random() < 0.4])
            for motif in range(chance.randrange(1, 4))
        ]
        rows.append((f"node {node}", after, [parts], True))
    count = len(rows)
    return masks, [(name, [each for each in after if each[0] < count], ways, call) for name, after, ways, call in rows]


def _remaining(rows: list[Any], iterations: int) -> dict[tuple[int, int, int], int]:
    """The longest path from each motif to the end, by definition."""
    found: dict[tuple[int, int, int], int] = {}
    for iteration in reversed(range(iterations)):
        for node in reversed(range(len(rows))):
            follow = [(iteration, each) for each, row in enumerate(rows) if (node, 0) in row[1]]
            follow += [(iteration + 1, each) for each, row in enumerate(rows) if (node, 1) in row[1]]
            later = [found[where[0], where[1], motif] for where in follow if where[0] < iterations
                     for motif in range(len(rows[where[1]][2][0]))]  # fmt: skip
            parts = rows[node][2][0]
            for motif in reversed(range(len(parts))):
                inner = [found[iteration, node, each] for each, row in enumerate(parts) if motif in row[2]]
                found[iteration, node, motif] = parts[motif][0] + max([*later, *inner], default=0)
    return found


def _simulated(masks: list[int], rows: list[Any], iterations: int, order: str) -> list[tuple[int, int]]:
    """(start, end) of all motifs by simulate(): each is a job, and a channel takes the only slots of its resources."""
    model = _C.CostModel()
    resources = [model.add_resource(f"resource {bit}", slots=1) for bit in range(3)]
    numbers: dict[tuple[int, int, int], int] = {}
    remaining = _remaining(rows, iterations)
    jobs = []
    for iteration in range(iterations):
        for node, (_, after, (parts,), _) in enumerate(rows):
            before = [(iteration - back, each) for each, back in after if iteration >= back]
            earlier = [numbers[where[0], where[1], motif] for where in before
                       for motif in range(len(rows[where[1]][2][0]))]  # fmt: skip
            for motif, (time, channel, inner) in enumerate(parts):
                numbers[iteration, node, motif] = len(jobs)
                waits = earlier + [numbers[iteration, node, each] for each in inner]
                demands = [(resource, 0) for bit, resource in enumerate(resources) if masks[channel] >> bit & 1]
                priority = -remaining[iteration, node, motif]
                jobs.append(_C.Job(None, after=waits, work=time, demands=demands, priority=priority))
    tasks = _C.simulate(model, jobs, [[0]], order=order)["tasks"]
    return [(start, end) for ((_, _, start, end),) in tasks]


@pytest.mark.parametrize(("order", "simulated"), [("ready", "arrival"), ("critical", "priority")])
def test_schedules_are_those_of_simulate(order: str, simulated: str) -> None:
    for seed in range(150):
        masks, rows = _random_rows(seed)
        play = _C.PlanGraph(masks, rows).play(_C.ExecutionPlan([0] * len(rows), order=order), 2)
        found = [(start, end) for iteration in play for node in iteration for _, start, end in node]
        assert found == _simulated(masks, rows, 2, simulated), f"seed {seed}"


def test_an_order_is_kept_on_all_channels() -> None:
    """In a plan's order, no motif is issued before one in front of it is ready, on whatever channel."""
    rows = [
        ("late", [], [[(10, 2, [])]], False),
        ("a", [(0, 0)], [[(5, 0, [])]], True),
        ("b", [], [[(5, 1, [])]], True),
    ]
    core = _C.PlanGraph([1, 2, 4], rows)
    for sequence, start in (([(1, 0, 0), (2, 0, 0)], 10), ([(2, 0, 0), (1, 0, 0)], 0)):
        play = core.play(_C.ExecutionPlan([0] * 3, [], "sequence", sequence), 1)
        assert play[0][2][0][1] == start


# ---- the search


def test_search_is_near_brute_force() -> None:
    gaps = []
    for seed in range(8):
        planner = Planner(plan_graphs.dlrm(seed, calls=7))
        found, best = planner.search(seed=seed, levels=False), planner.brute_force()
        gaps.append(min(found.chains) / best.cost - 1)
    assert min(gaps) >= 0
    assert max(gaps) <= 0.004
    assert sum(gaps) / len(gaps) <= 0.001


def test_search_repeats_itself_and_is_no_worse_than_its_start() -> None:
    planner = Planner(plan_graphs.dlrm(3, calls=12, options=4))
    one, two = (planner.search(chains=2, seed=5, evaluations=300) for _ in range(2))
    assert one == two
    again = planner.search(chains=1, seed=6, evaluations=20, levels=False, start=planner.greedy())
    assert again.chains[0] <= planner.critical_path().cost
    assert one.plan.iteration <= planner.program_order().iteration
    assert not planner.search(budget=1e-9).complete
    assert planner.search(budget=1e300, evaluations=1).evaluations > 0


@pytest.mark.parametrize(
    "search", [lambda planner: planner.search(chains=2**32 - 1), lambda planner: planner.brute_force(most=2**62)]
)
def test_an_interrupt_ends_a_search(search: Callable[[Planner], object]) -> None:
    """Of searches that would not end within the test's time limit."""
    planner = Planner(plan_graphs.dlrm(3, calls=30, options=4))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore the signal
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            search(planner)
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)


def test_no_plan_is_faster_than_its_busiest_resource() -> None:
    for seed in range(10):
        planner = Planner(plan_graphs.dlrm(seed))
        plan = planner.search(chains=1, seed=seed).plan
        for channel in ("fast", "slow"):
            pieces = [
                piece
                for way, place in zip(planner.options, plan.chosen, strict=True)
                if way
                for piece in way[place].pieces
            ]
            assert plan.iteration >= sum(piece.time for piece in pieces if piece.channel == channel)


def test_exclusive_channels_do_not_overlap() -> None:
    paper = plan_graphs.paper()
    shared = tuple(Channel(each.name, ("bus", *each.resources)) for each in paper.channels)
    planner = Planner(Graph(shared, paper.nodes))
    assert planner.search().plan.iteration == planner.brute_force().iteration == 11000
    with pytest.raises(InvalidArgumentError, match="expected at most 1 plans to try, got more"):
        planner.brute_force(most=1)


def test_a_long_call_goes_on_around_the_next_iterations_first_one() -> None:
    """The all_reduce of the last layer, in four segments, which only the end of the next forward pass waits for."""
    whole, cut = fixed("whole", "net", 1000), fixed("segment 4 on net", "net", 1000, 4)
    small = (fixed("whole", "net", 100),)
    nodes = (
        Node("forward 0", ("reduce 0@-1",), time=100),
        Node("exchange", ("forward 0",), options=small),
        Node("forward 1", ("exchange",), time=500),
        Node("forward 2", ("forward 1", "reduce 2@-1"), time=100),
        Node("backward 2", ("forward 2",), time=100),
        Node("reduce 2", ("backward 2",), options=(whole, cut)),
        Node("backward 0", ("backward 2",), time=100),
        Node("reduce 0", ("backward 0",), options=small),
    )
    planner = Planner(Graph((Channel("net", ("net",)),), nodes))
    assert [plan.iteration for plan in (planner.program_order(), planner.critical_path())] == [2000, 2000]
    plan = planner.priority()
    assert [way[place].name for way, place in zip(planner.options, plan.chosen, strict=True) if way] == [
        "whole",
        "segment 4 on net",
        "whole",
    ]
    # reduce 2 depends on itself through forward 2 and backward 2, and the two other calls interrupt it.
    assert (plan.iteration, planner.search().plan.iteration) == (1400, 1400)
    assert plan.order == ((5, 1, 0), (1, 0, 1), (5, 2, 0), (5, 3, 0), (5, 0, 1), (7, 0, 1))


def test_a_graph_has_at_most_64_resources_and_lanes() -> None:
    node = Node("compute", time=10)
    assert Planner(Graph((Channel("net", tuple(map(str, range(63)))),), (node,))).program_order().iteration == 10
    with pytest.raises(InvalidArgumentError, match="expected at most 64 resources and lanes, got 65"):
        Planner(Graph((Channel("net", tuple(map(str, range(64)))),), (node,)))


# ---- options


COSTS = tuple(
    {"channel": channel, "op": op, "alpha": 1000, "per_mib": scale * 100_000}
    for channel, scale in (("one", 1), ("two", 2))
    for op in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "reduce", "broadcast", "send")
)


def _ways(call: Call, costs: tuple[dict[str, Any], ...] = COSTS, incast: int = 0) -> dict[str, int]:
    channels = (Channel("one", ("one",), incast), Channel("two", ("two",)))
    model = Graph(channels, (), costs).model()
    return {way.name: sum(piece.time for piece in way.pieces) for way in options.of_call(call, channels, model)}


def test_options_have_the_models_costs() -> None:
    ways = _ways(Call("all_reduce", 1 << 20, "float32", 4))
    assert ways["whole on one"] == 401_000
    assert ways["whole on two"] == 801_000
    assert ways["segment 2 on one"] == 402_000
    assert ways["segment 2 on one 1, two 1"] == 201_000 + 401_000
    assert ways["ring on one"] == 2 * 401_000
    assert ways["tree 2 on one"] == 2 * 2 * 401_000  # two levels, up and down
    assert ways["tree 4 on one"] == 2 * 3 * 401_000  # one level, three messages
    assert {name.partition(" on ")[2] for name in ways if name.startswith("segment 4 on")} == {
        "one",
        "two",
        "one 1, two 3",
        "one 2, two 2",
        "one 3, two 1",
    }
    assert not [name for name in ways if "spline" in name]


@pytest.mark.parametrize(
    ("op", "count", "ranks", "forms"),
    [
        ("all_reduce", 100, 1, ["segment 2", "segment 4"]),
        ("all_reduce", 1, 2, ["ring", "tree 2"]),
        ("all_reduce", 3, 3, ["ring", "tree 2", "tree 4", "segment 2", "segment 2, ring"]),
        ("all_to_all", 1, 2, ["spline 1"]),
        ("all_to_all", 1, 3, ["spline 2", "spline 1"]),
        ("all_to_all", 4, 8, ["segment 2", "segment 4", "spline 4", "spline 2"]),
        ("broadcast", 4, 8, ["segment 2", "segment 4"]),
    ],
)
def test_the_forms_of_a_call(op: str, count: int, ranks: int, forms: list[str]) -> None:
    assert [name for name, _ in options.expressions(Call(op, count, "float32", ranks))] == ["whole", *forms]


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_channels_share_the_bytes_of_a_call(op: str, ranks: int) -> None:
    """The motifs of an option move over all channels together what the call moves, and no channel is left out."""
    call = Call(op, 101, "float32", ranks)
    channels = (Channel("one", ("one",)), Channel("two", ("two",)))
    ways = options.of_call(call, channels, Graph(channels, (), COSTS).model())
    forms = {name: motifs.steps(form) for name, form in options.expressions(call)}
    for way in ways:
        name, _, where = way.name.rpartition(" on ")
        if name.startswith("tree"):
            continue
        moved: dict[str, int] = {}
        for (motif, _), piece in zip(forms[name], way.pieces, strict=True):
            moved[piece.channel] = moved.get(piece.channel, 0) + sum(count for _, _, count in transfers(motif))
        assert sum(moved.values()) == sum(count for _, _, count in transfers(motifs.call(op, 101, ranks))), way.name
        assert set(moved) == {channel for channel in ("one", "two") if channel in where}, way.name


def test_pure_data_parallelism_keeps_program_order() -> None:
    """Where calls depend on each other and there is one channel, no plan is better, and program order is returned."""
    nodes: list[Node] = []
    for layer in range(6):
        after = (f"compute {layer - 1}",) if layer else tuple(f"reduce {each}@-1" for each in range(6))
        nodes.append(Node(f"compute {layer}", after, time=500))
        nodes.append(Node(f"reduce {layer}", (f"compute {layer}",), options=(fixed("ring", "net", 700),)))
    planner = Planner(Graph((Channel("net", ("net",)),), tuple(nodes)))
    plain, found = planner.program_order(), planner.search(chains=3).plan
    assert (found.chosen, found.order, found.iteration) == (plain.chosen, plain.order, plain.iteration)


def test_splines_pay_where_many_senders_slow_a_rank_down() -> None:
    call = Call("all_to_all", 1 << 18, "float32", 8)
    assert _ways(call)["spline 2 on one"] > _ways(call)["whole on one"]
    assert _ways(call, incast=200)["spline 2 on one"] < _ways(call, incast=200)["whole on one"]


def test_an_option_without_costs_is_left_out() -> None:
    ways = _ways(Call("all_reduce", 64, "float32", 4), COSTS[:1])
    assert set(ways) == {"whole on one", "segment 2 on one", "segment 4 on one"}
    nothing = Graph((Channel("one", ("one",)),), (Node("x", call=Call("all_reduce", 4, "float32", 2)),))
    with pytest.raises(InvalidArgumentError, match="'x': expected costs of its operation"):
        Planner(nothing)


# ---- documents


def _blocking() -> Graph:
    """Two blocking calls: the program computes between them."""
    ways = (fixed("way", "only", 10),)
    nodes = (
        Node("a", ("work@-1",), options=ways),
        Node("between", ("a",), time=5),
        Node("b", ("between",), options=ways),
        Node("work", ("b",), time=5),
    )
    return Graph((Channel("only", ("only",)),), nodes)


@pytest.mark.parametrize("nodes", [(), (Node("idle", time=0),)])
def test_a_graph_without_any_time_is_drawn(nodes: tuple[Node, ...], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    planner = Planner(Graph((Channel("only", ("only",)),), nodes))
    show.plot(planner, [planner.program_order(), planner.search().plan], tmp_path / "plan.png")
    assert (tmp_path / "plan.png").exists()


def _changed(planner: Planner, plan: Plan, **changes: Any) -> dict[str, Any]:
    """A plan's document with changes and a fitting hash."""
    value = {**document.document(planner, plan), **changes}
    return {**value, "hash": documents.hash_of({name: each for name, each in value.items() if name != "hash"})}


def test_plans_survive_their_documents(tmp_path: Path) -> None:
    planner = Planner(plan_graphs.dlrm(1, options=4))
    plan = planner.search(chains=2).plan
    document.write(tmp_path / "plan.json", planner, plan)
    assert document.read(tmp_path / "plan.json", planner) == plan
    seqs = [row["seq"] for row in json.loads((tmp_path / "plan.json").read_text())["order"]]
    assert seqs == list(range(len(seqs)))


def test_wrong_numbers_are_refused() -> None:
    """In calls of the core, which would end the process."""
    graph = _C.PlanGraph([1], [("a", [], [[(10, 0, [])]], True)])
    with pytest.raises(InvalidArgumentError, match="expected at least two unrolled iterations, got 1"):
        graph.cost(_C.ExecutionPlan([0]), 1)
    work = _C.Job(None, work=5, demands=[(10**6, 1)])
    with pytest.raises(InvalidArgumentError, match="expected one of 0 resources, got number 1000000"):
        _C.simulate(_C.CostModel(), [work], [[0]])
    for after in (10**7, 0):
        with pytest.raises(InvalidArgumentError, match=f"expected some of the 0 earlier tasks, got number {after}"):
            _C.Schedule().issue("all_reduce", 4, after=[after])


def test_a_plan_against_the_programs_order_is_refused() -> None:
    planner = Planner(_blocking())
    plan = planner.program_order()
    rows = document.document(planner, plan)["order"]
    swapped = [{**row, "seq": seq} for seq, row in enumerate(reversed(rows))]
    with pytest.raises(InvalidArgumentError, match="expected an order that the program allows: motif 0 of 'b' waits"):
        document.of_document(_changed(planner, plan, order=swapped), planner)
    early = [{**row, "ahead": int(row["call"] == "b")} for row in rows]
    with pytest.raises(InvalidArgumentError, match="expected an order that the program allows"):
        document.of_document(_changed(planner, plan, order=early), planner)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 2}, "of version 1"),
        ({"graph": "0" * 64}, "graph: expected the hash of this graph"),
        ({"calls": {"a": "way"}}, "calls: expected an option of each of the graph's 2 calls"),
        ({"calls": {"a": "way", "b": "other"}}, r"calls\['b'\]: expected one of its options"),
        ({"order": []}, "expected a place of each motif"),
        ({"order": "x"}, "order: expected a list"),
        ({"order": [{}]}, r"order\[0\]: expected the field 'seq'"),
        ({"iteration": 1.5}, "expected whole numbers"),
    ],
)
def test_wrong_plans_are_refused(change: dict[str, Any], text: str) -> None:
    planner = Planner(_blocking())
    with pytest.raises(InvalidArgumentError, match=text):
        document.of_document(_changed(planner, planner.program_order(), **change), planner)


def test_rows_of_a_plan_are_checked() -> None:
    planner = Planner(_blocking())
    plan = planner.program_order()
    rows = document.document(planner, plan)["order"]
    for change, text in (
        ({"seq": 7}, "seq: expected 0, got 7"),
        ({"call": "c"}, "expected a call of the graph"),
        ({"motif": 1}, "expected a motif from 0 to 0"),
        ({"ahead": 9}, "at most 2 iterations ahead"),
        ({"channel": "x"}, "channel: expected 'only'"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            document.of_document(_changed(planner, plan, order=[{**rows[0], **change}, rows[1]]), planner)
    with pytest.raises(InvalidArgumentError, match="each motif once"):
        document.of_document(_changed(planner, plan, order=[rows[0], {**rows[0], "seq": 1}]), planner)
    cut = {**document.document(planner, plan), "cost": 1}
    with pytest.raises(InvalidArgumentError, match="the document was changed"):
        document.of_document(cut, planner)


def _call(**change: Any) -> dict[str, Any]:
    return {"key": "new", "call": {"op": "all_reduce", "count": 4, "dtype": "float32", "ranks": 2, **change}}


def test_graphs_survive_their_documents() -> None:
    calls = (Node("x", call=Call("all_reduce", 64, "float32", 4)), Node("y", ("x", "y@-1"), time=7, lane="stream 1"))
    for each in (plan_graphs.dlrm(2), Graph((Channel("one", ("one",), 5),), calls, COSTS[:2])):
        assert graph.of_document(json.loads(json.dumps(each.document()))) == each


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda it: it.update(version=9), "of version 1"),
        (lambda it: it.update(more=1), "expected fields among"),
        (lambda it: it["nodes"][0].update(after=["b"]), "expected the key of an earlier node"),
        (lambda it: it["nodes"][1].update(key="a"), "expected each key once"),
        (lambda it: it["nodes"][1].pop("time"), "expected one of time, options and call"),
        (lambda it: it["nodes"][0]["options"][0]["pieces"][0].update(channel="x"), "expected channels of the graph"),
        (lambda it: it["nodes"][0]["options"][0]["pieces"][0].update(time=1.5), "expected a int, got a float"),
        (lambda it: it["nodes"][0]["options"][0]["pieces"][0].update(time=10**20), "time: expected 1 to"),
        (lambda it: it["nodes"][0]["options"][0]["pieces"][0].update(after=[-1]), "the numbers of earlier pieces"),
        (lambda it: it["nodes"][1].update(time=10**20), "time: expected 0 to"),
        (lambda it: it["nodes"].append(_call(dtype="flaot32")), "dtype: expected one of .*, got 'flaot32'"),
        (lambda it: it["nodes"].append(_call(count=10**20)), "count: expected 0 to"),
        (lambda it: it["nodes"].append(_call(ranks=10**9)), "ranks: expected 1 to"),
        (lambda it: it.update(costs=[{"channel": "one", "op": "send", "alpha": 10**20}]), "expected numbers from 0 to"),
        (lambda it: it.update(channels=[]), "expected at least one"),
        (lambda it: it["channels"][0].update(incast=-5), "incast: expected 0 to 1048576, got -5"),
        (lambda it: it["channels"][0].update(incast=10**30), "incast: expected 0 to 1048576, got 10+"),
        (lambda it: it["nodes"].append(_call(count=1 << 50, ranks=1 << 20)), "call: expected at most .* of all ranks"),
        (
            lambda it: it["nodes"][0]["options"].append(it["nodes"][0]["options"][0]),
            "options: expected different names",
        ),
    ],
)
def test_wrong_graphs_are_refused(change: Any, text: str, tmp_path: Path) -> None:
    value = json.loads(json.dumps(_blocking().document()))
    change(value)
    (tmp_path / "graph.json").write_text(json.dumps(value))
    with pytest.raises(InvalidArgumentError, match=f"graph.json: .*{text}"):
        graph.read(tmp_path / "graph.json")


# ---- the command


def test_the_command_shows_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, plan, picture = tmp_path / "graph.json", tmp_path / "plan.json", tmp_path / "plan.png"
    source.write_text(json.dumps(plan_graphs.paper().document()))
    assert cli.main(["plan", str(source), "-o", str(picture), "--plan", str(plan), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["iteration"]) for each in report["plans"]][-1] == ("search", 9500)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert document.read(plan, Planner(plan_graphs.paper())).iteration == 9500
    assert cli.main(["plan", str(source)]) == 0
    shown = capsys.readouterr().out
    assert "critical path" in shown
    assert "9.50 µs" in shown
    assert cli.main(["plan", str(tmp_path / "none.json")]) == 2
