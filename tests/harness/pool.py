# SPDX-License-Identifier: Apache-2.0
"""The pools of ranks of a pytest session, under all launchers of the tests."""

from __future__ import annotations

from functools import partial

from harness import launchers
from mcr_dl.testing.pool import Pool


class Pools:
    """The session's pools by launcher and size; only a few live at a time, as every rank holds a complete torch."""

    _LIMIT = 5

    def __init__(self) -> None:
        self._pools: dict[tuple[str, int], Pool] = {}

    def get(self, launcher: str, size: int) -> Pool:
        """The living pool of that kind, or a new one."""
        key = (launcher, size)
        pool = self._pools.pop(key, None)
        if pool is None or not pool.alive:
            while len(self._pools) >= self._LIMIT:
                self._pools.pop(next(iter(self._pools))).close()
            pool = Pool(size, partial(launchers.start, launcher), f"{size} ranks under {launcher}")
        self._pools[key] = pool
        return pool

    def close(self) -> None:
        """End all of them."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
