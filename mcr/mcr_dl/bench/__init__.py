# SPDX-License-Identifier: Apache-2.0
"""``mcr-bench``: ``mix`` runs operations at once, ``report`` shows the results."""
