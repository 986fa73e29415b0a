# SPDX-License-Identifier: Apache-2.0
"""Several lives of torch's default process group in one process."""

from __future__ import annotations

import importlib
import sys

import torch


def forget_groups() -> None:
    """Clear torch's caches that name groups, before they end: to torch, groups of equal ranks and names are equal."""
    torch._dynamo.reset()
    if "torch.distributed.tensor" in sys.modules:
        importlib.import_module("torch.distributed.tensor.debug")._clear_sharding_prop_cache()
