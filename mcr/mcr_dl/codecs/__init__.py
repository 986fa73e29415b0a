# SPDX-License-Identifier: Apache-2.0
"""Codecs of the compression pass."""
