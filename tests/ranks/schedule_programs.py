# SPDX-License-Identifier: Apache-2.0
"""ByteScheduler with other groups, modes and optimizers than in the usual training loop."""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import mcr_dl
from mcr_dl.base.errors import InvalidArgumentError, UnsupportedError
from mcr_dl.schedule import ByteScheduler, Syndicate
from mcr_dl.schedule.bytescheduler import buffers
from ranks import session
from ranks.torch_training import life


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


class Around(torch.optim.Optimizer):
    """An optimizer that leaves the updates to another one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """As the other one."""
        return self.inner.step(closure)


class Several(Around):
    """As several of them."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner)
        self.several = [self.__dict__.pop("inner")]


class _Counting(torch.optim.Optimizer):
    """SGD that counts its steps, in its parameter groups or in itself, by a new value or in an old one."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__(model.parameters(), {"k": 0})
        self.calls, self._name = 0, name
        self.statistics, self.history, self.count = {"steps": 0}, [0], torch.zeros(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        del closure
        self.calls += self._name == "calls"
        self.statistics["steps"] += self._name == "statistics"
        if self._name == "history":
            self.history.append(len(self.history))
        if self._name == "count":
            self.count += 1
        for group in self.param_groups:
            group["k"] += self._name == "k"
            for each in group["params"]:
                each.sub_(each.grad)


class _Fixed(torch.optim.SGD):
    """Whose step cannot be replaced."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "step":
            raise AttributeError("step is fixed")
        super().__setattr__(name, value)


def counting_optimizers() -> None:
    """The updates of parts of the model would lose the count, or count too often: the first one raises."""
    with life("mcr"):
        for name in ("k", "calls", "statistics", "history", "count", "nothing"):
            model = nn.Linear(4, 4)
            optimizer = _Counting(model, name)
            scheduler = ByteScheduler(model, optimizer)
            scheduler(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            if name == "nothing":
                scheduler.synchronize()
            else:
                text = f"got _Counting, whose step\\(\\) changes '{name}', which all parameters share"
                with pytest.raises(UnsupportedError, match=text):
                    scheduler.synchronize()
            scheduler.close()


def not_made() -> None:
    """An error in the constructor leaves no hook with the model, and no group."""
    with life("mcr"):
        model = nn.Linear(4, 4)
        before = len(mcr_dl.runtime.state.living())
        with pytest.raises(AttributeError, match="step is fixed"):
            ByteScheduler(model, _Fixed(model.parameters(), lr=0.1))
        assert len(mcr_dl.runtime.state.living()) == before
        assert not model._forward_pre_hooks
        assert not model._forward_hooks
        assert not model._state_dict_pre_hooks
        assert not model.weight._post_accumulate_grad_hooks
        model(torch.ones(2, 4)).sum().backward()
        assert type(model.weight.grad) is torch.Tensor


def closed_after_an_exception_in_the_backward_pass() -> None:
    """On all ranks: model and optimizer can be used again, and wrapped again."""
    with life("mcr"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        optimizer = _sgd(model)
        scheduler = ByteScheduler(model, optimizer)

        def fail(_: torch.Tensor) -> None:
            raise ValueError("of the program")

        hook = model[0].weight.register_hook(fail)
        with pytest.raises(ValueError, match="of the program"):
            scheduler(torch.ones(2, 4)).sum().backward()
        hook.remove()
        scheduler.close()
        assert [value.grad for value in model[1].parameters()] == [None, None]
        optimizer.zero_grad(set_to_none=False)
        again = ByteScheduler(model, optimizer)
        for _ in range(5):
            again(torch.ones(2, 4) * dist.get_rank()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        again.close()
        weights: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(weights, model[0].weight.tolist())
        assert weights[0] == weights[1]


def gradients_with_graphs() -> None:
    """They are refused when the first one comes, as no graph contains the reduction."""
    with life("mcr"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        scheduler = ByteScheduler(model, _sgd(model))
        with pytest.raises(UnsupportedError, match="expected backward passes without create_graph, got a gradient of"):
            scheduler(torch.ones(2, 4)).sum().backward(create_graph=True)
        scheduler.close()
        dist.barrier()


def replaced_steps() -> None:
    """A step that the program has replaced is refused; that of a learning-rate scheduler, or the class's, is not."""
    with life("mcr"):
        model = nn.Linear(4, 4)
        for scheduled in (False, True):
            optimizer = _sgd(model)
            own: Any = functools.partial(optimizer.step)
            optimizer.step = types.MethodType(lambda _, own=own: own(), optimizer)  # type: ignore[method-assign]
            if scheduled:
                torch.optim.lr_scheduler.StepLR(optimizer, 1)
            with pytest.raises(UnsupportedError, match="got one whose step the program has replaced"):
                ByteScheduler(model, optimizer)
        optimizer = _sgd(model)
        optimizer.step = optimizer.step  # type: ignore[method-assign]
        ByteScheduler(model, optimizer).close()
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        ByteScheduler(model, optimizer).close()
        optimizer.step()


class _Half(nn.Module):
    """Two layers, of which the second is not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        out: torch.Tensor = self.first(x) + self.second(x) if both else self.first(x)
        return out


def gradients_of_another_type() -> None:
    """Gradients in float32 of weights in bfloat16, of which one rank does not use all."""
    with life("mcr"):
        rank = dist.get_rank()
        model = _Half().bfloat16()
        for value in model.parameters():
            value.grad_dtype = torch.float32
        scheduler = ByteScheduler(model, _sgd(model))
        inputs = torch.full((1, 4), 1 + rank / 128, dtype=torch.bfloat16)
        for _ in range(2):
            scheduler(inputs, both=rank == 0).float().sum().backward()
            scheduler.synchronize()
            # bfloat16 does not have the first value.
            for layer, mean in ((model.first, 1 + 1 / 256), (model.second, 0.5)):
                gradient = layer.weight.grad
                assert gradient is not None
                assert torch.equal(gradient, torch.full((4, 4), mean))
            model.zero_grad()
        scheduler.close()


class _Tables(nn.Module):
    """A layer, and a table with sparse gradients that some passes use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(4, 4), nn.EmbeddingBag(8, 4, sparse=True)

    def forward(self, x: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor = self.layer(x) if rows is None else self.layer(x) + self.table(rows)
        return out


def closed_after_an_error_at_the_end_of_the_backward_pass() -> None:
    """A local gradient is found to be sparse there: model and optimizer can be used again."""
    with life("mcr"):
        model = _Tables()
        optimizer = _sgd(model)
        scheduler = ByteScheduler(model, optimizer)
        with scheduler.no_sync():
            scheduler(torch.ones(2, 4), torch.arange(8).view(2, 4)).sum().backward()
        with pytest.raises(UnsupportedError, match=r"expected dense gradients, got a sparse one of table\.weight"):
            scheduler(torch.ones(2, 4)).sum().backward()
        scheduler.close()
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        assert type(model.layer.weight.grad) is torch.Tensor
        dist.barrier()


def dropped() -> None:
    """Without close(): nothing keeps the model and the object, once the program has forgotten them.

    Also between a backward pass and the end of its reduction, where gradients wait for it. The next ByteScheduler ends
    the groups, and they keep nothing else from ordering calls.
    """
    with life("mcr"):
        before = len(mcr_dl.runtime.state.living())

        def trained(ends: bool) -> list[weakref.ref[Any]]:
            model = nn.Linear(4, 4)
            optimizer = _sgd(model)
            scheduler = ByteScheduler(model, optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                scheduler(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            if ends:
                scheduler.synchronize()
            return [weakref.ref(model), weakref.ref(scheduler), weakref.ref(optimizer), weakref.ref(model.weight)]

        for ends in (True, False):
            living = [*trained(ends), *trained(ends)]
            gc.collect()
            assert [each() for each in living] == [None] * 8
        assert len(mcr_dl.runtime.state.living()) > before
        again = nn.Linear(4, 4)
        scheduler = ByteScheduler(again, _sgd(again))
        assert len(mcr_dl.runtime.state.living()) == before + 1
        scheduler.close()
        trained(True)
        gc.collect()
        with Syndicate():
            mcr_dl.barrier()


def a_backend_ends() -> None:
    """The one that ByteScheduler has chosen, while updates wait: these are made, and the group chooses from then on."""
    session.stop()
    session.start("gloo", "shm")
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = _sgd(model)
    scheduler = ByteScheduler(model, optimizer, tuning="simulation")

    def step() -> None:
        optimizer.zero_grad()
        scheduler(torch.ones(2, 64) * mcr_dl.get_rank()).sum().backward()
        optimizer.step()

    while scheduler.comparing:
        step()
    step()
    chosen = scheduler.candidate
    assert chosen in ("gloo", "shm")
    mcr_dl.finalize([chosen])
    assert scheduler.candidate is None
    before = model[0].weight.clone()
    for _ in range(2):
        step()
    scheduler.synchronize()
    assert not torch.equal(model[0].weight, before)
    weights = [torch.empty(64, 64) for _ in range(mcr_dl.get_world_size())]
    mcr_dl.all_gather(weights, model[0].weight.detach())
    assert all(torch.equal(each, weights[0]) for each in weights)
    scheduler.close()
    session.stop()


def gradients_in_operations() -> None:
    """Between the backward pass and the step, operations on a gradient wait for its reduction."""
    with life("mcr"):
        size = dist.get_world_size()
        total, blocks = torch.empty(4), [torch.empty(4) for _ in range(size)]
        uses: list[tuple[Callable[[torch.Tensor], object], list[torch.Tensor], int]] = [  # with results and a factor
            (mcr_dl.all_reduce, [], size),
            (dist.all_reduce, [], size),
            (lambda gradient: mcr_dl.all_gather(blocks, gradient), blocks, 1),
            (lambda gradient: mcr_dl.reduce_scatter(total, [gradient] * size), [total], size),
        ]
        for use, results, factor in uses:
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            for value in model.parameters():
                nn.init.constant_(value, 0.5)
            scheduler = ByteScheduler(model, _sgd(model))
            (scheduler(torch.ones(2, 4)).sum() * (dist.get_rank() + 1)).backward()
            gradient = model[0].bias.grad
            assert gradient is not None
            use(gradient)
            mean = 2.0 * (size + 1)
            for each in results or [gradient.clone()]:
                assert torch.equal(each, torch.full((4,), mean * factor))
            scheduler.close()


def group_in_another_order() -> None:
    """Parameters and buffers come from the first rank of the group, which is not the lowest one."""
    with life("mcr"):
        first = dist.get_world_size() - 1
        group = mcr_dl.new_group(range(first, -1, -1), sort_ranks=False)
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        with torch.no_grad():
            model[0].weight.fill_(dist.get_rank())
            model[1].running_mean.fill_(dist.get_rank())
        scheduler = ByteScheduler(model, _sgd(model), group=group)
        assert scheduler._core.ranks == scheduler._outer.ranks
        assert torch.equal(model[0].weight, torch.full((2, 2), float(first)))
        assert torch.equal(model[1].running_mean, torch.full((2,), float(first)))
        scheduler.close()


def beginning_of_another_model() -> None:
    """Broadcasts are asynchronous, as another ByteScheduler may have partitions left; one weight is not contiguous."""
    with life("mcr"):
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        model[0].weight = nn.Parameter(torch.empty(2, 3).t())
        scheduler = ByteScheduler(model, _sgd(model))
        mcr_dl.set_passes(["log"], scheduler._core)
        with torch.no_grad():
            for each in model.parameters():
                each.fill_(dist.get_rank())
        buffers.begin(model, scheduler._core, "auto")
        assert [(each.op, each.asynchronous) for each in mcr_dl.log_records(scheduler._core)] == [
            ("broadcast", True)
        ] * 5
        assert not any(each.any() for each in model.parameters())
        scheduler.close()


def part_of_the_model_in_inference_mode() -> None:
    """Makes the first updates of its own parameters, and with them a state of the optimizer that later updates use."""
    with life("mcr"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        optimizer = torch.optim.Adam(model.parameters())
        scheduler = ByteScheduler(model, optimizer)
        for _ in range(3):
            scheduler(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.inference_mode():
                model[0](torch.ones(2, 4))
        scheduler.close()
        tensors = [each for state in optimizer.state.values() for each in state.values()]
        assert not any(each.is_inference() for each in tensors)


def _frozen(count: int) -> nn.Module:
    model = nn.Linear(4, 4)
    model.register_parameter("fixed", nn.Parameter(torch.ones(count), requires_grad=False))
    return model


def _with_buffer(name: str, count: int) -> nn.Module:
    model = nn.Linear(4, 4)
    model.register_buffer(name, torch.zeros(count))
    return model


def differences() -> None:
    """Between the ranks, in what ByteScheduler sends or assumes to be equal: one error on all ranks."""
    sgd, adam = torch.optim.SGD, torch.optim.Adam
    with life("mcr"):
        rank = dist.get_rank()
        cases: list[tuple[nn.Module, Callable[[nn.Module], torch.optim.Optimizer], str]] = [
            (_frozen(6 + 2 * rank), _sgd, r"\['parameter', 'fixed', \[6\], .* on rank 0 and .*\[8\]"),
            (_with_buffer("mask", 5 + rank), _sgd, r"\['buffer', 'mask', \[5\], .* on rank 0 and .*\[6\]"),
            (_with_buffer(f"mask{rank}", 5), _sgd, "'mask0', .* on rank 0 and .*'mask1'"),
            (nn.Linear(4, 4, bias=not rank), _sgd, "'bias', .* on rank 0 and None on rank 1"),
            (nn.Linear(4, 4), lambda model: (adam if rank else sgd)(model.parameters(), lr=0.1), "'SGD'.*'Adam'"),
            (nn.Linear(4, 4), lambda model: sgd(model.parameters(), lr=0.1 + rank), r"'lr', '0\.1'.*'lr', '1\.1'"),
            (nn.Linear(4, 4), lambda model: sgd(model.parameters(), lr=torch.tensor(1.0 + rank)), r"'1\.0'.*'2\.0'"),
            (nn.Linear(4, 4), lambda model: adam(model.parameters(), betas=(0.5 * rank, 0.9)), r"'\(0\.0, 0\.9\)'"),
            (nn.Linear(4, 4), lambda model: sgd([*model.parameters()][:: 1 - 2 * rank], lr=0.1), "'weight'.*'bias'"),
        ]
        for module, optimizer, text in cases:
            with pytest.raises(InvalidArgumentError, match=f"expected the same on all ranks, .*{text}"):
                ByteScheduler(module, optimizer(module))
        dist.barrier()


def backward_pass_in_use(form: str, order: str) -> None:
    """Of another backend: operations do not follow it, whichever thread issues them, inside and outside the block."""
    named: set[str | None] = set()

    class Sees:
        def handle(self, call: mcr_dl.passes.PassedCall) -> Any:
            named.add(call.backend)
            return call.proceed()

    with life("mcr"):
        mcr_dl.register_pass(Sees(), "sees")
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)), nn.BatchNorm1d(64))
        optimizer = _sgd(model)
        group = mcr_dl.new_group(backend="gloo,mpi", timeout=20)
        given: Any = {} if form == "reduce_scatter" else {"partition": 1024, "credit": 2048}
        scheduler = ByteScheduler(model, optimizer, form=form, order=order, group=group, **given)
        leader = scheduler._issuer.leader
        for each in (group, scheduler._core, *([leader.group] if leader else [])):
            mcr_dl.set_passes(["sees"], each)
        for _ in range(8):
            named.clear()
            loss = scheduler(torch.ones(4, 64)).sum()
            with mcr_dl.use("gloo" if scheduler.candidate == "mpi" else "mpi"):
                loss.backward()
            scheduler.synchronize()
            assert None in named
            assert named <= {None, scheduler.candidate}
            optimizer.step()
            optimizer.zero_grad()
        scheduler.close()


def all_gradients_in_halves(partition: int | None) -> None:
    """Also those whose elements do not divide among the ranks."""
    made: set[tuple[str, torch.dtype]] = set()

    class Sees:
        def handle(self, call: mcr_dl.passes.PassedCall) -> Any:
            made.add((call.op, call.dtype))
            return call.proceed()

    with life("mcr"):
        mcr_dl.register_pass(Sees(), "sees")
        model = nn.Sequential(nn.Linear(64, 517), nn.Linear(517, 7))
        optimizer = _sgd(model)
        scheduler = ByteScheduler(model, optimizer, form="reduce_scatter", partition=partition)
        mcr_dl.set_passes(["sees"], scheduler._core)
        for _ in range(8):
            made.clear()  # all_reduces, from which the plan is made at the end of the fourth step
            scheduler(torch.ones(4, 64)).sum().backward()
            scheduler.synchronize()
            floats = {op for op, dtype in made if dtype == torch.float32}
            assert floats == {"reduce_scatter", "all_gather"}
            optimizer.step()
            optimizer.zero_grad()
        pieces = scheduler._pieces
        sizes = [[part.nbytes for part in piece.partitions] for piece in pieces]
        assert all(size % (4 * dist.get_world_size()) == 0 for each in sizes for size in each)
        if partition is not None:
            assert max(max(each) for each in sizes) <= partition
        scheduler.close()


def one_rank_waits_for_updates(backend: str) -> None:
    """One rank alone saves the state of a model with buffers after each step, of which little is issued by then."""
    with life("mcr"):
        model = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), *(nn.Linear(256, 256) for _ in range(4)))
        optimizer = _sgd(model)
        group = mcr_dl.new_group(backend=backend, timeout=30)
        scheduler = ByteScheduler(model, optimizer, partition=4096, credit=4096, group=group)
        for step in range(12):
            scheduler(torch.randn(4, 256)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step > 5 and dist.get_rank() == 0:
                scheduler.state_dict()
        scheduler.close()
