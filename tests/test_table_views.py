# SPDX-License-Identifier: Apache-2.0
"""Views of tuning tables: shown in the terminal, drawn, and compared."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcr_dl import InvalidArgumentError
from mcr_dl.commands.console import Console
from mcr_dl.tables import table as files
from mcr_dl.tables.host import host
from mcr_dl.tables.model import Curve, Exclusion, Scale, Table
from mcr_dl.tables.winners import Comparison, cost_of, microseconds_of, steady
from mcr_dl.tuning import cli as tune_cli
from mcr_dl.tuning import diff
from mcr_dl.tuning.cli import main
from mcr_dl.tuning.diff import differences
from mcr_dl.tuning.plot import figure_of, plot
from mcr_dl.tuning.show import show
from tables import HOST, SOFTWARE, TIME, curve, make, scale, winner


def printed(function: Callable[[Console], Any]) -> str:
    """The output of a function, without colors."""
    console = Console(file=io.StringIO(), width=140)
    function(console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def barrier(*medians: tuple[str, float]) -> tuple[Curve, ...]:
    return tuple(curve(name, time, operation="barrier", dtype_class="any") for name, time in medians)


def two_scales() -> Table:
    excluded = (Exclusion("all_to_all", "bool", "gloo", "[2] wrong values"),)
    more = (*scale().curves, *barrier(("mpi", 3.0), ("gloo", 60.0)))
    won = (*scale().winners, winner((0, "mpi"), operation="barrier", dtype_class="any"))
    large = scale(4, 2, curves=(curve("mpi:p2p", 7.0, 8.0, 1500.0),), winners=(winner((0, "mpi:p2p")),))
    return make(scale(curves=more, winners=won, excluded=excluded), large)


def test_show_is_a_table_of_winners_by_size_and_scale() -> None:
    text = printed(lambda console: show(two_scales(), console))
    lines = [line for line in text.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert [[" ".join(cell.split()) for cell in row] for row in cells] == [
        ["4", "mpi 1.00 µs", "mpi:p2p 7.00 µs"],
        ["64", "mpi 2.00 µs", "mpi:p2p 8.00 µs"],
        ["512", "gloo", "mpi:p2p"],
        ["1K", "gloo 100 µs", "mpi:p2p 1.50 ms"],
        ["0", "mpi 3.00 µs", "-"],
    ]
    for part in (
        "2 ranks",
        "4 ranks (2x2)",
        "all_reduce (float, measured with float32)",
        "A CPU, 2 cores, 8 GiB",
        TIME,
    ):
        assert part in text
    assert "mcr_dl 0.1.0, torch 2.13.0, Python 3.11.7, mpi MPICH 5.0.2, gloo torch 2.13.0" in text
    assert "2 ranks: gloo from all_to_all (bool): [2] wrong values" in text


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        # An owner for less than an octave between ranges of another one.
        (((0, "mpi"), (33051, "ucc"), (50000, "mpi")), ((0, "mpi"),)),
        (((0, "mpi"), (33051, "ucc"), (40000, "mpi"), (60000, "ucc")), ((0, "mpi"), (60000, "ucc"))),
        # An octave, or between two owners.
        (((0, "mpi"), (32768, "ucc"), (65536, "mpi")), ((0, "mpi"), (32768, "ucc"), (65536, "mpi"))),
        (((0, "mpi"), (512, "gloo"), (600, "ucc")), ((0, "mpi"), (512, "gloo"), (600, "ucc"))),
        # mpi takes 1 % longer than shm, gloo more than that.
        (((0, "mpi"), (16, "shm"), (512, "gloo")), ((0, "mpi"), (512, "gloo"))),
        (((0, "shm"), (16, "mpi"), (256, "shm"), (512, "gloo")), ((0, "shm"), (512, "gloo"))),
        (((0, "gloo"), (16, "shm"), (128, "mpi")), ((0, "gloo"), (16, "shm"))),
        (((0, "mpi"), (16, "shm")), ((0, "mpi"),)),
    ],
)
def test_winners_without_noise(ranges: tuple[tuple[int, str], ...], expected: tuple[tuple[int, str], ...]) -> None:
    """Ranges within 2 %, and short ones between two of one owner, are no crossings; ucc has no curve here."""
    curves = (curve("mpi", 1.01, 2.02, 404.0), curve("shm", 1.0, 2.0, 400.0), curve("gloo", 30.0, 31.0, 100.0))
    given = scale(curves=curves, winners=(winner(*ranges),))
    assert steady(given, given.winners[0]) == winner(*expected)


@pytest.mark.parametrize(
    ("start", "end", "equal"),
    [
        (100, 201, True),
        (100, 202, False),
        (201, 202, False),
        (150, 400, False),  # within the range alone
        (150, math.inf, False),
        (300, math.inf, True),
        (0, 100, True),
    ],
)
def test_candidates_are_about_equal_at_all_sizes_of_a_range(start: int, end: float, equal: bool) -> None:
    sizes = (100, 200, 201, 300)
    curves = (curve("mpi", 1.0, 1.0, 1.0, 1.0, sizes=sizes), curve("shm", 1.0, 1.01, 1.5, 1.0, sizes=sizes))
    compared = Comparison(scale(curves=curves), curves[0].subject)
    assert compared.about_equal("mpi", "shm", start, end) is equal
    assert compared.about_equal("mpi", "mpi", start, end)
    assert not compared.about_equal("mpi", "gloo", start, end)


def test_a_candidate_that_is_as_good_as_both_owners_has_both_ranges() -> None:
    times = {"mpi": (1.0, 1.0, 3.0, 3.0), "shm": (1.01, 1.01, 2.02, 2.02), "gloo": (2.0, 2.0, 2.0, 2.0)}
    curves = tuple(curve(name, *each, sizes=(4, 31, 32, 64)) for name, each in times.items())
    given = scale(curves=curves, winners=(winner((0, "mpi"), (32, "gloo")),))
    assert steady(given, given.winners[0]) == winner((0, "mpi"), (32, "gloo")), "shm owns no range"
    given = scale(curves=curves, winners=(winner((0, "mpi"), (32, "gloo"), (1 << 20, "shm")),))
    assert steady(given, given.winners[0]) == winner((0, "shm"))


@pytest.mark.parametrize("time", [0.001, 0.5, 1.0, 1234.5, 1e9])
def test_costs_are_times(time: float) -> None:
    assert microseconds_of(cost_of(time)) == pytest.approx(time, rel=1e-4)


def test_sizes_of_crossings_are_rounded() -> None:
    table = make(scale(winners=(winner((0, "mpi"), (33051, "gloo")),)))
    lines = printed(lambda console: show(table, console)).splitlines()
    assert [line.split()[1] for line in lines if "gloo" in line and line.startswith("│")] == ["32.3K"]
    other = make(scale(winners=(winner((0, "mpi"), (127320, "gloo")),)))
    rows = [row for row in differences(table, other) if row[1].startswith("winner")]
    assert rows == [("2 ranks, all_reduce, float", "winner 32.3K-124K", "gloo", "mpi")]
    near = make(scale(winners=(winner((0, "mpi"), (50000, "gloo")),)))
    assert differences(table, near) == [], "the crossing has moved by less than an octave"


def test_winners_that_are_about_equal_in_both_tables_are_no_difference() -> None:
    tables = [
        make(scale(curves=(curve("mpi", one), curve("gloo", 2.02 - one)), winners=(winner((0, name)),)))
        for name, one in (("mpi", 1.005), ("gloo", 1.015))
    ]
    assert differences(*tables) == []


def test_show_of_one_operation() -> None:
    text = printed(lambda console: show(two_scales(), console, "barrier"))
    assert "barrier (any" in text
    assert "all_reduce" not in text
    with pytest.raises(
        InvalidArgumentError, match=r"expected one of the table's \(all_reduce, barrier\), got 'reduce'"
    ):
        show(two_scales(), Console(file=io.StringIO()), "reduce")


def test_show_colours_each_candidate_alike() -> None:
    file = io.StringIO()
    show(two_scales(), Console(file=file, width=140, force_terminal=True, color_system="truecolor"))
    codes: dict[str, set[str]] = {}
    for part in file.getvalue().split("\x1b[1;38;2;")[1:]:
        code, _, rest = part.partition("m")
        codes.setdefault(rest.split()[0].split("\x1b")[0], set()).add(code)
    assert set(codes) == {"mpi", "gloo", "mpi:p2p"}
    assert all(len(each) == 1 for each in codes.values())
    assert len(set.union(*codes.values())) == 3


def test_plot_has_a_panel_for_each_operation_and_class() -> None:
    pytest.importorskip("matplotlib")
    curves = (*two_scales().scales[0].curves, curve("mpi", 2.0, 3.0, dtype_class="half"))
    axes = figure_of(make(scale(curves=curves))).axes
    titles = ["all_reduce, float (float32)", "all_reduce, half (float32)", "barrier"]
    assert [each.get_title() for each in axes] == titles
    assert [text.get_text() for text in axes[0].texts] == ["512 → gloo"]
    assert [line.get_ydata()[0] for line in axes[0].lines[:2]] == [1.0, 30.0]


@pytest.mark.parametrize("candidates", [1, 3, 24])
def test_plot_keeps_its_words_inside(candidates: int) -> None:
    """Title and legend are inside the picture and apart, however long the processor's name and many the candidates."""
    curves = tuple(curve(f"library+other:{number}", 1.0 + number, 2.0, 400.0) for number in range(candidates))
    cpu = replace(HOST, cpu="Some(R) Processor(TM) Platinum $x_{$ 9999X 128-Core @ 2.00GHz with a name of many words")
    figure = figure_of(make(scale(curves=curves, winners=()), host=cpu))
    figure.savefig(io.BytesIO(), format="png")  # places everything
    assert figure._suptitle is not None
    boxes = [figure._suptitle.get_window_extent(), figure.legends[0].get_window_extent()]
    boxes.append(figure.axes[0].title.get_window_extent())
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    for above, under in itertools.pairwise(boxes):
        assert above.y0 >= under.y1 - 2  # dots; boxes have a margin
    assert len({line.get_color() for line in figure.legends[0].get_lines()}) == candidates


def test_every_mark_of_a_time_has_its_unit() -> None:
    """Also where all times lie within a decade, so that the marks between powers of ten are named."""
    pytest.importorskip("matplotlib")
    curves = tuple(curve(name, *times) for name, times in {"mpi": (2.1, 2.4), "gloo": (2.3, 2.8)}.items())
    figure = figure_of(make(scale(curves=curves, winners=())))
    axes = figure.axes[0]
    axes.set_ylim(2.0, 3.0)  # the bands are wider
    figure.savefig(io.BytesIO(), format="png")  # names the marks
    marks = [label.get_text() for label in axes.get_yticklabels(which="both")]
    assert any(marks)
    assert all(mark.endswith(" µs") for mark in marks if mark)


def test_plot_writes_the_operations_and_the_scale_that_are_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    whole = two_scales()
    plot(whole, tmp_path / "all.png", scale=whole.scale(ranks=2))
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure_of(whole, ["barrier"], whole.scale(ranks=2)).axes) == 1
    assert len(figure_of(whole).axes) == 1  # the largest scale has no barrier
    for name in ("reduce", "barrier"):
        with pytest.raises(InvalidArgumentError, match=f"got '{name}'"):
            figure_of(whole, [name])


def _printed_diff(a: Table, b: Table) -> str:
    return printed(lambda console: diff.show(a, b, differences(a, b), console))


def test_tables_that_are_equal_have_no_differences() -> None:
    assert _printed_diff(two_scales(), two_scales()) == "no differences\n"
    assert differences(two_scales(), two_scales()) == []


def test_differences_of_tables() -> None:
    fast = (curve("mpi", 1.1, 2.0, 300.0), curve("ucc", 9.0, 50.0, 200.0))
    other = make(
        scale(curves=fast, winners=(winner((0, "mpi"), (1024, "ucc")),)),
        scale(8),
        host=replace(HOST, cores=4),
        software=replace(SOFTWARE, torch="2.14.0"),
    )
    text = _printed_diff(make(scale(excluded=(Exclusion("send", "bool", "gloo", "hung"),))), other)
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[0] == "│"]
    assert rows == [
        ["table", "host.cores", "2", "4"],
        ["table", "software.torch", "2.13.0", "2.14.0"],
        ["table", "scale 8 ranks", "-", "yes"],
        ["2 ranks, all_reduce, float", "winner 512-1K", "gloo", "mpi"],
        ["2 ranks, all_reduce, float", "winner 1K-inf", "gloo", "ucc"],
        ["2 ranks, all_reduce, float", "curve of gloo", "yes", "-"],
        ["2 ranks, all_reduce, float", "curve of ucc", "-", "yes"],
        ["2 ranks, all_reduce, float", "median of mpi: 1 of 3 sizes, most at 1K", "400 µs", "300 µs (x0.75)"],
        ["2 ranks", "excluded: gloo from send (bool)", "yes", "-"],
    ]
    assert text.startswith("9 differences")


def test_edited_winners_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All views have the winners that programs compute from the curves, and say that the table was edited."""
    measured, edited = str(tmp_path / "measured.json"), tmp_path / "edited.json"
    files.write(make(), measured)
    document = json.loads(Path(measured).read_text())
    gloo = {"operation": "all_reduce", "dtype_class": "float", "ranges": [{"from": 0, "candidate": "gloo"}]}
    for winners in ([], [gloo]):
        document["scales"][0]["winners"] = winners
        edited.write_text(json.dumps(document))
        assert main(["show", "--table", measured, "all_reduce"]) == 0
        wanted, error = capsys.readouterr()
        assert error == ""
        assert main(["show", "--table", str(edited), "all_reduce"]) == 0
        shown, error = capsys.readouterr()
        assert shown.splitlines()[-5:] == wanted.splitlines()[-5:]
        assert re.search(r"edited\.json: checksum: .*; winners are computed from the curves", error)
        assert len(error.splitlines()) == 1
        assert main(["diff", str(edited), measured]) == 0
        assert "edited.json: checksum: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("", ""),
        ("none", "mcr-tune: MCR_DL_TUNING_TABLE is none: programs use no table\n"),
        ("t.json", "mcr-tune: MCR_DL_TUNING_TABLE names t.json, which programs use; --table t.json shows it\n"),
    ],
)
def test_the_table_that_programs_use(
    named: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """show without --table shows this machine's, and says if the environment names another one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MCR_DL_TUNING_TABLE", named)
    own = files.default_path(host())
    files.write(make(), own)
    assert main(["show"]) == 0
    assert capsys.readouterr().err == words
    assert main(["show", "--table", str(own)]) == 0
    assert capsys.readouterr().err == ""


def test_show_of_an_empty_table() -> None:
    with pytest.raises(InvalidArgumentError, match="operation: the table has no measurements: make them with mcr-tune"):
        show(Table(TIME, HOST, SOFTWARE), Console(file=io.StringIO()), "reduce")


@pytest.mark.parametrize(
    ("measured", "others", "missing"),
    [
        (scale(4, 2), [], True),
        (scale(4, 2), [scale(8, 4)], True),
        (scale(4, 2), [scale(2, 1)], False),
        (scale(4, 2), [scale(2, 1, quick=True)], True),
        (scale(4, 2), [scale(2, 1, device="cuda")], True),
        (scale(4, 4), [], False),
        (scale(4, 1), [], False),
    ],
)
def test_a_summary_of_several_hosts(
    capsys: pytest.CaptureFixture[str], measured: Scale, others: list[Scale], missing: bool
) -> None:
    """It says that groups within a host use measurements of one host, if the table has none."""
    tune_cli._summary(make(measured, *others), measured, Path("table.json"), 3.0, 0)
    text = " ".join(capsys.readouterr().out.split())
    assert ("run mcr-tune on 2 ranks of one host, too" in text) == missing, text
