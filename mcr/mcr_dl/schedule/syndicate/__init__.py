# SPDX-License-Identifier: Apache-2.0
"""SYNDICATE: plans of the calls of an unmodified program's iterations (docs/syndicate.md)."""
