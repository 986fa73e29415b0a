# SPDX-License-Identifier: Apache-2.0
"""The exceptions of MCR-DL. Each derives from one of torch's, so that existing ``except`` clauses catch it."""

from __future__ import annotations

from torch.distributed import DistBackendError

from mcr_dl import _C


class McrError(DistBackendError):
    """Base of all errors that MCR-DL raises itself (a ``torch.distributed.DistBackendError``)."""


class InvalidArgumentError(McrError, ValueError):
    """An argument's value is wrong: size, count, displacement, root, name. Nothing was sent."""


class InvalidTypeError(McrError, TypeError):
    """An argument's type or dtype is wrong. Nothing was sent."""


class UnsupportedError(McrError, NotImplementedError):
    """The backend has no such operation for this dtype or device, and no fallback is allowed. Nothing was sent."""


class NotInitializedError(McrError, ValueError):
    """A call before ``init``, after ``finalize``, or for a backend that was not named at ``init``."""


class BackendUnavailableError(McrError):
    """A backend cannot be used here; the text says why."""

    def __init__(self, text: str = "", *, absent: bool = False, elsewhere: bool = False) -> None:
        """``absent``: the machine has no such library or device; otherwise it has one that cannot be used.

        ``elsewhere``: it cannot be used on another rank, which tells the others.
        """
        super().__init__(text)
        self.absent, self.elsewhere = absent, elsewhere


class BackendError(McrError):
    """The communication library reported a failure; the text is the library's own."""


class PeerLostError(BackendError):
    """A rank of the group is lost: its process has ended, or its host does not answer. Later calls raise it too."""


class CollectiveTimeoutError(McrError, TimeoutError):
    """An operation was still running when its timeout passed."""


class DesyncError(McrError):
    """Ranks made different calls, or calls in different orders (``MCR_DL_DEBUG=detail``). All ranks raise it."""


def text_of(error: BaseException) -> str:
    """The text of an error for the other ranks, which is never empty; errors other than those above need the name of
    their class."""
    name, text = type(error).__name__, str(error)
    return text or name if isinstance(error, McrError) else f"{name}: {text}"


def refuse_class(source: str, given: object) -> None:
    """Raise InvalidTypeError, which names the source, for a class in place of an object."""
    if isinstance(given, type):
        raise InvalidTypeError(
            f"{source}: expected an object, got the class {given.__name__}: write {given.__name__}()"
        )


KINDS = {kind.__name__: kind for kind in (*McrError.__subclasses__(), PeerLostError)}
"""The errors by name, as the core and the other ranks name them."""

_C.set_exceptions(KINDS)
