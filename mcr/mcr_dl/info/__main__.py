# SPDX-License-Identifier: Apache-2.0
"""``python -m mcr_dl.info`` runs ``mcr-info``."""

from __future__ import annotations

import sys

from mcr_dl_commands import info

if __name__ == "__main__":
    sys.exit(info())
