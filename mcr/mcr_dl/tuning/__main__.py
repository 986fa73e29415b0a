# SPDX-License-Identifier: Apache-2.0
"""``python -m mcr_dl.tuning`` runs ``mcr-tune``."""

from __future__ import annotations

import sys

from mcr_dl_commands import tune

if __name__ == "__main__":
    sys.exit(tune())
