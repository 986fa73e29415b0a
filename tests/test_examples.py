# SPDX-License-Identifier: Apache-2.0
"""The example programs: equal losses in all modes, and on one process without any communication."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.multiprocessing.spawn import ProcessExitedException
from torch.nn import functional

from harness import Pools, launchers
from harness.commands import refused
from mcr_dl.examples import dlrm, gpt, mixes, moe, program, record, report, syndicate, text
from mcr_dl.examples.comm import Comm, make_groups
from mcr_dl.examples.dlrm_model import Clicks, Dense, Tables
from mcr_dl.examples.gpt_model import LanguageModel, Place
from ranks import examples

FIGURES = Path(__file__).parent.parent / "bench" / "lab" / "figures_rank.py"
BETWEEN_MODES = 1e-6  # nats; sums of two ranks have one order, those of more are exact
_LIMIT = 200.0  # seconds; on a quiet machine the longest takes 75 of them
FROM_REFERENCE = 1e-5  # one process multiplies larger matrices, and rounds differently


def _dlrm_reference() -> list[float]:
    """The losses of one process with all tables and all samples, with lookups as early as the ranks'."""
    shape, seed = examples.DLRM, program.SEED
    dense, tables = Dense(shape, seed), Tables(shape, range(shape.tables), seed)
    optimizer = torch.optim.SGD(dense.parameters(), lr=examples.RATE)
    table_optimizer = torch.optim.SGD(tables.parameters(), lr=examples.TABLE_RATE)
    data = Clicks(shape, examples.SAMPLES, seed, world=seed)
    losses = []
    after = data.next()
    found = tables(after.rows)
    for _ in range(examples.STEPS):
        batch, looked_up = after, found
        after = data.next()
        found = tables(after.rows)
        vectors = looked_up.detach().requires_grad_()
        scores = dense.above(dense.interact(dense.below(batch.dense), vectors)).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(scores, batch.clicks)
        loss.backward()
        looked_up.backward(vectors.grad)
        for one in (optimizer, table_optimizer):
            one.step()
            one.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def _gpt_reference(copies: int) -> list[float]:
    """The losses of one process with the whole model and the text of all copies."""
    shape, seed = examples.GPT, program.SEED
    model = LanguageModel(shape, Place(Comm({})), seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=examples.RATE)
    corpus = text.load(None, limit=int(examples.MEGABYTES * 1e6), least=1000)
    streams = [
        text.Batches(corpus.shard(copy, copies), examples.WINDOWS, shape.context, seed + copy) for copy in range(copies)
    ]
    losses = []
    for _ in range(examples.STEPS):
        inputs, targets = (torch.cat(parts) for parts in zip(*(one.next() for one in streams), strict=True))
        loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def _check(results: list[examples.Result], reference: list[float]) -> None:
    """Check that all modes agree with each other and with the reference, and use the candidates that they name."""
    found = results[0]
    assert list(found) == ["gloo", "mpi", "auto", "mixed", "split"]
    plain = found["gloo"][0]
    assert max(reference) - min(reference) > 100 * FROM_REFERENCE
    for mode, (losses, _) in found.items():
        assert losses == pytest.approx(plain, abs=BETWEEN_MODES), mode
        assert losses == pytest.approx(reference, abs=FROM_REFERENCE), mode
    used = {mode: {candidate for _, candidate in nbytes} for mode, (_, nbytes) in found.items()}
    kinds = {kind for kind, _ in found["gloo"][1]}
    assert used == {
        "gloo": {"gloo"},
        "mpi": {"mpi"},
        "auto": {"auto"},
        "mixed": {"gloo", "mpi"} if len(kinds) > 1 else {"mpi"},
        "split": {examples.SPLIT},
    }
    for kind in kinds:  # cut or not, messages have equal lengths
        totals = {
            mode: sum(value for (name, _), value in nbytes.items() if name == kind)
            for mode, (_, nbytes) in found.items()
        }
        assert len(set(totals.values())) == 1, totals


def test_only_the_text_up_to_the_limit_is_read(tmp_path: Path) -> None:
    """Bytes behind it do not matter."""
    (tmp_path / "a").write_bytes(b"a" * 600)
    (tmp_path / "b").write_bytes(b"b" * 600 + b"\0")
    corpus = text.load(tmp_path, limit=1000, least=1000)
    assert bytes([*corpus.train, *corpus.held_out]) == b"a" * 600 + b"b" * 400
    assert corpus.files == 2


def test_a_text_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that names the file; here it is a folder by then."""
    monkeypatch.setattr(text, "files_under", lambda _: [tmp_path])
    with pytest.raises(program.WorkloadError, match=f"got {tmp_path}: is a directory$"):
        text.load(tmp_path, limit=1000, least=1)


@pytest.mark.parametrize("size", [2, 4])
def test_dlrm(pools: Pools, size: int) -> None:
    """Tables on all ranks train as on one."""
    _check(pools.get("processes", size).run(examples.dlrm_losses), _dlrm_reference())


def test_dlrm_overlap(pools: Pools) -> None:
    """The next batch's vectors are in transit while the upper perceptron works, forward and backward."""
    # Exchanges of the first step: its own batch, the next one's, gradients. So the second step starts number 3.
    for events in pools.get("processes", 2).run(examples.dlrm_events):
        begin = events.index("start")
        assert set(events[:begin]) == {"wait 1"}  # again: the previous step's end waited for it
        assert events[begin:] == ["start", "above", "above, backward", "start", "wait 4", "wait 3"]


@pytest.mark.parametrize("size", [2, 4])
def test_gpt(pools: Pools, size: int) -> None:
    """A model on two ranks, and two of them on four, train as on one."""
    _check(pools.get("processes", size).run(examples.gpt_losses), _gpt_reference(size // 2))


def test_refusals(pools: Pools) -> None:
    """Sizes that the ranks cannot share."""
    tables, samples = pools.get("processes", 2).run(examples.refusals)[0]
    assert tables == "--tables: expected a multiple of 2 ranks, got 3"
    assert samples == "--batch: expected 2 samples or more, one a rank, got 1"


@pytest.mark.parametrize(
    ("seconds", "shares"),
    [({"gloo": 1.0, "mpi": 3.0}, (75, 62, 88)), ({"gloo": 0.0, "mpi": 1.0}, (99, 75, 99))],
)
def test_striped_mixes(seconds: dict[str, float], shares: tuple[int, ...]) -> None:
    """The faster backend gets the larger share, of all kinds of operations or of some; two other shares are tried."""
    first, second, third = (f"stripe(gloo,mpi,{share})" for share in shares)
    found = mixes.striped(["a", "b"], ["mpi", "gloo"], seconds)
    cut = [(first, first), (first, "mpi"), (first, "gloo"), ("mpi", first), ("gloo", first)]
    assert [tuple(mix.values()) for mix in found] == [*cut, (second, second), (third, third)]
    assert all(map(mixes.uses_several, found))
    assert not any(map(mixes.uses_several, mixes.whole(["a"], ["gloo", "mpi"])))


def test_groups_of_kinds() -> None:
    """Groups are made in one order on all ranks, once for equal ranks, and each rank gets its own."""
    layout = {"first": [[0, 1], [2, 3]], "second": [[0, 2], [1, 3]], "third": [[0, 1], [2, 3]]}
    for rank in range(4):
        made: list[list[int]] = []

        def new_group(ranks: list[int], made: list[list[int]] = made) -> tuple[int, ...]:
            made.append(ranks)
            return tuple(ranks)

        mine = make_groups(layout, rank, new_group)
        assert made == [[0, 1], [2, 3], [0, 2], [1, 3]]
        assert mine == {
            kind: next(tuple(ranks) for ranks in layout[kind] if rank in ranks) for kind in ("first", "second", "third")
        }


def _program(name: str, *arguments: str) -> launchers.Ended:
    return launchers.python("-m", f"mcr_dl.examples.{name}", *arguments, limit=_LIMIT)


def _modes(chart: Path) -> dict[str, dict[str, Any]]:
    return {mode["mode"]: mode for mode in json.loads(chart.with_suffix(".json").read_text())["modes"]}


def test_bytescheduler_program(tmp_path: Path) -> None:
    """Every way trains, and has a time in each turn."""
    chart = tmp_path / "steps.png"
    done = _program("bytescheduler", "--models", "resnet", "--steps", "40", "--chart", str(chart))
    assert done.code == 0, done.out + done.err
    (row,) = json.loads(chart.with_suffix(".json").read_text())["models"]
    assert set(row["turns"]) == {"no communication", "program order", "DDP", "DDP, 1 MB buckets"} | {
        "reduce_scatter form",
        "whole gradients",
        "simulated plan",
        "ByteScheduler",
    }
    assert all(len(values) == 4 and min(values) > 0 for values in row["turns"].values())
    assert chart.stat().st_size > 0


def test_syndicate_program(tmp_path: Path) -> None:
    """All plans take turns with program order, and the report has the times of all steps."""
    chart = tmp_path / "plans.png"
    given = ["--steps", "30", "--batch", "16", "--compare", "--rounds", "1", "--budget", "0.3", "--chart", str(chart)]
    done = _program("syndicate", *given)
    assert done.code == 0, done.out + done.err
    report = json.loads(chart.with_suffix(".json").read_text())
    assert len(report["steps"]) == 30
    assert min(report["steps"]) > 0
    assert report["events"][0]["what"] == "planned"
    assert len(report["turns"][0]["ms"]) == 4
    assert chart.stat().st_size > 0


def test_syndicate_without_a_plan(tmp_path: Path) -> None:
    """One line says why there is no chart."""
    found: Any = SimpleNamespace(graph=None)
    said = syndicate._draw(found, syndicate.Options(steps=20), tmp_path / "plans.png")
    assert said == "No chart: no iteration was found in 20 steps; give more --steps"
    assert not list(tmp_path.iterdir())


def test_syndicate_program_with_another_model(tmp_path: Path) -> None:
    """Two experts per token. There are timelines of all ranks, or one line says that there are none yet."""
    folder, chart = tmp_path / "timelines", tmp_path / "plans.png"
    given = ["--model", "moe", "--steps", "60", "--batch", "2", "--budget", "0.3", "--timeline", str(folder)]
    trace = tmp_path / "trace.json"
    done = _program("syndicate", *given, "--no-chart", "--chart", str(chart), "--trace", str(trace))
    assert done.code == 0, done.out + done.err
    report = json.loads(chart.with_suffix(".json").read_text())
    assert (report["model"], len(report["steps"])) == ("moe", 60)
    assert {event["pid"] for event in json.loads(trace.read_text())["traceEvents"]} == {0, 1}
    written = sorted(each.name for each in folder.glob("*.json"))
    assert written == (["rank-0.json", "rank-1.json"] if "Timelines: " in done.out else []), done.out
    assert written or "No trace: " in done.out


def test_gpt_program(tmp_path: Path) -> None:
    """Starts its own ranks, trains in all modes, and reports that the losses agree."""
    chart = tmp_path / "gpt.png"
    sizes = ["--steps", "30", "--batch", "4", "--width", "32", "--megabytes", "0.3"]
    done = _program("gpt", *sizes, "--no-chart", "--chart", str(chart))
    assert done.code == 0, done.out + done.err
    modes = _modes(chart)
    assert list(modes) == ["gloo", "mpi", "shm", "mixed", "auto"]
    assert re.fullmatch(r"stripe\(([a-z]+),(?!\1)[a-z]+,[0-9]+\)", modes["mixed"]["backends"]["activations"])
    for mode in modes.values():
        assert mode["loss_end"] == pytest.approx(modes["gloo"]["loss_end"], abs=gpt.Workload.tolerance)
        assert mode["loss_start"] - mode["loss_end"] > gpt.Workload.least_gain


def test_dlrm_program_that_learns_nothing(tmp_path: Path) -> None:
    """Two steps are too few: the program reports that, and fails."""
    chart = tmp_path / "dlrm.png"
    sizes = ["--steps", "2", "--batch", "32", "--tables", "4", "--rows", "50"]
    done = _program("dlrm", *sizes, "--no-chart", "--chart", str(chart))
    assert done.code == 1, done.out + done.err
    assert "failed: the loss of gloo fell by" in done.out
    modes = _modes(chart)
    mixed = modes["mixed"]["backends"]
    assert len(set(mixed.values())) == 2
    assert set(mixed.values()) <= {"gloo", "mpi", "shm"}
    for mode in modes.values():
        assert mode["loss_end"] == pytest.approx(modes["gloo"]["loss_end"], abs=dlrm.Workload.tolerance)


def _record(mode: str, seconds: list[float]) -> record.Record:
    communication = {"all_reduce": [each / 4 for each in seconds]}
    return record.Record(mode, {"all_reduce": mode}, step_seconds=seconds, communication=communication)


def test_auto_must_not_be_slower() -> None:
    """Than the fastest library, in most turns and by more than the noise."""
    known = {"title": "", "ranks": 2, "threads": 1, "unit": "tokens", "per_step": 8, "loss_unit": "", "turn": 1}
    setting = record.Setting(**known, lines=[], details={})
    slow, fast = _record("gloo", [2.0, 2.0, 2.2, 2.0, 2.0]), _record("mpi", [1.0, 1.0, 1.1, 1.0, 1.0])
    mixed = _record("mixed", [0.5] * 5)  # not a library
    mixed.backends["all_reduce"] = "stripe(mpi,gloo,67)"
    for seconds, problems in ([1.0, 1.02, 1.1, 0.98, 1.01], 0), ([1.0, 1.0, 1.3, 1.3, 1.3], 0), ([1.1] * 5, 1):
        found = report.slower(setting, [slow, fast, mixed, _record("auto", seconds)])
        assert len(found) == problems, found
        assert all("times as fast as mpi" in each for each in found)
    assert report.slower(setting, [slow, fast]) == []  # auto was not asked for
    assert report.slower(setting, [_record("gloo", [1.0] * 3), _record("auto", [2.0] * 3)]) == []
    text = record.gains(setting, [slow, fast, mixed, _record("auto", [1.0, 1.0, 1.1, 1.0, 1.0])])
    assert text == "auto trains at 2.00 times gloo's, 1.00 times mpi's speed"
    assert record.share(slow) == 0.25


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("--compare --rounds 200", "--rounds: expected a whole number from 1 to 100, got 200"),
        ("--budget 2e6", "--budget: expected at most 1000000 seconds, got '2e6'"),
        ("--steps 0", "--steps: expected a whole number from 1 on, got '0'"),
        ("--batch -1", "--batch: expected a whole number from 1 on, got '-1'"),
        ("--no-chart --chart .", "--chart: expected the name of a file, got ."),
        (f"--timeline {__file__}", f"--timeline: expected a folder that can be written, got '{__file__}'"),
        (
            f"--no-chart --chart {__file__}/c.png",
            f"--chart: expected a file that can be written, got '{__file__}/c.json'",
        ),
        (
            f"--no-chart --trace {__file__}/t.json",
            f"--trace: expected a file that can be written, got '{__file__}/t.json'",
        ),
        (
            "--no-chart --chart a/../t.png --trace t.json",
            "--trace: expected another name than --chart's, as its files are next to it, got t.json",
        ),
        ("--model ddp --batch 3", "--batch: expected none with --model ddp, got 3"),
    ],
)
def test_values_out_of_range(arguments: str, wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An error in one line, before any rank is started."""
    (line,) = refused(syndicate.parse, arguments.split(), capsys).splitlines()
    assert line.endswith(f"error: argument {wanted}")


@pytest.mark.parametrize("example", [gpt, moe])
@pytest.mark.parametrize(("given", "wanted"), [("1e303", "at most 1000000"), ("0", "a number above 0")])
def test_megabytes_out_of_range(example: Any, given: str, wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As above."""
    (line,) = refused(example.parse, ["--megabytes", given], capsys).splitlines()
    assert line.endswith(f"error: argument --megabytes: expected {wanted}, got '{given}'")


@pytest.mark.parametrize(
    ("steps", "turn", "turns"), [(120, 10, 12), (29, 10, 3), (20, 10, 2), (19, 10, 2), (3, 2, 2), (1, 1, 2)]
)
def test_steps_are_rounded_up(steps: int, turn: int, turns: int) -> None:
    """To whole turns of at most ten steps, of which the first is not measured."""
    options = gpt.parse(["--no-chart", "--steps", str(steps)])
    assert (options.turn, options.turns) == (turn, turns)


_OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
_SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "1"}


@pytest.mark.parametrize(("variables", "threads"), [(_OPEN_MPI, 4), (_SLURM, 4), ({}, 2)])
def test_threads(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], threads: int) -> None:
    """The host's cores, divided by its own ranks; without a launcher, by all."""
    with mock.patch.dict(os.environ, variables, clear=True):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
        monkeypatch.setattr(program.dist, "get_world_size", lambda: 4)
        assert program.threads() == threads


@pytest.mark.parametrize(
    ("ended", "code", "error"), [(-9, 137, "rank 1 was ended by SIGKILL\n"), (-99, 227, "signal 99\n"), (7, 7, "")]
)
def test_a_rank_that_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: int, code: int, error: str
) -> None:
    """The job's exit code is the rank's, or says by which signal it was ended, as one line does."""

    def start(*_: object) -> None:
        raise ProcessExitedException("", error_index=1, error_pid=1, exit_code=ended)

    monkeypatch.setattr(program, "start_processes", start)
    assert program.main(gpt.run, gpt.Options()) == code
    assert capsys.readouterr().err.endswith(error)


def _figures(folder: Path, *arguments: str) -> tuple[list[int], str]:
    """Run the measurement on two ranks: exit codes and output."""
    log = folder / "log"
    ranks = launchers.start("processes", 2, [str(FIGURES), *arguments], log, {"MCR_DL_TUNING_TABLE": "none"})
    try:
        codes = [rank.wait(timeout=_LIMIT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return codes, log.read_text()


def test_figures(tmp_path: Path) -> None:
    """Rows differ only in the libraries that carry their bytes."""
    out = tmp_path / "figures.json"
    rows = ["gloo", "mpi", "mixed+fuse", "split", "torch", "mpi4py", "torch+fuse"]
    given = ["--workload", "dense", "--rows", ",".join(rows), "--scale", "0.2"]
    codes, log = _figures(tmp_path, *given, "--steps", "40", "--seconds", "0", "--out", str(out))
    assert codes == [0, 0], log
    found = json.loads(out.read_text())
    assert set(found["refused"]) == {"split", "torch+fuse"}
    assert all(found["refused"].values())
    measured = {row["row"]: row for row in found["rows"]}
    assert list(measured) == ["gloo", "mpi", "mixed+fuse", "torch", "mpi4py"]
    whole = measured["gloo"]["bytes_per_step"]
    libraries = {name: row["bytes_per_step_by_library"] for name, row in measured.items()}
    assert {name: set(sent) for name, sent in libraries.items()} == {
        "gloo": {"gloo"},
        "mpi": {"mpi"},
        "mixed+fuse": {"gloo", "mpi"},
        "torch": {"torch"},
        "mpi4py": {"mpi4py"},
    }
    for name, row in measured.items():
        assert row["bytes_per_step"] == whole, name
        assert sum(libraries[name].values()) == sum(whole.values()) > 0, name
        seconds = row["step_seconds"]
        assert len(seconds["all"]) == found["steps"] == 2  # of 40: there was no time for another round
        low, high = seconds["quartiles"]
        assert 0 < low <= seconds["median"] <= high
        assert row["tokens_per_second"] == pytest.approx(found["setting"]["per_step"] / seconds["median"])
        assert 0 < row["blocked_seconds"]["activations"] < seconds["median"]
        assert abs(row["loss"]["end"] - measured["gloo"]["loss"]["end"]) <= found["tolerance"]
        assert (row["overlapped_seconds"] is None) == (name in ("torch", "mpi4py"))
    assert found["conditions"]["ranks"] == 2
    assert found["problems"] == []


def test_figures_typing_error(tmp_path: Path) -> None:
    """An unknown row is an error in one line, before anything is started."""
    codes, log = _figures(tmp_path, "--workload", "moe", "--rows", "gloo,nccl", "--out", str(tmp_path / "no.json"))
    assert codes == [2, 2], log
    assert "error: --rows: expected some of gloo, mpi, mixed, split, auto" in log.splitlines()[-1]
    assert not (tmp_path / "no.json").exists()
