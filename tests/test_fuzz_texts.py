# SPDX-License-Identifier: Apache-2.0
"""Texts from people: each is parsed, or rejected with one InvalidArgumentError; nothing else, and no hang."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mcr_dl
from fuzzing import fuzz, near
from harness import Pools
from mcr_dl import _C, BackendUnavailableError, InvalidArgumentError
from mcr_dl.base import launcher, variables
from mcr_dl.bench import cli as bench
from mcr_dl.bench.mix import parse_mix
from mcr_dl.commands import arguments
from mcr_dl.commands.sizes import parse_size, size_text
from mcr_dl.libraries import registry
from mcr_dl.passes import chain
from mcr_dl.runtime import devices
from mcr_dl.tables import rules
from mcr_dl.tuning import cli as tune
from ranks import fuzz as on_rank

pytestmark = pytest.mark.timeout(600)

LARGEST = 2**63 - 1
NUMBERS = [
    "0",
    "1",
    "-",
    "64k",
    "1m",
    "2g",
    "inf",
    "9" * 20,
    "9" * 5000,
    "9223372036854775807",
    "9007199254740993g",
    "-1",
    "1e3",
    "½",
    "٣",
    "0x10",
]
NAMES = [
    "all_reduce",
    "all_reducev",
    "all_gather",
    "recv",
    "broadcast",
    "*",
    "mpi",
    "gloo",
    "mpi:p2p",
    "null",
    "auto",
    "nope",
]


def refused(call: Callable[..., Any], *values: Any, also: tuple[type[Exception], ...] = ()) -> Any:
    """The result of the call; None if it raises an expected error."""
    try:
        return call(*values)
    except (InvalidArgumentError, *also):
        return None


RULES = [
    "all_reduce:0-64k:mpi#all_to_all:*:gloo",
    "*:*:gloo",
    "recv:4-8:mpi",
    "all_gather:1m-inf:mpi:p2p",
    "broadcast:1m-inf:stripe(gloo,mpi,67)#reduce:*:gloo+mpi",
    "barrier:*:mpi",
]


@fuzz(300)
@given(text=near(RULES, [*NAMES, *NUMBERS, ":", "#", "-", "*", " ", "\n"]))
@example("all_reduce:" + "9" * 5000 + "-inf:mpi")
@example("all_reduce:0-9999999999g:mpi")
def test_rules(text: str) -> None:
    """MCR_DL_TUNE: parsed rules have known operations, and ranges that fit into 64 bits."""
    found = refused(rules.parse, text, ["mpi", "gloo", "stripe(gloo,mpi)"])
    for rule in found or []:
        assert rule.operation in _C.operations()
        assert _C.CandidateName(rule.candidate).backend in ("mpi", "gloo", "stripe(gloo,mpi)")
        assert 0 <= rule.start <= LARGEST
        assert rule.end == rules.NO_END or rule.start < rule.end <= LARGEST
        assert _C.canonical(text[rule.place :].partition("#")[0].strip()) == rule.candidate


@fuzz(60)
@given(text=near(RULES, [*NAMES, *NUMBERS, ":", "#", "-", "*"]))
def test_rules_reach_a_group(pools: Pools, text: str) -> None:
    """MCR_DL_TUNE at init: the program starts and its calls are right, or the rules are rejected."""
    (answer,) = pools.get("processes", 1).run(on_rank.start_with, {"MCR_DL_TUNE": text}, ["gloo", "null"], limit=30.0)
    assert answer in ("started", "InvalidArgumentError")


@fuzz(300)
@given(
    text=near(
        ["mpi,gloo", "cpu:mpi,cuda:nccl", "auto", "gloo", "null , gloo", "mpi,gloo,stripe(gloo, mpi)", "gloo+mpi"],
        ["mpi", "gloo", "auto", "cpu:", "cuda:", ",", ":", " ", "mcr", "c10d", "mpi_mpich", "stripe(", ")", "+"],
    )
)
def test_backends(text: str) -> None:
    """MCR_DL_BACKENDS, and the argument of init."""
    for name in refused(registry.parse_backends, text) or []:
        assert registry.is_known(name)


@fuzz(100)
@given(
    given_list=st.lists(
        st.one_of(
            st.sampled_from(["mpi", "gloo", "", " ", "cuda:nccl"]), st.none(), st.integers(), st.text(max_size=5)
        ),
        max_size=4,
    )
)
def test_backend_lists(given_list: list[Any]) -> None:
    for name in refused(registry.parse_backends, given_list) or []:
        assert registry.is_known(name)


@fuzz(300)
@given(
    text=near(
        ["log,fuse", "compress", "fuse", "log , compress,fuse"], ["log", "fuse", "compress", ",", " ", "none", ":"]
    )
)
def test_passes(text: str) -> None:
    """MCR_DL_PASSES."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "MCR_DL_PASSES",
            text.replace("\x00", "").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape"),
        )
        found = refused(chain.specify, None)
    assert len({each.name for each in found or []}) == len(found or [])


SOME = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    st.booleans(),
    st.lists(st.text(max_size=3), max_size=2),
)


@st.composite
def options(draw: st.DrawFn) -> tuple[type, dict[str, Any]]:
    """A pass, and values for some of its options."""
    make = draw(st.sampled_from([mcr_dl.passes.Fuse, mcr_dl.passes.Compress, mcr_dl.passes.Log]))
    names = st.sampled_from(sorted(each.name for each in fields(make) if each.init))
    return make, draw(st.dictionaries(names, SOME, max_size=3))


@fuzz(200)
@given(given=options())
@example((mcr_dl.passes.Fuse, {"unknown": 1}))
def test_options_of_passes(given: tuple[type, dict[str, Any]]) -> None:
    """Passes with options of any type: made, or rejected with an error of mcr_dl or Python's for unknown names."""
    make, values = given
    if not values.keys() <= {each.name for each in fields(make)}:
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            make(**values)
        return
    made = refused(lambda: make(**values), also=(mcr_dl.InvalidTypeError, BackendUnavailableError))
    if made is not None:
        assert json.loads(json.dumps(made.terms())) == made.terms()


CODECS = [
    "bf16",
    "fp16",
    "int8",
    "int8:block=64",
    "int8:block=128,feedback=grad0",
    "zfp:rate=16",
    "zfp:tolerance=1e-3",
    "none",
    "auto",
    "bf16,feedback=x",
]


@fuzz(400)
@given(
    text=near(
        CODECS,
        [
            "int8",
            "bf16",
            "zfp",
            ":",
            ",",
            "=",
            "block",
            "rate",
            "tolerance",
            "feedback",
            "8",
            "64",
            "1e-400",
            "nan",
            "inf",
            "-1",
            "9" * 30,
        ],
    )
)
@example("bf16:feedback=\ud800")
def test_codecs(text: str) -> None:
    """A codec's name has one full form, which is its own full form."""
    found = refused(_C.codec, text, also=(BackendUnavailableError, mcr_dl.InvalidTypeError))
    if found is not None and found["name"] not in ("none", "auto"):
        again = _C.codec(found["name"])
        assert again == {**found, "feedback": ""}


@fuzz(400)
@given(text=near(["4", "64K", "1.5M", "16MiB", "2G", "0.5K"], ["K", "M", "G", "i", "B", ".", " ", *NUMBERS]))
@example("9" * 400)
@example("1." + "9" * 6000 + "G")
def test_sizes(text: str) -> None:
    """Sizes of the command lines."""
    found = refused(parse_size, text)
    if found is not None:
        assert 1 <= found <= LARGEST
        assert parse_size(size_text(found)) == found


@fuzz(400)
@given(
    text=near(
        ["all_reduce:1M@gloo + all_to_all:256K@mpi", "broadcast:4@mpi:p2p"],
        ["all_reduce", "all_to_all", "send", ":", "@", "+", " ", "gloo", *NUMBERS],
    )
)
def test_mix(text: str) -> None:
    """--mix: parsed parts print as they were."""
    parts = refused(parse_mix, text)
    if parts:
        assert parse_mix("+".join(map(str, parts))) == parts


WORDS = [
    "-n", "2", "2,4", "--ops", "all", "all_reduce", "all_reduce,barrier", "--backends", "mpi,gloo", "--dtypes",
    "float32", "--codecs", "bf16,int8", "--min", "4", "-b", "--max-bytes", "64K", "-f", "2", "1.0000001", "1e308",
    "--budget", "0.5", "nan", "inf", "--confidence", "--limit", "--device", "cpu", "cuda", "--output",
    "/nowhere/x", "/" + "a" * 300, "--quick", "--dtype", "--redop", "SUM", "BAND", "--root", "1", "--async",
    "--in-place", "--json", "--plot", "--mix", "all_reduce:4@mpi", "show", "plot", "--table", "diff", "",
]  # fmt: skip


def _ends_badly(parse: Callable[[list[str]], Any], words: list[str]) -> bool:
    try:
        parse(words)
    except InvalidArgumentError:
        return False
    except SystemExit as end:  # the line has been printed
        return end.code not in (0, 2)
    return False


command = st.lists(st.one_of(st.sampled_from(WORDS), near(["64K", "mpi", "2"], NUMBERS)), max_size=7).map(
    lambda words: [word.replace("\x00", "") for word in words]
)


@fuzz(150)
@given(words=command)
@example(["--factor", "1.0000001", "--max", "1G"])
@example(["--quick", "show"])
@example(["--output", "/" + "a" * 300])
def test_command_lines(words: list[str]) -> None:
    """mcr-bench and mcr-tune: settings, or one line and exit code 2."""
    for parse in (bench._parse, tune._parse):
        assert not _ends_badly(parse, words)


@fuzz(100)
@given(smallest=st.integers(1, 2**63), largest=st.integers(1, 2**63), factor=st.floats(1, 1e308, exclude_min=True))
def test_sweeps(smallest: int, largest: int, factor: float) -> None:
    found = refused(arguments.sizes, smallest, largest, factor)
    if found:
        assert found[0] == smallest
        assert found[-1] <= largest
        assert len(found) <= arguments.MOST_SIZES
        assert list(found) == sorted(set(found))


@fuzz(200)
@given(text=near(["3", "0.5", "mpi,gloo", "all", "float32"], [*NUMBERS, ",", " ", "mpi"]))
def test_converters(text: str) -> None:
    """The functions that argparse calls: a value, or argparse's own error."""
    known = [
        arguments.count(0),
        arguments.above(0),
        arguments.operation_names,
        arguments.candidate_names,
        arguments.name_list,
        arguments.device,
        arguments.output,
        tune._dtypes,
        tune._codecs,
        tune._ranks,
        parse_size,
    ]
    for convert in known:
        with contextlib.suppress(argparse.ArgumentTypeError):
            arguments.checked(convert)(text.replace("\x00", ""))


@fuzz(200)
@given(
    text=near(["gpu[03-07,09],login", "host1", "a,b"], ["[", "]", ",", "-", "0", "gpu"]),
    number=near(["1", "0"], NUMBERS),
    tasks=near(["16(x8),3", "2"], ["(", ")", "x", ",", "-", "0"]),
)
def test_launchers(text: str, number: str, tasks: str) -> None:
    """The values of a launcher's variables."""
    refused(launcher.first_host, text)
    for rank, size in (("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        refused(launcher.detect, {rank: number, size: "2"})
        refused(launcher.detect, {rank: "0", size: number, "LOCAL_RANK": number})
    refused(launcher.local_size, {"LOCAL_WORLD_SIZE": number})
    step = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": number}
    refused(launcher.local_size, {**step, "SLURM_STEP_TASKS_PER_NODE": tasks})
    refused(launcher.slurm_address, {"SLURM_JOB_NODELIST": text, "SLURM_JOB_ID": number, "SLURM_STEP_ID": number})


@fuzz(100)
@given(text=near(["off", "4194304", "1"], NUMBERS))
def test_staging_chunk(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MCR_DL_STAGING_CHUNK", text.replace("\x00", "").encode("utf-8", "replace").decode())
        if not variables.problem():
            assert devices._chunk() >= 0
