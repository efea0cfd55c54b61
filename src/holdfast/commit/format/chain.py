"""The live chain: which objects under ``batches/`` are the log, and which are dead.

The log begins at the genesis claim. From a claim, go to its jump and walk down slot by slot. A claim whose ``prev`` is
the head switches to its own jump. A missing slot ends the log. Everything else is damage. Objects strictly between a
claim and its jump are permanently dead (R4 of ``docs/explain/log-protocol.md``). The log id changes only in a fork
claim. Nothing comes after a claim that retires the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.commit.format.batch import (
    FIRST_SLOT,
    FORK_JUMP_MAX,
    VERSION_JUMP,
    Header,
    Kind,
    StoresMode,
    jump,
)
from holdfast.errors import CorruptData, NotFound
from holdfast.values import FORK_JUMP_MIN, Slot, slot_text


def broken(rule: str, slot: int, **facts: str | int) -> CorruptData:
    """The error for a log that breaks ``rule`` at ``slot``."""
    return CorruptData(f"log is damaged: {rule}", facts={"slot": slot_text(slot), **facts})


def has_gone(error: NotFound) -> CorruptData:
    """A missing object that the log needs is damage."""
    return CorruptData("log is damaged: an object has gone", facts=error.fields)


def check_genesis(header: Header) -> None:
    """Raise CorruptData unless this can be the first object of a log."""
    first = header.slot == FIRST_SLOT and header.kind is Kind.CLAIM and header.epoch == 1
    if not first or header.prev != FIRST_SLOT or header.durable != FIRST_SLOT:
        raise broken("the first slot holds no genesis claim", header.slot)


def check_link(head: Header, claim: Header, following: Header) -> None:
    """Raise CorruptData unless ``following`` may come right after ``head`` in the leadership of ``claim``.

    Shape: ``head`` is the newest live header so far, ``claim`` the claim it lives under (itself, when it is one), and
    ``following`` is the header in the next slot.
    """
    slot = following.slot
    parent_log_id = following.parent_log_id or following.log_id
    rules: Iterable[tuple[bool, str]] = (
        (parent_log_id == head.log_id, "object belongs to another log"),
        (not head.retires, "object comes after the log was retired"),
        (following.prev == head.slot, "prev does not name the head of the chain"),
        (following.time_ms >= head.time_ms, "time falls along the chain"),
        (following.lived_ms >= head.lived_ms, "lived_ms falls along the chain"),
        (following.prev_version == head.last_transaction_version, "prev_version does not name the last transaction"),
        (following.durable > slot, "durable does not name an older slot"),
        (following.durable <= head.durable, "durable falls back along the chain"),
        (following.truncated_through >= head.truncated_through, "truncated_through falls along the chain"),
        (following.window_floor >= head.window_floor, "window_floor falls along the chain"),
        (_keeps_stores(head, following), "the mode of the stores changes along the chain"),
    )
    for holds, rule in rules:
        if not holds:
            raise broken(rule, slot, prev=slot_text(following.prev), head=slot_text(head.slot))
    if following.kind is Kind.CLAIM:
        _check_claim(head, claim, following)
    else:
        _check_record(head, claim, following)


def _keeps_stores(head: Header, following: Header) -> bool:
    """Whether the stores stay where they are, or a claim moves them."""
    if following.stores_mode is head.stores_mode:
        return True
    into_log, out_of_log = following.stores_mode is StoresMode.LOG, head.stores_mode is StoresMode.LOG
    moves = into_log or (out_of_log and following.stores_mode is StoresMode.RETURNED)
    return following.kind is Kind.CLAIM and moves


def _check_claim(head: Header, claim: Header, following: Header) -> None:
    if following.epoch != claim.epoch + 1:
        raise broken("claim's epoch is not one more", following.slot, epoch=following.epoch, before=claim.epoch)
    base = following.last_version
    if following.is_fork:
        lowest, highest = head.last_version + FORK_JUMP_MIN, head.last_version + FORK_JUMP_MAX
        if following.forked_at != head.last_version:
            raise broken(
                "fork claim leaves another version than the last", following.slot, forked_at=following.forked_at
            )
    else:
        lowest = highest = head.last_version + VERSION_JUMP
    if not (following.first_version == base == following.window_floor and lowest <= base <= highest):
        raise broken("claim's base is not the version jump", following.slot, base=base, expected=lowest)
    if following.last_transaction_version != head.last_transaction_version:
        raise broken("claim names another last transaction", following.slot)
    if following.durable != head.slot:
        raise broken("claim's durable is not its prev", following.slot, durable=slot_text(following.durable))


def _check_record(head: Header, claim: Header, following: Header) -> None:
    slot = following.slot
    own = (following.claim, following.epoch, following.leader_id)
    if own != (claim.slot, claim.epoch, claim.leader_id):
        raise broken(
            "object is not of the leader that claimed", slot, claim=slot_text(claim.slot), epoch=following.epoch
        )
    if head.kind is Kind.RESIGN:
        raise broken("leader wrote after it resigned", slot)
    if following.durable != claim.slot and following.durable > jump(claim.slot):
        raise broken("durable names a dead slot", slot, durable=slot_text(following.durable))
    first, last = following.first_version, following.last_version
    if following.has_body:
        items = following.transactions + following.entries
        if not head.last_version < first <= last or last - first + 1 < items:
            raise broken("versions do not rise", slot, first=first, last=last, before=head.last_version)
    elif first != last or last < head.last_version:
        raise broken("empty batch has impossible versions", slot, first=first, last=last, before=head.last_version)
    newest = following.last_transaction_version
    if following.transactions:
        if not first <= newest <= last:
            raise broken("the last transaction is not in its batch", slot, newest_transaction=newest)
    elif newest != following.prev_version:
        raise broken("a batch without transactions names one", slot, newest_transaction=newest)
    if last - head.last_version >= VERSION_JUMP:
        raise broken("versions pass the jump", slot, last=last, before=head.last_version)


def _check_leadership(claim: Header, header: Header) -> None:
    """The rules for an object whose predecessor is missing."""
    own = (header.log_id, header.claim, header.epoch, header.leader_id)
    if own != (claim.log_id, claim.slot, claim.epoch, claim.leader_id):
        raise broken("object is not of the leader that claimed", header.slot, claim=slot_text(claim.slot))


class ChainWalker:
    """Walks the live chain from the genesis claim, or on from a known head.

    Feed it the header found in ``next_slot``; while that slot is missing, the log ends at ``head``.

    >>> ChainWalker().next_slot == FIRST_SLOT
    True
    """

    __slots__ = ("claim", "head", "next_slot")

    def __init__(self, head: Header | None = None, claim: Header | None = None) -> None:
        assert (head is None) == (claim is None), "a walk goes on from a head and its claim"
        self.head = head
        self.claim = claim
        self.next_slot = FIRST_SLOT if head is None else next_slot(head)

    @classmethod
    def behind_removed(cls, slot: Slot, claim: Header) -> ChainWalker:
        """A walker that expects the object in ``slot``, under ``claim``, after retention removed what was before."""
        walker = cls()
        walker.claim = claim
        walker.next_slot = slot
        return walker

    def accept(self, header: Header) -> None:
        """Take the header found in ``next_slot`` as the new head. Raises: CorruptData, and then nothing has changed."""
        if header.slot != self.next_slot:
            raise broken("object stands in another slot", self.next_slot, header_slot=slot_text(header.slot))
        if self.claim is None:
            check_genesis(header)
        elif self.head is None:
            _check_leadership(self.claim, header)
        else:
            check_link(self.head, self.claim, header)
        self.head = header
        if header.kind is Kind.CLAIM:
            self.claim = header
        self.next_slot = next_slot(header)


def next_slot(header: Header) -> Slot:
    """Where the object after this live one stands, if there is one."""
    return jump(header.slot) if header.kind is Kind.CLAIM else Slot(header.slot - 1)
