# SPDX-License-Identifier: Apache-2.0
"""A cluster on one machine: hosts are network namespaces with NICs of given rates. See docs/lab.md.

``with Lab(hosts=2) as lab: job = lab.start(["python", "script.py"]); result = job.wait(60)``
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "tests") not in sys.path:  # the harness and the table of operations
    sys.path.append(str(ROOT / "tests"))

from lab.cluster import Lab  # noqa: E402  it needs the path
from lab.job import Job, Result  # noqa: E402
from lab.plan import LabError, Shape  # noqa: E402

__all__ = ["ROOT", "Job", "Lab", "LabError", "Result", "Shape"]
