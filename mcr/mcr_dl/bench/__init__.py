# SPDX-License-Identifier: Apache-2.0
"""``mcr-bench``: ``ranks`` starts the processes, ``mix`` runs operations at once, ``report`` shows the results."""
