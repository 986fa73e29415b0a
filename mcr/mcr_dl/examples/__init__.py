# SPDX-License-Identifier: Apache-2.0
"""Whole programs on the public interface of MCR-DL: the paper's three workloads.

``python -m mcr_dl.examples.moe`` trains a mixture-of-experts language model, ``...dlrm`` a recommendation model and
``...gpt`` a dense language model; each with gloo, with MPI, with both at once, and with `auto`.

`comm` carries their communication, `parallel` makes a model parallel, `mixes` measures which operation to give to which
backend, and `program` has the other common parts: the modes' turns, the ranks and the command line.
"""
