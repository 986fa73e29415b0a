# SPDX-License-Identifier: Apache-2.0
"""Names of candidates: the canonical spelling and older ones, wherever a name is read."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcr_dl import _C, InvalidArgumentError
from mcr_dl.bench.mix import Part, parse_mix
from mcr_dl.commands import arguments
from mcr_dl.libraries import registry
from mcr_dl.runtime import topologies
from mcr_dl.tables import rules, table
from mcr_dl.tables.model import Exclusion, Table, content
from mcr_dl.tuning._journal import Journal, Plan, Unit
from tables import HOST, SOFTWARE, curve, make, scale, winner

# Name, its canonical spelling, backend, variant, codec.
SPELLINGS = [
    ("mpi", "mpi", "mpi", "", ""),
    ("mpi:p2p", "mpi:p2p", "mpi", "p2p", ""),
    ("mpi|bf16", "mpi|bf16", "mpi", "", "bf16"),
    ("mpi:p2p|int8:block=64", "mpi:p2p|int8:block=64", "mpi", "p2p", "int8:block=64"),
    ("gloo+mpi", "stripe(gloo,mpi)", "stripe(gloo,mpi)", "", ""),
    ("gloo+mpi:67", "stripe(gloo,mpi,67)", "stripe(gloo,mpi)", "67", ""),
    ("gloo+mpi|bf16", "stripe(gloo,mpi)|bf16", "stripe(gloo,mpi)", "", "bf16"),
    ("stripe(gloo,mpi)", "stripe(gloo,mpi)", "stripe(gloo,mpi)", "", ""),
    (" stripe( gloo, mpi, 67 ) ", "stripe(gloo,mpi,67)", "stripe(gloo,mpi)", "67", ""),
    ("stripe(gloo,mpi,67)|bf16", "stripe(gloo,mpi,67)|bf16", "stripe(gloo,mpi)", "67", "bf16"),
]


@pytest.mark.parametrize(("name", "spelling", "backend", "variant", "codec"), SPELLINGS)
def test_spellings(name: str, spelling: str, backend: str, variant: str, codec: str) -> None:
    """The parts of a name."""
    found = _C.CandidateName(name)
    assert (str(found), found.backend, found.variant, found.codec) == (spelling, backend, variant, codec)
    assert found.name == spelling.partition("|")[0]
    assert found.parts == (["gloo", "mpi"] if "stripe" in backend else [])
    assert _C.canonical(name) == _C.canonical(spelling) == spelling
    assert registry.is_known(name) == (not variant and not codec)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "strip(gloo,mpi)",
        "stripe(gloo,mpi",
        "gloo+gloo",
        "gloo+mpi:100",
        "\ud800(",
        pytest.param("hier(" * 100_000 + "a" + ",a)" * 100_000, id="deep"),
    ],
)
def test_wrong_spellings(name: str) -> None:
    """They are an error, and not a backend's name."""
    with pytest.raises(InvalidArgumentError, match=r"expected .*, got"):
        _C.CandidateName(name)
    assert not registry.is_known(name)
    if name.isascii():
        assert _C.canonical(name) == name


def test_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commas in parentheses do not separate; the error names the wrong part, with the variable that it comes from."""
    wanted = ["mpi", "gloo", "stripe(gloo,mpi)"]
    for text in ("mpi,gloo,stripe(gloo,mpi)", "mpi, gloo ,Stripe(gloo, mpi)", "cpu:mpi,gloo,gloo+mpi,stripe(gloo,mpi)"):
        assert registry.parse_for_group(text) == wanted
        monkeypatch.setenv("MCR_DL_BACKENDS", text)
        assert registry.parse_for_group(None) == wanted
    assert _C.split_names("a,stripe(b,c,67)|zfp:rate=8") == ["a", "stripe(b,c,67)|zfp:rate=8"]
    for text, message in (
        ("mpi,gloo,stripe(gloo,mpi", r"MCR_DL_BACKENDS: expected '\)' at the end, got 'stripe\(gloo,mpi'"),
        ("mpi,gloo,stripe(gloo,mip)", r"MCR_DL_BACKENDS: .* unknown name 'mip' in 'stripe\(gloo,mip\)'"),
        ("mpi,gloo,stripe(gloo,mpi,67)", r"expected a backend, .* stripe\(gloo,mpi\), got 'stripe\(gloo,mpi,67\)'"),
        ("mpi|bf16", "expected a backend, .* mpi, got 'mpi|bf16'"),
        ("tpu:mpi", "expected 'cpu:<name>' or 'cuda:<name>', got 'tpu:mpi'"),
        ("stripe(gloo,mpi)", "MCR_DL_BACKENDS: .* cuts messages over two of the group's: expected 'gloo' before it"),
    ):
        monkeypatch.setenv("MCR_DL_BACKENDS", text)
        with pytest.raises(InvalidArgumentError, match=message):
            registry.parse_for_group(None)


def test_libraries_of_dimensions() -> None:
    """They take host memory: an error of the name, before anything is loaded."""
    for name in ("hier(nccl,gloo)", "hier(shm,gloo,nccl)", "themis(nccl,gloo)"):
        with pytest.raises(InvalidArgumentError, match="expected libraries of the host, got 'nccl'"):
            registry.load(name)


def test_libraries_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job starts them before the hierarchies that they are a part of; other groups have them from the job."""
    for text in ("gloo,hier(mpi,gloo),mpi", "gloo,themis(mpi,gloo)"):
        monkeypatch.setenv("MCR_DL_BACKENDS", text)
        for given, source in ((text, "backend"), (None, "MCR_DL_BACKENDS")):
            message = f"{source}: .* starts on all ranks of the job: expected 'mpi' before it, got"
            with pytest.raises(InvalidArgumentError, match=message):
                registry.parse_for_job(given)
        assert registry.parse_for_group(text) == _C.split_names(text)
    for name in ("hier(mpi,gloo)", "themis(mpi,gloo)"):
        assert registry.with_needed([name]) == ["gloo", "mpi", name]
        assert registry.parse_for_job(["gloo", "mpi", name]) == ["gloo", "mpi", name]


def test_arguments() -> None:
    """--backends of the commands, and --mix."""
    given = "all,mpi:p2p,gloo+mpi:67,stripe(gloo,mpi,67),stripe(gloo,mpi)"
    assert arguments.candidate_names(given) == ("all", "mpi:p2p", "stripe(gloo,mpi,67)", "stripe(gloo,mpi)")
    for text, message in (
        ("stripe(gloo,mip)", "'mip' in"),
        ("stripe(gloo)", "two backends"),
        ("mpi|bf16", "without a codec"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            arguments.candidate_names(text)
    striped = Part("all_reduce", 1 << 20, "stripe(gloo,mpi,67)")
    assert parse_mix("all_reduce:1M@stripe(gloo,mpi,67)+barrier:1@mpi") == (striped, Part("barrier", 1, "mpi"))
    with pytest.raises(InvalidArgumentError, match=r"expected a share of 1 to 99 percent, .*character 15"):
        parse_mix("all_reduce:1M@stripe(gloo,mpi,0)")


def test_rules() -> None:
    """Either spelling; an error points at the candidate."""
    backends = ["gloo", "mpi", "stripe(gloo,mpi)"]
    for name in ("gloo+mpi:67", "stripe(gloo,mpi,67)"):
        (rule,) = rules.parse(f"all_reduce:0-64k:{name}", backends)
        assert rule.candidate == "stripe(gloo,mpi,67)"
    for name, message in (
        ("stripe(gloo,mpi,0)", "character 14: expected a share"),
        ("stripe(mpi,gloo)", "one of the backends in use"),
        ("mpi|bf16", "without a codec"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            rules.parse(f"all_reduce:*:{name}#barrier:*:mpi", backends)


def test_dimensions() -> None:
    """A topology names the backend of a dimension."""
    backends = ["gloo", "mpi", "stripe(gloo,mpi)"]
    for name in ("gloo+mpi", "stripe(gloo,mpi)"):
        document = {"dimensions": [{"name": "rail", "size": 2, "backend": name}]}
        topologies.check_backends(document, lambda _: backends)
        grid = topologies.grid_of(document, 2)
        assert grid is not None
        assert grid.dimensions[0][-1] == "stripe(gloo,mpi)"
    with pytest.raises(InvalidArgumentError, match="expected one of gloo, mpi, stripe"):
        topologies.check_backends({"dimensions": [{"name": "a", "backend": "mpi+gloo"}]}, lambda _: backends)


# ---- stored names

OLD, NEW = ("gloo+mpi", "gloo+mpi:67"), ("stripe(gloo,mpi)", "stripe(gloo,mpi,67)")


def _table(striped: tuple[str, str]) -> Table:
    whole, share = striped
    software = replace(SOFTWARE, backends={**SOFTWARE.backends, whole: "messages cut over gloo and mpi"})
    curves = (curve("mpi", 1, 10), curve(whole, 2, 5), curve(share, 3, 4))
    out = (Exclusion("barrier", "float32", share, "no progress for 30 s"),)
    parts = {"curves": curves, "winners": (winner((0, "mpi"), (40, share)),), "excluded": out}
    return replace(make(scale(2, **parts)), software=software)


def _save_as_is(made: Table, path: Path) -> None:
    path.write_text(json.dumps({**content(made), "checksum": made.digest}))


def test_a_table_of_an_older_version(tmp_path: Path) -> None:
    """It is read with current names, does not count as edited, and is written with them."""
    path = tmp_path / "t.json"
    _save_as_is(_table(OLD), path)
    old = path.read_text()
    assert OLD[1] in old
    found = table.read(path)
    assert found == _table(NEW)
    assert not [line for line in table.check(found, HOST) if "checksum" in line]
    table.write(found, path)
    assert "gloo+mpi" not in path.read_text()
    assert table.read(path).checksum == found.checksum != json.loads(old)["checksum"]
    path.write_text(old.replace('"n": 20', '"n": 21'))
    assert [line for line in table.check(table.read(path), HOST) if "checksum" in line]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stripe(gloo,mpi)", r"got a second one"),
        ("stripe(gloo,gloo)", r"curves\[0\].candidate: expected two different backends"),
        ("gloo+mpi:00", r"curves\[0\].candidate: expected a share of 1 to 99"),
        ("stripe(gloo)", r"curves\[0\].candidate: expected two backends, as stripe\(gloo,mpi\)"),
        ("gloo mpi", r"curves\[0\].candidate: expected a text like"),
    ],
)
def test_wrong_names_in_a_table(tmp_path: Path, name: str, message: str) -> None:
    """One candidate in two spellings, and names that no spelling allows."""
    _save_as_is(_table(OLD), tmp_path / "t.json")
    document = json.loads((tmp_path / "t.json").read_text())
    document["scales"][0]["curves"][0]["candidate"] = name
    (tmp_path / "t.json").write_text(json.dumps(document))
    with pytest.raises(InvalidArgumentError, match=message):
        table.read(tmp_path / "t.json")


def test_a_journal_is_of_one_run(tmp_path: Path) -> None:
    """While a run holds its journal, a second run gets an error and changes nothing."""
    plan = Plan(2, ("gloo", "mpi"), (Unit("all_reduce", "float32", (65536,)),), 1.0, 0.025)
    first, second = Journal(tmp_path / "journal"), Journal(tmp_path / "journal")
    second.take(create=False)
    assert not second.path.exists()
    first.take(create=True)
    first.begin(plan)
    for create in (False, True):
        with pytest.raises(InvalidArgumentError, match="another mcr-tune"):
            second.take(create=create)
    assert len(first.path.read_text().splitlines()) == 1
    del first
    second.take(create=False)


def test_two_threads_add_to_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both lines are there."""
    journal, written = Journal(tmp_path / "journal"), json.dumps
    journal.begin(Plan(2, ("gloo", "mpi"), (Unit("all_reduce", "float32", (65536,)),), 1.0, 0.025))
    other = threading.Thread(target=journal.add, args=("interrupted",))

    def slow(event: dict[str, Any]) -> str:
        if event["event"] == "refused":
            other.start()
            other.join(0.2)
        return written(event)

    monkeypatch.setattr(json, "dumps", slow)
    journal.add("refused", reason="the other thread comes now")
    other.join()
    assert [each["event"] for each in journal.news()] == ["refused", "interrupted"]
