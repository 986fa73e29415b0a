# SPDX-License-Identifier: Apache-2.0
"""The state of a running job: its groups, their communicators, and the changes that all ranks make together."""
