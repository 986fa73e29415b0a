# SPDX-License-Identifier: Apache-2.0
"""``python -m mcr_dl.trace`` runs ``mcr-trace``."""

from __future__ import annotations

import sys

from mcr_dl_commands import trace

if __name__ == "__main__":
    sys.exit(trace())
