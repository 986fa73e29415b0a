# SPDX-License-Identifier: Apache-2.0
"""``python -m mcr_dl.tuning`` is ``mcr-tune``."""

import sys

from mcr_dl.tuning.cli import main

sys.exit(main())
