# SPDX-License-Identifier: Apache-2.0
"""Passes: a group's calls go through them before a backend gets the calls (docs/passes.md).

>>> mcr_dl.set_passes(["log", "fuse"])                           # by name, with their defaults
>>> mcr_dl.set_passes([mcr_dl.passes.Fuse(buffer_bytes=1 << 18)])
>>> mcr_dl.set_passes([])                                        # none
"""

from mcr_dl._C import Pass, PassedCall
from mcr_dl.codecs.codecs import Codec, decode, encode, error_bound, known_codecs, register_codec
from mcr_dl.passes.chain import Specification, get_passes, register_pass, set_passes
from mcr_dl.passes.compress import Compress, reset_feedback
from mcr_dl.passes.fuse import Fuse
from mcr_dl.passes.log import Log

__all__ = [
    "Codec",
    "Compress",
    "Fuse",
    "Log",
    "Pass",
    "PassedCall",
    "Specification",
    "decode",
    "encode",
    "error_bound",
    "get_passes",
    "known_codecs",
    "register_codec",
    "register_pass",
    "reset_feedback",
    "set_passes",
]


def __dir__() -> list[str]:
    """The public names, without the modules that have them."""
    return sorted(__all__)
