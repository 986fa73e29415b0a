# SPDX-License-Identifier: Apache-2.0
"""`auto`: the choice follows the table, and is equal on every rank whatever the ranks' own files say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tables
from harness import Pools
from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.tables import rules, table
from mcr_dl.tables.host import host
from mcr_dl.tables.model import Exclusion
from mcr_dl.tuning import explain
from ranks import choice


def test_the_backend_that_moves_no_data_is_not_chosen(pools: Pools) -> None:
    """Calls of a group that also has ``null`` use it only where they name it."""
    pools.get("processes", 2).run(choice.without_null, limit=60)
    pools.get("processes", 2).run(choice.without_fake, limit=60)


@pytest.mark.parametrize(("world", "count"), [(2, 20_000), (3, 2_000)])
def test_ranks_agree(pools: Pools, tmp_path: Path, world: int, count: int) -> None:
    """Ranks have different tables and different counts in vectored calls, and all their calls still match."""
    for rank in range(world):
        table.write(tables.random_table(rank, world), tmp_path / f"{rank}.json")
    answers = pools.get("processes", world).run(choice.calls, str(tmp_path), 5, count, limit=200.0)
    assert len({digest for digest, _ in answers}) == 1
    assert all(calls > count / 100 for calls in answers[0][1].values()), answers[0][1]


def test_ranks_answer_alike(pools: Pools, tmp_path: Path) -> None:
    """10^5 questions about calls of every operation, type, reduction and size have the same answers on all ranks."""
    for rank in range(3):
        table.write(tables.random_table(10 + rank, 3), tmp_path / f"{rank}.json")
    answers = pools.get("processes", 3).run(choice.questions, str(tmp_path), 6, 100_000, limit=120.0)
    assert len(set(answers)) == 1
    assert answers[0][1] >= 2  # a host with more ranks than cores has no variants of mpi


def test_the_table_decides(pools: Pools, tmp_path: Path) -> None:
    """The chosen candidate is the cheapest in the table, and explain names the row."""
    for favourite in tables.CANDIDATES:
        path = tmp_path / "table.json"
        table.write(tables.flat(favourite), path)
        said = pools.get("processes", 2).run(choice.start, str(path), {}, ("all_reduce", 4096))
        assert all(f"all_reduce, 4096 bytes: {favourite}, the cheapest" in text for text in said)
        assert all(str(path) in text and "2 ranks, all_reduce, float" in text for text in said)


def test_asynchronous_calls_have_their_own_curves(pools: Pools, tmp_path: Path) -> None:
    """They count for asynchronous calls; where there are none, those of blocking calls do."""
    table_of_mpi = tables.flat("mpi")
    times = {"mpi": 3.0, "mpi:p2p": 2.0, "gloo": 1.0}
    starting = [
        replace(tables.curve(name, *[us] * len(tables.SIZES), sizes=tables.SIZES), async_op=True)
        for name, us in times.items()
    ]
    scale = table_of_mpi.scales[0]
    path = tmp_path / "table.json"
    table.write(tables.make(replace(scale, curves=(*scale.curves, *starting)), host=host()), path)
    for found in pools.get("processes", 2).run(choice.forms, str(path)):
        assert found == {
            "blocking": ("mpi", "2 ranks, all_reduce, float"),
            "asynchronous": ("gloo", "2 ranks, all_reduce, float, asynchronous"),
            "of another type": ("gloo", "2 ranks, all_reduce, half, asynchronous (the nearest that was measured)"),
            "not measured": ("mpi", "2 ranks, broadcast, any, asynchronous (the nearest that was measured)"),
            "demo": "gloo",
            "call": "gloo",
        }


@pytest.mark.parametrize("ranks", [2, 4])
def test_excluded_candidates_are_not_chosen(pools: Pools, tmp_path: Path, ranks: int) -> None:
    """Also by the nearest measurements, and where no other candidate was measured."""
    (scale,) = tables.flat("gloo", ranks).scales
    kept = tuple(curve for curve in scale.curves if curve.operation != "all_reduce")
    excluded = tuple(Exclusion("all_reduce", "float32", name, "hangs") for name in ("mpi", "mpi:p2p"))
    path = tmp_path / "table.json"
    table.write(tables.make(replace(scale, curves=kept, excluded=excluded), host=host()), path)
    pool = pools.get("processes", 2)
    said = pool.run(choice.start, str(path), {}, ("all_reduce", 64))
    assert all("64 bytes: gloo, the only candidate" in text and "left out by measurement: mpi" in text for text in said)
    said = pool.run(choice.start, str(path), {"MCR_DL_TUNE": "all_reduce:*:mpi"}, ("all_reduce", 64))
    assert all("64 bytes: mpi, by the rule" in text for text in said)  # the user may name it
    said = pool.run(choice.start, str(path), {}, ("broadcast", 64))
    assert all("64 bytes: gloo, the cheapest" in text for text in said)


@pytest.mark.parametrize(("chain", "options"), [("fuse", {}), ("compress", {"codec": "bf16"})])
@pytest.mark.parametrize(
    ("rule", "candidate"), [("all_reduce:0-64k:gloo", "gloo"), ("all_to_all:*:gloo#all_reduce:64k-inf:gloo", "mpi")]
)
def test_rules_hold_for_calls_through_passes(
    pools: Pools, chain: str, options: dict[str, str], rule: str, candidate: str
) -> None:
    """Though the pass chooses by another call: a full buffer's, or the one that carries the encoded data."""
    assert pools.get("processes", 2).run(choice.behind, chain, options, rule) == [(candidate, candidate)] * 2


def test_rank_0_counts(pools: Pools, tmp_path: Path) -> None:
    """Ranks with another table, another rule or none at all use rank 0's."""
    table.write(tables.flat("gloo"), tmp_path / "a.json")
    table.write(tables.flat("mpi:p2p"), tmp_path / "b.json")
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    pool, question = pools.get("processes", 2), ("all_reduce", 64)
    rule = {"MCR_DL_TUNE": "broadcast:*:gloo#all_reduce:*:gloo#all_reduce:0-64k:mpi"}
    for first, second, mine, theirs, expected in (
        (a, b, {}, {}, "gloo, the cheapest"),
        (b, a, {}, {}, "mpi:p2p, the cheapest"),
        (a, "none", {}, {}, "gloo, the cheapest"),
        ("none", a, {}, {}, "mpi, not measured"),
        (a, a, rule, {}, "mpi, by the rule 'all_reduce:0-64k:mpi' of MCR_DL_TUNE"),
        (a, a, {}, rule, "gloo, the cheapest"),
    ):
        said = pool.run(choice.start_by_rank, [first, second], [mine, theirs], question)
        assert all(f"64 bytes: {expected}" in text for text in said), (first, second, said)


def test_the_environment_names_a_table(pools: Pools, tmp_path: Path) -> None:
    """MCR_DL_TUNING_TABLE is used, and the argument overrides it."""
    table.write(tables.flat("gloo"), tmp_path / "a.json")
    table.write(tables.flat("mpi:p2p"), tmp_path / "b.json")
    variables = {"MCR_DL_TUNING_TABLE": str(tmp_path / "a.json")}
    pool, question = pools.get("processes", 2), ("broadcast", 64)
    assert all("gloo, the cheapest" in text for text in pool.run(choice.start, None, variables, question))
    said = pool.run(choice.start, str(tmp_path / "b.json"), variables, question)
    assert all("mpi:p2p, the cheapest" in text for text in said)


def _damage(path: Path, what: str) -> None:
    text = path.read_text()
    if what == "truncated":
        path.write_text(text[: len(text) // 2])
    elif what == "older":
        path.write_text(text.replace('"version": 1', '"version": 0'))
    elif what == "a wrong key":
        path.write_text(text.replace('"median_us": 1.0', '"median": 1.0', 1))
    elif what == "missing":
        path.unlink()


@pytest.mark.parametrize(
    ("what", "key"),
    [("truncated", "truncated"), ("older", "version"), ("a wrong key", "median"), ("missing", "not")],
)
def test_a_broken_table_is_an_error_everywhere(pools: Pools, tmp_path: Path, what: str, key: str) -> None:
    """A named broken table: one clear error on every rank, even where the rank's own file is good."""
    paths = [tmp_path / "0.json", tmp_path / "1.json"]
    for path in paths:
        table.write(tables.flat("gloo"), path)
    _damage(paths[0], what)
    said = pools.get("processes", 2).run(choice.start_by_rank, list(map(str, paths)), [{}, {}], ("all_reduce", 4))
    assert len(set(said)) == 1
    assert said[0].startswith("InvalidArgumentError: tuning table")
    assert "0.json" in said[0]
    assert key in said[0]
    table.write(tables.flat("gloo"), paths[0])
    _damage(paths[1], what)  # rank 0's is good: that one is used
    said = pools.get("processes", 2).run(choice.start_by_rank, list(map(str, paths)), [{}, {}], ("all_reduce", 4))
    assert all("gloo, the cheapest" in text for text in said)


def test_edited_and_foreign_tables_warn(pools: Pools, tmp_path: Path) -> None:
    """They are used unchanged, on all ranks, and the log names the doubtful key."""
    path = tmp_path / "t.json"
    measured = tables.flat("gloo")
    table.write(replace(measured, host=replace(measured.host, fingerprint="0123456789abcdef")), path)
    path.write_text(path.read_text().replace(tables.TIME, "2026-03-02T12:00:00Z", 1))
    pool = pools.get("processes", 2)
    said = pool.run(choice.start, str(path), {}, ("all_reduce", 4))
    assert all("gloo, the cheapest" in text for text in said)
    assert "checksum" in pool.log()
    assert "host.fingerprint" in pool.log()


@pytest.mark.parametrize("world", [4])
def test_nearest_scale(pools: Pools, tmp_path: Path, world: int) -> None:
    """A group of a size that was not measured uses the nearest scale, and reports that once."""
    two, four = tables.flat("gloo", 2).scales[0], tables.flat("mpi", 4).scales[0]
    table.write(tables.make(two, four, host=host()), tmp_path / "t.json")
    pool = pools.get("processes", world)
    answers = {
        size: (name, row) for rank in pool.run(choice.subgroups, str(tmp_path / "t.json")) for size, name, row in rank
    }
    assert answers[2] == ("gloo", "2 ranks, all_reduce, float")
    assert answers[4] == ("mpi", "4 ranks, all_reduce, float")
    assert answers[3][0] == "mpi"
    assert "nearest to 3 ranks on 1 node" in answers[3][1]
    assert "no measurements for 3 ranks on 1 node" in pool.log()


def test_rules() -> None:
    """The grammar: names of functions, both forms of an operation, units, the whole range, variants."""
    (rule,) = rules.parse("all_reduce:0-64k:mpi:p2p", ["mpi"])
    assert (rule.operation, rule.start, rule.end, rule.candidate) == ("all_reduce", 0, 65536, "mpi:p2p")
    both = rules.parse("all_to_all:*:gloo#bcast:1m-inf:mpi", ["mpi", "gloo"])
    assert [(each.operation, each.start, each.end) for each in both] == [
        ("all_to_all", 0, rules.NO_END), ("all_to_allv", 0, rules.NO_END), ("broadcast", 1 << 20, rules.NO_END),
    ]  # fmt: skip
    assert [each.operation for each in rules.parse("irecv:*:mpi", ["mpi"])] == ["send"]
    assert len(rules.parse("*:*:mpi", ["mpi"])) == len(_C.operations())
    assert rules.parse("  ", ["mpi"]) == []
    spaced = rules.parse(" send:*:gloo #\tbarrier:*:mpi\n", ["mpi", "gloo"])
    assert [(each.operation, each.candidate) for each in spaced] == [("send", "gloo"), ("barrier", "mpi")]


@pytest.mark.parametrize(
    ("text", "character", "part"),
    [
        ("all_reduc:*:mpi", 1, "all_reduce"),
        ("all_reduce:*:mpi#bcast:64-:mpi", 27, "bytes"),
        ("all_reduce:64k:mpi", 12, "range"),
        ("all_reduce:2k-1k:mpi", 15, "more than 2k"),
        ("all_reduce:*:mpj", 14, "mpi, gloo"),
        ("all_redce:*:mpi", 1, "got 'all_redce'; did you mean all_reduce?"),
        ("all_reduce:*:mpi # bcast:*:glo ", 28, "got 'glo'; did you mean gloo?"),
        ("all_reduce:*", 1, "operation:range:candidate"),
        ("all_reduce:*:mpi##", 18, "operation:range:candidate"),
    ],
)
def test_a_typo_in_a_rule(text: str, character: int, part: str) -> None:
    """The error points at the character."""
    with pytest.raises(InvalidArgumentError) as caught:
        rules.parse(text, ["mpi", "gloo"])
    message = str(caught.value)
    assert f"character {character}:" in message
    assert part in message
    assert message.splitlines()[2].index("^") == character + 1


def test_a_typo_reaches_every_rank(pools: Pools) -> None:
    """Also a variant that does not exist, which is known only after the libraries have started."""
    for text, part in (("all_reduce:*:mpi:p3p", "mpi:p2p"), ("all_reduce:x:mpi", "character 12")):
        said = pools.get("processes", 2).run(choice.start, "none", {"MCR_DL_TUNE": text}, ("all_reduce", 4))
        assert all(each.startswith("InvalidArgumentError: MCR_DL_TUNE") and part in each for each in said), said


def test_a_bad_question(pools: Pools) -> None:
    """explain names the error."""
    pool = pools.get("processes", 2)
    for question, part in (
        (("all_reduc", 4), "all_reduce"),
        (("all_reduce", None), "nbytes"),
        (("all_gatherv", None), "nbytes: expected the bytes of all_gatherv"),
        (("reduce_scatterv", None), "nbytes"),
        (("all_reduce", -1), "nbytes"),
    ):
        said = pool.run(choice.start, "none", {}, question)
        assert all(each.startswith("InvalidArgumentError") and part in each for each in said), said


@pytest.mark.parametrize(
    ("chosen", "tried", "reason"),
    [
        ("gloo", False, "the cheapest"),
        ("mpi", False, "within 2 % of the cheapest, gloo, and chosen for the sizes below"),
        ("mpi", True, "within 10 % of the cheapest, gloo, and chosen before the trials"),
    ],
)
def test_reasons(chosen: str, tried: bool, reason: str) -> None:
    """Curves that are close keep the candidate of smaller sizes, trials the one that calls used before."""
    facts = {"measured": True, "refined": False, "excluded": []}
    found = {**facts, "chosen": chosen, "tried": tried}
    assert explain._reason(4, found, {"gloo": 1.0, "mpi": 1.01}) == reason
