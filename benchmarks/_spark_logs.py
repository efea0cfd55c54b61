"""Logs for the Spark benchmarks, written straight to a directory, without a service.

Owns: one reign of equal batches of writes. Does not own: what is measured.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.commit.format.batch import (
    FIRST_SLOT,
    Header,
    Kind,
    LoggedTransaction,
    encode_body,
    encode_object,
    jump,
    object_name,
)
from holdfast.commit.format.transaction import Write
from holdfast.commit.leadership.claims import Frontier, Identity, claim_header, encode_claim
from holdfast.values import Instant, LeaderId, LogId, Slot, Version

BLOB = random.Random(1).randbytes(1 << 16)


def write_log(root: Path, rows: int, objects: int, keys: int) -> str:
    """One reign of ``objects`` equal batches with ``rows`` writes in all; returns the log's URL."""
    draw = random.Random(2)
    counts = (rows * (number + 1) // objects - rows * number // objects for number in range(objects))
    url, _ = write_batches(root, ([_write(draw, keys) for _ in range(count)] for count in counts))
    return url


def write_batches(root: Path, batches: Iterable[Sequence[Write]]) -> tuple[str, list[int]]:
    """One reign with these batches, each write a transaction; the log's URL, and the last version of each batch."""
    (root / "batches").mkdir(parents=True)
    draw = random.Random(4)
    identity = Identity(LeaderId(draw.randbytes(16)), draw.randbytes(16), "http://127.0.0.1:1")
    claim = claim_header(
        Frontier(FIRST_SLOT, None, 1),
        identity,
        nonce=bytes(16),
        log_id=LogId(bytes(16)),
        now=Instant(0.0, 1_700_000_000_000),
    )
    (root / object_name(FIRST_SLOT)).write_bytes(encode_claim(claim))
    head, slot = claim, jump(FIRST_SLOT)
    versions: list[int] = []
    for batch in batches:
        logged = [
            LoggedTransaction(Version(head.last_version + 1 + i), f"r{draw.getrandbits(64):016x}", None, (write,), ())
            for i, write in enumerate(batch)
        ]
        body = encode_body(logged)
        head = replace(
            head,
            kind=Kind.DATA,
            slot=slot,
            prev=head.slot,
            first_version=logged[0].version,
            last_version=logged[-1].version,
            prev_version=head.last_transaction_version,
            durable=head.slot,
            transactions=len(batch),
            body_length=len(body),
            body_crc=zlib.crc32(body),
        )
        (root / object_name(slot)).write_bytes(encode_object(head, body))
        slot = Slot(slot - 1)
        versions.append(head.last_version)
    return root.as_uri(), versions


def _write(draw: random.Random, keys: int) -> Write:
    start = draw.randrange(len(BLOB) - 140)
    return Write(b"account/%012d/x" % draw.randrange(keys), BLOB[start : start + draw.randrange(60, 140)])


class Growing:
    """A log to which one object after the other is added, each complete before its name appears."""

    def __init__(self, root: Path) -> None:
        (root / "batches").mkdir(parents=True)
        self._root = root
        identity = Identity(LeaderId(bytes(16)), bytes(16), "http://127.0.0.1:1")
        self._head: Header = claim_header(
            Frontier(FIRST_SLOT, None, 1),
            identity,
            nonce=bytes(16),
            log_id=LogId(bytes(16)),
            now=Instant(0.0, 1_700_000_000_000),
        )
        (root / object_name(FIRST_SLOT)).write_bytes(encode_claim(self._head))
        self._slot = jump(FIRST_SLOT)

    def add(self, writes: int) -> None:
        """One more batch of so many transactions."""
        head = self._head
        logged = [
            LoggedTransaction(Version(head.last_version + 1 + i), None, None, [Write(b"key/%d" % i, b"value")], [])
            for i in range(writes)
        ]
        body = encode_body(logged)
        self._head = replace(
            head,
            kind=Kind.DATA,
            slot=self._slot,
            prev=head.slot,
            first_version=logged[0].version,
            last_version=logged[-1].version,
            prev_version=head.last_transaction_version,
            durable=head.slot,
            transactions=writes,
            body_length=len(body),
            body_crc=zlib.crc32(body),
        )
        temporary = self._root / "next"
        temporary.write_bytes(encode_object(self._head, body))
        temporary.rename(self._root / object_name(self._slot))
        self._slot = Slot(self._slot - 1)
