# SPDX-License-Identifier: Apache-2.0
"""Codecs in tuning tables: measured together with uncompressed calls, and used where they are cheaper."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import mcr_dl
from harness import Pools
from harness.commands import refused
from mcr_dl import _C
from mcr_dl.passes import Compress
from mcr_dl.tables import codecs, table
from mcr_dl.tables.choice import costs_of
from mcr_dl.tables.host import host
from mcr_dl.tables.model import Curve, Exclusion, Subject, Table, label_of, parts_of
from mcr_dl.tables.winners import winners_of
from mcr_dl.tuning import tuner
from mcr_dl.tuning._journal import Journal, Plan, Progress, Unit
from mcr_dl.tuning.cli import main
from mcr_dl.tuning.diff import differences
from ranks import codec_tables, faults
from tables import curve, make, scale

MIB = 1 << 20
SIZES = [4096, MIB // 4, MIB, 4 * MIB]


def _curve(candidate: str, codec: str, *times: float, operation: str = "all_reduce") -> Curve:
    """A curve at 256 KiB, 1 MiB and 4 MiB; without a codec at 4 KiB too."""
    sizes = SIZES[1:] if codec else SIZES
    types = "float" if operation == "all_reduce" else "any"
    return curve(candidate, *times, operation=operation, dtype_class=types, sizes=sizes, codec=codec)


def _table(ranks: int) -> Table:
    """bf16 is cheaper from 1 MiB on, on gloo; int8 is the cheapest there; mpi is the cheapest up to 1 MiB."""
    curves = [
        each
        for operation in ("all_reduce", "all_gather", "all_gatherv", "all_to_all")
        for each in (
            _curve("mpi", "", 1, 100, 1000, 90_000, operation=operation),
            _curve("gloo", "", 50, 1000, 4000, 16_000, operation=operation),
        )
    ]
    for operation in ("all_reduce", "all_gather", "all_to_all"):
        curves += [
            _curve("gloo", "bf16", 1600, 3000, 8000, operation=operation),
            _curve("gloo", "int8:block=64", 1800, 2500, 5000, operation=operation),
            _curve("mpi", "bf16", 900, 9000, 91_000, operation=operation),
        ]
    return replace(make(scale(ranks, curves=tuple(curves), winners=())), host=host())


def _saved(folder: Path, ranks: int) -> str:
    path = folder / "table.json"
    table.write(_table(ranks), path)
    return str(path)


# ---- the table


def test_a_table_with_codecs_survives_its_file(tmp_path: Path) -> None:
    """Their curves and exclusions keep the codec; a table without codecs does not mention them."""
    failed = Exclusion("all_reduce", "float32", "gloo", "3 wrong elements", "zfp:rate=16")
    wanted = make(replace(_table(2).scales[0], excluded=(failed,)))
    table.write(wanted, tmp_path / "t.json")
    got = table.read(tmp_path / "t.json")
    assert got == wanted
    assert got.candidates == ["gloo", "mpi"]
    assert {each.label for each in got.scales[0].all_curves_of(Subject("all_reduce", "float"))} == {
        "mpi",
        "gloo",
        "gloo|bf16",
        "gloo|int8:block=64",
        "mpi|bf16",
    }
    assert all(not each.codec for each in got.scales[0].curves_of(Subject("all_reduce", "float")))
    table.write(make(), tmp_path / "plain.json")
    assert "codec" not in (tmp_path / "plain.json").read_text()


def test_wrong_codecs_in_a_table(tmp_path: Path) -> None:
    """A codec listed twice, and an unknown codec."""
    table.write(_table(2), tmp_path / "t.json")
    document = json.loads((tmp_path / "t.json").read_text())
    rows = document["scales"][0]["curves"]
    place = next(index for index, row in enumerate(rows) if row.get("codec") == "bf16")
    for change, message in (
        (lambda: rows.append(rows[place]), "all_reduce, float, gloo, bf16, got a second one"),
        (lambda: rows[-1].update(codec=""), "codec: expected"),
    ):
        change()
        (tmp_path / "t.json").write_text(json.dumps(document))
        with pytest.raises(mcr_dl.InvalidArgumentError, match=message):
            table.read(tmp_path / "t.json")


def test_codecs_win_no_backend() -> None:
    """The winners of a table, and the choice of backends, come from uncompressed calls."""
    measured = list(_table(2).scales[0].curves)
    plain = [each for each in measured if not each.codec]
    coded, without = scale(curves=tuple(measured)), scale(curves=tuple(plain))
    assert winners_of(coded) == winners_of(without)
    assert costs_of(coded)["curves"] == costs_of(without)["curves"]


def test_labels() -> None:
    """A candidate with its codec as one name, also for a candidate made of two backends."""
    striped = [("stripe(gloo,mpi)", ""), ("stripe(gloo,mpi,67)", ""), ("stripe(gloo,mpi)", "zfp:rate=8")]
    for parts in [("gloo", ""), ("mpi:p2p", "bf16"), *striped]:
        assert parts_of(label_of(*parts)) == parts
    assert parts_of("gloo+mpi:67|bf16") == ("stripe(gloo,mpi,67)", "bf16")


def test_ranges() -> None:
    """The codec of each size: cheaper by 2 %, accepted, and not below the measured sizes."""
    costs = costs_of(_table(2).scales[0])

    def of(candidate: str, accepted: list[str]) -> list[tuple[int, str]]:
        found = codecs.ranges_of(costs, accepted)
        return next(ranges for operation, name, ranges in found if (operation, name) == ("all_reduce", candidate))

    (start, first), (crossing, second) = of("gloo", ["bf16"])
    assert (start, first, second) == (0, "none", "bf16")
    assert MIB // 4 < crossing < MIB
    assert [name for _, name in of("gloo", ["bf16", "int8:block=64"])][-1] == "int8:block=64"
    assert of("mpi", ["bf16"]) == [(0, "none")]
    assert codecs.ranges_of(costs, ["fp16"]) == []
    slow = curve("gloo", 5000.0, 5000.0, 5000.0, 5000.0, 5000.0)
    cheap = replace(_curve("gloo", "bf16", 1, 2, 3), operation="all_reduce")
    assert codecs.ranges_of(costs_of(scale(curves=(slow, cheap)))) == [
        ("all_reduce", "gloo", [(0, "none"), (MIB // 4, "bf16")])
    ]


def test_views(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """show prints the size from which codecs are cheaper; diff compares their curves by name."""
    path = _saved(tmp_path, 2)
    other = _table(2).scales[0]
    fewer = replace(other, curves=tuple(each for each in other.curves if each.codec != "bf16"))
    table.write(replace(_table(2), scales=(fewer,)), tmp_path / "other.json")
    assert main(["show", "all_reduce", "--table", path]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "all_reduce on gloo: none, from" in text
    assert "all_reduce on mpi: none" in text
    rows = differences(table.read(path), table.read(tmp_path / "other.json"))
    assert ("2 ranks, all_reduce, float", "curve of gloo|bf16", "yes", "-") in rows
    assert {what for _, what, _, _ in rows} == {"curve of gloo|bf16", "curve of mpi|bf16"}


# ---- choosing


@pytest.mark.parametrize("world", [2, 3])
def test_the_table_decides(pools: Pools, tmp_path: Path, world: int) -> None:
    """Compressed from the size in the table on, equally on all ranks, on the backend that was measured."""
    path, pool = _saved(tmp_path, world), pools.get("processes", world)
    sizes = [MIB // 4, 2 * MIB]
    answers = pool.run(codec_tables.by_size, path, ["bf16"], sizes, "gloo")
    assert answers == [[(None, "gloo"), ("bf16", "gloo")]] * world
    answers = pool.run(codec_tables.by_size, path, ["int8", "bf16"], [MIB, 4 * MIB], None)
    assert answers == [[(None, "mpi"), ("int8:block=64", "gloo")]] * world
    assert pool.run(codec_tables.by_size, path, ["fp16"], sizes, "gloo") == [[(None, "gloo")] * 2] * world


def test_what_is_compressed(pools: Pools, tmp_path: Path) -> None:
    """It depends on ops, smallest, dtype and the call's own codec."""
    answers = pools.get("processes", 2).run(codec_tables.by_kind, _saved(tmp_path, 2))
    assert answers[0] == answers[1]
    assert {kind: codec for kind, (codec, _) in answers[0].items()} == {
        "too small": None,
        "asked": "bf16",
        "not in ops": None,
        "default": "bf16",
        "none": None,
        "another": "fp16",
        "integers": None,
        "bfloat16": None,
        "not measured": None,
        "a total": "bf16",
        "unknown size": None,
    }


def test_explain(pools: Pools, tmp_path: Path) -> None:
    """The codec, and the times with and without it."""
    said = pools.get("processes", 2).run(codec_tables.explained, _saved(tmp_path, 2), ("all_reduce", 4 * MIB))
    assert said[0] == said[1]
    (line,) = (line.split() for line in said[0]["bf16"].splitlines() if "codec" in line)
    assert line[:2] == ["codec", "bf16,"]
    assert [float(line[2]), float(line[-2])] == pytest.approx([8000, 16000], rel=1e-3)
    assert "  codec none" in said[0]["fp16"].splitlines()
    assert "codec" not in said[0]["without"] + said[0]["named"]


def test_errors(pools: Pools) -> None:
    """Codecs to choose from are needed, and must be equal on all ranks."""
    pools.get("processes", 2).run(codec_tables.errors)
    for codec, accepted in (("auto", []), ("bf16", ["int8"]), ("auto", ["none"]), ("auto", "bf16"), ("none", ["bf16"])):
        with pytest.raises(mcr_dl.InvalidArgumentError, match="Compress: codecs: expected"):
            Compress(codec, codecs=accepted)
    with pytest.raises(mcr_dl.InvalidArgumentError, match="feedback"):
        Compress("auto", codecs=["int8:feedback=a"])


# ---- measuring

PLAN = Plan(
    2,
    ("gloo",),
    (Unit("all_gather", "float32", (4096, 1 << 16)), Unit("all_reduce", "float32", (1 << 16,))),
    budget_seconds=0.02,
    confidence=0.5,
    codecs=("bf16", "int8:block=64"),
)


def test_codecs_are_measured(tmp_path: Path) -> None:
    """From 64 KiB on, together with uncompressed calls; a wrong one is excluded for that operation, and named."""
    journal = Journal(tmp_path / "journal")
    journal.begin(PLAN)
    entry = faults.compressed_all_gather_is_wrong
    progress = tuner.Tuner(PLAN, journal, Progress(), limit=20.0, entry=entry).run()
    measured = tuner.scale_of(PLAN, progress)
    (excluded,) = measured.excluded
    assert (excluded.operation, excluded.label) == ("all_gather", "gloo|bf16")
    assert "1 wrong elements at 65536 bytes" in excluded.reason
    sizes = {(each.operation, each.label): [sample.bytes for sample in each.samples] for each in measured.curves}
    assert sizes == {
        ("all_gather", "gloo"): [4096, 1 << 16],
        ("all_gather", "gloo|int8:block=64"): [1 << 16],
        ("all_reduce", "gloo"): [1 << 16],
        ("all_reduce", "gloo|bf16"): [1 << 16],
        ("all_reduce", "gloo|int8:block=64"): [1 << 16],
    }
    resumed = Journal(journal.path).resume(PLAN)
    assert tuner.scale_of(PLAN, resumed).curves == measured.curves
    with pytest.raises(mcr_dl.InvalidArgumentError, match="codecs: expected"):
        Journal(journal.path).resume(replace(PLAN, codecs=("bf16",)))


def test_the_command(tmp_path: Path) -> None:
    """It writes the curves with their names; another call reads and uses them."""
    path = tmp_path / "t.json"
    given = ["--codecs", "bf16,int8", "--ops", "all_to_all", "--dtypes", "float32", "--backends", "gloo"]
    assert main([*given, "--min", "64K", "--max", "64K", "--budget", "0.02", "--output", str(path)]) == 0
    measured = table.read(path)
    assert {each.codec for each in measured.scales[0].curves} == {"", "bf16", "int8:block=64"}
    assert measured.settings["codecs"] == "bf16,int8:block=64"
    assert {each.candidate for winner in measured.scales[0].winners for each in winner.ranges} == {"gloo"}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--codecs", "bf61"], "bf16, fp16, int8"),
        (["--codecs", "none"], "'none'"),
        (["--codecs", "int8:feedback=a"], "feedback"),
        (["--codecs", "bf16", "--max", "64"], "64K"),
        (["--codecs", "bf16", "--ops", "broadcast"], "all_reduce"),
    ],
)
def test_bad_command_lines(arguments: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the error; nothing is measured."""
    error = refused(main, [*arguments, "--output", str(tmp_path / "t.json")], capsys)
    assert "--codecs" in error
    assert part in error
    assert not list(tmp_path.iterdir())


def test_costs_between_points() -> None:
    """The prediction of explain equals the cost behind the choice: on a sample, its cost."""
    points = [(1024, 65536 * 10), (4096, 65536 * 12)]
    assert [_C.cost_at(points, size) for size in (1, 1024, 2048, 4096)] == [655360, 655360, 720896, 786432]
