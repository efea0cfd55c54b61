"""Stores that live in the commit log, brought up to date from it: what a new leader and a standby do before they serve.

The directory is a cache. It knows up to which version of the log it has come; files that are damaged, or whose records
give another result here, are removed and made again from the log.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.stores.clock import Anchor, ByLog, ClockKeeper, StoreClock
from holdfast.stores.log_commit import Journal
from holdfast.stores.service import StoreService
from holdfast.stores.storage.storage import Storage

CHECKPOINT_BYTES: Final = 64 << 20
"""Applied since the last checkpoint when the next one is due: as much must be applied again after a crash."""


class FollowedStores(Storage):
    """The stores of one log, on a thread of the caller's choice; ``lead`` belongs on the event loop."""

    _is_cache = True

    @staticmethod
    def remove(directory: str) -> None:
        """Remove a cache that cannot be used; it is made again from the log."""
        shutil.rmtree(directory, ignore_errors=True)

    def follow(self, entries: Iterable[tuple[int, list[bytes]]]) -> None:
        """As for every storage, with a checkpoint where one is due. After an error these stores are of no use: open
        them again.
        """
        super().follow(entries)
        if self.log_bytes >= CHECKPOINT_BYTES:
            try:
                self.write_checkpoint(self.begin_checkpoint())
            except sqlite3.Error as error:
                raise self.index.unreadable(error) from error
            self.end_checkpoint()

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
        self.effects = self.state.pending_effects()
        keeper = ClockKeeper(clock, self.log.directory, leader)
        keeper.start_in_log(self.last_ms, anchors, by_log)
        return StoreService.begin(self, clock, journal=journal, keeper=keeper, history=log_id)
