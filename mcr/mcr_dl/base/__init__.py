# SPDX-License-Identifier: Apache-2.0
"""What every other part uses: errors, documents, the op table's operations, the launcher's environment, agreement."""
