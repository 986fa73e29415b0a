# SPDX-License-Identifier: Apache-2.0
"""A PMIx server: a program that serves the ranks of one host and forwards what other hosts must answer.

Open MPI asks its launcher for the other ranks through PMIx, whose library can be a client or a server, but not both in
one process. ``PmixResponder`` of a host's first rank starts this file by its path, so that it imports neither torch nor
mcr_dl. Each rank of the host is connected with it by a socket in the job's folder, which only their user can enter.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

MAJOR = 5  # the version of PMIx whose structures and callbacks are declared here
PATIENCE = 20.0  # seconds for each of the steps that start the server
_LAST = 5  # seconds to end the library
STAYS = "stays"  # the answer to the request to end, while MPI has not ended
ENDED = "ended"  # the other answer: the server needs this rank no more
SOCKET = "ranks"  # in the job's folder

_SUCCESS = 0
_DONE = -157  # PMIX_OPERATION_SUCCEEDED: no callback follows
_ERROR = -1
_NOT_FOUND = -46
_NOT_SUPPORTED = -47
_BOOL, _STRING, _SIZE, _UINT16, _UINT32, _PROC, _INFO, _BYTES, _ARRAY, _RANK = 1, 3, 4, 13, 14, 22, 24, 27, 39, 40
_EVERY_RANK = 0xFFFFFFFE  # PMIX_RANK_WILDCARD
_CONSTRUCT = 0  # the group operation that makes a group
_SLOTS = 64  # pointers in the table of callbacks: more than any version has
_CONNECTED, _FINALIZED, _ABORT, _FENCE, _MODEX, _REGISTER, _LOG, _JOB_CONTROL, _GROUP = 0, 1, 2, 3, 4, 11, 17, 19, 25


class Job(NamedTuple):
    """The facts that the server tells its ranks, and the folder of their files."""

    library: str
    name: str
    node: int  # the server's
    nodes: tuple[str, ...]
    placement: tuple[int, ...]  # for each rank, the index of its node
    folder: str  # the server removes it
    crowded: bool  # whether the node has more ranks than cores

    def ranks(self, node: int) -> list[int]:
        """The ranks of a node."""
        return [rank for rank, its_node in enumerate(self.placement) if its_node == node]


class Proc(ctypes.Structure):
    """``pmix_proc_t``."""

    _fields_ = [("name", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class Array(ctypes.Structure):
    """``pmix_data_array_t``."""

    _fields_ = [("kind", ctypes.c_uint16), ("size", ctypes.c_size_t), ("items", ctypes.c_void_p)]


class Bytes(ctypes.Structure):
    """``pmix_byte_object_t``."""

    _fields_ = [("bytes", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class Data(ctypes.Union):
    """The members of ``pmix_value_t.data`` that are used here; ``space`` has the size of the largest."""

    _fields_ = [
        ("flag", ctypes.c_bool),
        ("string", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("uint16", ctypes.c_uint16),
        ("uint32", ctypes.c_uint32),
        ("array", ctypes.POINTER(Array)),
        ("bytes", Bytes),
        ("space", ctypes.c_uint64 * 3),
    ]


class Value(ctypes.Structure):
    """``pmix_value_t``."""

    _fields_ = [("kind", ctypes.c_uint16), ("data", Data)]


class Info(ctypes.Structure):
    """``pmix_info_t``."""

    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", Value)]


_Status, _Pointer, _Size = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
_Procs, _Infos = ctypes.POINTER(Proc), ctypes.POINTER(Info)
_Done = ctypes.CFUNCTYPE(None, _Status, _Pointer)
_Release = ctypes.CFUNCTYPE(None, _Pointer)
_Collected = ctypes.CFUNCTYPE(None, _Status, _Pointer, _Size, _Pointer, _Release, _Pointer)
_Informed = ctypes.CFUNCTYPE(None, _Status, _Infos, _Size, _Pointer, _Release, _Pointer)
_ClientCall = ctypes.CFUNCTYPE(_Status, _Procs, _Pointer, _Pointer, _Pointer)
_AbortCall = ctypes.CFUNCTYPE(_Status, _Procs, _Pointer, _Status, ctypes.c_char_p, _Procs, _Size, _Pointer, _Pointer)
_FenceCall = ctypes.CFUNCTYPE(_Status, _Procs, _Size, _Infos, _Size, _Pointer, _Size, _Collected, _Pointer)
_ModexCall = ctypes.CFUNCTYPE(_Status, _Procs, _Infos, _Size, _Pointer, _Pointer)
_RegisterCall = ctypes.CFUNCTYPE(_Status, _Pointer, _Size, _Infos, _Size, _Pointer, _Pointer)
_LogCall = ctypes.CFUNCTYPE(None, _Procs, _Infos, _Size, _Infos, _Size, _Done, _Pointer)
_ControlCall = ctypes.CFUNCTYPE(_Status, _Procs, _Procs, _Size, _Infos, _Size, _Pointer, _Pointer)
_GroupCall = ctypes.CFUNCTYPE(
    _Status, ctypes.c_uint8, ctypes.c_char_p, _Procs, _Size, _Infos, _Size, _Informed, _Pointer
)


_malloc = ctypes.CDLL(None).malloc
_malloc.restype, _malloc.argtypes = _Pointer, (_Size,)


class InfoList:
    """An array of ``pmix_info_t``, and what it points to."""

    def __init__(self) -> None:
        """An empty array."""
        self._entries: list[tuple[str, int, str, Any]] = []
        self._kept: list[object] = []

    def add(self, key: str, value: str | bool) -> InfoList:
        """Add a string or a truth."""
        if isinstance(value, bool):
            return self._add(key, _BOOL, "flag", value)
        return self._add(key, _STRING, "string", value.encode())

    def number(self, key: str, kind: int, value: int) -> InfoList:
        """Add a number of one of PMIx's types."""
        return self._add(key, kind, {_UINT16: "uint16", _SIZE: "size"}.get(kind, "uint32"), value)

    def give(self, key: str, value: bytes) -> InfoList:
        """Add a byte object, whose memory will be the reader's to free."""
        memory = _malloc(len(value))
        ctypes.memmove(memory, value, len(value))
        return self._add(key, _BYTES, "bytes", Bytes(memory, len(value)))

    def array(self, key: str, kind: int, items: Any) -> InfoList:
        """Add an array of structures."""
        self._keep(items)
        array = self._keep(Array(kind, len(items), ctypes.addressof(items)))
        return self._add(key, _ARRAY, "array", ctypes.pointer(array))

    def made(self) -> Any:
        """The array. It is valid as long as this object."""
        infos = self._keep((Info * len(self._entries))())
        for info, (key, kind, member, value) in zip(infos, self._entries, strict=True):
            info.key, info.value.kind = key.encode(), kind
            setattr(info.value.data, member, value)
        return infos

    def _add(self, key: str, kind: int, member: str, value: object) -> InfoList:
        self._entries.append((key, kind, member, value))
        return self

    def _keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value


def job_infos(job: Job, kept: list[object]) -> Any:
    """The arguments of ``PMIx_server_register_nspace``: the job, its nodes, and each of its ranks."""
    size, mine = len(job.placement), job.ranks(job.node)
    on_node = [job.ranks(node) for node in range(len(job.nodes))]
    infos = InfoList()
    for key in ("pmix.job.size", "pmix.univ.size", "pmix.max.size"):
        infos.number(key, _UINT32, size)
    infos.number("pmix.job.napps", _UINT32, 1).number("pmix.num.nodes", _UINT32, len(job.nodes))
    infos.add("pmix.nmap", "raw:" + ",".join(job.nodes))
    infos.add("pmix.pmap", "raw:" + ";".join(",".join(map(str, ranks)) for ranks in on_node))
    infos.number("pmix.local.size", _UINT32, len(mine)).number("pmix.node.size", _UINT32, len(mine))
    infos.add("pmix.lpeers", ",".join(map(str, mine))).number("pmix.lldr", _RANK, mine[0])
    infos.add("pmix.tmpdir", job.folder).add("pmix.nsdir", job.folder)
    if job.crowded:
        infos.add("pmix.ndosub", True)
    for rank, node in enumerate(job.placement):
        local = on_node[node].index(rank)
        each = InfoList().number("pmix.rank", _RANK, rank).number("pmix.appnum", _UINT32, 0)
        each.number("pmix.grank", _RANK, rank).number("pmix.apprank", _RANK, rank)
        each.number("pmix.lrank", _UINT16, local).number("pmix.nrank", _UINT16, local)
        each.number("pmix.nodeid", _UINT32, node).add("pmix.hname", job.nodes[node])
        if node == job.node:
            each.add("pmix.pdir", folder_of(job, rank))
        kept.append(each)
        infos.array("pmix.pdata", _INFO, each.made())
    kept.append(infos)
    return infos.made()


def folder_of(job: Job, rank: int) -> str:
    """Where Open MPI keeps files of a rank."""
    return os.path.join(job.folder, str(rank))


class Server:
    """libpmix as a server, whose clients are the ranks of its node."""

    def __init__(self, job: Job, send: Callable[[object], None]) -> None:
        """Not started yet. ``send`` takes what other nodes must answer; it is called from the library's threads."""
        self._job = job
        self._send_now = send
        self._lock = threading.Lock()
        self._pmix: Any = None
        self._pending: dict[int, Callable[[int, bytes, int], None]] = {}
        self._kept: list[object] = []  # what the library may read for as long as it runs
        self._lent: dict[int, object] = {}  # what it reads until it calls _returned
        self._release = _Release(self._returned)
        self._count = 0
        self._unreachable = False
        self.using: set[int] = set()  # the ranks that are between MPI_Init and MPI_Finalize

    def start(self) -> None:
        """Load the library and start to serve."""
        self._pmix = ctypes.CDLL(self._job.library)
        self._pmix.PMIx_Get_version.restype = ctypes.c_char_p
        version = self._pmix.PMIx_Get_version().decode()
        if not version.startswith(f"OpenPMIx {MAJOR}."):
            raise RuntimeError(f"expected {self._job.library} to be OpenPMIx {MAJOR}, got {version!r}")
        infos = self._keep(InfoList().add("pmix.srv.nspace", f"{self._job.name}.server"))
        infos.number("pmix.srv.rank", _RANK, self._job.node).add("pmix.hname", self._job.nodes[self._job.node])
        given = infos.add("pmix.srvr.tmpdir", self._job.folder).add("pmix.sys.tmpdir", self._job.folder).made()
        table = self._keep((ctypes.c_void_p * _SLOTS)(*self._callbacks()))
        self._check("PMIx_server_init", self._pmix.PMIx_server_init(table, given, _Size(len(given))))
        mine, about = self._job.ranks(self._job.node), job_infos(self._job, self._kept)
        name = ctypes.create_string_buffer(self._job.name.encode(), 256)
        self._wait("PMIx_server_register_nspace", name, len(mine), about, _Size(len(about)))
        for rank in mine:
            os.mkdir(folder_of(self._job, rank))
            client = ctypes.byref(self._proc(rank))
            self._wait("PMIx_server_register_client", client, os.getuid(), os.getgid(), None)

    def variables(self, rank: int) -> dict[str, str]:
        """The environment variables of a rank."""
        found = ctypes.POINTER(ctypes.c_char_p)()
        client = ctypes.byref(self._proc(rank))
        self._check("PMIx_server_setup_fork", self._pmix.PMIx_server_setup_fork(client, ctypes.byref(found)))
        index, result = 0, dict[str, str]()
        while (entry := found[index]) is not None:
            key, _, value = os.fsdecode(entry).partition("=")
            result[key] = value
            index += 1
        return result

    def fail(self) -> None:
        """Answer what is asked and will be asked with an error: there is no way to the other nodes any more."""
        with self._lock:
            self._unreachable = True
            pending, self._pending = self._pending, {}
        for answer in pending.values():
            answer(_ERROR, b"", 0)

    def answer(self, number: int, status: int, data: bytes, context: int) -> None:
        """Pass on what the other nodes have answered."""
        with self._lock:
            action = self._pending.pop(number, None)
        if action is not None:
            action(status, data, context)

    def stop(self) -> None:
        """End the library."""
        self._pmix.PMIx_server_finalize()

    def _callbacks(self) -> Iterable[int | None]:
        table: list[int | None] = [None] * _SLOTS
        for slot, kind, function in (
            (_CONNECTED, _ClientCall, self._client_connected),
            (_FINALIZED, _ClientCall, self._client_finalized),
            (_ABORT, _AbortCall, lambda *_: _DONE),  # the rank ends itself, its launcher or its peers notice
            (_FENCE, _FenceCall, self._fence),
            (_MODEX, _ModexCall, lambda *_: _NOT_FOUND),  # a fence has brought all that other ranks have published
            (_REGISTER, _RegisterCall, lambda *_: _DONE),
            (_LOG, _LogCall, self._log),
            (_JOB_CONTROL, _ControlCall, lambda *_: _NOT_SUPPORTED),  # the library itself removes files of a lost rank
            (_GROUP, _GroupCall, self._group),
        ):
            callback = self._keep(kind(function))
            table[slot] = ctypes.cast(callback, ctypes.c_void_p).value
        return table

    def _client_connected(self, proc: Any, *_: object) -> int:
        self.using.add(proc.contents.rank)
        return _DONE

    def _client_finalized(self, proc: Any, *_: object) -> int:
        self.using.discard(proc.contents.rank)
        return _DONE

    def _log(
        self, _: Any, infos: Any, ninfos: int, directives: Any, ndirectives: int, call: Any, argument: int
    ) -> None:
        """Print what a rank has to say, mostly why MPI ends it."""
        del directives, ndirectives
        for info in infos[:ninfos]:
            if info.value.kind == _STRING and info.value.data.string:
                os.write(2, info.value.data.string)
        # Not from here: the library holds a lock that the answer needs.
        threading.Thread(target=call, args=(_SUCCESS, argument), daemon=True).start()

    def _fence(
        self, procs: Any, nprocs: int, infos: Any, ninfos: int, data: int | None, size: int, call: Any, argument: int
    ) -> int:
        del infos, ninfos
        mine = ctypes.string_at(data, size) if data else b""

        def answer(status: int, together: bytes, context: int) -> None:
            del context
            buffer = ctypes.create_string_buffer(together, len(together))
            call(status, ctypes.addressof(buffer), len(together), argument, self._release, self._lend(buffer))

        return self._ask(answer, "fence", self._members(procs, nprocs), mine, False)

    def _group(
        self, what: int, name: bytes, procs: Any, nprocs: int, infos: Any, ninfos: int, call: Any, argument: int
    ) -> int:
        if what != _CONSTRUCT:
            return _DONE
        mine, numbered = b"", False
        for info in infos[:ninfos]:
            if info.key == b"pmix.grp.endpt":
                mine = ctypes.string_at(info.value.data.bytes.bytes, info.value.data.bytes.size)
            elif info.key == b"pmix.grp.actxid":
                numbered = True
        members = self._members(procs, nprocs)

        def answer(status: int, together: bytes, context: int) -> None:
            array = (Proc * len(members))(*map(self._proc, members))
            result = InfoList().array("pmix.grp.mbrs", _PROC, array)
            if numbered:
                result.number("pmix.grp.ctxid", _SIZE, context)
            if together:
                result.give("pmix.grp.endpt", together)
            made = result.made()
            call(status, made, len(made), argument, self._release, self._lend(result))

        return self._ask(answer, f"group {os.fsdecode(name)}", members, mine, numbered)

    def _members(self, procs: Any, nprocs: int) -> tuple[int, ...]:
        ranks = {procs[index].rank for index in range(nprocs)}
        return tuple(range(len(self._job.placement))) if _EVERY_RANK in ranks else tuple(sorted(ranks))

    def _ask(
        self,
        answer: Callable[[int, bytes, int], None],
        what: str,
        members: tuple[int, ...],
        data: bytes,
        numbered: bool,
    ) -> int:
        with self._lock:
            if self._unreachable:
                return _ERROR
            self._count += 1
            self._pending[self._count] = answer
            try:
                self._send_now((what, self._count, members, data, numbered))
            except OSError:  # the rank has ended
                del self._pending[self._count]
                return _ERROR
        return _SUCCESS

    def _proc(self, rank: int) -> Proc:
        return Proc(self._job.name.encode(), rank)

    def _wait(self, function: str, *arguments: Any) -> None:
        """Call a function that reports its end by a callback."""
        ended = threading.Event()
        result: list[int] = []

        def report(status: int, _: int | None) -> None:
            result.append(status)
            ended.set()

        callback = self._keep(_Done(report))
        status = getattr(self._pmix, function)(*arguments, callback, None)
        if status == _SUCCESS:
            if not ended.wait(PATIENCE):
                raise RuntimeError(f"{function} did not end within {PATIENCE:.0f} s")
            status = result[0]
        self._check(function, status)

    def _check(self, function: str, status: int) -> None:
        if status not in (_SUCCESS, _DONE):
            self._pmix.PMIx_Error_string.restype = ctypes.c_char_p
            raise RuntimeError(f"{function}: {self._pmix.PMIx_Error_string(status).decode()} ({status})")

    def _keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value

    def _lend(self, value: object) -> int:
        with self._lock:
            self._count += 1
            self._lent[self._count] = value
            return self._count

    def _returned(self, number: int | None) -> None:
        with self._lock:
            self._lent.pop(number or 0, None)


class Ranks:
    """The connections with the ranks of the node. The first rank, which has started this program, forwards requests."""

    def __init__(self, first: Connection[Any, Any], parent: int) -> None:
        """Take the first rank's connection and process."""
        self._first = first
        self._job = Job(*first.recv())
        self._server = Server(self._job, first.send)
        self._listener = socket.socket(socket.AF_UNIX)
        self._number = {first: self._job.ranks(self._job.node)[0]}  # the ranks that are connected
        self._ends: dict[int, Connection[Any, Any]] = {}  # of their processes
        self._watch(first, parent)

    def serve(self) -> None:
        """Start the server, and serve until the last rank has ended or needs no server any more."""
        os.chdir(self._job.folder)  # the path of a socket has at most 107 bytes
        try:
            try:
                self._listener.bind(SOCKET)
                self._listener.listen(len(self._job.placement))
                self._server.start()
                self._first.send((True, self._server.variables(self._number[self._first])))
            except (OSError, AttributeError, RuntimeError) as error:
                self._first.send((False, str(error)))
                return
            # A rank that has not come by the end of the first one does not come any more.
            while self._number:
                found = wait([self._listener, *self._number, *self._ends])
                for ready in found:
                    if isinstance(ready, int) and ready in self._ends:
                        self._drop(self._ends[ready])
                    elif ready in self._number:
                        self._receive(ready)
                if self._listener in found:  # last: a new connection may get the number of one that was closed above
                    self._accept()
        finally:
            shutil.rmtree(self._job.folder, ignore_errors=True)
        signal.alarm(_LAST)  # the library may wait for an answer that does not come; the signal ends this process
        self._server.stop()

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        process, _, _ = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        connection: Connection[Any, Any] = Connection(accepted.detach())
        try:
            if not connection.poll(PATIENCE):
                return
            rank = int(connection.recv())
            connection.send(self._server.variables(rank))
        except (EOFError, OSError, RuntimeError, ValueError):
            return
        self._number[connection] = rank
        self._watch(connection, process)

    def _receive(self, connection: Connection[Any, Any]) -> None:
        try:
            message = connection.recv()
            if message is not None:
                self._server.answer(*message)
            elif self._number[connection] in self._server.using:
                connection.send(STAYS)  # Open MPI ends a process whose server ends before MPI does
            else:
                connection.send(ENDED)
                self._drop(connection)
        except (EOFError, OSError):
            self._drop(connection)

    def _watch(self, connection: Connection[Any, Any], process: int) -> None:
        """Notice the end of a process also while processes that it has forked hold the connection."""
        try:
            self._ends[os.pidfd_open(process)] = connection
        except OSError:  # an old kernel, or the process has ended: then the connection ends
            return

    def _drop(self, connection: Connection[Any, Any]) -> None:
        if self._number.pop(connection, None) is None:
            return
        for end in [end for end, its in self._ends.items() if its is connection]:
            del self._ends[end]
            os.close(end)
        if connection is self._first:
            self._server.fail()
        connection.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.fork() == 0:  # no child of the rank, which may end first
        Ranks(Connection(int(sys.argv[1])), int(sys.argv[2])).serve()
