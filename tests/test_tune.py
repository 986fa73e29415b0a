# SPDX-License-Identifier: Apache-2.0
"""mcr-tune: a table is measured, failing candidates are excluded by name, and an interrupted run continues."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as torch_dist

from harness import launchers
from mcr_dl import _C
from mcr_dl.base import stores
from mcr_dl.base.errors import BackendUnavailableError, InvalidArgumentError
from mcr_dl.measure import memory
from mcr_dl.runtime import state
from mcr_dl.tables import table
from mcr_dl.tables.host import host, software
from mcr_dl.tables.model import Subject
from mcr_dl.tuning import cli as tune_cli
from mcr_dl.tuning import launched, tuner, worker
from mcr_dl.tuning._journal import Journal, Plan, Progress, Unit
from ranks import faults
from waiting import await_true

pytestmark = pytest.mark.timed

SIZES = (4, 4096)
PLAN = Plan(
    2,
    ("mpi", "gloo"),
    (
        Unit("all_gather", "float32", SIZES),
        Unit("all_gather", "float32", SIZES, async_op=True),
        Unit("all_reduce", "bfloat16", SIZES),
        Unit("barrier", "float32", (0,)),
    ),
    budget_seconds=0.02,
    confidence=0.5,
)


def _tune(folder: Path, entry: Callable[..., int], plan: Plan = PLAN, limit: float = 3.0) -> Progress:
    journal = Journal(folder / "journal")
    journal.begin(plan)
    return tuner.Tuner(plan, journal, Progress(), limit=limit, entry=entry).run()


def _candidates(progress: Progress, operation: str, dtype: str) -> set[str]:
    return {each["candidate"] for each in progress.results(Unit(operation, dtype, ()))}


def test_everything_is_measured(tmp_path: Path) -> None:
    """Every candidate at every size, with the cheapest measured candidate as the winner of each operation."""
    scale = tuner.scale_of(PLAN, _tune(tmp_path, worker.work))
    assert (scale.ranks, scale.nodes, scale.ranks_per_node, scale.excluded) == (2, 1, 2, ())
    curves = {(curve.operation, curve.candidate): curve for curve in scale.curves if not curve.async_op}
    starting = {(curve.operation, curve.candidate) for curve in scale.curves if curve.async_op}
    assert {("all_gather", "mpi"), ("all_gather", "gloo")} <= starting
    assert {operation for operation, _ in starting} == {"all_gather"}
    assert {"mpi", "gloo"} <= {name for operation, name in curves if operation == "all_gather"}
    assert curves["all_reduce", "gloo"].dtype_class == "half"
    assert curves["all_gather", "mpi"].dtype_class == "any"
    for curve in scale.curves:
        # Each rank gathers at least a whole element.
        expected = {"barrier": [0], "all_gather": [8, 4096]}.get(curve.operation, [4, 4096])
        assert [sample.bytes for sample in curve.samples] == expected
        assert all(0 < sample.min_us <= sample.median_us <= sample.p99_us for sample in curve.samples)
    for winner in scale.winners:
        compared = scale.curves_of(winner.subject)
        first = min(compared, key=lambda curve: curve.samples[0].median_us)
        assert winner.at(0) == first.candidate


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (faults.all_gather_hangs, "no progress for 3 s"),
        (faults.all_gather_crashes, "signal 11"),
        (faults.all_gather_is_wrong, "wrong elements"),
        (faults.all_gather_hangs_later, "no progress for 3 s"),
    ],
)
def test_a_fault_is_named_and_tuning_goes_on(tmp_path: Path, entry: Callable[..., int], reason: str) -> None:
    """The candidate is excluded for that operation and form alone, even if it fails only while timed with others."""
    progress = _tune(tmp_path, entry)
    (excluded,) = progress.excluded
    assert (excluded["operation"], excluded["candidate"]) == ("all_gather", "gloo")
    assert reason in excluded["reason"]
    assert "mpi" in _candidates(progress, "all_gather", "float32")
    assert "gloo" not in _candidates(progress, "all_gather", "float32")
    assert "gloo" in {each["candidate"] for each in progress.results(PLAN.units[1])}  # asynchronous calls
    assert {"mpi", "gloo"} <= _candidates(progress, "all_reduce", "bfloat16")
    scale = tuner.scale_of(PLAN, progress)
    assert [each.candidate for each in scale.excluded] == ["gloo"]
    assert [each.where for each in scale.excluded] == ["all_gather (float32)"]
    assert scale.winner_of(Subject("all_gather", "any")).at(4) != "gloo"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("backends", "which"),
    [(("mpi", "gloo"), "mpi: .* wrong elements .*; gloo: "), (("gloo",), "gloo: .* wrong elements")],
)
def test_all_candidates_fail(tmp_path: Path, backends: tuple[str, ...], which: str) -> None:
    """One error, and no table without the operation: what they have in common is to blame."""
    text = rf"all_gather float32: expected a candidate that works, but all fail \({which}"
    with pytest.raises(InvalidArgumentError, match=text):
        _tune(tmp_path, faults.all_gather_is_wrong_everywhere, replace(PLAN, backends=backends))


def test_tensors_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before anything starts."""
    sizes = tuple(1 << power for power in range(20, 30))
    total = sum(sizes)
    for operation, needed in (
        ("all_reduce", 4 * total),
        ("all_gather", 5 * total),
        ("gather", 2 * total),
        ("send", 4 * total),  # of ranks 0 and 1
    ):
        plan = replace(PLAN, ranks=4, units=(Unit("barrier", "float32", (0,)), Unit(operation, "float32", sizes)))
        monkeypatch.setattr(memory, "available", lambda needed=needed: needed)
        tune_cli._require_memory(plan, 4)
        monkeypatch.setattr(memory, "available", lambda needed=needed: needed - 1)
        with pytest.raises(InvalidArgumentError, match=f"--max-bytes: expected .* for {operation} float32 on 4 ranks"):
            tune_cli._require_memory(plan, 4)
        tune_cli._require_memory(plan, 1)
    code, out, err = _command(*QUICK, "--max-bytes", "1024G", "--output", str(tmp_path / "t.json"))
    assert (code, out, list(tmp_path.iterdir())) == (2, "", []), err
    assert "argument --max-bytes: expected tensors that fit" in err


def test_tensors_of_the_ranks_of_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a Slurm step on several hosts, only those of this one must fit; of one rank, if the launcher tells nothing."""
    counted: list[int] = []

    def require(_: Plan, here: int) -> None:
        counted.append(here)
        raise InvalidArgumentError("enough")

    monkeypatch.setattr(tune_cli, "_require_memory", require)
    facts = {"SLURM_PROCID": "7", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "3(x2),2"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MCR_DL_TUNING_TABLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in facts.items():
        monkeypatch.setenv(name, value)
    for node in ("2", "3"):  # of which the second is not in the list
        monkeypatch.setenv("SLURM_NODEID", node)
        assert tune_cli.main([*QUICK, "--backends", "gloo", "--output", str(tmp_path / "t.json")]) == 2
    assert counted == [2, 1]


def test_ranks_that_do_not_start(tmp_path: Path) -> None:
    """One error, with the ranks' own output and the backends that start alone."""
    with pytest.raises(BackendUnavailableError, match=r"no such device.*mpi starts alone, gloo starts alone"):
        _tune(tmp_path, faults.never_starts)


def test_resume(tmp_path: Path) -> None:
    """Finished steps are not measured again, the interrupted one is."""
    journal = Journal(tmp_path / "journal")
    journal.begin(PLAN)
    where = {"operation": "all_gather", "dtype": "float32"}
    times = {"n": 1, "min_us": 1.0, "median_us": 123456.0, "p99_us": 2e6}
    for size in SIZES:
        journal.add("sample", **where, candidate="mpi", bytes=size, **times)
    journal.add("done", **where)
    with journal.path.open("a") as file:
        file.write('{"event": "sam')  # killed in the middle of a line
    again = Journal(journal.path)
    progress = tuner.Tuner(PLAN, again, again.resume(PLAN), limit=10.0).run()
    assert [each["median_us"] for each in progress.results(PLAN.units[0])] == [123456.0] * 2
    assert {"mpi", "gloo"} <= _candidates(progress, "all_reduce", "bfloat16")


def test_many_ranks_have_longer_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert [tuner._start_seconds(ranks) for ranks in (2, 128)] == [60, 128]


def test_threads_of_asynchronous_calls_leave_the_core(tmp_path: Path) -> None:
    """Blocking calls keep each rank on a core of its own."""
    assert not _tune(tmp_path, faults.on_cores).excluded


def test_ranks_that_die_when_all_is_measured(tmp_path: Path) -> None:
    """The measurements count."""
    progress = _tune(tmp_path, faults.dies_at_the_end)
    assert {unit.key for unit in PLAN.units} == progress.done


@pytest.mark.parametrize(
    ("name", "value"),
    {"MCR_DL_PASSES": "log", "MCR_DL_SCHEDULE": "syndicate", "MCR_DL_TRACE": "dir", "MCR_DL_TUNE": "*:*:shm"}.items(),
)
def test_passes_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Calls are measured without them, and without rules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)
    plan = replace(PLAN, units=(Unit("barrier", "float32", (0,)),))
    assert not _tune(tmp_path, faults.with_passes, plan).excluded
    assert not (tmp_path / "dir").exists()


@pytest.mark.parametrize(
    ("entry", "operation", "budget"), [(worker.work, "barrier", 6.0), (faults.all_gather_is_slow, "all_gather", 0.02)]
)
def test_steps_above_the_limit(tmp_path: Path, entry: Callable[..., int], operation: str, budget: float) -> None:
    """Timing says nothing while it plans and while it uses its budget: no candidate is to blame."""
    plan = replace(PLAN, units=(Unit(operation, "float32", (4,)),), budget_seconds=budget, confidence=1e-9)
    progress = _tune(tmp_path, entry, plan, limit=1.5)
    assert (progress.excluded, progress.apart) == ([], set())


def test_the_progress_under_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks get a long one from the store in pieces: torch's store refuses more than 8 MiB at once."""
    monkeypatch.setattr(stores, "_PIECE", 100)
    store, journal = torch_dist.HashStore(), Journal(tmp_path / "journal")
    journal.begin(PLAN)
    where = {"operation": "all_reduce", "dtype": "float32"}
    for nbytes in (4, 8, 16):
        times = {"min_us": 1.0, "median_us": 2.0, "p99_us": 3.0}
        journal.add("sample", **where, candidate="gloo", bytes=nbytes, n=5, **times)
    journal.add("done", **where)
    found = []
    for rank in (0, 1):
        current = SimpleNamespace(store=store, launch=SimpleNamespace(rank=rank))
        monkeypatch.setattr(state, "current", lambda current=current: current)
        found.append(launched._shared(PLAN, Journal(journal.path) if rank == 0 else journal, resume=True))
    assert store.get(launched._PROGRESS).startswith(b"bytes ")
    assert found[0] == found[1]
    assert [each["bytes"] for each in found[1].samples] == [4, 8, 16]
    assert found[1].done == {("all_reduce", "float32", False)}


def test_blame_under_a_launcher(tmp_path: Path) -> None:
    """The form that has hung is left out, once, and no candidate if the user has interrupted the run."""
    where = {"operation": "all_reduce", "dtype": "float32", "async_op": True}
    each_case = ((["gloo"], "excluded", "go on without"), (["gloo", "mpi"], "apart", "time them one by one"))
    for candidates, kind, advice in each_case:
        journal, progress = Journal(tmp_path / "journal"), Progress()
        journal.begin(PLAN)
        journal.add("step", **where, bytes=4, phase="check", candidates=candidates)
        for event in journal.news():
            progress.take(event)
        assert launched.blame(journal, progress, "no progress").endswith(f"--resume to {advice}")
        (event,) = journal.news()
        assert (event["event"], event["async_op"]) == (kind, True)
        assert Journal(journal.path).resume(PLAN).step is None
        journal.add("step", **where, bytes=4, phase="check", candidates=candidates)
        assert Journal(journal.path).resume(PLAN).step is not None
        journal.add("interrupted")
        assert Journal(journal.path).resume(PLAN).step is None


def test_resume_of_something_else(tmp_path: Path) -> None:
    """Another plan, or no journal, is an error that says so."""
    with pytest.raises(InvalidArgumentError, match="no interrupted run"):
        Journal(tmp_path / "journal").resume(PLAN)
    Journal(tmp_path / "journal").begin(PLAN)
    other = Plan(3, PLAN.backends, PLAN.units, PLAN.budget_seconds, PLAN.confidence)
    with pytest.raises(InvalidArgumentError, match="ranks: expected 3, got 2"):
        Journal(tmp_path / "journal").resume(other)


@pytest.mark.parametrize(
    ("key", "value"),
    [("ranks_per_node", 1), ("nodes", 2), ("libraries", {"gloo": "another"}), ("fingerprint", "00"), ("torch", "1.0")],
)
def test_resume_on_other_ranks(tmp_path: Path, key: str, value: object) -> None:
    """Measurements with other libraries, or on other machines, are not mixed; the journal stays as it is."""
    name = "gloo" if key == "libraries" else key
    journal = Journal(tmp_path / "journal")
    journal.begin(PLAN)
    known = software({})
    facts = {"ranks": 2, "nodes": 1, "ranks_per_node": 2, "libraries": {}, "bound": False, "devices": 0}
    facts |= {"fingerprint": host().fingerprint, "mcr_dl": known.mcr_dl, "torch": known.torch, "python": known.python}
    journal.add("ready", **{**facts, key: value})
    for _ in range(2):
        again = Journal(journal.path)
        progress = again.resume(PLAN)
        with pytest.raises(InvalidArgumentError, match=rf"--resume: .* {name}: expected"):
            tuner.Tuner(PLAN, again, progress, limit=10.0).run()
        assert progress.samples == []


# ---- the command

QUICK = ["--ops", "all_reduce,barrier", "--max-bytes", "64", "--factor", "4", "--dtypes", "float32", "--budget", "0.02"]


def _command(
    *arguments: str, cache: Path | None = None, launcher: Sequence[str] = (), **variables: str
) -> launchers.Ended:
    place = {} if cache is None else {"XDG_CACHE_HOME": str(cache)}
    given = {"MCR_DL_TUNING_TABLE": "", **place, **variables}
    return launchers.python(*launcher, "-m", "mcr_dl.tuning", *arguments, limit=100, **given)


def test_the_command(tmp_path: Path) -> None:
    """It writes this machine's table to the cache, where programs find it; show, plot and diff read it."""
    code, out, err = _command(*QUICK, cache=tmp_path)
    assert code == 0, err
    (path,) = tmp_path.rglob("*.json")
    measured = table.read(path)
    assert str(path) in out.replace("\n", "")
    assert [scale.name for scale in measured.scales] == ["2 ranks"]
    assert not list(tmp_path.rglob("*.journal"))
    program = "import mcr_dl; mcr_dl.init(['mpi', 'gloo']); print(mcr_dl.runtime.state.current().knowledge.source)"
    code, out, err = launchers.python("-c", program, XDG_CACHE_HOME=str(tmp_path), MCR_DL_TUNING_TABLE="")
    assert (code, out.strip()) == (0, str(path)), err
    code, out, _ = _command("show", "all_reduce", cache=tmp_path)
    assert code == 0
    assert "2 ranks" in out
    assert "all_reduce" in out
    assert _command("plot", str(tmp_path / "p.png"), cache=tmp_path)[0] == 0
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert _command("plot", "-o", str(tmp_path / "q.png"), cache=tmp_path)[0] == 0
    assert (tmp_path / "q.png").read_bytes() == (tmp_path / "p.png").read_bytes()
    assert _command("diff", str(path), str(path))[0] == 0


def test_the_table_that_the_variable_names(tmp_path: Path) -> None:
    """Programs read it once it is there; the command makes it."""
    path = str(tmp_path / "t.json")
    code, _, err = _command(*QUICK, "--output", path, MCR_DL_TUNING_TABLE=path)
    assert code == 0, err
    assert table.read(path).scales


def test_other_scales_join_the_table(tmp_path: Path) -> None:
    """A second run with more ranks adds its scale to the file."""
    path = str(tmp_path / "t.json")
    assert _command(*QUICK, "--output", path)[0] == 0
    assert _command(*QUICK, "--output", path, "-n", "3")[0] == 0
    assert [scale.ranks for scale in table.read(path).scales] == [2, 3]


def test_a_part_joins_the_scale(tmp_path: Path) -> None:
    """A second run of another operation keeps the first one's; a link stays one; devices are refused."""
    path, real = tmp_path / "t.json", tmp_path / "real.json"
    path.symlink_to(real)
    for operation in ("broadcast", "barrier"):
        assert _command(*QUICK, "--ops", operation, "--output", str(path))[0] == 0
    assert path.is_symlink()
    (scale,) = table.read(real).scales
    assert {each.operation for each in scale.curves} == {each.operation for each in scale.winners}
    assert {each.operation for each in scale.curves} == {"broadcast", "barrier"}
    code, _, err = _command(*QUICK, "--output", os.devnull)
    assert (code, "expected a regular file" in err) == (2, True)


def test_under_a_launcher(tmp_path: Path) -> None:
    """Under torchrun it measures in the existing ranks."""
    path = tmp_path / "t.json"
    code, _, err = _command(*QUICK, "--output", str(path), launcher=[*launchers.TORCHRUN[1:], "2"])
    assert code == 0, err
    assert table.read(path).scales[0].ranks == 2


def _launched(
    folder: Path, *module: str, until: str = "", often: bool = False, **variables: str
) -> list[dict[str, object]]:
    """The events in the journal of a run under torchrun, which gets a signal when this text is in the journal.

    ``often``: its ranks get signals instead, until they have ended.
    """
    given = "--ops all_gather --max-bytes 64 --dtypes float32 --backends mpi,gloo --no-async"
    given += " --budget 2 --confidence 1e-9"
    arguments = [*given.split(), "--output", str(folder / "t.json")]
    command = [*launchers.TORCHRUN, "2", "-m", *module, *arguments]
    job = launchers.mark()
    environment = {**os.environ, **job, "PYTHONPATH": str(Path(__file__).parent), **variables}
    journal, output = folder / "t.json.2-ranks.journal", folder / "output"
    with output.open("w") as file:
        running = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        if until:
            deadline = time.monotonic() + 60
            while until not in (journal.read_text() if journal.exists() else ""):
                assert running.poll() is None, output.read_text()
                assert time.monotonic() < deadline, output.read_text()
                time.sleep(0.05)
            children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            while often and running.poll() is None:
                for child in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(child), signal.SIGTERM)
                time.sleep(0.05)
            running.send_signal(signal.SIGTERM)
        running.wait(60)
    finally:
        launchers.kill(job)
    return [json.loads(line) for line in journal.read_text().splitlines()[1:]]


@pytest.mark.parametrize("often", [False, True])
def test_a_launcher_that_is_ended(tmp_path: Path, often: bool) -> None:
    """``--resume`` continues with all candidates: none is to blame. Further signals do not change that."""
    events = _launched(tmp_path, "mcr_dl.tuning", until='"phase": "time"', often=often)
    assert events[-1] == {"event": "interrupted"}


def test_a_launcher_that_is_ended_in_a_library(tmp_path: Path) -> None:
    """Rank 0 is in a call of MPI that does not return."""
    events = _launched(tmp_path, "ranks.faults", until='"candidates": ["gloo"]', FAULT="stuck")
    assert events[-1] == {"event": "interrupted"}


def test_a_launcher_that_ends_the_others(tmp_path: Path) -> None:
    """A rank has crashed: --resume leaves its candidate out."""
    event = _launched(tmp_path, "ranks.faults")[-1]
    assert (event["event"], event["candidates"]) == ("step", ["gloo"])


def test_an_interrupted_command_goes_on(tmp_path: Path) -> None:
    """Killed in the middle, it continues with --resume, without repeating measurements that are in the journal."""
    arguments = [*QUICK, "--output", str(tmp_path / "t.json"), "--budget", "0.5", "--confidence", "0.0001"]
    command = [sys.executable, "-m", "mcr_dl.tuning", *arguments]
    journal = tmp_path / "t.json.2-ranks.journal"
    environment = {**os.environ, **launchers.mark()}
    running = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    await_true(lambda: running.poll() is not None or (journal.exists() and '"event": "done"' in journal.read_text()))
    assert running.poll() is None, running.communicate()
    running.kill()
    running.communicate(timeout=60)
    events = [json.loads(line) for line in journal.read_text().splitlines()[1:] if line.endswith("}")]
    kept = next(event for event in events if event["event"] == "sample")
    code, _, err = _command(*arguments, "--resume")
    assert code == 0, err
    curves = table.read(tmp_path / "t.json").scales[0].curves_of(Subject("all_reduce", "float"))
    medians = next(curve.medians for curve in curves if curve.candidate == kept["candidate"])
    assert medians[kept["bytes"]] == kept["median_us"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--ops", "all_reduc"], "all_reduce"),
        (["--backends", "mpj"], "nccl, shm, mpi, gloo"),
        (["--dtypes", "float23"], "float32"),
        (["--dtypes", "float32,float64"], "expected one type of each class, as in tables, got float32 and float64"),
        (["-n", "1"], "2"),
        (["show", "--table", "/nowhere/t.json"], "/nowhere/t.json"),
        (["diff", "a"], "B"),
        (["--resume", "--output", "nothing-here.json"], "no interrupted run"),
    ],
)
def test_bad_command_lines(arguments: list[str], part: str) -> None:
    """One line that lists the known names, and exit code 2."""
    code, _, err = _command(*arguments)
    assert code == 2
    assert part in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_one_rank_of_a_launcher() -> None:
    """It is refused before anything is measured."""
    code, out, err = _command(*QUICK, RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    assert (code, out) == (2, "")
    assert "expected at least 2 ranks of the launcher" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("named", "measured"),
    [
        ("mpi,hier(shm,mpi)", "mpi,hier(shm,mpi)"),  # shm may not serve all ranks
        ("stripe(gloo,mpi)", "gloo,mpi,stripe(gloo,mpi)"),
        ("hier(shm,stripe(gloo,mpi))", "gloo,mpi,stripe(gloo,mpi),hier(shm,stripe(gloo,mpi))"),
    ],
)
def test_backends_that_others_need(named: str, measured: str) -> None:
    """A backend whose communicator of all ranks a named one uses is measured, too."""
    assert tune_cli._backends_for(tuple(_C.split_names(named)), "cpu") == _C.split_names(measured)


def test_an_unwritable_cache(tmp_path: Path) -> None:
    """The error appears before anything is measured, and the table is written here instead."""
    blocked = tmp_path / "cache"
    blocked.write_text("a file where the folder should be")
    words = ["-m", "mcr_dl.tuning", *QUICK]
    unused = {"XDG_CACHE_HOME": str(blocked), "MCR_DL_TUNING_TABLE": "other.json"}
    done = launchers.python(*words, limit=100, folder=tmp_path, **unused)
    assert done.code == 0, done.err
    assert all(text in done.err for text in ("cannot be written", "do not use this table"))
    (path,) = tmp_path.glob("*.json")
    assert table.read(path).scales
