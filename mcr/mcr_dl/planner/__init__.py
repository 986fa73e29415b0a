# SPDX-License-Identifier: Apache-2.0
"""The planner of SYNDICATE (NSDI'23): motifs, plans and their search (docs/syndicate.md)."""
