# SPDX-License-Identifier: Apache-2.0
"""What the command lines of ``mcr-bench`` and ``mcr-tune`` share: errors of one line, values checked when read."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from mcr_dl import _C, _backends, _launch
from mcr_dl._errors import InvalidArgumentError, McrError
from mcr_dl.bench.cases import operation_of, operations

MOST_SIZES = 1000
FAILED, INTERRUPTED = 2, 130  # exit codes
_SPEAK_SECONDS = 1.0  # the other ranks let rank 0 speak before they leave, as a launcher ends all when one fails


class Parser(argparse.ArgumentParser):
    """One line for an error, from rank 0."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and end with exit code 2."""
        sys.exit(refuse(self.prog, message))


def _first() -> bool:
    try:
        return _launch.detect().rank == 0
    except InvalidArgumentError:  # it may be the launcher's variables that are wrong
        return True


def refuse(program: str, message: str) -> int:
    """Say what is wrong, once for all ranks; returns the exit code."""
    if _first():
        print(f"{program}: error: {message}", file=sys.stderr, flush=True)
    else:
        time.sleep(_SPEAK_SECONDS)
    return FAILED


def name_list(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidArgumentError("expected names separated by commas, got nothing")
    return names


def operation_names(text: str) -> tuple[str, ...]:
    """Operations by name, or all."""
    if text.strip() == "all":
        return tuple(operations())
    for name in name_list(text):
        operation_of(name)
    return name_list(text)


def candidate_names(text: str) -> tuple[str, ...]:
    """Names of candidates whose backends exist; whether a variant does is known once the group is made."""
    for name in name_list(text):
        base = name.partition(":")[0]
        if name not in ("all", "auto") and not _backends.is_known(base):
            message = f"expected some of {', '.join(_backends.known_names())}, auto or all, got {name!r}"
            raise InvalidArgumentError(message)
    return name_list(text)


def one_of(known: Callable[[], Sequence[str]]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in known():
            message = f"expected one of {', '.join(known())}, got {text!r}"
            raise InvalidArgumentError(message)
        return text

    return convert


def reductions() -> list[str]:
    return [red for red in _C.reductions() if any(_C.reduction_defined(dtype, red) for dtype in _C.dtypes())]


def device(text: str) -> str:
    if torch.device(one_of(lambda: ("cpu", "cuda"))(text)).type == "cuda" and not torch.cuda.is_available():
        raise InvalidArgumentError("expected cpu, got cuda, but torch finds no CUDA device here")
    return text


def above(limit: float) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = limit
        if not limit < value < float("inf"):
            message = f"expected a number above {limit:g}, got {text!r}"
            raise InvalidArgumentError(message)
        return value

    return convert


def count(lowest: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or int(text) < lowest:
            message = f"expected a whole number from {lowest} on, got {text!r}"
            raise InvalidArgumentError(message)
        return int(text)

    return convert


def output(text: str) -> str:
    """A file that can be written: better said now than after the measurement."""
    path = Path(text)
    try:
        usable = not path.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError:  # a name that is too long
        usable = False
    if not usable:
        message = f"expected a file that can be written, got {text!r}"
        raise InvalidArgumentError(message)
    return text


def plot(text: str) -> str:
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidArgumentError("plots need matplotlib: pip install 'mcr-dl[plot]'")
    return output(text)


def checked(convert: Callable[[str], object]) -> Callable[[str], object]:
    """argparse's own way to hear about a bad value."""

    def wrapped(text: str) -> object:
        try:
            return convert(text)
        except McrError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return wrapped


def sizes(smallest: int, largest: int, factor: float) -> tuple[int, ...]:
    if smallest > largest:
        message = f"argument --max: expected at least --min ({smallest}), got {largest}"
        raise InvalidArgumentError(message)
    sizes = [smallest]
    while sizes[-1] * factor <= largest:
        sizes.append(max(sizes[-1] + 1, round(sizes[-1] * factor)))
        if len(sizes) > MOST_SIZES:
            message = f"argument --factor: expected at most {MOST_SIZES} sizes, got more with {factor:g}"
            raise InvalidArgumentError(message)
    return tuple(sizes)
