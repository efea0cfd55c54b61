"""As ``GroupCommit``, for stores that live in the commit log: a reply waits until the log has the record durably.

What was added in one turn of the loop is one entry of the commit log. Many entries may be under way at once; replies
come in order. The local files are a cache: a frame is appended to them when its entry is durable, never before, so that
they hold nothing that another leader does not know. They are never synced: a start finds in the log what they lack.

When this process does not lead any more, every waiting reply gets ``Fenced``: a later leader knows the outcome.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from holdfast.errors import Fenced, HoldfastError
from holdfast.stores.group_commit import Reply
from holdfast.stores.storage.frames import RECORD, with_version
from holdfast.stores.storage.storage import Storage

Durable = Callable[[int | HoldfastError], None]


class Journal(Protocol):
    """The commit log, as far as the stores need it."""

    def write(self, records: list[tuple[str, bytes]], durable: Durable) -> None:
        """Write one entry: records, each with its store. ``durable`` is called once, in the order of the entries, with
        its version or with why it is unknown whether the log has it; never before this returns."""
        ...


class _Group:
    __slots__ = ("frames", "replies", "size", "version")

    def __init__(self, frames: list[bytes], replies: list[Reply]) -> None:
        self.frames = frames
        self.replies = replies
        self.size = sum(map(len, frames))
        self.version: int | None = None
        """0: it has no record, and waits for its turn only."""


class LogCommit:
    """One journal, one cache, one event loop. Every method belongs on the loop. See ``GroupCommit`` for the callbacks.

    ``syncs`` is of no effect: a record is durable before its reply in any case.
    """

    frame_overhead: Final = len(with_version(RECORD, 1)) - len(RECORD)

    def __init__(
        self,
        storage: Storage,
        journal: Journal,
        *,
        closing: Callable[[], None],
        completed: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._storage = storage
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._closing = closing
        self._completed = completed
        self._failed = failed
        self.syncs = True
        self.disk_is_busy = False
        self.failure: BaseException | None = None
        self.groups = 0
        self.waiting_bytes = 0
        self._frames: list[bytes] = []
        self._stores: list[str] = []
        self._replies: list[Reply] = []
        self._in_flight: deque[_Group] = deque()
        self._due = self._is_closing = self._paused = False
        self._kept_back: list[tuple[list[bytes], int]] | None = None
        """Frames that are durable and wait while the files are copied, with their versions."""
        self._idle: list[asyncio.Future[None]] = []

    def add(self, frame: bytes | None, reply: Reply, *, at_once: bool = False, store: str = "") -> None:
        """As ``GroupCommit.add``."""
        del at_once  # the pipeline gathers, and an entry costs little
        if frame is not None:
            self._frames.append(frame)
            self._stores.append(store)
            self.waiting_bytes += len(frame)
        self._replies.append(reply)
        self.wake()

    def wake(self) -> None:
        """Write an entry in the next turn of the loop."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        if self._paused and self.failure is None:
            return  # ``resume`` comes here again
        if self.failure is None:
            self._is_closing = True
            try:
                self._closing()
            except Exception as error:  # noqa: BLE001 - reported to every waiting caller, or they would wait forever
                self._fail(error)
            finally:
                self._is_closing = False
        self._due = False
        self._write()

    def flush(self) -> None:
        """Write an entry of what was added, if anything: what the log takes next comes after it."""
        if self._frames and self.failure is None:
            self._write()

    def add_part(self, frame: bytes, reply: Reply) -> Callable[[int | HoldfastError], None]:
        """As ``add``, for a frame that the log has with a commit. Returns what is called once: with the version of the
        commit when it is durable, or with the error."""
        assert not self._frames, "what was added before was flushed"
        group = _Group([frame], [reply])
        self.waiting_bytes += group.size
        self._in_flight.append(group)
        return partial(self._durable, group)

    def end_group(self) -> None:
        """What was added until now ends with its own entry. A checkpoint rests on this."""
        if not self._is_closing and self.failure is None:
            self._write()

    def _write(self) -> None:
        frames, stores, replies = self._frames, self._stores, self._replies
        if not replies:
            return
        self._frames, self._stores, self._replies = [], [], []
        group = _Group(frames, replies)
        self._in_flight.append(group)
        records = [(store, frame) for store, frame in zip(stores, frames, strict=True) if frame.startswith(RECORD)]
        if self.failure is not None:
            self._advance()
        elif records:
            self._journal.write(records, partial(self._durable, group))
        else:
            group.version = 0
            self._loop.call_soon(self._advance)

    def _durable(self, group: _Group, outcome: int | HoldfastError) -> None:
        if isinstance(outcome, HoldfastError):
            self._fail(outcome)
        else:
            group.version = outcome
        self._advance()

    def _advance(self) -> None:
        while self._in_flight and self.failure is None and (version := self._in_flight[0].version) is not None:
            group = self._in_flight.popleft()
            try:
                self._append(group.frames, version)
            except BaseException as error:  # noqa: BLE001 - reported to the waiting callers
                self._fail(error)
                self._in_flight.appendleft(group)
                break
            self._finish(group)
        self._give_up()
        if not self._in_flight and not self._replies:
            for waiting in self._idle:
                if not waiting.done():
                    waiting.set_result(None)
            self._idle.clear()

    def _append(self, frames: list[bytes], version: int) -> None:
        if self._kept_back is None:
            self._storage.append(frames, version)
        else:
            self._kept_back.append((frames, version))

    @contextmanager
    def files_held(self) -> Generator[None]:
        """Append nothing to the files until exit: they end with a whole entry. Replies go on, and memory grows."""
        assert self._kept_back is None, "the files are held once"
        self._kept_back = []
        try:
            yield
        finally:
            kept_back, self._kept_back = self._kept_back, None
            try:
                for frames, version in kept_back:
                    self._storage.append(frames, version)
            except BaseException as error:  # noqa: BLE001 - reported to every waiting caller
                self.poison(error)

    def _give_up(self) -> None:
        """After a failure: give every reply that waits."""
        while self._in_flight and self.failure is not None:
            self._finish(self._in_flight.popleft())

    def _finish(self, group: _Group) -> None:
        self.waiting_bytes -= group.size
        self.groups += 1
        for reply in group.replies:
            try:
                reply(self.failure)
            except Exception as bug:  # noqa: BLE001 - reported to every waiting caller, or the rest would wait forever
                self._fail(bug)
        if self.failure is None:
            self._completed()

    def _fail(self, error: BaseException) -> None:
        if self.failure is not None:
            return
        self.failure = error
        if not isinstance(error, Fenced):  # the log says itself that its leadership is over
            self._failed(error)

    def poison(self, error: BaseException) -> None:
        """As ``GroupCommit.poison``."""
        self._frames, self._stores = [], []
        self._fail(error)
        self._loop.call_soon(self._advance)
        self.resume()
        self.wake()

    def pause(self) -> None:
        """Write no more entries until ``resume``."""
        self._paused = True

    def resume(self) -> None:
        """Write entries again after ``pause``."""
        self._paused = False
        if self._due:
            self._loop.call_soon(self._take)

    async def turn(self) -> None:
        """Return when everything added until now was replied to, or the leadership is over."""
        waiting: asyncio.Future[None] = self._loop.create_future()
        self.add(None, lambda _error: None if waiting.done() else waiting.set_result(None))
        await waiting

    async def drain(self) -> None:
        """Return when every reply was given."""
        while self._in_flight or self._replies:
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(waiting)
            await waiting

    async def close(self) -> None:
        """Give every reply."""
        await self.drain()
