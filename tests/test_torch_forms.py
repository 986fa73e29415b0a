# SPDX-License-Identifier: Apache-2.0
"""Blocking calls of torch.distributed are the library's own in uniform groups; elsewhere any form matches any other."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from torch.distributed.algorithms.join import Join

import jobs
from harness import Pools
from mcr_dl.groups import torch_groups
from mcr_dl.testing.nursery import Nursery
from ranks import session, torch_forms

worlds = pytest.mark.parametrize("world", [2, 3])

CASES: dict[str, Callable[[str], None]] = {
    "forms": torch_forms.forms,
    "meets ours": torch_forms.meets_ours,
    "mixed": torch_forms.mixed,
    "agreement": torch_forms.agreement,
    "starts": torch_forms.starts,
    "joins": torch_forms.joins,
    "threads": torch_forms.threads,
    "a hook on one rank": torch_forms.hook_on_one_rank,
    "a wait that a hook outlasts": torch_forms.wait_that_a_hook_outlasts,
}


@worlds
@pytest.mark.parametrize("backend", session.BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_on_ranks(pools: Pools, case: str, backend: str, world: int) -> None:
    """See the function's docstring."""
    pools.get("processes", world).run(CASES[case], backend, limit=120)


@pytest.mark.parametrize("function", [torch_forms.starter_that_ended, torch_forms.registered_works])
def test_on_two_ranks(pools: Pools, function: Callable[[], None]) -> None:
    """See the function's docstring."""
    pools.get("processes", 2).run(function, limit=120)


def test_joins_that_another_package_has_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are noticed all the same, by one function."""

    @functools.wraps(object.__init__)
    def theirs(*_: object) -> None: ...

    monkeypatch.setattr(Join, "__init__", theirs)
    torch_groups._notice_joins()
    noticed = vars(Join)["__init__"]
    assert noticed.__wrapped__ is theirs
    torch_groups._notice_joins()
    assert vars(Join)["__init__"] is noticed


@pytest.mark.parametrize("detail", [False, True], ids=["timeout", "detail"])
def test_forms_that_differ(detail: bool) -> None:
    """If a uniform group's calls have two forms on mpi, all ranks report it with the option that allows it, and end."""
    with Nursery() as nursery:
        debug = "detail" if detail else "off"
        ranks = jobs.start(nursery, "two_forms", [], 2, MCR_DL_BACKENDS="mpi", MCR_DL_DEBUG=debug)
        jobs.end(nursery, ranks)
        where = ", called at two_forms.py:15 in <module>" if detail else ""
        told = (
            f"collective 2 of group 'default' is all_reduce(SUM, float32, 12 bytes, mpi) on rank 0{where}, but "
            f"all_reduce(SUM, float32, 12 bytes, mpi, async_op=True) on rank 1{where}"
        )
        for rank in ranks:
            assert told in rank.text, rank.text
            assert "mcr_dl.Options(uniform=False)" in rank.text, rank.text
            assert rank.code != 0
