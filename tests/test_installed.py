# SPDX-License-Identifier: Apache-2.0
"""An installation that cannot work reports it before _C is loaded. (`make install-check` makes real ones.)"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from harness import launchers
from mcr_dl import _installed

ROOT = Path(__file__).resolve().parent.parent
WITHOUT_FINDER = ROOT / "tests" / "sanitize"  # its sitecustomize.py lets PYTHONPATH override an editable install

USE = """
import torch
import torch.distributed as dist
assert hasattr(dist.Backend, "MCR")
print("torch works", flush=True)
dist.init_process_group("mcr", store=dist.HashStore(), rank=0, world_size=1)
"""


def execute(package: Path, program: str) -> launchers.Ended:
    """Run a program that finds mcr_dl in the folder."""
    return launchers.python("-c", program, limit=120, PYTHONPATH=f"{WITHOUT_FINDER}:{package}")


@pytest.fixture
def for_another_torch(tmp_path: Path) -> Path:
    """The package as built against another torch; its _C cannot be loaded."""
    shutil.copytree(ROOT / "mcr" / "mcr_dl", tmp_path / "mcr_dl", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "mcr_dl" / "_build.py").write_text('TORCH = "2.10.0"\n')
    return tmp_path


def test_a_build_against_another_torch(for_another_torch: Path) -> None:
    """The import names both versions and the remedy."""
    done = execute(for_another_torch, "import mcr_dl")
    assert done.code == 1
    expected = f"ImportError: mcr_dl was built against torch 2.10.0, found {torch.__version__}; reinstall it"
    assert expected in done.err
    assert "reinstall it from its source: pip install --no-deps ." in done.err


def test_torch_still_works(for_another_torch: Path) -> None:
    """`import torch`, which loads the entry point, prints nothing; the first use of "mcr" names the error."""
    assert execute(for_another_torch, "import torch").err == ""
    done = execute(for_another_torch, USE)
    assert done.out == "torch works\n"
    assert done.code == 1
    assert "ImportError: mcr_dl was built against torch 2.10.0" in done.err


def test_a_source_tree_without_a_build() -> None:
    """The error says how to build."""
    done = execute(ROOT / "mcr", "import mcr_dl")
    assert done.code == 1
    assert f"ImportError: mcr_dl in {ROOT}/mcr/mcr_dl has not been built: run `make build`" in done.err


@pytest.mark.parametrize(
    ("built", "found", "fits"),
    [
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.0+cpu", "2.13.0+cu130", True),
        ("2.13.0", "2.13.1", True),
        ("2.13.1", "2.13.0.post2", True),
        ("2.13.0", "2.12.1", False),
        ("2.1.0", "2.13.0", False),
        ("2.13.0", "3.13.0", False),
        ("2.14.0.dev20261101+cpu", "2.14.0.dev20261101+cu130", True),
        ("2.14.0.dev20261101", "2.14.0.dev20261102", False),
        ("2.14.0a0+git1234567", "2.14.0", False),
    ],
)
def test_which_torch_fits(built: str, found: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minor version matches; a pre-release only itself. A wheel's requirement agrees with the check at import."""
    assert (_installed.problem(built, found) == "") == fits
    provider = ROOT / "mcr" / "mcr_dl_build" / "torch_requirement.py"
    spec = importlib.util.spec_from_file_location("torch_requirement", provider)
    assert spec is not None
    assert spec.loader is not None
    provider = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(provider)
    monkeypatch.setattr(provider, "version", lambda _: built)
    entry = {"dependencies": ["numpy"], "oldest-torch": "2.8"}
    first, requirement = provider.dynamic_metadata(entry, {})["dependencies"]
    assert first == "numpy"
    assert Requirement(requirement).specifier.contains(found, prereleases=True) == fits


def test_the_requirement_of_this_installation() -> None:
    """The metadata of this installation names the minor version of the torch that it was built against."""
    requirements = importlib.metadata.requires("mcr-dl") or []
    torch_alone = next(each for each in map(Requirement, requirements) if each.name == "torch")
    assert str(torch_alone.specifier) == f"=={'.'.join(torch.__version__.split('.')[:2])}.*"
