# SPDX-License-Identifier: Apache-2.0
"""Measuring operations for ``mcr-bench`` and ``mcr-tune``.

``cases`` prepares a call and checks its results, ``timing`` measures several candidates side by side, ``ranks``
starts the processes, ``mix`` runs operations at once, ``report`` shows the results.
"""
