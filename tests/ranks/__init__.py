# SPDX-License-Identifier: Apache-2.0
"""What the ranks run: functions that the tests hand to a pool by name."""
