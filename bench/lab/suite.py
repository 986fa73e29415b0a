# SPDX-License-Identifier: Apache-2.0
"""`make lab`: the tests of the lab, then every stage on every cluster, then the report.

A stage that fails makes the whole run fail at the end; the others still run. Output of the ranks goes to a file for
each stage, results to docs/results/lab.md, lab.json and docs/images/lab-*.png. With a selection of stages or clusters
everything goes to the work folder, as the result is not complete.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
from rich.text import Text

import script
from lab import ROOT, Lab, LabError, plan, report, stages
from lab.needs import missing
from lab.stages import Stage
from mcr_dl.base.documents import write_rows
from mcr_dl.commands.console import Console, bars

WORK = ROOT / "build" / "lab"
_TEST_SECONDS = 400
_TAIL_LINES = 15


class Runner:
    """Runs stages and keeps their results, in a file that is updated after each."""

    def __init__(self, folder: Path, minutes: float, keys: Sequence[str], *, resume: bool) -> None:
        self.folder, self.keys = folder, list(keys)
        self.everything = ["tests", *(stage.key for stage in stages.all_stages(folder))]
        self.order = list(dict.fromkeys([*self.everything, *keys]))
        self.end = time.monotonic() + 60 * minutes
        self.summary = folder / "lab.json"
        self.document: dict[str, Any] = {"full": False, "conditions": report.conditions(), "stages": []}
        if resume:
            self._resume()
        self.console = Console(soft_wrap=True)
        columns = ("{task.description:<24}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bars = bars(self.console, columns, transient=True, disable=not self.console.is_terminal)
        self.task = self.bars.add_task("starting", total=len(self.keys), completed=sum(map(self.done, self.keys)))

    @property
    def records(self) -> list[dict[str, Any]]:
        """How each stage has ended so far."""
        return list(self.document["stages"])

    def _resume(self) -> None:
        """Take over the successful stages of earlier runs, including those that are not selected now."""
        if not self.summary.exists():
            raise LabError(f"--resume: expected {self.summary}, which the last run would have written")
        old = json.loads(self.summary.read_text())
        passed = [each for each in old["stages"] if not each["problems"] and each["stage"] in self.order]
        self.document |= {"stages": passed, "conditions": old["conditions"]}

    def done(self, key: str) -> bool:
        """Whether the stage has run."""
        return any(record["stage"] == key for record in self.records)

    def note(self, key: str, seconds: float, problems: Sequence[str], text: str, load: float) -> None:
        """Record and show how a stage ended."""
        record = {"stage": key, "seconds": round(seconds, 1), "problems": list(problems), "text": text}
        self.document["stages"].append({**record, "load": round(load, 2)})
        self.document["stages"].sort(key=lambda each: self.order.index(each["stage"]))
        self.document["full"] = all(map(self.done, self.everything))
        self.document["seconds"] = sum(each["seconds"] for each in self.records)
        self.document["conditions"]["load_at_the_end"] = list(os.getloadavg())
        write_rows(self.summary, self.document)
        self.bars.advance(self.task)
        verdict = ("FAILED", "red") if problems else ("ok    ", "green")
        place = f"{self.keys.index(key) + 1:3}/{len(self.keys)}"
        said = text if not problems else "; ".join(problems)
        self.console.print(Text.assemble(f"{place} {key:<18} {seconds:6.1f} s  ", verdict, f" {said}"))

    def tests(self) -> None:
        """The lab's own tests."""
        self.bars.update(self.task, description="tests/lab")
        begin, load = time.monotonic(), os.getloadavg()[0]
        command = [sys.executable, "-m", "pytest", "-q", "--timeout", "120", "-p", "no:cacheprovider", "tests/lab"]
        log = self.folder / "tests.log"
        with open(log, "w") as output:
            try:
                code = subprocess.run(
                    command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, timeout=_TEST_SECONDS, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
        last = log.read_text().strip().splitlines()[-1:]
        problems = [] if code == 0 else [f"{' '.join(last)}; see {os.path.relpath(log, ROOT)}"]
        self.note("tests", time.monotonic() - begin, problems, " ".join(last), load)

    def cluster(self, chosen: Sequence[Stage]) -> None:
        """The stages of one shape, in one lab."""
        shape = chosen[0].shape
        chosen = [stage for stage in chosen if not self.done(stage.key)]
        if not chosen:
            return
        try:
            cores = 1 if shape == stages.ALONE else None  # as many as a rank has in the smallest cluster
            with Lab(shape.hosts, shape.ranks_per_host, shape.rates, cores=cores) as lab:
                for stage in chosen:
                    self.stage(lab, stage)
        except LabError as error:
            for stage in chosen:
                if self.done(stage.key):
                    continue
                self.note(stage.key, 0.0, [f"not run: {error}"], "", os.getloadavg()[0])

    def stage(self, lab: Lab, stage: Stage) -> None:
        """One program as every rank."""
        self.bars.update(self.task, description=stage.key)
        begin, load = time.monotonic(), os.getloadavg()[0]
        left = self.end - begin
        out, log = Path(stage.out), self.folder / f"{stage.key}.log"
        if stage.name != "tune":  # which adds to the table of the other clusters
            out.unlink(missing_ok=True)
        if left <= 0:
            self.note(stage.key, 0.0, ["not run: the time for all stages is over"], "", load)
            return
        before = out.stat().st_mtime_ns if out.exists() else None
        with open(log, "w", buffering=1) as output:
            job = lab.start(
                stage.program, self.environment(stage), sink=lambda rank, line: print(rank, line, file=output)
            )
            result = job.wait(min(stage.limit, left))
        problems = [] if result.ok else [f"{result.text()}; see {os.path.relpath(log, ROOT)}"]
        found: dict[str, Any] = {}
        if result.ok and (not out.exists() or out.stat().st_mtime_ns == before):
            problems = [f"it has written no {out.name}"]
        elif result.ok:
            found = json.loads(out.read_text())
            problems = stage.check(found, stage.shape)
        text = stage.say(found) if not problems else ""
        self.note(stage.key, time.monotonic() - begin, problems, text, load)
        if not result.ok:
            for line in log.read_text().splitlines()[-_TAIL_LINES:]:
                self.console.print(f"        {line}")

    def environment(self, stage: Stage) -> dict[str, str]:
        """The environment of a stage's ranks, in addition to the one of every lab."""
        table = self.folder / "table.json"
        tuned = stage.tuned and table.exists()
        return {
            "PYTHONPATH": str(ROOT / "bench"),
            "MCR_DL_TUNING_TABLE": str(table) if tuned else "none",
            **plan.library_settings(stage.shape, multi_rail=stage.multi_rail),
        }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = script.parser(__doc__, program="lab suite")
    shapes = [str(shape) for shape in (*stages.SHAPES, stages.ALONE, stages.WITHIN)]
    names = list(dict.fromkeys(stage.name for stage in stages.all_stages(WORK)))
    found.add_argument("--shapes", nargs="+", choices=shapes, help="clusters: hosts x ranks per host (all)")
    found.add_argument(
        "--only", nargs="+", choices=["tests", *names], metavar="STAGE", help=f"of {', '.join(names)} (all)"
    )
    found.add_argument("--minutes", type=float, default=60, help="stages that would begin later fail (60)")
    found.add_argument("--resume", action="store_true", help="keep what has passed in the last run, and run the rest")
    found.add_argument(
        "--report", action="store_true", help="write the report of the last run again, and measure nothing"
    )
    return found


def selected(all_stages: Iterable[Stage], shapes: Sequence[str] | None, only: Sequence[str] | None) -> list[Stage]:
    """The selected stages, in their order."""
    return [
        stage for stage in all_stages if (not shapes or str(stage.shape) in shapes) and (not only or stage.name in only)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages. Exit code 1: some failed; 2: no lab can be made here."""
    given = script.parse(parser(), argv, shapes=[str(stages.SHAPES[0])], only=["bandwidth"])
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory())) if given.smoke else WORK
        return measure(given, work)


def measure(given: argparse.Namespace, work: Path) -> int:
    """Run the selected stages and report; returns the exit code. In smoke mode any figures are accepted."""
    full = not given.shapes and not given.only
    summary = work / "lab.json"
    chosen, tests = selected(stages.all_stages(work), given.shapes, given.only), not given.only or "tests" in given.only
    if not chosen and not tests:
        raise LabError("expected a stage that --shapes and --only select, got none")
    if given.report and not summary.exists():
        raise LabError(f"--report: expected {summary}, which a run would have written")
    if not given.report:
        lacking = missing()
        if lacking:
            raise LabError(f"`make lab` cannot run here; missing: {'; '.join(lacking)}")
        work.mkdir(parents=True, exist_ok=True)
        if given.smoke:
            chosen = [replace(stage, check=stages.nothing) for stage in chosen]
        if full and not given.resume:
            for old in work.glob("*.json"):
                old.unlink()
        run(work, chosen, given.minutes, tests=tests, resume=given.resume)
    document = json.loads(summary.read_text())
    failed = [record["stage"] for record in document["stages"] if record["problems"]]
    report.write(document, work, ROOT / "docs" if document["full"] else work)
    console = Console(soft_wrap=True)
    minutes = document["seconds"] / 60
    if failed:
        verdict = f"{len(failed)} of {len(document['stages'])} stages failed"
        console.print(Text.assemble((verdict, "red"), f": {', '.join(failed)}"))
    else:
        ran, known = len(document["stages"]), len(stages.all_stages(work)) + 1
        console.print(f"{ran} of {known} stages have run, in {minutes:.1f} minutes; all of these passed")
    return 1 if failed else 0


def run(work: Path, chosen: Sequence[Stage], minutes: float, *, tests: bool, resume: bool = False) -> None:
    """Run them and record in the folder how they ended."""
    keys = [*(["tests"] if tests else []), *(stage.key for stage in chosen)]
    runner = Runner(work, minutes, keys, resume=resume)
    with runner.bars:
        if tests and not runner.done("tests"):
            runner.tests()
        load = os.getloadavg()[0]
        if load > len(plan.available_cores()):
            runner.console.print(
                f"load average {load:.0f} before anything has begun: times will be those of a busy machine"
            )
        for _, group in groupby(chosen, key=lambda stage: stage.shape):
            runner.cluster(list(group))
