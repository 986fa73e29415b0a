# SPDX-License-Identifier: Apache-2.0
"""For programs in which a thread acts once another one is in a call of mcr_dl."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mcr_dl import _C


def await_call(thread: int) -> None:
    """Wait until the thread of this native identifier is in a call, or waits for an operation."""
    while all(each["thread"] != thread for each in _C.activities()):
        time.sleep(0.001)  # the test has a time limit


def once_in_a_call(action: Callable[..., object], *arguments: object) -> None:
    """Call a function on another thread once the present one is in a call."""
    caller = threading.get_native_id()

    def act() -> None:
        await_call(caller)
        action(*arguments)

    threading.Thread(target=act, daemon=True).start()
