# SPDX-License-Identifier: Apache-2.0
"""Real text, as bytes: the Python standard library's own source files, or a directory of the user's."""

from __future__ import annotations

import argparse
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.commands import arguments
from mcr_dl.examples.program import WorkloadError

BYTES = 256
HELD_OUT = 0.05  # the fraction of the text, at its end, that is never trained on
HELD_OUT_WINDOWS = 48  # of all ranks together
_MOST = 1_000_000  # megabytes


@dataclass
class Corpus:
    """Text as a tensor of bytes: a part to train on, a part to measure the loss on."""

    name: str
    files: int
    train: torch.Tensor
    held_out: torch.Tensor

    def shard(self, rank: int, ranks: int) -> torch.Tensor:
        """The piece of the training part that one rank draws from: different on each rank, equally long on all."""
        length = self.train.numel() // ranks
        return self.train[rank * length : (rank + 1) * length]

    def held_out_windows(self, length: int, rank: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of one rank's share of the held-out windows."""
        each = max(1, HELD_OUT_WINDOWS // ranks)
        starts = evenly(self.held_out, each * ranks, length)
        return windows(self.held_out, starts[rank::ranks], length)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the text."""
    parser.add_argument(
        "--text", type=Path, metavar="DIR", help="train on the files in DIR (default: Python's standard library)"
    )
    megabytes = arguments.checked(_megabytes)
    parser.add_argument("--megabytes", type=megabytes, default=4.0, help="how much of the text to read (default: 4)")


def _megabytes(text: str) -> float:
    value = arguments.above(0)(text)
    if value > _MOST:
        message = f"expected at most {_MOST}, got {text!r}"
        raise InvalidArgumentError(message)
    return value


def standard_library() -> list[Path]:
    """The top-level modules of the running Python's standard library, in order of their names."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def files_under(directory: Path) -> list[Path]:
    """All files under a directory except hidden ones, in order of their paths."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return [path for path in files if not any(part.startswith(".") for part in path.relative_to(directory).parts)]


def _read(paths: Iterable[Path], limit: int) -> tuple[int, bytearray]:
    """The files' bytes concatenated, up to the limit; skips files with a NUL byte so far, which are not text."""
    files, text = 0, bytearray()
    for path in paths:
        with path.open("rb") as file:
            content = file.read(limit - len(text))
        if b"\0" not in content:
            files += 1
            text += content
        if len(text) >= limit:
            break
    return files, text


def load(directory: Path | None, *, limit: int, least: int) -> Corpus:
    """Read the text; every rank of a job gets the same text.

    Args:
        directory: the user's text; None: the standard library.
        limit: how many bytes to read at most.
        least: how many bytes the job needs at least.

    Raises WorkloadError if there are fewer, if the directory does not exist, or if a file cannot be read.
    """
    try:
        if directory is None:
            name, paths = "Python's standard library", standard_library()
        elif directory.is_dir():
            name, paths = str(directory), files_under(directory)
        else:
            raise WorkloadError(f"--text: expected a directory, got {directory}")
        files, text = _read(paths, limit)
    except OSError as error:
        reason = f"{error.filename or directory}: {(error.strerror or str(error)).lower()}"
        raise WorkloadError(f"--text: expected files that can be read, got {reason}") from error
    if len(text) < least:
        raise WorkloadError(f"{name}: expected at least {least:,} bytes of text, got {len(text):,} in {files} files")
    everything = torch.frombuffer(text, dtype=torch.uint8)
    border = int(len(text) * (1 - HELD_OUT))
    return Corpus(name, files, everything[:border], everything[border:])


def windows(text: torch.Tensor, starts: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows of the text and, for each of their bytes, the byte that follows: two (windows, length) tensors."""
    picked = text[starts[:, None] + torch.arange(length + 1)].long()
    return picked[:, :-1], picked[:, 1:]


def evenly(text: torch.Tensor, count: int, length: int) -> torch.Tensor:
    """Starts of ``count`` windows spread evenly over the text."""
    return torch.linspace(0, text.numel() - length - 1, count, dtype=torch.float64).long()


class Batches:
    """An endless stream of random windows; equal seeds give equal streams."""

    def __init__(self, text: torch.Tensor, windows: int, length: int, seed: int) -> None:
        self._text = text
        self._windows = windows
        self._length = length
        self._random = torch.Generator().manual_seed(seed)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of one step."""
        last = self._text.numel() - self._length
        starts = torch.randint(last, (self._windows,), generator=self._random)
        return windows(self._text, starts, self._length)
