# SPDX-License-Identifier: Apache-2.0
"""The hook in DeepSpeed, on packages that stand in for it; tests/integrations has the real one."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from harness import launchers

WORKING = """
    class TorchBackend:
        def __init__(self, backend=None):
            self.backend = backend
"""


def run(program: str, folder: Path, **variables: str) -> str:
    """The output of a program that finds the packages of the folder first."""
    path = f"{folder}:{launchers.environment()['PYTHONPATH']}"
    done = launchers.python("-c", textwrap.dedent(program), limit=90, PYTHONPATH=path, **variables)
    assert done.code == 0, done.err
    return done.out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder for ``deepspeed.comm.torch`` of a "DeepSpeed 9.9"."""
    for package in ("deepspeed", "deepspeed/comm"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "deepspeed" / "comm" / "comm.py").write_text("cdb = None\n")
    facts = tmp_path / "deepspeed-9.9.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 9.9\n")
    return tmp_path


def write(folder: Path, source: str) -> None:
    """Write the module that is hooked."""
    (folder / "deepspeed" / "comm" / "torch.py").write_text(textwrap.dedent(source))


CAUGHT = """
    import mcr_dl
    try:
        mcr_dl.deepspeed.install()
    except mcr_dl.BackendUnavailableError as error:
        print(error)
"""


def test_no_deepspeed(tmp_path: Path) -> None:
    """install() says what to install."""
    program = "import sys; sys.modules['deepspeed'] = None\n" + textwrap.dedent(CAUGHT)
    assert "expected an installed DeepSpeed, found none; `pip install deepspeed`" in run(program, tmp_path)


def test_a_version_without_the_class(folder: Path) -> None:
    """install() names the version and the missing part; so does the variable, when DeepSpeed is imported."""
    write(folder, "")
    wanted = "expected deepspeed.comm.torch.TorchBackend, which DeepSpeed 9.9 does not have"
    assert wanted in run(CAUGHT, folder)
    program = """
        import torch
        try:
            import deepspeed.comm.torch
        except RuntimeError as error:
            print(type(error).__name__, error)
    """
    assert f"BackendUnavailableError deepspeed: {wanted}" in run(program, folder, MCR_DL_DEEPSPEED="1")
    assert run(program, folder) == ""


def test_a_version_without_the_module(folder: Path) -> None:
    """install() names the version."""
    text = run(CAUGHT, folder)
    assert "expected deepspeed.comm.torch of DeepSpeed 9.9 to be importable" in text


def test_others_are_left_alone(folder: Path) -> None:
    """Without install(), the variable or the name "mcr", DeepSpeed makes its own object, in any import order."""
    write(folder, WORKING)
    program = """
        import {}
        import {}
        from deepspeed.comm.torch import TorchBackend
        made = TorchBackend("gloo")
        print(type(made).__module__, made.backend)
    """
    for order in (("mcr_dl", "deepspeed.comm.torch"), ("deepspeed.comm.torch", "mcr_dl")):
        assert run(program.format(*order), folder) == "deepspeed.comm.torch gloo\n"


@pytest.mark.parametrize("value", ["yes", "2"])
def test_a_wrong_variable(folder: Path, value: str) -> None:
    """The value must be 0 or 1."""
    write(folder, WORKING)
    program = """
        import torch
        import mcr_dl
        try:
            import deepspeed.comm.torch
        except mcr_dl.InvalidArgumentError as error:
            print(error)
    """
    assert run(program, folder, MCR_DL_DEEPSPEED=value) == f"MCR_DL_DEEPSPEED: expected 0 or 1, got '{value}'\n"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_misspelt_variable(folder: Path, rank: int) -> None:
    """Rank 0 warns of it when DeepSpeed is imported, which then uses its own object."""
    write(folder, WORKING)
    program = """
        import warnings
        import torch
        with warnings.catch_warnings(record=True) as caught:
            from deepspeed.comm.torch import TorchBackend
        print(type(TorchBackend("gloo")).__module__)
        print(*(warning.message for warning in caught))
    """
    place = {"RANK": str(rank), "WORLD_SIZE": "2"}
    made, text = run(program, folder, MCR_DL_DEEPSPED="1", **place).splitlines()
    assert made == "deepspeed.comm.torch"
    assert ("MCR_DL_DEEPSPED (did you mean MCR_DL_DEEPSPEED?)" in text) is (rank == 0)


def test_import_of_torch_stays_quick(folder: Path) -> None:
    """Neither torch's nor DeepSpeed's import loads mcr_dl if no variable is set for it, though torch knows its backend;
    the source of the hooked module can still be read."""
    write(folder, WORKING)
    program = """
        import inspect, os, sys
        for name in [name for name in os.environ if name.startswith("MCR_DL_")]:
            del os.environ[name]
        import torch
        assert torch.distributed.is_backend_available("mcr")
        import deepspeed.comm.torch as hooked
        from deepspeed.comm.torch import TorchBackend
        assert TorchBackend("gloo").backend == "gloo"
        assert not [name for name in sys.modules if name.partition(".")[0] == "mcr_dl"]
        assert "class TorchBackend" in inspect.getsource(sys.modules["deepspeed.comm.torch"])
        print("fine")
    """
    assert run(program, folder) == "fine\n"
