# SPDX-License-Identifier: Apache-2.0
"""A pass raises on rank 0 alone, in a blocking call of MPI: raising.py ENTRY, one of ranks.user_code.CHAINS."""

from __future__ import annotations

import sys

import torch

import mcr_dl
from ranks import user_code

if __name__ == "__main__":
    with user_code.group_of(sys.argv[1], user_code.LIMIT) as group:
        user_code.switch.raises = mcr_dl.get_rank() == 0
        try:
            mcr_dl.all_reduce(torch.ones(5), group=group, backend="mpi")
        except ValueError as error:
            print(f"RAISED {type(error).__name__}: {error}", flush=True)
