# SPDX-License-Identifier: Apache-2.0
"""The pass that records calls (docs/logging.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.base.whole import is_whole
from mcr_dl.records import log, printer

_MOST = 1 << 26  # largest capacity of a log


def op_of(name: str, source: str = "ops") -> str:
    """The operation behind any of its public names; InvalidArgumentError lists the names if there is no such name."""
    for row in _C.signatures():
        if row["name"] == name:
            return str(row["op"])
    known = ", ".join(row["name"] for row in _C.signatures())
    message = f"{source}: expected some of {known}, got {name!r}"
    raise InvalidArgumentError(message)


@dataclass(frozen=True)
class Log:
    """Record every call: operation, size, backend, times. Changes no call and synchronizes nothing.

    Put it first: its times do not include the passes before it. Sequence numbers count from the moment when it is set.

    Args:
        capacity: how many records the process keeps (65,536 at first); a new capacity begins an empty log.
        ops: names of the operations to record, in any public spelling; None: all.
        verbose: print a line for each call some time after it has ended, on rank 0.

    Raises InvalidArgumentError for an unknown operation or a capacity below 1 or above 67,108,864.
    """

    capacity: int | None = None
    ops: Iterable[str] | None = None
    verbose: bool = False

    name: ClassVar[str] = log.PASS

    def __post_init__(self) -> None:
        if self.capacity is not None and not is_whole(self.capacity, 1, _MOST):
            message = f"Log: capacity: expected 1 to {_MOST}, got {self.capacity!r}"
            raise InvalidArgumentError(message)
        if self.ops is not None:
            if isinstance(self.ops, str) or not isinstance(self.ops, Iterable):
                message = f"Log: ops: expected a list of names, got {self.ops!r}"
                raise InvalidArgumentError(message)
            object.__setattr__(self, "ops", tuple(dict.fromkeys(op_of(name) for name in self.ops)))

    def terms(self) -> dict[str, Any]:
        """Return no terms: a rank's records change no call."""
        return {}

    def make(self, group: _C.Group, shadow: Callable[..., _C.Group] | None = None) -> _C.Pass:
        """Make the pass of one group, which uses no shadow groups."""
        del shadow
        if self.capacity is not None:
            _C.log_resize(self.capacity)
        if self.verbose:
            printer.start(group.name())
        else:
            printer.leave_out(group.name())
        return _C.LogPass(group, None if self.ops is None else list(self.ops))
