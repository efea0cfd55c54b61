"""A bulk job as the leader of a log: its claim, the headers of its batches, and its last record.

Owns: taking the lead politely, the head of the chain, and what makes batches durable. Does not own: recovery and the
claim (``commit.takeover``, ``commit.leadership``), which batches are written.

Failure model: Closed when a leader is alive and does not step down, Fenced when another has claimed since, Unavailable.
After a crash: a claim, and batches up to the first hole; the next leader recovers as after any other.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from holdfast.commit.format.batch import PREFIX, Header, Kind, encode_object, jump, object_name
from holdfast.commit.leadership.claims import Identity, has_successor
from holdfast.commit.leadership.takeover import Takeover, TakeoverOptions, newest_slot, take_the_lead
from holdfast.errors import Code, Fenced, InvalidRequest
from holdfast.objects.port import ObjectStore
from holdfast.spark.bulk.put import put_batch
from holdfast.spark.bulk.step_down import ask_to_step_down
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.values import LeaderId, LogId, Slot, Version

__all__ = ["POLITELY", "BulkLeading", "Reign"]


@dataclass(frozen=True, slots=True)
class BulkLeading:
    """How to come to lead. ``token`` is the bearer token with which a living leader is asked to step down."""

    take_over: bool = False
    silence_ms: float = 2_000.0
    token: str | None = None


POLITELY: Final = BulkLeading()


class Reign:
    """This job as a leader: its claim, the head of its chain, and the end of it."""

    def __init__(self, thread: StoreThread, leading: BulkLeading) -> None:
        self._thread = thread
        self._leading = leading
        self._nonce_seed = os.urandom(32)
        self._claim: Header | None = None
        self._durable: Slot | None = None
        self.head: Header

    def claim(self) -> Header:
        """Take the lead, after asking a living leader to step down."""
        identity = Identity(LeaderId(os.urandom(16)), self._nonce_seed, "")
        leading = self._leading

        async def ask(address: str) -> str | None:
            return await ask_to_step_down(address, leading.token)

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
        """The last so many slots, down to ``last``, are created: durable, if nobody has claimed since.

        Raises: Fenced, Unavailable; InvalidRequest when they are not where this job reads.
        """
        newest = self._thread.start(newest_slot).result()
        if has_successor(newest, oldest_free=Slot(last.slot - 1)):
            raise Fenced(
                "another leader has taken over the log",
                code=Code.DEPOSED,
                hint="run the load again: it goes on where the log ends",
            )
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
