# SPDX-License-Identifier: Apache-2.0
"""ByteScheduler reaches the weights of DistributedDataParallel, and refuses what it cannot schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from harness import Pools
from mcr_dl.groups import torch_groups
from mcr_dl.schedule.bytescheduler import checks
from ranks import schedule, schedule_apart, schedule_defects, schedule_loops, schedule_programs

# ---- training: the cases of a pool share two lives of the runtime, which take longer than the steps

LIMITS: tuple[Any, ...] = (4096, None, "auto")  # small partitions, whole gradients, what the simulation chooses


@pytest.mark.parametrize("form", checks.FORMS)
@pytest.mark.parametrize("size", [2, 3])
def test_every_loop(pools: Pools, size: int, form: str) -> None:
    """In small partitions."""
    cases = [schedule.Case(loop, form=form) for loop in schedule_loops.LOOPS]
    dtype = "float32" if size == 2 else "float64"
    pools.get("processes", size).run(schedule.reach_weights_of_ddp, cases, dtype, limit=250)


def test_every_optimizer(pools: Pools) -> None:
    """With two ranks, bit by bit."""
    cases = [schedule.Case("plain", name, limits, None) for name in schedule_loops.OPTIMIZERS for limits in LIMITS]
    cases += [schedule.Case("inferred", "adam"), schedule.Case("mixed", "adafactor")]
    pools.get("processes", 2).run(schedule.reach_weights_of_ddp, cases, limit=250)


@pytest.mark.parametrize("size", [3, 4])
def test_every_backend(pools: Pools, size: int) -> None:
    """On more ranks."""
    kinds = (("gloo", "sgd"), ("shm", "adam"), ("auto", "adamw"))
    cases = [schedule.Case("plain", optimizer, 4096, backend) for backend, optimizer in kinds]
    pools.get("processes", size).run(schedule.reach_weights_of_ddp, cases, limit=250)


@pytest.mark.parametrize("candidate", ["mpi", "stripe(gloo,mpi)"])
def test_part_of_the_ranks(pools: Pools, candidate: str) -> None:
    """Two ranks of three train."""
    pools.get("processes", 3).run(schedule.part_of_the_ranks, candidate, limit=120)


@pytest.mark.skipif(not torch_groups.ANY_ORDER, reason="this torch sorts the ranks of a group")
def test_group_in_another_order(pools: Pools) -> None:
    """All state is the first rank's."""
    pools.get("processes", 2).run(schedule_programs.group_in_another_order, limit=60)


def test_beginning_of_another_model(pools: Pools) -> None:
    """Its broadcasts keep no thread from issuing partitions."""
    pools.get("processes", 2).run(schedule_programs.beginning_of_another_model, limit=60)


@pytest.mark.parametrize("size", [2, 3])
def test_buffers(pools: Pools, size: int) -> None:
    """Of any type, in one operation for each step."""
    pools.get("processes", size).run(schedule.buffers_are_those_of_ddp, limit=120)


def test_buffers_of_evaluation(pools: Pools) -> None:
    """Outside training no forward pass sends them."""
    pools.get("processes", 2).run(schedule.buffers_of_evaluation, limit=60)


@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_buffers_and_a_rank_that_waits_for_updates(pools: Pools, backend: str) -> None:
    """The other ranks wait for that rank's buffers with partitions that are not issued yet."""
    pools.get("processes", 2).run(schedule_programs.one_rank_waits_for_updates, backend, limit=120)


@pytest.mark.parametrize(
    ("form", "order"), [("all_reduce", "static"), ("all_reduce", "leader"), ("reduce_scatter", "static")]
)
def test_backward_pass_in_use(pools: Pools, form: str, order: str) -> None:
    """``use()`` around it applies to no operation of ByteScheduler."""
    pools.get("processes", 2).run(schedule_programs.backward_pass_in_use, form, order, limit=120)


@pytest.mark.parametrize("partition", [None, 4096])
def test_all_gradients_in_halves(pools: Pools, partition: int | None) -> None:
    """On three ranks, among which few sizes divide."""
    pools.get("processes", 3).run(schedule_programs.all_gradients_in_halves, partition, limit=120)


def test_every_tuning(pools: Pools) -> None:
    """The plan changes while the job trains, and the weights do not."""
    cases = [schedule.Case("long", limits="auto", tuning=kind) for kind in checks.TUNING]
    pools.get("processes", 2).run(schedule.reach_weights_of_ddp, cases, limit=250)


@pytest.mark.parametrize("size", [2, 3])
def test_live_order(pools: Pools, size: int) -> None:
    """Rank 0 decides while each backward pass runs; gradients come at other times on other ranks."""
    loops = ("plain", "unused", "accumulated", "twice", "clipped", "evaluated", "frozen", "delayed", "paused")
    cases = [
        schedule.Case(loop, backend="gloo" if index % 2 else "shm", order="leader") for index, loop in enumerate(loops)
    ]
    dtype = "float32" if size == 2 else "float64"
    pools.get("processes", size).run(schedule.reach_weights_of_ddp, cases, dtype, limit=200)


def test_settings_are_kept(pools: Pools, tmp_path: Path) -> None:
    """A second training begins with the settings of the first."""
    pools.get("processes", 2).run(schedule.settings_are_kept, str(tmp_path / "settings.json"), limit=120)


def test_steps_are_traced(pools: Pools, tmp_path: Path) -> None:
    """On every rank."""
    pools.get("processes", 2).run(schedule.steps_are_traced, str(tmp_path), limit=120)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has one type for both")
def test_gradients_of_another_type(pools: Pools) -> None:
    """Than the parameters'."""
    pools.get("processes", 2).run(schedule_programs.gradients_of_another_type, limit=60)


def test_part_of_the_model_in_inference_mode(pools: Pools) -> None:
    """After a step."""
    pools.get("processes", 2).run(schedule_programs.part_of_the_model_in_inference_mode, limit=60)


# ---- the defects of the public code (bytescheduler branch of byteps)


@pytest.mark.parametrize("size", [2, 3])
def test_defects_of_the_public_code_are_absent(pools: Pools, size: int) -> None:
    """Defects 1 to 4 and 6 to 8, as ``schedule_defects.DEFECTS`` numbers them; defect 5: ``test_every_optimizer``."""
    pools.get("processes", size).run(schedule_defects.defects_are_absent, limit=120)


# ---- mistakes, and the end


def test_mistakes(pools: Pools) -> None:
    """One error on all ranks."""
    pools.get("processes", 2).run(schedule_defects.mistakes, limit=120)


def test_differences(pools: Pools) -> None:
    """Between the models and optimizers of the ranks."""
    pools.get("processes", 2).run(schedule_programs.differences, limit=60)


def test_counting_optimizers(pools: Pools) -> None:
    """Are refused at their first update."""
    pools.get("processes", 2).run(schedule_programs.counting_optimizers, limit=60)


def test_combining_optimizers(pools: Pools) -> None:
    """Are refused when ByteScheduler is made."""
    pools.get("processes", 2).run(schedule_apart.combining_optimizers, limit=60)


def test_not_made(pools: Pools) -> None:
    """The constructor fails."""
    pools.get("processes", 2).run(schedule_programs.not_made, limit=60)


def test_replaced_steps(pools: Pools) -> None:
    """Are refused, as updates do not call them."""
    pools.get("processes", 2).run(schedule_programs.replaced_steps, limit=60)


def test_sparse_gradients(pools: Pools) -> None:
    """Are refused when the first one comes."""
    pools.get("processes", 2).run(schedule_defects.sparse_gradients, limit=60)


def test_scripted_functions(pools: Pools) -> None:
    """A gradient that one has changed before its reduction is refused."""
    pools.get("processes", 2).run(schedule_apart.scripted_functions, limit=60)


def test_gradients_with_graphs(pools: Pools) -> None:
    """Are refused, too."""
    pools.get("processes", 2).run(schedule_programs.gradients_with_graphs, limit=60)


def test_exception_in_the_backward_pass(pools: Pools) -> None:
    """No rank hangs."""
    pools.get("processes", 2).run(schedule_defects.exception_in_the_backward_pass, limit=120)


def test_closed_after_a_failure(pools: Pools) -> None:
    """Model and optimizer are as before, and can be used on another group."""
    pools.get("processes", 2).run(schedule_defects.closed_after_a_failure, limit=120)


def test_closed_after_an_exception_in_the_backward_pass(pools: Pools) -> None:
    """Model and optimizer can be used again."""
    run = schedule_programs.closed_after_an_exception_in_the_backward_pass
    pools.get("processes", 2).run(run, limit=120)


def test_closed_after_an_error_at_the_end_of_the_backward_pass(pools: Pools) -> None:
    """As after one inside it."""
    run = schedule_programs.closed_after_an_error_at_the_end_of_the_backward_pass
    pools.get("processes", 2).run(run, limit=60)


def test_dropped(pools: Pools) -> None:
    """Without close()."""
    pools.get("processes", 2).run(schedule_programs.dropped, limit=60)


def test_a_backend_ends(pools: Pools) -> None:
    """By finalize([...])."""
    pools.get("processes", 2).run(schedule_programs.a_backend_ends, limit=120)


def test_closed(pools: Pools) -> None:
    """Nothing of ByteScheduler stays with the model, its copies or its optimizer."""
    pools.get("processes", 2).run(schedule_defects.closed, limit=120)


def test_checkpoints_with_reentrant_autograd(pools: Pools) -> None:
    """All layers run in them, where forward passes need no gradients."""
    pools.get("processes", 2).run(schedule.checkpoints_with_reentrant_autograd, limit=120)


def test_gradients_in_operations(pools: Pools) -> None:
    """Wait for all gradients, as other uses do."""
    pools.get("processes", 2).run(schedule_programs.gradients_in_operations, limit=120)


def test_waits_are_logged(pools: Pools) -> None:
    """Once for each reason."""
    pools.get("processes", 2).run(schedule_defects.waits_are_logged, limit=60)


@pytest.mark.parametrize("through_torch", [False, True])
def test_last_step_is_made_at_the_end(pools: Pools, through_torch: bool) -> None:
    """Of the group, or of the job."""
    pools.get("processes", 2).run(schedule_defects.last_step_is_made_at_the_end, through_torch, limit=120)
