# SPDX-License-Identifier: Apache-2.0
"""The consoles and progress bars of all commands and reports.

Texts of libraries and users are full of brackets, which rich takes for markup: it drops them, or raises MarkupError.
A console of this module prints strings unchanged, also in titles and cells of tables; ``rich.text.Text`` and the
argument ``style`` carry styles. `make lint` rejects rich's own consoles and anything else that reads markup elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console as _Console
from rich.control import Control
from rich.progress import Progress, ProgressColumn
from rich.segment import ControlType
from rich.table import Table

_WIDEST = 1_000_000  # characters of a table, which has a column for each rank


class Console(_Console):
    """A console that interprets nothing in a string. Raises BrokenPipeError when the reader of a pipe has gone."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def on_broken_pipe(self) -> None:
        """Let the program decide how to end; rich would end it here."""
        raise BrokenPipeError

    def say(self, text: str, style: str | None = None) -> None:
        """Print a text without wrapping its lines."""
        self.print(text, style=style, soft_wrap=True)

    def print_whole(self, table: Table, width: int) -> None:
        """Print a table without cutting a column, at least ``width`` wide where there is no terminal."""
        if not self.is_terminal:
            self.width = width
        self.width = max(self.width, self.measure(table, options=self.options.update(max_width=_WIDEST)).maximum)
        self.print(table)


def bars(console: Console, columns: Sequence[str | ProgressColumn], **settings: Any) -> Progress:
    """Progress bars on a terminal. A column that is a string is a format of ``task``."""
    return Progress(*columns, console=console, **settings)


@contextlib.contextmanager
def restored(console: Console) -> Iterator[None]:
    """Show the cursor and erase its line after a block whose processes may be killed while they draw bars.

    Writes nothing if the console is not a terminal, or one that has gone.
    """
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            console.control(
                Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), ControlType.SHOW_CURSOR)
            )
