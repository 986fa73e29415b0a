# SPDX-License-Identifier: Apache-2.0
"""Writes the files that are made from tables: ``_C.pyi``, ``docs/support-matrix.md`` and ``docs/environment.md``.

Run as ``python mcr/mcr_dl_build/generate.py DIR`` (``make generate``); ``make lint`` compares them with the committed
ones.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from generated_pages import environment, support_matrix
from mcr_dl import _C
from mcr_dl.base import variables
from mcr_dl.base.signature import docstring_of, root_names
from mcr_dl.groups import default_group
from mcr_dl.libraries import registry

_TYPES = {
    "tensor": "ArrayLike",
    "input": "ArrayLike",
    "output": "ArrayLike",
    "inputs": "Sequence[ArrayLike] | ArrayLike",
    "outputs": "Sequence[ArrayLike] | ArrayLike",
    "op": "ReduceOp | ReduceOp.RedOpType",
    "group": "ProcessGroup | Group | None",
    "async_op": "bool",
    "src": "int",
    "group_src": "int",
    "tag": "int",
    "input_split_sizes": "Sequence[int]",
    "output_split_sizes": "Sequence[int]",
    "scounts": "Sequence[int]",
    "rcounts": "Sequence[int]",
    "sdispls": "Sequence[int]",
    "rdispls": "Sequence[int]",
    "timeout": "timedelta | float",
    "backend": "str",
    "size_hint": "int",
    "codec": "str",
    "priority": "int",
    "key": "str",
    "device_ids": "Any",
}
# Parameters that only the root needs, by operation.
_OPTIONAL = {"gatherv": ("output", "rcounts"), "scatterv": ("input", "scounts")}

_HEADER = '''\
# Generated from the op table by `make generate`. Do not edit.
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias, overload

import torch
from torch.distributed import ProcessGroup, ReduceOp

__version__: str
ArrayLike: TypeAlias = torch.Tensor | Any
"""A tensor, a NumPy array, or anything with DLPack."""

class Operation:
    """A public operation as a callable."""

    __name__: str
    __signature__: Any
    def _check(self, *args: Any, **kwargs: Any) -> None: ...

'''

_FUNCTIONS = (
    "def ops() -> list[dict[str, Any]]:",
    "def signatures() -> list[dict[str, Any]]:",
    "def dtypes() -> list[str]:",
    "def reductions() -> list[str]:",
    "def reduction_defined(dtype: str, red: str) -> bool:",
    "def set_exceptions(classes: dict[str, type[Exception]]) -> None:",
    "def set_world(group: Group | None) -> None:",
    "def world() -> Group | None:",
    "def group_of(handle: object) -> Group | None:",
    "def handle_of(group: Group) -> Any:",
    "def remember_handle(handle: ProcessGroup, group: Group) -> None:",
    "def name_backend(name: str | None) -> str | None:",
    "def set_coalescing(works: list[Work] | None, group: Group | None) -> None:",
    "def add_striped(first: str, second: str) -> None:",
    "def add_over_dimensions(algorithm: str, parts: list[str], moves_data: bool) -> None:",
    "def themis_plan(network: list[tuple[str, int, int, int, int]], op: str, nbytes: int, baseline: bool) "
    "-> ThemisPlan | None:",
    "def themis_limits() -> dict[str, int]:",
    "def themis_chunk_counts() -> list[int]:",
    "def members_of_lines(lines: list[list[int]], rank: int) -> list[list[int]]:",
    "def load_backend(name: str, path: str, library: str = ...) -> None:",
    "def begin_batch() -> None:",
    "def end_batch() -> None:",
    "def leave() -> None:",
    "def prefer_high_priority(high: bool) -> None:",
    "def missing_backend(name: str, reason: str) -> None:",
    "def backend_status() -> dict[str, str]:",
    "def drain(names: list[str], limit: timedelta) -> bool:",
    "def drain_groups(labels: list[str], limit: timedelta) -> bool:",
    "def end_works(labels: list[str]) -> None:",
    "def drain_futures(limit: timedelta) -> bool:",
    "def shutdown() -> None:",
    "def operations() -> list[str]:",
    "def register_codec(name: str, options: list[str], make: Callable[..., Any]) -> None:",
    "def codecs() -> list[str]:",
    "def codec(text: str) -> dict[str, Any]:",
    "def encode(tensor: torch.Tensor, codec: str) -> torch.Tensor:",
    "def decode(encoded: torch.Tensor, like: torch.Tensor, codec: str) -> torch.Tensor:",
    "def split_names(names: str) -> list[str]:",
    "def canonical(name: str) -> str:",
    "def dtype_class(dtype: str) -> str:",
    "def set_passes(group: Group, passes: list[Pass]) -> None:",
    "def passes(group: Group) -> list[Pass]:",
    "def newest_collective(group: Group) -> tuple[int, str]:",
    "def log_records(number: int) -> list[tuple[Any, ...]]:",
    "def log_groups() -> list[tuple[str, int, int, list[int]]]:",
    "def log_group_index(group: Group) -> int | None:",
    "def log_resize(capacity: int) -> None:",
    "def log_capacity() -> int:",
    "def log_made() -> int:",
    "def log_lost() -> int:",
    "def log_now() -> int:",
    "def log_callers(wanted: bool) -> None:",
    "def timeout(value: timedelta | float, name: str = ...) -> timedelta:",
    "def positions(since: dict[int, int] = ..., most: int = ...) -> list[dict[str, Any]]:",
    "def take_messages() -> list[tuple[int, list[tuple[Any, ...]], bool]]:",
    "def activities() -> list[dict[str, Any]]:",
    "def pending(most: int = ..., lost: bool = ...) -> list[tuple[Work, dict[str, Any]]]:",
    "def overdue(grace: float) -> list[tuple[Work, dict[str, Any]]]:",
    "def expire(work: Work, text: str, lost: bool = ...) -> bool:",
    "def give_up_streams(group: Group) -> None:",
    "def lose(rank: int, text: str) -> None:",
    "def regain(rank: int) -> None:",
    "def lost(label: str) -> str | None:",
    "def stop_desync(text: str) -> None:",
    "def stop_forked(text: str) -> None:",
    "def clear_stop() -> None:",
    "def take_desync() -> str:",
    "def fail_at_exit(code: int) -> None:",
    "def give_up(group: Group) -> None:",
    "def keep_forever(group: Group) -> None:",
    "def set_detail(detail: bool) -> None:",
    "def set_explainer(function: Callable[[str, str, int, int, int], str]) -> None:",
    "def watch_interrupts() -> None:",
    "def latest_interrupt() -> tuple[float, int] | None:",
    "def next_trials(seconds: float) -> TrialReport | None:",
    "def wake_trials() -> None:",
    "def _shared_bytes(bytes: int) -> torch.Tensor:",
    "def _free_memory(swaps: bool) -> int:",
    "def cheapest(curves: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:",
    "def cost_at(curve: list[tuple[int, int]], nbytes: int) -> int:",
    "def time_task(kind: str, count: int, dtype: str, codec: str = ..., rounds: int = ..., between: int = ...) "
    "-> list[int]:",
    "def simulate(model: CostModel, jobs: list[Job], groups: list[list[int]], together: bool = ..., "
    "hosts: list[int] = ..., order: str = ..., in_order: bool = ...) -> dict[str, Any]:",
)

# module.cc binds the classes by hand; test_api.py compares their members with these.
_CLASSES: dict[str, tuple[str, ...]] = {
    "Work": (
        "def wait(self, timeout: timedelta | float | None = None) -> bool:",
        "def is_completed(self) -> bool:",
        "def is_success(self) -> bool:",
        "def exception(self) -> BaseException | None:",
        "def synchronize(self) -> None:",
        "def source_rank(self) -> int:",
        "def result(self) -> list[torch.Tensor]:",
        "def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:",
        "def _stream(self) -> tuple[int, int] | None:",
        "def _on_done(self, callback: Callable[[], None], future: torch.futures.Future[Any] = ..., /) -> None:",
    ),
    "Group": (
        "def __init__(self, name: str, ranks: list[int], rank: int, timeout: timedelta, device: int = ...) -> None:",
        "def rank(self) -> int:",
        "def size(self) -> int:",
        "def name(self) -> str:",
        "@property def group_name(self) -> str:",
        "@property def ranks(self) -> list[int]:",
        "@property def backends(self) -> list[str]:",
        "@property def candidates(self) -> list[str]:",
        "@property def timeout(self) -> timedelta:",
        "def _derive(self) -> None:",
        "@property def _closed(self) -> bool:",
        "@property def _label(self) -> str:",
        "@property def _any_form(self) -> bool:",
        "def _set_any_form(self, any_form: bool) -> None:",
        "def _connect(self, backend: str, path: str, existing: Any, store: Any = ...) -> None:",
        "def _streams(self, backend: str) -> str | None:",
        "def _has(self, candidate: str) -> bool:",
        "def _connect_striped(self, first: str, second: str) -> None:",
        "def _connect_hierarchy(self, backend: str, lines: list[list[int]], "
        "parts: list[tuple[Group | None, str]]) -> None:",
        "def _connect_themis(self, backend: str, network: list[tuple[str, int, int, int, int]], ranks: list[int], "
        "exchanges: list[bool], parts: list[tuple[Group, str]]) -> None:",
        "def _set_stage(self, late: Group) -> None:",
        "def _has_stage(self) -> bool:",
        "def _late_issues(self) -> dict[str, dict[str, float]]:",
        "def _stage(self, chunk: int) -> None:",
        "def _disconnect(self, name: str) -> None:",
        "def _close(self) -> None:",
        "def _support(self, backend: str, op: str, dtype: str, red: str, vectored: bool, device: str = ...) -> str:",
        "def _group_rank(self, global_rank: int) -> int:",
        "def _cost_model(self, device: str = ...) -> CostModel:",
        "def _tune(self, costs: list[Any], exact: bool, rules: list[tuple[str, int, int, str]], tried: list[Any], "
        "excluded: list[tuple[str, bool, str, str]]) -> None:",
        "def _explain(self, operation: str, nbytes: int, dtype: str, red: str, device: str, "
        "async_op: bool = ...) -> dict[str, Any]:",
        "def _refine(self, period: int) -> None:",
        "def _refinement(self) -> tuple[int, int, list[int]]:",
        "def _adopt(self, costs: list[int]) -> list[tuple[str, int, str, str]]:",
        "def _try_candidates(self) -> None:",
        "def _trial_results(self) -> list[tuple[str, bool, str, int, list[tuple[str, int]]]]:",
    ),
    "PassedCall": (
        "@property def op(self) -> str:",
        "@property def group(self) -> ProcessGroup:",
        "@property def backend(self) -> str | None:",
        "@property def dtype(self) -> torch.dtype:",
        "@property def reduction(self) -> str | None:",
        "@property def root(self) -> int | None:",
        "@property def tag(self) -> int:",
        "@property def async_op(self) -> bool:",
        "@property def vectored(self) -> bool:",
        "@property def input(self) -> torch.Tensor | None:",
        "@property def output(self) -> torch.Tensor | None:",
        "@property def input_counts(self) -> list[int]:",
        "@property def output_counts(self) -> list[int]:",
        "@property def nbytes(self) -> int:",
        "def proceed(self, input: ArrayLike | None = None, output: ArrayLike | None = None, "
        "backend: str | None = None) -> Any:",
        "def done(self) -> Work | None:",
        "def hold(self) -> Work:",
        "def after(self, step: Callable[[], object]) -> None:",
    ),
    "Options": (
        "def __init__(self, backends: str | list[str] = ..., uniform: bool | None = ...) -> None:",
        "@property def backends(self) -> list[str]:",
        "@property def uniform(self) -> bool | None:",
    ),
    "TorchBackend": (
        "def __init__(self, group: Group, backends: list[str]) -> None:",
        "@property def group(self) -> Group:",
        "@property def options(self) -> Options:",
        "def perform_nocolor_split(self, device: Any) -> None:",
        "def get_error(self) -> Any:",
        "def _set_default_timeout(self, timeout: timedelta) -> None:",
    ),
    "Pass": (
        "@property def name(self) -> str:",
        "def _synchronize(self, limit: timedelta) -> bool:",
        "@property def _broken(self) -> bool:",
    ),
    "PythonPass(Pass)": ("def __init__(self, handler: Any, name: str, group: Group) -> None:",),
    "LogPass(Pass)": ("def __init__(self, group: Group, ops: list[str] | None) -> None:",),
    "FusePass(Pass)": (
        "def __init__(self, shadow: Group, limits: dict[str, tuple[int, int, int]]) -> None:",
        "def statistics(self) -> dict[str, int]:",
    ),
    "PlanControl": (
        "def __init__(self, handler: Callable[[str, int], None]) -> None:",
        "def watch(self) -> None:",
        "def mark(self) -> None:",
        "def demand(self, calls: int, repetitions: int) -> None:",
        "def newest(self, count: int) -> list[tuple[str, int, str, bool]]:",
        "def digests(self) -> dict[int, int]:",
        "def trace(self) -> None:",
        "def traced(self) -> list[tuple[int, int, str, int, int, str, int, int]]:",
        "def set_plan(self, groups: dict[str, list[tuple[int, int, str, list[str], list[int]]]], "
        "order: list[tuple[int, int, int]], calls: int) -> None:",
        "def flush(self, limit: timedelta) -> bool:",
        "def statistics(self) -> dict[str, int]:",
    ),
    "SchedulePass(Pass)": (
        "def __init__(self, control: PlanControl, group: Group, lanes: list[Group], all_ranks: bool) -> None:",
    ),
    "CompressPass(Pass)": (
        "def __init__(self, group: Group, codec: str, ops: list[str], smallest: int, "
        "measured: list[tuple[str, str, list[tuple[int, str]]]]) -> None:",
        "@property def automatic(self) -> bool:",
        "def _standing(self, op: str, dtype: str, candidate: str, nbytes: int) -> str:",
        "def _reset_feedback(self) -> None:",
    ),
    "CandidateName": (
        "def __init__(self, text: str) -> None:",
        "@property def name(self) -> str:",
        "@property def backend(self) -> str:",
        "@property def parts(self) -> list[str]:",
        "@property def algorithm(self) -> str:",
        "@property def hierarchical(self) -> bool:",
        "@property def variant(self) -> str:",
        "@property def codec(self) -> str:",
    ),
    "TrialReport": (
        "@property def group(self) -> str:",
        "@property def closed(self) -> bool:",
        "@property def key(self) -> str:",
        "@property def what(self) -> str:",
        "def times(self) -> list[list[int]]:",
        "@property def largest_counts(self) -> bool:",
        "def awaited(self) -> float:",
        "def agree(self, times: list[list[int]]) -> None:",
        "def abandon(self) -> None:",
        "def fail(self, text: str) -> None:",
    ),
    "Topology": (
        "def __init__(self, dimensions: list[tuple[str, int, int, int, str]], size: int, "
        "ranks: list[int] = ...) -> None:",
        "@staticmethod def of_hosts(hosts: list[int]) -> Topology:",
        "def of_members(self, members: list[int]) -> Topology:",
        "@property def dimensions(self) -> list[tuple[str, int, int, int, str]]:",
        "@property def ranks(self) -> list[int]:",
        "def index_of(self, name: str) -> int:",
        "def coordinates(self, rank: int) -> list[int]:",
        "def line(self, rank: int, dimension: int) -> list[int]:",
    ),
    "Schedule": (
        "@staticmethod def emulated(op: str, count: int, dtype: str, rank: int, size: int, "
        "root: int = ...) -> Schedule:",
        "@staticmethod def striped(op: str, count: int, dtype: str, share: int, size: int, "
        "root: int = ...) -> Schedule:",
        "@staticmethod def compressed(op: str, count: int, dtype: str, codec: str, rank: int, size: int, "
        "root: int = ...) -> Schedule:",
        "def tasks(self, ranks: int) -> list[tuple[str, str, int, int, list[int]]]:",
        "def issue(self, op: str, nbytes: int, after: list[int] = ..., part: int = ..., peer: int = ..., "
        "dtype: str = ...) -> int:",
        "def copy(self, count: int, dtype: str, after: list[int] = ...) -> int:",
        "def combine(self, count: int, dtype: str, after: list[int] = ...) -> int:",
        "def encode(self, count: int, dtype: str, encoded: int, after: list[int] = ...) -> int:",
        "def decode(self, count: int, dtype: str, encoded: int, after: list[int] = ...) -> int:",
    ),
    "CostModel": (
        "def add_resource(self, name: str, scope: str = ..., capacity: int = ..., slots: int = ..., "
        "credit: int = ...) -> int:",
        "def add_cost(self, kind: str, name: str = ..., op: str = ..., types: str = ..., alpha: int = ..., "
        "per_mib: int = ..., latency: int = ..., demands: list[tuple[int, int]] = ..., "
        "points: list[tuple[int, int]] = ...) -> None:",
        "def issue_cost(self, name: str, op: str, types: str, nbytes: int) -> tuple[int, list[str]] | None:",
    ),
    "ThemisPlan": (
        "def __init__(self, network: list[tuple[str, int, int, int, int]], op: str, nbytes: int, "
        "policies: list[str], chunks: list[int], in_flight: int = ...) -> None:",
        "@property def policy(self) -> str:",
        "@property def chunks(self) -> int:",
        "@property def orders(self) -> list[list[int]]:",
        "def steps(self) -> list[tuple[int, int, int, int, int, int]]:",
        "@property def work(self) -> list[int]:",
        "@property def makespan(self) -> int:",
    ),
    "Job": (
        "def __init__(self, schedule: Schedule | None, rank: int = ..., parts: list[tuple[str, int]] = ..., "
        "codec: str = ..., release: int = ..., after: list[int] = ..., waits: list[int] = ..., priority: int = ..., "
        "work: int = ..., demands: list[tuple[int, int]] = ...) -> None:",
    ),
    "ExecutionPlan": (
        "def __init__(self, options: list[int], levels: list[int] = ..., order: str = ..., "
        "sequence: list[tuple[int, int, int]] = ...) -> None:",
    ),
    "PlanGraph": (
        "def __init__(self, channels: list[int], nodes: list[tuple[str, list[tuple[int, int]], "
        "list[list[tuple[int, int, list[int]]]], bool]]) -> None:",
        "def play(self, plan: ExecutionPlan, iterations: int) -> list[list[list[tuple[int, int, int]]]]:",
        "def cost(self, plan: ExecutionPlan, unrolled: int = ...) -> int:",
        "def fastest(self) -> list[int]:",
        "def search(self, chains: int = ..., seed: int = ..., unrolled: int = ..., most: int = ..., budget: int = ..., "
        "levels: bool = ..., starts: list[ExecutionPlan] = ...) -> dict[str, Any]:",
        "def all(self, unrolled: int = ..., most: int = ...) -> dict[str, Any]:",
    ),
}


# Public classes: their members in the stub have the docstrings of the binding.
_DOCUMENTED = ("Work", "Options", "Pass", "PassedCall")


def _body(class_name: str, method: str) -> str:
    """The docstring of a member for the stub, without the signature that pybind11 puts first."""
    name = method.partition("def ")[2].partition("(")[0]
    if class_name not in _DOCUMENTED or name.startswith("_"):
        return "..."
    text = vars(getattr(_C, class_name))[name].__doc__ or ""
    text = text.partition("\n\n")[2] if text.startswith(f"{name}(") else text
    return f'\n        """{text.strip()}"""'


def _member(method: str) -> str:
    """A member with its decorator on a line of its own."""
    return method.replace("@property ", "@property\n    ").replace("@staticmethod ", "@staticmethod\n    ")


def _parameter(name: str, kind: str, default: str, optional: bool) -> str:
    annotation = _TYPES[kind]
    if (default == "None" or optional) and "None" not in annotation:
        annotation += " | None"
    value = {"": "", "SUM": " = ..."}.get(default, f" = {default}")
    return f"{name}: {annotation}{value}"


_ASYNC = "async_op: bool = False"


def _forms(params: list[str], keywords: list[str], done: str) -> list[tuple[list[str], list[str], str]]:
    """The parameters and the result for each way to give ``async_op``, from those of all ways; ``done`` has no Work."""

    def given(values: list[str], text: str) -> list[str]:
        return [text if each == _ASYNC else each for each in values]

    blocking, asynchronous = "async_op: Literal[False] = False", "async_op: Literal[True]"
    before = params[: params.index(_ASYNC)] if _ASYNC in params else params
    later = [each for each in [*params[len(before) :], *keywords] if each != _ASYNC]
    forms = [
        (given(params, blocking), given(keywords, blocking), done),
        (before, [asynchronous, *later], "Work"),
    ]
    if _ASYNC in params:  # by its position, with all that come before it
        required = [each.partition(" = ")[0] for each in before]
        forms.append(([*required, asynchronous, *params[len(before) + 1 :]], keywords, "Work"))
    return [*forms, (params, keywords, f"Work | {done}")]


def _operation(row: dict[str, Any]) -> str:
    optional, name = _OPTIONAL.get(row["name"], ()), row["name"]
    done = "int" if name == "recv" else "None"
    forms = []
    roots = root_names(row)
    for root in roots or [""]:  # each name of the root's parameter has overloads of its own

        def spelt(name: str, root: str = root) -> str:
            return root if roots and name == roots[0] else name

        params = [
            _parameter(spelt(each), kind, default, each in optional)
            for each, kind, default, only in row["params"]
            if not only
        ]
        keywords = [_parameter(each, kind, default, False) for each, kind, default, only in row["params"] if only]
        forms += [(params, keywords, "Work")] if row["starts"] else _forms(params, keywords, done)
    # MCR-DL's Listing 1 puts the backend first.
    listing = [("async_op: Literal[True], ", "Work"), ("", f"Work | {done}")]
    summary = inspect.cleandoc(docstring_of(row)).replace("\n", "\n    ").replace("\n    \n", "\n\n")
    lines = []
    for index, (positional, only, result) in enumerate(forms):
        body = f'\n    """{summary}\n    """' if index == 0 else " ..."
        lines.append(f"@overload\ndef {name}({', '.join([*positional, '*', *only])}) -> {result}:{body}\n")
    for given, result in [("", "Work")] if row["starts"] else listing:
        lines.append(f"@overload\ndef {name}(backend: str, /, *args: Any, {given}**kwargs: Any) -> {result}: ...\n")
    return "".join(lines)


def _all() -> str:
    """``__all__`` spelled out: type checkers follow star imports through it."""
    return "__all__ = [" + ", ".join(f'"{row["name"]}"' for row in _C.signatures()) + "]\n"


def stub() -> str:
    """The text of ``_C.pyi``."""
    parts = [_HEADER, _all()]
    for name, methods in _CLASSES.items():
        lines = "".join(f"    {_member(method)} {_body(name, method)}\n" for method in methods).replace(" \n", "\n")
        text = f'    """{vars(getattr(_C, name))["__doc__"]}"""\n\n' if name in _DOCUMENTED else ""
        parts.append(f"class {name}:\n{text}{lines}\n")
    parts += [f"{function} ...\n" for function in _FUNCTIONS]
    parts += [_operation(row) for row in _C.signatures()]
    return "".join(parts)


def main(folder: str) -> None:
    """Write the files under ``folder``."""
    root = Path(folder)
    default_group.init_process_group(registry.automatic("cpu"))
    texts = {
        "mcr/mcr_dl/_C.pyi": stub(),
        "docs/support-matrix.md": support_matrix(_C.world()),  # type: ignore[arg-type]
        variables.PAGE: environment(),
    }
    default_group.destroy_process_group()
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
