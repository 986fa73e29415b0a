# SPDX-License-Identifier: Apache-2.0
"""Themis: chunks of a collective take different orders of a network's dimensions (ISCA'22; docs/themis.md)."""

from mcr_dl.networks.network import Dimension, Network
from mcr_dl.networks.plans import Plan, Step, plan

__all__ = ["Dimension", "Network", "Plan", "Step", "plan"]
