"""A part of the live chain, listed without the rest: from a live object that a search of headers finds, to another.

The search goes back leadership by leadership and bisects the objects of one, whose slots have no gaps. Every function
returns None where a part cannot be had: retention or damage has left a hole there, or the search is too long. The whole
chain then says what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from holdfast.commit.format.batch import CLAIM_BYTES, FIRST_SLOT, Header, Kind
from holdfast.commit.reading.reader import LeadershipWalk, find_frontier, newest_where, read_header
from holdfast.objects.port import ObjectStore
from holdfast.spark.source.chain import Chain, empty_log, lineage_at, list_slots, walk

LEADERSHIPS_MAX: Final = 256
"""Leaderships that a search goes back, with two reads each, before a listing is the shorter way."""


@dataclass(frozen=True, slots=True)
class LiveEnd:
    """The newest live object, and the claim of its leader."""

    newest: Header
    claim: Header


async def frontier_of(store: ObjectStore) -> LiveEnd:
    """Where the log ends. Cost: one LIST page, two rounds of headers.

    Raises: NotFound (``log_empty``), CorruptData, Unavailable.
    """
    found = await find_frontier(store)
    if found is None:
        raise empty_log(store)
    return LiveEnd(*found)


async def newest_before(store: ObjectStore, frontier: LiveEnd, reached: Callable[[Header], bool]) -> Header | None:
    """The newest live object that has not ``reached`` what is sought, which the objects after it all have.

    Cost: two header reads for each leadership since, then about log2(objects of one). Raises: CorruptData, Unavailable.
    """
    newest = frontier.newest
    if not reached(newest):
        return newest
    searched = 0
    async for leadership in LeadershipWalk(store, frontier.claim, newest):
        if not reached(leadership.claim):
            slot, found = await newest_where(store, leadership, lambda header: not reached(header))
            return leadership.claim if slot is None else found
        if leadership.before is None or searched == LEADERSHIPS_MAX:
            return None
        if not reached(leadership.before):
            return leadership.before
        searched += 1
    return None


async def known_object(store: ObjectStore, frontier: LiveEnd, seq: int, version: int) -> Header | None:
    """The object of this sequence number, which was live before, if it still ends at or below ``version``."""
    slot = FIRST_SLOT - seq
    if seq <= 0 or slot < frontier.newest.slot:
        return None
    found = await read_header(store, slot)
    if found is None or found.log_id != frontier.newest.log_id or found.last_version > version:
        return None
    return found


async def live_part(store: ObjectStore, frontier: LiveEnd, begin: Header, last: Header) -> Chain | None:
    """The live chain from ``begin`` to ``last``, which are live. Cost: the LIST pages of these slots, and a lineage."""
    if 0 < frontier.newest.truncated_through >= begin.last_version:
        return None  # about to be deleted, or a late PUT of another leader
    slots, sizes = await list_slots(store, last.slot, begin.slot)
    if not len(slots) or int(slots[0]) != last.slot or int(slots[-1]) != begin.slot:
        return None
    # The walk takes an object of claim size for a claim.
    if sizes[-1] == CLAIM_BYTES and begin.kind is not Kind.CLAIM:
        return None
    live, missing = walk(slots, sizes == CLAIM_BYTES, last.slot, begin.slot)
    if missing or int(slots[live][-1]) != last.slot:
        return None
    lineage = await lineage_at(store, frontier.newest, frontier.newest.slot)
    return Chain(slots[live], sizes[live], truncated=False, lineage=lineage)


def joined(first: Chain, following: Chain) -> Chain:
    """Two parts as one; the second begins with the last object of the first."""
    assert first.slots[-1] == following.slots[0], "parts that meet"
    slots = np.concatenate((first.slots, following.slots[1:]))
    return Chain(slots, np.concatenate((first.sizes, following.sizes[1:])), first.truncated, first.lineage)
