# SPDX-License-Identifier: Apache-2.0
"""Tensor fusion: small asynchronous collectives of one kind travel in one buffer (MCR-DL paper, section V-E)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.base.whole import is_whole
from mcr_dl.libraries import registry
from mcr_dl.libraries.descriptor import FusionLimits

_MOST = 1 << 40


@dataclass(frozen=True)
class Fuse:
    """Hold small asynchronous all_reduce, broadcast, all_gather and reduce_scatter calls, and send them together.

    Calls share a buffer if they agree in operation, dtype, reduction, root and backend. A buffer is flushed when it is
    full, when its first call has waited long enough, when the program waits for one of its calls, or when it makes a
    blocking call on the group. The ranks agree on each flush (docs/passes.md).

    Args:
        buffer_bytes: the size of a buffer, the paper's B.
        hold_microseconds: how long a call may wait for others, the paper's T.
        largest_bytes: calls with more bytes are not held; at most ``buffer_bytes``.

    None stands for the backend's own: 256 KiB, 200 µs and 32 KiB for MPI; 1 MiB, 1000 µs and 64 KiB for others. Without
    ``buffer_bytes``, a buffer has at least ``largest_bytes``.

    Raises InvalidArgumentError for an invalid size or time.
    """

    buffer_bytes: int | None = None
    hold_microseconds: int | None = None
    largest_bytes: int | None = None

    name: ClassVar[str] = "fuse"

    def __post_init__(self) -> None:
        for field, least in (("buffer_bytes", 1), ("hold_microseconds", 0), ("largest_bytes", 1)):
            value = getattr(self, field)
            if value is not None and not is_whole(value, least, _MOST):
                wanted = f"at most {_MOST}" if isinstance(value, int) and value > _MOST else f"{least} or more"
                message = f"Fuse: {field}: expected {wanted}, got {value!r}"
                raise InvalidArgumentError(message)
        if self.buffer_bytes and self.largest_bytes and self.largest_bytes > self.buffer_bytes:
            message = (
                f"Fuse: largest_bytes: expected at most buffer_bytes ({self.buffer_bytes}), got {self.largest_bytes}"
            )
            raise InvalidArgumentError(message)

    def terms(self) -> dict[str, Any]:
        """All options."""
        return asdict(self)

    def limits(self, backend: str) -> FusionLimits:
        """The limits for one backend: the options, or its defaults where none are given."""
        default = registry.describe(backend).fusion
        buffer = self.buffer_bytes or max(default.buffer_bytes, self.largest_bytes or 0)
        hold = default.hold_microseconds if self.hold_microseconds is None else self.hold_microseconds
        return FusionLimits(buffer, hold, min(self.largest_bytes or default.largest_bytes, buffer))

    def make(self, group: _C.Group, shadow: Callable[..., _C.Group]) -> _C.Pass:
        """Make the pass of one group, with a shadow group for the fused calls."""
        limits = {name: self.limits(name) for name in group.backends}
        plain = {name: (one.buffer_bytes, one.largest_bytes, one.hold_microseconds) for name, one in limits.items()}
        return _C.FusePass(shadow("fuse", rest=True), plain)
