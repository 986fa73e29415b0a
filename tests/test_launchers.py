# SPDX-License-Identifier: Apache-2.0
"""One script under every launcher: torchrun, both mpiexecs, a Slurm environment, and no launcher."""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import jobs
import mcr_dl
from harness import launchers, old_mpich
from mcr_dl.base import launcher
from mcr_dl.measure.ranks import environments, free_port

SCRIPT = str(launchers.TESTS / "programs" / "everywhere.py")


def slurm(size: int, program: list[str], job: int = 0, step: int = -1) -> list[tuple[list[str], dict[str, str]]]:
    """The variables that srun sets without a PMI plugin for this MPI; by default those of a step with a free port."""
    port = free_port()
    while port < 15000 or port >= 60000:
        port = free_port()
    common = {"SLURM_STEP_NUM_TASKS": str(size), "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": str(job)}
    common |= {"SLURM_STEP_TASKS_PER_NODE": str(size), "SLURM_NODEID": "0"}
    common["SLURM_STEP_ID"] = str(port - 15000 if step < 0 else step)
    return [(program, {**common, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}) for rank in range(size)]


def commands(launcher: str, size: int, arguments: list[str]) -> list[tuple[list[str], dict[str, str]]]:
    """The launcher's commands for ``python arguments...`` on ``size`` ranks."""
    program = [sys.executable, *arguments]
    if launcher == "torchrun":
        return [([*launchers.TORCHRUN, str(size), *arguments], {})]
    if launcher == "none":
        return [(program, {})]
    if launcher == "srun":
        return slurm(size, program)
    command, variables = launchers.mpiexec(launcher, size)
    return [([*command, *program], variables)]


CASES = {  # ranks, the runtime's name for the launcher, MPI library
    "torchrun": (2, "torchrun", "MPICH"),
    "mpiexec-mpich": (2, "mpiexec (MPICH)", "MPICH"),
    "mpiexec-openmpi": (2, "mpiexec (Open MPI)", "Open MPI"),
    "srun": (2, "srun", "MPICH"),
    "none": (1, "none", "MPICH"),
}


@pytest.mark.parametrize("launcher", CASES)
def test_same_script(launcher: str) -> None:
    """init(["mpi", "gloo"]) finds its ranks, its store and its MPI library from the launcher's variables."""
    size, name, library = CASES[launcher]
    codes, text = launchers.together(commands(launcher, size, [SCRIPT]))
    assert set(codes) == {0}, text
    for rank in range(size):
        assert f"rank {rank} of {size} under {name} with {library}" in text, text
    assert text.count(": done") == size


@pytest.mark.parametrize(
    "outer",
    [
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"},
        {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "99"},
    ],
    ids=["Open MPI", "MPICH"],
)
def test_torchrun_inside_another_launcher(outer: dict[str, str]) -> None:
    """Its ranks inherit variables of a launcher that knows none of them: MPI starts without a launcher."""
    codes, text = launchers.together([(command, outer) for command, _ in commands("torchrun", 2, [SCRIPT])])
    assert set(codes) == {0}, text
    for rank in range(2):
        assert f"rank {rank} of 2 under torchrun with MPICH" in text, text


def test_mpich_under_a_launcher_that_speaks_pmix() -> None:
    """As under `srun --mpi=pmix`: PyPI's MPICH does not speak it, so MPI starts without a launcher."""
    served = {"PMIX_NAMESPACE": "slurm.pmix.7.0", "MCR_DL_MPI_LIB": "mpich"}
    found = [
        (command, {**variables, **served, "PMIX_RANK": variables["SLURM_PROCID"]})
        for command, variables in commands("srun", 2, [SCRIPT])
    ]
    codes, text = launchers.together(found)
    assert set(codes) == {0}, text
    for rank in range(2):
        assert f"rank {rank} of 2 under srun with MPICH" in text, text


_STEP = """
import os, torch, mcr_dl
mcr_dl.init_process_group("gloo", timeout=40)
x = torch.tensor([10.0 ** int(os.environ["SLURM_STEP_ID"])])
mcr_dl.all_reduce(x)
print(f"sum {int(x)};", flush=True)
mcr_dl.destroy_process_group()
"""


def test_two_steps_of_a_slurm_job_at_once() -> None:
    """The ranks of each step meet each other alone."""
    job = free_port() % 20000
    program = [sys.executable, "-c", _STEP]
    codes, text = launchers.together([*slurm(2, program, job, 1), *slurm(2, program, job, 2)])
    assert set(codes) == {0}, text
    assert [text.count(f"sum {number};") for number in (20, 200)] == [2, 2], text


@pytest.mark.parametrize(
    ("variables", "port"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}, 15000 + 7 * 131 + 2),
        ({"SLURM_JOB_ID": "7", "SLURM_STEPID": "3"}, 15000 + 7 * 131 + 3),
        ({"SLURM_JOB_ID": "4000000"}, 15000 + 4000000 * 131 % 45000),
        ({}, 15000),
    ],
)
def test_where_a_slurm_step_meets(variables: dict[str, str], port: int) -> None:
    """On its first host, at a port for job and step."""
    assert launcher.slurm_address({"SLURM_STEP_NODELIST": "gpu[03-07]", **variables}) == ("gpu03", port)


def test_another_default_device_and_type() -> None:
    """The ranks that meet over MPI do so whatever the program's default device is."""
    codes, text = launchers.together(commands("mpiexec-mpich", 2, [str(jobs.PROGRAMS / "defaults.py"), "mpi,gloo"]))
    assert set(codes) == {0}, text
    assert text.count("DONE") == 2


_TORCH = """
import sys, torch, torch.distributed as dist
for backend in sys.argv[1:]:
    dist.init_process_group(backend)
    x = torch.ones(1)
    dist.all_reduce(x)
    print(f"{backend}: rank {dist.get_rank()} of {int(x)};", flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("named", [False, True], ids=["found", "MASTER_ADDR"])
@pytest.mark.parametrize("launcher", [launcher for launcher in CASES if launcher != "none"])
def test_torch_alone(launcher: str, named: bool, tmp_path: Path) -> None:
    """torch.distributed's own init_process_group finds its ranks, repeatedly, and on torch's own backends too."""
    program = tmp_path / "program.py"
    program.write_text(_TORCH)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if named else {}
    started = commands(launcher, 2, [str(program), "mcr", "gloo", "mcr"])
    codes, text = launchers.together([(command, {**variables, **place}) for command, variables in started])
    assert set(codes) == {0}, text
    for rank in range(2):
        assert [text.count(f"{backend}: rank {rank} of 2;") for backend in ("mcr", "gloo")] == [2, 1], text


_FEWER = """
import torch, torch.distributed as dist
try:
    dist.init_process_group("gloo", world_size=2)
except ValueError as error:
    print(f"{error};", flush=True)
else:
    x = torch.ones(1)
    dist.all_reduce(x)
    print(f"rank {dist.get_rank()} of {int(x)};", flush=True)
    dist.destroy_process_group()
"""


def test_torch_alone_on_some_ranks() -> None:
    """The program's world_size replaces the launcher's, as in torch."""
    codes, text = launchers.together(commands("srun", 3, ["-c", _FEWER]))
    assert set(codes) == {0}, text
    assert all(f"{line};" in text for line in ("rank 0 of 2", "rank 1 of 2", "rank: expected 0 to 1, got 2")), text


@pytest.mark.parametrize("variables", [{}, {"RANK": "0"}, {"WORLD_SIZE": "1"}])
def test_torch_without_a_launcher(variables: dict[str, str]) -> None:
    """The error is torch's, as without this package."""
    codes, text = launchers.together([([sys.executable, "-c", _TORCH, "mcr"], variables)])
    assert codes == [1]
    assert "environment variable" in text, text


_MEETS = """
import sys, torch, torch.distributed, mcr_dl
from datetime import timedelta
kind, rank, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def handler(url, **options):
    yield torch.distributed.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=60)), rank, 2
torch.distributed.register_rendezvous_handler("own", handler)
forms = {
    "query": {"init_method": f"tcp://127.0.0.1:{port}?rank={rank}&world_size=2"},
    "handler": {"init_method": "own://place"},
    "rank": {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank},
    "size": {"init_method": f"tcp://127.0.0.1:{port}", "world_size": 2},
}
mcr_dl.init_process_group("gloo", **forms[kind], _ranks=[])
x = torch.ones(1)
mcr_dl.all_reduce(x)
print(f"rank {mcr_dl.get_rank()} of {int(x)};", flush=True)
mcr_dl.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("kind", "variables"),
    [("query", ()), ("handler", ()), ("rank", ("WORLD_SIZE", "RANK")), ("size", ("WORLD_SIZE", "RANK"))],
)
def test_rank_from_the_meeting_point(kind: str, variables: tuple[str, ...]) -> None:
    """Rank and size may come from the URL or a handler of the program's, and one of them from the environment."""
    port = str(free_port())
    values = [{"WORLD_SIZE": "2", "RANK": str(rank)} for rank in range(2)]
    started = [
        ([sys.executable, "-c", _MEETS, kind, str(rank), port], {name: values[rank][name] for name in variables})
        for rank in range(2)
    ]
    codes, text = launchers.together(started)
    assert set(codes) == {0}, text
    assert [text.count(f"rank {rank} of 2;") for rank in range(2)] == [1, 1], text


def test_a_rank_without_a_size() -> None:
    """Without a launcher's variables, one of the two is not enough."""
    program = "import mcr_dl; mcr_dl.init_process_group('gloo', rank=0)"
    codes, text = launchers.together([([sys.executable, "-c", program], {})])
    assert codes == [1]
    assert "rank and world_size: expected both or none, got rank=0, world_size=-1" in text, text


@pytest.mark.parametrize("launcher", CASES)
def test_info(launcher: str) -> None:
    """``mcr-info`` prints versions, launcher, library, backends and what they support."""
    size, name, library = CASES[launcher]
    codes, text = launchers.together(commands(launcher, size, ["-m", "mcr_dl.info", "--support"]))
    assert set(codes) == {0}, text
    flat = " ".join(text.split())
    for word in (mcr_dl.__version__, f"{name}, rank 0 of {size}", library, "gloo", "null", "native", "all_reduce"):
        assert word in flat, f"{word!r} is not in\n{text}"
    assert text.count("Support: mpi") == 1


def test_info_on_two_hosts() -> None:
    """A backend of one host starts only where it connects all ranks. If the libraries differ, the report says so."""
    program = [sys.executable, str(jobs.PROGRAMS / "hosts.py"), "0,1", "info", "--support"]
    codes, text = launchers.together([(program, each) for each in environments(2, {}).values()])
    assert codes == [0, 0], text
    assert [text.count(f"Support: {name}") for name in ("gloo", "shm")] == [1, 0], text
    ranks = environments(2, {})
    ranks[1]["MCR_DL_MPI_LIB"] = str(launchers.openmpi_library())
    codes, text = launchers.together([(program, {**each, "COLUMNS": "300"}) for each in ranks.values()])
    assert codes == [0, 0], text
    assert "backend 'mpi': expected the same library on all ranks, got ok: MPICH" in text, text


def test_open_mpi_under_mpichs_mpiexec() -> None:
    """A library that the launcher cannot start raises instead of running as several jobs of one rank."""
    command, _ = launchers.mpiexec("mpiexec-mpich", 2)
    variables = {"MCR_DL_MPI_LIB": str(launchers.openmpi_library())}
    codes, text = launchers.together([([*command, sys.executable, SCRIPT], variables)])
    assert codes != [0]
    assert "started by MPICH's mpiexec" in " ".join(text.split()), text
    assert ": done" not in text


@pytest.mark.parametrize("size", [2, 3])
def test_a_library_without_mpi_4(size: int, tmp_path: Path) -> None:
    """A libmpi of MPICH's ABI without 64-bit counts (MPICH 3, Cray MPICH 8) gets the module that uses none."""
    program = (
        "import mcr_dl, torch; mcr_dl.init_process_group('mpi'); x = torch.ones(2, dtype=torch.bfloat16)\n"
        "mcr_dl.all_reduce(x); y = torch.empty(2 * mcr_dl.get_world_size(), dtype=x.dtype)\n"
        "mcr_dl.all_gather_into_tensor(y, x); maps = open('/proc/self/maps').read()\n"
        "print(int(y.sum()), *[name for name in ('mpi_mpich3.so', 'mpi_mpich.so') if name in maps])\n"
        "mcr_dl.destroy_process_group()"
    )
    library = {"MCR_DL_MPI_LIB": str(old_mpich.make(tmp_path))}
    ranks = [([sys.executable, "-c", program], {**each, **library}) for each in environments(size, {}).values()]
    codes, text = launchers.together(ranks)
    assert set(codes) == {0}, text
    assert text.count(f"{2 * size * size} mpi_mpich3.so\n") == size, text


@pytest.mark.parametrize("launcher", ["torchrun", "mpiexec-openmpi"])
def test_threads_that_block(launcher: str) -> None:
    """With MCR_DL_MPI_THREAD_LEVEL=multiple, threads may block in collectives of different groups in any order."""
    script = str(launchers.TESTS / "programs" / "threads.py")
    level = {"MCR_DL_MPI_THREAD_LEVEL": "multiple"}
    codes, text = launchers.together(
        [(command, {**extra, **level}) for command, extra in commands(launcher, 2, [script])]
    )
    assert set(codes) == {0}, text
    assert text.count("threads: done") == 2


_ON_CORES = """
import os, sys, torch
os.sched_setaffinity(0, [int(core) for core in sys.argv[1].split(",")])
import mcr_dl
mcr_dl.init_process_group("mpi")
x = torch.ones(1)
mcr_dl.all_reduce(x)
print(int(x), os.environ.get("MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM", "as it is"))
mcr_dl.destroy_process_group()
"""


@pytest.mark.parametrize(("places", "said"), [([0, 0], "mpir"), ([0, 1], "as it is")])
def test_ranks_and_their_cores(places: list[int], said: str) -> None:
    """MPICH is told to share cores if a host has more ranks than usable cores, whatever the machine has."""
    cores = sorted(os.sched_getaffinity(0))
    assert len(cores) > 1, "expected a machine with two cores"
    programs = [[sys.executable, "-c", _ON_CORES, str(cores[place])] for place in places]
    codes, text = launchers.together(list(zip(programs, environments(2, {}).values(), strict=True)))
    assert codes == [0, 0], text
    assert text.count(f"2 {said}") == 2, text


def test_a_host_whose_name_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of a job on this host alone needs no name."""
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    address, store = launcher.listen(1, timedelta(seconds=20))
    assert address.startswith("127.0.0.1:")
    store.set("key", "value")
    assert store.get("key") == b"value"


def test_crowded() -> None:
    """Hosts are judged one by one; ranks with the same usable cores share them."""
    assert launcher.crowded(["a", "b", "a", "c", "c"], ["3", "1", "3", "1", "1"]) == [False, False, False, True, True]
    assert launcher.crowded(["a"] * 3, ["1", "2", "3"]) == [True] * 3
    assert launcher.crowded(["a"] * 2, [f"{1 << 200:x}", "1"]) == [False] * 2


def test_a_rank_that_fails_ends_the_job() -> None:
    """After an exception on one rank the process exits at once, so that the launcher can end the others."""
    program = (
        "import mcr_dl, torch; mcr_dl.init(['mpi', 'gloo'])\n"
        "if mcr_dl.get_rank() == 1: raise RuntimeError('on purpose')\n"
        "mcr_dl.all_reduce(torch.ones(1))"
    )
    for name in ("torchrun", "mpiexec-mpich", "mpiexec-openmpi"):
        arguments = ["--no-python", sys.executable, "-c", program] if name == "torchrun" else ["-c", program]
        codes, text = launchers.together(commands(name, 2, arguments))
        assert codes != [0], name
        assert "on purpose" in text, (name, text)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, launcher.Launch("none", 0, 1, 0)),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, launcher.Launch("torchrun", 1, 4, 0)),
        ({"RANK": "1"}, launcher.Launch("none", 0, 1, 0)),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, launcher.Launch("mpiexec (MPICH)", 2, 3, -1)),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            launcher.Launch("mpiexec (Open MPI)", 0, 2, 0),
        ),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, launcher.Launch("srun", 5, 8, 1)),
        # A batch script, which is no rank.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, launcher.Launch("none", 0, 1, 0)),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"},
            launcher.Launch("torchrun", 0, 2, -1),
        ),
    ],
)
def test_detect(environment: dict[str, str], expected: launcher.Launch) -> None:
    """Rank and size come from the first launcher that sets both; a user's RANK precedes Slurm's."""
    assert launcher.detect(environment) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WORLD_SIZE": "4", "RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 2),
        ({"WORLD_SIZE": "4", "RANK": "1"}, 4),  # unknown: all
        ({"SLURM_NODEID": "0"}, 16),
        ({"SLURM_NODEID": "7"}, 16),
        ({"SLURM_NODEID": "8"}, 3),
        ({"SLURM_NODEID": "9"}, 2),
        ({"SLURM_NODEID": "10"}, 133),
        ({}, 133),
        # The tasks of the step are not the job's ranks.
        ({"SLURM_NODEID": "8", "RANK": "1", "WORLD_SIZE": "20"}, 20),
        ({"SLURM_NODEID": "8", "RANK": "1", "WORLD_SIZE": "133"}, 3),
    ],
)
def test_local_size(environment: dict[str, str], expected: int) -> None:
    """From the launcher's own variable, or Slurm's list of the step's nodes."""
    step = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "133", "SLURM_STEP_TASKS_PER_NODE": "16(x8),3,2"}
    given = environment if "WORLD_SIZE" in environment and "SLURM_NODEID" not in environment else step | environment
    assert launcher.local_size(given) == expected


@pytest.mark.parametrize("tasks", ["", "two", "2(x)", "2(x3"])
def test_wrong_tasks_per_node(tasks: str) -> None:
    """The error names the variable."""
    step = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": tasks}
    with pytest.raises(
        mcr_dl.InvalidArgumentError, match=r"SLURM_STEP_TASKS_PER_NODE: expected numbers as in 16\(x8\),3"
    ):
        launcher.local_size(step)


@pytest.mark.parametrize(
    ("variables", "rank", "expected"),
    [
        ({}, -1, "0"),
        ({}, 0, "0"),
        ({}, 1, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, -1, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, -1, "0"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, -1, "1"),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, -1, "1"),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, -1, None),
    ],
)
def test_local_rank_for_programs(
    variables: dict[str, str], rank: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOCAL_RANK is set where the local rank is known before the start."""
    for name in {name for row in launcher._VARIABLES for name in row[1:]}:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", variables.get("LOCAL_RANK", ""))  # for its removal at the end
    if "LOCAL_RANK" not in variables:
        del os.environ["LOCAL_RANK"]
    launcher.export_local_rank(rank)
    assert os.environ.get("LOCAL_RANK") == expected


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("gpu[03-07,09],login", "gpu03"),
        ("node7", "node7"),
        ("a1,b[2-3]", "a1"),
        ("rack[1,4]-x", "rack1-x"),
        ("n[1-2]x[0-3],m", "n1x0"),
    ],
)
def test_first_host(nodelist: str, host: str) -> None:
    """The first name of Slurm's compressed list."""
    assert launcher.first_host(nodelist) == host
