# SPDX-License-Identifier: Apache-2.0
"""Where the time of a traced program went, and the pictures of it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from unittest import mock

import pytest

from mcr_dl import _C
from mcr_dl.commands.console import Console
from mcr_dl.commands.text import colours
from mcr_dl.trace import _breakdown as breakdown
from mcr_dl.trace import _files, plot, show
from mcr_dl.trace._regions import Region
from mcr_dl.trace.cli import main
from traces import MS
from traces import record_of as record
from traces import trace_of as make
from traces import work_of as work


def test_breakdown() -> None:
    """From 0 to 20 ms: 4 in a blocking call, 1 + 3 in an asynchronous one, which ran during 6 ms of computation."""
    trace = make([record("all_reduce", 0, 4), work("all_to_all", 5, 6, 15, (12, 15)), record("barrier", 20, 20)])
    found = breakdown.whole(trace)
    assert found.total == pytest.approx(0.020)
    assert found.exposed == pytest.approx({"all_reduce": 0.004, "all_to_all": 0.004})
    assert found.compute == pytest.approx(0.012)
    assert found.overlapped == pytest.approx(0.006)


def test_a_region_with_the_name_of_the_whole() -> None:
    """It is a region like any other."""
    records = [record("all_reduce", 0, 4)]
    regions = [Region(breakdown.WHOLE, 0, 20 * MS, 7)]
    traces = [make(records, rank=rank, ranks=2, regions=regions) for rank in range(2)]
    (bar,) = plot.bars(traces)
    assert (bar.name, bar.total) == (breakdown.WHOLE, pytest.approx(0.020))
    written = io.StringIO()
    show.show(traces, Console(file=written))
    assert "Where the time went: all" in written.getvalue()


def test_a_trace_that_is_too_large_to_be_read(tmp_path: Path) -> None:
    """A warning when it is written."""
    with mock.patch.object(_files, "LARGEST", 100), pytest.warns(UserWarning, match="of at most 100 bytes, which mcr-"):
        assert _files.write(make([]), tmp_path).exists()


def test_breakdown_of_many_ranks() -> None:
    """A column for each."""
    written, ranks = io.StringIO(), 150
    traces = [make([record("all_reduce", 0, 4)], rank=rank, ranks=ranks) for rank in range(ranks)]
    show.show(traces, Console(file=written))
    head = next(line for line in written.getvalue().splitlines() if "rank 0" in line)
    assert head.split() == [*" ".join(f"rank {rank}" for rank in range(ranks)).split(), "mean"]


def test_breakdown_counts_no_time_twice() -> None:
    """Two threads are in calls at once; a call that is still running lasts until the trace was saved (100 ms)."""
    found = breakdown.whole(make([record("all_reduce", 0, 10), record("broadcast", 5, 12, thread=8)]))
    assert found.exposed == pytest.approx({"all_reduce": 0.010, "broadcast": 0.002})
    assert found.compute == pytest.approx(0)
    assert breakdown.whole(make([record("all_reduce", 90, None)])).exposed == pytest.approx({"all_reduce": 0.010})
    assert breakdown.whole(make([])).total == 0


def test_breakdown_by_region() -> None:
    """Each region counts its own time, over all of its occurrences; a region that not all ranks have is left out."""
    records = [
        record("all_reduce", 1, 3),
        record("all_reduce", 9, 12),
        work("all_gather", 20, 20, 26, (24, 26)),
    ]
    regions = [Region("a", 0, 10 * MS, 7), Region("b", 10 * MS, 20 * MS, 7), Region("a", 20 * MS, 30 * MS, 7)]
    trace = make(records, ranks=2, regions=regions)
    first, second = breakdown.by_region(trace)
    assert (first.name, first.total, second.name) == ("a", pytest.approx(0.020), "b")
    assert first.exposed == pytest.approx({"all_gather": 0.002, "all_reduce": 0.003})
    assert first.overlapped == pytest.approx(0.004)
    assert second.exposed == pytest.approx({"all_reduce": 0.002})
    other = make(records, rank=1, ranks=2, regions=regions[:1])
    assert list(breakdown.tables([trace, other])) == ["a"]
    mean = breakdown.mean(breakdown.tables([trace, other])["a"])
    assert mean.total == pytest.approx(0.015)
    assert mean.exposed == pytest.approx({"all_gather": 0.001, "all_reduce": 0.003})


def test_regions_that_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary and the picture name them, as the time in them is in no table."""
    records = [record("all_reduce", 1, 3)]
    names = [["step", "evaluate"], ["step"], ["step", "evaluate", "save"]]
    for rank, regions in enumerate(names):
        spans = [Region(name, 0, 10 * MS, 7) for name in regions]
        _files.write(make(records, rank=rank, ranks=3, regions=spans), tmp_path / "traces")
    texts = ["region 'evaluate', which only ranks 0, 2 recorded", "region 'save', which only rank 2 recorded"]
    for arguments in (["summary"], ["plot", "-o", str(tmp_path / "chart.png")]):
        assert main([arguments[0], str(tmp_path / "traces"), *arguments[1:]]) == 0
        said = capsys.readouterr().out
        assert re.findall("left out: (.*)", said) == texts, said
    assert main(["summary", str(tmp_path / "traces"), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (list(found["regions"]), found["left_out"]) == (["step"], {"evaluate": [0, 2], "save": [2]})


def test_the_bars_are_the_breakdown() -> None:
    trace = make([record("all_reduce", 0, 4), work("all_to_all", 5, 6, 15, (12, 15)), record("barrier", 20, 20)])
    axes = plot.figure_of([trace]).axes[0]
    heights = [patch.get_height() for patch in axes.patches]
    assert heights == pytest.approx([0.012, 0.004, 0.004])
    texts = [text.get_text() for text in axes.texts]
    assert "12.0 ms  60%" in texts
    assert "20.0 ms" in texts


def test_a_name_for_each_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each region has its own calls; there is no picture of more bars than one can have."""
    steps = range(301)
    records = [record("all_reduce", 2 * step, 2 * step + 1) for step in steps]
    regions = [Region(f"step {step}", 2 * step * MS, 2 * (step + 1) * MS, 7) for step in steps]
    trace = make(records, regions=regions)
    for found, step in zip(breakdown.by_region(trace), steps, strict=True):
        assert (found.name, found.exposed) == (f"step {step}", pytest.approx({"all_reduce": 0.001}))
    _files.write(trace, tmp_path / "traces")
    assert main(["plot", str(tmp_path / "traces"), "-o", str(tmp_path / "chart.png")]) == 2
    assert "expected at most 300 names of regions or ranks, a bar for each, got 301" in capsys.readouterr().err


@pytest.mark.parametrize("regions", [["step"], [], ["gloo", "mpi", "a $x_{$ costs $1", "auto"]], ids=len)
def test_the_picture_shows_its_words(regions: list[str]) -> None:
    """Its title and legend are inside it, apart from each other and from the bars; each operation has a color."""
    names = [str(row["name"]) for row in _C.ops()]
    records = [record(name, 2 * index + 1, 2 * index + 2) for index, name in enumerate(names)]
    spans = [Region(name, 0, 90 * MS, 7) for name in regions]
    figure = plot.figure_of([make(records, rank=rank, ranks=2, regions=spans) for rank in (0, 1)])
    figure.savefig(io.BytesIO(), format="png")  # places everything
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    assert figure.get_suptitle().startswith("Compute and exposed communication: ")
    title, names_box = figure._suptitle.get_window_extent(), legend.get_window_extent()
    for box in (title, names_box):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert not title.overlaps(names_box)
    assert axes.bbox.x1 <= names_box.x0
    assert [text.get_text() for text in legend.get_texts()] == ["compute", *sorted(names)][::-1]
    assert len({patch.get_facecolor() for patch in legend.get_patches()}) == len(names) + 1
    assert [tick.get_text() for tick in axes.get_xticklabels()] == (regions or ["rank 0", "rank 1"])


def test_every_name_has_a_colour_of_its_own() -> None:
    """Operations, and candidates such as the variants of many backends."""
    names = [f"backend:{number}" for number in range(40)]
    found = colours(names)
    assert len(set(found.values())) == len(names)
    assert found == colours(reversed(names))
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in found.values())
