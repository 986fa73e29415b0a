# SPDX-License-Identifier: Apache-2.0
"""``python -m mcr_dl.bench`` runs ``mcr-bench``."""

from __future__ import annotations

import sys

from mcr_dl_commands import bench

if __name__ == "__main__":
    sys.exit(bench())
