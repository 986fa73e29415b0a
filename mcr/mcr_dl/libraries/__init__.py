# SPDX-License-Identifier: Apache-2.0
"""The communication libraries behind the backends: one descriptor each, and the list of backends that exist here."""
