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

    __slots__ = (
        "_condition",
        "_failed",
        "_lock",
        "_port",
        "_reached",
        "_syncing",
        "_take",
        "failure",
        "next_seq",
        "syncs",
    )

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
        # Taken by itself: an interrupt inside the condition's own ``with`` would leave it locked for ever.
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
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
            self._lead_or_follow(next_seq)

    def sync_sealed(self) -> None:
        """Sync the closed pages that wait for it. Returns when they are, or at once when another syncs already."""
        self._lead_or_follow(None)

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

    def _lead_or_follow(self, next_seq: int | None) -> None:
        """Sync what there is now and wake the followers whatever comes of it; or wait until another has.

        ``next_seq`` is what is to be durable; None is for the closed pages alone.
        """
        leads = False
        try:
            with self._lock:
                self.raise_if_failed()
                if next_seq is not None and self.next_seq >= next_seq:
                    return
                if self._syncing:
                    self._condition.wait()
                    self.raise_if_failed()
                    return
                leads = self._syncing = True  # together: an interrupt leaves no sync that nobody leads
            self._sync(sealed_only=next_seq is None)
        finally:
            if leads:
                with self._lock:
                    self._syncing = False
                    self._condition.notify_all()

    def _sync(self, *, sealed_only: bool) -> None:
        target = self._take(sealed_only)
        try:
            for file in target.files:
                self._port.sync_data(file)
        except OSError as error:
            self.fail(error)
        self.syncs += 1
        self._reached(target)
        self.next_seq = max(self.next_seq, target.next_seq)
