# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in the codec of rank 0, of two: the other rank gets the codec's failure, and later calls work."""

from __future__ import annotations

import signal
from unittest import mock

import torch

import mcr_dl
from ranks import user_code


def interrupt() -> None:
    """Once."""
    user_code.switch.raises = False
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    with mock.patch.object(user_code, "fail", interrupt), user_code.group_of("encode") as group:
        user_code.switch.raises = mcr_dl.get_rank() == 0
        try:
            try:
                mcr_dl.all_reduce(torch.ones(5), group=group, backend="shm")
            finally:
                for _ in range(1000):  # Python looks for signals, if the call has failed before it could
                    pass
        except BaseException as error:
            print("RAISED", type(error).__name__, error, flush=True)
        tensor = torch.ones(5)
        mcr_dl.all_reduce(tensor, group=group, backend="shm")
        assert tensor.eq(2).all(), tensor
        print("DONE", flush=True)
