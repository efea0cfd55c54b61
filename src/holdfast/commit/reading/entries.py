"""What the message stores of a log have done, read back in order: for a leader that takes them over, and a standby."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from holdfast.commit.format.batch import Header, LoggedEntry, decode_records
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.reading.reader import damage_unless_truncated, follow
from holdfast.commit.reading.status import walker_after
from holdfast.errors import NotFound
from holdfast.objects.port import ObjectStore


class Entries:
    """Reads on from where it stopped. A read that failed is begun again."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._walker: ChainWalker | None = None

    async def through(
        self, claim: Header, newest: Header, *, after: int
    ) -> AsyncGenerator[tuple[Header, list[LoggedEntry]], None]:
        """What the stores did from version ``after`` on, up to the live object ``newest``, an object at a time.

        ``claim`` is the newest claim. Objects in which they did nothing are passed over. ``after`` counts the first
        time only. Cost: one GET for each object. Raises: Unavailable; CorruptData; NotFound (``log_truncated``) where
        retention has removed what comes after ``after``.
        """
        walker, self._walker = self._walker, None
        try:
            if walker is None:
                walker = await walker_after(self._store, claim, newest, max(0, after - 1))
            async with aclosing(follow(self._store, walker, until=newest.slot)) as batches:
                async for batch in batches:
                    found = [entry for entry in decode_records(batch.data, batch.header) if entry.version >= after]
                    if found:
                        yield batch.header, found
        except NotFound as error:
            raise damage_unless_truncated(error, newest) from error
        self._walker = walker


def entries_before(
    store: ObjectStore, claim: Header, *, after: int
) -> AsyncGenerator[tuple[Header, list[LoggedEntry]], None]:
    """What the stores did from version ``after`` on under the leaders before ``claim``; see ``Entries``."""
    return Entries(store).through(claim, claim, after=after)
