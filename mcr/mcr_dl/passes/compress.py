# SPDX-License-Identifier: Apache-2.0
"""Compression: calls on floating-point tensors travel as encoded bytes (MCR-DL paper, section V-E)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError
from mcr_dl.base.whole import is_whole
from mcr_dl.runtime import handles, state
from mcr_dl.runtime.stage import make_stage
from mcr_dl.tables import codecs as tables

# The operations with a compressed form, without receives: their sends determine the compression.
OPERATIONS = tuple(row["name"] for row in _C.ops() if row["compressible"] and row["name"] in _C.operations())


def _are_texts(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(each, str) for each in value)


@dataclass(frozen=True)
class Compress:
    """Encode the data of calls before their backend gets it (docs/compression.md).

    A call that names a codec (``codec="bf16"``) is compressed with it, or raises if that is not possible. A call that
    names no codec is compressed with the pass's codec if its operation is among ``ops``, the codec takes its dtype and
    it is not too small; otherwise it is not compressed. ``codec="none"`` turns the pass off for one call.

    Args:
        codec: the codec of calls that name none, such as ``"int8:block=64"``; "none": they are not compressed; "auto":
            the one of ``codecs`` that makes the call cheapest according to the tuning table, or none.
        ops: operations to which the pass's codec applies; by default all_reduce, reduce_scatter, all_gather and
            all_to_all. Their vectored forms are included.
        smallest: bytes, counted as in tuning tables, below which the codec does not apply. It also does not apply to
            calls whose size not all ranks know, unless this is 0: all_to_all of lists or with splits, and all_to_allv
            without a ``size_hint``.
        codecs: for "auto", the codecs whose loss is acceptable, at least one. ``mcr-tune --codecs`` measures them; a
            codec without measurements is not used.

    Raises InvalidArgumentError for an unknown codec or operation, BackendUnavailableError if the codec's library is
    missing.
    """

    codec: str = "none"
    ops: Sequence[str] | None = None
    smallest: int = 4096
    codecs: Sequence[str] = ()

    name: ClassVar[str] = "compress"

    def __post_init__(self) -> None:
        for name in ("ops", "codecs"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (value is None and name == "ops") and not _are_texts(value):
                message = f"Compress: {name}: expected a list of names, got {value!r}"
                raise InvalidTypeError(message)
        self._check_codecs()
        for op in self._ops():
            if op not in OPERATIONS:
                message = f"Compress: ops: expected some of {', '.join(OPERATIONS)}, got {op!r}"
                raise InvalidArgumentError(message)
        if not is_whole(self.smallest, 0, (1 << 62) - 1):
            message = f"Compress: smallest: expected 0 or more bytes, got {self.smallest!r}"
            raise InvalidArgumentError(message)

    def _check_codecs(self) -> None:
        accepted = [] if isinstance(self.codecs, str) else list(self.codecs)
        wrong = isinstance(self.codecs, str) or bool(accepted) != (self.codec == "auto")
        if wrong or "none" in accepted or "auto" in accepted:
            message = (
                'Compress: codecs: expected a list of codecs with codec="auto", and none with any other codec, '
                f"got {self.codecs!r} with codec {self.codec!r}"
            )
            raise InvalidArgumentError(message)
        for codec in (self.codec, *accepted):
            if _C.codec(codec)["feedback"]:
                message = (
                    "Compress: codec: expected a codec without feedback, as feedback belongs to one tensor, got "
                    f"{codec!r}: pass it in codec= of the calls"
                )
                raise InvalidArgumentError(message)

    def _codecs(self) -> list[str]:
        """The codecs' full names."""
        return [str(_C.codec(codec)["name"]) for codec in self.codecs]

    def _ops(self) -> list[str]:
        return list(tables.OPERATIONS if self.ops is None else self.ops)

    def terms(self) -> dict[str, Any]:
        """All options."""
        codec = _C.codec(self.codec)["name"]
        return {"codec": codec, "ops": sorted(self._ops()), "smallest": self.smallest, "codecs": self._codecs()}

    def make(self, group: _C.Group, shadow: Callable[..., _C.Group]) -> _C.Pass:
        """Make the pass of one group, and give the group a stage for what is issued after the calls themselves."""
        del shadow
        make_stage(group)
        ops = self._ops()
        if "send" in ops:
            ops.append("recv")
        measured = tables.measured(state.current().knowledge, group.ranks, self._codecs())
        return _C.CompressPass(group, self.codec, ops, self.smallest, measured)


def reset_feedback(group: handles.Group = None) -> None:
    """Discard the values that calls with ``feedback=<name>`` have kept, for all names of the group (None: the default).

    Every rank of the group calls this, at the same point in its calls. Raises InvalidArgumentError if the group has no
    compression pass.
    """
    if handles.left_out(group, "reset_feedback"):
        return
    where = handles.core_group(group)
    found = [station for station in _C.passes(where) if isinstance(station, _C.CompressPass)]
    if not found:
        message = f"reset_feedback: expected a group with the pass 'compress', got '{where.name()}'"
        raise InvalidArgumentError(message)
    for station in found:
        station._reset_feedback()
