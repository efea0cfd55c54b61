"""Make a new log from a damaged one: all that can be read, and a list of what cannot.

An object that is damaged or missing is taken from a backup, a mirror for example, if that has the object. The first one
that nobody has ends the part that is copied byte for byte: the new log forks there, and the transactions after the
damage are appended with new versions, in their order. So no reader takes a position after the damage for one of the new
log. Their preconditions are left out, because they name versions of the old one. The source is only read.

    step        action                                                     a crash after this step leaves
    look        read every object of the source, and of the backup         nothing
    copy        role, objects before the damage, foundations, verify, fork as ``restoring``
    append      the transactions after the damage, then a resign record    a log without some of them: begin again
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import UNSET

from holdfast.commit.format.batch import (
    CLAIM_BYTES,
    FIRST_SLOT,
    PREFIX,
    Header,
    Kind,
    LoggedTransaction,
    body_bytes,
    decode_all,
    decode_header,
    encode_body,
    encode_object,
    jump,
    object_name,
    slot_of,
)
from holdfast.commit.format.chain import next_slot
from holdfast.commit.format.transaction import JobChange
from holdfast.commit.leadership.cluster import require_cluster
from holdfast.commit.leadership.role import CopyRole
from holdfast.commit.leadership.takeover import read_records
from holdfast.commit.reading.lineage import Lineage
from holdfast.commit.reading.reader import LoggedBatch, find_frontier
from holdfast.copies.chain import carry
from holdfast.copies.holding import held, hold_id
from holdfast.copies.manifests import copy_foundations, newest_needed
from holdfast.copies.promoting import fork
from holdfast.copies.restoring import begin_copy, require_role, verify_copy
from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest, NotFound, Unavailable
from holdfast.foundations.families import Flaw
from holdfast.foundations.readings import require_end
from holdfast.foundations.state import Depth, find_foundation
from holdfast.objects.port import ObjectStore, Pages
from holdfast.values import VERSION_MAX, Slot, Version, slot_text

HEADERS: Final = 20

Progress = Callable[[int, int | None], None]
"""Called with how many objects were read, and how many there are."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One object that cannot be read. ``after_version`` is the last version before it.

    ``lost_through``: the last transaction that is lost with it and its neighbours, None for none. ``from_backup``: the
    backup had the object, so nothing is lost.
    """

    slot: str
    reason: str
    after_version: int
    lost_through: int | None = None
    from_backup: bool = False


@dataclass(slots=True)
class DamageSurvey:
    """What a look at a damaged log found. ``cut``: everything up to this version is copied unchanged; None for all.

    ``truncated_through`` and ``first_slot``: what retention had removed, and where the log begins after it.
    ``forked_at``: the logs that it was forked from, and where.
    """

    log_id: str = ""
    objects: int = 0
    damage: list[Damage] = field(default_factory=list[Damage])
    forked_at: dict[str, int] = field(default_factory=dict[str, int])
    cut: int | None = None
    truncated_through: int = 0
    first_slot: int = FIRST_SLOT

    def lineage(self) -> Lineage:
        """The log, and the logs that it was forked from, by the claims that can be read."""
        return Lineage(self.log_id, self.forked_at)


@dataclass(frozen=True, slots=True)
class Repaired:
    """A log without the damage. ``version``: what was copied unchanged; ``appended`` transactions came after it.

    ``entries_left_out``: what the stores did after the damage. Each rests on all before it, so the stores end there.
    """

    log_id: str
    source_log_id: str
    version: int
    appended: int
    damage: list[Damage]
    entries_left_out: int = 0


class DamagedLog:
    """Reads a damaged log from its first object to its last, past what cannot be read."""

    def __init__(self, source: ObjectStore, backup: ObjectStore | None) -> None:
        self._source = source
        self._backup = backup
        self._slots: list[Slot] = []
        self._end: int = FIRST_SLOT
        self.found = DamageSurvey()
        self._waiting: list[tuple[Slot, str, int]] = []

    async def batches(self, on_progress: Progress | None = None) -> AsyncGenerator[LoggedBatch]:
        """The readable objects of the live chain, oldest first. ``found`` grows meanwhile.

        Cost: a LIST for each 1,000 objects, and a GET for each. Raises: NotFound (``log_empty``), Unavailable,
        CorruptData when the log cannot be followed at all.
        """
        self.found = DamageSurvey()
        claims = await self._list()
        await self._find_end(claims)
        head: Header | None = None
        claim_slot: int = FIRST_SLOT
        next_wanted: int = FIRST_SLOT
        while next_wanted >= self._end:
            batch, reason = await self._read(Slot(next_wanted))
            if batch is not None and self._fits(batch.header, head, claim_slot):
                header = batch.header
                self._note_lost(header)
                self.found.log_id = header.log_id.hex()
                if header.parent_log_id is not None:
                    self.found.forked_at[header.parent_log_id.hex()] = header.forked_at
                self.found.objects += 1
                if on_progress is not None:
                    on_progress(self.found.objects, len(self._slots))
                yield batch
                head = header
                claim_slot = header.claim
                next_wanted = next_slot(header)
                continue
            after = 0 if head is None else head.last_version
            following = await self._next_readable(next_wanted, claim_slot)
            self._waiting.append((Slot(next_wanted), reason or "object is not of the leader that claimed", after))
            if following is None:
                break
            claim_slot, next_wanted = following
        self._note_lost(None)
        await self._note_lost_end(head, next_wanted)

    async def _note_lost_end(self, head: Header | None, following: int) -> None:
        """The log may have ended later once: a leader wrote down what was durable."""
        frontier = None if head is None else await self._claim_of(head)
        if frontier is None:
            return
        try:
            await require_end(self._source, frontier)
        except CorruptData as error:
            durable = error.fields.get("durable")
            lost = durable if isinstance(durable, int) else None
            self.found.damage.append(Damage(slot_text(Slot(following)), error.message, frontier[0].last_version, lost))

    async def _claim_of(self, head: Header) -> tuple[Header, Header] | None:
        if head.kind is Kind.CLAIM:
            return head, head
        claim, _ = await _whole(self._source, Slot(head.claim))
        return None if claim is None else (head, claim.header)

    async def _list(self) -> list[Slot]:
        """List the log. Returns the slots of objects of a claim's size."""
        rows = [row async for page in Pages(self._source, PREFIX) for row in page]
        sizes = {slot: row.size for row in rows if (slot := slot_of(row.key)) is not None}
        if not sizes:
            raise NotFound("log is empty", code=Code.LOG_EMPTY)
        self._slots = sorted(sizes, reverse=True)
        return [slot for slot, size in sizes.items() if size == CLAIM_BYTES]

    async def _find_end(self, claims: list[Slot]) -> None:
        """The newest slot of the log: what its newest object says was durable, and what follows that without a gap."""
        newest = min(claims, default=FIRST_SLOT)
        own = [slot for slot in reversed(self._slots) if slot <= jump(newest)]
        end: int = newest
        for slot in own:
            batch, _ = await _whole(self._source, slot)
            if batch is not None:
                end = batch.header.durable
                break
        listed = frozenset(self._slots)
        following = jump(end) if end == newest else end - 1
        while following in listed:
            end, following = following, following - 1
        self._end = end
        for slot in [*own[:HEADERS], newest]:
            batch, _ = await _whole(self._source, slot)
            if batch is not None:
                self.found.truncated_through = max(self.found.truncated_through, batch.header.truncated_through)

    async def _read(self, slot: Slot) -> tuple[LoggedBatch | None, str]:
        batch, reason = await _whole(self._source, slot)
        if batch is None and self._backup is not None:
            spare, _ = await _whole(self._backup, slot)
            if spare is not None:
                self.found.damage.append(Damage(slot_text(slot), reason, spare.header.prev_version, from_backup=True))
                return spare, reason
        return batch, reason

    @staticmethod
    def _fits(header: Header, head: Header | None, claim_slot: int) -> bool:
        """Whether this object may come next, as far as what is left of the chain shows."""
        if header.kind is Kind.CLAIM:
            return head is None or header.epoch > head.epoch
        return header.claim == claim_slot

    async def _next_readable(self, lost: int, claim_slot: int) -> tuple[int, int] | None:
        """After a lost object: the claim slot and the slot with which the chain goes on.

        None when nothing newer belongs to the chain: the log ends before the lost slot.
        """
        begin = next((index for index, slot in enumerate(self._slots) if slot < lost), len(self._slots))
        for slot in self._slots[begin:]:
            if slot < self._end:
                return None
            batch, _ = await _whole(self._source, slot)
            if batch is None:
                continue
            header = batch.header
            if header.claim == claim_slot or (header.kind is Kind.CLAIM and header.prev < lost):
                return claim_slot, lost - 1  # the lost object's neighbour may be lost, too
            if header.kind is Kind.CLAIM:
                return header.slot, header.slot
            if claim_slot > header.claim >= lost - 1 and slot <= jump(header.claim):
                return header.claim, jump(header.claim)
        return None

    def _note_lost(self, following: Header | None) -> None:
        """What is lost is known from the next readable object: it names the last transaction before itself."""
        if following is not None and self._waiting and following.prev_version <= self.found.truncated_through:
            self.found.first_slot = following.slot  # retention removed it
            self._waiting = []
        if self._waiting and self.found.cut is None:
            self.found.cut = self._waiting[0][2]
        for slot, reason, after in self._waiting:
            lost = None if following is None or following.prev_version <= after else following.prev_version
            self.found.damage.append(Damage(slot_text(slot), reason, after, lost))
        self._waiting = []


async def _whole(store: ObjectStore, slot: Slot) -> tuple[LoggedBatch | None, str]:
    """An object that passes all its checks, or None and the rule that it breaks."""
    try:
        data = await store.read(object_name(slot))
    except NotFound:
        return None, "object is missing"
    try:
        header = decode_header(data, slot=slot)
        if header.kind is not Kind.CLAIM:
            body_bytes(data, header)
            decode_all(data, header)
        elif len(data) != CLAIM_BYTES:
            return None, "claim has another size"
    except CorruptData as error:
        return None, error.message
    return LoggedBatch(header, data), ""


async def look(
    source: ObjectStore, backup: ObjectStore | None = None, on_progress: Progress | None = None
) -> DamageSurvey:
    """Name everything that is damaged. Reads only. Cost and errors: as ``DamagedLog.batches``."""
    log = DamagedLog(source, backup)
    async with aclosing(log.batches(on_progress)) as batches:
        async for _ in batches:
            pass
    return log.found


async def repair(
    source: ObjectStore, copy: ObjectStore, backup: ObjectStore | None = None, on_progress: Progress | None = None
) -> Repaired:
    """Make a log in ``copy`` with everything that can be read. ``copy`` is an empty prefix.

    Cost: the source is read twice and written once. After a crash: see the module; begin again at an empty prefix.
    Raises: InvalidRequest (the prefix holds something else), NotFound (``log_empty``), CorruptData, Unavailable.
    """
    if (await read_records(copy)).role is not None:
        raise InvalidRequest(
            "a repair begins at an empty prefix, and this one holds a copy", hint="choose another prefix", url=copy.url
        )
    finding = await look(source, backup, on_progress)
    lineage, through = finding.lineage(), finding.truncated_through
    cut = VERSION_MAX if finding.cut is None else finding.cut
    stores = (source,) if backup is None else (source, backup)
    await _require_foundation(stores, lineage, cut, through)
    role = await begin_copy(
        copy,
        CopyRole(
            role="restoring",
            source_log_id=finding.log_id,
            truncated_through=through,
            first_slot=slot_text(finding.first_slot),
            cut_version=finding.cut,
            log_id=secrets.token_hex(16),
        ),
    )
    require_role(role, "restoring", lineage)
    await require_cluster(copy, may_begin=True)
    assert role.log_id is not None, "a repaired log has a new id"
    needed = await newest_needed(source, lineage, through, cut)
    async with held(source, hold_id("repair", copy), through, needed):
        log = DamagedLog(source, backup)
        async with aclosing(log.batches()) as batches, aclosing(_before_damage(batches, log)) as parts:
            await carry(parts, copy, lambda _: None)
        reached = await find_frontier(copy)
        if reached is None:
            raise CorruptData("nothing of the log can be read: its first claim is damaged", url=source.url)
        if log.found.cut != finding.cut or log.found.truncated_through != through:
            raise Unavailable("the source changed while it was repaired", hint="repair it again, to an empty prefix")
        flaws: list[Flaw] = []
        for each in stores:
            flaws += (await copy_foundations(each, copy, lineage, through, reached[0].last_version)).flaws
    await verify_copy(copy, through, passed_over=flaws)
    claim = await fork(copy, role.log_id)
    appended = left_out = 0
    if finding.cut is not None:
        rest = DamagedLog(source, backup)

        def leave_out(entries: int) -> None:
            nonlocal left_out
            left_out += entries

        def count(header: Header) -> None:
            nonlocal appended
            appended += header.transactions

        async with aclosing(rest.batches()) as batches, aclosing(_appended(batches, claim, leave_out)) as objects:
            await carry(objects, copy, count)
    return Repaired(role.log_id, finding.log_id, claim.forked_at, appended, finding.damage, left_out)


async def _require_foundation(stores: Sequence[ObjectStore], lineage: Lineage, cut: int, truncated: int) -> None:
    """Return if one of ``stores`` has a snapshot for the part before the damage: a repair without one ends early.

    Raises: NotFound, CorruptData, Unavailable.
    """
    error: HoldfastError | None = None
    for store in stores:
        try:
            await find_foundation(store, lineage, cut, truncated, None, depth=Depth.LISTED)
        except (NotFound, CorruptData) as refused:
            error = error or refused
        else:
            return
    assert error is not None, "there is a source"
    raise error


async def _before_damage(batches: AsyncGenerator[LoggedBatch], log: DamagedLog) -> AsyncGenerator[LoggedBatch]:
    async for batch in batches:
        if log.found.cut is not None:
            return
        yield batch


async def _appended(
    batches: AsyncGenerator[LoggedBatch], claim: Header, leave_out: Callable[[int], None]
) -> AsyncGenerator[LoggedBatch]:
    """The transactions after the fork as objects of the fork's leadership, one for each object of the source."""
    head = claim
    async for batch in batches:
        header = batch.header
        if header.kind is Kind.CLAIM or header.last_version <= claim.forked_at:
            continue
        leave_out(header.entries)
        if not header.transactions:
            continue
        following = _record(head, claim, _moved(batch.transactions(), head.last_version + 1))
        yield following
        head = following.header
    yield _record(head, claim, [], kind=Kind.RESIGN)


def _moved(transactions: Sequence[LoggedTransaction], first: int) -> list[LoggedTransaction]:
    """The same changes with versions from ``first``, and without what they expected."""
    return [
        LoggedTransaction(
            first + index,
            txn.request_id,
            txn.read_version,
            txn.operations,
            [],
            jobs=tuple(JobChange(change.name, change.value) for change in txn.jobs if change.value is not UNSET),
        )
        for index, txn in enumerate(transactions)
    ]


def _record(
    head: Header, claim: Header, transactions: list[LoggedTransaction], *, kind: Kind = Kind.DATA
) -> LoggedBatch:
    body = encode_body(transactions)
    slot = next_slot(head)
    last = transactions[-1].version if transactions else head.last_version
    newest = last if transactions else head.last_transaction_version
    header = replace(
        claim,
        kind=kind,
        slot=slot,
        prev=head.slot,
        nonce=secrets.token_bytes(16),
        first_version=Version(transactions[0].version if transactions else head.last_version),
        last_version=Version(last),
        prev_version=head.last_transaction_version,
        newest_transaction=Version(newest if claim.stores_mode else 0),
        durable=claim.slot,
        transactions=len(transactions),
        parent_log_id=None,
        forked_at=Version(0),
    )
    data = encode_object(header, body)
    return LoggedBatch(decode_header(data, slot=slot), data)
