# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the commands: arguments, the console, formats of sizes and times."""
