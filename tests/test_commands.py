# SPDX-License-Identifier: Apache-2.0
"""Common behavior of all commands: how they reject wrong arguments, and how they end on signals."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

import grids
import mcr_dl
import tables
from harness import launchers
from harness.commands import refused
from mcr_dl import InvalidArgumentError
from mcr_dl.bench import cli as bench
from mcr_dl.commands.arguments import json_file, output, picture, plot
from mcr_dl.examples import bytescheduler, dlrm, gpt, moe, program, survive
from mcr_dl.groups import environment, lifecycle
from mcr_dl.info import cli as info
from mcr_dl.tables import table
from mcr_dl.trace import cli as trace
from mcr_dl.tuning import cli as tune
from waiting import await_true

COMMANDS = {
    "mcr-bench": ["-m", "mcr_dl.bench"],
    "mcr-trace": ["-m", "mcr_dl.trace"],
    "mcr-tune": ["-m", "mcr_dl.tuning"],
    "mcr-info": ["-m", "mcr_dl.info"],
    "python -m mcr_dl.testing": ["-m", "mcr_dl.testing"],
    "python -m mcr_dl.examples.moe": ["-m", "mcr_dl.examples.moe"],
}
MAINS = {"mcr-bench": bench.main, "mcr-info": info.main, "mcr-trace": trace.main, "mcr-tune": tune.main}
# The example programs' parsers alone: no test may start as many ranks as they refuse.
EXAMPLES: dict[str, Callable[[list[str]], object]] = {
    "python -m mcr_dl.examples.bytescheduler": lambda words: program.parse(bytescheduler._parser(), words),
    "python -m mcr_dl.examples.dlrm": dlrm.parse,
    "python -m mcr_dl.examples.gpt": gpt.parse,
    "python -m mcr_dl.examples.moe": moe.parse,
    "python -m mcr_dl.examples.survive": survive._parse,
}
DOCS = launchers.TESTS.parent / "docs"
MOST = 64 * (os.cpu_count() or 1)
LIMIT = 60.0

REFUSED = [
    # A picture whose format matplotlib cannot write, before anything is measured or read.
    ("mcr-bench", "--plot x.txt", "--plot: expected a name that ends in one of ."),
    ("mcr-bench", "--plot picture", "--plot: expected a name that ends in one of ."),
    ("mcr-tune", "plot x.txt", "FILE.png: expected a name that ends in one of ."),
    ("mcr-tune", "plot", "expected one picture, FILE.png or -o FILE.png"),
    ("mcr-tune", "plot a.png -o b.png", "expected one picture, FILE.png or -o FILE.png"),
    ("mcr-trace", "plot traces -o x.txt", "-o/--output: expected a name that ends in one of ."),
    ("python -m mcr_dl.examples.moe", "--chart x.txt", "--chart: expected a name that ends in one of ."),
    # A report that cannot be written.
    ("mcr-tune", "diff a b --json /no/file", "--json: expected a file that can be written, got /no/file"),
    ("mcr-info", "--json /no/file", "--json: expected a file that can be written, got /no/file"),
    # More ranks than the machine can run.
    ("mcr-bench", f"-n {MOST + 1}", f"expected at most {MOST} ranks on this machine"),
    ("mcr-tune", f"-n 2,{MOST + 1}", f"expected at most {MOST} ranks on this machine"),
    *((name, f"--nproc {MOST + 1}", f"--nproc: expected at most {MOST} ranks on this machine") for name in EXAMPLES),
    # Misspelt subcommands and options, and removed ones.
    ("mcr-tune", "shwo", "invalid choice: shwo (choose from show, plot, diff, simulate); did you mean show?"),
    ("mcr-tune", "export --format openmpi", "invalid choice: export (choose from show, plot, diff, simulate)"),
    ("mcr-tune", "--qiuck", "unrecognized arguments: --qiuck"),
    ("mcr-tune", "--budget 1e308", "--budget: expected at most 1000000 seconds, got 1e308"),
    ("mcr-tune", "--limit 1e14", "--limit: expected at most 1000000 seconds, got 1e14"),
    ("mcr-bench", "--budget 1e7", "--budget: expected at most 1000000 seconds, got 1e7"),
    ("mcr-trace", "plan graph.json --budget 1e300", "--budget: expected at most 1000000 seconds, got 1e300"),
    ("mcr-tune", "--quick show", "expected the command first (mcr-tune show ...), got --quick"),
    ("mcr-tune", "show nofile.json", "there is no such file, and mcr-tune show --table FILE shows one"),
    ("mcr-tune", f"show {__file__}", f"got a file: mcr-tune show --table {__file__}"),
    ("mcr-trace", "sumary traces", "invalid choice: sumary (choose from merge, summary"),
    ("mcr-info", "--jsn", "unrecognized arguments: --jsn; did you mean --json?"),
    ("mcr-bench", "--opps all", "unrecognized arguments: --opps all; did you mean --ops?"),
    ("mcr-tune", "show --tabel=x", "unrecognized arguments: --tabel=x; did you mean --table?"),
    *((name, "--stepss 3", "unrecognized arguments: --stepss 3; did you mean --steps?") for name in EXAMPLES),
    ("python -m mcr_dl.examples.moe", "--codec bf61", "--codec: codec bf61: expected one of bf16, "),
    ("mcr-info", "mpi", "unrecognized arguments: mpi"),
]


def run(command: str, arguments: Sequence[str], **more: str) -> launchers.Ended:
    """Run a command to its end."""
    return launchers.python(*COMMANDS[command], *arguments, limit=LIMIT, **more)


@pytest.mark.parametrize(("command", "arguments", "words"), REFUSED, ids=[" ".join(row[:2]) for row in REFUSED])
def test_refused(command: str, arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr that says what was expected, and exit code 2."""
    (line,) = refused({**MAINS, **EXAMPLES}[command], arguments.split(), capsys).splitlines()
    assert re.match(rf"{command}( \w+)?: error: ", line)
    assert words in line.replace("'", "")  # newer versions of Python quote no choices


def test_pictures_that_need_tex(monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib writes one format by a program that may not be installed."""
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(InvalidArgumentError, match=r"expected a name that ends in one of .*, got 'a\.pgf'"):
        picture("a.pgf")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert picture("a.pgf") == "a.pgf"


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    """--help names the command and does nothing else."""
    done = run(command, ["--help"])
    assert done.code == 0, done.err
    assert done.out.startswith(f"usage: {command}")


@pytest.mark.parametrize("command", [*MAINS, *EXAMPLES])
def test_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the command and the package's version."""
    with pytest.raises(SystemExit) as end:
        {**MAINS, **EXAMPLES}[command](["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"{command} {mcr_dl.__version__}\n")


@pytest.mark.parametrize("command", MAINS)
def test_entry_points(command: str) -> None:
    """Each command is installed, starts, and is documented."""
    script = Path(sysconfig.get_path("scripts")) / command
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert (done.returncode, done.stdout) == (0, f"{command} {mcr_dl.__version__}\n"), done.stderr
    assert command in (DOCS / "commands.md").read_text()


@pytest.mark.parametrize("command", MAINS)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_completion(command: str, shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed script completes the command's options, and those of its own commands; bash accepts the syntax."""
    with pytest.raises(SystemExit) as end:
        MAINS[command](["--print-completion", shell])
    script = capsys.readouterr().out
    assert end.value.code == 0
    for name in {"mcr-bench": ["max-bytes"], "mcr-tune": ["quick", "diff"], "mcr-trace": ["merge"]}.get(
        command, ["json"]
    ):
        assert name in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=LIMIT)


def test_completion_in_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """bash itself completes options, commands and names of files."""
    with pytest.raises(SystemExit):
        tune.main(["--print-completion", "bash"])
    script, file = tmp_path / "completion.bash", tmp_path / "some.json"
    script.write_text(capsys.readouterr().out)
    file.touch()
    for words, wanted in (
        (["mcr-tune", "--max-"], "--max-bytes"),
        (["mcr-tune", "sh"], "show"),
        (["mcr-tune", "show", "--table", str(tmp_path / "som")], str(file)),
    ):
        last = len(words) - 1
        given = " ".join(map(shlex.quote, words))
        source = (
            f"source {shlex.quote(str(script))}; COMP_WORDS=({given}); COMP_CWORD={last}; "
            f"$(complete -p mcr-tune | sed 's/.*-F \\([^ ]*\\).*/\\1/') mcr-tune {shlex.quote(words[-1])}; "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", source], capture_output=True, text=True, check=False, timeout=LIMIT)
        assert wanted in done.stdout.split(), done.stdout + done.stderr


def test_completion_without_shtab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says what to install."""
    monkeypatch.setitem(sys.modules, "shtab", None)
    error = refused(trace.main, ["--print-completion", "bash"], capsys)
    assert error == "mcr-trace: error: argument --print-completion: needs shtab: pip install shtab\n"


def test_json_of_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``show`` and ``diff`` as JSON, on the standard output and in a file; the exit code is the report's."""
    a, b, file = (str(tmp_path / name) for name in ("a.json", "b.json", "report.json"))
    other = tables.curve("mpi", 1.0, operation="broadcast", dtype_class="any")
    whole = tables.make(tables.scale(trials=(tables.curve("mpi", 1.0), other)))
    table.write(whole, a)
    changed = replace(whole, software=replace(whole.software, torch="0.1"))
    table.write(changed, b)
    operation = whole.subjects[0].operation
    assert tune.main(["show", "--table", a, "--json", "-", operation]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["format"] == "mcr-dl tuning table"
    for part in ("curves", "trials"):
        assert {curve["operation"] for scale in shown["scales"] for curve in scale[part]} == {operation}
    assert tune.main(["show", "--table", a, "--json", "-", "unknown"]) == 2
    assert "expected one of the table's" in capsys.readouterr().err
    assert tune.main(["diff", a, b, "--json", file]) == 1
    assert "1 differences" in capsys.readouterr().out
    row = {"where": "table", "what": "software.torch", "a": whole.software.torch, "b": "0.1"}
    assert json.loads(Path(file).read_text()) == {"a": a, "b": b, "differences": [row]}
    assert tune.main(["diff", a, a, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []


@pytest.mark.parametrize("convert", [json_file, plot, output])
def test_files_of_rank_0(convert: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their folders need not exist on the hosts of other ranks; nor a table that rank 0 reads."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MCR_DL_TUNING_TABLE", "/no/table.json")
    monkeypatch.setenv("RANK", "1")
    assert convert("/no/file.png") == "/no/file.png"
    environment.require()
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InvalidArgumentError, match="expected a file that can be written"):
        convert("/no/file.png")
    with pytest.raises(InvalidArgumentError, match=r"/no/table\.json"):
        environment.require()


def test_json_of_info() -> None:
    """The facts, the backends' states, and what each started backend supports."""
    done = run("mcr-info", ["--json", "-"])
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["facts"]["mcr_dl"] == mcr_dl.__version__
    assert found["backends"]["gloo"].startswith("ok")
    ways = found["support"]["gloo"]
    assert "float32" in " ".join(ways).split()
    assert {way.partition(";")[0] for column in ways.values() for way in column.values()} <= {"native", "emulated", "-"}


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("mcr-info", "--json -"),
        ("mcr-bench", "--backends gloo --ops barrier --budget 0.01"),
        ("python -m mcr_dl.testing", "--backend gloo -n 2 --ops barrier"),
    ],
)
def test_variables_of_programs(command: str, arguments: str, tmp_path: Path) -> None:
    """Passes, which may be the program's own, and traces are for its calls, whose traces stay: commands write none."""
    trace = tmp_path / "rank0.json"
    trace.write_text("of a program")
    done = run(command, arguments.split(), MCR_DL_TRACE=str(tmp_path), MCR_DL_PASSES="half")
    assert done.code == 0, done.err
    assert trace.read_text() == "of a program"
    assert list(tmp_path.iterdir()) == [trace]


JOB = {"MCR_DL_BACKENDS": "gloo,mpi,stripe(gloo,mpi)", "MCR_DL_TUNE": "all_to_all:*:stripe(gloo,mpi)"}


@pytest.mark.parametrize("backends", ["gloo", "all,null", "auto,null"])
def test_bench_with_the_rules_of_a_program(backends: str) -> None:
    """They name a backend that the measurement does not start by itself. Named backends join all the others."""
    done = run("mcr-bench", ["--backends", backends, "--ops", "barrier", "--budget", "0.01", "--no-check"], **JOB)
    assert done.code == 0, done.err
    assert backends.rpartition(",")[2] in done.out


def test_info_starts_once_without_the_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that remains is not one of the topology, though its text has the word."""
    for name in ("MCR_DL_TOPOLOGY", "MCR_DL_TUNE", "MCR_DL_PASSES", "MCR_DL_SCHEDULE", "MCR_DL_TRACE"):
        monkeypatch.delenv(name, raising=False)
    start = mock.Mock(side_effect=InvalidArgumentError("tuning table topology.json: no such file"))
    monkeypatch.setattr(lifecycle, "start", start)
    with pytest.raises(InvalidArgumentError, match="no such file"):
        info._start()
    assert start.call_count == 2


def test_info_with_the_variables_of_a_job(tmp_path: Path) -> None:
    """Its rules and its topology are shown, and need not fit one rank."""
    path = grids.write(tmp_path / "topology.json", 2, 2)
    done = run("mcr-info", ["--json", "-"], MCR_DL_TOPOLOGY=path, **JOB)
    assert done.code == 0, done.err
    facts = json.loads(done.out)["facts"]
    assert facts["rules"] == JOB["MCR_DL_TUNE"]
    assert "not used: topology: expected dimensions whose sizes make 1 ranks" in facts["topology"]
    assert facts["tuning table"].startswith("none: MCR_DL_TUNING_TABLE turns it off")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_removes_all_that_the_ranks_had(tmp_path: Path, end: signal.Signals) -> None:
    """mcr-bench gets a signal while its ranks measure: they end with it, and their folder is removed."""
    arguments = [*COMMANDS["mcr-bench"], "--backends", "gloo", "--ops", "barrier,all_reduce", "--budget", "100"]
    with subprocess.Popen(
        ["env", f"--default-signal={end.name}", sys.executable, *arguments],  # the suite may run under nohup
        env=launchers.environment(MCR_DL_TUNING_TABLE="none", TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:

        def measure() -> bool:
            assert running.poll() is None, running.stdout
            return len(ranks := children(running.pid)) >= 2 and all(map(with_torch, ranks))

        await_true(measure, "the ranks have started", LIMIT)
        ranks = children(running.pid)
        assert list(tmp_path.glob("mcr-ranks-*"))
        running.send_signal(end)
        text, _ = running.communicate(timeout=LIMIT)
    assert running.returncode == 128 + end, text
    assert "Traceback" not in text
    assert list(tmp_path.glob("mcr-ranks-*")) == []
    assert [rank for rank in ranks if Path(f"/proc/{rank}").exists()] == []


ENDS = [(KeyboardInterrupt(), 130, "mcr-bench: interrupted\n"), (SystemExit(143), 143, ""), (None, 3, "")]


@pytest.mark.parametrize(("end", "code", "words"), ENDS, ids=["Ctrl-C", "SIGTERM", "failure"])
def test_a_terminal_after_its_ranks_were_killed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    end: BaseException | None,
    code: int,
    words: str,
) -> None:
    """mcr-bench shows the cursor, which the bars of rank 0 had hidden, and erases their line."""
    ranks = mock.MagicMock()
    ranks.__enter__.return_value.wait.side_effect = end
    ranks.__enter__.return_value.first_failure = (0, 3)
    monkeypatch.setattr(bench, "run_local", lambda *_: ranks)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich: standard error is a terminal
    monkeypatch.setenv("TERM", "xterm")
    try:
        found: object = bench.main(["--ops", "barrier"])
    except SystemExit as left:
        found = left.code
    assert (found, capsys.readouterr().err) == (code, f"\r\x1b[2K\x1b[?25h{words}")


@pytest.mark.parametrize(
    ("step", "words"),
    [("_backends_for", ""), ("_run", "mcr-tune: interrupted; the same command with --resume continues\n")],
)
def test_an_interrupted_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, step: str, words: str
) -> None:
    """mcr-tune names --resume only once there is something to continue."""
    monkeypatch.setattr(tune, "_backends_for", lambda *_: ["gloo"])
    monkeypatch.setattr(tune, step, mock.Mock(side_effect=KeyboardInterrupt))
    code = tune.main(["--ops", "barrier", "-o", str(tmp_path / "table.json")])
    assert (code, capsys.readouterr().err) == (130, words)


def children(pid: int) -> list[int]:
    """The ranks that the process has started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in listed if b"_rank.py" in Path(f"/proc/{each}/cmdline").read_bytes()]


def with_torch(pid: int) -> bool:
    """Whether the process has already loaded torch."""
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize(
    "given", ["mcr-info --version", "mcr-tune --help", "mcr-bench -n 1 --ops barrier --budget 0.01"]
)
def test_a_closed_output(given: str) -> None:
    """As of a daemon: what is printed is lost, and no error."""
    command, *arguments = given.split()
    words = shlex.join([sys.executable, *COMMANDS[command], *arguments])
    done = subprocess.run(
        ["sh", "-c", f"{words} >&-"], env=launchers.environment(), stderr=subprocess.PIPE, timeout=LIMIT, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_output_without_micro(tmp_path: Path) -> None:
    """The characters become question marks, also those that a rank prints."""
    words = ["-n", "1", "--ops", "barrier", "--budget", "0.01", "--json", os.fsencode(tmp_path) + b"/caf\xe9.json"]
    done = subprocess.run(
        [sys.executable, *COMMANDS["mcr-bench"], *words],
        env={**launchers.environment(), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"barrier" in done.stdout
    assert json.loads(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.json")).read_bytes())


def test_ranks_without_a_reader() -> None:
    """They end together, and silently."""
    command = [sys.executable, *COMMANDS["mcr-bench"], "-n", "2", "--ops", "all_reduce,broadcast", "-e", "64"]
    with subprocess.Popen(
        [*command, "--budget", "0.02"],
        env=launchers.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.readline()
        started.stdout.close()
        said = started.stderr.read()
        assert started.wait(LIMIT) in (0, 128 + signal.SIGPIPE)
    assert said == b""


VIEWS = [
    ["mcr-tune", "show", "--table", "{table}"],
    ["mcr-tune", "diff", "{table}", "{other}"],
    ["mcr-info", "--print-completion", "bash"],
    ["mcr-bench", "--print-completion", "bash"],
    ["mcr-bench", "--help"],
]


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_a_reader_that_has_seen_enough(tmp_path: Path, view: list[str]) -> None:
    """A closed pipe, as in `mcr-tune show | head -2`: no output, and the usual exit code for that."""
    paths = {"table": tmp_path / "a.json", "other": tmp_path / "b.json"}
    for scales, path in zip((1, 9), paths.values(), strict=True):
        table.write(tables.make(*(tables.scale(ranks + 2) for ranks in range(scales))), path)
    command, *arguments = [each.format(**paths) for each in view]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, *COMMANDS[command], *arguments],
        env=launchers.environment(),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 128 + signal.SIGPIPE
