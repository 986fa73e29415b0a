# SPDX-License-Identifier: Apache-2.0
"""``python -m mcr_dl.testing``: runs the cases of the operations on a backend."""

from __future__ import annotations

import sys

from mcr_dl_commands import testing

if __name__ == "__main__":
    sys.exit(testing())
