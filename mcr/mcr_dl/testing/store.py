# SPDX-License-Identifier: Apache-2.0
"""Holds the store of a job, as torchrun's agent does: ``store.py PORT``."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta

from torch.distributed import TCPStore

from mcr_dl.measure.ranks import die_with

if __name__ == "__main__":
    _store = TCPStore("127.0.0.1", int(sys.argv[1]), None, True, timedelta(seconds=60), wait_for_workers=False)
    die_with(os.getppid())
    print("ready", flush=True)
    signal.pause()
