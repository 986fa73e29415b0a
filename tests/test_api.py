# SPDX-License-Identifier: Apache-2.0
"""The public API: equal to the installed torch's where both have it, documented, and consistent with the op table."""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from torch.distributed import distributed_c10d

import generate
import mcr_dl
from harness import Pools
from mcr_dl import _C
from mcr_dl.base.signature import root_names
from mcr_dl.libraries import registry, third_party
from ranks import api, session, works

SHARED = [name for name in mcr_dl.__all__ if callable(getattr(torch_dist, name, None))]
FUNCTIONS = [name for name in SHARED if not inspect.isclass(getattr(mcr_dl, name))]
CLASSES = [name for name in SHARED if inspect.isclass(getattr(mcr_dl, name))]
# mcr_dl's own classes under torch's names; the other names are torch's objects.
OWN_CLASSES = {"P2POp", "Work", "group"}
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

DOCS = Path(__file__).parent.parent / "docs"

backends = pytest.mark.parametrize("backend", session.BACKENDS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signature_is_torchs(name: str) -> None:
    """The same parameters in the same order with the same defaults; mcr_dl may add keyword-only ones."""
    ours = inspect.signature(getattr(mcr_dl, name)).parameters
    theirs = inspect.signature(getattr(torch_dist, name)).parameters
    ours_in_order = [p.name for p in ours.values() if p.kind in POSITIONAL and not p.name.startswith("_")]
    theirs_in_order = [p.name for p in theirs.values() if p.kind in POSITIONAL and not p.name.startswith("_")]
    assert ours_in_order == theirs_in_order
    for parameter in theirs.values():
        if parameter.name.startswith("_") or parameter.kind not in (*POSITIONAL, inspect.Parameter.KEYWORD_ONLY):
            continue
        assert parameter.name in ours
        default = ours[parameter.name].default
        if parameter.default is inspect.Parameter.empty:
            assert default is inspect.Parameter.empty or default is None, parameter.name
        elif not isinstance(parameter.default, type(torch_dist.ReduceOp.SUM)):
            assert default == parameter.default, parameter.name
        else:
            assert default == torch_dist.ReduceOp.SUM
    extra = [p for p in ours.values() if p.name not in theirs]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in extra), extra


def test_torchs_own_objects() -> None:
    """Unchanged names are torch's objects themselves."""
    assert set(CLASSES) >= {"ReduceOp", "Store", "TCPStore", "FileStore", "HashStore", "PrefixStore", *OWN_CLASSES}
    for name in CLASSES:
        same = getattr(mcr_dl, name) is getattr(torch_dist, name)
        assert same == (name not in OWN_CLASSES), name
    assert mcr_dl.default_pg_timeout == torch_dist.default_pg_timeout


def _words(text: str) -> set[str]:
    return set(text.split())


def test_nothing_is_missing() -> None:
    """Every collective and every query in torch.distributed's own list is here too."""
    ours = set(mcr_dl.__all__)
    wanted = _words(
        """
        send recv isend irecv batch_isend_irecv broadcast all_reduce reduce all_gather gather scatter
        all_gather_into_tensor reduce_scatter reduce_scatter_tensor all_to_all all_to_all_single barrier
        monitored_barrier all_gather_object gather_object broadcast_object_list scatter_object_list
        send_object_list recv_object_list init_process_group destroy_process_group is_initialized
        get_rank get_world_size get_backend get_process_group_ranks get_group_rank get_global_rank
        new_group new_subgroups new_subgroups_by_enumeration split_group P2POp Work ReduceOp
        """
    )
    assert wanted <= set(dir(torch_dist)) | {"split_group"}
    assert wanted <= ours
    # Listing 1 of the paper, and its names for MPI's operations
    listing = _words("init finalize synchronize get_backends get_size get_rank bcast gatherv scatterv all_gatherv")
    assert {*listing, "all_to_allv", "reduce_scatterv", "all_gather_single", "reduce_scatter_single"} <= ours
    assert {row["name"] for row in _C.signatures()} <= ours


def _raises(error: BaseException) -> Callable[[], object]:
    def load() -> object:
        raise error

    return load


@pytest.mark.parametrize(
    ("name", "loads", "reason"),
    [
        ("broken", [_raises(RuntimeError("no licence"))], "its entry point raises RuntimeError: no licence"),
        ("broken", [_raises(SystemExit(3))], "its entry point raises SystemExit: 3"),
        ("broken", [lambda: mcr_dl.available_backends], "expected an absolute path"),
        ("broken", [lambda: lambda: "theirs.so"], "expected an absolute path"),
        (
            "broken",
            [lambda: lambda: registry.load("broken")],
            "its entry point asks for its own backend: expected a path",
        ),
        ("broken", [len, len], "expected one package with an entry point of this name, got package 0, package 1:"),
        ("Upper", [len], "expected an entry point whose name is a lower-case letter, then"),
        ("a:b", [len], "expected an entry point whose name is a lower-case letter, then"),
        ("auto", [len], "expected an entry point whose name is a lower-case letter, then"),
    ],
)
def test_a_package_whose_entry_point_is_wrong(
    monkeypatch: pytest.MonkeyPatch, name: str, loads: list[Callable[[], object]], reason: str
) -> None:
    """Its backend is unavailable, with the reason; the others are not concerned."""
    packages = [SimpleNamespace(name=f"package {place}") for place in range(len(loads))]
    points = [SimpleNamespace(load=load, dist=dist) for load, dist in zip(loads, packages, strict=True)]
    monkeypatch.setattr(third_party, "entry_points", lambda: {name: points})
    found = mcr_dl.available_backends()
    assert found[name].startswith("unavailable: ")
    assert reason in found[name]
    assert found["gloo"].startswith("ok")


def test_availability() -> None:
    """torch's questions get the answers of mcr_dl's own backends; other names are torch's."""
    for name, status in mcr_dl.available_backends().items():
        assert mcr_dl.is_backend_available(name.upper()) == status.startswith("ok"), (name, status)
    assert mcr_dl.is_backend_available("mcr")
    assert mcr_dl.is_backend_available("stripe(gloo,shm)")
    assert not mcr_dl.is_backend_available("stripe(gloo,nothing)")
    assert mcr_dl.is_gloo_available()
    assert mcr_dl.is_mpi_available() == mcr_dl.available_backends()["mpi"].startswith("ok")
    assert mcr_dl.is_nccl_available() == mcr_dl.available_backends()["nccl"].startswith("ok")
    assert mcr_dl.is_backend_available("xccl") == torch_dist.is_backend_available("xccl")


def test_default_backends() -> None:
    """The first that reaches all hosts: not shm."""
    for device, backend in (("cpu", "mpi"), (torch.device("cpu"), "mpi"), ("cuda", "nccl"), ("cuda:1", "nccl")):
        assert mcr_dl.get_default_backend_for_device(device) == backend


def test_torchrun_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable that torch's agent sets."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not mcr_dl.is_torchelastic_launched()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert mcr_dl.is_torchelastic_launched()


def test_names_of_threads(pools: Pools) -> None:
    """The page on threads has all names in the sources, and no other; threads that every job has are there."""
    listed = set(re.findall("`(mcr_dl[ -][a-z]+)`", (DOCS / "threads.md").read_text()))
    sources = Path(mcr_dl.__file__).parent.rglob("*.py")
    used = {name for file in sources for name in re.findall(r'Thread\(.*name="(.*?)"', file.read_text())}
    assert listed == used
    found = pools.get("processes", 2).run(works.thread_names)
    for names in found:
        assert {"mcr_dl watch", "mcr_dl alarms", "mcr_dl store", "mcr_dl peers"} <= set(names)
        assert {name for name in names if name.startswith("mcr_dl")} <= listed
    assert "mcr_dl-pmi" in found[0]  # of MPICH, for all ranks of the host


def test_all_is_complete() -> None:
    """``__all__`` names what exists, once: the operations in the op table's order, the rest sorted."""
    names = list(mcr_dl.__all__)
    assert len(set(names)) == len(names)
    assert all(hasattr(mcr_dl, name) for name in names)
    assert [name for name in names if name in _C.__all__] == _C.__all__  # the operations in the order of the op table
    own = [name for name in names if name not in _C.__all__]
    assert own == sorted(own)


@pytest.mark.parametrize("row", [row for row in _C.signatures() if root_names(row)], ids=lambda row: row["name"])
def test_names_of_the_root(row: dict[str, Any]) -> None:
    """Calls take each keyword that the docstring and the stub name: they fail for want of a group alone."""
    own, *others = root_names(row)
    text = rf"{own}: global rank of the root(; None: rank 0)?\. The keyword may also be {' or '.join(others)}\."
    assert re.search(text, " ".join((inspect.getdoc(getattr(mcr_dl, row["name"])) or "").split()))
    required = [name for name, _, default, only in row["params"] if not default and not only and name != own]
    for root in (own, *others):
        with pytest.raises(mcr_dl.NotInitializedError):
            getattr(mcr_dl, row["name"])(**dict.fromkeys(required, torch.ones(1)), **{root: 0})


@pytest.mark.parametrize("row", _C.signatures(), ids=lambda row: row["name"])
def test_operation_docstrings(row: dict[str, Any]) -> None:
    """Every operation documents its arguments, its exceptions and its source."""
    operation = getattr(mcr_dl, row["name"])
    text = inspect.getdoc(operation)
    assert text is not None
    assert text.startswith(row["summary"])
    for word in ("Args:", "Returns:", "Raises:", "Source:", *[f"{name}:" for name, *_ in row["params"]]):
        assert word in text, word
    assert operation.__name__ == row["name"]
    assert operation.__module__ == "mcr_dl"


@pytest.mark.parametrize("row", _C.signatures(), ids=lambda row: row["name"])
def test_help_shows_the_signature(row: dict[str, Any]) -> None:
    """As for a function; as a member of a class an operation does not change."""
    operation = getattr(mcr_dl, row["name"])
    text = pydoc.plain(pydoc.render_doc(operation))
    assert f"{row['name']}{inspect.signature(operation)}" in text
    assert row["summary"].split()[0] in text
    assert type("Holder", (), {"call": operation})().call is operation


@pytest.mark.parametrize("name", [name for name in mcr_dl.__all__ if inspect.isfunction(getattr(mcr_dl, name))])
def test_function_docstrings(name: str) -> None:
    """Every other public function has a docstring that says more than its name."""
    function = getattr(mcr_dl, name)
    if not function.__module__.startswith("mcr_dl"):
        assert function is getattr(torch_dist, name)
        return
    assert len(inspect.getdoc(function) or "") > 40


def _stub() -> ast.Module:
    checked_in = Path(mcr_dl.__file__).with_name("_C.pyi")
    assert checked_in.exists(), "the package has no _C.pyi: run `make generate`"
    return ast.parse(checked_in.read_text())


def test_stub_matches_the_classes() -> None:
    """The stub's classes have exactly the existing methods; so do its functions."""
    stub = _stub()
    for node in stub.body:
        if isinstance(node, ast.ClassDef) and node.name in ("Work", "Group", "Options", "TorchBackend"):
            listed = {item.name for item in node.body if isinstance(item, ast.FunctionDef)} - {"__init__"}
            real = {name for name in vars(getattr(_C, node.name)) if not name.startswith("__")}
            real = {name for name in real if not name.startswith("_pybind11")}
            assert listed == real, node.name
    functions = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    real = {name for name, value in vars(_C).items() if callable(value) and not inspect.isclass(value)}
    assert functions == {name for name in real if not name.startswith("__")}


def test_stub_is_generated() -> None:
    """The committed stub equals the one generated from the op table."""
    assert ast.dump(ast.parse(generate.stub())) == ast.dump(_stub())


ON_RANKS: dict[str, tuple[Callable[..., None], int, bool]] = {  # function, ranks, once per backend
    "groups": (api.groups, 4, False),
    "not a member": (api.not_a_member, 2, False),
    "wrong groups": (api.wrong_groups, 2, False),
    "texts of any kind": (api.texts_of_any_kind, 2, False),
    "making groups": (api.making_groups, 4, False),
    "equal names": (api.equal_names, 4, False),
    "subgroups of hosts": (api.subgroups_of_hosts, 4, False),
    "the same ranks again": (api.the_same_ranks_again, 3, False),
    "objects": (api.objects, 3, False),
    "mpi4py": (api.mpi4py_communicator, 4, False),
    "mpi4py and variants": (api.mpi4py_shares_the_library, 2, False),
    "fake and null": (api.fake_and_null, 3, False),
    "mixed": (works.mixed, 3, False),
    "coalescing": (api.coalescing, 2, True),
    "coalescing, other calls": (api.coalescing_other_calls, 3, True),
    "tensors without memory": (api.tensors_without_memory, 2, False),
    "batch": (api.batch, 3, True),
    "arrays": (api.arrays, 2, True),
    "finished": (works.finished, 2, True),
    "future": (works.future, 2, True),
    "timeout": (works.timeout, 3, True),
    "dropped": (works.dropped, 2, True),
    "kept alive": (works.kept_alive, 2, True),
    "many": (works.many, 3, True),
    "while Python computes": (works.while_python_computes, 2, True),
    "threads": (works.threads, 2, True),
    "synchronize": (works.synchronize, 2, True),
    "priorities": (works.priorities, 2, False),
}
_CASES = [(name, backend) for name, row in ON_RANKS.items() for backend in (session.BACKENDS if row[2] else ("-",))]


@pytest.mark.parametrize(("name", "backend"), _CASES)
def test_on_ranks(pools: Pools, name: str, backend: str) -> None:
    """The docstrings of `ranks.api` and `ranks.works` describe the cases."""
    function, size, _ = ON_RANKS[name]
    pools.get("processes", size).run(function, *([] if backend == "-" else [backend]), limit=120.0)


_OPEN_MPI = [name for name, row in ON_RANKS.items() if row[0].__module__ == "ranks.works" and row[2]]


@pytest.mark.parametrize("name", [*_OPEN_MPI, "mpi4py", "mpi4py and variants"])
def test_on_open_mpi(pools: Pools, name: str) -> None:
    """The guarantees of works, and mpi4py's communicators, on Open MPI."""
    function, size, per_backend = ON_RANKS[name]
    pools.get("mpiexec-openmpi", size).run(function, *(["mpi"] if per_backend else []), limit=120.0)


def _public(module: object) -> set[str]:
    listed = getattr(module, "__all__", None)
    names = dir(module) if listed is None else listed
    return {name for name in [*names, *dir(module)] if not name.startswith("_")}


NAMES = sorted(_public(torch_dist) | set(distributed_c10d.__all__))


def test_every_name_of_torch() -> None:
    """The module has every name of torch.distributed; names that mcr_dl does not define are torch's own objects."""
    assert len(NAMES) > 100
    missing = [name for name in NAMES if not hasattr(mcr_dl, name)]
    assert missing == []
    for name in NAMES:
        theirs = getattr(torch_dist, name, None) or getattr(distributed_c10d, name)
        if name not in mcr_dl.__all__ and not inspect.ismodule(theirs):
            assert getattr(mcr_dl, name) is theirs, name
    assert set(torch_dist.__all__ if hasattr(torch_dist, "__all__") else []) <= set(dir(mcr_dl))


def test_a_name_that_does_not_exist() -> None:
    """It is an AttributeError that names the module, even with the fallback to torch."""
    with pytest.raises(AttributeError, match=r"mcr_dl.*no_such_name"):
        mcr_dl.no_such_name  # noqa: B018


def test_dir_is_small() -> None:
    """``dir(mcr_dl)`` lists the API, and neither private or other names of torch nor modules of the implementation."""
    listed = {name for name in dir(mcr_dl) if not name.startswith("__")}
    public = {name for name in mcr_dl.__all__ if not name.startswith("_")}
    assert listed == {*public, "passes", "schedule", "trace"}
    assert "__version__" in dir(mcr_dl)
    assert all(hasattr(mcr_dl, name) for name in listed)
    for package in (mcr_dl.passes, mcr_dl.schedule, mcr_dl.trace):
        assert dir(package) == sorted(package.__all__)
