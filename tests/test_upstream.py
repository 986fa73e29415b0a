# SPDX-License-Identifier: Apache-2.0
"""The entry points of the first MCR-DL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mcr_dl
from harness import launchers
from mcr_dl.measure.ranks import free_port

PROGRAM = str(launchers.TESTS / "programs" / "upstream.py")


@pytest.mark.parametrize("launcher", ["processes", "mpiexec-mpich"])
@pytest.mark.parametrize(("engine", "backend"), [("mcr_dl", "mpi"), ("mcr_dl", "mpi,gloo"), ("torch", "gloo")])
def test_a_program_of_its_time(launcher: str, engine: str, backend: str, tmp_path: Path) -> None:
    """init_processes, get_distributed_engine and init_distributed, on either engine, under torchrun and mpiexec."""
    log = tmp_path / "output.txt"
    port = {} if launcher == "processes" else {"MASTER_PORT": str(free_port())}
    job = launchers.mark()
    ranks = launchers.start(launcher, 2, [PROGRAM, engine, backend], log, {**port, **job})
    try:
        codes = [rank.wait(90) for rank in ranks]
    finally:
        launchers.kill(job)
    text = log.read_text()
    assert set(codes) == {0}, text
    assert text.count("upstream: done") == 2
    assert f"{'mcr_dl' if engine == 'mcr_dl' else 'torch.distributed'} runs on " in text


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says what was expected, and starts nothing."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(mcr_dl.InvalidArgumentError, match="dist_engine: expected one of mcr_dl, torch, got 'horovod'"):
        mcr_dl.init_processes("horovod", "mpi")
    with pytest.raises(mcr_dl.InvalidTypeError, match="dist_engine: expected one of"):
        mcr_dl.init_processes(3)  # type: ignore[arg-type]
    for name in ("rank", "world_size"):
        places: dict[str, Any] = {"rank": 0, "world_size": 1, name: "1"}
        for engine in (False, True):
            with pytest.raises(mcr_dl.InvalidTypeError, match=f"{name}: expected a whole number, got '1'"):
                mcr_dl.init_distributed("gloo", use_mcr_dl=engine, **places)
    with pytest.raises(mcr_dl.NotInitializedError, match="expected mcr_dl to run already"):
        mcr_dl.init_distributed("mpi", use_mcr_dl=True, dist_init_required=False)
    with pytest.raises(mcr_dl.InvalidArgumentError, match="config: expected None"):
        mcr_dl.init_distributed("gloo", config={"comms_logger": {"enabled": True}})
    with pytest.raises(mcr_dl.InvalidArgumentError, match="auto_mpi_discovery=False: expected RANK and WORLD_SIZE"):
        mcr_dl.init_distributed("mpi", use_mcr_dl=True, auto_mpi_discovery=False)
    assert not mcr_dl.is_initialized()
