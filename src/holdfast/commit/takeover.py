"""The shell of recovery: from an object store to a claim that is created and checked.

Owns: the order of recovery's requests, and politeness towards a leader that is alive (liveness only, safety never
depends on it). Does not own: any decision about slots (``leadership``).

At most four sequential waits until ready: LIST, headers in parallel, claim, ownership LIST. The store is probed beside
the first two, and the probe has passed before the claim is sent. Where the last leader neither resigned nor can be
asked, the log has to be silent for a while before the claim; only on a directory, which is one machine's, is an address
that somebody else has by now proof enough that it is gone. Who has just claimed and does not lead yet is asked again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Final, TypeVar
from urllib.parse import urlsplit

import structlog

from holdfast.commit.batch import (
    FIRST_SLOT,
    HEADER_BYTES,
    PREFIX,
    SPAN_MAX,
    Header,
    Kind,
    decode_header,
    jump,
    object_name,
)
from holdfast.commit.chain import next_slot
from holdfast.commit.leadership import (
    Frontier,
    Identity,
    claim_header,
    encode_claim,
    read_page,
    somebody_is_past,
    walk_on,
)
from holdfast.commit.reader import has_gone, read_frontier
from holdfast.errors import Closed, Code, HoldfastError, NotFound, Unavailable, statement_of
from holdfast.objects.port import CreateAnswer, Created, ObjectStore, Unknown
from holdfast.objects.probe import clean_up, probe
from holdfast.values import Instant, LogId, Slot, slot_text

__all__ = ["AskLeader", "Takeover", "TakeoverOptions", "init_log", "newest_slot", "now", "take_the_lead"]

log = structlog.get_logger("holdfast.commit.takeover")

T = TypeVar("T")

AskLeader = Callable[[str], Awaitable[str | None]]
"""Ask the process at an advertised address who it is: its leader id in hexadecimal, empty when it does not lead or does
not lead yet, or None when nobody answers."""

REQUEST_S_MAX: Final = 10.0
"""How long one round of requests may hang before it counts as failed."""
STALE_MS: Final = 50.0
"""A frontier older than this is found anew before it is claimed, and its leader asked when that is another one."""
MISSING_S_MAX: Final = 5.0
"""How long an object that is needed may be missing: retention, which removes the oldest, is met once or twice."""
RETRY_BASE_S: Final = 0.05
RETRY_MAX_S: Final = 2.0
DOUBLINGS_MAX: Final = 30
RESTARTS_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverOptions:
    """How to come to lead. ``patience_s`` bounds how long an unreachable store is tried."""

    allow_new: bool = False
    take_over: bool = False
    silence_ms: float = 2_000.0
    patience_s: float = 60.0
    ask_leader: AskLeader | None = None
    probe: bool = True


@dataclass(slots=True)
class Takeover:
    """What a takeover did, for the log line and the metrics."""

    claim: Header
    waits: int = 0
    took_ms: float = 0.0
    restarts: int = 0
    deposed_leader_id: str | None = None
    steps_ms: dict[str, float] = field(default_factory=dict)


def now() -> Instant:
    """Both clocks, read together."""
    return Instant(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000.0, int(time.time() * 1000))


async def newest_slot(store: ObjectStore) -> Slot | None:
    """The newest slot listed, None for an empty log. Raises: Unavailable, CorruptData."""
    rows = await store.list(PREFIX, limit=1)
    page = read_page([(row.key, row.size) for row in rows])
    return page.slots[0] if page.slots else None


async def take_the_lead(store: ObjectStore, identity: Identity, log_id: LogId, options: TakeoverOptions) -> Takeover:
    """Recover, claim, and check that nobody is past the claim.

    Raises: Unavailable (the store did not answer within ``patience_s``), NotFound ``log_empty``, CorruptData, Closed
    ``leader_alive`` naming the leader, InvalidRequest ``store_unfit``.
    After a crash: the claim may or may not stand; either way the next takeover decides by what it lists.
    """
    started = now().boot_ms
    probing = asyncio.ensure_future(probe(store)) if options.probe else None
    restarts = waits = 0
    waited_ms = 0.0
    probed: list[str] = []
    chased: Frontier | None = None
    find = partial(read_frontier, store, allow_new=options.allow_new)
    try:
        while True:
            if chased is not None:
                frontier = chased
            else:
                frontier, waits = await _patiently(find, options.patience_s)
                if probing is not None and not restarts:
                    probed = await probing
                found_ms = now().boot_ms
                frontier, waits = await _left_in_peace(store, (frontier, waits), find, identity.address, options)
                waited_ms = now().boot_ms - found_ms
            nonce = blake2b(restarts.to_bytes(4, "little") + b"claim", key=identity.nonce_seed, digest_size=16).digest()
            claim = claim_header(frontier, identity, nonce=nonce, log_id=log_id, wall_ms=now().wall_ms)
            if await _put_claim(store, claim, options.patience_s):
                newest, _ = await asyncio.gather(
                    _patiently(lambda: newest_slot(store), options.patience_s), clean_up(store, probed)
                )
                probed = []
                if not somebody_is_past(newest, oldest_free=jump(claim.slot)):
                    break
            restarts += 1
            if restarts >= RESTARTS_MAX:
                raise _changing_hands()
            log.info("claim_lost", slot=slot_text(claim.slot), restarts=restarts)
            if options.take_over:
                chased = await _patiently(partial(_chase, store, frontier), options.patience_s)
    finally:
        if probing is not None:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
        await clean_up(store, probed)
    before = frontier.predecessor
    return Takeover(
        claim,
        waits=waits + 2,
        took_ms=now().boot_ms - started,
        restarts=restarts,
        deposed_leader_id=before.leader_id.hex() if before is not None and before.kind is not Kind.RESIGN else None,
        steps_ms={"polite_wait": waited_ms},
    )


async def init_log(store: ObjectStore, identity: Identity, log_id: LogId, *, patience_s: float = 60.0) -> bool:
    """Write the genesis claim if the whole prefix lists empty. True when this call created the log, False when it
    exists.

    Raises: Unavailable, InvalidRequest ``store_unfit``.
    """
    if await store.list(PREFIX, limit=1):
        return False
    await clean_up(store, await probe(store))
    claim = claim_header(
        Frontier(FIRST_SLOT, None, 1), identity, nonce=identity.nonce_seed[:16], log_id=log_id, wall_ms=now().wall_ms
    )
    return await _put_claim(store, claim, patience_s)


async def _chase(store: ObjectStore, frontier: Frontier) -> Frontier | None:
    """Where the log of a living leader ends by now, walked on from its old end; None when only a listing can tell."""
    head = frontier.predecessor
    if head is None:
        return None
    for _ in range(SPAN_MAX):
        slot = next_slot(head)
        try:
            found = decode_header(await store.read(object_name(slot), length=HEADER_BYTES), slot=slot)
        except NotFound:
            found = None
        step = walk_on(head, found)
        if not isinstance(step, Header):
            return step
        head = step
    return None


async def _patiently(attempt: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Repeat a read while the store is unavailable, with capped exponential backoff and full jitter.

    Raises: Unavailable after ``patience_s``, CorruptData for an object that goes on missing, NotFound ``log_empty``.
    """
    began = now().boot_ms
    tries = 0
    while True:
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                return await attempt()
        except NotFound as error:
            if error.code is not Code.NOT_FOUND:
                raise
            # Removed by retention since it was listed: list again. What is still needed then was lost.
            if now().boot_ms >= began + min(patience_s, MISSING_S_MAX) * 1000.0:
                raise has_gone(error) from error
            failed: Exception = error
        except (Unavailable, TimeoutError) as error:
            if now().boot_ms >= began + patience_s * 1000.0:
                raise Unavailable(
                    "the store does not answer", patience_s=patience_s, last=statement_of(error)
                ) from error
            failed = error
        tries += 1
        log.warning("store_unavailable", error=str(failed), tries=tries)
        await asyncio.sleep(random.uniform(0, min(RETRY_MAX_S, RETRY_BASE_S * 2 ** min(tries, DOUBLINGS_MAX))))


async def _left_in_peace(
    store: ObjectStore,
    found: tuple[Frontier, int],
    find: Callable[[], Awaitable[tuple[Frontier, int]]],
    own_address: str,
    options: TakeoverOptions,
) -> tuple[Frontier, int]:
    """The frontier to claim, and the waits of finding it, once politeness allows it.

    Raises: what ``_be_polite`` and ``find`` raise, and Unavailable ``leader_changed``.
    """
    for _ in range(RESTARTS_MAX):
        asked_ms = now().boot_ms
        before = found[0].predecessor
        await _be_polite(store, found[0], own_address, options)
        if now().boot_ms - asked_ms <= STALE_MS:
            return found
        # What was found before the wait may be older than the last that the silent leader wrote.
        found = await _patiently(find, options.patience_s)
        newest = found[0].predecessor
        if newest is None or (before is not None and newest.leader_id == before.leader_id):
            return found
        # Another has come to lead meanwhile, whom nobody has asked.
    raise _changing_hands()


def _changing_hands() -> Unavailable:
    return Unavailable("other leaders claimed the log again and again", code=Code.LEADER_CHANGED)


async def _be_polite(store: ObjectStore, frontier: Frontier, own_address: str, options: TakeoverOptions) -> None:
    """Do not claim over a leader that is alive, nor over one that wrote a moment ago."""
    newest = frontier.predecessor
    if newest is None or newest.kind is Kind.RESIGN or options.take_over:
        return
    if newest.epoch == 1 and newest.kind is Kind.CLAIM and not newest.address:
        # A log that was only initialised: nobody ever led it.
        return
    answer = await _ask(newest, options)
    if _is_of_this_machine(store) and _has_left(newest, answer, own_address):
        return
    if answer == "" and await _patiently(partial(_has_resigned, store, frontier), options.patience_s):
        # It may have been told to step down by the very question.
        return
    await _wait_for_silence(store, newest, options, ask_again=answer == "")


async def _ask(newest: Header, options: TakeoverOptions) -> str | None:
    """What the process at the leader's address answers, None without one. Raises: Closed when it is that leader."""
    if options.ask_leader is None or not newest.address:
        return None
    answer = await options.ask_leader(newest.address)
    if answer == newest.leader_id.hex():
        raise Closed(
            "another leader is alive",
            code=Code.LEADER_ALIVE,
            leader_id=answer,
            leader_address=newest.address,
            hint="stop it, or start with --take-over, or wait for it with --standby",
        )
    return answer


def _has_left(newest: Header, answer: str | None, own_address: str) -> bool:
    """Whether the old leader is gone from an address of this machine, because somebody else lives there.

    Perhaps this very process. On a store that machines share the same text (127.0.0.1:8080) is another place on each.
    """
    if newest.address == own_address:
        return True
    if newest.kind is Kind.CLAIM:
        # Who answers that it does not lead may have sent this claim, and lead in a moment. Who wrote more has led.
        return bool(answer)
    return answer is not None


async def _has_resigned(store: ObjectStore, frontier: Frontier) -> bool:
    end = await _chase(store, frontier)
    return end is not None and end.predecessor is not None and end.predecessor.kind is Kind.RESIGN


def _is_of_this_machine(store: ObjectStore) -> bool:
    """Whether everybody who can reach the store is on this machine."""
    return urlsplit(store.url).scheme == "file"


async def _wait_for_silence(
    store: ObjectStore, before: Header, options: TakeoverOptions, *, ask_again: bool = False
) -> None:
    """Return when no new key appeared for ``silence_ms``; raise when the log is being written.

    Only new keys count, never how old the newest object says it is: that is the other machine's clock. With
    ``ask_again`` the leader is asked meanwhile, too: one that has only just come to lead has nothing to write.
    """
    silence_ms = options.silence_ms
    log.info(
        "waiting_for_silence",
        silence_ms=silence_ms,
        leader_id=before.leader_id.hex(),
        leader_address=before.address or None,
    )
    first = await _patiently(lambda: newest_slot(store), options.patience_s)
    waited_until = now().boot_ms + silence_ms
    while now().boot_ms < waited_until:
        await asyncio.sleep(min(silence_ms / 4, 500.0) / 1000.0)
        newest = await _patiently(lambda: newest_slot(store), options.patience_s)
        if newest != first:
            raise Closed(
                "another leader is writing",
                code=Code.LEADER_ALIVE,
                leader_id=before.leader_id.hex(),
                leader_address=before.address,
                hint="stop it, or start with --take-over, or wait for it with --standby",
            )
        if ask_again:
            await _ask(before, options)


async def _put_claim(store: ObjectStore, claim: Header, patience_s: float) -> bool:
    """R2: send the claim alone until it is created (True) or somebody else's object stands there (False)."""
    data = encode_claim(claim)
    give_up_at = now().boot_ms + patience_s * 1000.0
    tries = 0
    while True:
        answer: CreateAnswer
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                answer = await store.create(object_name(claim.slot), data)
        except TimeoutError:
            answer = Unknown("no answer in time")
        if isinstance(answer, Created):
            return True
        if not isinstance(answer, Unknown):
            own = await _stands(store, claim)
            if own is not None:
                return own
        elif answer.final:
            raise Unavailable("the store takes nothing any more", slot=slot_text(claim.slot), cause=answer.detail)
        tries += 1
        if now().boot_ms >= give_up_at:
            raise Unavailable("the store did not take the claim", slot=slot_text(claim.slot), answer=answer)
        log.warning("claim_sent_again", slot=slot_text(claim.slot), tries=tries, answer=str(answer))
        await asyncio.sleep(random.uniform(0, min(RETRY_MAX_S, RETRY_BASE_S * 2 ** min(tries, DOUBLINGS_MAX))))


async def _stands(store: ObjectStore, claim: Header) -> bool | None:
    """Whether the object in the claim's slot is this claim; None when the slot is empty or does not answer."""
    try:
        data = await store.read(object_name(claim.slot), length=HEADER_BYTES)
        return decode_header(data, slot=claim.slot).nonce == claim.nonce
    except (NotFound, Unavailable):
        return None
    except HoldfastError:
        return False
