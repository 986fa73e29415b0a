# SPDX-License-Identifier: Apache-2.0
"""Errors of install(), on one rank: ``deepspeed_errors.py FOLDER``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import deepspeed.comm as dist
from deepspeed.comm.ccl import CCLBackend

import mcr_dl


def text_of(function: Callable[[], Any]) -> str:
    """The text of the error that the function raises."""
    try:
        function()
    except mcr_dl.InvalidArgumentError as error:
        return str(error)
    return "no error"


sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
found = {}
os.environ["MCR_DL_DEEPSPEED"] = "yes"
found["variable"] = text_of(lambda: deepspeed.init_distributed(dist_backend="gloo", verbose=False))
os.environ["MCR_DL_DEEPSPEED"] = "0"
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
found["late"] = text_of(mcr_dl.deepspeed.install)
dist.destroy_process_group()
found["unknown"] = text_of(lambda: mcr_dl.deepspeed.install("carrier pigeon"))
mcr_dl.deepspeed.install("gloo")
mcr_dl.deepspeed.install("gloo")
dist.comm.cdb = None  # as in a process where DeepSpeed has not run
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
found["twice"] = dist.comm.cdb.name
found["ccl"] = CCLBackend(rank=0, world_size=1, timeout=None, init_method=None).name
Path(sys.argv[1], "0.json").write_text(json.dumps(found))
dist.destroy_process_group()
