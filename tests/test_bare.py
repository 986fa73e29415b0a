# SPDX-License-Identifier: Apache-2.0
"""With torch and NumPy alone: the library works, and each command names the package that it lacks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tables
from harness import launchers
from mcr_dl.tables import table
from mcr_dl.tables.host import host

# Packages that the program's own process cannot find.
BLOCK = """
import sys

class Absent:
    names = {"hypothesis", "jsonschema", "matplotlib", "mpi4py", "platformdirs", "pytest", "rich", "zfpy"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

sys.meta_path.insert(0, Absent())
"""

PROGRAM = """
import torch
import mcr_dl
from datetime import timedelta

mcr_dl.init_process_group("gloo", store=mcr_dl.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=20))
group = mcr_dl.new_group([0])
x = torch.arange(4.0)
mcr_dl.all_reduce(x)
mcr_dl.all_reduce("gloo", x, async_op=True).wait()
y = torch.empty(4)
mcr_dl.all_gather_single(y, x, group=group)
assert y.tolist() == [0.0, 1.0, 2.0, 3.0], y
mcr_dl.set_passes(["log", "fuse"])
mcr_dl.all_reduce(x)
assert mcr_dl.log_records()
objects = [None]
mcr_dl.all_gather_object(objects, {"rank": 0})
assert objects == [{"rank": 0}]
print(mcr_dl.explain("all_reduce", 4).candidate, sorted(mcr_dl.available_backends()))
mcr_dl.destroy_process_group()
loaded = Absent.names & {name.partition(".")[0] for name in sys.modules}
assert not loaded, loaded
print("done")
"""

# Ctrl-C as torch is imported, which must not have been before.
INTERRUPT = """
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise KeyboardInterrupt
        return None

sys.meta_path.insert(0, Interrupt())
assert "torch" not in sys.modules
"""

TABLE = """
import mcr_dl
try:
    mcr_dl.init_process_group("gloo", tuning_table=sys.argv[1])
except mcr_dl.InvalidArgumentError as error:
    print(error)
"""


def _run(program: str, *arguments: str) -> launchers.Ended:
    return launchers.python("-c", BLOCK + program, *arguments)


def test_the_library_needs_torch_and_numpy_alone() -> None:
    """Import, init, groups, calls, passes, the log, objects."""
    result = _run(PROGRAM)
    assert result.code == 0, result.err
    assert result.out.endswith("done\n")


def test_the_place_of_the_table_is_the_same() -> None:
    """A table that mcr-tune has written is found without platformdirs too."""
    result = _run("from mcr_dl.tables import host, table\nprint(table.default_path(host.host()))")
    assert result.out.strip() == str(table.default_path(host())), result.err


@pytest.mark.parametrize("home", [None, "/home/other", "other", ""])
@pytest.mark.parametrize("cache", [None, "/cache", "cache", " /cache", ""])
def test_the_place_of_the_cache_is_the_same(
    monkeypatch: pytest.MonkeyPatch, home: str | None, cache: str | None
) -> None:
    """Whatever the variables say: relative ones count as not set."""
    for name, value in (("HOME", home), ("XDG_CACHE_HOME", cache)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    usual = table.default_path(host())
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert table.default_path(host()) == usual


def test_a_named_table_needs_jsonschema(tmp_path: Path) -> None:
    """One clear error."""
    path = tmp_path / "table.json"
    table.write(tables.make(), path)
    result = _run(TABLE, str(path))
    assert "pip install jsonschema" in result.out, result.err


@pytest.mark.parametrize("command", ["bench", "info", "trace", "tune"])
def test_commands_say_what_they_lack(command: str) -> None:
    """One line and exit code 2."""
    result = _run(f"import mcr_dl_commands\nsys.exit(mcr_dl_commands.{command}())")
    assert result.code == 2
    assert result.err == f"mcr-{command}: error: needs rich, which is not installed: pip install rich\n"


@pytest.mark.parametrize("module", ["bench", "info", "testing", "trace", "tuning"])
def test_modules_say_what_they_lack(module: str) -> None:
    """As ``python -m``."""
    result = _run(f"import runpy\nrunpy.run_module('mcr_dl.{module}', run_name='__main__', alter_sys=True)")
    assert result.code == 2, result.err
    assert result.err.endswith(": error: needs rich, which is not installed: pip install rich\n")
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["bench", "info", "trace", "tune"])
def test_an_interrupt_while_a_command_is_imported(command: str) -> None:
    """It ends the command quietly, however early it comes: torch is imported inside the entry point."""
    program = "import sys\nimport mcr_dl_commands\n" + INTERRUPT + f"sys.exit(mcr_dl_commands.{command}())"
    assert launchers.python("-c", program) == (130, "", "")
