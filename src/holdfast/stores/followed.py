"""Stores that live in the commit log, brought up to date from it: what a new leader and a standby do before they serve.

The directory is a cache. It knows up to which version of the log it has come; files that are damaged, or whose records
give another result here, are removed and made again from the log.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from typing import Final

from holdfast.stores.clock import Anchor, ByLog, ClockKeeper, StoreClock
from holdfast.stores.log_commit import Journal
from holdfast.stores.service import StoreService
from holdfast.stores.storage.storage import Storage

CHECKPOINT_BYTES: Final = 64 << 20
"""Applied since the last checkpoint when the next one is due: as much must be applied again after a crash."""


class FollowedStores:
    """The stores of one log, on a thread of the caller's choice; ``lead`` belongs on the event loop."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self.storage = storage
        self.directory = directory

    @classmethod
    def open(cls, directory: str, *, page_bytes: int, memory_bytes: int) -> FollowedStores:
        """Open the cache, which is made if it is missing. *Raises*: as ``Storage.open``."""
        storage = Storage.open(directory, page_bytes=page_bytes, memory_bytes=memory_bytes, in_log=True)
        return cls(storage, directory)

    @staticmethod
    def remove(directory: str) -> None:
        """Remove a cache that cannot be used; it is made again from the log."""
        shutil.rmtree(directory, ignore_errors=True)

    @property
    def version(self) -> int:
        """The version of the last entry that is here, perhaps only in part; 0 for none."""
        return self.storage.version or 0

    def follow(self, entries: Sequence[tuple[int, list[bytes]]]) -> None:
        """Apply durable entries, each a version with its records. What is here already is passed over.

        *Raises*: ``CorruptData`` when a record gives another result here; ``OSError``; ``Unavailable`` on a full disk.
        After any of them these stores are of no use: open them again.
        """
        storage = self.storage
        storage.follow(entries)
        if storage.log_bytes >= CHECKPOINT_BYTES:
            try:
                storage.write_checkpoint(storage.begin_checkpoint())
            except sqlite3.Error as error:
                raise storage.index.unreadable(error) from error
            storage.end_checkpoint()

    def close(self) -> None:
        """Close the files."""
        self.storage.close()

    @property
    def last_ms(self) -> int:
        """The stores' time of the last record."""
        return self.storage.last_ms

    def lead(
        self,
        journal: Journal,
        clock: StoreClock,
        anchors: Sequence[Anchor] = (),
        by_log: ByLog | None = None,
        *,
        log_id: str = "",
        leader: str = "",
    ) -> StoreService:
        """Serve the stores: what they do from now on goes into ``journal``. ``anchors`` and ``by_log``: what is known
        of their time, see ``StoreClock.start``. ``log_id`` and ``leader``: of the log, as hex digits."""
        self.storage.effects = self.storage.state.pending_effects()
        keeper = ClockKeeper(clock, self.directory, leader)
        keeper.start_in_log(self.storage.last_ms, anchors, by_log)
        return StoreService.begin(self.storage, clock, journal=journal, keeper=keeper, history=log_id)
