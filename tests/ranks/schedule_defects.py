# SPDX-License-Identifier: Apache-2.0
"""The defects of ByteScheduler's public code, which must be absent, and what ByteScheduler refuses."""

from __future__ import annotations

import copy
import gc
import logging
import os
import pickle
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mcr_dl
from mcr_dl.base.errors import InvalidArgumentError, McrError, UnsupportedError
from mcr_dl.schedule import ByteScheduler
from mcr_dl.schedule.bytescheduler import planning, turns
from mcr_dl.schedule.bytescheduler.issue import Issuer, Partition
from ranks.schedule_programs import Around, Several
from ranks.torch_training import life


class Watched:
    """A model in training, with the partitions in the order in which they are issued."""

    def __init__(self, model: nn.Module, **given: Any) -> None:
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.model = ByteScheduler(model, self.optimizer, **given)
        self.issued: list[tuple[str, int]] = []
        start = self.model._issuer.issue

        def issue(partition: Partition) -> Any:
            self.issued.append((partition.name, partition.nbytes))
            return start(partition)

        self.model._issuer = Issuer(issue)

    def train(self, steps: int, shape: tuple[int, ...]) -> None:
        """Train on random batches."""
        for _ in range(steps):
            self.model(torch.randn(shape)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.model.synchronize()


def _all(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def partition_size_takes_effect() -> None:
    """Defect 1: the tuned size was stored where no code read it."""
    watched = Watched(nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 64)), partition=4096, credit=8192)
    watched.train(4, (4, 64))
    assert ("0.weight[0]", 64 * 512 * 4) in watched.issued, "whole gradients before the plan"
    watched.issued.clear()
    watched.train(2, (4, 64))
    assert (watched.model.plan.partition, watched.model.plan.credit) == (4096, 8192)
    sizes = [nbytes for name, nbytes in watched.issued if name != "the use of parameters"]
    assert max(sizes) == 4096
    assert sum(sizes) == 2 * sum(value.nbytes for value in watched.model.parameters())


def late_rank_switches_at_the_same_step() -> None:
    """Defect 2: a rank that was late never adopted the new settings."""
    watched = Watched(nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64)), partition=4096, credit=4096)
    for step in range(8):
        if dist.get_rank() == 1 and step in (3, 4):
            time.sleep(0.3)
        watched.train(1, (4, 64))
    assert len(set(map(str, _all(watched.issued)))) == 1
    plans = _all((watched.model.plan.order, watched.model.plan.partition, watched.model.plan.credit))
    assert all(plan == plans[0] for plan in plans)
    assert plans[0][0]


def late_ranks_change_plans_at_the_same_step() -> None:
    """Defect 2, while plans are compared: ranks are late, in turns, in the steps around each change."""
    network = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 64))
    watched = Watched(network, tuning="bayesian")  # of the shortlist, simulation may have dropped all but a few plans
    plans = []
    turn = turns.DROPPED + turns.COUNTED
    for step in range(6 * turn):
        if (step - planning.RECORDED) % turn in (
            turn - 1,
            0,
        ) and step // turn % dist.get_world_size() == dist.get_rank():
            time.sleep(0.05)
        watched.train(1, (4, 64))
        plans.append(str(watched.model.plan))
    assert len(set(plans)) > 3
    assert len(set(map(str, _all((watched.issued, plans))))) == 1


def learning_rate_of_its_step() -> None:
    """Defect 3: updates read the hyper-parameters when they were made, and not those of their step."""
    torch.manual_seed(0)
    watched = Watched(nn.Linear(64, 64), partition=4096, credit=4096)
    watched.train(5, (4, 64))
    before = watched.model.module.weight.detach().clone()
    watched.model(torch.ones(4, 64)).sum().backward()
    watched.optimizer.step()
    watched.optimizer.param_groups[0]["lr"] = 1e6
    watched.model.synchronize()
    change = watched.model.module.weight.detach() - before
    assert torch.allclose(change, torch.full_like(change, -0.01 * 4), atol=1e-6)


class _Late(nn.Module):
    """Parameters of a module with children, and a child whose parameters another module uses."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64, 300))
        self.first = nn.Linear(64, 64)
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = self.attention(x, x, x)[0]
        return x @ self.scale


def modules_with_children_wait() -> None:
    """Defect 4: only leaf modules waited for their parameters."""
    watched = Watched(_Late(), partition=4096, credit=4096)
    network, model = watched.model.module, watched.model
    watched.train(5, (2, 3, 64))
    pending: dict[str, list[str]] = {}

    def look(name: str) -> None:
        pending[name] = [piece.name for piece in model._pieces if piece.due is not None]

    names = {"root": network, "first": network.first, "attention": network.attention}
    for name, module in names.items():
        module.register_forward_pre_hook(lambda _m, _a, name=name: look(name))
    for _ in range(3):
        model(torch.randn(2, 3, 64)).square().mean().backward()
        watched.optimizer.step()
        watched.optimizer.zero_grad()
        model(torch.randn(2, 3, 64))
        assert not {name for name in pending["root"] if name.startswith("scale")}
        assert not {name for name in pending["first"] if name.startswith("first")}
        assert pending["attention"] == [], "the output projection's module is not run"
    at_once = [piece.name for layer in model._entry for piece in model._own_layers[layer]]
    assert not {name for name in at_once if name.startswith("attention")}, "nothing waits for it before it runs"


def any_shape_is_cut() -> None:
    """Defect 6: tensors were cut along their first dimension, so that one row stayed whole."""

    class Row(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = nn.Parameter(torch.zeros(1, 50_000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.row

    watched = Watched(Row(), partition=16384, credit=16384)
    watched.train(4, (2, 1))
    watched.issued.clear()
    watched.train(1, (2, 1))
    assert [nbytes for name, nbytes in watched.issued if name.startswith("row")] == [16384] * 12 + [200_000 % 16384]


def no_thread_per_partition() -> None:
    """Defect 7: on engines that block, each partition had a thread."""
    watched = Watched(nn.Linear(256, 256), partition=1024, credit=None)
    watched.train(6, (2, 256))
    threads = len(os.listdir("/proc/self/task"))
    for _ in range(5):
        watched.model(torch.randn(2, 256)).sum().backward()
        assert len(os.listdir("/proc/self/task")) <= threads
        watched.optimizer.step()
        watched.optimizer.zero_grad()
    assert len(watched.issued) > 5 * 256
    watched.model.synchronize()


class _Reversed(nn.Module):
    """Is used in the other order than its parameters are registered; one weight is used early and late."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.b, self.a = nn.Linear(64, 512), nn.Linear(256, 64), nn.Linear(64, 256)
        self.again = nn.Linear(64, 256)
        self.again.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.again(self.b(self.a(x)))[:, :64])  # type: ignore[no-any-return]


def priority_is_the_first_use() -> None:
    """Defect 8: priorities followed ``parameters()``, and shared weights were not known."""
    watched = Watched(_Reversed(), partition=4096, credit=4096)
    watched.train(5, (4, 64))
    model = watched.model
    firsts = [model._own_layers[layer][0].name for layer in model._times.first_use]
    assert firsts == ["a.weight", "b.weight", "again.bias", "c.weight"]


def different_orders_are_found() -> None:
    """The public code compared nothing. Here one rank believes that it has issued another operation."""
    watched = Watched(nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64)), partition=4096, credit=4096)
    watched.train(8, (4, 64))
    if dist.get_rank() == 1:
        watched.model._issuer.digest ^= 1 << 9
    with pytest.raises(McrError, match="the ranks have issued different operations: expected one"):
        watched.train(3, (4, 64))


DEFECTS = (
    partition_size_takes_effect,
    late_rank_switches_at_the_same_step,
    late_ranks_change_plans_at_the_same_step,
    learning_rate_of_its_step,
    modules_with_children_wait,
    any_shape_is_cut,
    no_thread_per_partition,
    priority_is_the_first_use,
    different_orders_are_found,  # last: this error ends a job
)


def defects_are_absent() -> None:
    """All of them, in one life of the runtime."""
    with life("mcr"):
        for each in DEFECTS:
            each()


# ---- what is refused


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def _expanded() -> nn.Module:
    model = nn.Linear(4, 4)
    model.register_buffer("wide", torch.zeros(1, 4).expand(3, 4))
    return model


def mistakes() -> None:
    """Each has one clear error, on all ranks, and the job goes on."""
    with life("mcr"):
        rank, model = dist.get_rank(), nn.Linear(4, 4)
        compiled = nn.Sequential(nn.Linear(4, 4))
        compiled[0].compile()
        inside = nn.Sequential(DistributedDataParallel(nn.Linear(4, 4)))
        scripted, lazy = nn.Sequential(torch.jit.script(nn.Linear(4, 4))), nn.LazyLinear(4)
        refused: list[tuple[Any, Any, dict[str, Any], str]] = [
            (model, _sgd(model), {"partition": 10}, "partition: expected at least 1024 bytes"),
            (model, _sgd(model), {"credit": "big"}, "credit: expected at least 1024 bytes"),
            (model, _sgd(model), {"form": "ring"}, "form: expected one of 'all_reduce', 'reduce_scatter', got 'ring'"),
            (model, _sgd(model), {"backend": "mpy"}, "mpy"),
            (model, _sgd(nn.Linear(4, 4)), {}, "expected an optimizer of the model's parameters"),
            (model, torch.optim.LBFGS(model.parameters()), {}, "got LBFGS"),
            (model, Around(_sgd(model)), {}, "got Around, whose 'inner' is a SGD: pass that one"),
            (model, Several(_sgd(model)), {}, "got Several, whose 'several' has a SGD: pass that one"),
            (model, None, {}, "got Linear and NoneType"),
            (model.requires_grad_(False), _sgd(model), {}, "expected a model with parameters that need gradients"),
            (compiled, _sgd(compiled), {}, "0 is compiled"),
            (inside, _sgd(inside), {}, "without DistributedDataParallel, got one at 0"),
            (scripted, _sgd(scripted), {}, "0 is a RecursiveScriptModule"),
            (lazy, _sgd(lazy), {}, "weight has no shape yet: run one forward pass first"),
            (nn.Linear(4, 4 + rank), None, {}, "expected"),
            (_expanded(), None, {}, r"expected memory for each element, got wide from expand\(\): clone\(\) it"),
        ]
        for module, optimizer, given, text in refused:
            model.requires_grad_()
            if text.startswith("expected a model"):
                model.requires_grad_(False)
            with pytest.raises(McrError, match=text):
                ByteScheduler(module, optimizer if optimizer or module is model else _sgd(module), **given)
        model.requires_grad_()
        with pytest.raises(InvalidArgumentError, match="partition: expected the same on all ranks, got None on rank 0"):
            ByteScheduler(model, _sgd(model), partition=2048 if rank else None)
        with pytest.raises(McrError, match=r"got one of others|rank 1: "):
            ByteScheduler(model, _sgd(nn.Linear(4, 4) if rank else model))
        _misuse(model)
        dist.barrier()
        assert len(mcr_dl.runtime.state.living()) == 1, "a group of an object that was not made"


def sparse_gradients() -> None:
    """The first backward pass raises, on all ranks."""
    with life("mcr"):
        table = nn.EmbeddingBag(8, 4, sparse=True)
        scheduler = ByteScheduler(table, torch.optim.SGD(table.parameters(), lr=0.1))
        with pytest.raises(UnsupportedError, match="expected dense gradients, got a sparse one of weight; use DDP"):
            scheduler(torch.arange(8).view(2, 4)).sum().backward()
        dist.barrier()


def _misuse(model: nn.Module) -> None:
    optimizer = _sgd(model)
    scheduler = ByteScheduler(model, optimizer)
    with pytest.raises(InvalidArgumentError, match="without ByteScheduler"):
        ByteScheduler(model, optimizer)
    other = nn.Sequential(nn.Linear(4, 4), model)
    with pytest.raises(InvalidArgumentError, match=r"expected parameters without ByteScheduler, got 1\.weight"):
        ByteScheduler(other, _sgd(other))
    with pytest.raises(UnsupportedError, match="without a closure"):
        optimizer.step(lambda: 0.0)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scheduler(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    rates.step()
    for copied_by in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(UnsupportedError, match="copy or save its `module`"):
            copied_by(scheduler)
    scheduler.synchronize()
    copied = copy.deepcopy(model)
    assert torch.equal(copied.weight, model.weight)
    copied(torch.ones(2, 4)).sum().backward()
    with pytest.raises(UnsupportedError, match="the model is compiled"):
        torch.compile(scheduler, backend="eager")(torch.ones(2, 4))
    model.compile(backend="eager")
    with pytest.raises(UnsupportedError, match="a module of type Linear is compiled"):
        scheduler(torch.ones(2, 4))
    model._compiled_call_impl = None
    scheduler.close()
    scheduler.close()
    with pytest.raises(McrError, match=r"expected no training after close\(\)"):
        scheduler(torch.ones(2, 4))
    scheduler.eval()(torch.ones(2, 4))
    scheduler.train().state_dict()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()  # torch's own again
    optimizer.zero_grad()
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    frozen[0].requires_grad_(False)
    optimizer = _sgd(frozen)
    scheduler = ByteScheduler(frozen, optimizer)
    frozen[0].requires_grad_()
    scheduler(torch.ones(2, 4)).sum().backward()
    with pytest.raises(McrError, match=r"got one of 0\.weight, which was not reduced"):
        optimizer.step()
    scheduler.close()


def exception_in_the_backward_pass() -> None:
    """The rank that goes on after it gets an error, and the other rank a timeout that names the missing rank."""
    with life("mcr"):
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        optimizer = _sgd(model)
        group = mcr_dl.new_group(backend="gloo", timeout=5)
        scheduler = ByteScheduler(model, optimizer, group=group)
        scheduler(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        if dist.get_rank() == 1:

            def fail(_: torch.Tensor) -> None:
                raise ValueError("of the program")

            model[0].weight.register_hook(fail)
            with pytest.raises(ValueError, match="of the program"):
                scheduler(torch.ones(2, 64)).sum().backward()
            with pytest.raises(McrError, match="the last backward pass did not end"):
                optimizer.step()
            for use in (partial(scheduler, torch.ones(2, 64)), scheduler.synchronize, scheduler.state_dict):
                with pytest.raises(McrError, match="the last backward pass did not end"):
                    use()
            time.sleep(12)  # the other rank asks this one after its timeout
        else:
            scheduler(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            with pytest.raises(mcr_dl.CollectiveTimeoutError, match=r"timed out.*rank 1.*; ByteScheduler waits for "):
                scheduler(torch.ones(2, 64))
            with pytest.raises(McrError, match="an earlier operation failed"):
                scheduler(torch.ones(2, 64)).sum().backward()


def waits_are_logged() -> None:
    """The log names each use that waits for all gradients, the first time."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("mcr_dl")
    with life("mcr"):
        model = nn.Linear(64, 64)
        optimizer = _sgd(model)
        scheduler = ByteScheduler(model, optimizer, partition=1024, credit=1024)
        level = log.level
        log.setLevel("INFO")
        log.addHandler(handler)
        uses: dict[str, Callable[[], object]] = {
            "state_dict()": model.state_dict,
            "load_state_dict()": lambda: optimizer.load_state_dict(torch.optim.SGD(model.parameters()).state_dict()),
            "parameters()": lambda: [*scheduler.parameters()],
            "model.eval()": lambda: scheduler.eval().train(),
            "close()": scheduler.close,
        }
        for use in uses.values():
            for _ in range(2):
                if scheduler._hooks:
                    scheduler(torch.ones(2, 64)).sum().backward()
                    optimizer.step()
                    use()
        log.removeHandler(handler)
        log.setLevel(level)
    waits = [text.split(": ")[1] for text in texts if "waits for all" in text]
    assert waits == [f"{name} waits for all gradients and updates" for name in uses]


def last_step_is_made_at_the_end(through_torch: bool) -> None:
    """The end of the job makes the updates that no forward pass waits for any more."""
    torch.manual_seed(3)
    with life("mcr"):
        model = nn.Linear(64, 64)
        optimizer = _sgd(model)
        scheduler = ByteScheduler(model, optimizer, partition=1024, credit=1024)
        for _ in range(6):
            scheduler.synchronize()
            before = model.weight.detach().clone()
            scheduler(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if not through_torch:
            mcr_dl.destroy_process_group(scheduler._core)
            assert not torch.equal(model.weight, before)
    assert torch.allclose(model.weight, before - 0.1 * 2)


def closed() -> None:
    """The optimizer has its own step again; copies and files of the model were never watched."""
    with life("mcr"):
        network = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        living = []
        for turn in range(3):
            model = ByteScheduler(network, optimizer)
            living.append(weakref.ref(model))
            rates = torch.optim.lr_scheduler.StepLR(optimizer, 1) if turn == 1 else None
            copied = [copy.deepcopy(network), pickle.loads(pickle.dumps(network))]
            for _ in range(6):
                for each in (model, *copied):
                    each(torch.ones(2, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if rates is not None:
                    rates.step()
            model.close()
            assert "step" not in vars(optimizer)
            del model, rates
            gc.collect()
            pickle.dumps(copy.deepcopy(network))
        assert [each() for each in living] == [None, None, None]


def closed_after_a_failure() -> None:
    """An operation fails: model and optimizer can be closed, and wrapped again."""
    with life("mcr"):
        network = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        model = ByteScheduler(network, optimizer)

        def fail(_: Partition) -> Any:
            raise McrError("as if a rank were lost")

        model._issuer.issue = fail
        with pytest.raises(McrError, match="as if a rank were lost"):
            model(torch.ones(2, 8)).sum().backward()
        with pytest.raises(McrError):
            optimizer.step()
        model.close()
        model.close()
        model.eval()(torch.ones(2, 8))
        model.train()
        assert network.weight.grad is None
        optimizer.zero_grad()
        again = ByteScheduler(network, optimizer)
        for _ in range(5):
            again(torch.ones(2, 8) * dist.get_rank()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        again.close()
        weights = _all(network.weight.tolist())
        assert weights[0] == weights[1]
