"""Reading the log: forward along the live chain, and back along its claims.

Raises Unavailable, after which a read may be started again from the last header seen, and CorruptData with slot and
rule. A missing slot is the end of the log, never an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

from holdfast.commit.format.batch import (
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
)
from holdfast.commit.format.chain import ChainWalker, broken, has_gone
from holdfast.commit.leadership.claims import Frontier, NeedHeaders, first_headers, plan_recovery, read_page
from holdfast.commit.leadership.role_records import read_records
from holdfast.errors import Code, CorruptData, HoldfastError, NotFound
from holdfast.objects.port import ObjectReader, ObjectStore
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
    """One leader's part of the chain: its claim, and the object before the claim.

    ``before`` is None at genesis, and where retention removed it.
    """

    claim: Header
    before: Header | None

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


async def read_header(store: ObjectReader, slot: int) -> Header | None:
    """The header in a slot, None when it is empty. Raises: Unavailable, CorruptData."""
    try:
        data = await store.read(object_name(slot), length=HEADER_BYTES)
    except NotFound:
        return None
    return decode_header(data, slot=slot)


def _removed(slot: int) -> NotFound:
    return NotFound("the log was removed here", code=Code.LOG_TRUNCATED, slot=slot_text(slot))


def damage_unless_truncated(error: NotFound, newest: Header) -> HoldfastError:
    """What a missing object means: ``error`` where the log says that it was truncated, damage where it does not."""
    if newest.truncated_through:
        return error
    return has_gone(error)


async def _read_whole(store: ObjectReader, slot: int) -> bytes | None:
    try:
        return await store.read(object_name(slot))
    except NotFound:
        return None


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
            wanted = walker.next_slot
            if until is not None and walker.head is not None and walker.head.slot == until:
                return
            while ahead and ahead[0][0] != wanted:
                ahead.popleft()[1].cancel()
            following = ahead[-1][0] - 1 if ahead else wanted
            while len(ahead) < prefetch and following >= 0 and (until is None or following >= until or not ahead):
                ahead.append((following, asyncio.ensure_future(_read_whole(store, following))))
                following -= 1
            data = await ahead.popleft()[1]
            if data is None:
                if until is not None:
                    raise _removed(wanted)
                return
            header = decode_header(data, slot=wanted)
            walker.accept(header)
            yield LoggedBatch(header, data)
    finally:
        for _, task in ahead:
            task.cancel()
        await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)


async def read_frontier(store: ObjectStore, *, allow_new: bool, copy_from: Slot | None = None) -> tuple[Frontier, int]:
    """Where the log ends by one listing, as recovery decides it, and how many sequential waits that took.

    ``copy_from``: as for ``plan_recovery``.

    Cost: one LIST and mostly one round of header reads, two at times.
    Raises: NotFound (``log_empty`` unless ``allow_new``; or what was listed was removed), Unavailable, CorruptData.
    """
    rows = await store.list(PREFIX, limit=SPAN_MAX)
    page = read_page([(row.key, row.size) for row in rows])
    waits = 1
    objects: dict[Slot, bytes] = {}
    wanted, guessed = first_headers(page), True
    while True:
        if wanted:
            waits += 1
            headers = await asyncio.gather(*(_read_listed(store, slot, needed=not guessed) for slot in wanted))
            found = zip(wanted, headers, strict=True)
            objects.update((slot, header) for slot, header in found if header is not None)
            guessed = False
        plan = plan_recovery(page, objects, allow_new=allow_new, copy_from=copy_from)
        if isinstance(plan, Frontier):
            return plan, waits
        assert isinstance(plan, NeedHeaders), "recovery decides or asks"
        wanted = plan.slots


async def _read_listed(store: ObjectReader, slot: Slot, *, needed: bool) -> bytes | None:
    """A header that was listed; None where retention has removed the object since, unless it is ``needed``."""
    try:
        return await store.read(object_name(slot), length=HEADER_BYTES)
    except NotFound:
        if needed:
            raise
        return None


async def find_frontier(store: ObjectStore) -> tuple[Header, Header] | None:
    """The newest live object and its claim; None for an empty log.

    Cost: ``read_frontier``, and one more header read. Raises: Unavailable, CorruptData, also for an object that each of
    ``LISTINGS`` listings needs and that is not there: what retention removed since a listing, the next does not need.
    """
    frontier = await _stable_frontier(store)
    head = frontier.predecessor
    if head is None:
        return None
    claim = head if head.kind is Kind.CLAIM else await read_header(store, head.claim)
    if claim is None:
        raise broken("claim has gone", head.claim)
    return head, claim


async def _stable_frontier(store: ObjectStore) -> Frontier:
    listings = LISTINGS
    copy_from: Slot | None = None
    while True:
        listings -= 1
        try:
            frontier, _ = await read_frontier(store, allow_new=True, copy_from=copy_from)
            return frontier
        except (NotFound, CorruptData) as error:
            copy_from = await _copy_from(store)
            if listings > 0 and (isinstance(error, NotFound) or copy_from is not None):
                continue
            raise (has_gone(error) if isinstance(error, NotFound) else error) from error


async def _copy_from(store: ObjectStore) -> Slot | None:
    """Where a copy begins that is going on here: what looks like damage may be under way to it."""
    rows = await store.list(PREFIX, limit=1)
    newest = read_page([(row.key, row.size) for row in rows]).slots
    header = await read_header(store, newest[0]) if newest else None
    return None if header is None else (await read_records(store)).copying_from(header.log_id)


async def leaderships_back(store: ObjectReader, claim: Header) -> AsyncGenerator[Leadership, None]:
    """The leaderships from that of ``claim`` back to genesis.

    It ends early where the object before a claim is missing. Retention removes data objects, oldest first, and never a
    claim, so nothing older can be read then: the last leadership has no ``before``, and is not the first.
    Cost: two header reads per leadership. Raises: Unavailable, CorruptData when a claim has gone.
    """
    while True:
        before = None if claim.slot == FIRST_SLOT else await read_header(store, claim.prev)
        if before is not None and before.epoch != claim.epoch - 1:
            before = None  # a late PUT of another leader landed where retention had removed an object
        yield Leadership(claim, before)
        if before is None:
            return
        earlier = before if before.kind is Kind.CLAIM else await read_header(store, before.claim)
        if earlier is None:
            raise broken("claim has gone", before.claim)
        claim = earlier


def check_truncated(oldest: Leadership, newest: Header) -> None:
    """Check that a log whose readable part begins with ``oldest`` may begin there.

    Raises: CorruptData when ``newest`` does not say that everything before it was truncated.
    """
    if not oldest.is_first and oldest.before is None and newest.truncated_through < oldest.rolled_back_to:
        raise broken("an object has gone", oldest.claim.prev, truncated_through=newest.truncated_through)


async def newest_where(
    store: ObjectReader, leadership: Leadership, newest: Header, holds: Callable[[Header], bool]
) -> tuple[Slot | None, Header | None]:
    """The slot of the newest data object of ``leadership`` for which ``holds``, and its header; no slot for none.

    ``newest`` is the newest object of the leadership. ``holds`` turns from true to false at most once along the chain,
    oldest first. Retention removes the oldest objects, so ``holds`` counts as true for a missing one, which has no
    header. Cost: about log2(objects in the leadership) header reads. Raises: Unavailable, CorruptData.
    """
    claim = leadership.claim
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
        header = await read_header(store, middle)
        if header is not None and header.leader_id != claim.leader_id:
            header = None  # a late PUT of another leader landed where retention had removed an object
        if header is None or holds(header):
            older, standing = middle, header
        else:
            newer = middle
    return (None, None) if older > first else (Slot(older), standing)


async def start_after(store: ObjectReader, leadership: Leadership, newest: Header, version: int) -> ChainWalker:
    """A walker standing on the last object of ``leadership`` whose ``last_version`` is at or below ``version``.

    ``newest`` is the newest object of the leadership. What it yields first holds the first transaction after
    ``version``. Where retention has removed that object, and nothing after ``version``, it stands before the next one.
    Cost: as ``newest_where``. Raises: Unavailable, CorruptData, NotFound when removed.
    """
    claim = leadership.claim
    if version < leadership.base and not leadership.is_first:
        # The end of the leadership before this one is missing, or the caller would have begun there.
        if version < leadership.rolled_back_to:
            raise _removed(claim.prev)
        return ChainWalker.behind_removed(claim.slot, claim)
    slot, standing = await newest_where(store, leadership, newest, lambda header: header.last_version <= version)
    if slot is None:
        return ChainWalker(claim, claim)
    if standing is not None:
        return ChainWalker(standing, claim)
    following = await read_header(store, slot - 1)
    if following is None or following.prev_version > version:
        raise _removed(slot)
    return ChainWalker.behind_removed(Slot(slot - 1), claim)
