# SPDX-License-Identifier: Apache-2.0
"""Tuning tables: what was measured of every candidate, and who wins where. The format is ``tuning/schema.json``.

``table`` reads and writes them, ``host`` says what a table was measured on, ``show``, ``plot`` and ``diff`` are for
people.
"""
