# SPDX-License-Identifier: Apache-2.0
"""Tuning tables, and what ``auto`` knows of them."""
