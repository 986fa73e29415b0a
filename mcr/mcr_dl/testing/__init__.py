# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: cases of every operation, their expected results, and ranks to run them on.

``python -m mcr_dl.testing --backend NAME`` runs the cases on a backend (docs/add-a-backend.md, "Check it"). MCR-DL's
tests and those of other packages use the parts:

======================  ================================================================================================
``calls.Case``          one call: function, type, reduction, size, layout, group, root, blocking or not
``cases.table``         all cases of a function and a type; ``cases.share`` and ``cases.some`` select some of them
``reference.expected``  the result of an operation on one rank, in plain torch
``checks.run``          makes the call of a case on this rank and compares the results with those of ``reference``
``session``             the runtime of a rank that runs cases: its start, and groups of every kind
``pool.Pool``           ranks that run functions one after the other, each within a limit
``kit``                 all of these: runs the cases of the operations on a backend
``nursery``, ``jobs``   jobs whose ranks may raise, die or hang
``plan_graphs``         graphs for the planner
======================  ================================================================================================
"""

from mcr_dl.testing.calls import Case
from mcr_dl.testing.pool import Pool, RankFailure

__all__ = ["Case", "Pool", "RankFailure"]
