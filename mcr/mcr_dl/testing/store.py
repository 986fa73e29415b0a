# SPDX-License-Identifier: Apache-2.0
"""Holds the store of a job, as torchrun's agent does: ``store.py PORT``."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from torch.distributed import TCPStore

if __name__ == "__main__":
    _store = TCPStore("127.0.0.1", int(sys.argv[1]), None, True, timedelta(seconds=60), wait_for_workers=False)
    print("ready", flush=True)
    time.sleep(600)
