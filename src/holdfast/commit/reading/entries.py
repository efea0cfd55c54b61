"""What the message stores of a log have done, read back in order: for a leader that takes them over, and a standby."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from holdfast.commit.format.batch import Header, LoggedEntry, StoresMode, decode_records
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.reading.reader import damage_unless_truncated, follow, walker_from
from holdfast.errors import Code, CorruptData, NotFound
from holdfast.objects.port import ObjectStore
from holdfast.values import Slot


class Entries:
    """Reads on from where it stopped. A read that failed is begun again."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._walker: ChainWalker | None = None

    @property
    def next_slot(self) -> Slot | None:
        """Where the next object will be; None before the first read, and after one that failed."""
        return None if self._walker is None else self._walker.next_slot

    async def through(
        self, claim: Header, newest: Header, *, after: int
    ) -> AsyncGenerator[tuple[Header, list[LoggedEntry]], None]:
        """What the stores did from version ``after`` on, up to the live object ``newest``, an object at a time.

        ``claim`` is the newest claim. Objects in which they did nothing are passed over. ``after`` counts the first
        time only. Cost: one GET for each object. Raises: Unavailable; CorruptData, also where the stores were on a disk
        after ``after``; NotFound (``log_truncated``) where retention has removed what comes after ``after``.
        """
        walker, self._walker = self._walker, None
        try:
            if walker is None:
                if after < newest.truncated_through:
                    # Headers name transactions, and entries are none: a later header does not show that one is missing.
                    raise NotFound(
                        "retention has removed what the stores did next", code=Code.LOG_TRUNCATED, after=after
                    )
                walker = await walker_from(self._store, (newest, claim), max(0, after - 1))
            async with aclosing(follow(self._store, walker, until=newest.slot)) as batches:
                before = walker.head
                async for batch in batches:
                    _require_in_log(before, batch.header, after)
                    before = batch.header
                    entries = [entry for entry in decode_records(batch.data, batch.header) if entry.version >= after]
                    if entries:
                        yield batch.header, entries
        except NotFound as error:
            raise damage_unless_truncated(error, newest) from error
        self._walker = walker


def _require_in_log(before: Header | None, header: Header, after: int) -> None:
    """Return unless this claim moved stores into the log that were on a disk after version ``after``."""
    if before is None or header.stores_mode is before.stores_mode or header.stores_mode is not StoresMode.LOG:
        return
    if before.last_version > after:
        raise CorruptData(
            "the stores were moved into the log, and the checkpoint that was made then is missing or damaged",
            code=Code.CORRUPT_LOG,
            hint="copy the objects under stores/ from a mirror or a backup; or make stores of the files that "
            "`holdfast stores move` set aside, and begin a new log with them",
            version=before.last_version,
        )


def entries_before(
    store: ObjectStore, claim: Header, *, after: int
) -> AsyncGenerator[tuple[Header, list[LoggedEntry]], None]:
    """What the stores did from version ``after`` on under the leaders before ``claim``; see ``Entries``."""
    return Entries(store).through(claim, claim, after=after)
