# Generated from the op table and mcr/mcr_dl_build/bound.pyi by `make generate`. Do not edit.
from collections.abc import Sequence
from typing import Literal, overload

from torch.distributed import ReduceOp

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from torch.distributed import ProcessGroup

__version__: str
ArrayLike: TypeAlias = torch.Tensor | Any
"""A tensor, a NumPy array, or anything with DLPack."""

class Operation:
    """A public operation as a callable."""

    __name__: str
    __signature__: Any
    def _check(self, *args: Any, **kwargs: Any) -> None: ...

class Work:
    """The handle of an asynchronous operation (torch.distributed.Work)."""

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Waits until the operation is complete and returns True. For an operation on a device's streams, the current stream waits instead of the host, and `timeout` has no effect. Raises the operation's error, or CollectiveTimeoutError after `timeout` (a timedelta or seconds; None, 0: the call's); the operation then goes on, and wait() may be called again. A `timeout` longer than the call's own extends that one, except for collectives on gloo, where the library ends them."""
    def is_completed(self) -> bool:
        """True once the operation has ended, also with an error."""
    def is_success(self) -> bool:
        """True once the operation is complete without an error."""
    def exception(self) -> BaseException | None:
        """The error of a failed operation, or None."""
    def synchronize(self) -> None:
        """As wait()."""
    def source_rank(self) -> int:
        """The group rank that a completed receive came from."""
    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result."""
    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A torch.futures.Future of the tensors that hold the result."""
    def _stream(self) -> tuple[int, int] | None: ...
    def _on_done(self, callback: Callable[[], None], future: torch.futures.Future[Any] = ..., /) -> None: ...

class Group:
    def __init__(self, name: str, ranks: list[int], rank: int, timeout: timedelta, device: int = ...) -> None: ...
    def rank(self) -> int: ...
    def size(self) -> int: ...
    def name(self) -> str: ...
    @property
    def group_name(self) -> str: ...
    @property
    def ranks(self) -> list[int]: ...
    @property
    def backends(self) -> list[str]: ...
    @property
    def candidates(self) -> list[str]: ...
    @property
    def timeout(self) -> timedelta: ...
    def _derive(self) -> None: ...
    @property
    def _closed(self) -> bool: ...
    @property
    def _label(self) -> str: ...
    @property
    def _any_form(self) -> bool: ...
    def _set_any_form(self, any_form: bool) -> None: ...
    def _connect(self, backend: str, path: str, existing: Any, store: Any = ...) -> None: ...
    def _streams(self, backend: str) -> str | None: ...
    def _has(self, candidate: str) -> bool: ...
    def _connect_striped(self, first: str, second: str) -> None: ...
    def _connect_hierarchy(
        self, backend: str, lines: list[list[int]], parts: list[tuple[Group | None, str]]
    ) -> None: ...
    def _connect_themis(
        self,
        backend: str,
        network: list[tuple[str, int, int, int, int]],
        ranks: list[int],
        exchanges: list[bool],
        parts: list[tuple[Group, str]],
    ) -> None: ...
    def _set_stage(self, late: Group) -> None: ...
    def _has_stage(self) -> bool: ...
    def _late_issues(self) -> dict[str, dict[str, float]]: ...
    def _stage(self, chunk: int) -> None: ...
    def _disconnect(self, name: str) -> None: ...
    def _close(self) -> None: ...
    def _support(self, backend: str, op: str, dtype: str, red: str, vectored: bool, device: str = ...) -> str: ...
    def _group_rank(self, global_rank: int) -> int: ...
    def _cost_model(self, device: str = ...) -> CostModel: ...
    def _tune(
        self,
        costs: list[Any],
        exact: bool,
        rules: list[tuple[str, int, int, str]],
        tried: list[Any],
        excluded: list[tuple[str, bool, str, str]],
    ) -> None: ...
    def _explain(
        self, operation: str, nbytes: int, dtype: str, red: str, device: str, async_op: bool = ...
    ) -> dict[str, Any]: ...
    def _refine(self, period: int) -> None: ...
    def _refinement(self) -> tuple[int, int, list[int]]: ...
    def _adopt(self, costs: list[int]) -> list[tuple[str, int, str, str]]: ...
    def _try_candidates(self) -> None: ...
    def _trial_results(self) -> list[tuple[str, bool, str, int, list[tuple[str, int]]]]: ...

class PassedCall:
    """A call as a pass sees it."""

    @property
    def op(self) -> str:
        """The operation's name without its form: all_gather for all_gather_into_tensor and all_gatherv, too."""
    @property
    def group(self) -> ProcessGroup:
        """The group, as torch's process group; a part from torch's ProcessGroup.split_group that the program has given to no function of mcr_dl is the core's group."""
    @property
    def backend(self) -> str | None:
        """The candidate that the caller named, or None."""
    @property
    def dtype(self) -> torch.dtype:
        """The element type."""
    @property
    def reduction(self) -> str | None:
        """The reduction's name, such as SUM; None if it has none."""
    @property
    def root(self) -> int | None:
        """Root or peer as a rank of the group, or None."""
    @property
    def tag(self) -> int:
        """The tag of a message; 0 for collectives."""
    @property
    def async_op(self) -> bool:
        """Whether the caller gets a Work."""
    @property
    def vectored(self) -> bool:
        """Whether it has counts per rank."""
    @property
    def input(self) -> torch.Tensor | None:
        """The data to send, in one dimension, on the call's memory; None if there is none, or if the output is sent (all_reduce, reduce, broadcast, send)."""
    @property
    def output(self) -> torch.Tensor | None:
        """The memory of the result, in one dimension; None if there is none."""
    @property
    def input_counts(self) -> list[int]:
        """Elements per rank; empty if even."""
    @property
    def output_counts(self) -> list[int]:
        """Elements per rank; empty if even."""
    @property
    def nbytes(self) -> int:
        """Bytes of the larger side on this rank."""
    def proceed(
        self, input: ArrayLike | None = None, output: ArrayLike | None = None, backend: str | None = None
    ) -> Any:
        """Hands the call on, if need be with other tensors of as many elements or another backend. Returns the Work of an asynchronous call, the sender's group rank of a blocking receive, else None."""
    def done(self) -> Work | None:
        """Answers the call: it is complete with what is in its output. Returns the Work of an asynchronous call."""
    def hold(self) -> Work:
        """Keeps an asynchronous call back: returns its Work, which completes after a later proceed()."""
    def after(self, step: Callable[[], object]) -> None:
        """Runs a function of no arguments when the result is there, before the call is seen to be complete."""

class Options:
    """A group's backends and the form of its calls: `pg_options=` of functions that make groups and meshes."""

    def __init__(self, backends: str | list[str] = ..., uniform: bool | None = ...) -> None: ...
    @property
    def backends(self) -> list[str]:
        """Names of the group's backends, in order of preference; empty: those of the default group, or of the parent group."""
    @property
    def uniform(self) -> bool | None:
        """True: all ranks use the same form; False: a call may be blocking on some ranks and asynchronous on others; None: as MCR_DL_UNIFORM says, or as the parent group does."""

class TorchBackend:
    def __init__(self, group: Group, backends: list[str]) -> None: ...
    @property
    def group(self) -> Group: ...
    @property
    def options(self) -> Options: ...
    def perform_nocolor_split(self, device: Any) -> None: ...
    def get_error(self) -> Any: ...
    def _set_default_timeout(self, timeout: timedelta) -> None: ...

class Pass:
    """A step that every call of a group goes through."""

    @property
    def name(self) -> str:
        """The name in `set_passes` and reports."""
    def _synchronize(self, limit: timedelta) -> bool: ...
    @property
    def _broken(self) -> bool: ...

class PythonPass(Pass):
    def __init__(self, handler: Any, name: str, group: Group) -> None: ...

class LogPass(Pass):
    def __init__(self, group: Group, ops: list[str] | None) -> None: ...

class FusePass(Pass):
    def __init__(self, shadow: Group, limits: dict[str, tuple[int, int, int]]) -> None: ...
    def statistics(self) -> dict[str, int]: ...

class PlanControl:
    def __init__(self, handler: Callable[[str, int], None]) -> None: ...
    def watch(self) -> None: ...
    def mark(self) -> None: ...
    def demand(self, calls: int, repetitions: int) -> None: ...
    def newest(self, count: int) -> list[tuple[str, int, str, bool]]: ...
    def digests(self) -> dict[int, int]: ...
    def trace(self) -> None: ...
    def traced(self) -> list[tuple[int, int, str, int, int, str, int, int]]: ...
    def set_plan(
        self,
        groups: dict[str, list[tuple[int, int, str, list[str], list[int]]]],
        order: list[tuple[int, int, int]],
        calls: int,
    ) -> None: ...
    def flush(self, limit: timedelta) -> bool: ...
    def statistics(self) -> dict[str, int]: ...

class SchedulePass(Pass):
    def __init__(self, control: PlanControl, group: Group, lanes: list[Group], all_ranks: bool) -> None: ...

class CompressPass(Pass):
    def __init__(
        self,
        group: Group,
        codec: str,
        ops: list[str],
        smallest: int,
        measured: list[tuple[str, str, list[tuple[int, str]]]],
    ) -> None: ...
    @property
    def automatic(self) -> bool: ...
    def _standing(self, op: str, dtype: str, candidate: str, nbytes: int) -> str: ...
    def _reset_feedback(self) -> None: ...

class CandidateName:
    def __init__(self, text: str) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def parts(self) -> list[str]: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def hierarchical(self) -> bool: ...
    @property
    def variant(self) -> str: ...
    @property
    def codec(self) -> str: ...

class TrialReport:
    @property
    def group(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    @property
    def key(self) -> str: ...
    @property
    def what(self) -> str: ...
    def times(self) -> list[list[int]]: ...
    @property
    def largest_counts(self) -> bool: ...
    def awaited(self) -> float: ...
    def agree(self, times: list[list[int]]) -> None: ...
    def abandon(self) -> None: ...
    def fail(self, text: str) -> None: ...

class Topology:
    def __init__(self, dimensions: list[tuple[str, int, int, int, str]], size: int, ranks: list[int] = ...) -> None: ...
    @staticmethod
    def of_hosts(hosts: list[int]) -> Topology: ...
    def of_members(self, members: list[int]) -> Topology: ...
    @property
    def dimensions(self) -> list[tuple[str, int, int, int, str]]: ...
    @property
    def ranks(self) -> list[int]: ...
    def index_of(self, name: str) -> int: ...
    def coordinates(self, rank: int) -> list[int]: ...
    def line(self, rank: int, dimension: int) -> list[int]: ...

class Schedule:
    @staticmethod
    def emulated(op: str, count: int, dtype: str, rank: int, size: int, root: int = ...) -> Schedule: ...
    @staticmethod
    def striped(op: str, count: int, dtype: str, share: int, size: int, root: int = ...) -> Schedule: ...
    @staticmethod
    def compressed(op: str, count: int, dtype: str, codec: str, rank: int, size: int, root: int = ...) -> Schedule: ...
    def tasks(self, ranks: int) -> list[tuple[str, str, int, int, list[int]]]: ...
    def issue(
        self, op: str, nbytes: int, after: list[int] = ..., part: int = ..., peer: int = ..., dtype: str = ...
    ) -> int: ...

class CostModel:
    def add_resource(self, name: str, scope: str = ..., capacity: int = ..., slots: int = ...) -> int: ...
    def add_cost(
        self,
        kind: str,
        name: str = ...,
        op: str = ...,
        types: str = ...,
        alpha: int = ...,
        per_mib: int = ...,
        latency: int = ...,
        demands: list[tuple[int, int]] = ...,
        points: list[tuple[int, int]] = ...,
    ) -> None: ...
    def issue_cost(self, name: str, op: str, types: str, nbytes: int) -> tuple[int, list[str]] | None: ...

class ThemisPlan:
    def __init__(
        self,
        network: list[tuple[str, int, int, int, int]],
        op: str,
        nbytes: int,
        policies: list[str],
        chunks: list[int],
        in_flight: int = ...,
    ) -> None: ...
    @property
    def policy(self) -> str: ...
    @property
    def chunks(self) -> int: ...
    @property
    def orders(self) -> list[list[int]]: ...
    def steps(self) -> list[tuple[int, int, int, int, int, int]]: ...
    @property
    def work(self) -> list[int]: ...
    @property
    def makespan(self) -> int: ...

class Job:
    def __init__(
        self,
        schedule: Schedule | None,
        rank: int = ...,
        parts: list[tuple[str, int]] = ...,
        codec: str = ...,
        after: list[int] = ...,
        priority: int = ...,
        work: int = ...,
        demands: list[tuple[int, int]] = ...,
    ) -> None: ...

class ExecutionPlan:
    def __init__(
        self, options: list[int], levels: list[int] = ..., order: str = ..., sequence: list[tuple[int, int, int]] = ...
    ) -> None: ...

class PlanGraph:
    def __init__(
        self,
        channels: list[int],
        nodes: list[tuple[str, list[tuple[int, int]], list[list[tuple[int, int, list[int]]]], bool]],
    ) -> None: ...
    def play(self, plan: ExecutionPlan, iterations: int) -> list[list[list[tuple[int, int, int]]]]: ...
    def cost(self, plan: ExecutionPlan, unrolled: int = ...) -> int: ...
    def fastest(self) -> list[int]: ...
    def search(
        self,
        chains: int = ...,
        seed: int = ...,
        most: int = ...,
        budget: int = ...,
        levels: bool = ...,
        starts: list[ExecutionPlan] = ...,
    ) -> dict[str, Any]: ...

def ops() -> list[dict[str, Any]]: ...
def signatures() -> list[dict[str, Any]]: ...
def dtypes() -> list[str]: ...
def reductions() -> list[str]: ...
def reduction_defined(dtype: str, red: str) -> bool: ...
def set_exceptions(classes: dict[str, type[Exception]]) -> None: ...
def set_world(group: Group | None) -> None: ...
def world() -> Group | None: ...
def group_of(handle: object) -> Group | None: ...
def handle_of(group: Group) -> Any: ...
def remember_handle(handle: ProcessGroup, group: Group) -> None: ...
def name_backend(name: str | None) -> str | None: ...
def set_coalescing(works: list[Work] | None, group: Group | None) -> None: ...
def add_striped(first: str, second: str) -> None: ...
def add_over_dimensions(algorithm: str, parts: list[str]) -> None: ...
def themis_plan(
    network: list[tuple[str, int, int, int, int]], op: str, nbytes: int, baseline: bool
) -> ThemisPlan | None: ...
def themis_limits() -> dict[str, int]: ...
def themis_chunk_counts() -> list[int]: ...
def members_of_lines(lines: list[list[int]], rank: int) -> list[list[int]]: ...
def load_backend(name: str, path: str, library: str = ...) -> None: ...
def begin_batch() -> None: ...
def end_batch() -> None: ...
def leave() -> None: ...
def prefer_high_priority(high: bool) -> None: ...
def missing_backend(name: str, reason: str) -> None: ...
def backend_status() -> dict[str, str]: ...
def drain(names: list[str], limit: timedelta) -> bool: ...
def drain_groups(labels: list[str], limit: timedelta) -> bool: ...
def end_works(labels: list[str]) -> None: ...
def drain_futures(limit: timedelta) -> bool: ...
def shutdown() -> None: ...
def operations() -> list[str]: ...
def register_codec(name: str, options: list[str], make: Callable[..., Any]) -> None: ...
def codecs() -> list[str]: ...
def codec(text: str) -> dict[str, Any]: ...
def encode(tensor: torch.Tensor, codec: str) -> torch.Tensor: ...
def decode(encoded: torch.Tensor, like: torch.Tensor, codec: str) -> torch.Tensor: ...
def split_names(names: str) -> list[str]: ...
def canonical(name: str) -> str: ...
def dtype_class(dtype: str) -> str: ...
def set_passes(group: Group, passes: list[Pass]) -> None: ...
def passes(group: Group) -> list[Pass]: ...
def newest_collective(group: Group) -> tuple[int, str]: ...
def log_records(spans: list[tuple[int, int]]) -> list[tuple[Any, ...]]: ...
def log_groups() -> list[tuple[str, int, int, list[int]]]: ...
def log_group_index(group: Group) -> int | None: ...
def log_resize(capacity: int) -> None: ...
def log_capacity() -> int: ...
def log_made() -> int: ...
def log_lost() -> int: ...
def log_now() -> int: ...
def log_callers(wanted: bool) -> None: ...
def timeout(value: timedelta | float, name: str = ...) -> timedelta: ...
def positions(since: dict[int, int] = ..., most: int = ...) -> list[dict[str, Any]]: ...
def take_messages() -> list[tuple[int, list[tuple[Any, ...]], bool]]: ...
def activities() -> list[dict[str, Any]]: ...
def pending(most: int = ..., lost: bool = ...) -> list[tuple[Work, dict[str, Any]]]: ...
def overdue(grace: float) -> list[tuple[Work, dict[str, Any]]]: ...
def expire(work: Work, text: str, lost: bool = ...) -> bool: ...
def give_up_streams(group: Group) -> None: ...
def lose(rank: int, text: str) -> None: ...
def regain(rank: int) -> None: ...
def lost(label: str) -> str | None: ...
def stop_desync(text: str) -> None: ...
def stop_forked(text: str) -> None: ...
def clear_stop() -> None: ...
def take_desync() -> str: ...
def fail_at_exit(code: int) -> None: ...
def give_up(group: Group) -> None: ...
def keep_forever(group: Group) -> None: ...
def set_detail(detail: bool) -> None: ...
def set_explainer(function: Callable[[str, str, int, int, int], str]) -> None: ...
def watch_interrupts() -> None: ...
def latest_interrupt() -> tuple[float, int] | None: ...
def next_trials(seconds: float) -> TrialReport | None: ...
def wake_trials() -> None: ...
def _shared_bytes(bytes: int) -> torch.Tensor: ...
def _free_memory(swaps: bool) -> int: ...
def cheapest(curves: list[list[tuple[int, int]]]) -> list[tuple[int, int]]: ...
def cost_at(curve: list[tuple[int, int]], nbytes: int) -> int: ...
def time_task(
    kind: str, count: int, dtype: str, codec: str = ..., rounds: int = ..., between: int = ...
) -> list[int]: ...
def simulate(
    model: CostModel,
    jobs: list[Job],
    groups: list[list[int]],
    together: bool = ...,
    order: str = ...,
    in_order: bool = ...,
) -> dict[str, Any]: ...
__all__ = ["broadcast", "all_reduce", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "barrier", "send", "recv", "bcast", "all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single", "all_to_all_single", "gatherv", "scatterv", "all_gatherv", "all_to_allv", "reduce_scatterv", "isend", "irecv"]
@overload
def broadcast(tensor: ArrayLike, src: int | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Copies the root's tensor to every rank of the group.

    Args:
        tensor: dense tensor of any shape, read and written in place; elements are sent in memory order,
            so all ranks must use the same strides.
        src: global rank of the root. The keyword may also be root.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        group_src: the same rank, given by its index in the group; give one of the two.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.broadcast; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def broadcast(tensor: ArrayLike, src: int | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], group_src: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def broadcast(tensor: ArrayLike, src: int | None, group: ProcessGroup | Group | None, async_op: Literal[True], group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def broadcast(tensor: ArrayLike, src: int | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def broadcast(tensor: ArrayLike, root: int | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None: ...
@overload
def broadcast(tensor: ArrayLike, root: int | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], group_src: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def broadcast(tensor: ArrayLike, root: int | None, group: ProcessGroup | Group | None, async_op: Literal[True], group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def broadcast(tensor: ArrayLike, root: int | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def broadcast(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def broadcast(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def all_reduce(tensor: ArrayLike, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Reduces the tensors of all ranks element by element; every rank gets the result in place.

    Args:
        tensor: dense tensor of any shape, read and written in place; elements are sent in memory order,
            so all ranks must use the same strides.
        op: torch.distributed.ReduceOp: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, or PREMUL_SUM with
            its factor. AVG of integers rounds towards zero. MIN and MAX yield NaN where one rank has a
            NaN, except on nccl.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.all_reduce; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def all_reduce(tensor: ArrayLike, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_reduce(tensor: ArrayLike, op: ReduceOp | ReduceOp.RedOpType, group: ProcessGroup | Group | None, async_op: Literal[True], *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_reduce(tensor: ArrayLike, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: bool = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def all_reduce(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def all_reduce(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def reduce(tensor: ArrayLike, dst: int | None = None, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Reduces the tensors of all ranks into the root's tensor; the other ranks' tensors are unchanged.

    Args:
        tensor: dense tensor of any shape, read and written in place; elements are sent in memory order,
            so all ranks must use the same strides.
        dst: global rank of the root. The keyword may also be root.
        op: torch.distributed.ReduceOp: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, or PREMUL_SUM with
            its factor. AVG of integers rounds towards zero. MIN and MAX yield NaN where one rank has a
            NaN, except on nccl.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        group_dst: the same rank, given by its index in the group; give one of the two.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: None or 'none', as this operation has no compressed form.
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.reduce; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def reduce(tensor: ArrayLike, dst: int | None = None, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, *, async_op: Literal[True], group_dst: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def reduce(tensor: ArrayLike, dst: int | None, op: ReduceOp | ReduceOp.RedOpType, group: ProcessGroup | Group | None, async_op: Literal[True], group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def reduce(tensor: ArrayLike, dst: int | None = None, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: bool = False, group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def reduce(tensor: ArrayLike, root: int | None = None, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None: ...
@overload
def reduce(tensor: ArrayLike, root: int | None = None, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, *, async_op: Literal[True], group_dst: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def reduce(tensor: ArrayLike, root: int | None, op: ReduceOp | ReduceOp.RedOpType, group: ProcessGroup | Group | None, async_op: Literal[True], group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def reduce(tensor: ArrayLike, root: int | None = None, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: bool = False, group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def reduce(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def reduce(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def all_gather(tensor_list: Sequence[ArrayLike] | ArrayLike, tensor: ArrayLike, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Gathers every rank's tensor into a list (or one tensor) on every rank.

    Args:
        tensor_list: list of one dense tensor per rank, or one tensor that holds the blocks in rank
            order.
        tensor: dense tensor that is sent.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.all_gather; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def all_gather(tensor_list: Sequence[ArrayLike] | ArrayLike, tensor: ArrayLike, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_gather(tensor_list: Sequence[ArrayLike] | ArrayLike, tensor: ArrayLike, group: ProcessGroup | Group | None, async_op: Literal[True], *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_gather(tensor_list: Sequence[ArrayLike] | ArrayLike, tensor: ArrayLike, group: ProcessGroup | Group | None = None, async_op: bool = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def all_gather(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def all_gather(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def reduce_scatter(output: ArrayLike, input_list: Sequence[ArrayLike] | ArrayLike, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Reduces a list (or one tensor) of blocks over all ranks and leaves block i on rank i.

    Args:
        output: dense tensor that receives the result; same dtype and device as the input.
        input_list: list of one dense tensor per rank, or one tensor that holds the blocks in rank
            order.
        op: torch.distributed.ReduceOp: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, or PREMUL_SUM with
            its factor. AVG of integers rounds towards zero. MIN and MAX yield NaN where one rank has a
            NaN, except on nccl.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.reduce_scatter; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def reduce_scatter(output: ArrayLike, input_list: Sequence[ArrayLike] | ArrayLike, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def reduce_scatter(output: ArrayLike, input_list: Sequence[ArrayLike] | ArrayLike, op: ReduceOp | ReduceOp.RedOpType, group: ProcessGroup | Group | None, async_op: Literal[True], *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def reduce_scatter(output: ArrayLike, input_list: Sequence[ArrayLike] | ArrayLike, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: bool = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def reduce_scatter(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def reduce_scatter(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def all_to_all(output_tensor_list: Sequence[ArrayLike] | ArrayLike, input_tensor_list: Sequence[ArrayLike] | ArrayLike, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Sends the i-th tensor of the input list to rank i and receives the i-th of the output list from it.

    Args:
        output_tensor_list: list of one dense tensor per rank, or one tensor that holds the blocks in
            rank order.
        input_tensor_list: list of one dense tensor per rank, or one tensor that holds the blocks in
            rank order.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.all_to_all; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def all_to_all(output_tensor_list: Sequence[ArrayLike] | ArrayLike, input_tensor_list: Sequence[ArrayLike] | ArrayLike, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_to_all(output_tensor_list: Sequence[ArrayLike] | ArrayLike, input_tensor_list: Sequence[ArrayLike] | ArrayLike, group: ProcessGroup | Group | None, async_op: Literal[True], *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_to_all(output_tensor_list: Sequence[ArrayLike] | ArrayLike, input_tensor_list: Sequence[ArrayLike] | ArrayLike, group: ProcessGroup | Group | None = None, async_op: bool = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def all_to_all(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def all_to_all(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def gather(tensor: ArrayLike, gather_list: Sequence[ArrayLike] | ArrayLike | None = None, dst: int | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Gathers every rank's tensor into a list (or one tensor) on the root.

    Args:
        tensor: dense tensor that is sent.
        gather_list: list of one dense tensor per rank, or one tensor that holds the blocks in rank
            order; only the root needs it.
        dst: global rank of the root; None: rank 0. The keyword may also be root.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        group_dst: the same rank, given by its index in the group; give one of the two.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: None or 'none', as this operation has no compressed form.
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.gather; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def gather(tensor: ArrayLike, gather_list: Sequence[ArrayLike] | ArrayLike | None = None, dst: int | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], group_dst: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def gather(tensor: ArrayLike, gather_list: Sequence[ArrayLike] | ArrayLike | None, dst: int | None, group: ProcessGroup | Group | None, async_op: Literal[True], group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def gather(tensor: ArrayLike, gather_list: Sequence[ArrayLike] | ArrayLike | None = None, dst: int | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def gather(tensor: ArrayLike, gather_list: Sequence[ArrayLike] | ArrayLike | None = None, root: int | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None: ...
@overload
def gather(tensor: ArrayLike, gather_list: Sequence[ArrayLike] | ArrayLike | None = None, root: int | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], group_dst: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def gather(tensor: ArrayLike, gather_list: Sequence[ArrayLike] | ArrayLike | None, root: int | None, group: ProcessGroup | Group | None, async_op: Literal[True], group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def gather(tensor: ArrayLike, gather_list: Sequence[ArrayLike] | ArrayLike | None = None, root: int | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def gather(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def gather(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def scatter(tensor: ArrayLike, scatter_list: Sequence[ArrayLike] | ArrayLike | None = None, src: int | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Sends the i-th tensor of the root's list (or the i-th block of its tensor) to rank i.

    Args:
        tensor: dense tensor that receives the result; same dtype and device as the input.
        scatter_list: list of one dense tensor per rank, or one tensor that holds the blocks in rank
            order; only the root needs it.
        src: global rank of the root; None: rank 0. The keyword may also be root.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        group_src: the same rank, given by its index in the group; give one of the two.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: None or 'none', as this operation has no compressed form.
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.scatter; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def scatter(tensor: ArrayLike, scatter_list: Sequence[ArrayLike] | ArrayLike | None = None, src: int | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], group_src: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def scatter(tensor: ArrayLike, scatter_list: Sequence[ArrayLike] | ArrayLike | None, src: int | None, group: ProcessGroup | Group | None, async_op: Literal[True], group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def scatter(tensor: ArrayLike, scatter_list: Sequence[ArrayLike] | ArrayLike | None = None, src: int | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def scatter(tensor: ArrayLike, scatter_list: Sequence[ArrayLike] | ArrayLike | None = None, root: int | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None: ...
@overload
def scatter(tensor: ArrayLike, scatter_list: Sequence[ArrayLike] | ArrayLike | None = None, root: int | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], group_src: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def scatter(tensor: ArrayLike, scatter_list: Sequence[ArrayLike] | ArrayLike | None, root: int | None, group: ProcessGroup | Group | None, async_op: Literal[True], group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def scatter(tensor: ArrayLike, scatter_list: Sequence[ArrayLike] | ArrayLike | None = None, root: int | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def scatter(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def scatter(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def barrier(group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, device_ids: Any | None = None, timeout: timedelta | float | None = None, *, backend: str | None = None) -> None:
    """Returns when every rank of the group has entered it.

    Args:
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        device_ids: accepted for compatibility with torch, and ignored.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.barrier; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def barrier(group: ProcessGroup | Group | None = None, *, async_op: Literal[True], device_ids: Any | None = None, timeout: timedelta | float | None = None, backend: str | None = None) -> Work: ...
@overload
def barrier(group: ProcessGroup | Group | None, async_op: Literal[True], device_ids: Any | None = None, timeout: timedelta | float | None = None, *, backend: str | None = None) -> Work: ...
@overload
def barrier(group: ProcessGroup | Group | None = None, async_op: bool = False, device_ids: Any | None = None, timeout: timedelta | float | None = None, *, backend: str | None = None) -> Work | None: ...
@overload
def barrier(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def barrier(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def send(tensor: ArrayLike, dst: int | None = None, group: ProcessGroup | Group | None = None, tag: int = 0, group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None, async_op: Literal[False] = False) -> None:
    """Sends a tensor to one rank; returns when the tensor may be changed.

    Args:
        tensor: dense tensor of any shape that is sent; elements are sent in memory order, so all ranks
            must use the same strides.
        dst: global rank of the peer.
        group: group to work in; None: the default group.
        tag: number, 0 or more, that matches a send with its receive.
        group_dst: the same rank, given by its index in the group; give one of the two.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.
        async_op: True: return a Work at once.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.send; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def send(tensor: ArrayLike, dst: int | None = None, group: ProcessGroup | Group | None = None, tag: int = 0, group_dst: int | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def send(tensor: ArrayLike, dst: int | None = None, group: ProcessGroup | Group | None = None, tag: int = 0, group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None, async_op: bool = False) -> Work | None: ...
@overload
def send(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def send(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def recv(tensor: ArrayLike, src: int | None = None, group: ProcessGroup | Group | None = None, tag: int = 0, group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None, async_op: Literal[False] = False) -> int:
    """Receives a tensor from one rank, or from any (src=None); returns the sender's global rank.

    Args:
        tensor: dense tensor of any shape that receives the message; elements are sent in memory order,
            so all ranks must use the same strides.
        src: global rank of the peer; None: any rank.
        group: group to work in; None: the default group.
        tag: number, 0 or more, that matches a send with its receive.
        group_src: the same rank, given by its index in the group; give one of the two.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.
        async_op: True: return a Work at once.

    Returns: The sender's global rank, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.recv; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def recv(tensor: ArrayLike, src: int | None = None, group: ProcessGroup | Group | None = None, tag: int = 0, group_src: int | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def recv(tensor: ArrayLike, src: int | None = None, group: ProcessGroup | Group | None = None, tag: int = 0, group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None, async_op: bool = False) -> Work | int: ...
@overload
def recv(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def recv(backend: str, /, *args: Any, **kwargs: Any) -> Work | int: ...
@overload
def bcast(tensor: ArrayLike, root: int | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """MPI's name for broadcast.

    Args:
        tensor: dense tensor of any shape, read and written in place; elements are sent in memory order,
            so all ranks must use the same strides.
        root: global rank of the root. The keyword may also be src.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: MPI_Bcast; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def bcast(tensor: ArrayLike, root: int | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def bcast(tensor: ArrayLike, root: int | None, group: ProcessGroup | Group | None, async_op: Literal[True], *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def bcast(tensor: ArrayLike, root: int | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def bcast(tensor: ArrayLike, src: int | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None: ...
@overload
def bcast(tensor: ArrayLike, src: int | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def bcast(tensor: ArrayLike, src: int | None, group: ProcessGroup | Group | None, async_op: Literal[True], *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def bcast(tensor: ArrayLike, src: int | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def bcast(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def bcast(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def all_gather_into_tensor(output_tensor: ArrayLike, input_tensor: ArrayLike, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Gathers every rank's tensor, concatenated in rank order, into one tensor on every rank.

    Args:
        output_tensor: dense tensor that receives the result; same dtype and device as the input.
        input_tensor: dense tensor that is sent.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.all_gather_into_tensor; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def all_gather_into_tensor(output_tensor: ArrayLike, input_tensor: ArrayLike, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_gather_into_tensor(output_tensor: ArrayLike, input_tensor: ArrayLike, group: ProcessGroup | Group | None, async_op: Literal[True], *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_gather_into_tensor(output_tensor: ArrayLike, input_tensor: ArrayLike, group: ProcessGroup | Group | None = None, async_op: bool = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def all_gather_into_tensor(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def all_gather_into_tensor(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def all_gather_single(output_tensor: ArrayLike, input_tensor: ArrayLike, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """torch 2.13's name for all_gather_into_tensor.

    Args:
        output_tensor: dense tensor that receives the result; same dtype and device as the input.
        input_tensor: dense tensor that is sent.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.all_gather_single; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def all_gather_single(output_tensor: ArrayLike, input_tensor: ArrayLike, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_gather_single(output_tensor: ArrayLike, input_tensor: ArrayLike, group: ProcessGroup | Group | None, async_op: Literal[True], *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_gather_single(output_tensor: ArrayLike, input_tensor: ArrayLike, group: ProcessGroup | Group | None = None, async_op: bool = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def all_gather_single(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def all_gather_single(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def reduce_scatter_tensor(output: ArrayLike, input: ArrayLike, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Reduces one tensor of equal blocks over all ranks and leaves block i on rank i.

    Args:
        output: dense tensor that receives the result; same dtype and device as the input.
        input: dense tensor that is sent.
        op: torch.distributed.ReduceOp: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, or PREMUL_SUM with
            its factor. AVG of integers rounds towards zero. MIN and MAX yield NaN where one rank has a
            NaN, except on nccl.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.reduce_scatter_tensor; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def reduce_scatter_tensor(output: ArrayLike, input: ArrayLike, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def reduce_scatter_tensor(output: ArrayLike, input: ArrayLike, op: ReduceOp | ReduceOp.RedOpType, group: ProcessGroup | Group | None, async_op: Literal[True], *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def reduce_scatter_tensor(output: ArrayLike, input: ArrayLike, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: bool = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def reduce_scatter_tensor(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def reduce_scatter_tensor(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def reduce_scatter_single(output: ArrayLike, input: ArrayLike, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """torch 2.13's name for reduce_scatter_tensor.

    Args:
        output: dense tensor that receives the result; same dtype and device as the input.
        input: dense tensor that is sent.
        op: torch.distributed.ReduceOp: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, or PREMUL_SUM with
            its factor. AVG of integers rounds towards zero. MIN and MAX yield NaN where one rank has a
            NaN, except on nccl.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.reduce_scatter_single; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def reduce_scatter_single(output: ArrayLike, input: ArrayLike, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def reduce_scatter_single(output: ArrayLike, input: ArrayLike, op: ReduceOp | ReduceOp.RedOpType, group: ProcessGroup | Group | None, async_op: Literal[True], *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def reduce_scatter_single(output: ArrayLike, input: ArrayLike, op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: bool = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def reduce_scatter_single(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def reduce_scatter_single(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def all_to_all_single(output: ArrayLike, input: ArrayLike, output_split_sizes: Sequence[int] | None = None, input_split_sizes: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Sends block i of the input to rank i; blocks are rows of the first dimension, equal or as the splits say.

    Args:
        output: dense tensor that receives the result; same dtype and device as the input.
        input: dense tensor that is sent.
        output_split_sizes: rows of the output's first dimension from each rank; None: equal parts.
        input_split_sizes: rows of the input's first dimension for each rank; None: equal parts.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.all_to_all_single; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def all_to_all_single(output: ArrayLike, input: ArrayLike, output_split_sizes: Sequence[int] | None = None, input_split_sizes: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_to_all_single(output: ArrayLike, input: ArrayLike, output_split_sizes: Sequence[int] | None, input_split_sizes: Sequence[int] | None, group: ProcessGroup | Group | None, async_op: Literal[True], *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_to_all_single(output: ArrayLike, input: ArrayLike, output_split_sizes: Sequence[int] | None = None, input_split_sizes: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def all_to_all_single(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def all_to_all_single(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def gatherv(output: ArrayLike | None, input: ArrayLike, root: int, rcounts: Sequence[int] | None, displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Gathers rcounts[i] elements from rank i to output[displs[i]:] on the root.

    Args:
        output: dense tensor that receives the result; same dtype and device as the input; only the root
            needs it.
        input: dense tensor that is sent.
        root: global rank of the root; None: rank 0. The keyword may also be dst.
        rcounts: elements of the block from each rank; only the root needs it.
        displs: offset of each rank's block in the output, in elements; None: the blocks are packed.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        size_hint: size in bytes, equal on all ranks, by which 'auto' chooses where the counts differ
            between ranks.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: None or 'none', as this operation has no compressed form.
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: MPI_Gatherv; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def gatherv(output: ArrayLike | None, input: ArrayLike, root: int, rcounts: Sequence[int] | None, displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def gatherv(output: ArrayLike | None, input: ArrayLike, root: int, rcounts: Sequence[int] | None, displs: Sequence[int] | None, group: ProcessGroup | Group | None, async_op: Literal[True], *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def gatherv(output: ArrayLike | None, input: ArrayLike, root: int, rcounts: Sequence[int] | None, displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def gatherv(output: ArrayLike | None, input: ArrayLike, dst: int, rcounts: Sequence[int] | None, displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None: ...
@overload
def gatherv(output: ArrayLike | None, input: ArrayLike, dst: int, rcounts: Sequence[int] | None, displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def gatherv(output: ArrayLike | None, input: ArrayLike, dst: int, rcounts: Sequence[int] | None, displs: Sequence[int] | None, group: ProcessGroup | Group | None, async_op: Literal[True], *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def gatherv(output: ArrayLike | None, input: ArrayLike, dst: int, rcounts: Sequence[int] | None, displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def gatherv(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def gatherv(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def scatterv(output: ArrayLike, input: ArrayLike | None, root: int, scounts: Sequence[int] | None, displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Sends scounts[i] elements at input[displs[i]:] of the root to rank i.

    Args:
        output: dense tensor that receives the result; same dtype and device as the input.
        input: dense tensor that is sent; only the root needs it.
        root: global rank of the root; None: rank 0. The keyword may also be src.
        scounts: elements of the block for each rank; only the root needs it.
        displs: offset of each rank's block in the input, in elements; None: the blocks are packed.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        size_hint: size in bytes, equal on all ranks, by which 'auto' chooses where the counts differ
            between ranks.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: None or 'none', as this operation has no compressed form.
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: MPI_Scatterv; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def scatterv(output: ArrayLike, input: ArrayLike | None, root: int, scounts: Sequence[int] | None, displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def scatterv(output: ArrayLike, input: ArrayLike | None, root: int, scounts: Sequence[int] | None, displs: Sequence[int] | None, group: ProcessGroup | Group | None, async_op: Literal[True], *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def scatterv(output: ArrayLike, input: ArrayLike | None, root: int, scounts: Sequence[int] | None, displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def scatterv(output: ArrayLike, input: ArrayLike | None, src: int, scounts: Sequence[int] | None, displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None: ...
@overload
def scatterv(output: ArrayLike, input: ArrayLike | None, src: int, scounts: Sequence[int] | None, displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def scatterv(output: ArrayLike, input: ArrayLike | None, src: int, scounts: Sequence[int] | None, displs: Sequence[int] | None, group: ProcessGroup | Group | None, async_op: Literal[True], *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def scatterv(output: ArrayLike, input: ArrayLike | None, src: int, scounts: Sequence[int] | None, displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def scatterv(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def scatterv(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def all_gatherv(output: ArrayLike, input: ArrayLike, rcounts: Sequence[int], displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Gathers rcounts[i] elements from rank i to output[displs[i]:] on every rank.

    Args:
        output: dense tensor that receives the result; same dtype and device as the input.
        input: dense tensor that is sent.
        rcounts: elements of the block from each rank.
        displs: offset of each rank's block in the output, in elements; None: the blocks are packed.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        size_hint: size in bytes, equal on all ranks, by which 'auto' chooses where the counts differ
            between ranks.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: MPI_Allgatherv; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def all_gatherv(output: ArrayLike, input: ArrayLike, rcounts: Sequence[int], displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_gatherv(output: ArrayLike, input: ArrayLike, rcounts: Sequence[int], displs: Sequence[int] | None, group: ProcessGroup | Group | None, async_op: Literal[True], *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_gatherv(output: ArrayLike, input: ArrayLike, rcounts: Sequence[int], displs: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def all_gatherv(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def all_gatherv(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def all_to_allv(output: ArrayLike, input: ArrayLike, scounts: Sequence[int], rcounts: Sequence[int], sdispls: Sequence[int] | None = None, rdispls: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Sends scounts[i] elements at input[sdispls[i]:] to rank i and receives rcounts[i] at output[rdispls[i]:].

    Args:
        output: dense tensor that receives the result; same dtype and device as the input.
        input: dense tensor that is sent.
        scounts: elements of the block for each rank.
        rcounts: elements of the block from each rank.
        sdispls: offset of each rank's block in the input, in elements; None: the blocks are packed.
        rdispls: offset of each rank's block in the output, in elements; None: the blocks are packed.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        size_hint: size in bytes, equal on all ranks, by which 'auto' chooses where the counts differ
            between ranks.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: MPI_Alltoallv; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def all_to_allv(output: ArrayLike, input: ArrayLike, scounts: Sequence[int], rcounts: Sequence[int], sdispls: Sequence[int] | None = None, rdispls: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, *, async_op: Literal[True], size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_to_allv(output: ArrayLike, input: ArrayLike, scounts: Sequence[int], rcounts: Sequence[int], sdispls: Sequence[int] | None, rdispls: Sequence[int] | None, group: ProcessGroup | Group | None, async_op: Literal[True], *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def all_to_allv(output: ArrayLike, input: ArrayLike, scounts: Sequence[int], rcounts: Sequence[int], sdispls: Sequence[int] | None = None, rdispls: Sequence[int] | None = None, group: ProcessGroup | Group | None = None, async_op: bool = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def all_to_allv(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def all_to_allv(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def reduce_scatterv(output: ArrayLike, input: ArrayLike, rcounts: Sequence[int], op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: Literal[False] = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> None:
    """Reduces over all ranks and leaves the i-th block, of rcounts[i] elements, on rank i.

    Args:
        output: dense tensor that receives the result; same dtype and device as the input.
        input: dense tensor that is sent.
        rcounts: elements of the block for each rank.
        op: torch.distributed.ReduceOp: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, or PREMUL_SUM with
            its factor. AVG of integers rounds towards zero. MIN and MAX yield NaN where one rank has a
            NaN, except on nccl.
        group: group to work in; None: the default group.
        async_op: True: return a Work at once. All ranks give the same value.
        size_hint: size in bytes, equal on all ranks, by which 'auto' chooses where the counts differ
            between ranks.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: None, or a Work if async_op is set.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: MPI_Reduce_scatter; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def reduce_scatterv(output: ArrayLike, input: ArrayLike, rcounts: Sequence[int], op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, *, async_op: Literal[True], size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def reduce_scatterv(output: ArrayLike, input: ArrayLike, rcounts: Sequence[int], op: ReduceOp | ReduceOp.RedOpType, group: ProcessGroup | Group | None, async_op: Literal[True], *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work: ...
@overload
def reduce_scatterv(output: ArrayLike, input: ArrayLike, rcounts: Sequence[int], op: ReduceOp | ReduceOp.RedOpType = ..., group: ProcessGroup | Group | None = None, async_op: bool = False, *, size_hint: int | None = None, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work | None: ...
@overload
def reduce_scatterv(backend: str, /, *args: Any, async_op: Literal[True], **kwargs: Any) -> Work: ...
@overload
def reduce_scatterv(backend: str, /, *args: Any, **kwargs: Any) -> Work | None: ...
@overload
def isend(tensor: ArrayLike, dst: int | None = None, group: ProcessGroup | Group | None = None, tag: int = 0, group_dst: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work:
    """Starts sending a tensor to one rank and returns a Work.

    Args:
        tensor: dense tensor of any shape that is sent; elements are sent in memory order, so all ranks
            must use the same strides.
        dst: global rank of the peer.
        group: group to work in; None: the default group.
        tag: number, 0 or more, that matches a send with its receive.
        group_dst: the same rank, given by its index in the group; give one of the two.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: A Work.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.isend; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def isend(backend: str, /, *args: Any, **kwargs: Any) -> Work: ...
@overload
def irecv(tensor: ArrayLike, src: int | None = None, group: ProcessGroup | Group | None = None, tag: int = 0, group_src: int | None = None, *, backend: str | None = None, codec: str | None = None, priority: int = 0, key: str | None = None, timeout: timedelta | float | None = None) -> Work:
    """Starts receiving a tensor from one rank, or from any (src=None), and returns a Work.

    Args:
        tensor: dense tensor of any shape that receives the message; elements are sent in memory order,
            so all ranks must use the same strides.
        src: global rank of the peer; None: any rank.
        group: group to work in; None: the default group.
        tag: number, 0 or more, that matches a send with its receive.
        group_src: the same rank, given by its index in the group; give one of the two.
        backend: name of one of the group's backends or other candidates, such as 'mpi:p2p',
            'stripe(gloo,mpi)' or 'mpi|bf16', or 'auto'; None: the group's choice. May also lead the
            positional arguments.
        codec: codec that compresses the data for the transfer, such as 'bf16' or 'int8:block=64'; the
            group needs the pass 'compress'. 'none': no compression. 'auto': the codec of the tuning
            table. None: the pass's own (docs/compression.md).
        priority: 32-bit integer, equal on all ranks. A pass that holds several calls issues those with
            the lowest priority value first.
        key: name of the data, such as a parameter's, in the log and its traces. A process keeps 65,536
            distinct keys until it ends; calls with further keys have none in the log.
        timeout: datetime.timedelta, or seconds, after which the call fails; None: the group's.

    Returns: A Work.

    Raises:
        InvalidArgumentError, InvalidTypeError: an argument is wrong; nothing has been sent.
        NotInitializedError: before init, after finalize, or for a backend that the group does not have.
        UnsupportedError: the backend cannot do this and no fallback is allowed.
        BackendError: the communication library failed.
        PeerLostError: a rank of the group has been lost.
        CollectiveTimeoutError: the operation took longer than its timeout: the call's, else the
            group's.
        DesyncError: the ranks have made different calls (only with MCR_DL_DEBUG=detail).

    Source: torch.distributed.irecv; MCR-DL paper (IPDPS 2023), Listing 1.
    """
@overload
def irecv(backend: str, /, *args: Any, **kwargs: Any) -> Work: ...
