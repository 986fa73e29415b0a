# SPDX-License-Identifier: Apache-2.0
"""Dense tensors whose elements are not stored row by row, on one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

import mcr_dl
from mcr_dl import InvalidArgumentError
from mcr_dl.passes.compress import Compress
from mcr_dl.testing.calls import Case
from mcr_dl.testing.expect import expect
from ranks import operations, session

PASSES = {"fuse": ["fuse"], "compress": [Compress("bf16", smallest=0)], "both": [Compress("bf16", smallest=0), "fuse"]}


def with_passes(passes: str, cases: Sequence[Case]) -> int:
    """Run the cases on a default group with these passes. The values are exact in bf16."""
    session.start()
    mcr_dl.set_passes(PASSES[passes])
    try:
        return operations.run_all(cases)
    finally:
        mcr_dl.set_passes([])


def _image(rank: int) -> torch.Tensor:
    values = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).view(2, 3, 4, 5) + 1000 * rank
    return values.to(memory_format=torch.channels_last)


def results(backend: str) -> None:
    """A work's result and its future are the caller's tensor with its strides; the input stays unchanged."""
    session.start()
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    tensor = _image(me)
    work = mcr_dl.all_reduce(tensor, backend=backend, async_op=True)
    work.wait()
    for result in (work.result()[0], work.get_future().wait()[0]):
        assert result.data_ptr() == tensor.data_ptr()
        assert result.stride() == tensor.stride()
    expected = sum(_image(rank) for rank in range(size))
    assert tensor.equal(expected)
    whole = torch.empty(2 * size, 3, 4, 5).to(memory_format=torch.channels_last)
    mine = _image(me)
    work = mcr_dl.all_gather_into_tensor(whole, mine, backend=backend, async_op=True)
    work.wait()
    assert work.result()[0].data_ptr() == whole.data_ptr()
    assert whole.equal(torch.cat([_image(rank) for rank in range(size)]))
    assert whole.is_contiguous(memory_format=torch.channels_last)
    assert mine.equal(_image(me))


def gradients(backend: str) -> None:
    """Leaves that require a gradient, and tensors of inference mode, are written like others."""
    session.start()
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    leaves = [torch.zeros(3, 2).t().requires_grad_() for _ in range(size)]
    mcr_dl.all_gather(leaves, torch.full((2, 3), float(me)).requires_grad_(), backend=backend)
    assert [leaf.detach().unique().tolist() for leaf in leaves] == [[float(rank)] for rank in range(size)]
    assert all(leaf.is_leaf and leaf.grad_fn is None for leaf in leaves)
    with torch.inference_mode():
        made = [torch.zeros(3, 2).t() for _ in range(size)]
    mcr_dl.all_gather(made, torch.full((2, 3), float(me)), backend=backend)
    assert [each.unique().tolist() for each in made] == [[float(rank)] for rank in range(size)]


def between_blocks(backend: str) -> None:
    """Elements that no block of a vectored call covers stay unchanged."""
    session.start()
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    output = torch.full((3, 2 * size), -1.0).t()  # 2 * size rows of 3: a block of 3, and a spare row
    starts = [6 * rank for rank in range(size)]
    mcr_dl.all_gatherv(output, torch.full((3,), float(me)), [3] * size, starts, backend=backend)
    assert output[::2].unique(dim=1).flatten().tolist() == [float(rank) for rank in range(size)]
    assert output[1::2].unique().tolist() == [-1.0]


def refused(backend: str) -> None:
    """Gaps and overlaps in memory raise an error with advice, and nothing is sent."""
    session.start()
    size = mcr_dl.get_world_size()
    for wrong in (torch.ones(6)[::2], torch.ones(4, 4)[:, :2], torch.ones(1).expand(4), np.ones(6)[::2]):
        for call in (
            lambda wrong=wrong: mcr_dl.all_reduce(wrong, backend=backend),
            lambda wrong=wrong: mcr_dl.all_gather([wrong] * size, torch.ones(3), backend=backend),
        ):
            expect(InvalidArgumentError, call, "without gaps or overlaps", "strides", ".contiguous()")
    tensor = torch.ones(3)
    mcr_dl.all_reduce(tensor, backend=backend)
    assert tensor.tolist() == [float(size)] * 3


ON_RANKS: dict[str, Callable[[str], None]] = {
    function.__name__: function for function in (results, gradients, between_blocks, refused)
}
