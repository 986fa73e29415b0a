# SPDX-License-Identifier: Apache-2.0
"""Measuring calls.

``cases`` prepares a call and checks its results, ``timing`` measures several candidates side by side, ``devices`` gives
each rank its device, ``start`` measures the candidates of a job that has no table, ``ranks`` starts processes on this
host.
"""
