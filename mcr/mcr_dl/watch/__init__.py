# SPDX-License-Identifier: Apache-2.0
"""Shares the state of a job's ranks when something goes wrong: timeouts, differing calls, missing ranks.

One thread samples what the process is doing, so that timeouts cost calls nothing; one waits at the store for another
rank's alarm and answers with a report; one makes requests to the store for the others, as the store may never answer.
docs/threads.md lists all threads, docs/reliability.md the guarantees.
"""

from mcr_dl.watch._alarm import leave_member, member
from mcr_dl.watch._diagnosis import ranks_text
from mcr_dl.watch._fork import forked, refuse_fork
from mcr_dl.watch._report import identity
from mcr_dl.watch._watch import (
    Former,
    close,
    compare,
    compare_last,
    explain,
    former,
    give_up,
    has_lost,
    leave_together,
    locate,
    lost,
    replace,
    start,
    stop,
    tolerate,
    watch_processes,
)
from mcr_dl.watch.dump import prepare_folder, set_job

__all__ = [
    "Former",
    "close",
    "compare",
    "compare_last",
    "explain",
    "forked",
    "former",
    "give_up",
    "has_lost",
    "identity",
    "leave_member",
    "leave_together",
    "locate",
    "lost",
    "member",
    "prepare_folder",
    "ranks_text",
    "refuse_fork",
    "replace",
    "set_job",
    "start",
    "stop",
    "tolerate",
    "watch_processes",
]
