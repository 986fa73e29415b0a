# SPDX-License-Identifier: Apache-2.0
"""mcr-bench: calls with checked results, statistics, ranks that can be killed, and the command itself."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from harness import Pools, launchers
from harness.commands import refused
from mcr_dl import _C, InvalidArgumentError
from mcr_dl.base import operations
from mcr_dl.bench import cli, report
from mcr_dl.bench._sweep import Row, Settings
from mcr_dl.bench.mix import Part, parse_mix
from mcr_dl.commands.sizes import parse_size, size_text
from mcr_dl.measure import _values, cases, memory
from mcr_dl.measure._layout import layout, split
from mcr_dl.measure.cases import Case, message_size
from mcr_dl.measure.timing import Statistics
from mcr_dl.tuning import cli as tune_cli
from ranks import bench, session

backends = pytest.mark.parametrize("backend", session.BACKENDS)
sizes = pytest.mark.parametrize("size", [2, 3])

# ---- cases


@pytest.mark.parametrize(
    ("operation", "in_place", "needed"),
    [
        ("send", False, [8, 16, 16, 16]),  # the other ranks have no tensors
        ("all_reduce", True, [4, 8, 12, 16]),
        ("all_gather", False, [20, 40, 60, 80]),
        ("all_gather", True, [16, 32, 48, 64]),
        ("scatter", False, [20, 24, 28, 32]),
        ("scatter", True, [16, 20, 24, 28]),
        ("barrier", False, [0, 0, 0, 0]),
    ],
)
def test_memory_of_tensors(operation: str, in_place: bool, needed: list[int]) -> None:
    """Of one to four of four ranks, the root among them."""
    sizes = [0 if operation == "barrier" else 4]
    assert [memory.needed(operation, sizes, "float32", 4, here, in_place=in_place) for here in range(1, 5)] == needed


def test_operations_are_those_of_the_op_table() -> None:
    """Each once, the vectored ones with a "v" too; a receive is measured with its send."""
    names = operations.operations()
    assert names == _C.operations()
    assert len(set(names)) == len(names)
    assert {"all_reduce", "all_gatherv", "barrier", "send"} <= set(names)
    assert {operations.operation_of(name).op for name in names} == {row["name"] for row in _C.ops()} - {"recv"}
    assert {name[:-1] for name in names if operations.operation_of(name).vectored} == {
        row["name"] for row in _C.ops() if row["vectored"]
    }


@sizes
@backends
def test_checks(pools: Pools, backend: str, size: int) -> None:
    """See `ranks.bench.checks`."""
    assert min(pools.get("processes", size).run(bench.checks, backend)) > 100


@backends
def test_checks_of_types(pools: Pools, backend: str) -> None:
    """See `ranks.bench.checks_of_types`."""
    assert min(pools.get("processes", 2).run(bench.checks_of_types, backend)) > 300


ON_RANKS: dict[str, tuple[Callable[..., object], int, tuple[str, ...]]] = {
    "wrong results, mpi": (bench.counts_wrong_results, 2, ("mpi",)),
    "wrong results, gloo": (bench.counts_wrong_results, 3, ("gloo",)),
    "refuses": (bench.refuses, 2, ("gloo",)),
    "measures": (bench.measures, 3, ()),
    "mixes": (bench.mixes, 2, ()),
}


@pytest.mark.parametrize("name", ON_RANKS)
def test_on_ranks(pools: Pools, name: str) -> None:
    """See the docstrings of `ranks.bench`."""
    function, size, arguments = ON_RANKS[name]
    results = pools.get("processes", size).run(function, *arguments)
    assert all(result == results[0] for result in results)  # all ranks have decided alike


@pytest.mark.parametrize(
    ("operation", "nbytes", "dtype", "ranks", "count"),
    [
        ("all_reduce", 4, "float32", 4, 1),
        ("all_reduce", 5, "float32", 4, 2),
        ("all_gather", 4, "float32", 4, 4),
        ("all_gatherv", 4, "float32", 4, 1),
        ("reduce_scatter", 36, "float32", 4, 12),
        ("all_to_all", 100, "uint8", 3, 102),
        ("send", 100, "complex128", 3, 7),
        ("barrier", 100, "float32", 3, 0),
    ],
)
def test_message_size(operation: str, nbytes: int, dtype: str, ranks: int, count: int) -> None:
    """Rounded up to whole elements, and to whole blocks where they must be equal."""
    width = cases.dtype_of(dtype).itemsize
    assert message_size(operation, nbytes, dtype, ranks) == (count, count * width)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_counts_are_as_even_as_possible(ranks: int) -> None:
    """Blocks differ by one element at most; in all_to_allv all ranks send and receive equally much."""
    for total in (0, 1, ranks, 10 * ranks + 1):
        counts = split(total, ranks)
        assert sum(counts) == total
        assert max(counts) - min(counts) <= 1
        parts = [layout("all_to_all", total, rank, ranks, 0) for rank in range(ranks)]
        for rank, part in enumerate(parts):
            assert sum(part.input_counts) == sum(part.output_counts) == total
            assert part.output_counts == [other.input_counts[rank] for other in parts]


_SMALL_DTYPES = ["int8", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "bool", "uint8", "complex64"]


@pytest.mark.parametrize("dtype", _SMALL_DTYPES)
def test_reductions_are_exact(dtype: str) -> None:
    """Every result fits the ranks' own type exactly, for many ranks."""
    torch_dtype = cases.dtype_of(dtype)
    for ranks in (1, 2, 7, 300):
        for red in ("SUM", "PRODUCT"):
            exact = _values.reduced(torch_dtype, red, ranks, 1)
            assert (exact.to(torch_dtype).to(exact.dtype) == exact).all()


# ---- bandwidths


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("all_gatherv", 4, 0.75),
        ("reduce_scatterv", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("gather", 4, 0.75),
        ("scatterv", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("reduce", 4, 1.0),
        ("send", 4, 1.0),
        ("barrier", 4, 0.0),
    ],
)
def test_bandwidths(operation: str, ranks: int, factor: float) -> None:
    """2 MB in 1 ms are 2 GB/s; bus bandwidth as in nccl-tests."""
    algbw, busbw = operations.bandwidths(operation, 2_000_000, 1000.0, ranks)
    assert algbw == pytest.approx(2.0)
    assert busbw == pytest.approx(2.0 * factor)


def test_every_operation_has_a_bus_factor() -> None:
    """No operation of the op table is missing."""
    for operation in operations.operations():
        algbw, busbw = operations.bandwidths(operation, 4, 1.0, 2)
        assert algbw == pytest.approx(0.004)
        assert 0 <= busbw <= algbw


# ---- sizes and mixes


@pytest.mark.parametrize(
    ("text", "nbytes"), [("4", 4), ("64K", 65536), ("1m", 1 << 20), ("2GiB", 2 << 30), ("1.5K", 1536), (" 7 B ", 7)]
)
def test_sizes(text: str, nbytes: int) -> None:
    """Units are powers of 1024."""
    assert parse_size(text) == nbytes
    assert parse_size(size_text(nbytes)) == nbytes


@pytest.mark.parametrize("text", ["", "K", "4Q", "-4", "0", "4 4", "1e3"])
def test_bad_sizes(text: str) -> None:
    """The error text shows what a size looks like."""
    with pytest.raises(InvalidArgumentError, match="expected bytes as in 4, 64K"):
        parse_size(text)


def test_mix() -> None:
    """Variants also have a colon in their name."""
    assert parse_mix("all_reduce:1M@gloo+ all_to_allv : 256K @ mpi:p2p ") == (
        Part("all_reduce", 1 << 20, "gloo"),
        Part("all_to_allv", 256 << 10, "mpi:p2p"),
    )
    assert [str(part) for part in parse_mix("barrier:4@mpi")] == ["barrier:4@mpi"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("^all_redcue:1M@gloo", "expected one of broadcast"),
        ("all_reduce:1M@gloo + ^al:4@mpi", "got 'al'"),
        ("all_reduce^ 1M@gloo", "expected ':'"),
        ("all_reduce:^1Q@gloo", "expected bytes"),
        ("all_reduce:1M^", "expected '@'"),
        ("all_reduce:1M@^", "expected the name of a backend"),
        ("all_reduce:1M@gloo ^barrier:4@mpi", "expected '+'"),
    ],
)
def test_bad_mix(text: str, words: str) -> None:
    """The error text points at the unexpected character (here ^)."""
    plain = text.replace("^", "")
    with pytest.raises(InvalidArgumentError) as caught:
        parse_mix(plain)
    message, shown, pointer = str(caught.value).splitlines()
    assert words in message
    assert shown.strip() == plain
    place = pointer.index("^") - 2
    expected = text.index("^")
    assert place == expected or not plain[expected:place].strip()
    assert f"at character {place + 1}" in message


# ---- the command


def _bench(*arguments: str, launcher: Sequence[str] = ()) -> launchers.Ended:
    return launchers.python(*launcher, "-m", "mcr_dl.bench", *arguments, limit=120)


def test_command(tmp_path: Path) -> None:
    """Complete tables in a pipe, a document, a picture."""
    document, picture = tmp_path / "out.json", tmp_path / "out.png"
    result = _bench(
        *(
            "-n",
            "2",
            "--ops",
            "all_reduce,scatterv,barrier",
            "--backends",
            "gloo,mpi,auto",
            "--min",
            "4",
            "--max",
            "1K",
        ),
        *("--factor", "16", "--budget", "0.02", "--json", str(document), "--plot", str(picture)),
    )
    assert result.code == 0, result.err
    assert result.err == ""
    assert "Wrong values: 0" in result.out
    for word in ("median µs", "busbw GB/s", "all_reduce: 2 ranks", "scatterv", "barrier", "gloo", "auto", "float32"):
        assert word in result.out
    assert "…" not in result.out
    assert max(map(len, result.out.splitlines())) <= 120
    content = json.loads(document.read_text())
    assert content["ranks"] == 2
    assert content["settings"]["sizes"] == [4, 64, 1024]
    assert set(content["versions"]["backends"]) >= {"gloo", "mpi"}
    points = [(row["operation"], row["nbytes"], row["candidate"]) for row in content["rows"]]
    assert len(set(points)) == len(points) == (3 + 3 + 1) * 3
    assert all(row["wrong"] == 0 and row["min_us"] <= row["median_us"] <= row["p99_us"] for row in content["rows"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_command_under_torchrun() -> None:
    """It runs in the existing ranks, and only rank 0 prints."""
    launcher = [*launchers.TORCHRUN[1:], "2"]
    result = _bench("--mix", "all_reduce:64K@gloo + all_to_all:4K@mpi", "--budget", "0.05", launcher=launcher)
    assert result.code == 0, result.err
    assert result.out.count("Overlap gain") == 1
    assert "all_to_all:4K@mpi, alone" in result.out
    assert "Wrong values: 0" in result.out


@pytest.mark.parametrize(
    ("smallest", "largest", "factor"), [("-b", "-e", "-f"), ("--min-bytes", "--max-bytes", "--factor")]
)
def test_sizes_under_torchrun(tmp_path: Path, smallest: str, largest: str, factor: str) -> None:
    """torchrun leaves the options for sizes to the command, nccl-tests' short ones too."""
    launcher = [*launchers.TORCHRUN[1:], "2"]
    document = tmp_path / "out.json"
    given = (
        "--backends",
        "gloo",
        smallest,
        "8",
        largest,
        "512",
        factor,
        "8",
        "--budget",
        "0.02",
        "--json",
        str(document),
    )
    result = _bench(*given, launcher=launcher)
    assert result.code == 0, result.err
    assert json.loads(document.read_text())["settings"]["sizes"] == [8, 64, 512]


@pytest.mark.parametrize("parser", [cli.parser, tune_cli.parser], ids=["mcr-bench", "mcr-tune"])
def test_torchrun_claims_no_option(parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Every option reaches the command through torchrun's own parser, except two old names."""
    options = {name for action in parser()._actions for name in action.option_strings} - {"--min", "--max"}
    assert {"-b", "-e", "-f", "--max-bytes", "--help"} <= options
    for option in options:
        found = get_args_parser().parse_args(["--nproc-per-node", "2", "-m", "mcr_dl.bench", option, "1"])
        assert found.training_script_args == [option, "1"]


def test_command_with_wrong_results() -> None:
    """A backend that moves nothing is detected, and the exit code shows it."""
    result = _bench("--ops", "broadcast", "--backends", "null", "--min", "1K", "--max", "1K", "--budget", "0.01")
    assert result.code == 1, result.out + result.err
    assert "Wrong values: 0" not in result.out
    assert "Wrong values: " in result.out


def test_command_without_checks(tmp_path: Path) -> None:
    """The same command measures, and does not look at the results."""
    given = ("--ops", "broadcast", "--backends", "null", "--min", "1K", "--max", "1K", "--budget", "0.01", "--no-check")
    result = _bench(*given, "--json", str(tmp_path / "out.json"))
    assert result.code == 0, result.out + result.err
    assert "Wrong values: not checked" in result.out
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert row["median_us"] > 0
    assert row["wrong"] is None


def test_a_wrong_candidate_is_not_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    """The star is at the fastest one whose results are right."""
    rows = [
        Row(Case("all_reduce", 4), name, 4, 1, Statistics(9, time, time, time, 1, True), wrong)
        for name, time, wrong in (("null", 1.0, 1), ("mpi", 2.0, 0), ("gloo", 3.0, None))
    ]
    report.print_operation(rows, Settings(("all_reduce",), ("all",), (4,)), 2)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "*" in line)
    assert "mpi" in line


def test_command_with_unsupported_operation() -> None:
    """Cases that cannot be measured are shown as such, with the reason, and do not count as failures."""
    result = _bench("-n", "1", "--ops", "send", "--backends", "gloo", "--max", "4")
    assert result.code == 0, result.err
    assert "Not measured: send: expected a group of at least 2 ranks, got 1" in result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--ops all_redcue", "all_reduce, reduce,"),
        ("--ops alreduce", "'alreduce'; did you mean all_reduce?"),
        ("--backends glooo", "'glooo'; did you mean gloo?"),
        ("all_reduce", "unrecognized arguments: all_reduce; operations go to --ops"),
        ("--backends unknown", "nccl, shm, mpi, gloo"),
        ("--dtype float31", "float32"),
        ("--redop BAND", "SUM, AVG"),
        ("--min 4Q", "64K"),
        ("--min 8 --max 4", "--max-bytes: expected at least --min-bytes"),
        ("-b 8 -e 1G -f 1.0000001", "--factor"),
        ("--factor 1", "above 1"),
        ("--root 2", "0 to 1"),
        ("--budget nan", "above 0"),
        ("-n 0", "from 1 on"),
        ("--json /nowhere/out.json", "can be written"),
        ("--mix all_reduce:4", "'@'"),
        ("--mix all_reduce:4@glooo", "got the unknown name 'glooo', at character 14; did you mean gloo?\n"),
        ("--mix barrier:4@mpi --ops send", "--ops: not allowed with --mix"),
        ("--mix all_reduce:4@mpi -b 8", "-b/--min-bytes: not allowed with --mix"),
        ("--mix all_reduce:4@mpi --max-bytes 1M", "-e/--max-bytes: not allowed with --mix"),
        ("--mix all_reduce:4@mpi -f 2", "-f/--factor: not allowed with --mix"),
        ("--mix all_reduce:4@mpi --async", "--async: not allowed with --mix"),
        ("-e 4096G", "-e/--max-bytes: expected tensors that fit into the "),
        ("--ops barrier,send -e 4096G --in-place", " for send float32 (ranks here: 2)"),
        ("-n 1 --ops gather -e 4096G", " for gather float32 (ranks here: 1)"),
        ("--mix all_reduce:4@mpi+all_to_all:4096G@gloo", "--mix: expected tensors that fit into the "),
        ("--wat", "--wat"),
    ],
)
def test_bad_input(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what was expected, and exit code 2, before any rank is started."""
    text = refused(cli.main, arguments.split(), capsys)
    assert words in text
    assert text.startswith("mcr-bench: error: ")
    assert len(text.splitlines()) == (3 if "^" in text else 1)


def test_no_folder_for_the_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    (line,) = refused(cli.main, ["--ops", "barrier"], capsys).splitlines()
    assert line.startswith("mcr-bench: error: [Errno 2] No such file or directory")


def test_bad_variant() -> None:
    """Whether a backend has a variant is known once the group is made; still one line, from one rank."""
    result = _bench("--backends", "gloo:fast")
    assert result.code == 2
    assert result.out == ""
    assert len(result.err.splitlines()) == 1
    assert "'gloo:fast'" in result.err


def test_cuda_without_cuda(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear error."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no CUDA device" in refused(cli.main, ["--device", "cuda"], capsys)
