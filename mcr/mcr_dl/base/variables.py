# SPDX-License-Identifier: Apache-2.0
"""The environment variables of MCR-DL: one table. The documentation and the environment are checked against it."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

PREFIX = "MCR_DL_"
PAGE = "docs/environment.md"


class Values(NamedTuple):
    """The values of a variable: a pattern of all of them, and its meaning in an error."""

    pattern: str
    meaning: str


_BIT = Values("[01]", "0 or 1")
_BYTES = Values("0*[1-9][0-9]{0,17}", "a number of bytes from 1 to 10**18 - 1")  # which fit into 64 bits


def _one_of(*words: str) -> Values:
    return Values("|".join(words), f"{', '.join(words[:-1])} or {words[-1]}")


class Variable(NamedTuple):
    """One variable. ``page`` is the page of docs/ that describes it, with an anchor if it has one.

    ``values``: None where other parts check the value, which need what is installed here.
    """

    name: str
    meaning: str
    page: str
    values: Values | None = None


VARIABLES = (
    Variable(
        "MCR_DL_BACKENDS",
        "the backends of a program that names none, or names `mcr`: `mpi,gloo`, or, quoted for the shell, "
        "`'mpi,gloo,stripe(gloo,mpi)'`; default `auto`: those of `nccl`, `mpi`, `gloo` and `shm` that all ranks can "
        "use",
        "integrations.md#which-backends-start",
    ),
    Variable(
        "MCR_DL_MPI_LIB",
        "the MPI library: an absolute path, a name that the loader finds, or `mpich` or `openmpi` to choose among "
        "those found; programs that use two name the "
        "second after `:`. If this is set and MPI cannot start, `init_process_group` raises an error, unless the "
        "program or `MCR_DL_BACKENDS` names other backends",
        "integrations.md#which-backends-start",
    ),
    Variable(
        "MCR_DL_MPI_THREAD_LEVEL",
        "`serialized` (default) or `multiple`",
        "architecture.md#threads-and-mpi",
        _one_of("serialized", "multiple"),
    ),
    Variable(
        "MCR_DL_NCCL_LIB",
        "the NCCL library: an absolute path, or a name that the loader finds. If this is set and NCCL cannot "
        "start, `init_process_group` raises an error, unless the program or `MCR_DL_BACKENDS` names other backends",
        "nccl.md",
    ),
    Variable(
        "MCR_DL_NCCL_LANES",
        "NCCL communicators (lanes) per group, 1 (default) to 8; the value of the group's first rank applies",
        "nccl.md",
        Values("[1-8]", "a number from 1 to 8"),
    ),
    Variable(
        "MCR_DL_SHM_BYTES",
        "the maximum size in bytes of the shared memory of a group on `shm`; by default 67108864, or as much as the "
        "group's ranks need at least, if that is more; the value of the group's first rank applies",
        "shm.md#memory",
        _BYTES,
    ),
    Variable(
        "MCR_DL_SHM_DIRECT",
        "`0`: no rank of a group of `shm` reads the tensors of others directly; default `1`: they do where the system "
        "allows it",
        "shm.md#direct-reads",
        _BIT,
    ),
    Variable(
        "MCR_DL_SHM_TENSOR_BYTES",
        "the maximum size in bytes of all tensors that the process gets from `empty_shared()`; half of the "
        "machine's memory by default",
        "shm.md#shared-tensors",
        _BYTES,
    ),
    Variable(
        "MCR_DL_MPI_INTERRUPTIBLE",
        "`1`: blocking collectives of MPI can raise while they wait, after a loss, `abort()` or Ctrl-C; equal on all "
        "ranks; default `0`",
        "reliability.md#interruptible-mpi",
        _BIT,
    ),
    Variable(
        "MCR_DL_MPI_STREAMS",
        "who handles device memory on MPI: `mcr`, `mpi` or `auto` (default)",
        "devices.md#who-handles-the-streams-of-mpi",
        Values("auto|mpi|mcr", "auto, mpi or mcr"),
    ),
    Variable(
        "MCR_DL_UNIFORM",
        "`0`: in torch.distributed's groups a call may be blocking on some ranks and asynchronous on others; default "
        "`1`; equal on all ranks",
        "integrations.md#one-form-on-all-ranks",
        _BIT,
    ),
    Variable("MCR_DL_DEEPSPEED", "`1`: DeepSpeed communicates through mcr_dl", "integrations.md#deepspeed", _BIT),
    Variable(
        "MCR_DL_STAGING_CHUNK",
        "the size in bytes of the pieces in which large device tensors are copied to host libraries (default: 4 MiB), "
        "or `off`; equal on all ranks",
        "devices.md",
        Values("off|0*[1-9][0-9]{0,17}", "a number of bytes or 'off'"),
    ),
    Variable(
        "MCR_DL_TUNING_TABLE",
        "the path of the tuning table that `auto` uses, or `none`; by default this machine's table in the cache",
        "tuning.md",
    ),
    Variable("MCR_DL_TUNE", "rules that override the table: `all_reduce:0-64k:mpi#all_to_all:*:gloo`", "tuning.md"),
    Variable(
        "MCR_DL_TOPOLOGY",
        "a file with the dimensions of the job's ranks; equal on all ranks; by default derived from their hosts",
        "topology.md",
    ),
    Variable(
        "MCR_DL_SCHEDULE",
        "`syndicate`: plan the calls of the program's iterations; default `none`; equal on all ranks",
        "syndicate.md",
    ),
    Variable("MCR_DL_PASSES", "the passes of every group if `init_process_group` gets none: `log,fuse`", "passes.md"),
    Variable(
        "MCR_DL_TRACE",
        "a folder: log all groups, and write each rank's trace there when the runtime ends",
        "logging.md",
    ),
    Variable(
        "MCR_DL_LOG",
        "`info`: at the start of the job, logs the backends, their libraries and the tuning table that `auto` uses; "
        "also `debug`, `warning`, `error`. Default: Python's logger `mcr_dl`, as the program sets it up",
        "logging.md",
        Values("(?i)debug|info|warning|error", "one of debug, info, warning, error"),
    ),
    Variable(
        "MCR_DL_HOST_TIMEOUT",
        "seconds after which the ranks of a host that does not answer are lost, from 3 to 100000, 5 by default; `0`: "
        "the ranks make no connections to detect this; equal on all ranks",
        "reliability.md#other-hosts",
        Values(r"0(\.0*)?|([3-9]|[1-9]\d{1,4})(\.\d*)?|1e5|100000", "0, or a number of seconds from 3 to 100000"),
    ),
    Variable(
        "MCR_DL_DEBUG",
        "`detail`: compare all calls across the ranks; default `off`; equal on all ranks",
        "reliability.md",
        Values("(?i)off|detail", "off or detail"),
    ),
    Variable(
        "MCR_DL_DUMP_DIR",
        "a folder: each rank writes a dump there when a call fails, for `mcr-trace diagnose`",
        "reliability.md#dumps",
    ),
)

# Those of other projects that MCR-DL reads or sets: names and meaning, in Markdown.
OTHERS = (
    (
        "`NCCL_LAUNCH_ORDER_IMPLICIT`",
        "NCCL's; MCR-DL sets it to `1` with NCCL 2.26 or newer, unless it is set already",
    ),
    (
        "`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`",
        "torch's; they take precedence over a launcher's own. If one is missing, `init_distributed` and DeepSpeed's "
        "backend set `LOCAL_RANK`, and `init_distributed` sets `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` "
        "for torch.distributed",
    ),
    (
        "`OMPI_COMM_WORLD_*`, `PMI_*`, `PMIX_RANK`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS`, `SLURM_*`",
        "rank, size, local rank and ranks per host from `mpiexec` and `srun`",
    ),
    (
        "`TORCHELASTIC_RUN_ID`, `TORCHELASTIC_USE_AGENT_STORE`",
        "torchrun's: whether it has started the process, and whether its agent holds the store",
    ),
    (
        "`OMP_NUM_THREADS`",
        "`mcr-bench`, `mcr-tune` and `python -m mcr_dl.testing` set it to `1` for their ranks, unless set already",
    ),
    (
        "`XDG_CACHE_HOME`",
        "the folder of the cache: tuning tables, and ByteScheduler's settings of earlier jobs; default `~/.cache`",
    ),
    (
        "`OPAL_PREFIX`, `PMI_*`, `PMIX_*`, `MPIR_CVAR_PMI_VERSION`",
        "set while MCR-DL starts MPI without an MPI launcher",
    ),
    ("`LD_LIBRARY_PATH`", "the loader's: the folders in which MCR-DL looks first for an MPI library of the system"),
    ("`PATH`", "the folders of `mpicc` and `mpiexec`, next to which MCR-DL looks for an MPI library, too"),
    (
        "`NCCL_MULTI_RANK_GPU_ENABLE`, `NCCL_HOSTID`",
        "NCCL's; `mcr-bench` and `mcr-tune` set one of them where ranks share a GPU, unless set already",
    ),
    (
        "`TORCH_DIST_INIT_BARRIER`",
        "torch's; unset for a moment when MCR-DL makes its groups known to torch, as each rank does that alone",
    ),
    (
        "`TORCH_GLOO_LAZY_INIT`",
        "torch's; set to `1` while a group of more than 64 ranks is made on gloo, unless set already; "
        "equal on all ranks",
    ),
    (
        "`MPIR_CVAR_{ALLREDUCE,BARRIER,BCAST,REDUCE}_POSIX_INTRA_ALGORITHM`",
        "MPICH's; set to `mpir`, unless set already, on a host with more ranks than usable cores "
        "(under mpiexec: than cores)",
    ),
)

_warned = False


def unknown(environment: Mapping[str, str] = os.environ) -> list[str]:
    """One text, with the nearest known name, for each variable with the prefix MCR_DL_ that is not in the table."""
    known = [variable.name for variable in VARIABLES]
    suffixes = [name.removeprefix(PREFIX) for name in known]
    texts = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name.removeprefix(PREFIX), suffixes, n=1)
            texts.append(f"{name} (did you mean {PREFIX}{near[0]}?)" if near else name)
    return texts


def problem(environment: Mapping[str, str] = os.environ) -> str:
    """The error of the first variable of the table with a value that it cannot have; empty if there is none."""
    for each in VARIABLES:
        value = environment.get(each.name, "")
        if value and each.values is not None and not re.fullmatch(each.values.pattern, value):
            return f"{each.name}: expected {each.values.meaning}, got {value!r}"
    return ""


def path(variable: str) -> Path | None:
    """The absolute path that a variable gives, as of its first use: a program may change its folder later.

    None if it is not set, or empty.
    """
    value = os.environ.get(variable)
    return _absolute(value) if value else None


@cache
def _absolute(value: str) -> Path:
    return Path(value).absolute()


def prepare_folder(variable: str, place: Path, content: str) -> None:
    """Make the folder that a variable names, and warn now if it cannot be written: at its use it would be too late.

    ``content``: what is written there.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        text = f"{variable}: expected a folder for {content}, got '{place}', which cannot be written: {error}"
        warnings.warn_explicit(text, UserWarning, "<environment>", 1)


def leave_out_passes() -> None:
    """Remove the variables that record, change or plan a program's calls, for a command that makes calls of its own.

    Its times would include the passes, and its trace would replace that of a program.
    """
    for name in ("MCR_DL_PASSES", "MCR_DL_SCHEDULE", "MCR_DL_TRACE"):
        os.environ.pop(name, None)


def warn_of_unknown() -> None:
    """Warn of unknown variables, once per process, in one line: a line of the source would say nothing more."""
    global _warned
    texts = [] if _warned else unknown()
    _warned = True
    if texts:
        text = f"unknown environment variables, which have no effect: {', '.join(texts)}; {PAGE} lists those that have"
        warnings.warn_explicit(text, UserWarning, "<environment>", 1)
