# SPDX-License-Identifier: Apache-2.0
"""A store that counts its requests, and the ranks and calls of a large job."""

from __future__ import annotations

from collections import Counter
from typing import Any

SIZE = 1000
RANKS = list(range(SIZE))
CALL = {"op": "all_reduce", "dtype": "float32", "red": "SUM", "root": None, "bytes": 4, "backend": "mpi"}
CALL |= {"async": False, "caller": None, "history": "0"}


class Counted:
    """A store that counts its requests."""

    def __init__(self, store: Any) -> None:
        self.store, self.made = store, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.made[name] += 1
        return getattr(self.store, name)

    @property
    def requests(self) -> int:
        """The number of all requests; its timeout is known without one."""
        return self.made.total() - self.made["timeout"]

    def forget(self) -> None:
        """Count anew."""
        self.made = Counter()
