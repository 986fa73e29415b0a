# SPDX-License-Identifier: Apache-2.0
"""The parts that all others use: errors, documents, the table of operations, the launcher's environment, the store."""
