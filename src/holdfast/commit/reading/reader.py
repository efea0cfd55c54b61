"""Reading the log: forward along the live chain, and back along its claims.

Raises Unavailable, after which a read may be started again from the last header seen, and CorruptData with slot and
rule. A missing slot is the end of the log, never an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final, Self

from holdfast.commit.format.batch import (
    CLAIM_BYTES,
    FIRST_SLOT,
    HEADER_BYTES,
    PREFIX,
    SPAN_MAX,
    VERSION_JUMP,
    Header,
    Kind,
    Logged,
    LoggedTransaction,
    decode_all,
    decode_body,
    decode_header,
    jump,
    object_name,
    slot_of,
)
from holdfast.commit.format.chain import ChainWalker, broken, has_gone
from holdfast.commit.leadership.claims import Frontier, first_headers, plan_recovery, read_page
from holdfast.commit.leadership.takeover import read_records
from holdfast.errors import Code, CorruptData, HoldfastError, NotFound
from holdfast.objects.port import ObjectReader, ObjectStore, Pages, read_if_there
from holdfast.values import Slot, slot_text

PREFETCH: Final = 16
LISTINGS: Final = 3
"""Tries to find the end while retention removes listed objects."""


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """One live object: its header and the whole bytes, decoded on demand."""

    header: Header
    data: bytes

    def transactions(self) -> list[LoggedTransaction]:
        """The transactions in commit order. Raises: CorruptData."""
        return decode_body(self.data, self.header)

    def everything(self) -> list[Logged]:
        """The transactions, and what the stores did by themselves, in order. Raises: CorruptData."""
        return decode_all(self.data, self.header)


@dataclass(frozen=True, slots=True)
class Leadership:
    """One leader's part of the chain: its claim, the object before the claim, and the newest object under it.

    ``before`` is None at genesis, and where retention removed it.
    """

    claim: Header
    before: Header | None
    newest: Header

    @property
    def base(self) -> int:
        """The version that the claim commits."""
        return self.claim.last_version

    @property
    def is_first(self) -> bool:
        """Whether the log begins with this leadership."""
        return self.claim.slot == FIRST_SLOT

    @property
    def rolled_back_to(self) -> int:
        """The last version kept from before this leadership; versions between it and ``base`` are void."""
        if self.is_first:
            return 0
        return self.claim.forked_at if self.claim.is_fork else self.base - VERSION_JUMP

    def rolls_back(self, version: int) -> bool:
        """Whether a deposed leader assigned ``version``, and this leadership made it void."""
        return not self.is_first and self.rolled_back_to < version < self.base


async def find_header(store: ObjectReader, slot: int) -> Header | None:
    """The header in a slot, None when it is empty. Raises: Unavailable, CorruptData."""
    data = await read_if_there(store, object_name(slot), length=HEADER_BYTES)
    return None if data is None else decode_header(data, slot=slot)


def _removed(slot: int) -> NotFound:
    return NotFound("the log was removed here", code=Code.LOG_TRUNCATED, slot=slot_text(slot))


def damage_unless_truncated(error: NotFound, newest: Header) -> HoldfastError:
    """What a missing object means: ``error`` where the log says that it was truncated, damage where it does not."""
    if newest.truncated_through:
        return error
    return has_gone(error)


async def follow(
    store: ObjectReader, walker: ChainWalker, *, until: Slot | None = None, prefetch: int = PREFETCH
) -> AsyncGenerator[LoggedBatch, None]:
    """Walk the chain on from where ``walker`` stands, claims included, until the log ends (or after slot ``until``).

    ``walker`` is kept at the last header yielded, so that a caller may go on later.
    Cost: one GET per object, up to ``prefetch`` of them in flight, read ahead of the chain on a guess.
    Raises: Unavailable, CorruptData, NotFound when the log ends before ``until``: something was removed.
    """
    ahead: deque[tuple[int, asyncio.Task[bytes | None]]] = deque()
    try:
        while True:
            next_slot = walker.next_slot
            if until is not None and walker.head is not None and walker.head.slot == until:
                return
            while ahead and ahead[0][0] != next_slot:
                ahead.popleft()[1].cancel()
            following = ahead[-1][0] - 1 if ahead else next_slot
            while len(ahead) < prefetch and following >= 0 and (until is None or following >= until or not ahead):
                ahead.append((following, asyncio.ensure_future(read_if_there(store, object_name(following)))))
                following -= 1
            data = await ahead.popleft()[1]
            if data is None:
                if until is not None:
                    raise _removed(next_slot)
                return
            header = decode_header(data, slot=next_slot)
            walker.accept(header)
            yield LoggedBatch(header, data)
    finally:
        for _, task in ahead:
            task.cancel()
        await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)


async def _read_frontier(store: ObjectStore, copy_from: Slot | None) -> Header | None:
    """The newest live object by one listing, as recovery decides it. ``copy_from``: as for ``plan_recovery``.

    Raises: NotFound (what was listed was removed), Unavailable, CorruptData.
    """
    rows = await store.list(PREFIX, limit=SPAN_MAX)
    page = read_page([(row.key, row.size) for row in rows])
    guesses = first_headers(page)
    headers = await asyncio.gather(*(read_if_there(store, object_name(slot), length=HEADER_BYTES) for slot in guesses))
    objects = {slot: header for slot, header in zip(guesses, headers, strict=True) if header is not None}
    while True:
        plan = plan_recovery(page, objects, allow_new=True, copy_from=copy_from)
        if isinstance(plan, Frontier):
            return plan.predecessor
        objects[plan] = await store.read(object_name(plan), length=HEADER_BYTES)


async def find_frontier(store: ObjectStore) -> tuple[Header, Header] | None:
    """The newest live object and its claim; None for an empty log.

    Cost: one LIST and mostly one round of header reads, two at times, and one more header read.
    Raises: Unavailable, CorruptData, also for an object that each of ``LISTINGS`` listings needs and that is not there:
    what retention removed since a listing, the next does not need.
    """
    listings = LISTINGS
    copy_from: Slot | None = None
    while True:
        listings -= 1
        try:
            head = await _read_frontier(store, copy_from)
            break
        except (NotFound, CorruptData) as error:
            copy_from = await _copy_from(store)
            if listings > 0 and (isinstance(error, NotFound) or copy_from is not None):
                continue
            raise (has_gone(error) if isinstance(error, NotFound) else error) from error
    if head is None:
        return None
    return head, await claim_of(store, head)


async def claim_of(store: ObjectReader, header: Header) -> Header:
    """The claim that an object belongs to. Raises: CorruptData when it has gone, Unavailable."""
    claim = header if header.kind is Kind.CLAIM else await find_header(store, header.claim)
    if claim is None:
        raise broken("claim has gone", header.claim)
    return claim


async def require_frontier(store: ObjectStore, noun: str = "log", *, hint: str = "") -> tuple[Header, Header]:
    """As ``find_frontier``. Raises: also NotFound (``log_empty``)."""
    frontier = await find_frontier(store)
    if frontier is None:
        raise NotFound(f"{noun} is empty", code=Code.LOG_EMPTY, hint=hint, url=store.url)
    return frontier


async def _copy_from(store: ObjectStore) -> Slot | None:
    """Where a copy begins that is going on here: what looks like damage may be under way to it."""
    rows = await store.list(PREFIX, limit=1)
    newest = read_page([(row.key, row.size) for row in rows]).slots
    header = await find_header(store, newest[0]) if newest else None
    return None if header is None else (await read_records(store)).copying_from(header.log_id)


class LeadershipWalk:
    """The leaderships from that of ``claim`` back to genesis. ``newest``: the newest object under ``claim``.

    It ends early where the object before a claim is missing. Retention removes data objects, oldest first, and never a
    claim, so nothing older can be read then: the last leadership has no ``before``, and is not the first.
    Cost: two header reads per leadership. Raises: Unavailable, CorruptData when a claim has gone.
    """

    def __init__(self, store: ObjectReader, claim: Header, newest: Header) -> None:
        self._store = store
        self._first = claim, newest
        self._last: Leadership | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Leadership:
        last = self._last
        if last is None:
            claim, newest = self._first
        elif last.before is None:
            raise StopAsyncIteration
        else:
            claim, newest = await claim_of(self._store, last.before), last.before
        before = None if claim.slot == FIRST_SLOT else await find_header(self._store, claim.prev)
        if before is not None and before.epoch != claim.epoch - 1:
            before = None  # a late PUT of another leader landed where retention had removed an object
        self._last = Leadership(claim, before, newest)
        return self._last


def check_truncated(oldest: Leadership, newest: Header) -> None:
    """Check that a log whose readable part begins with ``oldest`` may begin there.

    Raises: CorruptData when ``newest`` does not say that everything before it was truncated.
    """
    if not oldest.is_first and oldest.before is None and newest.truncated_through < oldest.rolled_back_to:
        raise broken("an object has gone", oldest.claim.prev, truncated_through=newest.truncated_through)


async def newest_where(
    store: ObjectReader, leadership: Leadership, holds: Callable[[Header], bool]
) -> tuple[Slot | None, Header | None]:
    """The slot of the newest data object of ``leadership`` for which ``holds``, and its header; no slot for none.

    ``holds`` turns from true to false at most once along the chain, oldest first. Retention removes the oldest objects,
    so ``holds`` counts as true for a missing one, which has no header.
    Cost: about log2(objects in the leadership) header reads. Raises: Unavailable, CorruptData.
    """
    claim, newest = leadership.claim, leadership.newest
    if newest.slot == claim.slot:
        return None, None
    if holds(newest):
        return newest.slot, newest
    first = jump(claim.slot)
    older, newer = first + 1, int(newest.slot)
    # Invariant: it holds in `older` and in older slots, where `older` is one; it does not hold in `newer`.
    standing: Header | None = None
    while newer < older - 1:
        middle = (older + newer) // 2
        header = await find_header(store, middle)
        if header is not None and header.leader_id != claim.leader_id:
            header = None  # a late PUT of another leader landed where retention had removed an object
        if header is None or holds(header):
            older, standing = middle, header
        else:
            newer = middle
    return (None, None) if older > first else (Slot(older), standing)


async def start_after(store: ObjectReader, leadership: Leadership, version: int) -> ChainWalker:
    """A walker standing on the last object of ``leadership`` whose ``last_version`` is at or below ``version``.

    What it yields first holds the first transaction after ``version``. Where retention has removed that object, and
    nothing after ``version``, it stands before the next one.
    Cost: as ``newest_where``. Raises: Unavailable, CorruptData, NotFound when removed.
    """
    claim = leadership.claim
    if version < leadership.base and not leadership.is_first:
        # The end of the leadership before this one is missing, or the caller would have begun there.
        if version < leadership.rolled_back_to:
            raise _removed(claim.prev)
        return ChainWalker.behind_removed(claim.slot, claim)
    slot, standing = await newest_where(store, leadership, lambda header: header.last_version <= version)
    if slot is None:
        return ChainWalker(claim, claim)
    if standing is not None:
        return ChainWalker(standing, claim)
    following = await find_header(store, slot - 1)
    if following is None or following.prev_version > version:
        raise _removed(slot)
    return ChainWalker.behind_removed(Slot(slot - 1), claim)


async def claims_after(store: ObjectStore, slot: Slot) -> list[Slot]:
    """The slots of the objects of a claim's size that are older than ``slot``, newest first. Raises: Unavailable."""
    listed = [row async for rows in Pages(store, PREFIX, after=object_name(slot)) for row in rows]
    return [claim for row in listed if row.size == CLAIM_BYTES and (claim := slot_of(row.key)) is not None]


async def walker_from(store: ObjectReader, frontier: tuple[Header, Header], version: int) -> ChainWalker:
    """A walker on the chain that yields the first transaction after ``version`` first, in a log with this newest object
    and claim, whatever it says was truncated. Raises: as ``start_after``."""
    head, claim = frontier
    async for leadership in LeadershipWalk(store, claim, head):
        if leadership.base <= version or (leadership.before is None and not leadership.is_first):
            return await start_after(store, leadership, version)
    return ChainWalker()
