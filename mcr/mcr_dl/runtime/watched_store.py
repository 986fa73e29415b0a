# SPDX-License-Identifier: Apache-2.0
"""A store whose waits end when the group that uses it loses a rank, or for another reason."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch.distributed as torch_dist

from mcr_dl import _C
from mcr_dl.base import addresses
from mcr_dl.base.errors import PeerLostError
from mcr_dl.base.stores import own_connection
from mcr_dl.runtime.rounds import poll


def require_all_ranks(label: str, what: str = "") -> None:
    """Raise PeerLostError if the group of this label has lost a rank; its text begins with ``what``."""
    lost = _C.lost(label)
    if lost is not None:
        raise PeerLostError(f"{what}: {lost}" if what else lost)


class WatchedStore(torch_dist.Store):
    """The part of a store below a name, for connecting the members of a group. Its timeout is the group's at first.

    torch's and the core's C++ code call it too. Keep it alive as long as what was made with it. It has no queues, as
    torch lets no class of Python have them; torch composes the other methods of a store of those that are here.
    """

    def __init__(
        self,
        name: str,
        store: torch_dist.Store,
        group: _C.Group,
        check: Callable[[Callable[[], bool]], None] | None = None,
    ) -> None:
        """``check`` gets a wait's condition and may raise; by default, it raises PeerLostError."""
        super().__init__()
        label, self._size = group._label, group.size()
        self._store = torch_dist.PrefixStore(name, store)
        self._check = check or (lambda _: require_all_ranks(label))
        self.set_timeout(group.timeout)

    @property
    def host(self) -> str:
        """The host of the job's store; empty if it has none."""
        return addresses.store_host(self._store)

    def get(self, key: str) -> bytes:
        """The value, once there is one. Raises PeerLostError, or torch's error after the store's timeout."""
        self.wait([key])
        value: bytes = self._store.get(key)
        return value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values, once all are there. Raises as ``get`` does."""
        self.wait(keys)
        values: list[bytes] = self._store.multi_get(keys)
        return values

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for the keys. Raises as ``get`` does."""
        usual: timedelta = cast(Any, self).timeout  # torch's types lack it
        limit = (timeout or usual).total_seconds()

        def there() -> bool:
            return bool(self._store.check(keys))

        if not poll(there, limit, partial(self._check, there), size=self._size):
            raise torch_dist.DistStoreError(f"timed out after {limit:g} s for {', '.join(keys)}")

    def set(self, key: str, value: Any) -> None:
        """Set a value."""
        self._store.set(key, value)

    def add(self, key: str, value: int) -> int:
        """Add to a number."""
        return int(self._store.add(key, value))

    def compare_set(self, key: str, expected_value: Any, desired_value: Any) -> bytes:
        """Set a value if the present one is the expected one (empty: there is none). Returns the one that is there."""
        value: bytes = self._store.compare_set(key, expected_value, desired_value)
        return value

    def deleteKey(self, key: str) -> bool:  # the name by which C++ calls it
        """Delete a value."""
        return bool(self._store.delete_key(key))

    def check(self, keys: list[str]) -> bool:
        """Whether all keys have values."""
        return bool(self._store.check(keys))

    def getNumKeys(self) -> int:  # the name by which C++ calls it
        """The number of keys, with those of others."""
        return int(self._store.num_keys())

    def clone(self) -> torch_dist.Store:
        """The part of the store over a connection of its own, if possible; its waits end only with the timeout."""
        return own_connection(self._store)
