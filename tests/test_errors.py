# SPDX-License-Identifier: Apache-2.0
"""What bad input gets: one clear exception on the rank that made the call, nothing sent, a group that still works."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from torch.distributed import DistBackendError

import mcr_dl
from calls import OPS, SIGNATURES, Case, layouts
from harness import Pools
from mcr_dl import _C
from ranks import errors, lifecycle, mistakes, operations, session

backends = pytest.mark.parametrize("backend", session.BACKENDS)


@backends
@pytest.mark.parametrize("name", errors.CALLS)
def test_wrong_call(pools: Pools, name: str, backend: str) -> None:
    """Made on rank 1 alone; the next correct call of all three ranks meets as if nothing had been."""
    texts = pools.get("processes", 3).run(errors.wrong_on_one_rank, name, backend, 1, limit=30.0)
    assert [bool(text) for text in texts] == [False, True, False]


@backends
@pytest.mark.parametrize("name", mistakes.MISTAKES)
def test_common_mistake(pools: Pools, name: str, backend: str) -> None:
    """Made on both ranks: both raise, with a text that says what to do, and the next correct call meets."""
    assert all(pools.get("processes", 2).run(mistakes.make, name, backend, limit=30.0))


@backends
@pytest.mark.parametrize("function", mistakes.ON_RANKS, ids=lambda function: function.__name__)
def test_calls_near_mistakes(pools: Pools, function: Callable[[str], None], backend: str) -> None:
    """What the function's docstring says."""
    pools.get("processes", 2).run(function, backend, limit=30.0)


@backends
def test_undefined_reductions(pools: Pools, backend: str) -> None:
    """Every pair of dtype and reduction that means nothing is refused by every operation that reduces."""
    cases = [
        Case(function, dtype, red, 3, layouts(function)[0], backend=backend)
        for function, row in SIGNATURES.items()
        if OPS[row["op"]]["reduces"]
        for dtype in _C.dtypes()
        for red in _C.reductions()
        if not _C.reduction_defined(dtype, red)
    ]
    assert cases
    done = pools.get("processes", 2).run(operations.refuse_all, cases, limit=60.0)
    assert done == [len(cases)] * 2


def test_wrong_backend(pools: Pools) -> None:
    """An unknown name, a known one that was not initialised, and no name."""
    pools.get("processes", 3).run(errors.wrong_backend, 1, limit=60.0)


def test_root_outside_the_group(pools: Pools) -> None:
    """A rank of the job that is not one of the group is named together with the members."""
    pools.get("processes", 4).run(errors.root_outside_group, limit=60.0)


def test_no_group(pools: Pools) -> None:
    """What is not a group, or no longer one."""
    pools.get("processes", 3).run(errors.no_group, limit=60.0)


@pytest.mark.parametrize(
    "function",
    [lifecycle.outside, lifecycle.second_init, lifecycle.wrong_init, lifecycle.finalize_some, lifecycle.other_orders],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("launcher", ["processes", "mpiexec-mpich", "mpiexec-openmpi"])
def test_lifecycle(pools: Pools, launcher: str, function: object) -> None:
    """Use before init and after finalize, a second init, a wrong one, a partial finalize, and starting again."""
    pools.get(launcher, 2).run(function, limit=90.0)  # type: ignore[arg-type]


_SIZES = [(8, 4), (4, 8), (1000, 100_000), (0, 3), (3, 0)]
# Without (100_000, 1000) on Open MPI: 5.0.11 reports the truncation, but its single-copy path (smsc/cma) has by then
# written the whole message over what lies behind the tensor. OMPI_MCA_smsc=^cma avoids that.
_DISAGREEMENTS = [
    *[("processes", sent, expected) for sent, expected in [*_SIZES, (100_000, 1000)]],
    *[("mpiexec-openmpi", sent, expected) for sent, expected in _SIZES],
]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["recv", "irecv"])
@pytest.mark.parametrize(("launcher", "sent", "expected"), _DISAGREEMENTS)
def test_received_size_on_mpi(pools: Pools, launcher: str, sent: int, expected: int, asynchronous: bool) -> None:
    """A message that is larger or smaller than the tensor raises where it is received, and the group works on."""
    pool = pools.get(launcher, 2)
    text = pool.run(lifecycle.received_size, "mpi", sent, expected, asynchronous, limit=30.0)[1]
    assert str(expected) in text
    assert "received" in text or "incoming message" in text


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asynchronous"])
def test_broadcast_size_on_mpi(pools: Pools, asynchronous: bool) -> None:
    """A root that sends more than the others expect: never silent truncation on the receiving rank."""
    texts = pools.get("processes", 2).run(lifecycle.broadcast_size, "mpi", asynchronous, limit=30.0)
    assert "MPI_Bcast" in texts[1], texts
    pools.get("processes", 2).kill()  # MPI does not promise that a communicator works after a failed collective


def test_classes() -> None:
    """Every error of ours is one of torch's, and a ValueError or TypeError where Python would raise that."""
    own = {name: cls for name, cls in vars(mcr_dl).items() if inspect.isclass(cls) and issubclass(cls, mcr_dl.McrError)}
    assert set(own) == {
        "McrError",
        "DesyncError",
        "InvalidArgumentError",
        "InvalidTypeError",
        "UnsupportedError",
        "NotInitializedError",
        "BackendUnavailableError",
        "BackendError",
        "CollectiveTimeoutError",
    }
    assert all(issubclass(cls, DistBackendError) and issubclass(cls, RuntimeError) for cls in own.values())
    assert issubclass(mcr_dl.InvalidArgumentError, ValueError)
    assert issubclass(mcr_dl.InvalidTypeError, TypeError)
    assert issubclass(mcr_dl.NotInitializedError, ValueError)  # as torch's own for a missing default group
    assert issubclass(mcr_dl.UnsupportedError, NotImplementedError)
    assert issubclass(mcr_dl.CollectiveTimeoutError, TimeoutError)
