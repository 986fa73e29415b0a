# SPDX-License-Identifier: Apache-2.0
"""Measuring operations: what ``mcr-bench`` shows and ``mcr-tune`` tabulates.

``cases`` makes a call ready and checks its results, ``timing`` measures several candidates side by side, ``ranks``
starts the processes, ``mix`` runs operations at once, ``report`` shows what came out.
"""
