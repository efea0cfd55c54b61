"""What the message stores of a log have done, read back in order: for a leader that takes them over."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from holdfast.commit.format.batch import Header, LoggedEntry, decode_entries
from holdfast.commit.reading.reader import damage_unless_truncated, follow
from holdfast.commit.reading.status import walker_after
from holdfast.errors import NotFound
from holdfast.objects.port import ObjectStore


async def entries_before(
    store: ObjectStore, claim: Header, *, after: int
) -> AsyncGenerator[tuple[Header, list[LoggedEntry]], None]:
    """The entries at or above version ``after`` that the leaders before ``claim`` wrote, an object at a time.

    Objects without entries are passed over. Cost: one GET for each object after ``after``. Raises: Unavailable;
    CorruptData; NotFound (``log_truncated``) where retention has removed what comes after ``after``.
    """
    try:
        walker = await walker_after(store, claim, claim, max(0, after - 1))
        async with aclosing(follow(store, walker, until=claim.slot)) as batches:
            async for batch in batches:
                if batch.header.entries:
                    found = [entry for entry in decode_entries(batch.data, batch.header) if entry.version >= after]
                    yield batch.header, found
    except NotFound as error:
        raise damage_unless_truncated(error, claim) from error
