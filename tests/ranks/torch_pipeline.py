# SPDX-License-Identifier: Apache-2.0
"""Pipeline parallelism: a network cut into stages, its schedules' batches of sends and receives."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle
from torch.distributed.tensor import DTensor

from ranks.torch_training import Results, batch, dtype, loss

STEPS = 2
PIECES = 4  # micro-batches of a step


def _part(stage: int, stages: int) -> nn.Module:
    torch.manual_seed(70 + stage)
    last = stage == stages - 1
    return nn.Sequential(nn.Linear(12, 4 if last else 12), nn.Identity() if last else nn.Tanh()).to(dtype())


def _stages(per_rank: int, group: dist.ProcessGroup | None = None) -> list[PipelineStage]:
    """This rank's stages: with two per rank, rank 0 has the first and the one after the last rank's first."""
    me, size = dist.get_rank(group), dist.get_world_size(group)
    count = per_rank * size
    mine = [me + turn * size for turn in range(per_rank)]
    return [PipelineStage(_part(i, count), i, count, torch.device("cpu"), group=group) for i in mine]


def _train(schedule: PipelineScheduleSingle | PipelineScheduleMulti, stages: list[PipelineStage]) -> Results:
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.submod.parameters()], lr=0.05, momentum=0.9)
    result: Results = {}
    for step in range(STEPS):
        x, y = batch(step, rank=0, size=2 * PIECES)
        losses: list[torch.Tensor] = []
        inputs = (x,) if any(stage.is_first for stage in stages) else ()
        if any(stage.is_last for stage in stages):
            schedule.step(*inputs, target=y, losses=losses)
            result[f"losses {step}"] = torch.stack(losses).detach()
        else:
            schedule.step(*inputs)
        optimizer.step()
        optimizer.zero_grad()
    for stage in stages:
        for name, value in stage.submod.state_dict().items():
            result[f"stage {stage.stage_index} {name}"] = value.clone()
    return result


def _single(schedule: type[PipelineScheduleSingle]) -> Results:
    stages = _stages(1)
    return _train(schedule(stages[0], PIECES, loss_fn=loss), stages)


def _several(schedule: type[PipelineScheduleMulti]) -> Results:
    stages = _stages(2)
    return _train(schedule(list(stages), PIECES, loss_fn=loss), stages)


def gpipe(_backend: str) -> Results:
    """All forward passes, then all backward ones."""
    return _single(ScheduleGPipe)


def one_forward_one_backward(_backend: str) -> Results:
    """1F1B: a rank sends forwards and receives backwards in one batch."""
    return _single(Schedule1F1B)


def interleaved(_backend: str) -> Results:
    """1F1B with two stages per rank."""
    return _several(ScheduleInterleaved1F1B)


def breadth_first(_backend: str) -> Results:
    """Two stages per rank, one after the other."""
    return _several(ScheduleLoopedBFS)


def zero_bubble(_backend: str) -> Results:
    """Gradients of weights are computed where a rank would wait."""
    return _several(ScheduleInterleavedZeroBubble)


def with_data_parallel(_backend: str) -> Results:
    """Two pipelines of two ranks on a 2 x 2 mesh, the weights of each stage split over them."""
    on = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "stage"))
    across = on.get_group("stage")
    me = dist.get_rank(across)
    part = fully_shard(_part(me, 2), mesh=on["data"])
    stage = PipelineStage(part, me, 2, torch.device("cpu"), group=across)
    result = _train(ScheduleGPipe(stage, PIECES, loss_fn=loss), [stage])
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in result.items()}
