"""A bulk job as the leader of a log: ask the leader to step down, claim, write batches, resign.

``put_batch`` repeats one conditional PUT with the same bytes until its outcome is certain. A slot that holds the same
log, leader, nonce and body CRC is this leader's own earlier PUT; any other object there raises Fenced. A leader that
is alive and does not step down raises Closed. After a crash: a claim, and batches up to the first hole.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Final

from holdfast.client.protocol.endpoint import parse_endpoint
from holdfast.client.protocol.http1 import token_of
from holdfast.commit.format.batch import (
    HEADER_BYTES,
    PREFIX,
    Header,
    Kind,
    decode_header,
    encode_object,
    jump,
    object_name,
)
from holdfast.commit.leadership.claims import Identity, has_successor
from holdfast.commit.leadership.takeover import TakeoverOptions, newest_slot, take_the_lead
from holdfast.commit.leadership.takeover_machine import Takeover
from holdfast.errors import Code, CorruptData, Fenced, InvalidRequest, NotFound, Unavailable
from holdfast.objects.port import Created, ObjectStore, Refused, Unknown
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.values import LeaderId, LogId, Slot, Version, slot_text

RETRY_BUDGET_S: Final = 60.0
BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 5.0
REQUEST_S_MAX: Final = 30.0


async def put_batch(store: ObjectStore, header: Header, data: bytes, *, retry_budget_s: float = RETRY_BUDGET_S) -> bool:
    """Bring the object to its slot. True when this call created it, False when it existed.

    Raises: Fenced, Unavailable. After a crash: the object may or may not exist; a repeat decides it.
    """
    give_up_at = time.monotonic() + retry_budget_s
    tries = 0
    while True:
        trouble = ""
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                result = await store.create(object_name(header.slot), data)
        except TimeoutError:
            result = Unknown("no response in time")
        match result:
            case Created():
                return True
            case Refused(certain=certain):
                if await _is_own(store, header, certain=certain):
                    return False
                trouble = "refused, but nothing there"
            case Unknown(detail=detail, final=True):
                raise Unavailable("the store takes nothing any more", slot=slot_text(header.slot), last=detail)
            case Unknown(detail=detail):
                trouble = detail
        tries += 1
        if time.monotonic() >= give_up_at:
            raise Unavailable("the store did not take a batch in time", slot=slot_text(header.slot), last=trouble)
        await asyncio.sleep(random.uniform(0, min(BACKOFF_S_MAX, BACKOFF_S * 2.0 ** min(tries, 10))))


async def _is_own(store: ObjectStore, own: Header, *, certain: bool) -> bool:
    """Whether the object in the slot is this leader's. False: not known yet. Raises: Fenced."""
    try:
        header = decode_header(await store.read(object_name(own.slot), length=HEADER_BYTES), slot=own.slot)
    except Unavailable:
        return False
    except NotFound:
        if not certain:
            return False
        # What refused the PUT has been removed since, and only a later leader does that.
        raise _deposed(own) from None
    except CorruptData as error:
        raise _deposed(own) from error
    if (header.log_id, header.leader_id, header.nonce, header.body_crc) != (
        own.log_id, own.leader_id, own.nonce, own.body_crc,
    ):  # fmt: skip
        raise _deposed(own)
    return True


def _deposed(own: Header) -> Fenced:
    return Fenced(
        "another leader has taken over the log",
        code=Code.DEPOSED,
        hint="run the load again: it goes on where the log ends",
        slot=slot_text(own.slot),
    )


RESPONSE_SECONDS_MAX: Final = 2.0
DRAIN_SECONDS_MAX: Final = 60.0


async def ask_to_step_down(address: str, token: str | None) -> str | None:
    """The leader id at ``address`` if it still leads, empty if it does not, None without a response."""
    return await asyncio.to_thread(_ask, address, token)


def _ask(address: str, token: str | None) -> str | None:
    try:
        endpoint = parse_endpoint(address)
    except InvalidRequest:  # what the log's newest record says need not be an address
        return None
    if endpoint.unix_path is not None:
        return None
    leader = _leader(f"{endpoint}/livez")
    if not leader:
        return leader
    request = urllib.request.Request(f"{endpoint}/v1/admin/step-down", data=b"", method="POST")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token_of(token)}")
    try:
        with urllib.request.urlopen(request, timeout=DRAIN_SECONDS_MAX):
            return ""
    except (OSError, ValueError):
        # The response may be lost when it closes its connections; what counts is whether it leads.
        return _leader(f"{endpoint}/livez")


def _leader(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=RESPONSE_SECONDS_MAX) as response:
            health = json.loads(response.read(65_536))
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError):
        return None
    leading = isinstance(health, dict) and health.get("leading")
    return str(health.get("leader_id", "")) if leading else ""


@dataclass(frozen=True, slots=True)
class LeadershipOptions:
    """How to come to lead. ``token`` is the bearer token with which a living leader is asked to step down."""

    take_over: bool = False
    silence_ms: float = 2_000.0
    token: str | None = None


DEFAULT_LEADERSHIP: Final = LeadershipOptions()


class Leadership:
    """This job as a leader: its claim, the head of its chain, and the end of it."""

    def __init__(self, thread: StoreThread, leading: LeadershipOptions) -> None:
        self._thread = thread
        self._leading = leading
        self._nonce_seed = os.urandom(32)
        self._claim: Header | None = None
        self._durable: Slot | None = None
        self.head: Header

    def claim(self) -> Header:
        """Take the lead, after asking a living leader to step down."""
        identity = Identity(LeaderId(os.urandom(16)), self._nonce_seed, "")
        leading, ask = self._leading, partial(ask_to_step_down, token=self._leading.token)

        async def lead(store: ObjectStore) -> Takeover:
            rules = TakeoverOptions(
                allow_new=True, take_over=leading.take_over, silence_ms=leading.silence_ms, ask_leader=ask
            )
            return await take_the_lead(store, identity, LogId(os.urandom(16)), rules)

        claim = self._thread.start(lead).result().claim
        self._claim = self.head = claim
        self._durable = claim.slot
        return claim

    def next_header(self, first_version: int, last_version: int, floor: int, transactions: int, time_ms: int) -> Header:
        """The header of the next batch, without the lengths and CRCs of its body. It becomes the head."""
        before = self.head
        slot = jump(before.slot) if before.kind is Kind.CLAIM else Slot(before.slot - 1)
        assert self._claim is not None, "a leader has claimed"
        assert self._durable is not None, "a claim is durable"
        self.head = replace(
            before,
            kind=Kind.DATA,
            slot=slot,
            claim=self._claim.slot,
            prev=before.slot,
            nonce=blake2b(slot.to_bytes(8, "little"), key=self._nonce_seed, digest_size=16).digest(),
            first_version=Version(first_version),
            last_version=Version(last_version),
            prev_version=before.last_transaction_version,
            window_floor=Version(max(floor, before.window_floor)),
            durable=self._durable,
            time_ms=max(time_ms, before.time_ms),
            transactions=transactions,
        )
        return self.head

    def confirm(self, last: Header, objects: int) -> None:
        """The last ``objects`` slots, down to ``last``, exist: durable, unless another leader has claimed.

        Raises: Fenced, Unavailable; InvalidRequest when they are not where this job reads.
        """
        newest = self._thread.start(newest_slot).result()
        if has_successor(newest, oldest_free=Slot(last.slot - 1)):
            raise _deposed(last)
        first = object_name(last.slot - 1)
        listed = self._thread.start(lambda store: store.list(PREFIX, after=first, limit=objects)).result()
        if [row.key for row in listed] != [object_name(slot) for slot in range(last.slot, last.slot + objects)]:
            raise InvalidRequest(
                "the batches that tasks have written are not in this log",
                code=Code.BAD_CONFIGURATION,
                hint="a log in a directory: every worker must see that same directory under the same path",
            )
        self._durable = last.slot

    def resign(self) -> None:
        """Write the last record, so that the next leader need not wait. Raises: Fenced, Unavailable."""
        version = self.head.last_version
        made = self.next_header(version, version, 0, 0, int(time.time() * 1000))
        header = replace(made, kind=Kind.RESIGN, body_length=0, body_crc=0, flags=0)
        self._thread.start(lambda store: put_batch(store, header, encode_object(header))).result()
