"""Making the log durable: one sync for all who wait for one, and no second try.

Owns: who syncs (the first who needs it leads, the others follow), ``durable_seq``, the poison after a failure. Does not
own: what is synced (``SyncTarget``, told by the writer), the writing.

Failure model: a sync that fails, of a file or of the directory, is never repeated. Linux may have dropped the dirty
pages and would answer the second call with success. From then on nothing above ``durable_seq`` is ever acknowledged:
every waiter and every later call gets ``Closed`` with the code ``sync_failed``; opening the queue anew finds what is
really there. It learns of the failure from the mark. Where a disk refuses that one, too, what is opened before a
restart of the machine may call durable what only the cache has.

The end (``end``) comes before the files are closed. Whoever waits for a sync then, because the closing was interrupted,
gets ``Closed``: there is nothing left to sync, and that would be no reason to call anything durable.
"""

from __future__ import annotations

import threading

from holdfast.errors import Closed, Code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.queue.files.port import FilePort
    from holdfast.queue.format.write_mark import DurableMark

__all__ = ["Durability", "SyncTarget"]


class SyncTarget:
    """The files of the pages that are ``closed``, then that of the page that is ``open``, if it is to be synced, too.
    After that everything before ``next_seq`` is durable.

    They are told apart because a page that is closed while its sync is under way has got more meanwhile, which wants
    another one.
    """

    __slots__ = ("closed", "next_seq", "open", "place")

    def __init__(
        self, closed: list[int], open_file: int | None, next_seq: int, place: tuple[DurableMark, int] | None
    ) -> None:
        self.closed = closed
        self.open = open_file
        self.next_seq = next_seq
        self.place = place


class Durability:
    """Leader and followers over one log.

    ``take`` tells what a sync that begins now has to sync; ``reached`` is told when it has succeeded, ``failed`` when
    it has not. None of the three is called with this object's lock held.
    """

    __slots__ = (
        "_condition",
        "_ended",
        "_failed",
        "_followed",
        "_lock",
        "_port",
        "_reached",
        "_syncing",
        "_take",
        "_telling",
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
        self._telling = threading.Lock()
        self._syncing = False
        self._followed = False
        """Whether anybody has waited for the sync that is under way."""
        self._ended: Closed | None = None
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
        with self._telling:
            self.failure = error
            self._failed()
        self.raise_if_failed()

    def end(self, reason: Closed) -> None:
        """Nothing more becomes durable. Call before the files are closed; a failure that was met has been told then."""
        with self._lock:
            self._ended = reason
            self._condition.notify_all()
        with self._telling:
            pass

    def _raise_if_over(self) -> None:
        self.raise_if_failed()
        if self._ended is not None:
            raise self._ended.with_traceback(None)

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
                if next_seq is not None and self.next_seq >= next_seq:
                    self.raise_if_failed()
                    return
                self._raise_if_over()
                if self._syncing:
                    self._followed = True
                    self._condition.wait()
                    self.raise_if_failed()
                    return
                leads = self._syncing = True  # together: an interrupt leaves no sync that nobody leads
            self._sync(sealed_only=next_seq is None)
        finally:
            if leads:
                with self._lock:
                    self._syncing = False
                    if self._followed:
                        self._condition.notify_all()
                        self._followed = False

    def _sync(self, *, sealed_only: bool) -> None:
        target = self._take(sealed_only)
        try:
            for file in target.closed:
                self._port.sync_data(file)
            if target.open is not None:
                self._port.sync_data(target.open)
        except OSError as error:
            self.fail(error)
        if self._ended is not None:  # the files may have been closed under it: their numbers were others' then
            self._raise_if_over()
        self.syncs += 1
        self._reached(target)
        self.next_seq = max(self.next_seq, target.next_seq)
