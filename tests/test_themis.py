# SPDX-License-Identifier: Apache-2.0
"""Plans of collectives on networks of several dimensions: the paper's figures, the command, its errors.

tests/cpp/themis_test.cc compares random plans with the general simulator and with the operations' meaning.
"""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from harness import launchers
from harness.commands import refused
from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError
from mcr_dl.networks import plans, timeline
from mcr_dl.runtime import rates
from mcr_dl.schedule.themis import Dimension, Network, plan
from mcr_dl.tuning import cli

MB = 1_000_000
PAPER = (
    ("switch 16 1200, switch 64 800", 63.9, 96.8),
    ("switch 16 800, switch 8 800, switch 8 800", 35.5, 96.0),
    ("switch 16 1600, switch 8 800, switch 8 400", 60.9, 98.8),
    ("fully_connected 8 1400, ring 16 800, switch 8 400", 61.5, 95.7),
    ("ring 4 2000, switch 4 1600, switch 8 800, switch 8 400", 55.5, 96.4),
    ("ring 4 3000, fully_connected 8 1400, ring 4 1200, switch 8 800", 62.4, 95.2),
)
"""Table 2 without latencies; utilizations of baseline and SCF in the authors' simulator."""
FIGURE_5 = "switch 4 384, switch 4 192"
GOOD = {"kind": "switch", "size": 4, "gbps": 200, "latency_us": 0.5, "links": 1}


def _network(text: str, latency: float = 0.0) -> Network:
    rows = [row.split() for row in text.split(", ")]
    return Network.of(Dimension(kind, int(size), float(gbps), latency) for kind, size, gbps in rows)  # type: ignore[arg-type]


def _file(folder: Path, dimensions: Any) -> str:
    path = folder / "topology.json"
    path.write_text(json.dumps({"dimensions": dimensions}))
    return str(path)


def _document(text: str) -> list[dict[str, Any]]:
    return [
        {"kind": each.kind, "size": each.size, "gbps": each.gbps, "latency_us": each.latency_us, "links": each.links}
        for each in _network(text).dimensions
    ]


def _printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert cli.main(["simulate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of an error."""
    error = refused(cli.main, ["simulate", *words], capsys)
    assert error.count("\n") == 1
    return error


# ---- plans


@pytest.mark.parametrize(("policy", "units"), [("baseline", 8), ("themis-scf", 7), ("themis-fifo", 8)])
def test_figure_5(tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, units: int) -> None:
    """A unit is a millisecond here."""
    file = _file(tmp_path, _document(FIGURE_5))
    words = ("--topology", file, "--op", "all_reduce", "--bytes", str(256 * MB), "--policy", policy, "--chunks", "4")
    found = _printed(capsys, *words, "--in-flight", "1")
    assert found["makespan_us"] == 1000 * units
    assert found["policy"] == policy
    assert found["chunks"] == 4
    assert found["utilization"] == pytest.approx(20 / 3 / units, abs=1e-6)
    assert found["orders"] == ([[1, 2]] * 4 if policy == "baseline" else [[1, 2], [2, 1], [1, 2], [1, 2]])


def test_the_papers_topologies() -> None:
    """Bandwidth only, 64 chunks: near the authors' simulator, and their means in the bounds of docs/results."""
    used: dict[str, list[float]] = {"baseline": [], "themis-fifo": [], "themis-scf": []}
    gains = []
    for text, base, scf in PAPER:
        found = {policy: plan(_network(text), "all_reduce", 1000 * MB, policy=policy) for policy in used}
        for policy, each in found.items():
            used[policy].append(100 * each.utilization)
        assert 100 * found["baseline"].utilization == pytest.approx(base, abs=0.2)
        assert 100 * found["themis-scf"].utilization == pytest.approx(scf, abs=3)
        gains.append(found["baseline"].makespan / found["themis-scf"].makespan)
    assert statistics.mean(used["baseline"]) == pytest.approx(56.6, abs=0.5)
    assert statistics.mean(used["themis-fifo"]) == pytest.approx(87, abs=2)
    assert statistics.mean(used["themis-scf"]) >= 94
    assert 1.70 <= statistics.mean(gains) <= 1.80
    assert max(gains) == pytest.approx(2.7, abs=0.1)


def test_auto_is_never_below_the_best_baseline() -> None:
    """Also not with a number of chunks that auto does not try by itself."""
    random.seed(7)
    for _ in range(60):
        text = ", ".join(
            f"{random.choice(('switch', 'ring', 'fully_connected'))} {random.choice((2, 4, 8, 16))} "
            f"{random.choice((50, 100, 400, 900))}"
            for _ in range(random.randint(1, 4))
        )
        network = _network(text, random.choice((0.0, 0.7, 5.0)))
        nbytes, depth = random.choice((1, 10, 100, 1000)) * MB, random.choice((1, 4, 16))
        operation, odd = random.choice(plans.OPERATIONS), random.randint(1, 512)
        found = plan(network, operation, nbytes, chunks=odd, in_flight=depth)
        base = plans.best(network, operation, nbytes, ("baseline",), (*plans.CHUNKS, odd), depth)
        assert found.makespan <= base.makespan


def test_steps() -> None:
    """Each chunk goes through all dimensions in its order, there and back, and steps are in the order of the issue."""
    found = plan(_network(PAPER[4][0], 0.7), "all_reduce", 10 * MB, policy="themis-scf", chunks=16, in_flight=2)
    assert len(found.steps) == 16 * 8
    assert [step.start for step in found.steps] == sorted(step.start for step in found.steps)
    for chunk, order in enumerate(found.orders):
        own = sorted((step for step in found.steps if step.chunk == chunk), key=lambda step: step.index)
        assert [step.dimension for step in own] == [*order, *reversed(order)]
        assert [step.ready for step in own] == [0, *(step.end for step in own[:-1])]
    assert found.makespan == max(step.end for step in found.steps)
    with pytest.raises(InvalidArgumentError, match="chunks: expected 1 to 512, got 513"):
        plan(_network(FIGURE_5), "all_reduce", MB, chunks=513)
    with pytest.raises(InvalidArgumentError, match="policy: expected one of"):
        plan(_network(FIGURE_5), "all_reduce", MB, policy="best")


# ---- the command


def test_the_same_plan_in_every_process(tmp_path: Path) -> None:
    """Ranks derive the plan themselves."""
    file = _file(tmp_path, _document(PAPER[5][0]))
    words = ["-m", "mcr_dl.tuning", "simulate", "--topology", file, "--bytes", "100M", "--in-flight", "3", "--json"]
    one, two = (launchers.python(*words, limit=120, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert one == two
    assert one.code == 0, one.err
    assert json.loads(one.out)["policy"] == "themis-scf"


def test_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table with a row for each size; JSON has a list."""
    words = ("--topology", _file(tmp_path, _document(PAPER[0][0])), "--sizes", "1M,64M", "--op", "reduce_scatter")
    assert cli.main(["simulate", *words]) == 0
    text = capsys.readouterr().out
    assert "reduce_scatter on 16 x 64: switch 1200 Gb/s, switch 800 Gb/s" in text
    assert [line for line in text.splitlines() if "64M" in line and "themis-" in line]
    assert [each["bytes"] for each in _printed(capsys, *words)] == [1 << 20, 64 << 20]
    file = tmp_path / "plans.json"
    assert cli.main(["simulate", *words, "--json", str(file)]) == 0
    assert len(json.loads(file.read_text())) == 2


@pytest.mark.parametrize("depth", [1, 3])
def test_pictures(tmp_path: Path, depth: int) -> None:
    """A timeline of the baseline and the plan."""
    picture = tmp_path / "plan.png"
    words = ("--topology", _file(tmp_path, _document(FIGURE_5)), "--bytes", "1M", "--in-flight", str(depth))
    assert cli.main(["simulate", *words, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = plan(_network(FIGURE_5), "all_reduce", 256 * MB, policy="themis-scf", chunks=4, in_flight=depth)
    boxes = [each for each in timeline.figure([("plan", found)]).axes[0].patches if each.get_width() > 0]  # type: ignore[attr-defined]
    assert len(boxes) == 16


@pytest.mark.parametrize(
    ("dimensions", "text"),
    [
        ([], "topology.json: dimensions: expected at least 1 entry, got an empty list"),
        ([GOOD, {**GOOD, "size": 1}], "dimensions[1].size: expected a number of at least 2, got 1"),
        ([{**GOOD, "size": 2.5}], "dimensions[0].size: expected an integer, got 2.5"),
        (
            [{**GOOD, "kind": "mesh"}],
            "dimensions[0].kind: expected one of ['switch', 'ring', 'fully_connected'], got \"mesh\"",
        ),
        ([{**GOOD, "gbps": 0}], "dimensions[0].gbps"),
        ([{**GOOD, "gbps": -1}], "dimensions[0].gbps"),
        ([{**GOOD, "gbps": "fast"}], 'dimensions[0].gbps: expected a number, got "fast"'),
        ([{**GOOD, "latency_us": -0.1}], "dimensions[0].latency_us"),
        ([{**GOOD, "links": 0}], "dimensions[0].links"),
        (
            [{**GOOD, "rail": 1}],
            "dimensions[0]: expected only the keys kind, size, gbps, latency_us, links, got 'rail'",
        ),
        *(
            ([{key: value for key, value in GOOD.items() if key != name}], f"expected the key '{name}', got none")
            for name in GOOD
        ),
        ([{**GOOD, "size": 1 << 16}] * 3, "ranks: expected 2 to 16777216"),
        ("switch", 'dimensions: expected a list, got "switch"'),
    ],
)
def test_wrong_topologies(tmp_path: Path, capsys: pytest.CaptureFixture[str], dimensions: object, text: str) -> None:
    """One line that names the wrong part."""
    assert text in _refused(capsys, "--topology", _file(tmp_path, dimensions), "--bytes", "1M")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--bytes", "1M", "--policy", "themis"), "expected one of baseline, themis-fifo, themis-scf, auto"),
        (("--bytes", "1M", "--op", "broadcast"), "expected one of all_reduce, all_gather, reduce_scatter, all_to_all"),
        (("--bytes", "-1"), "--bytes: size: expected bytes"),
        (("--bytes", str((1 << 50) + 1)), "--bytes: size: expected at most 1048576G, got '1125899906842625'"),
        (("--sizes", "1M,2000000G"), "--sizes: size: expected at most 1048576G, got '2000000G'"),
        (("--bytes", "1M", "--chunks", "0"), "--chunks: expected a whole number from 1 on"),
        (("--bytes", "1M", "--chunks", "1000"), "chunks: expected 1 to 512, got 1000"),
        (("--bytes", "1M", "--in-flight", "9999"), "steps in flight: expected 1 to 1024, got 9999"),
        (("--bytes", "1M", "--in-flight", "3000000000"), "steps in flight: expected 1 to 1024, got 3000000000"),
        (("--bytes", "1M", "--chunks", "3000000000"), "chunks: expected 1 to 512, got 3000000000"),
        (("--bytes", "1M", "--sizes", "1M"), "not allowed with argument"),
        ((), "one of the arguments --bytes --sizes is required"),
        (("--sizes", "1M", "--plot", "x.png"), "--plot: expected --bytes"),
    ],
)
def test_wrong_options(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str) -> None:
    """One line that names the option."""
    assert text in _refused(capsys, "--topology", _file(tmp_path, [GOOD]), *words)


def test_the_other_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file for MCR_DL_TOPOLOGY describes a job, and no network."""
    file = tmp_path / "job.json"
    file.write_text('{"format": "mcr-dl topology", "version": 1, "dimensions": [{"name": "host", "size": 4}]}')
    text = _refused(capsys, "--topology", str(file), "--bytes", "1M")
    assert "kind, size, gbps, latency_us, links, innermost first, got a file as for MCR_DL_TOPOLOGY" in text


def test_no_topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file, no JSON, none named."""
    assert "no such file" in _refused(capsys, "--topology", str(tmp_path / "none.json"), "--bytes", "1M")
    (tmp_path / "text.json").write_text("dimensions")
    assert "complete JSON document" in _refused(capsys, "--topology", str(tmp_path / "text.json"), "--bytes", "1M")
    assert "--topology" in _refused(capsys, "--bytes", "1M")


def _times(*seconds: float, small: float = 0.001) -> rates.Times:
    """Of one rank: the rounds of each operation that take so long for the small size, and these times for the large."""
    return [[[int(small * 1e9)] * len(seconds)] * 3, [[int(each * 1e9) for each in seconds]] * 3]


@pytest.mark.parametrize(("nodes", "slowest"), [([0, 0, 1, 1], 0.02), ([0, 1, 2, 3], 0.01)])
def test_measured_rates(nodes: list[int], slowest: float) -> None:
    """The fastest round counts, but of ranks that share a node the slowest in that round: lines share its networks."""
    ranks = [_times(0.01, 0.02), _times(0.02, 0.01)] * 2
    row, exchanges = rates.agreed(2, 0, 0, ranks, nodes)
    assert row.bandwidth == pytest.approx(((2 << 20) - (16 << 10)) / 2 / (slowest - 0.001), rel=1e-6)
    assert not exchanges


@pytest.mark.parametrize(
    ("bandwidth", "latency"), [(10**9, 10**5), (10**8, 2 * 10**6), (10**10, 0), (3 * 10**6, 10**4)]
)
def test_times_of_the_model(bandwidth: int, latency: int) -> None:
    """Times that the model predicts for a bandwidth and a latency give just these: the small size has bytes too."""
    small, large = (latency / 1e9 + nbytes * 3 / 4 / bandwidth for nbytes in (16 << 10, 2 << 20))
    row, _ = rates.agreed(4, 0, 0, [_times(large, small=small)] * 4, [0, 0, 1, 1])
    assert row.bandwidth == pytest.approx(bandwidth, rel=1e-3)
    assert row.latency == pytest.approx(latency * 1000, rel=1e-2, abs=1e5)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("small", "large"), [(0.001, 0.001), (0.002, 0.001), (0, 0), (3, 4), (0.001, 0.0010001)])
def test_noisy_times(size: int, small: float, large: float) -> None:
    """A small call that takes as long as a large one, and times out of all range, give rates that plans accept."""
    row, _ = rates.agreed(size, 0, 0, [_times(large, small=small)] * size, [0] * size)
    assert row.bandwidth <= max(17 * (2 << 20) / max(large, 1e-9), 1 << 40)
    other = rates.Row("fully_connected", 2, 10**9, 10**6, 1)
    assert _C.themis_plan([row, other], "all_reduce", 32 << 20, False) is not None


def test_given_rates() -> None:
    """Rates of the topology's file apply; only what they lack is measured."""
    row, _ = rates.agreed(4, 10**9, 0, [_times(0.01, 0.01)] * 4, [0, 1, 2, 3])
    assert row.bandwidth == 10**9
    row, _ = rates.agreed(4, 0, 7, [_times(0.01, 0.01)] * 4, [0, 1, 2, 3])
    assert row.latency == 7000
    assert rates.agreed(4, 10**9, 7, [[]] * 4, [0, 1, 2, 3]) == (("fully_connected", 4, 10**9, 7000, 1), False)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (("switch", 4, 0.0), "gbps: expected a number from 8e-09 to 1000000, got 0.0"),
        (("switch", 4, -200), "gbps: .*, got -200"),
        (("switch", 4, float("nan")), "gbps: .*, got nan"),
        (("switch", 4, float("inf")), "gbps: .*, got inf"),
        (("switch", 4, "200"), "gbps: .*, got '200'"),
        (("switch", 4, 200, -0.1), "latency_us: expected a number from 0 to 1000000, got -0.1"),
        (("switch", 4, 200, float("nan")), "latency_us: .*, got nan"),
        (("switch", 1, 200), "size: expected a whole number from 2 to 65536, got 1"),
        (("switch", 2.5, 200), "size: .*, got 2.5"),
        (("switch", 4, 200, 0.0, 1 << 31), "links: expected a whole number from 1 to 65536, got 2147483648"),
        (("mesh", 4, 200), "kind: expected one of switch, ring, fully_connected, got 'mesh'"),
    ],
)
def test_wrong_dimensions(values: tuple[Any, ...], text: str) -> None:
    """Also in Python, one error that names the value."""
    with pytest.raises(InvalidArgumentError, match=f"^dimension: {text}$"):
        Dimension(*values)


@pytest.mark.parametrize("nbytes", [0, -1, (1 << 50) + 1, 1 << 63])
def test_wrong_numbers_of_bytes(nbytes: int) -> None:
    """Also those that the core's types cannot hold."""
    with pytest.raises(InvalidArgumentError, match=f"bytes: expected 1 to {1 << 50}, got {nbytes}"):
        plan(_network(FIGURE_5), "all_reduce", nbytes)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"nbytes": 1e6}, "nbytes: expected a whole number, got 1000000.0"),
        ({"chunks": "2"}, "chunks: expected a whole number, got '2'"),
        ({"in_flight": 1.0}, "in_flight: expected a whole number, got 1.0"),
        ({"operation": ["all_reduce"]}, "operation: expected a name, got "),
    ],
)
def test_wrong_types(given: dict[str, Any], text: str) -> None:
    arguments: dict[str, Any] = {"operation": "all_reduce", "nbytes": MB, **given}
    with pytest.raises(InvalidTypeError, match=f"^{text}"):
        plan(_network(FIGURE_5), **arguments)
