# SPDX-License-Identifier: Apache-2.0
"""``mcr-info`` on emulated hosts (hosts.py)."""

import sys

from mcr_dl.info.cli import main

sys.exit(main(sys.argv[1:]))
