# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job know of each other when something goes wrong: time limits, differing calls, who is missing.

Each process has two threads of it. One samples what the process is inside of, so that no call pays for time limits; the
other waits at the store for another rank's alarm and answers with a report. docs/reliability.md says what is promised.
"""

from mcr_dl.watch._fork import forked
from mcr_dl.watch._fork import text as forked_text
from mcr_dl.watch._watch import Watch, close, current, leave_together, start, stop

__all__ = ["Watch", "close", "current", "forked", "forked_text", "leave_together", "start", "stop"]
