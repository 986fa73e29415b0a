# SPDX-License-Identifier: Apache-2.0
"""A rank under Syndicate dies, raises or is stopped for a while, in every phase of planning and of switching plans."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

import jobs
from mcr_dl.testing.jobs import start
from mcr_dl.testing.nursery import Child, Nursery
from ranks.syndicate_faults import LIMIT, PHASES

PROGRAM = Path(__file__).resolve().parent / "ranks" / "syndicate_faults.py"
SIZE = 3
LONG = 90.0  # seconds for a job whose rank is stopped several times: on slow machines, a plan at random costs 20 s
LATER = 2.0  # seconds after the time limit by which all other ranks have the error
TOLD = {"kill": r"process \d+ on \S+ has ended", "raise": "(it has raised ValueError: bad batch|has ended)"}
LOST = [(phase, "kill", 2 * (index % 2)) for index, phase in enumerate(PHASES)]
# An error while a rank measures does not end its program: test_syndicate.py.
LOST += [("captured", "raise", 2), ("turn", "raise", 2), ("check", "raise", 0)]
# Phases of one job in which a rank is stopped: the time limit of a call is longer than one stop.
STOPS = [
    (["captured", "measuring", "turn", "check"], 0),
    (["searching", "committed", "turn ended", "steady"], 2),
    (["prepared", "turn without a plan", "decided"], 0),
]

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("nothing_left")]


def given(phases: Sequence[str], fault: str, rank: int) -> list[str]:
    """The program's arguments; other phases have other plans."""
    return [",".join(phases), fault, str(rank), str(PHASES.index(phases[0]))]


def moment(child: Child, what: str) -> float | None:
    """When something happened first, on the clock of this host."""
    found = re.search(rf"^{what} ([\d.]+)$", child.text, re.MULTILINE)
    return None if found is None else float(found[1])


def expect_lost(nursery: Nursery, ranks: list[Child], lost: int, fault: str) -> None:
    """The other ranks have raised, or ended inside of MPI, in time, and name the rank."""
    jobs.end(nursery, ranks)
    began = moment(ranks[lost], "fault")
    assert began is not None, ranks[lost].text
    for rank in (each for number, each in enumerate(ranks) if number != lost):
        inside = re.search(r"mcr_dl: \w+: (mpi|auto)\.", rank.text)  # only a blocking call of MPI cannot raise
        assert rank.code == (jobs.ENDED if inside else jobs.REPORTED), rank.text
        named = rf"(PeerLostError|CollectiveTimeoutError): .*rank {lost}\b.*{TOLD[fault]}"
        assert re.search(named, rank.text), rank.text
        ended = moment(rank, "raised") or rank.ended
        assert ended is not None
        assert ended - began < LIMIT + LATER, (ended - began, rank.text)


@pytest.mark.parametrize(("phase", "fault", "rank"), LOST)
def test_a_rank_is_lost(nursery: Nursery, phase: str, fault: str, rank: int) -> None:
    """The other ranks name it in time. Rank 0 searches for plans, and decides when there is a new one."""
    ranks = start(nursery, PROGRAM, given([phase], fault, rank), SIZE)
    expect_lost(nursery, ranks, rank, fault)


@pytest.mark.parametrize("phase", ["captured", "searching", "check"])
def test_the_first_rank_dies_with_the_store(nursery: Nursery, phase: str) -> None:
    """Rank 0 holds the store, over which the ranks agree."""
    ranks = nursery.ranks(PROGRAM, given([phase], "kill", 0), SIZE)
    expect_lost(nursery, ranks, 0, "kill")


def expect_equal_ends(nursery: Nursery, ranks: list[Child], stopped: int, times: int) -> list[str]:
    """All ranks have come to the end with right results, and what has happened is equal on all; the kinds of events."""
    jobs.end(nursery, ranks, LONG)
    jobs.expect(ranks, 0, "DONE")
    assert ranks[stopped].text.count("fault ") == times, ranks[stopped].text
    found = [json.loads(each.text.partition("DONE ")[2].splitlines()[0]) for each in ranks]
    assert found[0] == found[1] == found[2]
    return [what for _, what, _, _ in found[0]["events"]]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("phases", "rank"), STOPS)
def test_a_rank_is_stopped(nursery: Nursery, phases: list[str], rank: int) -> None:
    """For two seconds in each of some phases: the plan takes effect on all ranks."""
    ranks = start(nursery, PROGRAM, given(phases, "stop", rank), SIZE)
    assert expect_equal_ends(nursery, ranks, rank, len(phases)) == ["planned", "kept"]


@pytest.mark.timeout(300)
def test_a_rank_is_stopped_for_long(nursery: Nursery) -> None:
    """For longer than the others wait for an agreement: there is none on any rank, and the program goes on."""
    cases = {("captured", 2): ["failed", "planned", "kept"], ("turn ended", 0): ["planned", "failed", "kept"]}
    cases["again", 2] = ["planned", "kept", "slower", "failed"]  # the old plan stays in force
    for (phase, rank), expected in cases.items():  # one by one: all at once may take longer than the limit of a job
        ranks = start(nursery, PROGRAM, given([phase], "long stop", rank), SIZE)
        assert expect_equal_ends(nursery, ranks, rank, 1) == expected


def test_a_rank_is_lost_behind_a_motif(nursery: Nursery) -> None:
    """A call that raises without Syndicate raises while it waits for planned calls, too."""
    ranks = start(nursery, PROGRAM, ["behind", "2"], SIZE)
    expect_lost(nursery, ranks, 2, "kill")
    assert [rank.code for rank in ranks[:2]] == [jobs.REPORTED] * 2, ranks[0].text


@pytest.mark.parametrize("number", [3, 50], ids=["watching", "steady"])
def test_the_others_go_on(nursery: Nursery, number: int) -> None:
    """With a group of their own, whose calls raise nothing; the end of Syndicate does not wait for the lost rank."""
    ranks = start(nursery, PROGRAM, ["survive", "2", str(number)], SIZE)
    jobs.end(nursery, ranks)
    jobs.expect(ranks[:2], 0, "LEAVES", "DONE")
