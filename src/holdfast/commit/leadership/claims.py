"""Recovery as a decision table over one LIST page, and the claim that follows from it.

One page is enough: zombies of any earlier leader are strictly between the newest claim and its jump. If the latest
leader wrote data, the newest key is its own and names its claim. Otherwise everything newer than its claim is a zombie,
at most W - 1 of them, so the claim is in the page. See ``docs/explain/log-protocol.md``.

The table (k1 is the newest key, c the newest claim, J its jump, "own" the listed keys at or below J):

    row  listing                                       frontier F                         predecessor P
    1    empty, and a new log is allowed               2^64-1                             none: genesis
    2    empty otherwise                               refused: log_empty
    3    a key that is not a slot                      refused: names the key
    4    no own key (also: only zombies above c)       J                                  c
    5    own keys without a hole                       k1 - 1                             k1
    6    own keys with a hole in (k1, min(J, k1+W-1)]  the highest (oldest) hole          F + 1, or c when F = J
    7    F at or above the durable of a header read    refused: an acknowledged slot has gone
    8    an epoch, log id or claim that does not fit   refused: names the slot
    9    c retires the log                             refused by a claimant; a reader reads on

After a fork claim a key newer than c may have the parent's log id: a copier of the parent may still have sent it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.commit.format.batch import (
    CLAIM_BYTES,
    FIRST_SLOT,
    FLAG_RETIRES,
    FORK_JUMP_MAX,
    SPAN_MAX,
    UNKNOWN_SCOPE,
    VERSION_JUMP,
    AddressScope,
    Header,
    Kind,
    StoresMode,
    decode_header,
    encode_object,
    jump,
    slot_of,
)
from holdfast.commit.format.chain import broken, next_slot
from holdfast.commit.format.log_clock import LogClock
from holdfast.commit.leadership.evidence import NOWHERE, ProcessPlace
from holdfast.commit.leadership.role import Copied
from holdfast.errors import Closed, Code, CorruptData, NotFound
from holdfast.values import FORK_JUMP_MIN, Instant, LeaderId, LogId, Slot, Version, slot_text

FIRST_BASE_MIN = 100_000_000
FIRST_BASE_MAX = 10**12
GUESSES_MAX = 64
"""Most headers that recovery reads in one round on a guess, which only saves a round trip."""


@dataclass(frozen=True, slots=True)
class NewestKeys:
    """The newest keys of the log as one LIST page: ``slots`` ascending (newest first), ``claims`` those of claim
    size."""

    slots: tuple[Slot, ...]
    claims: frozenset[Slot]


@dataclass(frozen=True, slots=True)
class Frontier:
    """Where to claim. ``predecessor`` is None only at genesis; ``epoch`` is that of the claim to be written."""

    slot: Slot
    predecessor: Header | None
    epoch: int

    def require_not_retired(self) -> None:
        """Return unless nobody may lead this log any more (row 9). Raises: Closed (``log_retired``)."""
        if self.predecessor is not None and self.predecessor.retires:
            raise Closed(
                "the log was retired: nobody leads it any more",
                code=Code.LOG_RETIRED,
                hint="its copy was promoted in its place: use that one; this one can be read with --read-only",
                log_id=self.predecessor.log_id.hex(),
                version=self.predecessor.prev_version,
            )


@dataclass(frozen=True, slots=True)
class Identity:
    """The claimant: fresh random 128-bit values per process start, the address to advertise and where it is valid.

    ``here``: where the process listens and runs, whatever it advertises.
    """

    leader_id: LeaderId
    nonce_seed: bytes
    address: str
    scope: AddressScope = UNKNOWN_SCOPE
    here: ProcessPlace = NOWHERE


def read_page(rows: Sequence[tuple[str, int]]) -> NewestKeys:
    """The page from (object name, size) rows in listing order. Raises: CorruptData naming a key that is not a slot."""
    slots: list[Slot] = []
    claims: set[Slot] = set()
    for name, size in rows[:SPAN_MAX]:
        slot = slot_of(name)
        if slot is None:
            raise CorruptData(
                "a key under batches/ is not a slot",
                key=name,
                hint="move the foreign object away; nothing but Holdfast may write under batches/",
            )
        slots.append(slot)
        if size == CLAIM_BYTES:
            claims.add(slot)
    if any(a >= b for a, b in pairwise(slots)):
        raise CorruptData("the store does not list in order", code=Code.STORE_UNFIT, newest=slot_text(slots[0]))
    return NewestKeys(tuple(slots), frozenset(claims))


def first_headers(page: NewestKeys) -> tuple[Slot, ...]:
    """The headers worth reading at once: the newest key, the newest claim listed, and every possible predecessor."""
    if not page.slots:
        return ()
    guesses = [page.slots[0]]
    if page.claims:
        guesses.append(min(page.claims))
    listed = frozenset(page.slots)
    guesses += [slot for slot in page.slots[1:] if slot - 1 not in listed][: GUESSES_MAX - len(guesses)]
    return tuple(dict.fromkeys(guesses))


def plan_recovery(
    page: NewestKeys, objects: Mapping[Slot, bytes], *, allow_new: bool, copy_from: Slot | None = None
) -> Frontier | Slot:
    """Decide the frontier, or name the slot whose header is still needed.

    Shape: ``objects`` holds the first 512 bytes of slots read so far. ``copy_from``: another log is being copied here,
    from this slot on, with several objects under way at once. So what is durable there may still be missing here (row 7
    does not hold), and what is older than that slot, except claims, is no hole.
    Raises: NotFound (``log_empty``), CorruptData (rows 7 and 8), and then nothing has been written.
    """
    if not page.slots:
        if allow_new:
            return Frontier(FIRST_SLOT, None, 1)
        raise NotFound(
            "log is empty",
            code=Code.LOG_EMPTY,
            hint="if this is meant to be a new log, run `holdfast log init URL` or start with --init; "
            "if it is not, look whether the disk is mounted and the URL is right",
        )
    newest = page.slots[0]
    if newest not in objects:
        return newest
    head = decode_header(objects[newest], slot=newest)
    claim_slot = min([head.claim, *page.claims])
    listed = frozenset(page.slots)
    if claim_slot in listed and claim_slot not in objects:
        return claim_slot
    claim = decode_header(objects[claim_slot], slot=claim_slot) if claim_slot in listed else None
    frontier, predecessor_slot = _frontier(page.slots, claim_slot, FIRST_SLOT if copy_from is None else copy_from)
    if predecessor_slot not in objects:
        return predecessor_slot
    predecessor = decode_header(objects[predecessor_slot], slot=predecessor_slot)
    if copy_from is None:
        _refuse_a_gap((head, predecessor) if claim is None else (head, claim, predecessor), frontier)
    _refuse_what_does_not_fit(head, claim, claim_slot, predecessor)
    return Frontier(frontier, predecessor, predecessor.epoch + 1)


def walk_on(head: Header, following: Header | None) -> Frontier | Header | None:
    """One step of a walk along the log of a living leader; ``following`` is the header after ``head``, if any.

    Returns the frontier when the log ends here, the next head when it continues, None where a listing is needed. A busy
    leader fills slots faster than a listing and its headers take, so a claimant that lists each time loses every claim.
    """
    if following is None:
        return Frontier(next_slot(head), head, head.epoch + 1)
    of_one_leadership = (following.log_id, following.leader_id, following.epoch) == (
        head.log_id,
        head.leader_id,
        head.epoch,
    )
    return following if of_one_leadership and following.kind is not Kind.CLAIM and following.prev == head.slot else None


def _frontier(slots: Sequence[Slot], claim: Slot, first: Slot) -> tuple[Slot, Slot]:
    """Rows 4 to 6: the frontier and its predecessor's slot."""
    newest = slots[0]
    start = jump(claim)
    if newest > start:
        return start, claim
    listed = frozenset(slots)
    oldest = min(start, first, newest + SPAN_MAX - 1)
    holes = (slot for slot in range(oldest, newest, -1) if slot not in listed)
    frontier = Slot(next(holes, newest - 1))
    return frontier, claim if frontier in (start, first) else Slot(frontier + 1)


def _refuse_a_gap(headers: Sequence[Header], frontier: Slot) -> None:
    """Row 7."""
    for header in headers:
        if frontier >= header.durable:
            raise broken(
                "an acknowledged slot has gone",
                frontier,
                durable=slot_text(header.durable),
                told_by=slot_text(header.slot),
            )


def _refuse_what_does_not_fit(head: Header, claim: Header | None, claim_slot: Slot, predecessor: Header) -> None:
    """Row 8. ``claim`` is None when it is older than the page; then the newest object is its leader's own."""
    for header in (head, predecessor) if claim is None else (head, claim, predecessor):
        of_parent = header is head and claim is not None and head.log_id == claim.parent_log_id
        if header.log_id != predecessor.log_id and not of_parent:
            raise broken("object belongs to another log", header.slot)
    if claim is not None and claim.kind is not Kind.CLAIM:
        raise broken("object of claim size is no claim", claim_slot)
    epoch = head.epoch if claim is None else claim.epoch
    own = head.slot <= jump(claim_slot) or head.slot == claim_slot
    if own and (head.epoch != epoch or head.claim != claim_slot or head.log_id != predecessor.log_id):
        raise broken("newest object is not of the newest claim", head.slot, claim=slot_text(claim_slot))
    if not own and head.epoch >= epoch:
        raise broken("a dead object has the epoch of a live one", head.slot, epoch=head.epoch)
    if predecessor.epoch != epoch or predecessor.claim != claim_slot:
        raise broken("predecessor is not of the newest claim", predecessor.slot, claim=slot_text(claim_slot))


def first_base(log_id: LogId) -> Version:
    """The base of a new log: between 1e8 and 1e12, as random as its id.

    Two logs at one address almost never share versions, so a version of one is rarely a version of the other.

    >>> first_base(LogId(bytes(16))), first_base(LogId(b"~" * 16))
    (100000000, 304838410366)
    """
    return Version(FIRST_BASE_MIN + int.from_bytes(log_id, "big") % (FIRST_BASE_MAX - FIRST_BASE_MIN))


def fork_base(forked_at: int, log_id: LogId) -> Version:
    """The base of a fork claim: as random as the id of the log that it begins, see ``FORK_JUMP_MIN``."""
    return Version(forked_at + FORK_JUMP_MIN + int.from_bytes(log_id, "big") % (FORK_JUMP_MAX - FORK_JUMP_MIN))


def claim_header(
    frontier: Frontier,
    identity: Identity,
    *,
    nonce: bytes,
    log_id: LogId,
    now: Instant,
    believed: bool = True,
    fork: Copied | None = None,
    retires: bool = False,
    stores_mode: StoresMode = StoresMode.DISK,
    moves: bool = False,
) -> Header:
    """The claim to be written at the frontier. ``log_id`` is used only at genesis; later claims copy it, unless they
    ``fork`` the log. So is ``stores_mode``, unless the claim ``moves`` the stores. ``retires``: nobody may lead after
    this claim. ``believed``: as for ``LogClock.begin``."""
    before = frontier.predecessor
    if before is not None and not moves:
        stores_mode = before.stores_mode
    truncated_through = before.truncated_through if before else Version(0)
    if before is None:
        base = first_base(log_id)
    elif fork is not None:
        base, log_id = fork_base(before.last_version, fork.log_id), fork.log_id
        truncated_through = max(truncated_through, fork.truncated_through)
    else:
        base, log_id = Version(before.last_version + VERSION_JUMP), before.log_id
    moment = LogClock.begin(before, identity.scope.boot_id, now, believed=believed).take(now)
    return Header(
        kind=Kind.CLAIM,
        log_id=log_id,
        slot=frontier.slot,
        claim=frontier.slot,
        prev=before.slot if before else frontier.slot,
        epoch=frontier.epoch,
        leader_id=identity.leader_id,
        nonce=nonce,
        first_version=base,
        last_version=base,
        prev_version=before.last_transaction_version if before else Version(0),
        window_floor=base,
        durable=before.slot if before else frontier.slot,
        truncated_through=truncated_through,
        time_ms=moment.time_ms,
        lived_ms=moment.lived_ms,
        boot_ms=moment.boot_ms,
        ahead_s=moment.ahead_s,
        clock_steps=moment.clock_steps,
        address=identity.address,
        scope=identity.scope,
        flags=moment.flags | (FLAG_RETIRES if retires else 0),
        parent_log_id=before.log_id if before and fork else None,
        forked_at=before.last_version if before and fork else Version(0),
        stores_mode=stores_mode,
        newest_transaction=before.last_transaction_version if before and stores_mode else Version(0),
    )


def encode_claim(header: Header) -> bytes:
    """The 512 bytes of a claim."""
    data = encode_object(header)
    assert len(data) == CLAIM_BYTES, "a claim is a header and nothing more"
    return data


def has_successor(newest: Slot | None, *, oldest_free: Slot) -> bool:
    """Whether the newest key shows a later leader.

    ``oldest_free`` is the oldest slot at or below this leader's jump that it has not sent. The data of a later leader
    start at or below it, so a key there is not this leader's own.
    """
    return newest is not None and newest <= oldest_free
