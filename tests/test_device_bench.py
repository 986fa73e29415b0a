# SPDX-License-Identifier: Apache-2.0
"""Decisions of mcr-bench and mcr-tune on devices, with a stand-in for torch's device module, as there may be none."""

from __future__ import annotations

import ctypes
import os
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import tables
from harness.commands import refused
from mcr_dl.base.errors import BackendUnavailableError
from mcr_dl.libraries import registry
from mcr_dl.measure import devices as machine
from mcr_dl.tables import host as hosts
from mcr_dl.tables import table as files
from mcr_dl.tuning import cli as tune
from mcr_dl.tuning._journal import Progress

SHARING = ("NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE")


class Devices:
    """A number of devices that only track which one is current."""

    def __init__(self, number: int) -> None:
        self.number, self.taken, self.waits = number, -1, 0

    def device_count(self) -> int:
        return self.number

    def set_device(self, index: int) -> None:
        self.taken = index

    def synchronize(self) -> None:
        self.waits += 1


def _machine(monkeypatch: pytest.MonkeyPatch, devices: int, rank: int, ranks: int, nccl: tuple[int, ...]) -> Devices:
    """This process as a rank on a host with this number of devices."""
    fake = Devices(devices)
    monkeypatch.setattr(torch, "get_device_module", lambda _: fake)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "nccl", types.SimpleNamespace(version=lambda: nccl), raising=False)
    for name in SHARING:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}.items():
        monkeypatch.setenv(name, str(value))
    return fake


def _shared() -> dict[str, str]:
    return {name: os.environ[name] for name in SHARING if name in os.environ}


@pytest.mark.parametrize(
    ("devices", "rank", "ranks", "nccl", "taken", "shared"),
    [
        (4, 3, 4, (2, 30, 1), 3, {}),
        (2, 3, 4, (2, 30, 1), 1, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}),
        (1, 2, 4, (2, 28, 3), 0, {"NCCL_HOSTID": "mcr-rank-2"}),
        (1, 0, 1, (2, 28, 3), 0, {}),
    ],
)
def test_each_rank_takes_a_device(
    monkeypatch: pytest.MonkeyPatch,
    devices: int,
    rank: int,
    ranks: int,
    nccl: tuple[int, ...],
    taken: int,
    shared: dict[str, str],
) -> None:
    """By its number on its host; if ranks share a device, NCCL is told in the way of its version."""
    fake = _machine(monkeypatch, devices, rank, ranks, nccl)
    machine.take("cuda")
    assert fake.taken == taken
    assert _shared() == shared
    assert machine.ranks_per_device("cuda") == -(-ranks // devices)


def test_the_environment_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's settings on sharing stay."""
    _machine(monkeypatch, 1, 1, 2, (2, 28, 3))
    monkeypatch.setenv("NCCL_HOSTID", "mine")
    machine.take("cuda")
    assert _shared() == {"NCCL_HOSTID": "mine"}


def test_the_host_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is selected or waited for on the CPU."""
    fake = _machine(monkeypatch, 1, 1, 2, (2, 28, 3))
    machine.take("cpu")
    assert (fake.taken, _shared()) == (-1, {})
    assert machine.synchronize("cpu") is None
    assert (machine.count("cpu"), machine.ranks_per_device("cpu")) == (0, 1)
    wait = machine.synchronize("cuda")
    assert wait is not None
    wait()
    assert fake.waits == 1


def test_which_backends_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device its own library and staged host libraries; on the CPU no library that rejects host memory."""
    usable = {"nccl": True, "mpi": False, "shm": True, "gloo": True, "null": True, "fake": True}

    def load(name: str) -> str:
        if not usable[name]:
            raise BackendUnavailableError(f"backend '{name}' is unavailable")
        return name

    monkeypatch.setattr(registry, "known_names", lambda: list(usable))
    monkeypatch.setattr(registry, "load", load)
    monkeypatch.setattr(registry._C, "backend_status", lambda: {name: name for name in usable})
    assert machine.usable_backends("cuda") == ["nccl", "shm", "gloo"]
    assert machine.usable_backends("cpu") == ["shm", "gloo"]
    assert tune._backends_for(("all",), "cuda") == ["nccl", "shm", "gloo"]
    assert tune._backends_for(("gloo",), "cpu") == ["gloo"]
    with pytest.raises(Exception, match="--backends: backend 'mpi' is unavailable"):
        tune._backends_for(("gloo", "mpi"), "cuda")


def test_tune_without_a_device(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear error, and nothing is started."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no CUDA device" in refused(tune.main, ["--device", "cuda", "--quick"], capsys)


def test_tune_of_codecs_is_for_the_cpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Codecs work on host memory."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    error = refused(tune.main, ["--device", "cuda", "--codecs", "bf16"], capsys)
    assert "--codecs: expected --device cpu, got cuda" in error


class Nvml:
    """NVIDIA's management library with the functions used here and two devices."""

    NAMES = (b"NVIDIA Z", b"NVIDIA A")

    def __init__(self, works: bool = True) -> None:
        self.works, self.ended = works, False

    def nvmlInit_v2(self) -> int:
        return 0 if self.works else 9

    def nvmlDeviceGetCount_v2(self, number: Any) -> int:
        number._obj.value = len(self.NAMES)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, device: Any) -> int:
        device._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetName(self, device: ctypes.c_void_p, name: Any, length: ctypes.c_uint) -> int:
        assert device.value is not None
        assert len(name) == length.value
        name.value = self.NAMES[device.value - 1]
        return 0

    def nvmlShutdown(self) -> int:
        self.ended = True
        return 0


def test_accelerators_without_the_drivers_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's library gives the same list; a driver that does not start, or none, has no devices."""
    monkeypatch.setattr(hosts, "_NVIDIA", tmp_path)
    nvml = Nvml()
    monkeypatch.setattr(hosts.ctypes, "CDLL", lambda _: nvml)
    assert hosts._accelerators() == ("NVIDIA A", "NVIDIA Z")
    assert nvml.ended
    monkeypatch.setattr(hosts.ctypes, "CDLL", lambda _: Nvml(works=False))
    assert hosts._accelerators() == ()

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(hosts.ctypes, "CDLL", missing)
    assert hosts._accelerators() == ()


def test_scales_of_other_backends_join(tmp_path: Path) -> None:
    """Each run names the backends of its own; another version of one begins a new table."""
    path = tmp_path / "table.json"
    running = hosts.software({"gloo": "ok: 1", "nccl": "ok: 2"})
    files.write(tables.make(tables.scale(device="cuda"), host=hosts.host(), software=running), path)
    for version, devices in (("1", ["cpu", "cuda"]), ("9", ["cpu"])):
        progress = Progress(facts={"libraries": {"gloo": f"ok: {version}"}})
        joined = tune._table_with(path, tables.scale(ranks=4), progress, {"quick": False})
        assert sorted(each.device for each in joined.scales) == devices
        assert ("nccl" in joined.software.backends) == (len(devices) == 2)


def test_the_table_remembers_how_many_devices(tmp_path: Path) -> None:
    """Ranks that share a device are slow together: the settings record the number, and a CPU run keeps it."""
    path = tmp_path / "table.json"
    known = tables.make(
        tables.scale(device="cuda"), host=hosts.host(), software=hosts.software({}), settings={"devices": 1}
    )
    files.write(known, path)
    joined = tune._table_with(path, tables.scale(ranks=4), Progress(), {"quick": False})
    assert joined.settings == {"devices": 1, "quick": False}
    assert sorted(each.device for each in joined.scales) == ["cpu", "cuda"]
