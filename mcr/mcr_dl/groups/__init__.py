# SPDX-License-Identifier: Apache-2.0
"""Starting and ending the job, its process groups in mcr_dl and in torch, and collectives on objects."""
