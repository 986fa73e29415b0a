# SPDX-License-Identifier: Apache-2.0
"""The stages of bench/gpu_check.sh on a machine with a GPU (docs/gpu-check.md). Need torch and NumPy, not pytest."""
