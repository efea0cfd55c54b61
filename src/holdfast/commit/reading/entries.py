"""What the message stores of a log have done, read back in order: for a leader that takes them over."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from holdfast.commit.format.batch import Header, LoggedEntry, decode_records
from holdfast.commit.reading.reader import damage_unless_truncated, follow
from holdfast.commit.reading.status import walker_after
from holdfast.errors import NotFound
from holdfast.objects.port import ObjectStore


async def entries_before(
    store: ObjectStore, claim: Header, *, after: int
) -> AsyncGenerator[tuple[Header, list[LoggedEntry]], None]:
    """What the stores did at or above version ``after`` under the leaders before ``claim``, an object at a time.

    Objects in which they did nothing are passed over. Cost: one GET for each object after ``after``. Raises:
    Unavailable; CorruptData; NotFound (``log_truncated``) where retention has removed what comes after ``after``.
    """
    try:
        walker = await walker_after(store, claim, claim, max(0, after - 1))
        async with aclosing(follow(store, walker, until=claim.slot)) as batches:
            async for batch in batches:
                found = [entry for entry in decode_records(batch.data, batch.header) if entry.version >= after]
                if found:
                    yield batch.header, found
    except NotFound as error:
        raise damage_unless_truncated(error, claim) from error
