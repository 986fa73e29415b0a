# SPDX-License-Identifier: Apache-2.0
"""The table-driven suite (mcr_dl.testing.cases) on a device: the cases and the reference of tests/test_operations.py.

python -m gpu.suite --backend nccl --ranks 2 --seconds 30 FOLDER
"""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gpu import jobs

_BATCH = 25  # cases between two checks of the clock
_SEED = 20
_SHOWN = 5  # failures
# Without a reduction everything must work; with one, those that NCCL has in all versions from 2.18 on.
_NCCL_REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
_NCCL_DTYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip


def may_lack(backend: str, reduces: bool, dtype: str, red: str) -> bool:
    """Whether the backend may reject this on device tensors. Complex numbers are added as pairs."""
    if dtype.startswith("complex") and red in ("SUM", "AVG"):
        return False
    return backend == "nccl" and reduces and (red not in _NCCL_REDUCTIONS or dtype not in _NCCL_DTYPES)


def comparable(backend: str, case: Any, members: int) -> bool:
    """Whether the reference predicts the result. NCCL averages short types by a rounded factor 1/n."""
    from mcr_dl.testing.reference import dtype_of

    dtype = dtype_of(case.dtype)
    short = dtype.is_floating_point and dtype.itemsize < 4
    return not (backend == "nccl" and case.red == "AVG" and short and members & (members - 1))


def cases_of(backend: str, kind: str, ranks: int) -> list[Any]:
    """All cases, in an order in which each function runs once before any runs twice, and likewise the types of a
    function.

    The first case of a function must work.
    """
    from mcr_dl import _C
    from mcr_dl.testing import cases, session
    from mcr_dl.testing.calls import OPS, SIGNATURES

    shuffle = random.Random(_SEED)
    functions = []
    for function, row in SIGNATURES.items():
        piles = []
        for dtype in _C.dtypes():
            pile = cases.table(function, backend, dtype, ranks, cases.COUNTS, kind)
            if dtype in cases.LARGE_DTYPES:
                pile += cases.table(function, backend, dtype, ranks, (cases.LARGE,), kind)[::7]
            least = 2 if OPS[row["op"]]["peer"] else 1
            sizes = {case: len(session.members(case.group, ranks)) for case in pile}
            pile = [case for case in pile if sizes[case] >= least and comparable(backend, case, sizes[case])]
            shuffle.shuffle(pile)
            piles.append(pile)
        shuffle.shuffle(piles)
        dealt = _dealt(piles)
        sure = [case for case in dealt if not may_lack(backend, OPS[row["op"]]["reduces"], case.dtype, case.red)][:1]
        dealt = sure + [case for case in dealt if case not in sure]
        functions.append(dealt)
    shuffle.shuffle(functions)
    return _dealt(functions)


def _dealt(piles: list[list[Any]]) -> list[Any]:
    """The first of each pile, then the second of each, and so on."""
    return [case for row in zip_longest(*piles) for case in row if case is not None]


def _exchange(case: Any, rank: int, members: list[int]) -> None:
    """A send or receive and its counterpart, in NCCL's way: both sides in matching order."""
    from mcr_dl.testing import checks
    from mcr_dl.testing.calls import SIGNATURES, spell

    names = {"send": "recv", "recv": "send", "isend": "irecv", "irecv": "isend"}
    halves = {}
    for name in (case.function, names[case.function]):
        half = replace(case, function=name)
        prepared = checks.prepare(half, rank, len(members))
        halves[SIGNATURES[name]["op"]] = (prepared, spell(half, dict(prepared.arguments)))
    # In a ring whose even ranks send first, some rank always receives.
    order = ("send", "recv") if rank % 2 == 0 else ("recv", "send")
    results = {name: halves[name][1]() for name in order}
    if case.asynchronous or SIGNATURES[case.function]["starts"]:
        assert all(work.wait() is True for work in results.values())
    else:
        assert results == {"send": None, "recv": members[rank - 1]}, results
    for prepared, _ in halves.values():
        prepared.check()


def _run(case: Any) -> None:
    import mcr_dl
    from mcr_dl.testing import checks, session
    from mcr_dl.testing.calls import OPS

    if not (OPS[case.op]["peer"] and case.backend == "nccl"):
        checks.run(case)
        return
    members = session.members(case.group, mcr_dl.get_world_size())
    if mcr_dl.get_rank() in members:
        _exchange(case, members.index(mcr_dl.get_rank()), members)


class _Tally:
    """The results on this rank."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.run = 0
        self.unsupported: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.functions: set[str] = set()
        self.dtypes: set[str] = set()

    def take(self, case: Any) -> None:
        """Run a case. Wrong values and rejected calls leave the ranks in step; anything else ends the run."""
        import mcr_dl
        from mcr_dl.testing.calls import OPS

        try:
            _run(case)
        except mcr_dl.UnsupportedError as error:
            reduces = OPS[case.op]["reduces"]
            self.unsupported[" ".join((case.op, case.dtype, *((case.red,) if reduces else ())))] += 1
            if not may_lack(self.backend, reduces, case.dtype, case.red):
                self.failures[str(case)] = f"must be supported: {error}"
            return
        except AssertionError as error:
            self.failures[str(case)] = str(error)
        except Exception:
            self.failures[str(case)] = traceback.format_exc()
            raise
        self.run += 1
        self.functions.add(case.function)
        self.dtypes.add(case.dtype)

    def values(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "functions": sorted(self.functions),
            "dtypes": sorted(self.dtypes),
            "unsupported": dict(self.unsupported),
            "failures": self.failures,
        }


def _batches(cases: list[Any], seconds: float, rank: int, store: Any) -> Iterator[list[Any]]:
    """Batches until rank 0's time is over, which the store tells the others. Each function runs at least once."""
    end = time.monotonic() + seconds
    first = len({case.function for case in cases})
    yield cases[:first]
    for start in range(first, len(cases), _BATCH):
        if rank == 0:
            store.set(f"suite/{start}", "go" if time.monotonic() < end else "stop")
        if store.get(f"suite/{start}") != b"go":
            return
        yield cases[start : start + _BATCH]


def on_rank(backend: str, kind: str, ranks: int, seconds: float, folder: str, name: str) -> None:
    """One rank: the cases until the time is over."""
    import mcr_dl
    from mcr_dl.runtime import state
    from mcr_dl.testing import position, session

    session.start(backend)
    session.groups()
    rank = mcr_dl.get_rank()
    position.start(Path(folder), rank)  # checks.run writes the current case there
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # to the log, as before
    notes, tally = jobs.Notes(folder, name, rank), _Tally(backend)
    cases = cases_of(backend, kind, ranks)
    of_all = {
        "total": len(cases),
        "all_functions": sorted({case.function for case in cases}),
        "all_dtypes": sorted({case.dtype for case in cases}),
    }
    try:
        for batch in _batches(cases, seconds, rank, state.current().store):
            for case in batch:
                position.note(str(case))
                tally.take(case)
            notes.write(**of_all, **tally.values())
    finally:
        notes.write(**of_all, **tally.values())
    session.stop()


def _line(document: dict[str, Any]) -> str:
    unsupported = sum(document["unsupported"].values())
    parts = [f"{document['run']} of {document['total']} cases run"]
    parts += [f"{document[kind]['run']} of {document[kind]['all']} {kind}" for kind in ("functions", "types")]
    parts += [f"{len(document['failures'])} failed"]
    if document["missing"]:
        parts.append(f"never run: {', '.join(document['missing'])}")
    if unsupported:
        kinds = sorted({" ".join(name.split()[1:]) for name in document["unsupported"]})
        shown = ", ".join(kinds[:6]) + (", ..." if len(kinds) > 6 else "")
        parts.append(f"{unsupported} not supported ({shown})")
    return ", ".join(parts)


def _covered(notes: list[dict[str, Any]], kind: str) -> tuple[dict[str, int], list[str]]:
    """The numbers of cases that ran on all ranks and of all cases; the missing ones. Ranks outside a group count."""
    run = set.intersection(*(set(note.get(kind, ())) for note in notes))
    wanted = set().union(*(note.get(f"all_{kind}", ()) for note in notes))
    return {"run": len(run), "all": len(wanted)}, sorted(wanted - run)


def main() -> int:
    """Start the ranks. Exit code 1 if a case failed or the ranks did not finish."""
    from mcr_dl.testing import position

    parser = jobs.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="time for the cases")
    given = parser.parse_args()
    name = f"suite-{given.backend}-{given.ranks}"
    seconds = jobs.working_seconds(given.seconds, given.limit)
    args = (given.backend, given.device, given.ranks, seconds, str(given.folder), name)
    problem = jobs.run(
        "gpu.suite:on_rank", args, ranks=given.ranks, kind=given.device, limit=given.limit, log=given.folder / name
    )
    notes = jobs.read(given.folder, name, given.ranks)
    if problem:
        print("\n".join(f"rank {rank} was last at {position.read(given.folder, rank)}" for rank in range(given.ranks)))
    failures = {
        case: f"rank {r}: {text}" for r, note in enumerate(notes) for case, text in note.get("failures", {}).items()
    }
    functions, missing = _covered(notes, "functions")
    types, _ = _covered(notes, "dtypes")
    document: dict[str, Any] = {
        "functions": functions,
        "types": types,
        "missing": missing,
        "run": min(note.get("run", 0) for note in notes),
        "total": max(note.get("total", 0) for note in notes),
        "unsupported": notes[0].get("unsupported", {}),
        "failures": failures,
        "failed": bool(failures or missing) or not all(note.get("run") for note in notes),
    }
    for case, text in list(failures.items())[:_SHOWN]:
        print(f"{case}\n  {text}")
    return jobs.finish(given.folder, name, {**document, "line": _line(document)}, problem)


if __name__ == "__main__":
    sys.exit(main())
