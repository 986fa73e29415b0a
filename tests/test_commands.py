# SPDX-License-Identifier: Apache-2.0
"""Common behavior of all commands: how they reject wrong arguments, and how they end on signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tables
from harness import launchers
from mcr_dl.bench import cli as bench
from mcr_dl.tables import table
from mcr_dl.trace import cli as trace
from mcr_dl.tuning import cli as tune

COMMANDS = {
    "mcr-bench": ["-m", "mcr_dl.bench"],
    "mcr-trace": ["-m", "mcr_dl.trace"],
    "mcr-tune": ["-m", "mcr_dl.tuning"],
    "python -m mcr_dl.info": ["-m", "mcr_dl.info"],
    "python -m mcr_dl.examples.moe": ["-m", "mcr_dl.examples.moe"],
}
MAINS = {"mcr-bench": bench.main, "mcr-trace": trace.main, "mcr-tune": tune.main}
MOST = 64 * (os.cpu_count() or 1)
LIMIT = 60.0

REFUSED = [
    # A picture whose format matplotlib cannot write, before anything is measured or read.
    ("mcr-bench", "--plot x.txt", "--plot: expected a name that ends in one of ."),
    ("mcr-bench", "--plot picture", "--plot: expected a name that ends in one of ."),
    ("mcr-tune", "plot x.txt", "FILE.png: expected a name that ends in one of ."),
    ("mcr-trace", "plot traces -o x.txt", "-o/--output: expected a name that ends in one of ."),
    ("python -m mcr_dl.examples.moe", "--chart x.txt", "--chart: expected a name that ends in one of ."),
    # More ranks than the machine can run.
    ("mcr-bench", f"-n {MOST + 1}", f"expected at most {MOST} ranks on this machine"),
    ("mcr-tune", f"-n 2,{MOST + 1}", f"expected at most {MOST} ranks on this machine"),
    # Misspelt subcommands and options, and removed ones.
    ("mcr-tune", "shwo", "invalid choice: shwo (choose from show, plot, diff)"),
    ("mcr-tune", "export --format openmpi", "invalid choice: export (choose from show, plot, diff)"),
    ("mcr-tune", "--qiuck", "unrecognized arguments: --qiuck"),
    ("mcr-tune", "--quick show", "unrecognized arguments: show"),
    ("mcr-trace", "sumary traces", "invalid choice: sumary (choose from merge, summary"),
    ("python -m mcr_dl.info", "--jsn", "unrecognized arguments: --jsn"),
    ("python -m mcr_dl.info", "mpi", "unrecognized arguments: mpi"),
]


def run(command: str, arguments: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, *COMMANDS[command], *arguments],
        env=launchers.environment(MCR_DL_TUNING_TABLE="none", **more),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@pytest.mark.parametrize(("command", "arguments", "words"), REFUSED, ids=[" ".join(row[:2]) for row in REFUSED])
def test_refused(command: str, arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr that says what was expected, and exit code 2."""
    if command in MAINS:  # in this process, which has already loaded torch
        try:
            code: object = MAINS[command](arguments.split())
        except SystemExit as end:
            code = end.code
        out, error = capsys.readouterr()
    else:
        done = run(command, arguments.split())
        code, out, error = done.returncode, done.stdout, done.stderr
    assert (code, out) == (2, ""), error
    last = error.splitlines()[-1]
    assert re.match(rf"{command}( \w+)?: error: ", last)
    assert words in last.replace("'", "")  # newer versions of Python quote no choices
    assert len(error.splitlines()) == 1 or "examples" in command  # argparse's own form for those, with the usage


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    """--help names the command and does nothing else."""
    done = run(command, ["--help"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {command}")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_removes_all_that_the_ranks_had(tmp_path: Path, end: signal.Signals) -> None:
    """mcr-bench gets a signal while its ranks measure: they end with it, and their folder is removed."""
    arguments = [*COMMANDS["mcr-bench"], "--backends", "gloo", "--ops", "barrier,all_reduce", "--budget", "100"]
    with subprocess.Popen(
        [sys.executable, *arguments],
        env=launchers.environment(MCR_DL_TUNING_TABLE="none", TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        deadline = time.monotonic() + LIMIT
        while len(ranks := children(running.pid)) < 2 or not all(map(with_torch, ranks)):
            assert running.poll() is None, running.stdout
            assert time.monotonic() < deadline, "the ranks did not start"
            time.sleep(0.02)
        assert list(tmp_path.glob("mcr-ranks-*"))
        running.send_signal(end)
        text, _ = running.communicate(timeout=LIMIT)
    assert running.returncode == 128 + end, text
    assert "Traceback" not in text
    assert list(tmp_path.glob("mcr-ranks-*")) == []
    assert [rank for rank in ranks if Path(f"/proc/{rank}").exists()] == []


def children(pid: int) -> list[int]:
    """The ranks that the process has started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in listed if b"_rank.py" in Path(f"/proc/{each}/cmdline").read_bytes()]


def with_torch(pid: int) -> bool:
    """Whether the process has already loaded torch."""
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


VIEWS = [
    ["mcr-tune", "show", "--table", "{table}"],
    ["mcr-tune", "diff", "{table}", "{other}"],
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view[1])
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
