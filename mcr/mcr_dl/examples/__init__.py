# SPDX-License-Identifier: Apache-2.0
"""Whole programs on the public interface of MCR-DL.

``python -m mcr_dl.examples.moe`` trains a mixture-of-experts language model with gloo, with MPI, and with both at once.
"""
