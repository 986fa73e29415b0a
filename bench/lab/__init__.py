# SPDX-License-Identifier: Apache-2.0
"""A cluster on one machine: hosts are network namespaces with NICs of given rates. See docs/lab.md.

``with Lab(hosts=2) as lab: job = lab.start(["python", "script.py"]); result = job.wait(60)``
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

from lab.cluster import Lab  # noqa: E402  its modules take ROOT from here
from lab.job import Job, Result  # noqa: E402
from lab.plan import LabError, Shape  # noqa: E402

__all__ = ["ROOT", "Job", "Lab", "LabError", "Result", "Shape"]
