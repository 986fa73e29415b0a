# SPDX-License-Identifier: Apache-2.0
"""Arguments that are wrong on one rank alone: later calls work. And options that all ranks give."""

from __future__ import annotations

import warnings
from datetime import timedelta
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as torch_dist

import mcr_dl
from mcr_dl import _C, CollectiveTimeoutError, InvalidArgumentError, InvalidTypeError, watch
from mcr_dl.runtime import rounds, state
from mcr_dl.testing.expect import expect
from ranks import errors, session


def _sums(group: Any) -> None:
    """A call of all members of the group."""
    tensor = torch.ones(3)
    mcr_dl.all_reduce(tensor, group=group)
    assert tensor.tolist() == [float(mcr_dl.get_world_size(group))] * 3


def local_groups() -> None:
    """Rank 0 makes a wrong call where rank 1 waits for it; the next group of these ranks has one name on both."""
    session.start()
    everyone = [0, 1]
    if mcr_dl.get_rank() == 0:
        wrong = (
            lambda: mcr_dl.new_group(everyone, timeout=0, use_local_synchronization=True),
            lambda: mcr_dl.new_group(everyone, group_desc="\0", use_local_synchronization=True),
        )
        for call in wrong:
            expect(InvalidArgumentError, call)
    else:
        for _ in range(2):
            expect(
                CollectiveTimeoutError,
                lambda: mcr_dl.new_group(everyone, timeout=0.3, use_local_synchronization=True),
                "rank 0 did not come",
            )
    made = mcr_dl.new_group(everyone, timeout=30, use_local_synchronization=True)
    _sums(made)
    mcr_dl.destroy_process_group(made)


def subgroups() -> None:
    """Functions for subgroups that raise on one rank alone, or that only a group's members call (for three ranks)."""
    session.start()
    me = mcr_dl.get_rank()
    if me == 0:
        expect(InvalidArgumentError, lambda: mcr_dl.new_subgroups_by_enumeration([[0, 1], [1]]), "each rank once")
        expect(InvalidArgumentError, lambda: mcr_dl.new_subgroups(2), "divisor")
    else:
        mine, everyone = mcr_dl.new_subgroups_by_enumeration([[0], [1], [2]])
        assert mcr_dl.get_process_group_ranks(mine) == [me]
        assert len(everyone) == 3
        mcr_dl.new_subgroups(1)
    _sums(mcr_dl.new_group())
    pair = mcr_dl.new_group([0, 1], timeout=40, backend="gloo")
    if me < 2:
        mine, everyone = mcr_dl.new_subgroups(1, group=pair)
        assert mcr_dl.get_process_group_ranks(mine) == [me]
        assert mcr_dl.get_backends(mine) == ["gloo"]
        assert _C.group_of(mine).timeout == timedelta(seconds=40)  # type: ignore[union-attr]
        assert len(everyone) == 2
        both, _ = mcr_dl.new_subgroups(2, group=pair, group_desc="both")
        split = mcr_dl.split_group(pair, [[0, 1]], group_desc="both")
        for group in (both, split):
            _sums(group)
        assert both.group_desc != split.group_desc  # type: ignore[union-attr]
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert mcr_dl.new_subgroups(1, group=pair) == (None, [])
        assert "new_subgroups on a rank which does not belong" in str(caught[0].message)
    _sums(mcr_dl.new_group())
    part = mcr_dl.split_group(None, np.array([[0, 2]]))  # type: ignore[arg-type]
    assert (part is None) == (me == 1)


def monitored_barrier() -> None:
    """A wrong timeout on one rank counts there; the next barrier that passes deletes the keys of all before it. One to
    which the last rank comes just when the time of another is over passes on both.
    """
    session.start()
    where = f"monitored_barrier/0/{state.current().groups['default'].name()}"
    for _ in range(2):
        if mcr_dl.get_rank() == 0:
            expect(InvalidArgumentError, lambda: mcr_dl.monitored_barrier(timeout=0), "timeout")
        else:
            expect(CollectiveTimeoutError, lambda: mcr_dl.monitored_barrier(timeout=0.3), "rank 0 did not come")
    store, number = state.current().store, state.current().counts["default"]["barrier"]
    mcr_dl.barrier()
    for _ in range(2):
        mcr_dl.monitored_barrier()
    mcr_dl.barrier()
    keys = [f"{key}/{each}" for each in range(number + 3) for key in ("come", "answer")]
    assert [key for key in keys if store.check([f"{where}/{key}"])] == keys[-2:]
    poll, waits = rounds.poll, iter([False])
    with mock.patch.object(rounds, "poll", lambda *given, **named: poll(*given, **named) and next(waits, True)):
        mcr_dl.monitored_barrier()


def missing_ranks() -> None:
    """The barrier names the first rank that does not come, or all of them; these take part in the next one again."""
    session.start()
    current, me, size = state.current(), mcr_dl.get_rank(), mcr_dl.get_world_size()
    mcr_dl.monitored_barrier()
    for missing, wait_all in (([1], False), ([0], False), ([1, 2], False), ([1, 2], True)):
        store = mcr_dl.PrefixStore(f"missing/{current.count('missing')}", current.store)
        if me in missing:
            store.wait([str(rank) for rank in range(size) if rank not in missing])
        else:
            named = missing if wait_all else missing[:1]
            text = f"{watch.ranks_text(named)} did not come within 0.3 s. Not arrived: rank {named[0]}: it is"
            call = partial(mcr_dl.monitored_barrier, timeout=0.3, wait_all_ranks=wait_all)
            error = expect(CollectiveTimeoutError, call, f", rank {me} of", text)
            assert all((f"rank {rank}: it is" in str(error)) == (rank in named) for rank in range(size)), error
            store.set(str(me), "")
        mcr_dl.barrier()
        mcr_dl.monitored_barrier(wait_all_ranks=wait_all)


def options() -> None:
    """The new group of shrink() has the backends in mcr_dl's options, as that of new_group()."""
    session.start()
    chosen = mcr_dl.Options(backends=["gloo"])
    made = mcr_dl.shrink(pg_options=chosen)
    assert mcr_dl.get_backends(made) == mcr_dl.get_backends(mcr_dl.new_group(pg_options=chosen)) == ["gloo"]
    torchs = torch_dist.ProcessGroupGloo._Options()
    assert mcr_dl.get_backends(mcr_dl.new_group(pg_options=torchs)) == list(session.BACKENDS)
    for wrong in (["gloo"], "gloo", {"backends": ["gloo"]}, 1, ()):
        for make in (
            mcr_dl.new_group,
            mcr_dl.shrink,
            partial(mcr_dl.new_group, backend="gloo"),
            partial(mcr_dl.split_group, None, [[0, 1]]),
            partial(torch_dist.new_group, backend="mcr"),
        ):
            call = partial(make, pg_options=wrong)
            expect(InvalidTypeError, call, "pg_options: expected mcr_dl.Options(", f"got {type(wrong).__name__}")
    other = mcr_dl.shrink(backend=["shm", "gloo"], pg_options=chosen)
    assert mcr_dl.get_backends(other) == ["shm", "gloo"]
    for group in (made, other):
        _sums(group)


def batches(backend: str) -> None:
    """A batch with a wrong entry sends and receives nothing; entries of groups of other ranks are left out."""
    session.start()
    me, size = mcr_dl.get_rank(), mcr_dl.get_world_size()
    after, before = (me + 1) % size, (me - 1) % size
    mine, theirs = torch.full((2,), float(me)), torch.full((2,), -1.0)

    def receive() -> mcr_dl.P2POp:
        return mcr_dl.P2POp(mcr_dl.irecv, theirs, before, backend=backend)

    wrong = (
        mcr_dl.P2POp(mcr_dl.isend, torch.ones(4)[::2], after, backend=backend),
        mcr_dl.P2POp(mcr_dl.isend, mine, after, tag=-1, backend=backend),
        mcr_dl.P2POp(mcr_dl.isend, mine, me, backend=backend),
        mcr_dl.P2POp(mcr_dl.isend, mine, after, backend="nothing"),
        mcr_dl.P2POp(mcr_dl.isend, torch.ones(2).to_sparse(), after, backend=backend),
    )
    for entry in wrong if me == 0 else ():
        text = str(expect(InvalidArgumentError, lambda entry=entry: mcr_dl.batch_isend_irecv([receive(), entry])))
        assert f".isend (group 'default', rank 0 of {size}): " in text, text
    outside = mcr_dl.P2POp(mcr_dl.isend, mine, after, mcr_dl.GroupMember.NON_GROUP_MEMBER)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        works = mcr_dl.batch_isend_irecv([receive(), outside, mcr_dl.P2POp(mcr_dl.isend, mine, after, backend=backend)])
    assert "isend on a rank which does not belong" in str(caught[0].message)
    assert len(works) == 2
    for work in works:
        work.wait()
    assert theirs.tolist() == [float(before)] * 2
    errors.good_call(backend)


def replaced_works(backend: str) -> None:
    """A program that replaces a coalescing manager's list does not lose the works of the block."""
    session.start()
    size = mcr_dl.get_world_size()
    tensors = [torch.full((3,), float(index)) for index in range(50)]
    with mcr_dl._coalescing_manager() as manager:
        manager.works = []
        for tensor in tensors:
            mcr_dl.all_reduce(tensor, backend=backend)
    assert len(manager.works) == len(tensors)
    assert [tensor.tolist() for tensor in tensors] == [[float(index * size)] * 3 for index in range(50)]
