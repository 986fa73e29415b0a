# SPDX-License-Identifier: Apache-2.0
"""Train, lose a rank, and go on without it from the other ranks' memory.

    python -m mcr_dl.examples.survive --nproc 4 --lose 1 [--rejoin]

One rank is killed in the middle of a step. The others catch PeerLostError, make a group of those that are left with
``mcr_dl.shrink``, restore the last step that all of them have completed, and train to the end. With ``--rejoin``, a new
process takes the rank's place by ``mcr_dl.rejoin``: the others call ``mcr_dl.grow`` after every tenth step, and give it
the state. The ranks then train from the start, undisturbed: both must end with the same loss. Nothing is written to a
disk.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn
from rich.table import Table

import mcr_dl as dist
from mcr_dl import watch
from mcr_dl.base import launcher
from mcr_dl.commands import arguments
from mcr_dl.commands.console import Console, bars
from mcr_dl.examples import report
from mcr_dl.examples.program import COUNT, require_environment
from mcr_dl.examples.survive_model import BATCH, Trainer, UnrecoverableError

TOLERANCE = 1e-3  # relative: sums over other numbers of ranks round differently, and training enlarges that
_KILLED = "killed at"
_EVERY = 10  # steps between two calls of grow()
_PAUSE = 0.05  # seconds
_PATIENCE = 120.0  # seconds for new processes to come, as they have for the ranks


class AbsentError(RuntimeError):
    """A new process has not come in time."""


@dataclass(frozen=True)
class Options:
    """The command line."""

    nproc: int
    steps: int
    lose: tuple[int, ...]
    at: int
    backend: str
    rejoin: bool

    @property
    def reporter(self) -> int:
        """The rank that prints: the first that is not lost."""
        return min(set(range(self.nproc)) - set(self.lose))


@dataclass
class _Story:
    """The times of the events on the way, in seconds."""

    error: str = ""
    known: float = 0.0  # from the loss to the exception
    shrunk: float = 0.0
    restored: float = 0.0
    step: int = 0  # restored
    again: int = 0  # steps that this rank has done twice
    back: float = 0.0  # from the loss to the first step with all ranks
    back_at: int = -1  # that step
    ranks: list[int] = field(default_factory=list)  # in the groups


class _Doomed(Trainer):
    """Is killed in one step, after the parameters are updated and before the next rank has the copy of its shard."""

    def __init__(self, group: Any, store: Any, at: int) -> None:
        self._store, self._at = store, at
        super().__init__(group)

    def keep(self) -> None:
        """End, or send the copy."""
        if self.steps == self._at:
            self._store.set(_KILLED, str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        super().keep()


def _since_loss(store: Any) -> float:
    """Seconds since the ranks of ``--lose`` were killed; 0 if others are lost before."""
    return time.monotonic() - float(store.get(_KILLED)) if store.check([_KILLED]) else 0.0


def _recover(trainer: Trainer, story: _Story) -> None:
    """Go on without lost ranks; again, if more are lost meanwhile."""
    group, reached = trainer.group, trainer.steps
    while True:
        try:
            start = time.monotonic()
            group = dist.shrink(group)
            shrunk = time.monotonic()
            trainer.restore(group)
            break
        except dist.PeerLostError:
            continue
    story.shrunk, story.restored = shrunk - start, time.monotonic() - shrunk
    story.step, story.again = trainer.steps, story.again + reached - trainer.steps
    story.ranks.append(trainer.size)


def _grow(options: Options, store: Any, trainer: Trainer, story: _Story) -> None:
    """Take processes for lost ranks, if some wait; shortly before the end, wait for them.

    Raises AbsentError on all ranks if these do not come.
    """
    if not options.rejoin or trainer.size == options.nproc or trainer.steps % _EVERY or trainer.steps < options.at:
        return
    start = time.monotonic()
    while True:
        waited = torch.tensor(time.monotonic() - start)
        dist.all_reduce(waited, dist.ReduceOp.MAX, group=trainer.group)  # so that all ranks end together
        if waited > _PATIENCE:
            raise AbsentError(f"expected {options.nproc} ranks within {_PATIENCE:g} s, got {trainer.size}")
        group = dist.grow(trainer.group)
        if group is not trainer.group:
            trainer.regroup(group)
            story.back, story.back_at = _since_loss(store), trainer.steps
            story.ranks.append(trainer.size)
        if trainer.size == options.nproc or trainer.steps < options.steps - _EVERY:
            return
        time.sleep(_PAUSE)


def _trainer(options: Options, store: Any, group: Any, *, back: bool) -> Trainer:
    if not back:
        return _Doomed(group, store, options.at) if dist.get_rank() in options.lose else Trainer(group)
    trainer = Trainer(None)
    trainer.regroup(group)
    return trainer


def train(options: Options, store: Any, group: Any, progress: Any, *, back: bool) -> tuple[Trainer, _Story]:
    """Train to the last step, whichever ranks are lost. ``back``: this process has taken the place of one."""
    trainer = _trainer(options, store, group, back=back)
    story = _Story(ranks=[trainer.size])
    task = progress.add_task("disturbed", total=options.steps)
    fresh = back
    while trainer.steps < options.steps:
        try:
            if not fresh or trainer.steps >= options.steps - _EVERY:  # else the others train after they have taken it
                _grow(options, store, trainer, story)
            fresh = False
            trainer.step()
        except dist.PeerLostError as error:
            story.known = _since_loss(store)
            story.error = str(error)
            _recover(trainer, story)
        progress.update(task, completed=trainer.steps)
    return trainer, story


def undisturbed(group: Any, steps: int, progress: Any) -> Trainer:
    """Train the same model on this group from the start."""
    trainer = Trainer(group)
    for _ in progress.track(range(steps), description="undisturbed"):
        trainer.step()
    return trainer


def _show(console: Console, options: Options, survived: Trainer, other: Trainer, story: _Story) -> None:
    console.say(
        f"Step {options.at}: {watch.ranks_text(options.lose)} killed. The others know it after {story.known:.3f} s:"
    )
    console.say(f"  {story.error}", style="dim")
    console.say(
        f"shrink took {story.shrunk:.3f} s, restoring step {story.step} from the ranks' memory "
        f"{story.restored * 1e3:.1f} ms; rank {dist.get_rank()} repeats {story.again} step{'s' * (story.again != 1)}.\n"
    )
    if story.back_at >= 0:
        console.say(f"Step {story.back_at}: all ranks are there again, {story.back:.1f} s after the loss.\n")
    table = Table(title="Losses", title_justify="left")
    for name in ("run", "ranks", "steps", "first step", "last step", "held-out"):
        table.add_column(name, justify="left" if name == "run" else "right")
    for name, trainer, ranks in (("disturbed", survived, story.ranks), ("undisturbed", other, [other.size])):
        losses = [f"{value:.6f}" for value in (trainer.losses[0], trainer.losses[-1], trainer.held_out_loss())]
        table.add_row(name, ", then ".join(map(str, ranks)), str(trainer.steps), *losses)
    console.print(table)


def run(options: Options, store: Any, group: Any, *, back: bool) -> int:
    """One rank. Returns the exit status, equal on all ranks that are there at the end."""
    console = report.console(quiet=dist.get_rank() != options.reporter)
    torch.set_num_threads(1)
    console.say(f"MCR-DL: training that goes on without lost ranks, on {', '.join(dist.get_backends())}", style="bold")
    console.say(f"{options.nproc} ranks, {options.steps} steps of {BATCH} samples\n")
    try:
        with bars(console, ["{task.description}", BarColumn(), MofNCompleteColumn()]) as progress:
            survived, story = train(options, store, group, progress, back=back)
            other = undisturbed(survived.group, options.steps, progress)
    except UnrecoverableError as error:
        console.say(f"{error}; choose others with --lose", style="red")
        return 1
    except (dist.BackendUnavailableError, AbsentError) as error:
        console.say(str(error), style="red")
        return 1
    _show(console, options, survived, other, story)
    losses = survived.held_out_loss(), other.held_out_loss()
    difference = abs(losses[0] - losses[1]) / losses[1]
    equal = difference <= TOLERANCE
    console.say(
        f"The losses {'agree' if equal else 'DIFFER'}: relative difference {difference:.1e} (at most {TOLERANCE:.0e}).",
        style="green" if equal else "red",
    )
    return 0 if equal else 1


def _start_and_run(rank: int, options: Options, port: int, back: bool = False) -> None:
    store = dist.TCPStore("localhost", port, timeout=timedelta(minutes=2))
    group: Any
    if back:
        group = dist.rejoin(store=store, rank=rank, world_size=options.nproc, timeout=timedelta(minutes=2))
    else:
        dist.init_process_group(options.backend, store=store, rank=rank, world_size=options.nproc)
        group = dist.group.WORLD
    status = run(options, store, group, back=back)
    dist.destroy_process_group()
    sys.exit(status)


def _parser() -> arguments.Parser:
    result = arguments.program("python -m mcr_dl.examples.survive", __doc__.split("\n", maxsplit=1)[0])
    ranks = arguments.checked(arguments.local_ranks(2))
    result.add_argument("--nproc", type=ranks, default=4, help="ranks to start (default: 4)")
    result.add_argument("--steps", type=COUNT, default=200, help="training steps (default: 200)")
    result.add_argument("--lose", type=int, nargs="+", default=[1], metavar="RANK", help="ranks to kill (default: 1)")
    result.add_argument(
        "--at", type=int, metavar="STEP", help="step in which to kill them (default: half of the steps)"
    )
    result.add_argument("--rejoin", action="store_true", help="start new processes for the lost ranks")
    names = arguments.checked(arguments.backend_names)
    text = "backends that can continue after a loss, separated by commas (default: shm,gloo)"
    result.add_argument("--backend", type=names, default="shm,gloo", help=text)
    return result


def _parse(argv: Sequence[str] | None) -> Options:
    parser = _parser()
    given = parser.parse_args(argv)
    require_environment(parser)
    at = given.steps // 2 if given.at is None else given.at
    if launcher.detect().launcher != "none":
        parser.error("expected no launcher: the program starts its ranks itself, as launchers end all if one is lost")
    if given.rejoin and at > given.steps - _EVERY:
        parser.error(f"--at: expected at most {given.steps - _EVERY} with --rejoin, got {at}")
    if not 0 < at < given.steps:
        parser.error(f"--at: expected a step from 1 to {given.steps - 1}, got {at}")
    if not set(given.lose) < set(range(given.nproc)):
        parser.error(f"--lose: expected some of the ranks 0 to {given.nproc - 1}, got {watch.ranks_text(given.lose)}")
    return Options(given.nproc, given.steps, tuple(dict.fromkeys(given.lose)), at, given.backend, given.rejoin)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. Returns the exit status."""
    options = _parse(argv)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_start_and_run, args=(rank, options, store.port)) for rank in range(options.nproc)]
    for each in ranks:
        each.start()
    if options.rejoin:
        for rank in options.lose:
            ranks[rank].join()
            if any(each.exitcode is not None for other, each in enumerate(ranks) if other not in options.lose):
                break  # it has failed: a new process would wait for it
            ranks[rank] = context.Process(target=_start_and_run, args=(rank, options, store.port, True))
            ranks[rank].start()
    for each in ranks:
        each.join()
    for rank, each in enumerate(ranks):
        if each.exitcode and (options.rejoin or rank not in options.lose):
            return arguments.failure_of(rank, each.exitcode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
