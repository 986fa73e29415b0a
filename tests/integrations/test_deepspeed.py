# SPDX-License-Identifier: Apache-2.0
"""The real DeepSpeed on mcr_dl: the same training as on its own gloo, and the library that carried its calls."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import jobs

TRAINING = ("zero1", "zero2", "zero3", "moe", "logger", "pipeline")
ZERO = TRAINING[:3]
OURS = (*TRAINING[:5], "direct", "again", "pipeline")  # DeepSpeed's pipeline leaves globals that others read
# By name: how DeepSpeed gets mcr_dl's object, the ranks, the cases, variables.
JOBS: dict[str, tuple[str, int, tuple[str, ...], dict[str, str]]] = {
    "gloo, 2 ranks": ("gloo", 2, TRAINING, {}),
    "gloo, 3 ranks": ("gloo", 3, ZERO, {}),
    "mpi, 2 ranks": ("mcr", 2, OURS, {"MCR_DL_BACKENDS": "mpi"}),
    "auto, 2 ranks": ("install", 2, OURS, {}),
    "mpi, 3 ranks": ("install", 3, (*ZERO, "direct"), {"INSTALL_BACKENDS": "mpi"}),
}
LIMIT = 120.0


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of a job, by rank; each job runs once."""
    folder = tmp_path_factory.mktemp("deepspeed")

    @cache
    def job(name: str) -> jobs.Found:
        how, size, cases, variables = JOBS[name]
        own = folder / name.replace(", ", "-")
        return jobs.run("deepspeed_job", size, [how, ",".join(cases)], own, LIMIT, **variables)

    return job


def reference_of(name: str) -> str:
    """DeepSpeed's own run on as many ranks."""
    return f"gloo, {JOBS[name][1]} ranks"


RUNS = [(name, case) for name, (_, _, cases, _) in JOBS.items() for case in cases if not name.startswith("gloo")]
TRAINED = [(name, case) for name, case in RUNS if case != "direct"]


@pytest.mark.parametrize(("name", "case"), TRAINED)
def test_trains_as_on_gloo(found: Any, name: str, case: str) -> None:
    """Equal losses on every rank: to the bit on two ranks; on three, sums may be taken in another order."""
    reference = found(reference_of(name))
    losses = [rank[case]["losses"] for rank in found(name)]
    wanted = [rank["zero1" if case == "again" else case]["losses"] for rank in reference]
    assert all(len(each) == 6 and each[0] != each[-1] for each in wanted)
    if JOBS[name][1] == 2:
        assert losses == wanted
    else:
        assert losses == [pytest.approx(each, rel=1e-6) for each in wanted]


@pytest.mark.parametrize(("name", "case"), TRAINED)
def test_who_carried_it(found: Any, name: str, case: str) -> None:
    """Only mcr_dl, with the same calls as torch.distributed in DeepSpeed's own run."""
    for rank, theirs in zip(found(name), found(reference_of(name)), strict=True):
        expected = theirs["zero1" if case == "again" else case]["torch"]
        assert rank["backend"] == "mcr"
        assert theirs["backend"] == "torch"
        assert rank[case]["torch"] == {}
        assert theirs["zero1"]["ours"] == {}
        for operation in ("all_reduce", "broadcast", "send", "recv"):
            # ZeRO 3 broadcasts an empty list once, which leaves no record: there is nothing to send.
            nothing = int(case == "zero3" and operation == "broadcast")
            assert rank[case]["ours"].get(operation, 0) == expected.get(operation, 0) - nothing, operation
        for operation, name_in_torch in (
            ("all_gather", "all_gather_into_tensor"),
            ("reduce_scatter", "reduce_scatter_tensor"),
            ("all_to_all", "all_to_all_single"),
        ):
            assert rank[case]["ours"].get(operation, 0) == expected.get(name_in_torch, 0), operation


@pytest.mark.parametrize("name", [name for name, case in RUNS if case == "logger"])
def test_comms_logger(found: Any, name: str) -> None:
    """DeepSpeed's logger counts the same operations of the same sizes, with the stragglers' times."""
    for rank, theirs in zip(found(name), found(reference_of(name)), strict=True):
        assert rank["logger"]["counts"] == theirs["logger"]["counts"]
        assert rank["logger"]["counts"]["all_reduce"]
        assert rank["logger"]["straggler"]
        assert rank["logger"]["slowest"] > 0


@pytest.mark.parametrize("name", [name for name, case in RUNS if case == "direct"])
def test_every_function(found: Any, name: str) -> None:
    """deepspeed.comm's functions one by one (programs/deepspeed_calls.py)."""
    for rank in found(name):
        assert len(rank["direct"]["done"]) == 8
        assert rank["direct"]["torch"] == {}


@pytest.mark.parametrize("name", [name for name, case in RUNS if case == "again"])
def test_ends_and_starts_again(found: Any, name: str) -> None:
    """deepspeed.comm.destroy_process_group ends everything; init_distributed starts anew."""
    assert all(rank["again"]["ended"] for rank in found(name))


# ---- completeness: a newer DeepSpeed with additional functions fails here


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed, imported here, looks for no accelerator."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


# torch's own; a private step of TorchBackend's constructor; whether there are the functions of two other methods.
INHERITED = {
    "enable_symm_mem_for_group",
    "_init_sdma_backend",
    "has_all_gather_into_tensor",
    "has_reduce_scatter_tensor",
}


def functions(cls: type) -> dict[str, Any]:
    """The methods that a class defines itself."""
    names = [name for name in vars(cls) if name != "__new__"]
    return {name: getattr(cls, name) for name in names if inspect.isroutine(getattr(cls, name))}


@pytest.mark.usefixtures("on_cpu")
def test_every_method() -> None:
    """mcr_dl's object defines each method of TorchBackend, with the parameters that DeepSpeed passes first."""
    from deepspeed.comm.torch import TorchBackend

    from mcr_dl.deepspeed.backend import McrBackend

    theirs, ours = functions(TorchBackend), functions(McrBackend)
    assert set(theirs) - set(ours) == INHERITED
    for name in set(theirs) & set(ours) - {"__init__"}:
        wanted = [each for each in parameters(theirs[name]) if each != "self"]
        assert [each for each in parameters(ours[name]) if each != "self"][: len(wanted)] == wanted, name


def parameters(function: Any) -> list[str]:
    """Names of parameters; DeepSpeed's staging decorator hides the parameters of the function that it wraps."""
    closure = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    return list(inspect.signature(closure.get("func", function)).parameters)


def test_every_attribute(found: Any) -> None:
    """mcr_dl's object has each attribute of TorchBackend's objects."""
    theirs, ours = found("gloo, 2 ranks")[0], found("mpi, 2 ranks")[0]
    assert set(theirs["attributes"]) <= set(ours["attributes"])
    assert {"has_coalescing_manager", "using_mpi", "initialized"} <= set(ours["attributes"])


# How a program gets mcr_dl's object, and the variables for it.
WAYS = {
    "name": {"MCR_DL_BACKENDS": "mpi"},
    "variable": {"MCR_DL_BACKENDS": "mpi", "MCR_DL_DEEPSPEED": "1"},
    "torch's group": {"MCR_DL_BACKENDS": "mpi"},
    "foreign group": {},
}


@pytest.mark.parametrize("way", WAYS)
def test_ways(tmp_path: Path, way: str) -> None:
    """By name or variable, in programs that need not import mcr_dl; on torch's group of any backend; meshes too."""
    for rank in jobs.run("deepspeed_ways", 2, [way], tmp_path / "job", LIMIT, **WAYS[way]):
        assert rank["object"] == "mcr"
        assert rank["underneath"] == ["mpi"]
        assert rank["sums"] == [3.0] * 3
        assert ("foreign" in rank) == (way == "foreign group")
        assert "expected a process group of mcr_dl" in rank.get("foreign", "expected a process group of mcr_dl")


def test_errors(tmp_path: Path) -> None:
    """install() too late, a wrong variable; oneCCL's object is replaced by mcr_dl's."""
    found = jobs.run("deepspeed_errors", 1, [], tmp_path / "job", LIMIT)[0]
    assert "expected deepspeed.comm not to run yet, but it runs on 'torch'" in found["late"]
    assert "MCR_DL_DEEPSPEED: expected 0 or 1, got 'yes'" in found["variable"]
    assert "backend: expected one of" in found["unknown"]
    assert found["twice"] == "mcr"
    assert found["ccl"] == "mcr"
