# SPDX-License-Identifier: Apache-2.0
"""What bench/gpu_check.sh runs on a machine with a GPU (docs/gpu-check.md). Needs torch and NumPy, and no pytest."""
