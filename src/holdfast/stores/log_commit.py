"""As ``GroupCommit``, for stores that live in the commit log: a confirmation waits until the record is durable there.

What was added in one turn of the loop is one entry of the commit log. Many entries may be under way at once;
confirmations come in order. The local files are a cache: a frame is appended to them when its entry is durable, never
before, so that they hold nothing that another leader does not know. They are never synced: a start finds in the log
what they lack.

While the files are copied, or their disk is full, durable frames are kept back in memory. They are appended later, in
order. ``disk_is_full`` is true from a failed append until the files have everything; new messages are to be refused
meanwhile. Everything else continues, up to ``KEPT_BACK_BYTES_MAX``; above it the stores fail with ``disk_full``.

When this process does not lead any more, every waiting confirmation gets ``Fenced``: a later leader knows the outcome.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from holdfast.commit.stages.events import WhenDurable
from holdfast.errors import Code, HoldfastError, Unavailable
from holdfast.stores.group_commit import Confirm, Confirmations, GroupOwner
from holdfast.stores.storage.frames import RECORD, with_version
from holdfast.stores.storage.storage import Storage

KEPT_BACK_BYTES_MAX: Final = 64 << 20
"""Bytes of frames kept back on a full disk, in addition to those that were accepted when it was found full."""
AGAIN_SECONDS: Final = 1.0
"""From one attempt to append to a full disk to the next."""


class Journal(Protocol):
    """The commit log (``commit.service.CommitService``), as far as the stores need it."""

    def record(self, records: list[tuple[str, bytes]], when_durable: WhenDurable) -> None:
        """Write one entry: records, each with its store. ``when_durable`` is called in the order of the entries, never
        before this returns."""
        ...


@dataclass(slots=True)
class _Group:
    frames: list[bytes]
    confirms: list[Confirm]
    size: int
    version: int | None = None
    """0: it has no record, and waits for its turn only."""


class _KeptBack(NamedTuple):
    """Durable frames that the files lack, and who waits until the files have everything before this."""

    frames: list[bytes]
    version: int
    written: Confirm | None = None


def disk_full() -> Unavailable:
    """The error for what cannot be done while the files lack frames."""
    return Unavailable(
        "the disk of the stores' local files is full",
        code=Code.DISK_FULL,
        hint="free some space: the stores continue by themselves",
        retry_after_ms=int(AGAIN_SECONDS * 1_000),
    )


class LogCommit(Confirmations):
    """One journal, one cache, one event loop. Every method belongs on the loop.

    ``syncs`` is of no effect: a record is durable before its confirmation in any case.
    """

    frame_overhead = len(with_version(RECORD, 1)) - len(RECORD)

    def __init__(self, storage: Storage, journal: Journal, owner: GroupOwner) -> None:
        super().__init__(owner)
        self._storage = storage
        self._journal = journal
        self.syncs = True
        self._stores: list[str] = []
        self._in_flight: deque[_Group] = deque()
        self._due = self._is_closing = False
        self._kept_back: deque[_KeptBack] = deque()
        self.kept_back_bytes = 0
        self._kept_back_bytes_max = 0
        self._files_are_held = False
        self._again: asyncio.TimerHandle | None = None

    def add(self, frame: bytes | None, confirm: Confirm, *, at_once: bool = False, store: str = "") -> None:
        """See ``Confirmations``."""
        del at_once  # the pipeline gathers, and an entry costs little
        if frame is not None:
            self._frames.append(frame)
            self._stores.append(store)
            self.waiting_bytes += len(frame)
        self._unconfirmed.append(confirm)
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
                self._owner.before_group()
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

    def add_part(self, frame: bytes, confirm: Confirm) -> WhenDurable:
        """As ``add``, for a frame that the log has with a commit."""
        assert not self._frames, "what was added before was flushed"
        group = _Group([frame], [confirm], len(frame))
        self.waiting_bytes += group.size
        self._in_flight.append(group)
        return partial(self._durable, group)

    def end_group(self, written: Confirm) -> None:
        """What was added until now ends with its own entry. A checkpoint rests on this.

        ``written`` is called, with None or the error, when the files have all of it and nothing later.
        """
        self.add(None, partial(self._when_written, written))
        if not self._is_closing and self.failure is None:
            self._write()

    def _when_written(self, written: Confirm, error: BaseException | None) -> None:
        if error is None and self._kept_back:
            self._kept_back.append(_KeptBack([], 0, written))
        else:
            written(error)

    def _write(self) -> None:
        frames, stores, confirms = self._frames, self._stores, self._unconfirmed
        if not confirms:
            return
        self._frames, self._stores, self._unconfirmed = [], [], []
        group = _Group(frames, confirms, sum(map(len, frames)))
        self._in_flight.append(group)
        records = [(store, frame) for store, frame in zip(stores, frames, strict=True) if frame.startswith(RECORD)]
        if self.failure is not None:
            self._advance()
        elif records:
            self._journal.record(records, partial(self._durable, group))
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
        if not self._in_flight and not self._unconfirmed:
            self._wake_idle()

    def _append(self, frames: list[bytes], version: int) -> None:
        if not frames:
            return
        self._kept_back.append(_KeptBack(frames, version))
        self.kept_back_bytes += sum(map(len, frames))
        if self._files_are_held:
            return
        if not self.disk_is_full:
            self._append_kept_back()
        elif self.kept_back_bytes > self._kept_back_bytes_max:
            raise Unavailable(
                "the disk of the stores' local files has been full for too long",
                code=Code.DISK_FULL,
                hint="free some space, then start the service again: it finds everything in the log",
                kept_back_bytes=self.kept_back_bytes,
                kept_back_bytes_max=self._kept_back_bytes_max,
            )

    def _append_kept_back(self) -> None:
        """Append what the files lack, as far as the disk has room. An entry may be appended in part."""
        while self._kept_back:
            frames, version, written = self._kept_back[0]
            count = self._storage.append(frames, version)
            self.kept_back_bytes -= sum(map(len, frames[:count]))
            if count < len(frames):
                self._kept_back[0] = _KeptBack(frames[count:], version, written)
                break
            self._kept_back.popleft()
            if written is not None:
                written(None)
        is_full = bool(self._kept_back)
        if is_full:
            self._again = self._loop.call_later(AGAIN_SECONDS, self._append_again)
        if is_full and not self.disk_is_full:
            # What was accepted before it was known may be more than the bound, and is bounded itself.
            self._kept_back_bytes_max = self.kept_back_bytes + self.waiting_bytes + KEPT_BACK_BYTES_MAX
        if is_full is not self.disk_is_full:
            self.disk_is_full = is_full
            self._owner.disk_changed()

    def _append_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self.failure is not None or not self._kept_back:
            return
        try:
            self._append_kept_back()
        except BaseException as error:  # noqa: BLE001 - reported to every waiting caller
            self.poison(error)

    @contextmanager
    def files_held(self) -> Generator[None]:
        """Append nothing to the files until exit: they end with a whole entry. Confirmations go on, and memory grows.

        *Raises*: ``Unavailable`` (disk_full) while the files lack frames.
        """
        assert not self._files_are_held, "the files are held once"
        if self.disk_is_full:
            raise disk_full()
        self._files_are_held = True
        try:
            yield
        finally:
            self._files_are_held = False
            self._append_again()

    def _drop_kept_back(self) -> None:
        """Append no more to the files: the next start finds in the log what they lack."""
        if self._again is not None:
            self._again.cancel()
        kept_back, self._kept_back = self._kept_back, deque()
        self.kept_back_bytes = 0
        for _, _, written in kept_back:
            if written is not None:
                written(self.failure or disk_full())

    def _give_up(self) -> None:
        """After a failure: give every confirmation that waits."""
        while self._in_flight and self.failure is not None:
            self._finish(self._in_flight.popleft())
        if self.failure is not None:
            self._drop_kept_back()

    def _finish(self, group: _Group) -> None:
        self.waiting_bytes -= group.size
        self._give(group.confirms)

    def poison(self, error: BaseException) -> None:
        """As ``GroupCommit.poison``."""
        self._frames, self._stores = [], []
        self._fail(error)
        self._loop.call_soon(self._advance)
        self.resume()
        self.wake()

    def resume(self) -> None:
        """Write entries again after ``pause``."""
        self._paused = False
        if self._due:
            self._loop.call_soon(self._take)

    async def drain(self) -> None:
        """Return when every confirmation was given. Nothing may be added then: a full disk is not waited for."""
        while self._in_flight or self._unconfirmed:
            await self._wait_until_idle()
        if self.disk_is_full:
            self._append_again()
            self._drop_kept_back()

    async def close(self) -> None:
        """Give every confirmation."""
        await self.drain()
