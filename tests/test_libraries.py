# SPDX-License-Identifier: Apache-2.0
"""The descriptors of libraries: what Python knows of each backend, and backends of other packages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as torch_dist

import mcr_dl
from harness import launchers
from mcr_dl.base.errors import BackendUnavailableError
from mcr_dl.libraries import mpi, registry
from mcr_dl.libraries.c10d import TorchLibrary
from mcr_dl.libraries.descriptor import MODULES, Library
from mcr_dl.runtime.watched_store import WatchedStore

BACKENDS = Path(__file__).resolve().parents[1] / "src" / "backends"


def test_each_backend_has_one_descriptor() -> None:
    """Names are unique; ``describe`` returns the descriptor of a name, with that name."""
    names = [each.name for each in registry.DESCRIBED]
    assert len(set(names)) == len(names)
    for each in registry.DESCRIBED:
        assert registry.describe(each.name) is each
    for name in registry.known_names():
        assert registry.describe(name).name == name


def test_each_module_has_one_owner() -> None:
    """A built module belongs to one descriptor, or to torch's, which share one, or is a backend of its own name."""
    paths = list(MODULES.glob("*.so"))
    assert "null" in {path.stem for path in paths}
    for path in paths:
        owners = [each for each in registry.DESCRIBED if each.owns(path.stem)]
        assert len(owners) <= 1 or all(isinstance(each, TorchLibrary) for each in owners), path
        assert owners or path.stem in registry.known_names()


def test_a_plain_module_needs_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module without a descriptor has the defaults, and is started by name alone."""
    monkeypatch.setattr(registry, "DESCRIBED", tuple(each for each in registry.DESCRIBED if each.name != "null"))
    assert "null" in registry.known_names()
    plain = registry.describe("null")
    assert type(plain) is Library
    assert plain.locate() == (str(MODULES / "null.so"), "")
    assert not plain.automatic
    assert plain.measured
    assert "null" not in registry.automatic()


def test_a_module_that_is_not_there() -> None:
    """It is unavailable, with advice."""
    with pytest.raises(BackendUnavailableError, match="reinstall mcr_dl"):
        Library("nothing").locate()


def test_a_library_that_fails_in_a_way_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank has to learn of it: the error is an answer, and not raised on the one rank."""

    def load(_: str) -> str:
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "invalid start byte")

    monkeypatch.setattr(registry, "load", load)
    found = registry.condition("mpi", 2, named=False)
    assert found.problem.startswith("backend 'mpi' is unavailable: UnicodeDecodeError: ")
    assert not found.absent


def test_files_that_are_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for MPI leaves them out; one that the variable names cannot be loaded, which the error says."""
    (tmp_path / "libmpi.so.12").touch()
    (tmp_path / "libmpi.so.40").symlink_to("nothing")
    (tmp_path / "libmpich.so.12").write_bytes(b"\x7fELF" + bytes([2 if sys.maxsize > 2**32 else 1]))
    monkeypatch.setattr(mpi, "_places", lambda: {(tmp_path, "in a test"): None})
    found = [each.path for each in mpi._candidates() if each.how == "in a test"]
    assert found == [str(tmp_path / "libmpich.so.12")]
    monkeypatch.setenv("MCR_DL_MPI_LIB", str(tmp_path / "libmpi.so.12"))
    with pytest.raises(BackendUnavailableError, match=r"libmpi\.so\.12 \(named by MCR_DL_MPI_LIB\) cannot be loaded"):
        mpi.load()


def test_what_auto_starts() -> None:
    """Real libraries in order of preference; each is a backend of its own folder or torch's."""
    assert {"mpi", "nccl", "gloo", "shm"} <= set(registry.automatic())
    assert {"null", "fake"} & set(registry.automatic()) == set()
    assert registry.first_for("cuda") == "nccl"
    assert registry.automatic("cpu")[:2] == ["shm", registry.first_for("cpu")]
    for name in registry.automatic():
        assert (BACKENDS / name).is_dir() or isinstance(registry.describe(name), TorchLibrary)


@pytest.mark.parametrize(
    ("action", "result"),
    [
        (lambda store: store.compare_set("key", "", "value"), b"value"),
        (lambda store: [store.append("key", "va"), store.append("key", "lue"), store.get("key")][-1], b"value"),
        (lambda store: [store.multi_set(["a", "b"], ["1", "2"]), store.multi_get(["b", "a"])][-1], [b"2", b"1"]),
        (lambda store: [store.add("a", 3), store.set("b", ""), store.num_keys()][-1], 2),
        (lambda store: [store.set("key", "value"), store.clone().get("key")][-1], b"value"),
        (lambda store: [store.set("key", "value"), store.delete_key("key"), store.check(["key"])][1:], [True, False]),
    ],
    ids=["compare_set", "append", "multi_set", "num_keys", "clone", "delete_key"],
)
def test_a_store_for_a_library(action: Callable[[Any], Any], result: Any) -> None:
    """A backend of another package calls any method, through C++."""
    group: Any = SimpleNamespace(_label="a group", size=lambda: 1, timeout=timedelta(seconds=10))
    watched = WatchedStore("library", torch_dist.HashStore(), group)
    assert action(torch_dist.PrefixStore("mine/", watched)) == result


_THIRD_PARTY = """
import mcr_dl, torch
print(mcr_dl.available_backends()["mine"])
mcr_dl.init(["mine"])
x = torch.ones(3)
mcr_dl.all_reduce("mine", x)
mcr_dl.all_reduce(x, backend="mine", async_op=True).wait()
print(mcr_dl.get_backends())
"""


def test_third_party_backend(tmp_path: Path) -> None:
    """A backend of another package is found by its entry point."""
    module = Path(mcr_dl._C.__file__).parent / "_backends" / "null.so"
    (tmp_path / "their_backend.py").write_text(f"def path():\n    return {str(module)!r}\n")
    info = tmp_path / "their_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mcr_dl.backends]\nmine = their_backend:path\n")
    path = launchers.environment()["PYTHONPATH"]
    code, out, err = launchers.python("-c", _THIRD_PARTY, PYTHONPATH=f"{tmp_path}:{path}")
    assert code == 0, err
    assert "ok: does nothing" in out
    assert "['mine']" in out


def test_headers() -> None:
    """All that the interface includes is installed, and no header of a higher layer."""
    folder = Path(mcr_dl.include_path())
    assert {path.name for path in folder.iterdir()} == {"base", "device", "plugin"}
    assert (folder / "plugin" / "backend.h").exists()
    assert Path(mcr_dl.library_path()).exists()
