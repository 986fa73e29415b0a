# SPDX-License-Identifier: Apache-2.0
"""Accelerate, Transformers and Lightning on the backend "mcr": the same training as on gloo."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import jobs

FRAMEWORKS = ("accelerate", "transformers", "lightning")
UNDERNEATH = ("mpi", "auto")
LIMIT = 120.0


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of a framework on a backend, by rank; each runs once."""
    folder = tmp_path_factory.mktemp("trainers")

    @cache
    def job(framework: str, name: str) -> jobs.Found:
        variables = {} if name in ("gloo", "auto") else {"MCR_DL_BACKENDS": name}
        backend = "gloo" if name == "gloo" else "mcr"
        own = folder / f"{framework}-{name}"
        return jobs.run("trainers_job", 2, [framework, backend], own, LIMIT, torchrun=True, **variables)

    return job


@pytest.mark.parametrize("name", UNDERNEATH)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_trains_as_on_gloo(found: Any, framework: str, name: str) -> None:
    """Losses equal to the bit on both ranks, and everything else that the frameworks communicate."""
    reference, ours = found(framework, "gloo"), found(framework, name)
    assert len(reference[0]["losses"]) == 6
    assert reference[0]["losses"][0] != reference[0]["losses"][-1]
    for theirs, mine in zip(reference, ours, strict=True):
        assert theirs.pop("backend", "gloo") == "gloo"
        assert theirs.pop("ours", {}) == {}
        assert mine["backend"] == "mcr"
        assert {key: mine[key] for key in theirs} == theirs


@pytest.mark.parametrize("name", UNDERNEATH)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_who_carried_it(found: Any, framework: str, name: str) -> None:
    """The gradients of every step and the initial weights went through mcr_dl."""
    for rank in found(framework, name):
        assert rank["ours"]["all_reduce"] >= 6
        assert rank["ours"]["broadcast"] >= 1


def test_accelerate_and_transformers_know_the_group(found: Any) -> None:
    """They run on two ranks together, not each rank alone."""
    assert found("accelerate", "mpi")[1]["things"] == [0]
    assert found("accelerate", "mpi")[1]["mean"] == [0.5, 0.5]
    assert "DISTRIBUTED" in found("transformers", "mpi")[0]["mode"]
