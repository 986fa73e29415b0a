# SPDX-License-Identifier: Apache-2.0
"""An MPICH without MPI 4, made from the installed one."""

from __future__ import annotations

import re
import struct
import sysconfig
from pathlib import Path

_DYNSYM = 11  # a section's type in ELF
_SYMBOL = 24  # bytes of one


def make(folder: Path) -> Path:
    """Put MPICH's libmpi into the folder without the functions that take 64-bit counts (MPI_Bcast_c)."""
    source = Path(sysconfig.get_path("data")) / "lib"
    for each in source.glob("*"):  # libmpi looks for the libraries that it needs in its own folder
        if not each.name.startswith("libmpi."):
            (folder / each.name).symlink_to(each)
    data = bytearray((source / "libmpi.so.12").read_bytes())
    (start,) = struct.unpack_from("<Q", data, 40)
    (count,) = struct.unpack_from("<H", data, 60)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * each) for each in range(count)]
    symbols = next(section for section in sections if section[1] == _DYNSYM)
    names = sections[symbols[6]][4]
    for at in range(symbols[4], symbols[4] + symbols[5], _SYMBOL):
        name = names + int(struct.unpack_from("<I", data, at)[0])
        if re.fullmatch(rb"MPI_\w+_c", data[name : data.index(0, name)]):
            struct.pack_into("<I", data, at, 0)  # a symbol without a name is not found
    library = folder / "libmpi.so.12"
    library.write_bytes(data)
    return library
