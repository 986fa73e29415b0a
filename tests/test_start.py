# SPDX-License-Identifier: Apache-2.0
"""Which backends a job starts, equally on all ranks; valid environments and arguments of the start."""

from __future__ import annotations

import builtins
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch.distributed as torch_dist

import generated_pages
import jobs
import mcr_dl
from harness import launchers
from mcr_dl import InvalidArgumentError, InvalidTypeError
from mcr_dl.base import errors, launcher, variables
from mcr_dl.libraries.registry import parse_backends
from mcr_dl.measure.ranks import environments
from mcr_dl.runtime import attempts, startup, state
from mcr_dl.testing.nursery import Child, Nursery
from mcr_dl.watch._watch import Watch

ROOT = launchers.TESTS.parent
sizes = pytest.mark.parametrize("size", [2, 3])


def start(nursery: Nursery, arguments: list[str], size: int, **variables: str) -> list[Child]:
    """The ranks of a job, after they have ended without an error."""
    ranks = nursery.ranks(jobs.PROGRAMS / "starts.py", arguments, size, **variables)
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0)
    return ranks


def test_some_ranks_alone_do_not_connect() -> None:
    """All ranks of a group raise if one comes too late: a library would wait for it, and let no other call in."""
    store, limit = torch_dist.HashStore(), timedelta(seconds=1)

    def meet(rank: int) -> str:
        group: Any = SimpleNamespace(
            rank=lambda: rank, size=lambda: 3, ranks=[4, 5, 6], timeout=limit, name=lambda: "a", _label="a"
        )
        with pytest.raises(mcr_dl.CollectiveTimeoutError) as caught:
            attempts.Attempt(group).meet("make")
        return str(caught.value)

    current: Any = SimpleNamespace(store=store, count=lambda *_: 0)
    with mock.patch.object(state, "current", return_value=current), ThreadPoolExecutor(2) as pool:
        found = [*pool.map(meet, (0, 1)), meet(2)]
    assert set(found) == {"group 'a': connecting timed out: rank 6 did not come within 1 s"}


# ---- which backends start


@sizes
def test_without_a_name_the_real_libraries_start(nursery: Nursery, size: int) -> None:
    """Not the backends that other packages have registered with torch, which may not even start."""
    ranks = start(nursery, ["plugged_in"], size)
    assert [rank.text.count("STARTED shm mpi gloo\n") for rank in ranks] == [4] * size, ranks[0].text


LEFT_OUT = "; it is left out (MCR_DL_BACKENDS names the backends to start)"


@sizes
def test_a_backend_of_one_host_in_a_job_of_several(nursery: Nursery, size: int) -> None:
    """Left out without a word where no program names it, as that is normal; else an error on all ranks."""
    for rank in start(nursery, ["elsewhere", "1"], size):
        assert "STARTED mpi gloo\n" in rank.text, rank.text
        assert "shm" not in rank.text, rank.text


@sizes
@pytest.mark.parametrize("named", [[], ["mpi", "gloo"]])
def test_a_library_that_cannot_start_here(nursery: Nursery, named: list[str], size: int) -> None:
    """It exists on one rank: left out on all with a warning, but an error on all if it was named."""
    for rank in start(nursery, ["loaded", "1", str(launchers.openmpi_library()), *named], size):
        assert "rank 1: backend 'mpi' is unavailable: this Open MPI needs its own launcher" in rank.text
        assert ("RAISED BackendUnavailableError: rank 1: " in rank.text) == bool(named), rank.text
        assert ("STARTED shm gloo\n" in rank.text and LEFT_OUT in rank.text) != bool(named), rank.text


@pytest.mark.parametrize("named", [[], ["mpi", "gloo"]])
def test_a_backend_that_fails_at_its_start(nursery: Nursery, named: list[str]) -> None:
    """As above, where only the start shows that it does not work."""
    for rank in start(nursery, ["start", *named], 2, GLOO_SOCKET_IFNAME="no-such-interface"):
        assert "backend 'gloo' cannot start: " in rank.text
        assert ("RAISED BackendUnavailableError: " in rank.text) == bool(named), rank.text
        assert ("STARTED shm mpi\n" in rank.text and LEFT_OUT in rank.text) != bool(named), rank.text


@sizes
@pytest.mark.parametrize("named", [[], ["shm", "gloo"]])
def test_an_error_of_the_system_at_a_start(nursery: Nursery, named: list[str], size: int) -> None:
    """As above; all ranks report it, with its class, as the others would wait for that rank in the next backend."""
    for rank in start(nursery, ["no_descriptors", *named], size):
        assert "rank 0: backend 'shm' cannot start: OSError: [Errno 24] Too many open files" in rank.text, rank.text
        assert ("RAISED BackendUnavailableError: " in rank.text) == bool(named), rank.text
        assert ("STARTED mpi gloo\n" in rank.text and LEFT_OUT in rank.text) != bool(named), rank.text


@sizes
@pytest.mark.parametrize("named", [[], ["shm", "gloo"]])
def test_arguments_that_a_backend_refuses(nursery: Nursery, named: list[str], size: int) -> None:
    """As above, but the error is that of the arguments, as for other wrong arguments."""
    for rank in start(nursery, ["start", *named], size, MCR_DL_SHM_BYTES="20000"):
        assert "shm: expected MCR_DL_SHM_BYTES of at least " in rank.text, rank.text
        assert ("RAISED InvalidArgumentError: shm: " in rank.text) == bool(named), rank.text
        assert ("STARTED mpi gloo\n" in rank.text and LEFT_OUT in rank.text) != bool(named), rank.text


@sizes
def test_a_library_that_the_environment_names(nursery: Nursery, size: int) -> None:
    """It has been requested, on any rank: init fails without it."""
    for rank in start(nursery, ["on_rank", "1", "MCR_DL_MPI_LIB", "/no/lib.so"], size):
        assert re.search(r"RAISED BackendUnavailableError: rank 1: .*MCR_DL_MPI_LIB=/no/lib\.so: no such f", rank.text)
    for rank in start(nursery, ["on_rank", "1", "MCR_DL_MPI_LIB", "/no/lib.so", "gloo"], size):
        assert "STARTED gloo\n" in rank.text  # mpi was not requested


# ---- a rank that fails alone


@sizes
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("device_id", "cuda:77", "expected cpu or one of "),
        ("device_id", "nothing", "expected a device or the index of a CUDA device, got 'nothing'"),
        ("timeout", "soon", "expected a positive datetime.timedelta (or seconds), got 'soon'"),
    ],
)
def test_a_wrong_argument_on_one_rank(nursery: Nursery, size: int, name: str, value: str, text: str) -> None:
    """All raise, as the others would wait for it."""
    for rank in start(nursery, ["wrong_argument", "1", name, value], size):
        assert f"RAISED InvalidArgumentError: rank 1: {name}: {text}" in rank.text, rank.text


def test_a_start_that_fails_on_one_rank(nursery: Nursery) -> None:
    """The rank is lost for the others, though its process ends without an error."""
    ranks = start(nursery, ["fails", "1"], 3)
    assert "RAISED LookupError: on purpose" in ranks[1].text
    for rank in (ranks[0], ranks[2]):
        text = r"RAISED PeerLostError: .*lost rank 1: init_process_group\(\) has raised LookupError: on purpose"
        assert re.search(text, rank.text), rank.text


def test_a_listener_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end does not hide the error."""
    made = Watch(torch_dist.HashStore(), 0, 2, list, detail=False, former=None)

    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(made._exchange._listener, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        made.start()
    made.stop("it ends", well=True)


# ---- the process that holds the store


def test_rank_0_ends_without_the_store(nursery: Nursery) -> None:
    """Another process holds it: the errors of the other ranks still have a diagnosis."""
    _, places = jobs.agent_store(nursery, 3)
    for each in places:
        del each["TORCHELASTIC_USE_AGENT_STORE"]
    ranks = [nursery.start(jobs.PROGRAMS / "starts.py", ["leaves"], each) for each in places]
    jobs.end(nursery, ranks)
    jobs.expect(ranks, 0)
    assert re.search(r"RAISED CollectiveTimeoutError: .*Not arrived: rank 2", ranks[1].text), ranks[1].text


def test_the_process_that_holds_a_store(nursery: Nursery) -> None:
    """It has the socket that listens at the store's port."""
    store = torch_dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    assert launcher.holds(store)
    assert launcher.holds(torch_dist.PrefixStore("a", torch_dist.PrefixStore("b", store)))
    assert not launcher.holds(torch_dist.HashStore())
    with mock.patch("os.listdir", side_effect=OSError(24, "Too many open files")):
        assert not launcher.holds(store)
    _, ranks = jobs.agent_store(nursery, 1)
    port = int(ranks[0]["MASTER_PORT"])
    assert not launcher.holds(torch_dist.TCPStore("127.0.0.1", port, None, False))


# ---- ranks that do not come


@pytest.mark.parametrize("backend", ["gloo", "shm", "mpi"])
def test_a_rank_that_does_not_come_to_the_start(nursery: Nursery, backend: str) -> None:
    """The others raise after the timeout, and say which one, and where it is."""
    ranks = nursery.ranks(jobs.PROGRAMS / "starts.py", ["late", "2", backend], 3)
    jobs.end(nursery, ranks[:2])
    for rank in ranks[:2]:
        assert rank.code == jobs.REPORTED, rank.text
        assert "CollectiveTimeoutError" in rank.text, rank.text
        assert re.search(r"rank 2: it is at starts\.py:\d+ in <lambda>", rank.text), rank.text


@pytest.mark.parametrize(
    ("absent", "texts"),
    [
        (2, ["the 3 ranks have not met at 127.0.0.1:", "ranks 0, 2 have not come|the job's store cannot be "]),
        (0, ["the 3 ranks have not met at 127.0.0.1:", "the 3 ranks have not met at 127.0.0.1:"]),
    ],
)
def test_a_rank_that_does_not_start(nursery: Nursery, absent: int, texts: list[str]) -> None:
    """The others say what they have waited for."""
    command, program = ["late", "9", "gloo"], jobs.PROGRAMS / "starts.py"
    ranks = [nursery.start(program, command, each) for rank, each in environments(3, {}).items() if rank != absent]
    jobs.end(nursery, ranks)
    for rank, text in zip(ranks, texts, strict=True):
        jobs.expect([rank], jobs.REPORTED)
        assert re.search(f"RAISED CollectiveTimeoutError: init_process_group: timed out: (?:{text})", rank.text), (
            rank.text
        )


def test_names_that_differ_between_ranks(nursery: Nursery) -> None:
    """All ranks raise, naming both."""
    for rank in start(nursery, ["on_rank", "1", "MCR_DL_BACKENDS", "gloo"], 2):
        assert "RAISED InvalidArgumentError: backend: expected the same on all ranks, got auto on rank 0 and gloo" in (
            rank.text
        )


@pytest.mark.parametrize(("name", "value"), [("MCR_DL_SCHEDULE", "syndicate"), ("MCR_DL_PASSES", "log")])
def test_passes_that_differ_between_ranks(nursery: Nursery, name: str, value: str) -> None:
    """All ranks raise at once, also where one has none."""
    for rank in start(nursery, ["on_rank", "1", name, value, "gloo"], 2):
        text = "RAISED InvalidArgumentError: passes: expected the same on all ranks, got [] on rank 0 and [['log'"
        assert text in rank.text


def test_a_variable_of_a_library_that_differs_between_ranks(nursery: Nursery) -> None:
    """All ranks raise: with unlike ones, some would connect at once, and others wait for them."""
    for rank in start(nursery, ["on_rank", "1", "TORCH_GLOO_LAZY_INIT", "1", "gloo"], 2):
        text = "TORCH_GLOO_LAZY_INIT: expected the same on all ranks, got unset on rank 0 and 1 on rank 1"
        assert f"RAISED InvalidArgumentError: {text}" in rank.text


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("MCR_DL_STAGING_CHUNK", "4M", "InvalidArgumentError", "MCR_DL_STAGING_CHUNK: expected a number of bytes or "),
        ("LOCAL_WORLD_SIZE", "x", "InvalidArgumentError", "LOCAL_WORLD_SIZE: expected a whole number, got 'x'"),
        ("MCR_DL_SCHEDULE", "syndicate", "UnsupportedError", "passes: schedule: expected a group without the pass"),
    ],
)
def test_a_wrong_variable_on_one_rank(nursery: Nursery, name: str, value: str, error: str, text: str) -> None:
    """All ranks raise at once, the others with the rank."""
    first, second = start(nursery, ["on_rank", "1", name, value], 2, MCR_DL_PASSES="fuse")
    assert f"RAISED InvalidArgumentError: rank 1: {text}" in first.text, first.text
    assert re.search(f"RAISED {error}: (rank 1: )?{text}", second.text), second.text


def condition(**other: Any) -> dict[str, Any]:
    """One rank's report on one backend."""
    return {"library": "", "problem": "", "absent": False, "asked": False, "domain": "", "running": "", **other}


def decided(*conditions: dict[str, Any]) -> dict[str, Any]:
    """The decision on it together with a working gloo."""
    gloo = condition(library="gloo")
    values = [
        {"problem": "", "named": "auto", "networks": 1, "conditions": {"mpi": each, "gloo": gloo}}
        for each in conditions
    ]
    return startup._decide(values)


@pytest.mark.parametrize(
    ("domains", "rows", "networks", "expected"),
    [
        ("aa", [[0, 1]], 2, []),
        ("ab", [[0], [1]], 1, []),  # no two ranks share a host
        ("ab", [[0], [1]], 2, ["stripe(gloo,mpi)"]),
        ("aab", [[0, 1], [2]], 1, ["hier(shm,mpi)", "hier(shm,gloo)"]),
        (
            "abba",
            [[0, 3], [1, 2]],
            2,
            ["hier(shm,mpi)", "hier(shm,gloo)", "stripe(gloo,mpi)", "hier(shm,stripe(gloo,mpi))"],
        ),
        ("abab", [[0, 1], [2, 3]], 1, []),  # the lines of a topology that was given
    ],
)
def test_several_hosts_combine_backends(
    domains: str, rows: list[list[int]], networks: int, expected: list[str]
) -> None:
    """Shared memory within hosts and another backend between them; stripes over several networks."""
    conditions = {name: condition(library=name) for name in ("mpi", "gloo")}
    values = [
        {
            "problem": "",
            "named": "auto",
            "networks": networks,
            "conditions": {**conditions, "shm": condition(library="shm", domain=domain)},
        }
        for domain in domains
    ]
    answer = startup._decide(values)
    agreed = startup.Agreed(answer["backends"], answer["asked"], answer["local"], answer["networks"])
    assert agreed.backends == ["mpi", "gloo", *(["shm"] if len(set(domains)) == 1 else [])]
    assert startup.combined(agreed, rows) == expected


def test_what_no_rank_has_is_left_out_without_a_word() -> None:
    """A machine without MPI or GPU is normal; one rank of two without is not."""
    absent = condition(problem="no MPI library found", absent=True)
    here = condition(library="MPICH 5")
    answer = decided(absent, absent)
    assert (answer["failed"], answer["backends"], answer["asked"], answer["left_out"]) == ("", ["gloo"], [], [])
    assert decided(here, absent)["left_out"] == ["rank 1: no MPI library found"]
    assert decided(here, {**absent, "asked": True})["failed"] == "rank 1: no MPI library found"


def test_a_backend_of_one_host() -> None:
    """It is left out where its ranks run on several, unless the environment asks for it."""
    here, elsewhere = condition(library="a library", domain="here"), condition(library="a library", domain="elsewhere")
    assert decided(here, here)["backends"] == ["mpi", "gloo"]
    answer = decided(here, elsewhere)
    assert (answer["failed"], answer["backends"], answer["asked"], answer["left_out"]) == ("", ["gloo"], [], [])
    assert decided({**here, "asked": True}, elsewhere)["asked"] == ["mpi"]
    assert decided(here, condition(problem="broken"))["left_out"] == ["rank 1: broken"]


def test_libraries_that_differ_between_ranks() -> None:
    """They cannot start together."""
    answer = decided(condition(library="MPICH 5"), condition(library="Open MPI 5"))
    text = "backend 'mpi': expected the same library on all ranks, got MPICH 5 on rank 0 and Open MPI 5 on rank 1"
    assert (answer["backends"], answer["left_out"]) == (["gloo"], [text])


# ---- arguments and variables


@pytest.mark.parametrize(
    ("backend", "error", "text"),
    [
        ([], InvalidArgumentError, "backend: expected at least one name, or 'auto'"),
        (3, InvalidTypeError, "backend: expected a name, a list of names or None, got 3"),
        ([3], InvalidArgumentError, "backend: expected names of backends"),
        ("", InvalidArgumentError, "backend: expected names of backends"),
        ("mpii", InvalidArgumentError, "backend: expected one of nccl, shm, mpi, .*'mpii'"),
    ],
)
def test_wrong_backends(backend: Any, error: type[Exception], text: str) -> None:
    """Each is one clear error, and nothing has started."""
    with pytest.raises(error, match=f"^{text}"):
        mcr_dl.init_process_group(backend)
    assert not mcr_dl.is_initialized()


@pytest.mark.parametrize("value", ["", " ", "mpii", "mpi,,gloo", "tpu:mpi"])
def test_wrong_backends_in_the_environment(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable."""
    monkeypatch.setenv("MCR_DL_BACKENDS", value)
    for backend in (None, "mcr"):
        with pytest.raises(InvalidArgumentError, match=r"^MCR_DL_BACKENDS: expected "):
            parse_backends(backend)


@pytest.mark.parametrize("rank", ["5", "2", "-1"])
@pytest.mark.parametrize("names", [row[1:3] for row in launcher._VARIABLES])
def test_a_rank_outside_of_the_job(names: tuple[str, str], rank: str) -> None:
    """It would wait for ranks that never come; the error names both variables."""
    with pytest.raises(InvalidArgumentError, match=f"{names[0]}={rank} and {names[1]}=2"):
        launcher.detect({names[0]: rank, names[1]: "2"})


def test_a_rank_outside_of_the_job_does_not_wait() -> None:
    """The program ends at once."""
    program = "import mcr_dl; mcr_dl.init_process_group('gloo')"
    variables = {"RANK": "5", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    code, _, err = launchers.python("-c", program, **variables)
    assert code == 1
    assert "got RANK=5 and WORLD_SIZE=2" in err


@pytest.mark.parametrize(
    ("variables", "missing"),
    [({"RANK": "0"}, "WORLD_SIZE"), ({"WORLD_SIZE": "2"}, "RANK"), ({"WORLD_SIZE": "1"}, ""), ({}, "")],
)
def test_a_rank_without_a_size_does_not_start_alone(variables: dict[str, str], missing: str) -> None:
    program = "import mcr_dl; mcr_dl.init_process_group('null'); print('size', mcr_dl.get_world_size())"
    code, out, err = launchers.python("-c", program, **variables)
    assert (code, "size 1" in out) == ((1, False) if missing else (0, True)), err
    assert not missing or f"{missing}: expected a whole number, as " in err


def test_finalize_does_not_hide_running_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """It warns, as the end of the runtime does."""
    mcr_dl.init_process_group(["gloo", "null"], store=torch_dist.HashStore(), rank=0, world_size=1, timeout=20)
    with monkeypatch.context() as patch:
        patch.setattr(mcr_dl._C, "drain", lambda *_: False)
        with pytest.warns(match=r"finalize\(null\): some operations were still running"):
            mcr_dl.finalize("null")
    mcr_dl.destroy_process_group()


# ---- what is documented


def test_unknown_variables() -> None:
    """The warning gives the nearest name; known variables, and those of others, cause none."""
    assert variables.unknown({"MCR_DL_BACKEND": "gloo", "MCR_DL_TUNE": "", "HOME": ""}) == [
        "MCR_DL_BACKEND (did you mean MCR_DL_BACKENDS?)"
    ]
    assert variables.unknown({"MCR_DL_ZZZZZ": ""}) == ["MCR_DL_ZZZZZ"]


def test_unknown_variables_are_warned_of(nursery: Nursery) -> None:
    """Once per process, at its first start; on rank 0, in one line that names the page of all variables."""
    first, second = start(nursery, ["on_rank", "1", "HOME", "/", "gloo"], 2, MCR_DL_BACKEND="gloo", MCR_DL_ZZZZZ="1")
    (line,) = [line for line in first.text.splitlines() if "MCR_DL_" in line]
    assert "MCR_DL_BACKEND (did you mean MCR_DL_BACKENDS?), MCR_DL_ZZZZZ; docs/environment.md lists" in line
    assert "warn_explicit" not in first.text
    assert "MCR_DL_" not in second.text


def test_the_documented_variables_are_those_of_the_table() -> None:
    """The page is the generated one, its links lead somewhere, and the sources read these variables and no others."""
    assert (ROOT / variables.PAGE).read_text() == generated_pages.environment()
    for each in variables.VARIABLES:
        page, _, anchor = each.page.partition("#")
        text = (ROOT / "docs" / page).read_text()
        assert each.name in text, each
        headings = {re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in text.splitlines()}
        assert not anchor or anchor in headings, each
    sources = [*ROOT.glob("src/**/*.cc"), *ROOT.glob("src/**/*.h"), *ROOT.glob("mcr/**/*.py")]
    read = {name for file in sources for name in re.findall(r"[\"`](MCR_DL_[A-Z_]+)", _text(file))}
    assert read == {each.name for each in variables.VARIABLES}


def _text(file: Path) -> str:
    return file.read_text() if file.name != "variables.py" else ""


def test_every_documented_exception_is_exported() -> None:
    """The exceptions that are raised, and those in docstrings and pages."""
    ours = {cls.__name__ for cls in [errors.McrError, *errors.McrError.__subclasses__()]}
    assert ours <= set(mcr_dl.__all__)
    documented: set[str] = set()
    for file in [*ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("mcr/mcr_dl/**/*.py")]:
        for names in re.findall(r"`(?:mcr_dl\.)?([A-Z]\w+Error)`|Raises ([A-Z]\w+Error)", file.read_text()):
            documented.update(filter(None, names))
    assert {"DesyncError", "CollectiveTimeoutError"} <= documented
    internal = {"WorkloadError", "UnrecoverableError", "AbsentError"}  # raised by examples
    assert {name for name in documented - internal if not hasattr(mcr_dl, name)} <= set(dir(builtins))
