# SPDX-License-Identifier: Apache-2.0
"""The gradients of a model as flat memory, cut into partitions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from mcr_dl.base.errors import UnsupportedError
from mcr_dl.schedule.bytescheduler import credit
from mcr_dl.schedule.bytescheduler.issue import Partition

SMALL = 64 << 10  # bytes; smaller gradients of a module are reduced in one piece of memory

Hyperparameters = dict[str, Any]


@dataclass(eq=False)
class Parameter:
    """A parameter, and its gradient between the backward pass and the update.

    ``index``: among the parameters of all pieces, in the order of these.
    """

    name: str
    value: nn.Parameter
    index: int = 0
    gradient: torch.Tensor | None = None
    guard: torch.Tensor | None = None  # what ``value.grad`` is until the gradient is reduced
    fresh: bool = False  # the last backward pass has added to the gradient, on this rank
    kept: bool = False  # it has not, and the gradient is that of earlier passes
    piece: Piece = field(init=False, repr=False)  # in the current plan

    @property
    def dtype(self) -> torch.dtype:
        """Of the gradient: in newer versions of torch, a parameter's ``grad_dtype`` may be another than its own."""
        given: torch.dtype | None = getattr(self.value, "grad_dtype", None)
        return given or self.value.dtype

    @property
    def nbytes(self) -> int:
        """Of the gradient."""
        return self.value.numel() * self.dtype.itemsize

    @property
    def changed(self) -> bool:
        """Whether something has written into the guarded gradient without the guard's wait."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.guard is not None and not self.guard.is_inference() and self.guard._version > 0

    def take(self, gradient: torch.Tensor, wait: Callable[[], None]) -> None:
        """Guard the gradient until it is reduced."""
        if gradient.is_sparse:
            message = (
                f"ByteScheduler: expected dense gradients, got a sparse one of {self.name}; use DDP for this model"
            )
            raise UnsupportedError(message)
        if gradient.requires_grad:  # the reduction, and whatever is read from it, would not be in the graph
            message = (
                f"ByteScheduler: expected backward passes without create_graph, got a gradient of {self.name} with a "
                "graph; take gradients for a penalty from torch.autograd.grad()"
            )
            raise UnsupportedError(message)
        self.gradient = gradient
        self.guard = self.value.grad = guarded(gradient, wait)

    def take_none(self, wait: Callable[[], None]) -> None:
        """The backward pass has ended without this parameter: what earlier passes have left counts, else zeros.

        ``value.grad`` is not None then, as it will be if another rank has used the parameter.
        """
        gradient = self.value.grad
        self.kept = gradient is not None
        self.take(torch.zeros_like(self.value, dtype=self.dtype) if gradient is None else gradient, wait)


@dataclass(eq=False)
class Piece:
    """Gradients that become ready and are updated together.

    They are one parameter's, a module's small ones of one type, or those of several modules that a plan joins.

    ``missing``: parameters without a gradient in this backward pass. ``due``: the hyper-parameters of the step whose
    update the piece still waits for, by parameter group; None if it waits for none. ``locked``: a backward pass must
    not add to the gradients now.
    """

    name: str
    parameters: list[Parameter]
    index: int = 0
    missing: int = 0
    open: bool = False  # between the backward pass and the end of its reduction
    locked: bool = False
    due: list[Hyperparameters] | None = None
    partitions: list[Partition] = field(default_factory=list)
    _multiple: int = 1  # of the elements of each partition
    _memory: torch.Tensor | None = None
    _views: list[torch.Tensor] = field(default_factory=list)  # of the memory, by parameter
    _in_place: bool = False

    @property
    def kind(self) -> str:
        """Pieces of different kinds cannot be joined."""
        return str(self.parameters[0].dtype)

    @property
    def nbytes(self) -> int:
        """Of all gradients."""
        return sum(each.nbytes for each in self.parameters)

    def complete(self) -> bool:
        """Whether the backward pass has added to all gradients here, and all are reduced."""
        return all(each.fresh for each in self.parameters) and all(
            partition.last.complete for partition in self.partitions
        )

    def touched(self) -> bool:
        """Whether the program has replaced, cleared or changed a gradient since the backward pass."""
        return self.open and any(each.value.grad is not each.guard or each.changed for each in self.parameters)

    def begin(self) -> None:
        """The state before a backward pass."""
        self.missing, self.open = len(self.parameters), True
        for each in self.parameters:
            each.gradient = each.guard = None
            each.fresh = each.kept = False

    def take_none(self, wait: Callable[[], None]) -> None:
        """The backward pass has ended, without some of the parameters."""
        for each in self.parameters:
            if not each.fresh:
                each.take_none(wait)

    def forget(self) -> None:
        """Without the gradients that are not reduced, and the update that waits for them."""
        self.open, self.due = False, None
        for each in self.parameters:
            if each.guard is not None and each.value.grad is each.guard:
                each.value.grad = None

    def cut(self, partition: int | None, multiple: int = 1) -> None:
        """Make the partitions, of so many bytes each; the last one is padded to a ``multiple`` of elements."""
        self._multiple, each = multiple, self.parameters[0].dtype.itemsize
        sizes = credit.cut(self.nbytes + self._padding * each, partition)
        self.partitions = [
            Partition(f"{self.name}[{index}]", nbytes, nbytes // each) for index, nbytes in enumerate(sizes)
        ]

    @property
    def _padding(self) -> int:
        """Elements behind the last gradient."""
        return -sum(each.value.numel() for each in self.parameters) % self._multiple

    def fill(self, size: int) -> list[tuple[Partition, torch.Tensor]]:
        """The memory of each partition, with the gradients divided by the number of ranks (as DDP does)."""
        first = self.parameters[0]
        assert first.gradient is not None
        # A gradient that no rank has added to must stay as it is.
        alone = len(self.parameters) == 1 and not self._padding
        self._in_place = alone and first.gradient.is_contiguous() and not first.kept
        if self._in_place:
            memory = first.gradient
        else:
            memory = self._own_memory()
            for each, view in zip(self.parameters, self._views, strict=True):
                assert each.gradient is not None
                view.copy_(each.gradient)
        if size > 1:
            memory.mul_(1.0 / size)
        if len(self.partitions) == 1:
            return [(self.partitions[0], memory)]
        parts = memory.view(-1).split_with_sizes([partition.elements for partition in self.partitions])
        return [*zip(self.partitions, parts, strict=True)]

    def take_results(self, used: Callable[[Parameter], bool]) -> None:
        """Copy the reduced gradients back; a parameter that no rank has used keeps what it had before.

        ``value.grad`` becomes the reduced gradient, unless the program has put something else there.
        """
        for index, each in enumerate(self.parameters):
            assert each.gradient is not None
            if not each.fresh and not used(each):
                each.gradient = each.gradient if each.kept else None
            elif not self._in_place:
                each.gradient.copy_(self._views[index])
            if each.value.grad is each.guard:
                each.value.grad = each.gradient
            each.guard = None

    def _own_memory(self) -> torch.Tensor:
        if self._memory is None:
            first = self.parameters[0]
            counts = [each.value.numel() for each in self.parameters]
            self._memory = torch.zeros(sum(counts) + self._padding, dtype=first.dtype, device=first.value.device)
            parts = zip(self._memory[: sum(counts)].split_with_sizes(counts), self.parameters, strict=True)
            self._views = [part.view(each.value.shape) for part, each in parts]
        return self._memory


class ReadGradient(torch.Tensor):
    """``parameter.grad`` from the end of its backward pass to its update: any use waits for the reduction."""

    wait: Callable[[], None]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Wait for the reduction, then call the function on the memory."""
        for each in _found(cls, args, kwargs):
            each.__dict__["wait"]()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """A copy of the reduced gradient, as a plain tensor."""
        return copy.deepcopy(self._reduced(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as a plain tensor."""
        plain: Any = self._reduced()
        return plain.__reduce_ex__(protocol)

    def trigger_wait(self) -> torch.Tensor:
        """The reduced gradient, as a plain tensor; mcr_dl's operations call this, which use memory as it is."""
        return self._reduced()

    def _reduced(self) -> torch.Tensor:
        self.__dict__["wait"]()
        return self.as_subclass(torch.Tensor)


def _found(cls: type[ReadGradient], args: Any, kwargs: Any) -> list[ReadGradient]:
    values = [*args, *(kwargs or {}).values()]
    found = [each for each in values if isinstance(each, cls)]
    for each in values:
        if isinstance(each, list | tuple):
            found += [inner for inner in each if isinstance(inner, cls)]
    return found


def guarded(gradient: torch.Tensor, wait: Callable[[], None]) -> torch.Tensor:
    """The gradient's memory as a tensor that waits before it is used.

    Its version, which each write increases, is 0, and that of no other tensor: gradients may be parts of one tensor.
    """
    result = gradient.data.as_subclass(ReadGradient)
    result.__dict__["wait"] = wait
    return result


def pieces_of(module: nn.Module) -> tuple[list[list[Piece]], dict[nn.Module, list[int]]]:
    """The pieces of each layer, and the layers that each module's own parameters belong to.

    A layer is a module with parameters of its own; a shared parameter belongs to the first such module.
    """
    layers: list[list[Piece]] = []
    owner: dict[nn.Parameter, int] = {}
    owned: dict[nn.Module, list[int]] = {}
    for path, each in module.named_modules():
        own = [(name, value) for name, value in each.named_parameters(recurse=False) if value.requires_grad]
        fresh = []
        for name, value in own:
            if value not in owner:
                owner[value] = len(layers)
                fresh.append(Parameter(f"{path}.{name}" if path else name, _supported(value)))
        if own:
            owned[each] = sorted({owner[value] for _, value in own})
        if fresh:
            layers.append(_pieces(fresh))
    for index, each in enumerate(each for layer in layers for piece in layer for each in piece.parameters):
        each.index = index
    return layers, owned


def joined(layers: list[list[Piece]], members: Sequence[Sequence[int]]) -> tuple[list[list[Piece]], list[Piece]]:
    """Join the pieces of ``layers``: those of each layer, and all in the order of ``members``.

    ``members``: the pieces that each new one is made of, counted through all layers.
    """
    given = [piece for layer in layers for piece in layer]
    made: dict[Piece, Piece] = {}
    pieces = []
    for run in members:
        parts = [given[index] for index in run]
        if len(parts) > 1:
            name = f"{parts[0].name} to {parts[-1].name}"
            pieces.append(Piece(name, [each for part in parts for each in part.parameters]))
        else:
            pieces.append(parts[0])
        made.update(dict.fromkeys(parts, pieces[-1]))
    for index, piece in enumerate(pieces):
        piece.index = index
        for each in piece.parameters:
            each.piece = piece
    return [list(dict.fromkeys(made[piece] for piece in layer)) for layer in layers], pieces


def in_order(pieces: Sequence[Piece], order: Sequence[tuple[int, int]], live: bool) -> list[Partition]:
    """All partitions in a plan's order (piece, index), without one from the last piece to the first.

    ``live``: the first ready one is taken, so the plan's order is that of the pieces.
    """
    if order and not live:
        return [pieces[piece].partitions[index] for piece, index in order]
    return [part for piece in (pieces if order else reversed(pieces)) for part in piece.partitions]


def _supported(value: nn.Parameter) -> nn.Parameter:
    if value.device.type != "cpu" or not value.dtype.is_floating_point:
        message = (
            f"ByteScheduler: expected floating-point parameters on the CPU, got {value.dtype} on {value.device}; "
            "use DistributedDataParallel for this model"
        )
        raise UnsupportedError(message)
    return value


def _pieces(parameters: list[Parameter]) -> list[Piece]:
    small: dict[torch.dtype, list[Parameter]] = {}
    pieces = []
    for each in parameters:
        if each.nbytes < SMALL:
            small.setdefault(each.dtype, []).append(each)
        else:
            pieces.append(Piece(each.name, [each]))
    return pieces + [Piece(each[0].name, each) for each in small.values()]
