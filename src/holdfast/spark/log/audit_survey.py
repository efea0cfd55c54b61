"""The audit's first look at a log: which objects are live, which are missing, what should not be there at all.

Owns: a listing that goes on where planning a read would stop, because a damaged log is what an audit is for.
Does not own: the walk along the claims (``plan``), what is inside the objects (``audit_piece``).

Failure model: what is wrong becomes a ``Finding``; only a log without any readable object or claim raises CorruptData,
and a store that does not answer Unavailable. Cost: the LIST pages, the header of each claim and a few more.
Memory: 16 bytes per object.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.commit.format.batch import CLAIM_BYTES, FIRST_SLOT, PREFIX, Header, Kind, slot_of
from holdfast.errors import Code, CorruptData, NotFound
from holdfast.objects.port import ObjectStore
from holdfast.spark.source.plan import Chain, read_header, walk
from holdfast.values import slot_text

__all__ = ["Finding", "Survey", "last_readable", "survey", "surveyed_log_id"]

PAGE: Final = 50_000
FOREIGN_KEYS_MAX: Final = 1_000
CLAIMS_AT_ONCE: Final = 1_000
UNREADABLE_MAX: Final = 100
"""How many damaged headers in a row the survey looks past before it gives up."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule: where, as far as it is known, and which. ``slot`` is its 20-digit text."""

    rule: str
    slot: str | None = None
    version: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Survey:
    """The live chain as far as it can be made out, and what the listing alone shows to be wrong.

    Shape: ``holes`` are runs (first, last) of missing slots, in the order of writing; ``findings`` have no place in the
    chain (foreign keys, a genesis that has gone).
    """

    log_id: str
    chain: Chain
    holes: list[tuple[int, int]]
    findings: list[Finding]


async def survey(store: ObjectStore) -> Survey:
    """List the whole log and walk its claims. Raises: NotFound (``log_empty``), CorruptData, Unavailable."""
    findings: list[Finding] = []
    slots, sizes = await _listing(store, findings)
    if not len(slots):
        raise NotFound("log is empty: nothing is listed under batches/", code=Code.LOG_EMPTY, url=store.url)
    newest = await _first_readable(store, slots)
    is_claim = await _claims(store, slots, sizes)
    begin: int = FIRST_SLOT
    if int(slots[-1]) != FIRST_SLOT or not is_claim[-1]:
        claims = slots[is_claim]
        if not len(claims):
            raise CorruptData("the log has no claim at all", code=Code.CORRUPT_LOG, url=store.url)
        begin = int(claims[-1])
        findings.append(Finding("the log has no genesis claim", slot_text(FIRST_SLOT)))
    live, holes = walk(slots, is_claim, newest.durable, begin)
    chain = Chain(slots[live], sizes[live], truncated=False)
    if newest.truncated_through:
        chain, holes = await _after_retention(store, chain, holes, newest.truncated_through)
    return Survey(newest.log_id.hex(), chain, holes, findings)


async def surveyed_log_id(store: ObjectStore) -> str:
    """The id of the log, by the newest object that can be read. Raises: NotFound (``log_empty``), CorruptData."""
    slots = [slot for row in await store.list(PREFIX, limit=UNREADABLE_MAX) if (slot := slot_of(row.key)) is not None]
    if not slots:
        raise NotFound("log is empty: nothing is listed under batches/", code=Code.LOG_EMPTY, url=store.url)
    return (await _first_readable(store, np.array(slots, dtype=np.uint64))).log_id.hex()


async def _listing(store: ObjectStore, findings: list[Finding]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Slots rising (newest first) and sizes; keys that are no slot become findings."""
    parts: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = []
    after = ""
    while True:
        rows = await store.list(PREFIX, after=after, limit=PAGE)
        named = [(slot_of(row.key), row) for row in rows]
        foreign = [Finding("a key under batches/ is not a slot", detail=row.key) for slot, row in named if slot is None]
        findings += foreign[: max(0, FOREIGN_KEYS_MAX - len(findings))]
        slots = np.array([slot for slot, _ in named if slot is not None], dtype=np.uint64)
        sizes = np.array([row.size for slot, row in named if slot is not None], dtype=np.int64)
        parts.append((slots, sizes))
        if len(rows) < PAGE:
            return np.concatenate([part for part, _ in parts]), np.concatenate([part for _, part in parts])
        after = rows[-1].key


async def _claims(
    store: ObjectStore, slots: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Which objects the walk follows as claims: those of a claim's size, but for copies, which name another slot, and
    for what was cut to that size.

    A jump from where nobody claimed would have the walk miss what was never there.
    """
    is_claim: npt.NDArray[np.bool_] = sizes == CLAIM_BYTES
    places = np.flatnonzero(is_claim)
    for first in range(0, len(places), CLAIMS_AT_ONCE):
        asked = places[first : first + CLAIMS_AT_ONCE]
        is_claim[asked] = await asyncio.gather(*(_stands_here(store, int(slot)) for slot in slots[asked]))
    return is_claim


async def _stands_here(store: ObjectStore, slot: int) -> bool:
    try:
        return (await read_header(store, slot)).kind is Kind.CLAIM
    except CorruptData as error:
        return "header_slot" not in error.fields


async def _first_readable(store: ObjectStore, slots: npt.NDArray[np.uint64]) -> Header:
    failure: CorruptData | None = None
    for slot in slots[:UNREADABLE_MAX]:
        try:
            return await read_header(store, int(slot))
        except CorruptData as error:
            failure = error
    assert failure is not None, "a log that lists slots has a first one"
    raise failure


async def _after_retention(
    store: ObjectStore, chain: Chain, holes: list[tuple[int, int]], truncated_through: int
) -> tuple[Chain, list[tuple[int, int]]]:
    """The chain without what retention removed, and the holes that retention does not explain."""
    for index in reversed(range(len(holes))):
        kept = int(np.count_nonzero(chain.slots > np.uint64(holes[index][1])))
        if kept == len(chain.slots):
            continue
        try:
            oldest = await read_header(store, int(chain.slots[kept]))
        except CorruptData:
            continue
        if oldest.prev_version <= truncated_through:
            return Chain(chain.slots[kept:], chain.sizes[kept:], truncated=True), holes[index + 1 :]
    return chain, holes


async def last_readable(store: ObjectStore, chain: Chain, first: int, last: int) -> tuple[int, Header] | None:
    """The newest object in the chain's places ``first`` to ``last`` whose header can be read, None for none of them."""
    for place in range(last, max(first, last - UNREADABLE_MAX) - 1, -1):
        try:
            return place, await read_header(store, int(chain.slots[place]))
        except CorruptData:
            continue
    return None
