# SPDX-License-Identifier: Apache-2.0
"""ByteScheduler: gradients in the order in which the next forward pass needs them (docs/scheduling.md)."""
