# SPDX-License-Identifier: Apache-2.0
"""Tuning tables: written tables can be read, and errors and doubts are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcr_dl import _C, InvalidArgumentError
from mcr_dl.tables import _schema, table
from mcr_dl.tables import host as hosts
from mcr_dl.tables.earlier import completed
from mcr_dl.tables.model import Curve, Exclusion, Range, Sample, Scale, Subject, Table, Winner
from tables import HOST, SOFTWARE, TIME, curve, make, scale, winner

DTYPE_CLASSES = _schema.schema()["$defs"]["dtype_class"]["enum"]


def edited(path: Path, change: Callable[[Any], Any]) -> Path:
    """A table's file after a change of its JSON document."""
    table.write(make(scale(excluded=(Exclusion("all_reduce", "bool", "gloo", "wrong result"),))), path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


# ---- files


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    wanted = make(scale(2), scale(4, 2, excluded=(Exclusion("reduce", "int64", "mpi:p2p", "hung"),)))
    path = tmp_path / "new" / "folder" / "table.json"
    table.write(wanted, path)
    got = table.read(path)
    assert got == wanted
    assert (got.source, got.checksum) == (str(path), wanted.digest)
    assert [each.name for each in path.parent.iterdir()] == ["table.json"]  # no temporary file is left


@st.composite
def scales(draw: st.DrawFn) -> Scale:
    time = st.floats(0.01, 1e9)
    sizes = st.lists(st.integers(0, 2**40), min_size=1, max_size=5, unique=True).map(sorted)
    candidates = st.sampled_from(["mpi", "mpi:p2p", "gloo", "nccl:tree-ll128"])
    subjects = st.builds(Subject, st.sampled_from(_C.operations()), st.sampled_from(DTYPE_CLASSES), st.booleans())
    curves, winners = [], []
    for operation, dtype_class, async_op in draw(st.lists(subjects, max_size=3, unique=True)):
        for candidate in draw(st.lists(candidates, max_size=3, unique=True)):
            samples = [
                Sample(size, draw(st.integers(1, 999)), *draw(st.tuples(time, time, time))) for size in draw(sizes)
            ]
            curves.append(Curve(operation, dtype_class, "float32", candidate, tuple(samples), async_op=async_op))
        ranges = tuple(Range(start, draw(candidates)) for start in sorted({0, *draw(sizes)}))
        winners.append(Winner(operation, dtype_class, ranges, async_op))
    exclusions = st.builds(Exclusion, st.just("send"), st.just("bool"), candidates, st.text(), async_op=st.booleans())
    excluded = draw(st.lists(exclusions, max_size=2))
    device = draw(st.sampled_from(["cpu", "cuda"]))
    tried = tuple(curves) if draw(st.booleans()) else ()
    parts = {"curves": tuple(curves), "winners": tuple(winners), "excluded": tuple(excluded), "trials": tried}
    return Scale(draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(1, 9)), device, TIME, **parts)


tables = st.builds(
    make,
    scales=st.lists(scales(), max_size=3, unique_by=lambda each: each.key).map(tuple),
    settings=st.dictionaries(st.text(), st.one_of(st.booleans(), st.text(), st.integers(), st.floats(-1, 1))),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=tables)
def test_any_table_survives_its_file(tmp_path: Path, wanted: Table) -> None:
    table.write(wanted, tmp_path / "table.json")
    got = table.read(tmp_path / "table.json")
    assert got == wanted
    assert table.check(got, HOST, SOFTWARE) == []


def test_whole_numbers_are_times_too(tmp_path: Path) -> None:
    """4 and 4.0 are equal times: a table with either has one digest, and does not count as edited."""
    whole = replace(curve("mpi", 1.0), samples=(Sample(4, 20, 3, 4, 5),))
    wanted = make(scale(curves=(whole,)))
    table.write(wanted, tmp_path / "table.json")
    assert table.check(table.read(tmp_path / "table.json"), HOST) == []


def test_the_digest_is_of_the_content() -> None:
    assert make().digest == replace(make(), source="elsewhere", checksum="0" * 64).digest
    assert make().digest != make(scale(4)).digest


def test_the_schema_is_closed_and_describes_every_key() -> None:
    schema = _schema.schema()
    Draft202012Validator.check_schema(schema)
    for name, part in {"the table": schema, **schema["$defs"]}.items():
        if "properties" not in part:
            continue
        assert part["additionalProperties"] is False, name
        assert set(part["required"]) == set(part["properties"]) - {"codec", "quick", "async_op", "trials"}, name
        for key, value in part["properties"].items():
            target = schema["$defs"][value["$ref"].split("/")[-1]] if "$ref" in value else {}
            assert value.get("description", target.get("description")), f"{name}.{key}"


def test_the_checkouts_schema_is_the_installed_one() -> None:
    checkout = Path(__file__).parent.parent / "tuning" / "schema.json"
    assert json.loads(checkout.read_text()) == _schema.schema(), "run make build"


def test_the_default_place_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert table.default_path(HOST) == tmp_path / "mcr_dl" / "tuning" / "0123456789abcdef.json"


# ---- files that are wrong


def error_of(path: Path) -> str:
    """The text of the error of reading a file: one line that names the file."""
    with pytest.raises(InvalidArgumentError) as caught:
        table.read(path)
    text = str(caught.value)
    assert text.startswith(f"tuning table {path}: ")
    assert "\n" not in text
    return text.removeprefix(f"tuning table {path}: ")


def test_a_missing_file(tmp_path: Path) -> None:
    assert "expected a file, got no such file; name another, or make it with mcr-tune" in error_of(tmp_path / "none")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert error_of(tmp_path) == "expected a file, got a folder; name a file in it, or make it with mcr-tune"
    assert error_of(Path("/dev/null")) == (
        "expected a regular file, got a device, socket or pipe; name another, or make it with mcr-tune"
    )
    (tmp_path / "binary").write_bytes(b"\xff\xfe{}")
    assert "expected JSON in UTF-8" in error_of(tmp_path / "binary")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_truncated_file(tmp_path: Path, share: float) -> None:
    path = tmp_path / "table.json"
    table.write(make(), path)
    text = path.read_text()
    text = text[: int(len(text) * share)]
    path.write_text(text)
    message = error_of(path)
    assert "got the end of the file (truncated); measure again with mcr-tune" in message
    line = int(message.removeprefix("line ").split(":")[0])
    assert len(text.splitlines()) - 1 <= line <= len(text.splitlines())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected a complete JSON document, got the end of the file (truncated)"),
        ('{\n"a": 1,,\n}', "line 2: expected a complete JSON document, got "),
        ("[1, 2]", "format: expected 'mcr-dl tuning table', got a list; this is not a tuning table"),
        ('{"format": "other"}', "format: expected 'mcr-dl tuning table', got 'other'"),
        ('{"a": 1, "a": 2}', "expected each key once, got 'a' twice in an object; correct it or measure again"),
        ('{"a": NaN}', "expected a finite number, got NaN; correct it or measure again"),
        ('{"a": 1e999}', "expected a finite number, got 1e999; correct it or measure again"),
    ],
)
def test_a_file_that_is_no_table(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    assert message in error_of(path)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (0, "version: expected 1, got 0; measure again with mcr-tune"),
        (2, "version: expected 1, got 2; update mcr_dl, or measure again with mcr-tune"),
        ("1", 'version: expected 1, got "1"; measure again with mcr-tune'),
    ],
)
def test_a_table_of_another_version(tmp_path: Path, version: Any, message: str) -> None:
    """Whatever else it contains: a table of another version may look completely different."""
    path = edited(tmp_path / "table.json", lambda document: document.update(version=version, surprise={}))
    assert error_of(path) == message


def _at(*path: Any) -> Callable[[Any], Any]:
    """Set a value of a document: the keys and indices that lead to it, then the value."""

    def change(document: Any) -> None:
        *way, last, value = path
        for step in way:
            document = document[step]
        document[last] = value

    return change


def _samples(document: Any) -> Any:
    return document["scales"][0]["curves"][0]["samples"]


VIOLATIONS: list[tuple[Callable[[Any], Any], str]] = [
    (_at("scales", 0, "ranks", 0), "scales[0].ranks: expected a number of at least 1 (ranks of the group), got 0"),
    (
        _at("scales", 0, "curves", 0, "samples", 1, "median_us", "fast"),
        'scales[0].curves[0].samples[1].median_us: expected a number (median time in microseconds), got "fast"',
    ),
    (_at("scales", 0, "curves", 0, "samples", 1, "min_us", -1), "samples[1].min_us: expected a number above 0 ("),
    (
        _at("scales", 0, "curves", 1, "dtype_class", "float32"),
        "scales[0].curves[1].dtype_class: expected one of ['any', 'half', 'float', 'integer', 'complex']",
    ),
    (_at("scales", 0, "winners", 0, "ranges", 0, "candidate", "m p i"), "ranges[0].candidate: expected a text like "),
    (
        _at("scales", 0, "excluded", 0, "candidate", "hier(" * 10_000 + "a" + ",a)" * 10_000),
        "excluded[0].candidate: expected a text of at most 1000 characters (",
    ),
    (_at("scales", 0, "winners", 0, "ranges", []), "winners[0].ranges: expected at least 1 entry ("),
    (_at("host", "speed", 3), "host: expected only the keys fingerprint, cpu, cores,"),
    (_at("settings", "sizes", [1]), "settings.sizes: expected a number or a text or true or false ("),
    (_at("created", "yesterday"), "created: expected a text like "),
    (
        lambda document: document["host"].pop("cpu"),
        "host: expected the key 'cpu' (the machine that was measured), got none",
    ),
    (lambda document: document.pop("checksum"), "the document: expected the key 'checksum'"),
    (lambda document: _samples(document).reverse(), "samples[1].bytes: expected more than 1024 (ascending), got 64"),
    (
        lambda document: document["scales"][0]["curves"].append(document["scales"][0]["curves"][0]),
        "curves[2]: expected one entry for all_reduce, float, mpi, got a second one in addition to scales[0].curves[0]",
    ),
    (
        lambda document: document["scales"].append(document["scales"][0]),
        "scales[1]: expected one entry for cpu, 2, 1, 2, got a second one in addition to scales[0]",
    ),
    (
        lambda document: document["scales"][0].update(
            trials=[{**document["scales"][0]["curves"][0], "dtype": "float31"}]
        ),
        "scales[0].trials[0].dtype: expected one of ",
    ),
    (_at("scales", 0, "winners", 0, "ranges", 0, "from", 4), "winners[0].ranges[0].from: expected 0, got 4"),
    (_at("scales", 0, "winners", 0, "ranges", 1, "from", 0), "ranges[1].from: expected more than 0 (ascending), got 0"),
]


@pytest.mark.parametrize(("change", "message"), VIOLATIONS)
def test_a_table_that_was_edited_badly(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    text = error_of(edited(tmp_path / "table.json", change))
    assert message in text
    assert text.endswith("; correct it or measure again with mcr-tune")


def _ways(value: Any) -> list[tuple[Any, ...]]:
    """All keys and indices that lead to a value inside a document."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way for step, part in steps for way in [(step,), *((step, *rest) for rest in _ways(part))]]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_edit_is_an_error_that_names_the_file_or_a_table(tmp_path: Path, data: st.DataObject) -> None:
    path = edited(tmp_path / "table.json", lambda _: None)
    document = json.loads(path.read_text())
    _at(*data.draw(st.sampled_from(_ways(document))), data.draw(json_values))(document)
    path.write_text(json.dumps(document))
    message = ""
    try:
        table.check(table.read(path), HOST, SOFTWARE)
    except InvalidArgumentError as error:
        message = str(error)
    assert not message or message.startswith(f"tuning table {path}: ")
    assert "\n" not in message


@pytest.mark.parametrize("time", [0.0, float("nan"), float("inf")])
def test_a_wrong_table_is_not_written(tmp_path: Path, time: float) -> None:
    path = tmp_path / "table.json"
    table.write(make(), path)
    before = path.read_text()
    with pytest.raises(InvalidArgumentError, match=r"expected a number above 0|expected finite numbers"):
        table.write(make(scale(curves=(curve("mpi", time),))), path)
    assert path.read_text() == before


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"table.json: cannot be written: .*; name another file"):
        table.write(make(), tmp_path / "file" / "table.json")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable that sets another one."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"cannot be written: .*; XDG_CACHE_HOME sets another folder for it"):
        table.write(make(), table.default_path(HOST))


# ---- doubts


def test_an_edited_table_is_doubtful(tmp_path: Path) -> None:
    path = edited(tmp_path / "table.json", _at("scales", 0, "curves", 0, "samples", 0, "median_us", 1.5))
    (problem,) = table.check(table.read(path), HOST, SOFTWARE)
    assert str(path) in problem
    assert ": edited after it was measured; winners are computed from the curves" in problem


def test_a_table_in_another_layout_is_not_doubtful(tmp_path: Path) -> None:
    assert table.check(table.read(edited(tmp_path / "table.json", lambda _: None)), HOST, SOFTWARE) == []


def test_a_foreign_table_is_doubtful() -> None:
    (problem,) = table.check(make(), replace(HOST, fingerprint="f" * 16, cores=64))
    assert "host.fingerprint: expected ffffffffffffffff (A CPU, 64 cores), got 0123456789abcdef (A CPU, 2" in problem


def test_other_versions_are_doubtful() -> None:
    running = replace(SOFTWARE, torch="2.14.0", backends={"mpi": "Open MPI 5.0.11", "ucc": "1.5"})
    problems = table.check(make(), HOST, running)
    assert len(problems) == 2
    assert "software.torch: expected the running 2.14.0, got 2.13.0; measure again" in problems[0]
    assert "software.backends.mpi: expected the running Open MPI 5.0.11, got MPICH 5.0.2" in problems[1]


def test_an_operation_that_there_is_not_is_doubtful() -> None:
    odd = make(scale(winners=(winner((0, "mpi"), operation="all_redcue"),)))
    (problem,) = table.check(odd, HOST)
    assert "scales[0].winners[0].operation: expected one of broadcast, " in problem
    assert "got 'all_redcue'" in problem


# ---- values


def test_merging_replaces_the_scale_or_adds_it() -> None:
    two, four, spread = scale(2), scale(4), scale(4, nodes=2)
    newer = replace(four, measured="2026-04-01T00:00:00Z", curves=())
    whole = table.merge(table.merge(make(four), spread), two)
    assert whole.scales == (two, four, spread)
    assert table.merge(whole, newer).scales == (two, newer, spread)
    assert table.merge(whole, replace(two, device="cuda")).scales == (two, four, spread, replace(two, device="cuda"))


def test_a_part_measured_again_leaves_the_rest() -> None:
    """Curves, sizes, exclusions and trials that the new measurement does not have."""
    trial = curve("mpi", 7, operation="reduce")
    earlier = scale(
        curves=(curve("mpi", 1, 2, 3), curve("gloo", 4, 5, 6), curve("mpi", 9, operation="barrier")),
        excluded=(Exclusion("all_reduce", "float32", "shm", "crashed"), Exclusion("barrier", "float32", "shm", "late")),
        trials=(trial, curve("gloo", 8)),
    )
    shorter = replace(curve("gloo", 0.5), samples=earlier.curves[1].samples[1:2])
    new = scale(curves=(shorter, curve("shm", 0.1)), excluded=(Exclusion("all_reduce", "float32", "mpi", "x"),))
    joined = completed(new, earlier)
    assert {each.label: len(each.samples) for each in joined.curves_of(shorter.subject)} == {"gloo": 3, "shm": 1}
    assert [(each.operation, each.candidate) for each in joined.curves if each.operation == "barrier"] == [
        ("barrier", "mpi")
    ]
    assert [(each.operation, each.candidate) for each in joined.excluded] == [("barrier", "shm"), ("all_reduce", "mpi")]
    assert joined.trials == (trial,)
    assert {each.operation for each in joined.winners} == {"all_reduce", "barrier"}
    quick = replace(earlier, quick=True)
    for each in completed(new, quick).curves:
        if each.operation == "barrier":
            assert all(sample.median_us == sample.min_us for sample in each.samples)


def test_a_part_of_another_type_leaves_exclusions() -> None:
    """A candidate that hangs with one type is left out for all, until that type is measured again."""
    gone = Exclusion("all_reduce", "bfloat16", "mpi", "no progress for 30 s")
    data = Exclusion("broadcast", "bfloat16", "mpi", "signal 11")  # which has one class of types
    earlier = scale(curves=(curve("gloo", 1),), excluded=(gone, data))
    again = scale(curves=(curve("gloo", 2), curve("mpi", 1), curve("mpi", 1, operation="broadcast", dtype_class="any")))
    joined = completed(again, earlier)
    assert joined.excluded == (gone,)
    assert {(each.operation, each.candidate) for each in joined.curves} == {
        ("all_reduce", "gloo"),
        ("broadcast", "mpi"),
    }


def test_a_winner_knows_its_ranges() -> None:
    won = winner((0, "mpi"), (512, "gloo"), (4096, "mpi:p2p"))
    assert [won.at(size) for size in (0, 511, 512, 4095, 4096, 1 << 40)] == ["mpi", "mpi", "gloo", "gloo"] + [
        "mpi:p2p"
    ] * 2


def test_the_scale_that_is_asked_for() -> None:
    whole = make(scale(2), scale(4), scale(4, nodes=2), scale(2, device="cuda"))
    assert whole.scale() == scale(4, nodes=2)
    with pytest.raises(
        InvalidArgumentError, match=r"\(2 ranks; 4 ranks; 4 ranks \(2x2\); 2 ranks, cuda\), got ranks 3"
    ):
        whole.scale(ranks=3)


def test_the_fingerprint_is_of_what_decides_about_speed() -> None:
    base = hosts.fingerprint("cpu", 2, "Linux x86_64", ("A", "B"))
    assert base == hosts.fingerprint("cpu", 2, "Linux x86_64", ("B", "A"))
    others = [
        hosts.fingerprint("other", 2, "Linux x86_64", ("A", "B")),
        hosts.fingerprint("cpu", 4, "Linux x86_64", ("A", "B")),
        hosts.fingerprint("cpu", 2, "Linux aarch64", ("A", "B")),
        hosts.fingerprint("cpu", 2, "Linux x86_64", ("A",)),
    ]
    assert len({base, *others}) == 5


def test_the_host_is_described() -> None:
    here = hosts.host()
    assert here.cpu
    assert here.cores >= 1
    assert here.fingerprint == hosts.fingerprint(here.cpu, here.cores, here.system, here.accelerators)


def test_accelerators_are_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, model in enumerate(["NVIDIA Z", "NVIDIA A"]):
        (tmp_path / f"0000:0{index}:00.0").mkdir()
        (tmp_path / f"0000:0{index}:00.0" / "information").write_text(f"Model: \t\t {model}\nIRQ:   42\n")
    monkeypatch.setattr(hosts, "_NVIDIA", tmp_path)
    assert hosts.host.__wrapped__().accelerators == ("NVIDIA A", "NVIDIA Z")


def test_versions_are_of_usable_backends() -> None:
    status = {"mpi": "ok: MPICH 5.0.2", "nccl": "unavailable: no CUDA device"}
    assert hosts.software(status).backends == {"mpi": "MPICH 5.0.2"}
