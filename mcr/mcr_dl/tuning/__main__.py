# SPDX-License-Identifier: Apache-2.0
"""``python -m mcr_dl.tuning`` runs ``mcr-tune``."""

import sys

from mcr_dl._commands import tune

sys.exit(tune())
