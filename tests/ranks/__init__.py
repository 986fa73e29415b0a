# SPDX-License-Identifier: Apache-2.0
"""Functions for the ranks: tests pass them to a pool by name."""
