"""Where a pipeline stands in the log, and how far its next step goes.

Owns: the choice of the next increment: versions, objects, bytes, and how far behind the head it starts.
Does not own: finding the live chain (``plan``), reading it (the source), the offset (the output's own commit).

An increment ends with an object, or at a version that was asked for. What a step has read is therefore settled for
ever: an object that stands in the live chain never leaves it.

Failure model: as planning a read: NotFound for an empty log, CorruptData for a damaged one, Unavailable.
Cost: the LIST pages and about log2(objects) headers. Memory: 16 bytes per listed object while it is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.commit.format.batch import Header
from holdfast.commit.reading.reader import find_frontier
from holdfast.errors import Code, CorruptData, NotFound
from holdfast.objects.port import ObjectStore
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.source.plan import Chain, live_chain, read_header

__all__ = ["Increment", "LogHead", "first_above", "log_head", "next_increment"]


@dataclass(frozen=True, slots=True)
class LogHead:
    """The newest settled version of a log, and which log it is (its id as 32 hexadecimal digits)."""

    log_id: str
    version: int


@dataclass(frozen=True, slots=True)
class Increment:
    """The versions ``(after, through]`` of one log, which is what one step reads.

    Shape: ``objects`` and ``log_bytes`` are what these versions take in the log; ``behind_bytes`` what is left between
    ``through`` and the head. Empty when ``through == after``: the log has nothing newer.
    """

    head: LogHead
    after: int
    through: int
    objects: int
    log_bytes: int
    behind_bytes: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return self.through <= self.after

    @property
    def behind_versions(self) -> int:
        """How many versions the head is ahead of ``through``. Claims jump, so this is a bound and not a count."""
        return self.head.version - self.through


def log_head(url: str) -> LogHead:
    """What the newest live object of the log says. Cost: one LIST page, two rounds of headers.

    The newest key of the listing may be another one: what a deposed leader wrote into a dead slot.

    Raises: NotFound (``log_empty``), CorruptData, Unavailable.
    """
    with StoreThread(url) as thread:
        return thread.start(_head).result()


async def _head(store: ObjectStore) -> LogHead:
    frontier = await find_frontier(store)
    if frontier is None:
        raise NotFound("log is empty: nothing is listed under batches/", code=Code.LOG_EMPTY, url=store.url)
    newest = frontier[0]
    return LogHead(newest.log_id.hex(), newest.last_version)


def next_increment(url: str, after: int, *, until: int | None = None, step_bytes: int) -> Increment:
    """The increment that follows version ``after``: about ``step_bytes`` of the log, at least one object.

    ``until`` bounds it (inclusive). Raises: NotFound (``log_empty``, ``log_truncated``), CorruptData, Unavailable.
    """
    with StoreThread(url) as thread:
        return thread.start(lambda store: _choose(store, after, until, step_bytes)).result()


async def _choose(store: ObjectStore, after: int, until: int | None, step_bytes: int) -> Increment:
    chain = await live_chain(store)
    newest = await read_header(store, int(chain.slots[-1]))
    if chain.truncated:
        await _refuse_truncated(store, chain, after)
    head = LogHead(newest.log_id.hex(), newest.last_version)
    if newest.last_version <= after or (until is not None and until <= after):
        return Increment(head, after, after, 0, 0, 0)
    first = await first_above(store, chain, after)
    ends = np.cumsum(chain.sizes[first:])
    last = first + max(1, int(np.searchsorted(ends, step_bytes, side="right"))) - 1
    through = newest if last == len(chain.slots) - 1 else await read_header(store, int(chain.slots[last]))
    version = through.last_version if until is None else min(through.last_version, until)
    behind = int(ends[-1] - ends[last - first])
    return Increment(head, after, version, last - first + 1, int(ends[last - first]), behind)


async def _refuse_truncated(store: ObjectStore, chain: Chain, after: int) -> None:
    oldest: Header = await read_header(store, int(chain.slots[0]))
    if after < oldest.prev_version:
        raise NotFound(
            "data loss: retention has removed versions that this pipeline has not read",
            code=Code.LOG_TRUNCATED,
            hint="begin a new table from a snapshot or from segments; this one can never be continued exactly",
            read_through=after,
            removed_through=oldest.prev_version,
        )


async def first_above(store: ObjectStore, chain: Chain, version: int) -> int:
    """The first place in the chain whose object ends above ``version``; its last place when there is none.

    A header that cannot be read is passed over to the next older one that can: an audit looks for places too.
    """
    low, high = 0, len(chain.slots) - 1
    while low < high:
        middle = probe = (low + high) // 2
        while (last := await _last_version(store, chain, probe)) is None and probe > low:
            probe -= 1
        if last is not None and last > version:
            high = probe
        else:
            low = middle + 1
    return low


async def _last_version(store: ObjectStore, chain: Chain, place: int) -> int | None:
    try:
        return (await read_header(store, int(chain.slots[place]))).last_version
    except CorruptData:
        return None
