# SPDX-License-Identifier: Apache-2.0
"""Runs functions on all ranks of a job: pools of rank processes that live as long as the pytest session."""

from harness.pool import Pools

__all__ = ["Pools"]
