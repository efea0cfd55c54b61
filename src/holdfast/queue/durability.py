"""Making the log durable: one sync for all who wait for one, and no second try.

Owns: who syncs (the first who needs it leads, the others follow), ``durable_seq``, the poison after a failure. Does not
own: what is synced (``SyncTarget``, told by the writer), the writing.

Failure model: a sync that fails, of a file or of the directory, is never repeated. Linux may have dropped the dirty
pages and would answer the second call with success. From then on nothing above ``durable_seq`` is ever acknowledged:
every waiter and every later call gets ``Closed`` with the code ``sync_failed``; opening the queue anew finds what is
really there. It learns of the failure from the mark. Where a disk refuses that one, too, what is opened before a
restart of the machine may call durable what only the cache has.
"""

from __future__ import annotations

import threading

from holdfast.errors import Closed, Code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.queue.file_port import FilePort
    from holdfast.queue.write_mark import DurableMark

__all__ = ["Durability", "SyncTarget"]


class SyncTarget:
    """Files to sync, in this order, after which everything before ``next_seq`` is durable."""

    __slots__ = ("files", "next_seq", "place")

    def __init__(self, files: list[int], next_seq: int, place: tuple[DurableMark, int] | None) -> None:
        self.files = files
        self.next_seq = next_seq
        self.place = place


class Durability:
    """Leader and followers over one log.

    ``take`` tells what a sync that begins now has to sync; ``reached`` is told when it has succeeded, ``failed`` when
    it has not. None of the three is called with this object's lock held.
    """

    __slots__ = ("_condition", "_failed", "_port", "_reached", "_syncing", "_take", "failure", "next_seq", "syncs")

    def __init__(
        self,
        port: FilePort,
        next_seq: int,
        take: Callable[[bool], SyncTarget],
        reached: Callable[[SyncTarget], None],
        failed: Callable[[], None],
    ) -> None:
        self._port = port
        self._take = take
        self._reached = reached
        self._failed = failed
        self._condition = threading.Condition(threading.Lock())
        self._syncing = False
        self.failure: OSError | None = None
        self.next_seq = next_seq
        self.syncs = 0

    def wait_for(self, next_seq: int) -> None:
        """Return when everything before ``next_seq`` is durable, by leading a sync or by following one.

        Raises: ``Closed`` (sync_failed) once any sync has failed.
        Cost: one data sync for all threads that wait at the same time; a follower may need the one after the next.
        """
        while self.next_seq < next_seq:
            if self._lead_or_follow(next_seq):
                self._sync(sealed_only=False)

    def sync_sealed(self) -> None:
        """Sync the closed pages that wait for it. Returns when they are, or at once when another syncs already."""
        with self._condition:
            self.raise_if_failed()
            if self._syncing:
                self._condition.wait()
                self.raise_if_failed()
                return
            self._syncing = True
        self._sync(sealed_only=True)

    def fail(self, error: OSError) -> None:
        """A sync has failed, of files or of their names. Raises: ``Closed`` (sync_failed), always."""
        self.failure = error
        self._failed()
        self.raise_if_failed()

    def raise_if_failed(self) -> None:
        """The error of a log that can no longer promise anything."""
        if self.failure is not None:
            raise Closed(
                "a sync failed: nothing more is accepted",
                code=Code.SYNC_FAILED,
                hint="open the queue again; it finds what is on disk",
                durable_seq=self.next_seq - 1,
                cause=self.failure,
            ) from self.failure

    def _lead_or_follow(self, next_seq: int) -> bool:
        with self._condition:
            self.raise_if_failed()
            if self.next_seq >= next_seq:
                return False
            if self._syncing:
                self._condition.wait()
                self.raise_if_failed()
                return False
            self._syncing = True
            return True

    def _sync(self, *, sealed_only: bool) -> None:
        """Lead: sync what there is now, and wake the followers whatever comes of it."""
        try:
            target = self._take(sealed_only)
            try:
                for file in target.files:
                    self._port.sync_data(file)
            except OSError as error:
                self.fail(error)
            self.syncs += 1
            self._reached(target)
            self.next_seq = max(self.next_seq, target.next_seq)
        finally:
            with self._condition:
                self._syncing = False
                self._condition.notify_all()
