# SPDX-License-Identifier: Apache-2.0
"""Turns a case (operation, sizes, layout, spelling) into the arguments of a public function, by its op table row.

No code here knows a function by name: parameters are filled by their kinds, as `_C.signatures()` lists them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import torch
import torch.distributed

import mcr_dl
from mcr_dl import _C
from mcr_dl.base.signature import DEFAULTS

SIGNATURES: dict[str, dict[str, Any]] = {row["name"]: row for row in _C.signatures()}
OPS: dict[str, dict[str, Any]] = {row["name"]: row for row in _C.ops()}
STYLES = ("keywords", "positions", "backend first", "mixed")


def kinds(function: str) -> set[str]:
    """The kinds of a function's parameters."""
    return {kind for _, kind, _, _ in SIGNATURES[function]["params"]}


@dataclass(frozen=True)
class Case:
    """One call, equal on all ranks."""

    function: str
    dtype: str = "float32"
    red: str = "SUM"
    count: int = 17
    layout: str = "plain"
    aliased: bool = False
    asynchronous: bool = False
    style: str = "keywords"
    group: str = "world"
    root: int = 0  # group rank
    by_group_rank: bool = False
    backend: str | None = None
    seed: int = 0
    device: str = "cpu"  # where its tensors are
    through_torch: bool = False  # torch.distributed's function of that name, on the same groups
    form: str = "tensors"  # the form of its tensors: forms.FORMS

    @property
    def op(self) -> str:
        """The operation that the function is a form of, as in the op table."""
        return str(SIGNATURES[self.function]["op"])

    def __str__(self) -> str:
        """The function, and the fields that differ from their defaults."""
        given = ((each, getattr(self, each.name)) for each in fields(self)[1:])
        return (
            f"{self.function}({', '.join(f'{each.name}={value!r}' for each, value in given if value != each.default)})"
        )

    @property
    def vectored(self) -> bool:
        """Whether a backend gets the call with a count for each block; a list for all_to_all has them too."""
        has = kinds(self.function)
        if "inputs" in has and self.op == "all_to_all":
            return self.layout != "single"
        return bool(has & {"scounts", "rcounts"}) or self.layout in ("splits", "rows", "uneven")


def layouts(function: str, through_torch: bool = False) -> list[str]:
    """The ways to lay out the memory of a function's tensors."""
    has = kinds(function)
    if has & {"inputs", "outputs"}:
        # Only all_to_all has uneven lists; torch, which has no other form for them, takes them without a root.
        row = OPS[SIGNATURES[function]["op"]]
        uneven = not row["rooted"] if through_torch else row["name"] == "all_to_all"
        return ["separate", "adjacent", "single", *(["uneven"] if uneven else [])]
    if has & {"sdispls", "rdispls"}:
        return ["packed", "gaps", "reversed", "even"]
    if has & {"scounts", "rcounts"}:
        return ["packed", "even"]
    if "input_split_sizes" in has:
        return ["plain", "splits", "rows"]
    return ["plain", "matrix"]


def can_alias(function: str) -> bool:
    """Whether input and output may be the same memory: the function has both."""
    has = kinds(function)
    return bool(has & {"input", "inputs"}) and bool(has & {"output", "outputs"})


@dataclass
class Side:
    """The input or the output of one rank: blocks in a base tensor, or separate tensors."""

    base: torch.Tensor
    places: list[tuple[int, int]]  # offset and length of each block in the base
    tensors: list[torch.Tensor] = field(default_factory=list)  # the blocks, if they are not in the base
    shape: tuple[int, ...] | None = None

    def whole(self) -> torch.Tensor:
        """The tensor that holds all blocks."""
        return self.base if self.shape is None else self.base.view(self.shape)

    def blocks(self) -> list[torch.Tensor]:
        """One tensor per block."""
        return self.tensors or [self.base[start : start + count] for start, count in self.places]

    def content(self) -> torch.Tensor:
        """The base with the blocks' content in it."""
        result = self.base.clone()
        for (start, count), block in zip(self.places, self.blocks(), strict=True):
            result[start : start + count] = block.reshape(-1)
        return result

    def displs(self) -> list[int]:
        return [start for start, _ in self.places]

    def counts(self) -> list[int]:
        return [count for _, count in self.places]


class Guards:
    """Memory around tensors that must stay unchanged. They begin 0 to 2 elements behind an aligned address."""

    _BYTE = 0x5A
    _BEHIND = 2  # elements

    def __init__(self, shift: int) -> None:
        self._shift = shift % 3
        self._wholes: list[tuple[torch.Tensor, int]] = []

    def around(self, content: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of the content between guards."""
        count, front = content.numel(), self._shift
        whole = torch.empty(front + count + self._BEHIND, dtype=content.dtype, device=content.device)
        whole.view(torch.uint8).fill_(self._BYTE)
        self._wholes.append((whole, count))
        return whole[front : front + count].copy_(content.reshape(-1)).view(content.shape)

    def check(self, what: str) -> None:
        """Raise AssertionError if a guard has changed."""
        for whole, count in self._wholes:
            for place, guard in (("before", whole[: self._shift]), ("behind", whole[self._shift + count :])):
                if not bool((guard.view(torch.uint8) == self._BYTE).all()):
                    message = f"{what}: the memory {place} a tensor of {count} elements has changed"
                    raise AssertionError(message)


def place(counts: Sequence[int], layout: str, fill: Callable[[int], torch.Tensor], guards: Guards) -> Side:
    """Memory for blocks of these sizes; `fill` makes a base whose other content must survive."""
    if layout == "gaps":
        starts, end = [], 1
        for index, count in enumerate(counts):
            starts.append(end)
            end += count + 1 + index % 2
    elif layout == "reversed":
        end = sum(counts)
        starts = [end - sum(counts[: index + 1]) for index in range(len(counts))]
    else:
        starts = [sum(counts[:index]) for index in range(len(counts))]
        end = sum(counts)
    side = Side(fill(end), list(zip(starts, counts, strict=True)))
    if layout in ("separate", "uneven"):
        side.tensors = [guards.around(block) for block in side.blocks()]
    return side


def _in_block(backend: str, call: Callable[[], Any]) -> Any:
    with mcr_dl.use(backend):
        return call()


def spell(case: Case, arguments: dict[str, Any]) -> Callable[[], Any]:
    """The call itself in the case's spelling; `arguments` are by parameter name, without the backend."""
    function = getattr(torch.distributed if case.through_torch else mcr_dl, case.function)
    if case.through_torch:
        if "async_op" not in inspect.signature(function).parameters:  # point-to-point
            assert not arguments.pop("async_op", False)
        return partial(_in_block, case.backend or "auto", partial(function, **arguments))
    if case.style == "keywords":
        return lambda: function(**arguments, backend=case.backend)
    params = [(name, default) for name, _, default, only in SIGNATURES[case.function]["params"] if not only]
    names = [name for name, _ in params]
    if case.style != "positions":  # up to where the group would come
        params = params[: names.index("group")]
    flags = []
    if case.style == "backend first" and "async_op" in arguments:
        flags = [arguments.pop("async_op")]  # Listing 1 of the paper ends with it
    ordered = [arguments.pop(name, DEFAULTS[default] if default else None) for name, default in params]
    if case.style == "backend first" and case.backend is not None:
        return lambda: function(case.backend, *ordered, *flags, **arguments)
    if flags:
        arguments["async_op"] = flags[0]
    return lambda: function(*ordered, **arguments, backend=case.backend)
