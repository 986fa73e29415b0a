# SPDX-License-Identifier: Apache-2.0
"""ByteScheduler: data-parallel training whose gradients are sent in the order in which the forward pass needs them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from mcr_dl.base.errors import McrError, UnsupportedError
from mcr_dl.base.weak import weakly
from mcr_dl.runtime import handles, state
from mcr_dl.schedule.bytescheduler import buffers, checks, choosing, guard, hooks, own_groups, planning, timeline
from mcr_dl.schedule.bytescheduler.gradients import Parameter, Piece, in_order, joined
from mcr_dl.schedule.bytescheduler.issue import Issuer, Transfers
from mcr_dl.schedule.bytescheduler.leader import Leader
from mcr_dl.schedule.bytescheduler.turns import Trial
from mcr_dl.schedule.bytescheduler.updates import Updates, outside_inference
from mcr_dl.schedule.bytescheduler.uses import Uses
from mcr_dl.schedule.timelines import Traced

_log = logging.getLogger("mcr_dl")


class ByteScheduler(nn.Module):
    """Data-parallel training in place of DistributedDataParallel; communication crosses the end of the step.

    ``optimizer.step()`` returns at once. Gradients are cut into partitions and reduced in the order in which the next
    forward pass needs them, with a limited number of bytes in flight; each module waits for its own parameters only,
    which are updated as their gradients arrive.

    >>> model = mcr_dl.schedule.ByteScheduler(network, optimizer)
    >>> loss(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()

    The first four steps reduce whole gradients and record times. Then all ranks agree on medians, simulate the same
    plans from them, and compare these by the times of further steps. Wherever gradients are used before ``step()``
    (clipping, GradScaler), the use waits for all of them. ``state_dict()``, ``parameters()`` of this object,
    ``model.eval()``, forward passes without gradients and the end of the job wait for all updates; before any other
    use of the parameters after ``step()``, call ``synchronize()``.

    Source: ByteScheduler (SOSP'19); ``form="reduce_scatter"``: DeAR (ICDCS'23).
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        *,
        partition: checks.Limit = "auto",
        credit: checks.Limit = "auto",
        form: str = "all_reduce",
        tuning: str = "shortlist",
        order: str = "static",
        group: Any = None,
        backend: str | None = None,
        broadcast_buffers: bool = True,
    ) -> None:
        """Collective over the group; parameters and buffers become rank 0's.

        Args:
            module: an eager model on the CPU, with equal names, shapes and types of parameters and buffers on all
                ranks, of which the same parameters are frozen.
            optimizer: any that updates each parameter by itself; LBFGS and closures are refused, and of other classes
                than torch.optim's, those with which a step of copies for all parameters has other results than one for
                each. All ranks have equal classes, parameter groups and numbers in these, such as learning rates. Its
                ``step`` belongs to this object until ``close()``.
            partition: bytes per operation at most (from 1024), None for whole gradients, or "auto".
            credit: bytes in flight at most, except for one larger partition alone; None for no limit, or "auto".
            form: "all_reduce", or "reduce_scatter": reduce_scatter in the backward pass, and then all_gather in the
                order of the forward pass; "auto" limits stand for None there.
            tuning: how "auto" limits are found. "shortlist": the plans that simulation prefers take turns of some
                training steps, and the fastest stays, after about 130 steps; "bayesian": then 15 more settings are
                measured, 25 steps each, which a search finds (``pip install optuna scipy``); "simulation": the plan
                that simulation prefers.
            order: "static": the plan's order. "leader": rank 0 chooses the order by priority during each backward pass,
                for models whose graph changes from step to step; implies ``tuning="simulation"``.
            group: the ranks; the default group's by default. The operations run on a group of their own.
            backend: a candidate for all operations, which do not follow ``use()``; by default the group's choice, and
                for gradients the fastest one.
            broadcast_buffers: whether each training forward pass outside ``no_sync()`` begins with the first rank's
                buffers. Others use the rank's own: call ``synchronize(broadcast_buffers=True)`` before evaluation.

        Raises on all ranks InvalidArgumentError or InvalidTypeError if models or arguments are wrong or differ between
        the ranks; UnsupportedError for models on devices, compiled models, and optimizers that need all parameters.
        """
        super().__init__()
        self._outer = handles.core_group(group)
        given = {"partition": partition, "credit": credit, "form": form, "tuning": tuning, "order": order}
        given |= {"backend": backend, "broadcast_buffers": broadcast_buffers}
        self._own_layers, owned = checks.agreed(self._outer, module, optimizer, given)
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        self._core = own_groups.like(self._outer, self)
        self._own_pieces = [piece for layer in self._own_layers for piece in layer]
        self._values = [each for piece in self._own_pieces for each in piece.parameters]
        self._transfers = Transfers(self._core, backend, form == "reduce_scatter")
        limits = checks.limit("partition", partition, self._transfers.multiple), checks.limit("credit", credit)
        leader = Leader(own_groups.like(self._outer, self), self._transfers.named) if order == "leader" else None
        end = weakly(self._at_end)
        self._choice = choosing.Choice(self._transfers, "simulation" if leader else tuning, limits, end)
        self._issuer = Issuer(self._transfers.start, leader)
        self._optimizer, self._updates = optimizer, Updates(optimizer)
        self._gates = hooks.Gates(module, self._enter, self._need)
        self._wait = weakly(self._read)  # Python's collector does not see a parameter's gradient
        self._hooks: list[Any] = []
        try:
            self._reset(owned)
            buffers.begin(module, self._core, self._transfers.named)
            self._install(owned)
        except BaseException:
            self._remove_hooks()
            self._end_groups()
            raise

    # ---- start and end

    def _reset(self, owned: dict[nn.Module, list[int]]) -> None:
        """The state before the first step."""
        self._synchronizes = self._reducing = True  # outside no_sync(); the next gradients are reduced
        self._armed = False  # a forward pass outside no_sync() waits for a backward pass that reduces
        self._open = False  # a backward pass is running
        self._drained: set[str] = set()  # what has waited for all gradients
        self._steps = 0  # that have reduced gradients
        self._reduces = False  # a backward pass since the last step has done so
        self._use = guard.Use(len(self._values))
        self._times = planning.Times()
        self._clock = 0
        self._current: list[int] = []
        self._seen: dict[int, int] = {}  # layer -> when its forward pass began
        # Layers that a forward pass waits for when it begins: those without one of their own, and the first one; all
        # until that is known.
        self._entry = list(range(len(self._own_layers)))
        layer_of = {
            each.value: index for index, layer in enumerate(self._own_layers) for p in layer for each in p.parameters
        }
        self._uses = Uses(owned, layer_of)
        self._adopt(planning.Plan(()))

    def _install(self, owned: dict[nn.Module, list[int]]) -> None:
        root, optimizer = self.module, self._optimizer
        self._gates.add(owned)
        self._hooks.append(hooks.after_forward(root, lambda: setattr(self, "_clock", time.perf_counter_ns())))
        self._hooks += hooks.of_gradients(self._values, self._before_gradient, self._gradient)
        self._hooks += hooks.of_states(root, optimizer, self._drain)
        self._hooks.append(hooks.Step(optimizer, self._step, self))
        state.current().of(self._core.name()).endings.append(weakly(self._at_end))

    def _at_end(self) -> None:
        """The job, the group or a backend ends."""
        if self._issuer.failed or self._broken_off():  # which has been raised
            return
        try:
            self._drain("the end")
        except Exception as error:
            _log.warning("ByteScheduler: the updates of the last step were not made: %s", error)

    @contextmanager
    def traced(self, path: str | os.PathLike[str]) -> Iterator[Traced]:
        """Write the plan and the steps in the block to a Chrome trace, for Perfetto; each rank names its own file.

        Gives how much communication was exposed, in milliseconds per step. Raises, before the block, McrError inside
        another one and if there is no plan yet, and InvalidArgumentError for a file that cannot be written.
        """
        self.synchronize()
        given = self.module, self._issuer, self._choice.known, self.plan, self._core.rank()
        with timeline.traced(*given, path) as result:
            yield result
            self.synchronize()

    def close(self) -> None:
        """Finish all updates, and give the model and the optimizer back as they were: a collective over the group.

        After an operation has failed, as on a lost rank, or an exception in the backward pass, the updates that wait
        for it are not made. Training forward passes of this object raise McrError from then on.
        """
        broken_off = self._broken_off()
        try:
            if not (self._issuer.failed or broken_off):
                self._drain("close()")
        finally:
            self._remove_hooks()
            for piece in self._pieces if self._issuer.failed or broken_off else ():
                piece.forget()
            self._end_groups()

    def _remove_hooks(self) -> None:
        self._gates.remove()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _end_groups(self) -> None:
        leader = self._issuer.leader
        own_groups.end([self._core, *([leader.group] if leader else [])])

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises UnsupportedError: a group can be neither copied nor saved."""
        raise UnsupportedError(checks.COPIED)

    @property
    def trials(self) -> list[Trial]:
        """The plans that training steps have compared, with their times."""
        return self._choice.trials

    @property
    def candidate(self) -> str | None:
        """The candidate of the gradients' all_reduces; None: the group's choice for each."""
        return self._transfers.candidate

    @property
    def comparing(self) -> bool:
        """Whether plans are still being made or compared; later the plan stays."""
        return self._steps <= planning.RECORDED or self._choice.tuner is not None

    # ---- the forward pass

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward pass."""
        if torch._C._dynamo.eval_frame.get_eval_frame_callback():
            raise UnsupportedError(checks.COMPILED.format("the model"))
        if not self._hooks and torch.is_grad_enabled() and self.module.training:
            raise McrError(checks.CLOSED)
        if torch.is_grad_enabled():  # also in evaluation
            self._armed = self._armed or self._synchronizes
        if self._steps == 0 and torch.is_grad_enabled():
            with self._uses.recorded():
                return self.module(*args, **kwargs)
        return self.module(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As in torch, after all updates."""
        if getattr(self, "_hooks", None):
            self._drain("parameters()")
        return super().named_parameters(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch; does not wait for updates."""
        self.module.zero_grad(set_to_none)

    def train(self, mode: bool = True) -> ByteScheduler:
        """As in torch; before evaluation all updates are made."""
        if not mode and getattr(self, "_hooks", None):
            self._drain("model.eval()")
        return super().train(mode)

    def _enter(self, module: nn.Module) -> None:
        if module is not self.module:  # a copy, with copies of its hooks
            return
        self._require_complete_backward()
        checks.eager(self._gates.modules)
        if not torch.is_grad_enabled() or not self.module.training:
            self._drain("a forward pass without training")
            return
        self._seen.clear()
        self._reducing = self._armed = self._armed or self._synchronizes
        self._update(self._entry, others=True)
        self._update_complete()
        if self.broadcast_buffers and self._synchronizes:
            self._broadcast_buffers()

    def _broadcast_buffers(self) -> None:
        buffers.broadcast(self.module.buffers(), self._outer, self._transfers.named)

    def _broken_off(self) -> bool:
        """Whether an exception in a backward pass has left gradients that this rank never gave to the others."""
        return self._open and not hooks.in_backward_pass()

    def _require_complete_backward(self) -> None:
        if self._broken_off():
            raise McrError(checks.BROKEN_OFF)

    def _need(self, layers: list[int]) -> None:
        """The forward pass is about to use these layers."""
        self._update(layers)
        if not torch.is_grad_enabled() or hooks.in_backward_pass():
            return
        reducing = self._armed or self._synchronizes
        if self._reducing != reducing:  # a module's attributes take long to set
            self._reducing = reducing
        if self._steps <= planning.RECORDED:
            now = time.perf_counter_ns()
            for layer in layers:
                self._seen.setdefault(layer, now)

    def _update(self, layers: list[int], others: bool = False) -> None:
        """Finish the pieces of the layers; while that takes time, ``others`` that are complete are updated, too.

        That is for the start of the forward pass: later, a use of their old values would remain unnoticed.
        """
        for layer in layers:
            for piece in self._layers[layer]:
                if piece.due is not None:
                    with outside_inference():
                        self._finish(piece, partial(self._update_complete, piece) if others else None)

    def _update_complete(self, waiting: Piece | None = None) -> bool:
        """Update all complete pieces together, but not the one that is waited for; False if there are none."""
        self._issuer.collect()
        pieces = [each for each in self._pieces if each.due is not None and each is not waiting and each.complete()]
        if not pieces:
            return False
        with torch.no_grad():
            due = pieces[0].due  # equal for all: the updates of earlier steps are made before a step
            assert due is not None
            for piece in pieces:
                self._take_results(piece, lambda _: True)  # each has a gradient here
                piece.open, piece.due, piece.locked = False, None, False
            self._updates.apply(pieces, due)
        return True

    # ---- the backward pass

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """The gradients of forward passes in the block add up without a reduction, as DDP's."""
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    def _before_gradient(self, each: Parameter) -> None:
        """Gradients of an earlier backward pass are complete before new ones are added to their memory."""
        if not each.piece.locked:
            return
        if each.piece.due is not None or self._open:
            raise McrError(checks.USED_EARLY.format(each.piece.name))
        self._finish_all()

    def _gradient(self, each: Parameter) -> None:
        if not self._reducing:
            self._use.add(each.index)
            return
        if not self._open:
            self._begin()
        if each.fresh:
            raise UnsupportedError(checks.TWICE.format(each.name))
        if torch.is_grad_enabled():  # with create_graph=True
            with torch.no_grad():
                self._take(each)
        else:
            self._take(each)

    def _take(self, each: Parameter) -> None:
        assert each.value.grad is not None
        each.take(each.value.grad, self._wait)
        each.fresh = True
        piece = each.piece
        piece.missing -= 1
        if piece.missing == 0:
            self._submit(piece)
            self._issuer.advance()

    def _begin(self) -> None:
        late = [piece for piece in self._pieces if piece.due is not None]
        self._finish_all()
        for piece in late:  # the forward pass has used it before its update
            piece.locked = True
        self._use.begin(self._issuer.digest)  # of all earlier passes, and so equal on all ranks
        self._open = self._reduces = True
        for piece in self._pieces:
            piece.begin()
        self._current = [0] * len(self._pieces)
        self._issuer.begin(self._order, self.plan.credit)
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _submit(self, piece: Piece) -> None:
        self._current[piece.index] = time.perf_counter_ns() - self._clock
        for partition, memory in piece.fill(self._core.size()):
            self._issuer.ready(partition, memory)

    def _end(self) -> None:
        """The end of the backward pass, which has not used all parameters on every rank."""
        self._armed = False
        with torch.no_grad():
            for piece in self._pieces:
                piece.locked = True
                if piece.missing:
                    piece.take_none(self._wait)
                    self._submit(piece)
            self._issuer.ready(self._use.partition, self._use.end(each.fresh for each in self._values))
            self._issuer.advance()
        self._open = False  # last: after an error above, the others lack gradients of this rank
        if 1 <= self._steps <= planning.RECORDED:
            self._times.add(self._current, len(self._own_layers), self._seen, self._clock)

    # ---- waiting and updates

    def _read(self) -> None:
        self._drain("a use of gradients before step()")

    def synchronize(self, *, broadcast_buffers: bool = False) -> None:
        """Wait for all gradients, and make the updates of the last step.

        ``broadcast_buffers``: also give all ranks the first rank's buffers, as the running statistics of BatchNorm
        before an evaluation: a collective over the group then.
        """
        self._finish_all()
        if broadcast_buffers:
            self._broadcast_buffers()

    def _drain(self, reason: str) -> None:
        """Wait for all gradients and updates; the first time that a reason makes this necessary, the log names it."""
        if reason not in self._drained and any(piece.open or piece.due is not None for piece in self._pieces):
            self._drained.add(reason)
            _log.info("ByteScheduler: %s waits for all gradients and updates", reason)
        self._finish_all()

    def _finish_all(self) -> None:
        self._require_complete_backward()
        with outside_inference():
            for piece in self._pieces:
                if piece.open or piece.due is not None:
                    self._finish(piece)
            if not self._issuer.idle:
                self._issuer.wait(self._use.partition)

    def _finish(self, piece: Piece, meanwhile: Callable[[], bool] | None = None) -> None:
        """Wait for a piece's gradients, and update its parameters if their step was made."""
        if piece.open:
            with torch.no_grad():
                for partition in piece.partitions:
                    self._issuer.wait(partition.last, meanwhile)
                if not all(each.fresh for each in piece.parameters):
                    self._issuer.wait(self._use.partition)
                self._take_results(piece, lambda each: self._use.anywhere(each.index))
            piece.open = False
        piece.locked = False
        if piece.due is not None:
            due, piece.due = piece.due, None
            self._updates.apply([piece], due)

    def _take_results(self, piece: Piece, used: Callable[[Parameter], bool]) -> None:
        changed = next((each.name for each in piece.parameters if each.changed), None)
        if changed is not None:
            self._issuer.break_off(self._order, McrError(checks.CHANGED.format(changed)))
        piece.take_results(used)

    def _step(self, closure: Callable[[], Any] | None) -> None:
        if closure is not None:
            raise UnsupportedError("ByteScheduler: expected optimizer.step() without a closure, got one")
        self._require_complete_backward()
        if self._open:
            raise McrError("ByteScheduler: expected optimizer.step() after the backward pass, got it inside")
        self._issuer.check()
        self._optimizer.__dict__["_opt_called"] = True  # what a learning-rate scheduler looks for
        self._updates.call_pre_hooks()
        if any(piece.due is not None or piece.touched() for piece in self._pieces):
            self._finish_all()
        due = self._updates.hyperparameters()
        fresh = {piece for piece in self._pieces if piece.open}
        for piece in fresh:
            piece.due = due
        self._updates.step_others(due, fresh, lambda values: checks.reduced(self.module, values, self._piece_of))
        if self._reduces:
            self._count_step()
        self._updates.call_post_hooks(self._finish_all)

    def _count_step(self) -> None:
        self._reduces = False
        self._steps += 1
        if self._steps == 1:
            self._times.first_use = self._uses.first_uses()
            self._gates.add(self._uses.added)
        if self._steps == planning.RECORDED + 1:
            self._make_plan()
        elif self._choice.step_ended():
            self._finish_all()
            self._adopt(self._choice.next_plan())

    # ---- the plan

    def _adopt(self, plan: planning.Plan) -> None:
        """Reduce by this plan from the next backward pass on; an empty one stands for whole gradients from the end."""
        members = plan.members or [(index,) for index in range(len(self._own_pieces))]
        self._layers, self._pieces = joined(self._own_layers, members)
        self._piece_of = {each.value: piece for piece in self._pieces for each in piece.parameters}
        for piece in self._pieces:
            piece.cut(plan.partition, self._transfers.multiple)
        parts = in_order(self._pieces, plan.order, live=self._issuer.leader is not None)
        gathers = self._transfers.halve(parts, [part for piece in self._pieces for part in piece.partitions])
        self._order = [*parts, self._use.partition, *gathers]
        self._transfers.use = self._use.partition
        self.plan = plan

    def _make_plan(self) -> None:
        self._finish_all()
        known = self._choice.costs(self._times, self._own_layers)
        first_use = self._times.first_use
        unseen = [layer for layer in range(len(self._own_layers)) if layer not in first_use]
        self._entry = [*unseen, *first_use[:1]]
        self._adopt(self._choice.first(known))
