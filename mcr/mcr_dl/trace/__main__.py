# SPDX-License-Identifier: Apache-2.0
"""``python -m mcr_dl.trace`` runs ``mcr-trace``."""

import sys

from mcr_dl._commands import trace

sys.exit(trace())
