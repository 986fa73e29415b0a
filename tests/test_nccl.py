# SPDX-License-Identifier: Apache-2.0
"""The backend nccl on a stand-in library that works on host memory and checks conditions that NCCL leaves undefined."""

from __future__ import annotations

import re
import subprocess

import pytest
import torch

from harness import Pools, launchers
from mcr_dl import _C
from mcr_dl.testing.calls import OPS, SIGNATURES, Case
from mcr_dl.testing.cases import COUNTS, LARGE, LARGE_DTYPES, table
from ranks import nccl, reductions
from seed import share

FUNCTIONS = [name for name, row in SIGNATURES.items() if not OPS[row["op"]]["peer"]]
# A backend has an operation if it has a method of that name.
METHODS = re.findall(
    r"^  void (\w+)\(const Call&", (launchers.TESTS.parent / "src/backends/nccl/nccl.cc").read_text(), re.M
)
MESSAGE_DTYPES = ("uint8", "bfloat16", "complex128", "bool")

functions = pytest.mark.parametrize("function", FUNCTIONS)


@pytest.fixture(scope="session", autouse=True)
def stand_ins() -> None:
    """The libraries exist: `make test-python` builds them, and so does this."""
    targets = [str(path.relative_to(launchers.TESTS.parent)) for path in (launchers.STAND_IN, launchers.OLD_STAND_IN)]
    subprocess.run(["make", "--silent", *targets], check=True, cwd=launchers.TESTS.parent, timeout=240)


def sample(function: str, backend: str, world: int, counts: tuple[int, ...], most: int) -> list[Case]:
    """At most ``most`` cases of each element type, different for each type; all cases if there are few."""
    cases = []
    for turn, dtype in enumerate(_C.dtypes()):
        every = table(function, backend, dtype, world, counts)
        step = -(-len(every) // most)
        cases += share(every, step, turn)
    return cases


def run(pools: Pools, launcher: str, world: int, cases: list[Case]) -> tuple[int, int]:
    """Run the cases on all ranks, which must agree on what is supported."""
    assert cases
    counts = pools.get(launcher, world).run(nccl.run_all, cases, limit=120.0)
    assert counts == [counts[0]] * world
    return counts[0]


@pytest.mark.parametrize("world", [2, 3, 4])
@functions
def test_values(pools: Pools, world: int, function: str) -> None:
    """Every function and element type against plain torch, as for the other backends; the rest is rejected."""
    done, refused = run(pools, "nccl", world, sample(function, "nccl", world, COUNTS, 30 if world == 3 else 12))
    op = OPS[SIGNATURES[function]["op"]]
    assert (done > 0) == (op["name"] in METHODS)
    assert (refused > 0) == (op["reduces"] or op["name"] not in METHODS)


@functions
def test_large(pools: Pools, function: str) -> None:
    """Messages larger than the buffer between two ranks."""
    cases = [case for dtype in LARGE_DTYPES for case in table(function, "nccl", dtype, 3, (LARGE,))]
    run(pools, "nccl", 3, share(cases, -(-len(cases) // 6)))


@pytest.mark.parametrize("launcher", ["nccl", "nccl-lanes"])
@pytest.mark.parametrize("function", [name for name in FUNCTIONS if SIGNATURES[name]["op"] == "all_gather"])
def test_variant(pools: Pools, launcher: str, function: str) -> None:
    """all_gatherv by broadcasts instead of messages; other calls of the candidate are the plain ones."""
    run(pools, launcher, 3, sample(function, "nccl:bcast", 3, COUNTS, 8))


@functions
def test_lanes(pools: Pools, function: str) -> None:
    """The functions on three lanes."""
    run(pools, "nccl-lanes", 3, sample(function, "nccl", 3, COUNTS, 6))


@functions
def test_old_library(pools: Pools, function: str) -> None:
    """The functions on a library without those that came after 2.18."""
    run(pools, "nccl-old", 2, sample(function, "nccl", 2, COUNTS, 4))


def test_support(pools: Pools) -> None:
    """The supported reductions, in every element type of the core."""
    kinds = {"Integer": {"SUM", "AVG", "PRODUCT", "MIN", "MAX"}, "Complex": {"SUM", "AVG"}}
    found = pools.get("nccl", 2).run(nccl.support)[0]
    assert {"native", "-"} == set(found.values())
    native: dict[str, set[str]] = {dtype: set() for dtype in _C.dtypes()}
    for key, how in found.items():
        dtype, red = key.split()
        if how == "native":
            native[dtype].add(red)
    for dtype, reds in native.items():
        if dtype in ("int16", "uint16"):
            assert reds == set(), dtype
        elif dtype.startswith("complex"):
            assert reds == kinds["Complex"], dtype
        elif dtype == "bool":
            assert reds == {"SUM", "PRODUCT", "MIN", "MAX"}, dtype  # the first two are the last two
        else:
            assert reds - {"PREMUL_SUM"} == kinds["Integer"], dtype


@pytest.mark.parametrize("launcher", ["nccl", "nccl-lanes"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_premul_sum(pools: Pools, launcher: str, dtype: str) -> None:
    """PREMUL_SUM with torch's object, its factor a number and a tensor."""
    done = pools.get(launcher, 3).run(reductions.premultiplied, ("nccl",), dtype, (1, 17, 1001))
    assert done == [3 * len(reductions.CALLS) * 2 * 2] * 3


@pytest.mark.parametrize("world", [2, 3, 4])
def test_messages(pools: Pools, world: int) -> None:
    """Blocking and asynchronous sends and receives, in an order that NCCL can follow."""
    done = pools.get("nccl", world).run(nccl.messages, MESSAGE_DTYPES, (0, 1, 17, 1001, LARGE))
    assert done == [40] * world


@pytest.mark.parametrize("world", [2, 3, 4])
def test_batches(pools: Pools, world: int) -> None:
    """batch_isend_irecv between all ranks at once, in no particular order."""
    pools.get("nccl", world).run(nccl.batches, LARGE)


def test_receive_from_any(pools: Pools) -> None:
    """Rejected with the operation's name; the group stays usable."""
    pools.get("nccl", 2).run(nccl.from_any)


@pytest.mark.parametrize("launcher", ["nccl", "nccl-lanes"])
@pytest.mark.parametrize("name", nccl.MISMATCHES)
def test_mismatch(pools: Pools, launcher: str, name: str) -> None:
    """Mismatched calls of two ranks: NCCL's text, naming both, and the other groups stay usable."""
    texts = pools.get(launcher, 3).run(nccl.mismatch, name, limit=40.0)
    assert "rank 0 of 2 has" in texts[0] or "rank 1 of 2 has" in texts[0]


@pytest.mark.parametrize("function", ["ncclAllReduce", "ncclGroupStart", "ncclSend", "ncclGroupEnd"])
def test_failing_call(pools: Pools, function: str) -> None:
    """An error of a call, also inside grouped ones, has NCCL's text; the next calls work."""
    texts = pools.get("nccl", 3).run(nccl.failing_call, function, limit=40.0)
    assert all(text.startswith("nccl.all_") for text in texts), texts


@pytest.mark.parametrize("launcher", ["nccl", "nccl-lanes"])
def test_failing_device(pools: Pools, launcher: str) -> None:
    """An asynchronous error on one rank: detected, reported on all ranks at every query, other groups still work."""
    texts = pools.get(launcher, 3).run(nccl.failing_device, 1, limit=120.0)
    assert "ncclCommGetAsyncError: internal error" in texts[1][1]
    for rank in (0, 2):
        assert "rank 1 of 3 has aborted" in texts[rank][1], texts


def test_failing_connect(pools: Pools) -> None:
    """All ranks get the first one's error, and continue."""
    texts = pools.get("nccl", 3).run(nccl.failing_connect, limit=40.0)
    assert [("first rank" in text) for text in texts] == [False, True, True]


@pytest.mark.parametrize(("launcher", "world", "lanes"), [("nccl", 3, 1), ("nccl-lanes", 3, 3)])
def test_lanes_under_way(pools: Pools, launcher: str, world: int, lanes: int) -> None:
    """Each group has as many communicators of the library as there are lanes."""
    assert pools.get(launcher, world).run(nccl.lanes) == [lanes] * world


def test_lifetime(pools: Pools) -> None:
    """A destroyed group's communicators are freed, and all of them at the end."""
    for before, during, after, end in pools.get("nccl", 2).run(nccl.lifetime):
        assert during == before + 1
        assert after == before
        assert end == 0


def test_never_by_accident(pools: Pools) -> None:
    """`auto` leaves the stand-in out, even if it is named."""
    names = pools.get("nccl", 2).run(nccl.automatic, limit=90.0)
    assert names[0] == names[1]
    assert "nccl" not in names[0]
    assert "mpi" in names[0]


# ---- reports on libraries

_SCRIPT = """
import os, sys
import mcr_dl
for setting in sys.argv[1:]:
    os.environ.pop("MCR_DL_NCCL_LANES", None)
    for part in setting.split(","):
        name, _, value = part.partition("=")
        os.environ[name] = value
    print(mcr_dl.available_backends()["nccl"])
"""


def states(*settings: str, **variables: str) -> list[str]:
    """The states of nccl in a new process under each of the settings, in turn until one works."""
    done = launchers.python("-c", _SCRIPT, *settings, limit=90, **variables)
    assert done.code == 0, done.err
    return done.out.splitlines()


def test_states() -> None:
    """Unusable libraries are rejected with a reason, one after the other, and then a usable one is taken."""
    stand_in = f"MCR_DL_NCCL_LIB={launchers.STAND_IN}"
    absent, foreign, lanes, words, good = states(
        "MCR_DL_NCCL_LIB=/nowhere/libnccl.so",
        "MCR_DL_NCCL_LIB=libm.so.6",
        f"{stand_in},MCR_DL_NCCL_LANES=9",
        f"{stand_in},MCR_DL_NCCL_LANES=two",
        stand_in,
    )
    assert absent.startswith("unavailable: /nowhere/libnccl.so (named by MCR_DL_NCCL_LIB) cannot be loaded")
    assert "libm.so.6: expected an NCCL library, got one without ncclGetErrorString" in foreign
    assert "ncclAllReduce" in foreign
    assert "MCR_DL_NCCL_LANES: expected a number from 1 to 8, got '9'" in lanes
    assert "MCR_DL_NCCL_LANES: expected a number from 1 to 8, got 'two'" in words
    assert good == "ok: NCCL 2.28.3 (stand-in for tests)"


def test_versions() -> None:
    """A library that is too old is rejected; the missing functions of an older one are named."""
    old = f"MCR_DL_NCCL_LIB={launchers.OLD_STAND_IN}"
    (refused,) = states(old, MCR_STANDIN_VERSION="21703")
    assert "expected NCCL 2.18.0 or newer, got 2.17.3" in refused
    (accepted,) = states(old, MCR_STANDIN_VERSION="21805")
    assert accepted.startswith("ok: NCCL 2.18.5 (stand-in for tests), without ")
    for name in ("ncclGetLastError", "ncclCommInitRankConfig", "ncclAlltoAll", "ncclGather", "ncclScatter"):
        assert name in accepted


def test_without_a_library() -> None:
    """No library named, and a torch without CUDA: the reason, and the import of mcr_dl works."""
    if torch.version.cuda is not None:
        pytest.skip("this torch is built with CUDA")
    (state,) = states("MCR_DL_NCCL_LIB=")
    assert state == f"unavailable: no CUDA device: torch {torch.__version__} is built without CUDA"


def test_info() -> None:
    """`python -m mcr_dl.info` shows the library, its version, and the missing functions."""
    done = launchers.python("-m", "mcr_dl.info", limit=90, COLUMNS="400", **launchers.OWN["nccl-old"])
    assert done.code == 0, done.err
    row = next(line for line in done.out.splitlines() if "NCCL library" in line)
    for words in (str(launchers.OLD_STAND_IN), "named by MCR_DL_NCCL_LIB", "NCCL 2.18.5", "without", "ncclAlltoAll"):
        assert words in row
