# SPDX-License-Identifier: Apache-2.0
"""Networks of several dimensions, and plans of collectives on them (docs/themis.md)."""
