# SPDX-License-Identifier: Apache-2.0
"""The log's records, their statistics, and their lines on the screen."""
