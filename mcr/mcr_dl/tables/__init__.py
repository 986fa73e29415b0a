# SPDX-License-Identifier: Apache-2.0
"""Tuning tables, and the knowledge that ``auto`` takes from them."""
