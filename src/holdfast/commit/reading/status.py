"""Looking an attempt up in the log.

Owns: reading the log for a request id from a version on. Does not own: when that is needed and what it proves
(``pipeline`` bans first, ``service`` proves ownership after).

Cost: two header reads per reign back to the version, log2 of the reign's length, then one GET per object after it.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

from holdfast.commit.format.batch import Header, Kind, LoggedTransaction, read_body_table
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.reading.reader import LoggedBatch, Reign, damage_unless_truncated, follow, reigns_back, start_after
from holdfast.errors import CorruptData, NotFound
from holdfast.objects.port import ObjectStore

__all__ = ["Found", "look_up", "walker_after"]


@dataclass(frozen=True, slots=True)
class Found:
    """The first commit under the id, or None; ``truncated`` when retention removed what would tell."""

    txn: LoggedTransaction | None
    truncated: bool = False


async def look_up(store: ObjectStore, claim: Header, newest: Header, request_id: str, min_version: int) -> Found:
    """Find the first commit of ``request_id`` after ``min_version``, in the log up to ``newest``, which is durable.

    ``claim`` is the newest claim of the chain and ``newest`` the newest object under it.
    Raises: Unavailable, CorruptData.
    """
    try:
        walker = await walker_after(store, claim, newest, min_version)
        async with aclosing(follow(store, walker, until=newest.slot)) as batches:
            async for batch in batches:
                txn = _find(batch, request_id)
                if txn is not None:
                    return Found(txn)
    except NotFound as error:
        found = damage_unless_truncated(error, newest)
        if found is not error:
            raise found from error
        return Found(None, truncated=True)
    return Found(None, truncated=min_version < newest.truncated_through)


async def _reign_of(store: ObjectStore, claim: Header, version: int) -> Reign:
    """The newest reign whose base is at or below ``version``, or genesis."""
    reign: Reign | None = None
    async for reign in reigns_back(store, claim):
        if reign.base <= version:
            return reign
    assert reign is not None, "a log has a genesis"
    return reign


async def walker_after(store: ObjectStore, claim: Header, newest: Header, version: int) -> ChainWalker:
    """A walker that yields the first transaction after ``version`` first, wherever in the log that is.

    Raises: Unavailable, CorruptData, NotFound when retention has removed that part.
    """
    reign = await _reign_of(store, claim, version)
    end = newest if reign.claim.slot == claim.slot else await _end_of(store, reign, claim)
    return await start_after(store, reign, end, version)


async def _end_of(store: ObjectStore, reign: Reign, claim: Header) -> Header:
    """The newest object of an earlier reign: the one before the claim that followed it."""
    async for later in reigns_back(store, claim):
        if later.before is not None and later.before.claim == reign.claim.slot:
            return later.before
    raise CorruptData("a reign has no end", claim=reign.claim.slot)


def _find(batch: LoggedBatch, request_id: str) -> LoggedTransaction | None:
    if batch.header.kind is Kind.CLAIM or not batch.header.transactions:
        return None
    if request_id not in read_body_table(batch.data, batch.header).column("request_id").to_pylist():
        return None
    return next(txn for txn in batch.transactions() if txn.request_id == request_id)
