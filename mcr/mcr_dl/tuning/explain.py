# SPDX-License-Identifier: Apache-2.0
"""Explains why ``auto`` gives a call to a candidate."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from mcr_dl import _C
from mcr_dl.base.errors import InvalidArgumentError, InvalidTypeError
from mcr_dl.base.operations import operation_of
from mcr_dl.runtime import handles, state
from mcr_dl.tables import codecs, rules
from mcr_dl.tables.choice import Shape
from mcr_dl.tables.winners import microseconds_of

ReduceOp = torch.distributed.ReduceOp


@dataclass(frozen=True)
class Explanation:
    """The choice for one kind of call: the candidate, its predicted cost, the row of the table, and the reason.

    ``predicted_us`` has every candidate that was compared, in microseconds (None: not measured). ``table`` is the file,
    ``row`` the scale and curve in it; both are empty if no measurement was used. For values that refinement has learned
    without a table, only ``row`` is set.

    ``codec`` is the codec that the group's ``Compress("auto")`` uses for the call, or "none"; empty if the group has no
    such pass. ``codec_us`` is the predicted time without and with the codec, if there is one.

    ``plans`` has the plan of each candidate over planned dimensions, such as "themis(shm,mpi)": its policy, chunks,
    simulated time, and the orders of dimensions (1: innermost) with the number of chunks that take each.

    ``shares`` has the part that each candidate over two backends with a computed share, such as "stripe(gloo,mpi)",
    gives to its first backend: 0.05 to 0.95.
    """

    operation: str
    nbytes: int | None
    candidate: str
    predicted_us: dict[str, float | None]
    table: str
    row: str
    reason: str
    codec: str = ""
    codec_us: tuple[float, float] | None = None
    plans: dict[str, str] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        size = "any size" if self.nbytes is None else f"{self.nbytes} bytes"
        lines = [f"{self.operation}, {size}: {self.candidate}, {self.reason}"]
        lines += [
            f"  {name}: " + ("not measured" if time is None else f"{time:.2f} us")
            for name, time in self.predicted_us.items()
        ]
        if self.codec:
            times = "" if self.codec_us is None else f", {self.codec_us[1]:.2f} us instead of {self.codec_us[0]:.2f} us"
            lines.append(f"  codec {self.codec}{times}")
        lines += [f"  {name}: {plan}" for name, plan in self.plans.items()]
        lines += [f"  {name}: {share:.1%} on {_C.CandidateName(name).parts[0]}" for name, share in self.shares.items()]
        if self.row:
            lines.append("  " + (f"table {self.table}, " if self.table else "") + self.row)
        return "\n".join(lines)


def _times(found: dict[str, Any]) -> dict[str, float | None]:
    costs = found["candidates"]
    return {name: None if cost is None else microseconds_of(cost) for name, cost in costs.items()}


def _reason(nbytes: int | None, found: dict[str, Any], times: dict[str, float | None]) -> str:
    chosen = found["chosen"]
    if len(times) < 2:
        reason = "the only candidate that has it natively" if times else "no candidate has it natively: emulated"
        gone = ", ".join(found["excluded"])
        return reason + (f" (left out by measurement: {gone})" if gone else "")
    if not found["measured"]:
        return "not measured: the first that has it natively, in the order given at init"
    if nbytes is None:
        return "the cheapest over all sizes, as ranks may differ in theirs"
    known = {name: time for name, time in times.items() if time is not None}
    best = min(known, key=lambda name: known[name])
    refined = ", refined while running" if found["refined"] else ""
    if best == chosen:
        return f"the cheapest{refined}"
    if found["tried"]:
        return f"within 10 % of the cheapest, {best}, and chosen before the trials{refined}"
    return f"within 2 % of the cheapest, {best}, and chosen for the sizes below{refined}"


def _row(operation: str, dtype: str, group: _C.Group, found: dict[str, Any], device: str, *, async_op: bool) -> str:
    knowledge = state.current().knowledge
    shape = knowledge.shape(group.ranks)
    scale = knowledge.scale_for(shape, device)
    reduces = operation_of(operation).reduces
    form = ", asynchronous" if async_op else ""
    stands_in = " (the nearest that was measured)" if found["guessed"] else ""
    refined = " (refined while running)" if found["refined"] else ""
    curve = f"{operation}, {_C.dtype_class(dtype) if reduces else 'any'}{form}{stands_in}{refined}"
    if scale is None:
        return curve
    nearest = "" if shape == Shape.of(scale) else f" (nearest to {shape.unlike(scale)})"
    return f"{scale['name']}{nearest}, {curve}"


def _codec(
    operation: str, nbytes: int | None, dtype: str, group: _C.Group, candidate: str, device: str
) -> tuple[str, tuple[float, float] | None]:
    """The decision of the group's ``Compress("auto")`` on the call, and the times without and with the codec."""
    found = [each for each in _C.passes(group) if isinstance(each, _C.CompressPass) and each.automatic]
    if not found:
        return "", None
    op = operation_of(operation).op
    codec = "none"
    if nbytes is not None and device == "cpu":
        codec = found[0]._standing(op, dtype, candidate, nbytes)
    if nbytes is None or codec == "none":
        return codec, None
    return codec, codecs.predicted(state.current().knowledge, group.ranks, op, candidate, codec, nbytes)


def _plans(operation: str, nbytes: int | None, group: _C.Group) -> dict[str, str]:
    """The plans of a call on the group's candidates over planned dimensions."""
    networks = state.current().peek(group.name()).networks
    if nbytes is None or operation_of(operation).vectored:
        return {}
    found = {}
    for name in group.candidates:
        candidate = _C.CandidateName(name)
        network = networks.get(candidate.backend)
        if network is None:
            continue
        try:
            plan = _C.themis_plan(list(network), operation, max(nbytes, 1), bool(candidate.variant))
        except InvalidArgumentError:  # more bytes than a plan can have
            continue
        if plan is not None:
            orders = Counter("".join(str(k + 1) for k in order) for order in plan.orders)
            shares = ", ".join(f"{count} in order {order}" for order, count in sorted(orders.items()))
            found[name] = f"{plan.policy}, chunks: {shares}; {plan.makespan / 1e6:.1f} us by simulation"
    return found


def _operation(operation: str) -> str:
    name = rules.operation_of(operation)
    if name is None:
        message = f"operation: expected one of {', '.join(_C.operations())}, got {operation!r}"
        raise InvalidArgumentError(message)
    return name


def _size(name: str, nbytes: int | None) -> int:
    """The size of the call, -1 if it is not known: the core refuses that where every rank knows it."""
    if nbytes is None:
        return -1
    try:
        size = operator.index(nbytes)
    except TypeError:
        message = f"nbytes: expected a whole number of bytes, got {nbytes!r}"
        raise InvalidTypeError(message) from None
    if not 0 <= size < 2**63:
        message = f"nbytes: expected 0 to {2**63 - 1} bytes for {name}, got {nbytes}"
        raise InvalidArgumentError(message)
    return size


def _one_of(argument: str, value: object, prefix: str, names: list[str]) -> str:
    name = str(value).removeprefix(prefix)
    if name not in names:
        message = f"{argument}: expected one of {prefix}{f', {prefix}'.join(names)}, got {value!r}"
        raise InvalidTypeError(message)
    return name


def explain(
    operation: str,
    nbytes: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    op: Any = ReduceOp.SUM,
    group: handles.Group = None,
    device: str = "cpu",
    async_op: bool = False,
) -> Explanation:
    """Explain what ``auto`` does with a call, and why.

    Args:
        operation: a public name, such as ``all_reduce``, ``all_to_allv``, ``all_gather_into_tensor``.
        nbytes: the size as tables count it: the tensor; for gathers and scatters all ranks' data; for all_to_all one
            rank's. None for gatherv, scatterv and all_to_allv, whose size differs between ranks.
        dtype: the element type.
        op: the reduction, for operations that reduce.
        group: the default group if None.
        device: where the tensors are: ``cpu`` or ``cuda``.
        async_op: True: explain an asynchronous call. If none were measured, the measurements of blocking calls are
            used.

    Raises InvalidArgumentError for an unknown operation or device, or a size that is missing or out of range, and
    InvalidTypeError for a size that is not a whole number, or another type or reduction.
    """
    where = handles.core_group(group)
    name = _operation(operation)
    size = _size(name, nbytes)
    element = _one_of("dtype", dtype, "torch.", _C.dtypes())
    reduction = _one_of("op", op, "RedOpType.", _C.reductions())
    if device not in ("cpu", "cuda"):
        message = f"device: expected cpu or cuda, got {device!r}"
        raise InvalidArgumentError(message)
    found = where._explain(name, size, element, reduction, device, async_op)
    times = _times(found)
    codec, codec_us = _codec(name, nbytes, element, where, found["chosen"], device)
    reason = _reason(nbytes, found, times)
    ruled = found["rule"] >= 0
    if ruled:
        reason = f"by the rule {state.current().knowledge.rules[found['rule']].text!r} of {rules.VARIABLE}"
    used = found["measured"] and not ruled
    return Explanation(
        operation=name,
        nbytes=nbytes,
        candidate=found["chosen"],
        predicted_us=times,
        table=state.current().knowledge.source if used else "",
        row=_row(name, element, where, found, device, async_op=async_op) if used else "",
        reason=reason,
        codec=codec,
        codec_us=codec_us,
        plans=_plans(name, nbytes, where),
        shares={each: share / 1000 for each, share in found["shares"].items()},
    )
