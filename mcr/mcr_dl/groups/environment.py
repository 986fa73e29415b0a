# SPDX-License-Identifier: Apache-2.0
"""The check of the environment variables that commands and example programs make before they start ranks."""

from __future__ import annotations

import os

from mcr_dl.base import variables
from mcr_dl.base.errors import InvalidArgumentError
from mcr_dl.libraries import registry
from mcr_dl.passes import chain
from mcr_dl.runtime import topologies
from mcr_dl.tables import choice, rules


def require(*, table: bool = True, passes: bool = True) -> None:
    """Check the values of all variables, so that a wrong one is one error instead of one for each rank. ``table``:
    whether a tuning table that they name must be readable; a command that makes it does not read it. ``passes``:
    whether the passes and the scheduler that they name must be known; a command without passes knows none of a program.

    Raises an McrError that names the variable: InvalidArgumentError, or BackendUnavailableError for a library that is
    not there.
    """
    if problem := variables.problem() or topologies.own()["problem"]:
        raise InvalidArgumentError(problem)
    registry.require_environment()
    if passes:
        chain.with_scheduler(chain.specify(None))
    if table:
        choice.require_named()
    text = os.environ.get(rules.VARIABLE, "")
    for rule in rules.parse(text, None):
        if unknown := registry.unknown_in(rule.candidate):
            known = registry.known_names()
            raise rules.wrong(text, rule.place, f"one of {', '.join(known)}", unknown, known)
