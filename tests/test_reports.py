# SPDX-License-Identifier: Apache-2.0
"""Texts of libraries in reports: every command prints them unchanged, whatever they contain."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jobs
import tables as made
from harness import launchers
from mcr_dl.bench import report as bench_report
from mcr_dl.bench._sweep import Row, Settings
from mcr_dl.commands.console import Console, bars
from mcr_dl.examples import report as examples
from mcr_dl.info import cli as info
from mcr_dl.measure.cases import Case
from mcr_dl.measure.timing import Statistics
from mcr_dl.planner.plans import Planner
from mcr_dl.planner.show import show as show_plans
from mcr_dl.tables import table
from mcr_dl.tables.host import Host
from mcr_dl.tables.model import Exclusion
from mcr_dl.testing import calls, kit, plan_graphs
from mcr_dl.testing import cli as testing
from mcr_dl.testing.nursery import Nursery
from mcr_dl.trace import Region, Trace, _clock, _files, _log_summary
from mcr_dl.trace import cli as trace
from mcr_dl.tuning import cli as tune
from mcr_dl.tuning._journal import Plan, Progress, Unit

ROOT = Path(__file__).resolve().parent.parent
TEXTS = {
    "closing tag": "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1000ms",
    "tag": "is not installed: pip install matplotlib",
    "style": "[red]Abort(1)[/red] [bold]x[/] \\[y] [link=http://h]z[/link]",
    "emoji": "rank :0: :warning: [1]:fire:",
}


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on which no table is wrapped."""
    monkeypatch.setenv("COLUMNS", "500")


# ---- one function for each report: it prints the text, or writes it into the folder and has a command print it


def diagnose(text: str, folder: Path) -> None:
    alarm = {"by": 0, "kind": "error", "group": "g", "text": text, "seq": 1, "message": False}
    known = {"format": "mcr-dl dump", "version": 1, "rank": 0, "size": 1, "pid": 1, "host": "h", "time": 0.0}
    dump = {**known, "alarm": alarm, "groups": [], "threads": [], "pending": []}
    (folder / "alarm0.rank0.json").write_text(json.dumps(dump))
    assert trace.main(["diagnose", str(folder)]) == 0


def regions(text: str, folder: Path) -> None:
    clock = _clock.Clock(0, 0, _clock.SAME, 0, 0)
    _files.write(Trace(0, 1, clock, [], [Region(text, 0, 1_000_000, 1)], 0, 2_000_000), folder)
    assert trace.main(["summary", str(folder)]) == 0


def log_summary(text: str, folder: Path) -> None:
    del folder
    times = dict.fromkeys(("total_latency_ms", "avg_latency_ms", "p50_latency_ms", "p99_latency_ms"), 1.0)
    line = {"count": 1, **times, "tput_avg_gbps": 1.0, "busbw_avg_gbps": 1.0}
    sizes = {4: {"msg_size_str": "4 B", "backends": {text: line}}}
    codecs = {text: {"count": 1, "error_bound": text}}
    found = {"summary": {"all_reduce": sizes}, "straggler_analysis": None, "metadata": {"codecs": codecs}}
    _log_summary._print(found, 0, 0)


def excluded(text: str, folder: Path) -> None:
    del folder
    plan = Plan(2, ("gloo",), (Unit("all_reduce", "float32", (4,)),), 1.0, 0.1, "cpu", ())
    display = tune._Display(plan, Progress())
    with display.bars:
        display.take(
            {"event": "excluded", "candidate": "gloo", "operation": "all_reduce", "dtype": "float32", "reason": text}
        )


def tuned(text: str, folder: Path) -> None:
    measured = made.scale(excluded=(Exclusion("all_reduce", "bool", "gloo", text),))
    tune._summary(made.make(measured), measured, folder / "t.json", 1.0, 0)


def _table(folder: Path, name: str, **parts: Any) -> str:
    table.write(made.make(made.scale(excluded=parts.pop("excluded", ())), **parts), folder / name)
    return str(folder / name)


def tune_show(text: str, folder: Path) -> None:
    path = _table(folder, "a.json", excluded=(Exclusion("all_reduce", "bool", "gloo", text),))
    assert tune.main(["show", "--table", path]) == 0


def tune_diff(text: str, folder: Path) -> None:
    other = Host(**{**vars(made.HOST), "cpu": text})
    assert tune.main(["diff", _table(folder, "a.json"), _table(folder, "b.json", host=other)]) == 1


def bench_table(text: str, folder: Path) -> None:
    del folder
    times = Statistics(9, 1.0, 1.0, 1.0, 1, True)
    rows = [Row(Case("all_reduce", 4), name, 4, 1, times) for name in (text, "mpi")]
    bench_report.print_operation(rows, Settings(("all_reduce",), ("all",), (4,)), 2)


def bench_footer(text: str, folder: Path) -> None:
    del folder
    rows = [Row(Case("all_reduce", 4), "mpi", 4, 1, reason=text)]
    print("\n".join(bench_report.footer(rows, Settings(("all_reduce",), ("all",), (4,)))))


def bar(text: str, folder: Path) -> None:
    del folder
    console = Console(force_terminal=True, color_system=None)
    with bars(console, ["{task.description}"]) as progress:
        progress.add_task(text)


def _setting(**parts: Any) -> examples.Setting:
    known = {"title": "t", "ranks": 2, "threads": 1, "unit": "tokens", "per_step": 1, "loss_unit": "nats", "turn": 1}
    return examples.Setting(**{**known, "trial_seconds": {}, "lines": [], "details": {}, **parts})


def _record(text: str) -> examples.Record:
    return examples.Record(text, {"all_reduce": text}, 2.0, 1.0, [1.0], [1.0], {"all_reduce": [0.1]})


def example_choice(text: str, folder: Path) -> None:
    del folder
    examples.show_choice(examples.console(quiet=False), {text: 1.0}, "")


def example_lines(text: str, folder: Path) -> None:
    del folder
    examples.show_setting(Console(), _setting(lines=[text]))


def example_table(text: str, folder: Path) -> None:
    del folder
    examples.show(Console(), _setting(), [_record(text)])


def example_verdict(text: str, folder: Path) -> None:
    del folder
    console = examples.console(quiet=False)
    examples.show_verdict(console, _setting(), [_record("mpi")], [text], tolerance=1.0, least_gain=0.0)


def states(text: str, folder: Path) -> None:
    del folder
    Console().print(info._backend_table({"gloo": f"unavailable: {text}"}))


def lab_problem(text: str, folder: Path) -> None:
    from lab import suite

    key = next(stage.key for stage in suite.stages.all_stages(folder))
    suite.Runner(folder, 1.0, [key], resume=False).note(key, 1.0, [text], "", 0.0)


def lab_rows(text: str, folder: Path) -> None:
    del folder
    import figures_rank

    numbers = {"tokens_per_second": 1.0, "step_seconds": {"median": 1.0}, "compute_seconds": 1.0}
    row = {"row": text, **numbers, "overlapped_seconds": None, "loss": {"end": 1.0}}
    figures_rank.show(Console(), _setting(), [row], "tokens")


def faults(text: str, folder: Path) -> None:
    del folder
    import faults as script

    script.show({("gloo", "idle", "kill"): [script.Outcome(text)]})


def planned(text: str, folder: Path) -> None:
    del folder
    graph = plan_graphs.paper()
    nodes = tuple(replace(node, key=text) if node.key == "a" else node for node in graph.nodes)
    planner = Planner(replace(graph, nodes=nodes))
    before = planner.program_order()
    after = planner.search(seed=0, budget=10.0).plan
    assert before.chosen != after.chosen
    show_plans(planner, [before, after])


# By the file that prints: all files with a console of mcr_dl.commands.console are here or in the next list.
def failed_cases(text: str, folder: Path) -> None:
    del folder
    result = kit.Result("all_reduce")
    result.fail([calls.Case("all_reduce")], text)
    testing.report([result], kit.Settings("some", 2))


REPORTS: dict[str, list[Callable[[str, Path], None]]] = {
    "mcr/mcr_dl/trace/cli.py": [diagnose],
    "mcr/mcr_dl/trace/show.py": [regions],
    "mcr/mcr_dl/trace/_log_summary.py": [log_summary],
    "mcr/mcr_dl/tuning/cli.py": [excluded, tuned],
    "mcr/mcr_dl/tuning/_views.py": [tune_show, tune_diff],
    "mcr/mcr_dl/tuning/show.py": [tune_show],
    "mcr/mcr_dl/tuning/diff.py": [tune_diff],
    "mcr/mcr_dl/bench/report.py": [bench_table, bench_footer],
    "mcr/mcr_dl/bench/cli.py": [bar],
    "mcr/mcr_dl/examples/report.py": [example_choice, example_lines, example_table, example_verdict],
    "mcr/mcr_dl/info/cli.py": [states],
    "mcr/mcr_dl/testing/cli.py": [failed_cases],
    "mcr/mcr_dl/planner/show.py": [planned],
    "bench/lab/suite.py": [lab_problem],
    "bench/lab/figures_rank.py": [lab_rows],
    "bench/faults.py": [faults],
}
# Files with their own tests below, or without other texts.
OTHERS = {
    "mcr/mcr_dl/examples/bytescheduler.py",
    "mcr/mcr_dl/examples/moe.py",
    "mcr/mcr_dl/examples/program.py",
    "mcr/mcr_dl/examples/survive.py",
    "mcr/mcr_dl/examples/syndicate.py",
    "mcr/mcr_dl/trace/_plan.py",
    "mcr/mcr_dl/tuning/simulate.py",
    "bench/bytescheduler.py",
    "bench/bytescheduler_cost.py",
    "bench/bytescheduler_soak.py",
    "bench/syndicate_runs.py",
    "bench/syndicate_soak.py",
    "bench/lab/cli.py",
    "bench/late_issues.py",
    "bench/starts.py",
    "bench/survive_soak.py",
    "bench/one_rank.py",
    "bench/overhead.py",
    "bench/soak.py",
    "bench/versions.py",
    "bench/written_pieces.py",
}
GLOOS_WORDS = r"\[/\S+\.cc:\d+\] \w+"  # they begin with a path in brackets, which rich would take for markup


class TestTextOfLibraries:
    """Texts of libraries in reports."""

    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
    @pytest.mark.parametrize(
        "report", {each.__name__: each for some in REPORTS.values() for each in some}.values(), ids=lambda r: r.__name__
    )
    def test_is_printed_as_it_is(
        self, report: Callable[[str, Path], None], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        report(text, tmp_path)
        said = capsys.readouterr()
        assert text in said.out + said.err

    def test_every_report_is_here(self) -> None:
        """Every file that makes a console is in one of the lists, and no other file is."""
        files = [*(ROOT / "mcr").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
        users = {str(path.relative_to(ROOT)) for path in files if "import Console" in path.read_text()}
        assert users - {"mcr/mcr_dl/commands/console.py"} == set(REPORTS) | OTHERS

    @pytest.mark.parametrize("more", [(), ("--codec", "bf16")], ids=["modes", "codecs"])
    def test_an_example_that_cannot_be_trained(self, tmp_path: Path, more: tuple[str, ...]) -> None:
        """The error of a workload, which names the user's arguments."""
        given = ["--text", str(tmp_path / "[red]no[/] 'mcr-dl[plot]'"), "--no-chart", *more]
        code, out, err = launchers.python("-m", "mcr_dl.examples.moe", *given, limit=120)
        assert code == 2, out + err
        assert f"--text: expected a directory, got {given[1]}\n" in out

    @pytest.mark.parametrize("world", [2, 3])
    def test_gloos_own_words(self, world: int) -> None:
        """A blocking call of gloo that loses the connection to a rank: its error ends with gloo's text, whole."""
        with Nursery() as nursery:
            ranks = jobs.start(nursery, "faulty", ["gloo", "collective", "kill"], world)
            jobs.end(nursery, [ranks[0]])
            assert re.search(rf"REPORTED PeerLostError: .*own text: {GLOOS_WORDS}", ranks[0].text), ranks[0].text


def test_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The columns of log_summary are whole: the terminal breaks the lines."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert Console().is_terminal
    log_summary("gloo", Path())
    said = capsys.readouterr().out
    assert all(name in said for name in _log_summary._COLUMNS), said


def test_progress_before_a_step_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The first turn has no times."""
    record = examples.Record("gloo", {})
    progress = examples.Progress(Console(), [record], 10)
    with progress.bars:
        for seconds in ([], [0.005]):
            record.curve.append(2.0)
            record.step_seconds += seconds
            progress.advance(record)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == ["gloo 1/10 loss 2.000 - ms/step", "gloo 2/10 loss 2.000 5 ms/step"]
