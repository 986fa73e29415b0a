# SPDX-License-Identifier: Apache-2.0
"""Ends the trials of a call before it is timed: ``auto`` would use its candidates in turn meanwhile."""

from __future__ import annotations

from mcr_dl.measure.cases import Prepared
from mcr_dl.measure.timing import TorchControl

_CALLS = 32  # between two looks


def end_trials(prepared: Prepared, control: TorchControl) -> None:
    """Make calls until ``auto`` has chosen from the candidates that it tries for them; none if it tries none.

    Collective.
    """
    case = prepared.case

    def trying() -> bool:
        how = (case.dtype, case.red, case.device, case.asynchronous)
        found = prepared.group._explain(case.operation, prepared.nbytes, *how)
        return bool(control.maximum([float(found["trying"])])[0])  # each rank learns of the choice at its own time

    while trying():
        for _ in range(_CALLS):
            prepared.call()
