# SPDX-License-Identifier: Apache-2.0
"""Two ranks make calls of two groups on MPI in different orders: a fused one, which is held, and a blocking one."""

from __future__ import annotations

from datetime import timedelta

import torch

import mcr_dl
from mcr_dl.passes import Fuse

LIMIT = timedelta(seconds=2)

if __name__ == "__main__":
    mcr_dl.init_process_group("mpi", timeout=LIMIT)
    fused, plain = mcr_dl.new_group(timeout=LIMIT), mcr_dl.new_group(timeout=LIMIT)
    mcr_dl.set_passes([Fuse(hold_microseconds=0)], fused)
    x, y = torch.ones(3), torch.ones(4)
    try:
        if mcr_dl.get_rank() == 0:
            work = mcr_dl.all_reduce(x, group=fused, async_op=True)
            mcr_dl.all_reduce(y, group=plain)
        else:
            mcr_dl.all_reduce(y, group=plain)
            work = mcr_dl.all_reduce(x, group=fused, async_op=True)
        work.wait()
        print("DONE", x.tolist(), y.tolist(), flush=True)
    except mcr_dl.CollectiveTimeoutError as error:
        print(f"RAISED {error}", flush=True)
        raise
