"""The object store in a local directory, with worker processes: the embedded default.

Writers take creates, readers everything else, so a long listing never delays the log. A worker carries out one request
at a time. If requests wait ``QUEUE_SECONDS`` after one found no idle worker, workers are started in the background, up
to the lane's size; a failed start is repeated after ``START_AGAIN_SECONDS``.

A writer that reports a failed sync, or dies during a create, poisons the store: every later create is ``Unknown`` and
final, because what is durable is no longer known. A restart repairs it, because names are synced again before they are
reported. A reader that dies fails its request as ``Unavailable``.

A worker that finds another directory at the path of the root or of the batches poisons the store as well. All workers
compare with what the first one saw, so a later one does not take the other directory for the log.

Workers are processes because a thread takes the leader's interpreter after each system call: threads gave 22,000-27,000
commits/s where processes gave 35,000-38,000, at 3 to 4 times the CPU per PUT (``benchmarks/directory_put.py``).
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import logging
import os
import secrets
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, cast

from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound, Unavailable
from holdfast.files.durable_directory import make_durable_directory
from holdfast.objects.directory import worker
from holdfast.objects.directory.files import PosixFiles, settled
from holdfast.objects.directory.identity import Inode, Unstable, decode_identity, replaced
from holdfast.objects.directory.objects import COUNTDOWN_DIRECTORY
from holdfast.objects.port import CREATED, CreateAnswer, Listed, Refused, Unknown, WithoutLeftovers, require_key


class DurableDirectory:
    """An ``ObjectReader`` for objects that another process reported as durable."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.abspath(root)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says."""
        try:
            file = os.open(f"{self._root}/{require_key(key)}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return PosixFiles().read(file, start, length)
            finally:
                os.close(file)
        except FileNotFoundError:
            raise NotFound("there is no such object", key=key) from None
        except OSError as error:
            raise Unavailable("the directory cannot be read", key=key, cause=str(error)) from error

    async def close(self) -> None:
        """As the port says."""


WRITERS: Final = 4
READERS: Final = 2
STOP_SECONDS: Final = 10.0
QUEUE_SECONDS: Final = 0.02
"""A queue that is gone by then needs no further worker: a start takes as long."""
REPLACED_HINT: Final = (
    "what was acknowledged is in the directory that was open: put that one back at its path, then start again"
)
START_AGAIN_SECONDS: Final = 5.0
"""The pause after a failed start, so that a machine short of memory is not asked at every commit."""

_logger = logging.getLogger(__name__)

Answer = tuple[int, bytes]


class _Died(Exception):
    """The worker ended before its answer."""


class _Request(NamedTuple):
    operation: int
    parts: builtins.list[bytes]
    answer: asyncio.Future[Answer]
    """Done early when the caller was cancelled; the request continues."""


class _Worker(asyncio.Protocol):
    """One worker process and its current request."""

    def __init__(self, process: subprocess.Popen[bytes], stream: socket.socket, lane: _Lane) -> None:
        self.process = process
        self._stream = stream
        self._lane = lane
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._asked: _Request | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, request: _Request) -> None:
        assert self._asked is None, "a worker carries one request at a time"
        assert self._transport is not None, "only a connected worker is asked"
        self._asked = request
        self._transport.writelines(request.parts)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = worker.read_answer_head(self._received)
        if head is None or len(self._received) < head[0]:
            return
        size, status = head
        assert len(self._received) == size, "a worker sends one answer for one request"
        payload = bytes(memoryview(self._received)[worker.ANSWER_HEAD_BYTES :])
        self._received = bytearray()
        asked, self._asked = self._asked, None
        assert asked is not None, "a worker sends answers only"
        # Poison the store here: the caller may have been cancelled.
        if (asked.operation == worker.CREATE and status == worker.POISONED) or status == worker.REPLACED:
            self._lane.poison(payload.decode())
        self._lane.became_idle(self)
        if not asked.answer.done():
            asked.answer.set_result((status, payload))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        asked, self._asked = self._asked, None
        if asked is not None and asked.operation == worker.CREATE:
            self._lane.poison("a writer process died with a create in hand, so what is durable is unknown")
        self._lane.lost(self)
        if asked is not None and not asked.answer.done():
            asked.answer.set_exception(_Died("the worker process ended"))

    def has_ended(self) -> bool:
        """Whether the idle worker has ended, also before the loop notices."""
        try:
            return not self._stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Lane:
    """The workers of one kind, and the requests that wait for one. ``poison`` gets the reason to end all creates.

    ``known``: the identities of the directories of the log, for workers that are started; the owner adds to it.
    """

    def __init__(
        self,
        root: str,
        size: int,
        poison: Callable[[str], object],
        known: Mapping[str, Inode] = {},
    ) -> None:
        self._root = root
        self._size = size
        self._known = known
        self.poison = poison
        self._workers: builtins.list[_Worker] = []
        self._idle: builtins.list[_Worker] = []
        self._unreaped: builtins.list[subprocess.Popen[bytes]] = []
        self._waiting: deque[_Request] = deque()
        self._starting = asyncio.Lock()
        self._background_start: asyncio.Task[None] | None = None
        self._start_again_at = 0.0
        self._closed = False

    async def ask(self, operation: int, key: str, argument: bytes) -> Answer:
        """Raises: _Died, OSError when there is no worker and none can be started."""
        while self._idle and self._idle[-1].has_ended():
            self.lost(self._idle[-1])
        if not self._workers:
            await self._start_first()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        request = _Request(operation, [worker.encode_request_head(operation, key, len(argument)), argument], answer)
        if self._idle:
            self._idle.pop().ask(request)
        else:
            self._waiting.append(request)
            if self._may_background_start():
                self._background_start = asyncio.create_task(self._start_more())
        return await answer

    def _may_background_start(self) -> bool:
        """One start at a time, and a pause after a failed one."""
        return (
            len(self._workers) < self._size
            and not self._closed
            and (self._background_start is None or self._background_start.done())
            and asyncio.get_running_loop().time() >= self._start_again_at
        )

    async def _start_first(self) -> None:
        """A worker runs on return. Raises: OSError, _Died when closed."""
        async with self._starting:
            if not self._workers:
                await self._start_one()

    async def _start_more(self) -> None:
        """Start workers while requests wait."""
        await asyncio.sleep(QUEUE_SECONDS)
        async with self._starting:
            while self._waiting and len(self._workers) < self._size and not self._closed:
                try:
                    await self._start_one()
                except OSError as error:  # with no worker left, the next request raises the reason
                    self._start_again_at = asyncio.get_running_loop().time() + START_AGAIN_SECONDS
                    _logger.warning(
                        "a worker of the directory could not be started left=%d of=%d error=%s",
                        len(self._workers),
                        self._size,
                        error,
                    )
                    return

    async def _start_one(self) -> None:
        """Raises: OSError, _Died when closed."""
        if self._closed:
            raise _Died("the store is closed")
        self._unreaped = [process for process in self._unreaped if process.poll() is None]
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.to_thread(self._spawn, theirs)
        except RuntimeError as error:  # no thread could be started
            ours.close()
            raise OSError(errno.EAGAIN, str(error)) from error
        except BaseException:
            ours.close()
            raise
        self._unreaped.append(process)
        ours.setblocking(False)
        started = _Worker(process, ours, self)
        await asyncio.get_running_loop().create_connection(lambda: started, sock=ours)
        self._workers.append(started)
        self.became_idle(started)

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        # Closed here, not by the caller, which may be cancelled: a descriptor that is reused while the process starts
        # could be a client's connection when it is inherited.
        with theirs:
            return subprocess.Popen(
                worker.worker_command(self._root, secrets.token_hex(8), theirs.fileno(), self._known),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
            )

    def became_idle(self, one: _Worker) -> None:
        if self._waiting and one.has_ended():
            return  # the loop notices next; another worker takes the waiting requests
        while self._waiting:
            request = self._waiting.popleft()
            if not request.answer.done():
                one.ask(request)
                return
        self._idle.append(one)

    def lost(self, one: _Worker) -> None:
        if one in self._workers:
            self._workers.remove(one)
        if one in self._idle:
            self._idle.remove(one)
        if not self._workers:
            while self._waiting:
                request = self._waiting.popleft()
                if not request.answer.done():
                    request.answer.set_exception(_Died("the worker process ended"))

    async def close(self) -> None:
        """As the port says, once the requests in hand are done and the workers have ended."""
        self._closed = True
        async with self._starting:
            for one in list(self._workers):
                one.stop()
        if self._background_start is not None:
            await asyncio.wait({self._background_start})
        await asyncio.gather(*(asyncio.to_thread(_reap, process) for process in self._unreaped))


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process on a hanging disk survives even this
            process.wait(STOP_SECONDS)


class DirectoryStore(WithoutLeftovers):
    """One file per object; a name appears only on complete bytes, and ``Created`` survives power loss."""

    def __init__(self, root: Path, *, writers: int = WRITERS, readers: int = READERS) -> None:
        """Raises: OSError when an existing ``root`` cannot be opened, Unstable."""
        self.url = root.as_uri()
        self._root = str(root)
        self._known: dict[str, Inode] = {}
        self._handles: builtins.list[int] = []
        self._files = PosixFiles()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._hold("")
            self._hold(COUNTDOWN_DIRECTORY)
        self._writers = _Lane(self._root, writers, self._poisoned, self._known)
        self._readers = _Lane(self._root, readers, self._poisoned, self._known)
        self._poison: str | None = None

    def _hold(self, folder: str) -> None:
        """Keep a directory of the log open, so that its inode stays its own. Raises: OSError, Unstable."""
        handle, self._known[folder] = settled(self._files, self._path(folder))
        self._handles.append(handle)

    def _path(self, folder: str) -> str:
        return f"{self._root}/{folder}" if folder else self._root

    @classmethod
    def open(cls, root: Path, *, create_missing: bool = False) -> DirectoryStore:
        """The store in the directory ``root``. An absent directory is often an unmounted disk, so only
        ``create_missing`` makes it. Raises: NotFound when it is absent, Unavailable when it cannot be made or opened,
        InvalidRequest (store_unfit) where its file system has no lasting inodes."""
        root = Path(os.path.abspath(root))
        if not create_missing and not root.is_dir():
            raise NotFound(
                "the directory does not exist",
                code=Code.LOG_EMPTY,
                hint="mount it, or start a new log there with: holdfast log init",
                path=str(root),
            )
        try:
            make_durable_directory(str(root))
        except OSError as error:
            raise Unavailable("the directory cannot be made", path=str(root), cause=str(error)) from error
        try:
            return cls(root)
        except Unstable as error:
            raise InvalidRequest(error.strerror or "", code=Code.STORE_UNFIT, url=root.as_uri()) from error
        except OSError as error:
            raise Unavailable("the directory cannot be opened", path=str(root), cause=str(error)) from error

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """As the port says. Also raises InvalidRequest (store_unfit) where a name cannot be created only if absent."""
        require_key(key)
        if (reason := self._reason_to_refuse()) is not None:
            return Unknown(reason, final=True)
        try:
            status, payload = await self._writers.ask(worker.CREATE, key, data)
        except _Died as error:
            reason = self._reason_to_refuse()
            return Unknown(str(error)) if reason is None else Unknown(reason, final=True)
        except OSError as error:
            return Unknown(f"no process could be started to write to the directory: {error}")
        if (reason := self._reason_to_refuse()) is not None:
            return Unknown(reason, final=True)
        match status:
            case worker.DONE:
                if payload and not self._is_known(COUNTDOWN_DIRECTORY, payload):
                    return Unknown(self._reason_to_refuse() or "", final=True)
                return CREATED
            case worker.REFUSED:
                return Refused()
            case worker.UNFIT:
                raise InvalidRequest(payload.decode(), code=Code.STORE_UNFIT, url=self.url)
            case worker.POISONED | worker.REPLACED:
                return Unknown(self._poisoned(payload.decode()), final=True)
            case _:
                return Unknown(payload.decode())

    def _is_known(self, folder: str, identity: bytes) -> bool:
        """Whether a worker created in the folder that the others know. The first one says which that is."""
        inode = decode_identity(identity.decode())
        if self._known.setdefault(folder, inode) == inode:
            return True
        self._poisoned(str(replaced(self._path(folder), inode).strerror))
        return False

    def _reason_to_refuse(self) -> str | None:
        return self._poison

    def _poisoned(self, reason: str) -> str:
        """Keep the first reason: later ones may be its consequence."""
        if self._poison is None:
            self._poison = reason
        return self._poison

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says."""
        status, payload = await self._ask_reader(worker.READ, require_key(key), worker.encode_read(start, length))
        if status == worker.ABSENT:
            raise NotFound("there is no such object", key=key)
        return payload

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """As the port says."""
        _, payload = await self._ask_reader(worker.LIST, prefix, worker.encode_list(after, limit))
        rows = (line.rpartition(" ") for line in payload.decode().splitlines())
        return [Listed(key, int(size)) for key, _, size in rows]

    async def delete(self, *keys: str) -> None:
        """As the port says; durable when it returns."""
        for key in keys:
            require_key(key)
        await self._ask_reader(worker.DELETE, keys[0], worker.encode_delete(keys))

    async def _ask_reader(self, operation: int, key: str, argument: bytes) -> Answer:
        try:
            status, payload = await self._readers.ask(operation, key, argument)
        except (_Died, OSError) as error:
            raise Unavailable("the directory cannot be read", key=key, cause=str(error)) from error
        if status == worker.REPLACED:
            raise CorruptData(payload.decode(), code=Code.DIRECTORY_REPLACED, hint=REPLACED_HINT, url=self.url)
        if status in (worker.FAILED, worker.POISONED):
            raise Unavailable("the directory cannot be read", key=key, cause=payload.decode())
        return status, payload

    async def close(self) -> None:
        """As the port says, once the requests in hand are done and the workers have ended."""
        self._poisoned("the store is closed")
        await asyncio.gather(self._writers.close(), self._readers.close())
        while self._handles:
            self._files.close(self._handles.pop())
