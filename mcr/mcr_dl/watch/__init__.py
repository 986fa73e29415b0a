# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job know of each other when something goes wrong: time limits, differing calls, who is missing.

Each process has three threads of it. One samples what the process is inside of, so that no call pays for time limits;
one waits at the store for another rank's alarm and answers with a report; one asks the store for the others, as it may
never answer. docs/reliability.md says what is promised.
"""

from mcr_dl.watch._diagnosis import ranks_text
from mcr_dl.watch._fork import forked
from mcr_dl.watch._fork import text as forked_text
from mcr_dl.watch._watch import Groups, close, compare, compare_last, leave_together, start, stop

__all__ = [
    "Groups",
    "close",
    "compare",
    "compare_last",
    "forked",
    "forked_text",
    "leave_together",
    "ranks_text",
    "start",
    "stop",
]
