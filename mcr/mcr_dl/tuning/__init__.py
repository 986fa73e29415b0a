# SPDX-License-Identifier: Apache-2.0
"""Tuning tables: the measurements of every candidate, and the winners. The format is ``tuning/schema.json``.

``table`` reads and writes them, ``host`` describes the machine of a table, ``show``, ``plot`` and ``diff`` present
them.
"""
