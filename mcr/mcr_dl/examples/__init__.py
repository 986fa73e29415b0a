# SPDX-License-Identifier: Apache-2.0
"""Whole programs on MCR-DL.

The workloads of the MCR-DL paper: ``python -m mcr_dl.examples.moe`` trains a mixture-of-experts language model,
``...dlrm`` a recommendation model and ``...gpt`` a dense language model; each on single libraries, on a mix of them,
and with `auto`. ``...bytescheduler`` compares ways of data-parallel training, ``...syndicate`` trains under plans of
all communication, and ``...survive`` goes on without a lost rank.

`comm` carries their communication, `parallel` makes a model parallel, `mixes` measures which operation to give to which
backend, and `program` has the other common parts: the modes' turns, the ranks and the command line.
"""
