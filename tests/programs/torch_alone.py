# SPDX-License-Identifier: Apache-2.0
"""A torch program that never imports mcr_dl, and the ways in which such a program may end. Prints nothing."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist


def main(end: str) -> None:
    assert "mcr_dl" not in sys.modules
    dist.init_process_group("mcr")
    size = dist.get_world_size()
    group = dist.new_group(list(range(size)))
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [size * size] * 4
    if end == "works left":
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        future = work.get_future().then(lambda done: done.value()[0] + 1)
        dist.all_reduce(tensor, async_op=True)
        globals()["kept"] = work, future
    if end in ("destroyed", "works left"):
        dist.destroy_process_group()
    if end == "group destroyed":
        dist.destroy_process_group(group)
    if end == "exit code":
        sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1])
