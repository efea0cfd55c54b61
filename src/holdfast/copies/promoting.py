"""Make a copy a log of its own: the record that permits it, then the fork claim. And end a log, so that a planned
switch to its mirror loses nothing.

    step      action                                              a crash after this step leaves
    verify    the mirror can produce its state                    a mirror
    record    create meta/promoted with the id of the new log     a log: the first who leads it writes the fork claim
    claim     claim with that id                                  a log that anybody may lead

Nothing asks the copier to stop. It obeys the rules of a leader, so what it still sends lands in dead slots.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.commit.format.batch import PREFIX, Header, object_name
from holdfast.commit.leadership.claims import Identity
from holdfast.commit.leadership.role import PROMOTED_KEY, Promoted, encode_record
from holdfast.commit.leadership.takeover import TakeoverOptions, local_scope, read_records, take_the_lead
from holdfast.commit.reading.reader import LeadershipWalk, find_frontier, require_frontier
from holdfast.errors import CorruptData, InvalidRequest
from holdfast.foundations.state import Depth, require_state
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.values import LeaderId, LogId


@dataclass(frozen=True, slots=True)
class PromotedLog:
    """A mirror that is a log now: it has everything of its source up to ``version``.

    ``after_gap``: objects that the mirror had after a missing one, at most ``GAP_MAX``. They were under way when a
    copier ended, or something was removed; they are not part of the log.
    """

    log_id: str
    source_log_id: str
    version: int
    base: int
    after_gap: int = 0


GAP_MAX = 1_000


async def promote(copy: ObjectStore, on_progress: Callable[[int, int | None], None] | None = None) -> PromotedLog:
    """Make a mirror a log, or finish what an earlier call began. The source may go on; this cannot stop it.

    Cost: the newest whole snapshot of the mirror is read, and the chain after it; without one the whole mirror.
    Raises: InvalidRequest (this is not a mirror), NotFound (``log_empty``; ``log_truncated``: the mirror cannot produce
    the state of the log yet), CorruptData, Unavailable. After a crash: see the module.
    """
    role, promoted = (await read_records(copy)).decoded()
    if role is None or role.role != "mirror":
        raise InvalidRequest(
            "only a mirror can be promoted, and this prefix is none",
            hint="a log is led by `holdfast serve`; a restore ends by itself",
            url=copy.url,
        )
    frontier = await require_frontier(copy, "the mirror", hint="run `holdfast log mirror` first")
    head, _ = frontier
    is_done = promoted is not None and head.log_id.hex() == promoted.log_id
    await require_state(
        copy,
        frontier,
        head.last_version,
        depth=Depth.READ if is_done else Depth.CHAIN,
        truncated_through=role.truncated_through,
        on_progress=on_progress,
    )
    rows = [] if is_done else await copy.list(PREFIX, limit=GAP_MAX)
    after_gap = sum(row.key < object_name(head.slot) for row in rows)
    if promoted is None:
        promoted = Promoted(log_id=secrets.token_hex(16))
    claimed = await fork(copy, promoted.log_id)
    return PromotedLog(claimed.log_id.hex(), role.source_log_id, claimed.forked_at, claimed.last_version, after_gap)


async def fork(copy: ObjectStore, log_id: str) -> Header:
    """Create the record and the fork claim, unless they are there. Returns the fork claim. Raises: as ``promote``."""
    if not await create_exactly(copy, PROMOTED_KEY, encode_record(Promoted(log_id=log_id))):
        _, other = (await read_records(copy)).decoded()
        if other is None:
            raise CorruptData("a record of a copied log was removed while it was read", key=PROMOTED_KEY)
        log_id = other.log_id
    own_id = LogId(bytes.fromhex(log_id))
    claim = await _fork_claim(copy, own_id)
    if claim is None:
        await take_the_lead(copy, _identity(), own_id, TakeoverOptions(take_over=True))
        claim = await _fork_claim(copy, own_id)
    assert claim is not None, "the claim that was just created begins the new log"
    return claim


async def _fork_claim(copy: ObjectStore, log_id: LogId) -> Header | None:
    """The claim with which the log ``log_id`` begins; None where the chain has none yet."""
    frontier = await find_frontier(copy)
    if frontier is None or frontier[0].log_id != log_id:
        return None
    async for leadership in LeadershipWalk(copy, frontier[1], frontier[0]):
        if leadership.claim.is_fork and leadership.claim.log_id == log_id:
            return leadership.claim
    raise CorruptData("the log has the id of a fork and no fork claim", slot=str(frontier[1].slot))


def _identity() -> Identity:
    """A claimant that serves nobody."""
    return Identity(LeaderId(secrets.token_bytes(16)), secrets.token_bytes(32), "", local_scope(""))


async def retire(source: ObjectStore) -> Header:
    """End a log. Its leader is deposed and answers no commit any more; readers read on. Returns the last claim.

    A log that is retired already stays as it is. After a crash: the claim stands, or it does not.
    Raises: NotFound (``log_empty``), CorruptData, Unavailable.
    """
    head, _ = await require_frontier(source, "the source")
    if head.retires:
        return head
    takeover = await take_the_lead(source, _identity(), LogId(bytes(16)), TakeoverOptions(take_over=True, retires=True))
    return takeover.claim
