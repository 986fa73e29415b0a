# SPDX-License-Identifier: Apache-2.0
"""Shared parts of all command lines: errors of one line, and values that are checked when they are read."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from mcr_dl import _C
from mcr_dl.base import documents, launcher
from mcr_dl.base.errors import InvalidArgumentError, McrError
from mcr_dl.base.operations import operations
from mcr_dl.base.suggestions import did_you_mean
from mcr_dl.commands.sizes import parse_size
from mcr_dl.libraries import registry

MOST_SIZES = 1000
MOST_RANKS_PER_CORE = 64  # more than any measurement needs; each takes a second of processor time to start
_LONGEST = 1e6  # seconds of a limit or a budget, at most: eleven days
FAILED, INTERRUPTED = 2, 130  # exit codes
STDOUT = "-"
UNREAD = 128 + signal.SIGPIPE  # as of a program that the signal has ended
# The other ranks let rank 0 print before they exit, as a launcher ends all ranks when one fails. In a group they learn
# of its end, which may take longer on a busy machine.
_SPEAK_SECONDS, _SPEAK_SECONDS_IN_GROUP = 1.0, 4.0


_SHELLS = ("bash", "zsh", "fish", "tcsh")
_FILES = ("A", "B", "DUMPS", "FILE", "FILE.png", "FOLDER", "JSON", "PICTURE", "TRACES")  # metavars of names of files


class Parser(argparse.ArgumentParser):
    """Prints one line for an error, from rank 0. Every command and example program has one."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        sys.exit(refuse(self.prog, message))

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print, for argparse, a help or a version; exit with the code of a closed pipe if its reader has gone."""

        def run() -> int:
            print(message, end="", file=file, flush=True)
            return 0

        if code := exit_code(self.prog, run):
            sys.exit(code)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse all arguments. The error for an unknown option suggests the nearest one."""
        words = list(sys.argv[1:] if args is None else args)
        found, rest = self.parse_known_args(words, namespace)
        if rest:
            known = [name for parser in self._used(words) for name in parser._option_string_actions]
            self.error(f"unrecognized arguments: {' '.join(rest)}{_suggestion(rest, known)}")
        return found

    def _used(self, words: Sequence[str]) -> list[argparse.ArgumentParser]:
        """This parser, and those of its commands that are among the words."""
        groups = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return [self, *(group.choices[word] for group in groups for word in words if word in group.choices)]


_WRONG_NAMES = (
    re.compile(r"invalid choice: '(?P<got>[^']*)' \(choose from (?P<known>.*)\)"),
    re.compile(r"expected (?:one|some) of (?P<known>.*), got (?:the unknown name )?'(?P<got>[^']*)'(?!; did you mean)"),
)


def _with_nearest(message: str) -> str:
    """The message, whose first line ends with the known name that is nearest to the wrong one, if it lists these."""
    text, *shown = message.split("\n", 1)  # some errors show a text and point at its wrong part
    found = next(filter(None, (pattern.search(text) for pattern in _WRONG_NAMES)), None)
    if found is None:
        return message
    names = re.findall(r"[\w:-]+", found["known"])
    return "\n".join((text + did_you_mean(found["got"], {name: name for name in names}), *shown))


def _suggestion(rest: Sequence[str], known: Sequence[str]) -> str:
    """The known option that is nearest to the first unknown one, as the end of an error; empty if none is near."""
    given = [word.partition("=")[0].lstrip("-") for word in rest if word.startswith("-")]
    if not given:
        return "; operations go to --ops" if "--ops" in known else ""
    return did_you_mean(given[0], {option.lstrip("-"): option for option in known})  # dashes make short words alike


class _PrintCompletion(argparse.Action):
    """Print what makes a shell complete the command's words, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: object, name: str | None = None) -> None:
        try:
            import shtab
        except ModuleNotFoundError:
            parser.error(f"argument {name}: needs shtab: pip install shtab")
        waiting = [parser]
        while waiting:
            for action in waiting.pop()._actions:
                if action.metavar in _FILES:
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
                if isinstance(action, argparse._SubParsersAction):
                    waiting += action.choices.values()
        script = shtab.complete(parser, shell=str(shell))

        def run() -> int:
            print(script)
            return 0

        sys.exit(exit_code(parser.prog, run))


def program(name: str, description: str, epilog: str | None = None) -> Parser:
    """The parser of an example program: ``--help`` and ``--version``."""
    parser = Parser(prog=name, description=description, epilog=epilog)
    parser.add_argument("--version", action="version", version=f"{name} {_C.__version__}")
    return parser


def command(name: str, description: str, epilog: str | None = None) -> Parser:
    """The parser of a command, with the options that all commands have."""
    parser = program(name, description, epilog)
    text = "print the completion of this command for a shell: " + ", ".join(_SHELLS)
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=_SHELLS,
        default=argparse.SUPPRESS,
        metavar="SHELL",
        help=text,
    )
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option that writes a report as JSON."""
    text = "write the report to FILE as JSON; -: print JSON in place of the report"
    parser.add_argument("--json", type=checked(json_file), metavar="FILE", help=text)


def json_file(text: str) -> str:
    """A file that can be written, or - for the standard output."""
    return text if text == STDOUT else output(text)


def write_json(file: str | None, report: Callable[[], object]) -> bool:
    """Write the report to the file, if one is given; returns whether that was the standard output."""
    if file == STDOUT:
        print(documents.rows(report()))
    elif file is not None:
        documents.write_rows(file, report())
    return file == STDOUT


def _rank() -> int:
    try:
        return launcher.detect().rank
    except InvalidArgumentError:  # the launcher's variables may be the wrong ones
        return 0


def _said_by_rank_0() -> bool:
    """Whether another rank has failed, and so printed its error. Waits a while for that; the launcher may end this
    process meanwhile."""
    world = _C.world()
    if world is None:
        time.sleep(_SPEAK_SECONDS)
        return False
    end = time.monotonic() + _SPEAK_SECONDS_IN_GROUP
    while _C.lost(world._label) is None:
        if time.monotonic() >= end:
            return False
        time.sleep(_SPEAK_SECONDS / 20)
    return True


def refuse(program: str, message: str) -> int:
    """Print the error, once for all ranks if it is that of rank 0, too; returns the exit code."""
    rank = _rank()
    if rank == 0 or not _said_by_rank_0():
        where = f"rank {rank}: " if rank > 0 else ""
        print(f"{program}: error: {where}{_with_nearest(message)}", file=sys.stderr, flush=True)
    sys.last_value = SystemExit(message)  # the process does not wait for the others at its end
    return FAILED


def accept_output() -> None:
    """Make standard output take every text.

    Characters that its encoding does not have, as µ in ASCII, become question marks. If it is closed, as that of a
    daemon may be, texts are lost.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    with contextlib.suppress(AttributeError, ValueError):
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]


def leave_output() -> None:
    """Print nothing more: the reader of standard output has gone. Python's flush at exit would fail, too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def failure_of(rank: int, code: int, prefix: str = "") -> int:
    """The exit code of a job whose rank has ended with this one. Reports a signal that has ended it."""
    if code >= 0:
        return code
    known = {each.value: each.name for each in signal.Signals}
    print(f"{prefix}rank {rank} was ended by {known.get(-code, f'signal {-code}')}", file=sys.stderr)
    return 128 - code  # as a shell's


def exit_code(program: str, run: Callable[[], int]) -> int:
    """Run a command; returns its exit code. An error is one line and exit code 2.

    A closed pipe, as in ``mcr-tune show | head``, and Ctrl-C end the command silently.
    """
    accept_output()
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        leave_output()
        return UNREAD
    except KeyboardInterrupt:
        return INTERRUPTED
    except (McrError, OSError) as error:
        return refuse(program, str(error))
    return code


def name_list(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in _C.split_names(text) if name.strip()))
    if not names:
        raise InvalidArgumentError("expected names separated by commas, got nothing")
    return names


def backend_names(text: str) -> str:
    """Names of backends, separated by commas, which all exist."""
    registry.parse_backends(text)
    return text


def candidate_names(text: str) -> tuple[str, ...]:
    """Names of candidates whose backends exist. Whether a variant exists is known once the group is made."""
    also = ("auto", "all")

    def candidate(word: str) -> str:
        return word if word in also else registry.require_candidate(word, also=also, codec=False).name

    return tuple(dict.fromkeys(map(candidate, name_list(text))))


def one_of(known: Callable[[], Sequence[str]]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in known():
            message = f"expected one of {', '.join(known())}, got {text!r}"
            raise InvalidArgumentError(message)
        return text

    return convert


def operation_names(text: str, known: Callable[[], Sequence[str]] = operations) -> tuple[str, ...]:
    """Operations by name, or all that are known."""
    return tuple(known()) if text.strip() == "all" else tuple(map(one_of(known), name_list(text)))


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


def seconds(text: str) -> float:
    value = above(0)(text)
    if value > _LONGEST:
        message = f"expected at most {_LONGEST:.0f} seconds, got {text!r}"
        raise InvalidArgumentError(message)
    return value


def count(lowest: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or int(text) < lowest:
            message = f"expected a whole number from {lowest} on, got {text!r}"
            raise InvalidArgumentError(message)
        return int(text)

    return convert


def local_ranks(lowest: int) -> Callable[[str], int]:
    """A number of ranks that this machine can run, unless a launcher has started them."""

    def convert(text: str) -> int:
        value, cores = count(lowest)(text), os.cpu_count() or 1
        most = MOST_RANKS_PER_CORE * cores
        if value > most and launcher.detect().launcher == "none":
            message = (
                f"expected at most {most} ranks on this machine ({cores} cores), got {text}: use a launcher for more"
            )
            raise InvalidArgumentError(message)
        return value

    return convert


def output(text: str) -> str:
    """A file that can be written; checked before anything is measured, on rank 0, which writes it."""
    return documents.require_writable(text) if _rank() == 0 else text


def made_output(text: str) -> str:
    """As ``output``; missing folders are made when the file is written."""
    return documents.require_writable(text, makes=True) if _rank() == 0 else text


def folder(text: str) -> str:
    """A folder that can be written, or made; checked before anything is measured, on all ranks, which write there."""
    return documents.require_writable(text, kind="folder", makes=True)


def picture(text: str) -> str:
    """The name of a picture file. Its suffix is a format that matplotlib, which must be installed, can write."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidArgumentError("pictures need matplotlib: pip install matplotlib")
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    formats = sorted(Figure().canvas.get_supported_filetypes())
    if shutil.which(rcParams["pgf.texsystem"]) is None:
        formats.remove("pgf")  # the only format that is made by another program: TeX
    if Path(text).suffix.removeprefix(".").lower() not in formats:
        message = f"expected a name that ends in one of .{', .'.join(formats)}, got {text!r}"
        raise InvalidArgumentError(message)
    return text


def plot(text: str) -> str:
    """A picture file that can be written; checked on rank 0, which writes it."""
    return text if _rank() != 0 else output(picture(text))


def checked(convert: Callable[[str], object]) -> Callable[[str], object]:
    """Report a bad value in argparse's own way."""

    def wrapped(text: str) -> object:
        try:
            return convert(text)
        except McrError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return wrapped


def add_sizes(
    parser: argparse.ArgumentParser, largest: tuple[int | None, str], factor: tuple[float | None, str]
) -> None:
    """Add the options for the sizes of calls, each with its default and that in words.

    torchrun takes ``--min`` and ``--max``, in Python before 3.12, for options of its own; the other names are free.
    """

    def add(*names: str, convert: Callable[[str], object], default: float | None, meta: str, text: str) -> None:
        parser.add_argument(*names, type=checked(convert), default=default, metavar=meta, help=text)

    text = "smallest size (default: 4); K, M, G: powers of 1024"
    add("-b", "--min-bytes", "--min", convert=parse_size, default=4, meta="SIZE", text=text)
    text = f"largest size (default: {largest[1]})"
    add("-e", "--max-bytes", "--max", convert=parse_size, default=largest[0], meta="SIZE", text=text)
    text = f"ratio of consecutive sizes (default: {factor[1]})"
    add("-f", "--factor", convert=above(1), default=factor[0], meta="F", text=text)


def sizes(smallest: int, largest: int, factor: float) -> tuple[int, ...]:
    if smallest > largest:
        message = f"argument -e/--max-bytes: expected at least --min-bytes ({smallest}), got {largest}"
        raise InvalidArgumentError(message)
    sizes = [smallest]
    while sizes[-1] * factor <= largest:
        sizes.append(max(sizes[-1] + 1, round(sizes[-1] * factor)))
        if len(sizes) > MOST_SIZES:
            message = f"argument -f/--factor: expected at most {MOST_SIZES} sizes, got more with {factor:g}"
            raise InvalidArgumentError(message)
    return tuple(sizes)
