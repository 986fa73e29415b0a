# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed on mcr_dl: an object of mcr_dl behind ``deepspeed.comm``, so that every engine calls mcr_dl.

>>> import mcr_dl, deepspeed
>>> mcr_dl.deepspeed.install(["mpi", "gloo"])           # or set MCR_DL_DEEPSPEED=1, without changing the program
>>> deepspeed.init_distributed()                        # whatever backend it asks for
>>> deepspeed.init_distributed(dist_backend="mcr")      # instead of install(), for this one
"""

from mcr_dl.deepspeed._install import install

__all__ = ["install"]
