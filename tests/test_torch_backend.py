# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's backend "mcr": torch's own functions on mcr_dl's groups, by the cases of mcr_dl's functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Pools
from mcr_dl import _C
from mcr_dl.testing.calls import SIGNATURES
from mcr_dl.testing.cases import table
from ranks import operations, session, torch_backend, torch_functions, torch_groups
from ranks.operations import IN_TORCH, torch_takes
from seed import share

DTYPES = ("float32", "int64", "bool", "complex64")
COUNTS = (0, 17, 1001)

worlds = pytest.mark.parametrize("world", [2, 3])
backends = pytest.mark.parametrize("backend", session.BACKENDS)


def test_every_operation_is_there() -> None:
    """The list of torch's functions is not empty by accident: it has each of mcr_dl's operations."""
    assert {SIGNATURES[name]["op"] for name in IN_TORCH} == {row["name"] for row in _C.ops()}
    assert len(IN_TORCH) >= 16


@worlds
@backends
@pytest.mark.parametrize("function", IN_TORCH)
def test_values(pools: Pools, world: int, backend: str, function: str) -> None:
    """Results, inputs and the memory between blocks, on every group, blocking and not."""
    cases = []
    for turn, dtype in enumerate(DTYPES):
        found = table(function, backend, dtype, world, COUNTS, through_torch=True)
        some = [case for case in found if torch_takes(case)]
        stride = 6 if world == 2 else 12  # polled messages of three ranks on two cores take long
        cases += share(some, stride if len(some) > 30 else 1, turn)
    done = pools.get("processes", world).run(operations.run_all, cases, limit=120)
    assert done == [len(cases)] * world
    assert cases


ON_RANKS: dict[str, tuple[Callable[..., None], int]] = {  # function, ranks
    "messages": (torch_backend.messages, 3),
    "coalescing": (torch_backend.coalescing, 3),
    "blocks of threads": (torch_backend.blocks_of_threads, 2),
    "left blocks": (torch_groups.left_blocks, 2),
    "blocks that an exception leaves": (torch_groups.blocks_that_an_exception_leaves, 2),
    "coalesced forms": (torch_backend.coalesced_forms, 3),
    "batches": (torch_backend.batches, 3),
    "broken batches": (torch_backend.broken_batches, 2),
    "sparse": (torch_backend.sparse, 3),
    "premultiplied sum": (torch_backend.premultiplied_sum, 2),
    "works": (torch_backend.works, 2),
    "futures": (torch_backend.futures, 2),
    "failing futures": (torch_backend.failing_futures, 2),
    "barriers": (torch_backend.barriers, 3),
    "objects": (torch_backend.objects, 3),
    "sequence numbers": (torch_backend.sequence_numbers, 2),
    "hooks and times": (torch_backend.hooks_and_times, 2),
    "a hook that waits": (torch_backend.a_hook_that_waits, 2),
    "errors": (torch_backend.errors_of_calls, 2),
    "timeouts": (torch_backend.timeouts, 2),
    "use": (torch_backend.use, 2),
    "options": (torch_groups.options, 3),
    "splitting": (torch_groups.splitting, 3),
    "splitting with names": (torch_groups.splitting_with_names, 3),
    "names": (torch_groups.names, 3),
    "names on two threads": (torch_groups.names_on_two_threads, 2),
    "made again": (torch_groups.made_again, 3),
    "nothing left": (torch_groups.nothing_left, 2),
    "handles": (torch_groups.handles, 3),
    "foreign groups": (torch_groups.foreign_groups, 2),
    "with gloo": (torch_backend.with_gloo, 2),
    "by torch": (torch_groups.started_by_torch, 3),
    "by torch on named backends": (torch_groups.started_by_torch_on_named_backends, 2),
    "late start": (torch_groups.late_start, 3),
    "destroying": (torch_groups.destroying, 2),
    "aborting": (torch_groups.aborting, 2),
    "timeouts of the default group": (torch_groups.timeouts, 2),
    "wrong starts": (torch_groups.wrong_starts, 2),
    "a sparse leaf": (torch_functions.a_sparse_leaf, 2),
    "a gather without a gradient": (torch_functions.a_gather_without_a_gradient, 2),
}


@pytest.mark.parametrize("name", ON_RANKS)
def test_on_ranks(pools: Pools, name: str) -> None:
    """See the function's docstring."""
    function, world = ON_RANKS[name]
    pools.get("processes", world).run(function, limit=120)
