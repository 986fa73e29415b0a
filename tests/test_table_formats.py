# SPDX-License-Identifier: Apache-2.0
"""Exchange of winners with the tuning files of NCCL, Open MPI and UCC: what is carried, and what is reported."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcr_dl import InvalidArgumentError
from mcr_dl.tuning import formats, rules
from mcr_dl.tuning.table import Host, Range, Scale, Software, Table, Winner

TIME = "2026-03-01T12:00:00Z"
HOST = Host("0123456789abcdef", "A CPU", 2, 8, (), "Linux x86_64")


def winner(operation: str, *ranges: tuple[int, str], dtype_class: str = "float") -> Winner:
    return Winner(operation, dtype_class, tuple(Range(start, candidate) for start, candidate in ranges))


def table(*winners: Winner, ranks: int = 8, nodes: int = 2, device: str = "cuda", mpi: str = "Open MPI 6.0.0") -> Table:
    scale = Scale(ranks, nodes, ranks // nodes, device, TIME, winners=winners)
    return Table(TIME, HOST, Software("0.1.0", "2.13.0", "3.11.7", {"mpi": mpi}), {}, (scale,))


def test_the_formats_are_named() -> None:
    assert formats.names() == ["nccl", "openmpi", "ucc"]
    for call in (lambda: formats.import_rules("", "ini"), lambda: formats.export_rules(table(), "ini")):
        with pytest.raises(InvalidArgumentError, match="format: expected one of nccl, openmpi, ucc, got 'ini'"):
            call()


# ---- NCCL

NCCL = """\
# collective,min,max,algo,proto,channels,nNodes,nRanks
allreduce,0,65535,tree,ll128,-1,-1,-1

allreduce,65536,-1, ring ,simple,4,2,8,-1,1
allgather,1000,18446744073709551615,ring,ll,-1,-1,-1,3
"""


def test_import_from_nccl() -> None:
    rules, report = formats.import_rules(NCCL, "nccl")
    # The first row that fits counts there, the last one here.
    assert rules.split("#") == [
        "all_gather:1000-inf:nccl:ring-ll",
        "all_reduce:64k-inf:nccl:ring-simple",
        "all_reduce:0-64k:nccl:tree-ll128",
    ]
    assert report == [
        "line 4: channels 4 has no counterpart in MCR_DL_TUNE",
        "line 4: nNodes 2 has no counterpart in MCR_DL_TUNE",
        "line 4: nRanks 8 has no counterpart in MCR_DL_TUNE",
        "line 4: regBuff 1 has no counterpart in MCR_DL_TUNE",
        "line 5: numPipeOps 3 has no counterpart in MCR_DL_TUNE",
        "the rules for all_gather hold for all_gatherv too",
    ]


def test_algorithms_that_are_no_candidates_become_their_backend() -> None:
    rules, report = formats.import_rules(NCCL, "nccl", ["nccl", "nccl:tree", "nccl:ring-ll", "mpi"])
    assert rules == "all_gather:1000-inf:nccl:ring-ll#all_reduce:64k-inf:nccl#all_reduce:0-64k:nccl:tree"
    assert "line 2: 'll128' has no counterpart in MCR_DL_TUNE: nccl has no such variant here" in report
    assert "line 4: 'ring' has no counterpart in MCR_DL_TUNE: nccl has no such variant here" in report


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("allreduce,0,1,tree,ll", r"line 1: expected 8 to 10 columns \(collective,min,.*\), got 5"),
        ("allreduce,0,64k,tree,ll,-1,-1,-1", "line 1: max: expected a number, got '64k'"),
    ],
)
def test_a_wrong_nccl_file(line: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        formats.import_rules(line, "nccl")


def test_rows_that_cannot_be_carried_are_reported() -> None:
    rules, report = formats.import_rules("alltoall,0,9,ring,ll,-1,-1,-1\nreduce,9,4,ring,ll,-1,-1,-1", "nccl")
    assert rules == ""
    assert report == [
        "line 1: collective 'alltoall' has no counterpart in MCR_DL_TUNE",
        "reduce:9-5:nccl:ring-ll: no size is in this range, the rule is left out",
    ]


def test_export_to_nccl() -> None:
    won = [
        winner("all_reduce", (0, "nccl:tree-ll128"), (65536, "nccl:ring"), (1 << 20, "nccl")),
        winner("all_to_all", (0, "nccl:ring-ll"), dtype_class="any"),
        winner("reduce", (0, "mpi")),
    ]
    text, report = formats.export_rules(table(*won), "nccl")
    assert text.splitlines() == [
        "# collective,min,max,algo,proto,channels,nNodes,nRanks",
        "allreduce,0,65535,tree,ll128,-1,2,8",
        "allreduce,65536,1048575,ring,simple,-1,2,8",
    ]
    assert report == [
        "8 ranks (2x4), cuda, all_to_all, 0-inf: all_to_all has no counterpart in NCCL's tuner CSV",
        "8 ranks (2x4), cuda, reduce, 0-inf: mpi has no counterpart in NCCL's tuner CSV",
        "8 ranks (2x4), cuda, all_reduce, 64K-1M: ring has no protocol, a row must: simple is written",
        "8 ranks (2x4), cuda, all_reduce, 1M-inf: nccl without a variant has no counterpart in NCCL's tuner CSV: "
        "it is NCCL's own choice, which no row can say",
    ]


def test_an_nccl_file_survives_both_ways() -> None:
    won = winner("broadcast", (0, "nccl:tree-ll"), (4096, "nccl:ring-simple"), dtype_class="any")
    text, report = formats.export_rules(table(won), "nccl")
    assert report == []
    assert formats.import_rules(text, "nccl")[0] == "broadcast:4k-inf:nccl:ring-simple#broadcast:0-4k:nccl:tree-ll"


numbers = st.integers(0, 40)
rows = st.lists(st.tuples(numbers, st.just(-1) | numbers, st.sampled_from(["tree", "ring", "pat"])), max_size=6)


@settings(max_examples=60, deadline=None)
@given(rows=rows)
def test_imported_rules_choose_as_nccl_does(rows: list[tuple[int, int, str]]) -> None:
    """There the first row that fits counts, and ranges include their end; here the last rule, and they do not."""
    text = "\n".join(f"broadcast,{low},{high},{algorithm},ll,-1,-1,-1" for low, high, algorithm in rows)
    ours = rules.parse(formats.import_rules(text, "nccl")[0], ["nccl"])
    for size in range(45):
        fits = (f"nccl:{algorithm}-ll" for low, high, algorithm in rows if low <= size and (high == -1 or size <= high))
        mine = [rule.candidate for rule in ours if rule.start <= size and (rule.end == rules.NO_END or size < rule.end)]
        assert (mine[-1] if mine else None) == next(fits, None)


# ---- element types


def test_other_element_types_are_reported_where_their_winners_differ() -> None:
    won = [
        winner("all_reduce", (0, "nccl:tree-ll")),
        winner("all_reduce", (0, "nccl:tree-ll"), dtype_class="integer"),
        winner("all_reduce", (0, "nccl:ring-ll"), dtype_class="half"),
    ]
    text, report = formats.export_rules(table(*won), "nccl")
    assert "tree" in text
    assert [line.split(":")[0] for line in report] == ["8 ranks (2x4), cuda, all_reduce"]
    assert "the element types half has no counterpart" in report[0]
    assert "ring" in formats.export_rules(table(*won), "nccl", "half")[0]
    _, report = formats.export_rules(table(won[0]), "nccl", "complex")
    assert report == ["8 ranks (2x4), cuda, all_reduce: no winners for complex, those for float are exported"]


# ---- Open MPI


def openmpi(**collectives: object) -> str:
    return json.dumps({"rule_file_version": 3, "module": "tuned", "collectives": collectives})


def test_import_from_openmpi() -> None:
    first = {"msg_size_min": 512, "msg_size_max": 4095, "alg": 2}
    second = {"msg_size_min": 4096, "msg_size_max": "inf", "alg": "ring", "reqs": 8, "faninout": 2}
    entry = {"comm_size_min": 64, "comm_rank_distribution": "single-node", "rules": [first, second]}
    text = openmpi(allreduce=[entry], reducescatter=[{"rules": [{"alg": "ignore"}]}], exscan=[])
    rules, report = formats.import_rules(text, "openmpi")
    assert rules == "all_reduce:4k-inf:mpi:ring#all_reduce:512-4k:mpi#reduce_scatterv:*:mpi"
    assert report == [
        'allreduce[0]: comm_rank_distribution "single-node" has no counterpart in MCR_DL_TUNE',
        "allreduce[0]: comm_size_min 64 has no counterpart in MCR_DL_TUNE",
        "allreduce[0].rules[0]: alg 2 has no counterpart in MCR_DL_TUNE: a number; variants have names",
        "allreduce[0].rules[1]: faninout 2 has no counterpart in MCR_DL_TUNE",
        "allreduce[0].rules[1]: reqs 8 has no counterpart in MCR_DL_TUNE",
        "collectives: exscan has no counterpart in MCR_DL_TUNE",
    ]


def test_openmpi_algorithms_that_are_no_candidates() -> None:
    rules, report = formats.import_rules(openmpi(bcast=[{"rules": [{"alg": "chain"}]}]), "openmpi", ["mpi", "mpi:p2p"])
    assert rules == "broadcast:*:mpi"
    assert report == ["bcast[0].rules[0]: 'chain' has no counterpart in MCR_DL_TUNE: mpi has no such variant here"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Open MPI rules: line 1: expected a complete JSON document"),
        ("[]", "the document: expected an object"),
        ('{"rule_file_version": 2}', "rule_file_version: expected 3, got 2"),
        ('{"rule_file_version": 3, "module": "han"}', 'module: expected "tuned", got "han"'),
        ('{"rule_file_version": 3, "module": "tuned"}', "collectives: expected an object, got null"),
        (openmpi(bcast=[{}]), r"bcast\[0\].rules: expected a list, got null"),
        (openmpi(bcast=[{"rules": [{}]}]), r"bcast\[0\].rules\[0\].alg: expected an algorithm"),
        (
            openmpi(bcast=[{"rules": [{"alg": 1, "msg_size_max": "1k"}]}]),
            'msg_size_max: expected a number of bytes or "inf"',
        ),
    ],
)
def test_a_wrong_openmpi_file(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        formats.import_rules(text, "openmpi")


def test_export_to_openmpi() -> None:
    won = [
        winner("broadcast", (0, "mpi"), (4096, "mpi:chain"), (65536, "gloo"), dtype_class="any"),
        winner("reduce_scatter", (0, "mpi:ring")),
        winner("send", (0, "mpi"), dtype_class="any"),
    ]
    text, report = formats.export_rules(table(*won, ranks=4, nodes=4, device="cpu"), "openmpi")
    place = {"comm_size_min": 4, "comm_size_max": 4, "comm_rank_distribution": "one-per-node"}
    rules = [
        {"msg_size_min": 0, "msg_size_max": 4095, "alg": "ignore"},
        {"msg_size_min": 4096, "msg_size_max": 65535, "alg": "chain"},
    ]
    everywhere = [{"msg_size_min": 0, "msg_size_max": "inf", "alg": "ring"}]
    assert json.loads(text) == {
        "rule_file_version": 3,
        "module": "tuned",
        "collectives": {"bcast": [{**place, "rules": rules}], "reducescatterblock": [{**place, "rules": everywhere}]},
    }
    assert "4 ranks (4x1), broadcast, 64K-inf: gloo has no counterpart in Open MPI's rules" in report
    assert "4 ranks (4x1), send, 0-inf: send has no counterpart in Open MPI's rules" in report
    assert any(line.startswith("mpi:chain: Open MPI ignores a rule") for line in report)


def test_what_an_openmpi_file_cannot_say_is_reported() -> None:
    text, report = formats.export_rules(table(winner("reduce", (0, "mpi")), mpi="MPICH 5.0.2"), "openmpi")
    assert json.loads(text)["collectives"]["reduce"][0]["comm_rank_distribution"] == "any"
    assert report == [
        "mpi was measured with MPICH 5.0.2, not with Open MPI",
        "8 ranks (2x4), cuda: device cuda has no counterpart in Open MPI's rules",
        "8 ranks (2x4), cuda: the layout 2x4 has no counterpart in Open MPI's rules: any distribution is written",
    ]
    single, _ = formats.export_rules(table(winner("reduce", (0, "mpi")), nodes=1, device="cpu"), "openmpi")
    assert json.loads(single)["collectives"]["reduce"][0]["comm_rank_distribution"] == "single-node"


# ---- UCC


def test_import_from_ucc() -> None:
    text = (
        "UCC_TL_UCP_TUNE=allreduce:0-4K,64k-inf:host:inf:@knomial#bcast,alltoallv:[2-8]:inf#alltoall:10#reduce:inf:0-1m"
    )
    rules, report = formats.import_rules(text, "ucc")
    assert rules.split("#") == [
        "all_reduce:0-4k:ucc:knomial",
        "all_reduce:64k-inf:ucc:knomial",
        "broadcast:*:ucc",
        "reduce:0-1m:ucc",
        "all_to_allv:*:ucc",  # after all others: the name of the plain form stands for both
    ]
    assert report == [
        "UCC_TL_UCP_TUNE: the layer has no counterpart in MCR_DL_TUNE: rules are about UCC as a whole",
        "token 'allreduce:0-4K,64k-inf:host:inf:@knomial': memory type host has no counterpart in MCR_DL_TUNE",
        "UCC's ranges include their end, those of MCR_DL_TUNE do not",
        "token 'bcast,alltoallv:[2-8]:inf': team size [2-8] has no counterpart in MCR_DL_TUNE",
        "token 'alltoall:10': score 10 has no counterpart in MCR_DL_TUNE: only inf says that UCC is always taken; the "
        "token is left out",
    ]


def test_a_ucc_token_without_collectives_is_of_all() -> None:
    rules, _ = formats.import_rules("inf", "ucc")
    names = [rule.split(":")[0] for rule in rules.split("#")]
    assert {"all_reduce", "broadcast", "barrier", "all_gatherv"} <= set(names)
    assert "send" not in names


def test_what_ucc_measures_in_another_way_is_reported() -> None:
    rules, report = formats.import_rules("reduce_scatter:0-1k:inf#fanin:inf", "ucc", ["ucc"])
    assert rules == "reduce_scatter:0-1k:ucc"
    assert any("one rank's part" in line for line in report)
    assert "token 'fanin:inf': collective 'fanin' has no counterpart in MCR_DL_TUNE" in report


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allreduce:0-4k", "token 'allreduce:0-4k': expected a score or an @algorithm, got neither"),
        ("allreduce:0-4q:inf", "token 'allreduce:0-4q:inf': expected a collective, .*, got '0-4q'"),
        ("allreduce:inf#", "token '': expected a collective"),
    ],
)
def test_a_wrong_ucc_string(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        formats.import_rules(text, "ucc")


def test_export_to_ucc() -> None:
    won = [
        winner("all_reduce", (0, "ucc"), (4096, "ucc:knomial"), (65536, "gloo")),
        winner("broadcast", (0, "ucc"), dtype_class="any"),
        winner("reduce_scatter", (0, "mpi"), (1024, "ucc")),
        winner("gatherv", (0, "mpi"), (1024, "ucc"), dtype_class="any"),
    ]
    text, report = formats.export_rules(table(*won, device="cpu"), "ucc")
    assert text.strip().split("#") == [
        "allreduce:0-4095:host:[8-8]:inf",
        "allreduce:4096-65535:host:[8-8]:inf:@knomial",
        "bcast:host:[8-8]:inf",
        "reduce_scatter:128-inf:host:[8-8]:inf",  # of one rank's part
    ]
    assert "8 ranks (2x4), all_reduce, 64K-inf: gloo has no counterpart in UCC's TUNE" in report
    assert "8 ranks (2x4): nodes 2 has no counterpart in UCC's TUNE: the number of ranks is written" in report
    assert any(line.startswith("8 ranks (2x4), gatherv, 1K-inf: the range has no counterpart") for line in report)


def test_nothing_to_export_is_an_empty_text() -> None:
    text, report = formats.export_rules(table(winner("all_reduce", (0, "mpi"))), "ucc")
    assert text == ""
    assert len(report) == 1
