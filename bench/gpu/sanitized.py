# SPDX-License-Identifier: Apache-2.0
"""A small run for compute-sanitizer: every function, blocking and asynchronous, in this process alone.

compute-sanitizer --tool memcheck python -m gpu.sanitized
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

_COUNT = 1001


def main() -> int:
    """Run it; exit code 1 if a value is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    import mcr_dl
    from mcr_dl.measure import devices
    from mcr_dl.testing import checks, session
    from mcr_dl.testing.calls import OPS, SIGNATURES, Case, layouts

    devices.take(given.device)
    session.start(given.backend)
    session.groups()
    done = 0
    for function, row in SIGNATURES.items():
        if OPS[row["op"]]["peer"]:
            continue
        for layout in layouts(function):
            case = Case(function, "float32", "SUM", _COUNT, layout, backend=given.backend, device=given.device)
            for asynchronous in (False, True):
                checks.run(replace(case, asynchronous=asynchronous, seed=done))
                done += 1
    mcr_dl.finalize()
    print(f"{done} cases run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
