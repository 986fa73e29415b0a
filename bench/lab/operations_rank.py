# SPDX-License-Identifier: Apache-2.0
"""One rank of the table of operations in the lab: the cases of `selection`, checked against plain torch.

Rank 0 writes a JSON file with the checked cases. A case that hangs is named, and ends the rank.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import mcr_dl
from lab import selection
from mcr_dl.testing import checks, session
from mcr_dl.testing.calls import Case

_LINE_SECONDS = 10.0


class Watch:
    """Ends this process when a case takes too long, with the case's name and the stacks of all threads."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.case = "starting"
        self.begin = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def next(self, case: Case) -> None:
        """Note that a case begins."""
        self.case, self.begin = str(case), time.monotonic()

    def _watch(self) -> None:
        while time.monotonic() - self.begin < self.limit:
            time.sleep(0.2)
        print(f"no end after {self.limit:.0f} s: {self.case}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(3)


def run(cases: list[Case], watch: Watch, *, talk: bool) -> int:
    """Run the cases in order; returns their number."""
    done, spoken = 0, time.monotonic()
    for case in cases:
        watch.next(case)
        try:
            done += checks.run_all([case])
        except Exception as error:
            raise AssertionError(f"{case}") from error
        if talk and time.monotonic() - spoken > _LINE_SECONDS:
            spoken = time.monotonic()
            print(f"{done} of {len(cases)} cases", flush=True)
    return done


def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=selection.EACH)
    parser.add_argument("--limit", type=float, default=60, help="seconds for one case")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    watch = Watch(given.limit)
    session.start(*selection.BACKENDS)
    begin = time.monotonic()
    cases = selection.chosen(mcr_dl.get_world_size(), given.each)
    me = mcr_dl.get_rank()
    done = run(cases, watch, talk=me == 0)
    counts: list[int] = [0] * mcr_dl.get_world_size()
    mcr_dl.all_gather_object(counts, done)
    if len(set(counts)) != 1 or counts[0] == 0:
        raise AssertionError(f"cases run: expected the same number on all ranks, and some, got {counts}")
    if me == 0:
        found = {
            "cases": done,
            "seconds": time.monotonic() - begin,
            "functions": len({case.function for case in cases}),
            "dtypes": len({case.dtype for case in cases}),
            "asynchronous": sum(case.asynchronous for case in cases),
            "backends": Counter(str(case.backend) for case in cases),
            "groups": Counter(case.group for case in cases),
            "layouts": Counter(case.layout for case in cases),
        }
        given.out.write_text(json.dumps(found))
    session.stop()


if __name__ == "__main__":
    main()
