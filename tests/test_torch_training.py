# SPDX-License-Identifier: Apache-2.0
"""Training with torch.distributed's features reaches equal weights on "mcr" and on gloo."""

from __future__ import annotations

import pytest

from harness import Pools
from ranks import torch_mixing, torch_training

LIMIT = 200.0  # seconds for a case: compiled code is compiled by several runs of the compiler
LEGS = ("gloo", "mcr")

# case -> numbers of ranks. Results of two ranks are equal bit by bit, as a sum of two does not depend on the order.
# Cases of whole numbers (EXACT) run at any number; the others are compared as float64 on more than two ranks.
CASES: dict[str, tuple[int, ...]] = {
    "torch_ddp.plain": (2, 3),
    "torch_ddp.no_sync": (2, 3),
    "torch_ddp.static_graph": (2,),
    "torch_ddp.find_unused_parameters": (2, 3),
    "torch_ddp.gradient_as_bucket_view": (2,),
    "torch_ddp.buffers": (2, 3),
    "torch_ddp.parameters_of_rank_0": (2,),
    "torch_ddp.sparse": (2, 3),
    "torch_ddp.bf16_hook": (2,),
    "torch_ddp.fp16_hook": (2,),
    "torch_ddp.own_hook": (2, 3),
    "torch_ddp.power_sgd_hook": (2,),
    "torch_ddp.local_sgd": (2, 3),
    "torch_ddp.join": (2, 3),
    "torch_ddp.join_error": (2,),
    "torch_ddp.two_models": (2, 3),
    "torch_fsdp.reshard": (2, 3),
    "torch_fsdp.keep": (2,),
    "torch_fsdp.mixed_precision": (2,),
    "torch_fsdp.low_precision": (2,),
    "torch_fsdp.accumulate": (2, 3),
    "torch_fsdp.divide_factor": (2,),
    "torch_fsdp.prefetch": (2, 3),
    "torch_fsdp.clipped": (2, 3),
    "torch_fsdp.other_dimension": (2, 3),
    "torch_fsdp.hybrid": (4,),
    "torch_fsdp.hybrid_accumulate": (4,),
    "torch_tensors.redistribute": (2, 3),
    "torch_tensors.redistribute_grid": (4,),
    "torch_tensors.operations": (2, 3),
    "torch_tensors.meshes": (4,),
    "torch_tensors.column_row": (2, 3),
    "torch_tensors.sequence": (2, 3),
    "torch_tensors.split_loss": (2, 3),
    "torch_tensors.sharded": (2, 3),
    "torch_tensors.tensor_and_data": (4,),
    "torch_pipeline.gpipe": (2, 3),
    "torch_pipeline.one_forward_one_backward": (2, 3),
    "torch_pipeline.interleaved": (2,),
    "torch_pipeline.breadth_first": (2, 3),
    "torch_pipeline.zero_bubble": (2,),
    "torch_pipeline.with_data_parallel": (4,),
    "torch_state.zero_optimizer": (2, 3),
    "torch_state.zero_optimizer_buckets": (2, 3),
    "torch_state.channels_last": (2, 3),
    "torch_state.channels_last_ddp": (2, 3),
    "torch_state.save_and_load": (2, 3),
    "torch_state.reshard_on_load": (2, 3),
    "torch_state.save_asynchronously": (2,),
    "torch_state.full_state": (2, 3),
    "torch_state.objects": (2, 3),
    "torch_state.whole_tensors": (2, 3),
    "torch_functions.eager": (2, 3),
    "torch_functions.gradients": (2, 3),
    "torch_functions.compiled_graph": (2,),
    "torch_functions.compiled_code": (2,),
    "torch_functions.compiled_ddp": (2,),
    "torch_functions.autograd_functions": (2, 3),
}
# With gloo underneath the sums are gloo's own, in the same order.
ON_GLOO = (
    "torch_ddp.plain",
    "torch_ddp.join",
    "torch_ddp.sparse",
    "torch_fsdp.reshard",
    "torch_tensors.column_row",
    "torch_pipeline.one_forward_one_backward",
    "torch_functions.eager",
)
# Functions of torch_mixing, which compare for themselves.
MIXING: dict[str, tuple[int, ...]] = {
    "ddp_on_named": (2, 3),
    "use_of_blocks": (2,),
    "with_gloo": (2, 3),
    "meshes": (4,),
    "fsdp_on_named": (2, 3),
    "passes_in_ddp": (2,),
    "after_destroy": (2,),
}
EXACT = {
    "torch_tensors.redistribute",
    "torch_tensors.redistribute_grid",
    "torch_tensors.operations",
    "torch_tensors.meshes",
    "torch_tensors.sharded",
    "torch_state.objects",
}


@pytest.mark.parametrize(("case", "size"), [(case, size) for case, sizes in CASES.items() for size in sizes])
def test_same_as_gloo(pools: Pools, case: str, size: int) -> None:
    """The results of the case, which its docstring describes."""
    exact = size == 2 or case in EXACT
    seconds = pools.get("processes", size).run(torch_training.compare, f"ranks.{case}", LEGS, exact, limit=LIMIT)
    print({backend: round(value, 2) for backend, value in seconds[0].items()})


@pytest.mark.parametrize("case", ON_GLOO)
def test_same_with_gloo_underneath(pools: Pools, case: str) -> None:
    """Equal libraries compute equal sums: bit by bit, also on three ranks, except those of a reduce_scatter, which mcr
    adds in rank order."""
    exact = case != "torch_fsdp.reshard"
    pools.get("processes", 3).run(torch_training.compare, f"ranks.{case}", ("gloo", "mcr/gloo"), exact, limit=LIMIT)


@pytest.mark.parametrize(("name", "size"), [(name, size) for name, sizes in MIXING.items() for size in sizes])
def test_mixing(pools: Pools, name: str, size: int) -> None:
    """See the function's docstring."""
    pools.get("processes", size).run(getattr(torch_mixing, name), limit=LIMIT)
