# SPDX-License-Identifier: Apache-2.0
"""Shared parts of all command lines: errors of one line, values that are checked when they are read."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import signal
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
MOST_RANKS_PER_CORE = 64  # more than any measurement needs; each takes a second of processor time to start
FAILED, INTERRUPTED = 2, 130  # exit codes
UNREAD = 128 + signal.SIGPIPE  # as of a program that the signal has ended
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


def exit_code(program: str, run: Callable[[], int]) -> int:
    """Run a command; returns its exit code. An error is one line and exit code 2.

    A pipe whose reader has gone, as in ``mcr-tune show | head``, ends the command without a word.
    """
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
        return UNREAD
    except (McrError, OSError) as error:
        return refuse(program, str(error))
    return code


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


def local_ranks(lowest: int) -> Callable[[str], int]:
    """A number of ranks, which this machine has to bear unless a launcher has started them."""

    def convert(text: str) -> int:
        value, cores = count(lowest)(text), os.cpu_count() or 1
        most = MOST_RANKS_PER_CORE * cores
        if value > most and _launch.detect().launcher == "none":
            message = (
                f"expected at most {most} ranks on this machine ({cores} cores), got {text}: use a launcher for more"
            )
            raise InvalidArgumentError(message)
        return value

    return convert


def output(text: str) -> str:
    """A file that can be written, checked before anything is measured."""
    path = Path(text)
    try:
        usable = not path.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError:  # a name that is too long
        usable = False
    if not usable:
        message = f"expected a file that can be written, got {text!r}"
        raise InvalidArgumentError(message)
    return text


def picture(text: str) -> str:
    """The name of a picture file. Its suffix is a format that matplotlib, which must be installed, can write."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidArgumentError("pictures need matplotlib: pip install 'mcr-dl[plot]'")
    from matplotlib.figure import Figure

    formats = sorted(Figure().canvas.get_supported_filetypes())
    if Path(text).suffix.removeprefix(".").lower() not in formats:
        message = f"expected a name that ends in one of .{', .'.join(formats)}, got {text!r}"
        raise InvalidArgumentError(message)
    return text


def plot(text: str) -> str:
    """A picture file that can be written."""
    return output(picture(text))


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
