# SPDX-License-Identifier: Apache-2.0
"""mcr_dl's declarations of MPI's ABIs (src/backends/mpi/abi*.h), compared with MPICH's and Open MPI's headers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from harness import launchers

ROOT = Path(__file__).resolve().parent.parent
ABIS = ROOT / "src" / "backends" / "mpi"
PROGRAM = Path(__file__).parent / "programs" / "mpi_facts.cc"
CXX = os.environ.get("CXX", "c++")
MODULES = [("mpich", 4), ("mpich", 3), ("openmpi", 3)]  # as in CMakeLists.txt: the ABI, the version of the standard


def prefix(family: str) -> Path:
    return launchers.openmpi() if family == "openmpi" else Path(sysconfig.get_path("data"))


def library(family: str) -> Path:
    return launchers.openmpi_library() if family == "openmpi" else prefix(family) / "lib" / "libmpi.so.12"


def definitions(family: str, version: int) -> list[str]:
    return [f'-DMCR_MPI_ABI="abi_{family}.h"', f"-DMCR_MPI_VERSION={version}", f"-I{ROOT / 'src'}"]


def execute(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def declared(family: str, version: int) -> dict[str, str]:
    """All names in mcr_dl's headers: types, the fields of MPI_Status, and the rest, which has values."""
    header = ABIS / "abi.h"
    text = execute(CXX, "-std=c++20", "-E", "-P", "-x", "c++", *definitions(family, version), header)
    text = re.sub(r'"[^"]*"', "", text)
    types = set(re.findall(r"\busing (MPI_\w+)", text)) | set(re.findall(r"\bstruct (MPI_\w+)", text))
    fields = set(re.findall(r"\bint (MPI_\w+);", text))
    names = sorted(set(re.findall(r"\bMPI_\w+", text)))
    return {name: "FIELD" if name in fields else "TYPE" if name in types else "VALUE" for name in names}


def facts(folder: Path, header: str, include: Path, family: str, version: int) -> list[str]:
    """The program's output for all those names when compiled against the header."""
    folder.mkdir()
    names = declared(family, version)
    (folder / "facts.inc").write_text("".join(f"{kind}({name})\n" for name, kind in names.items()))
    program = folder / "facts"
    flags = [
        "-std=c++20",
        *(["-DOURS"] if header == "abi.h" else []),
        "-fPIC",
        f'-DHEADER="{header}"',
        f'-DFACTS="{folder}/facts.inc"',
        "-DOMPI_SKIP_MPICXX",
    ]
    libmpi = library(family)
    link = [libmpi, f"-Wl,-rpath,{libmpi.parent}", "-Wl,--allow-shlib-undefined"]
    execute(CXX, *flags, *definitions(family, version), f"-I{include}", PROGRAM, *link, "-o", program)
    return execute(program).splitlines()


@pytest.mark.parametrize(("family", "version"), MODULES)
def test_declarations(family: str, version: int, tmp_path: Path) -> None:
    """Every type, constant and signature equals the library's own header, and every symbol is in the library."""
    ours = facts(tmp_path / "ours", "abi.h", ABIS, family, version)
    theirs = facts(tmp_path / "theirs", "mpi.h", prefix(family) / "include", family, version)
    assert ours == theirs
    assert len(ours) > 100


@pytest.mark.parametrize(
    ("family", "right", "wrong"),
    [
        ("mpich", "MPI_SUM = 0x58000003", "MPI_SUM = 0x58000001"),
        ("mpich", "MPI_Count = long long", "MPI_Count = int"),
        ("mpich", "int count_lo;", "long count_lo;"),
        ("openmpi", '"ompi_mpi_op_sum"', '"ompi_mpi_op_max"'),
        ("openmpi", "std::size_t _ucount;", ""),
    ],
)
def test_a_wrong_declaration_is_found(family: str, right: str, wrong: str, tmp_path: Path) -> None:
    """The comparison detects a constant, a width and a layout that differ from the library's."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for header in ABIS.glob("abi*.h"):
        shutil.copy(header, copy)
    changed = copy / f"abi_{family}.h"
    assert right in changed.read_text()
    changed.write_text(changed.read_text().replace(right, wrong))
    ours = facts(tmp_path / "ours", "abi.h", copy, family, 3)
    assert ours != facts(tmp_path / "theirs", "mpi.h", prefix(family) / "include", family, 3)
