"""P6: what recovery waits for, for logs of different lengths.

Owns: writing logs, a store that takes its time, and one takeover. Does not own: targets, printing.

Every request to the store takes ``LATENCY_S`` longer, and its begin and end are noted. The longest chain of requests of
which each began after the one before had ended is the number of store waits one after another. The log is written
straight to a directory, without a service.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.commit.format.batch import (
    FIRST_SLOT,
    HEADER_BYTES,
    Header,
    Kind,
    LoggedTransaction,
    encode_body,
    encode_object,
    jump,
    object_name,
)
from holdfast.commit.format.transaction import Committed, Transaction, Write
from holdfast.commit.leadership.claims import Frontier, Identity, claim_header, encode_claim
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.stages.events import CommitEntry
from holdfast.objects.open import open_store
from holdfast.objects.port import CreateAnswer, Listed, ObjectStore, WithoutLeftovers
from holdfast.values import Instant, LeaderId, LogId, Slot, Version

__all__ = ["Recovered", "recover", "write_log"]

LATENCY_S = 0.05


@dataclass(frozen=True, slots=True)
class Recovered:
    """One takeover. ``ready_waits`` were measured, ``ready_waits_counted`` is what the service itself says."""

    objects: int
    probed: bool
    ready_waits: int
    ready_waits_counted: int
    first_commit_waits: int
    ready_ms: float
    requests: dict[str, int]


class SlowStore(WithoutLeftovers):
    """A store whose every request takes ``LATENCY_S`` longer, and is counted."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.requests: Counter[str] = Counter()
        self._spans: list[tuple[float, float]] = []

    @property
    def sequential_waits(self) -> int:
        """The longest chain of requests that did not overlap, of those that have ended."""
        chain, free_from = 0, 0.0
        for ended, began in sorted((ended, began) for began, ended in self._spans):
            if began >= free_from:
                chain, free_from = chain + 1, ended
        return chain

    @property
    def url(self) -> str:
        return self._inner.url

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        with self._noted("create"):
            await asyncio.sleep(LATENCY_S)
            return await self._inner.create(key, data)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        with self._noted("header" if length == HEADER_BYTES else "read"):
            await asyncio.sleep(LATENCY_S)
            return await self._inner.read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        with self._noted("list"):
            await asyncio.sleep(LATENCY_S)
            return await self._inner.list(prefix, after=after, limit=limit)

    async def delete(self, *keys: str) -> None:
        with self._noted("delete"):
            await asyncio.sleep(LATENCY_S)
            await self._inner.delete(*keys)

    async def close(self) -> None:
        await self._inner.close()

    @contextlib.contextmanager
    def _noted(self, kind: str) -> Iterator[None]:
        self.requests[kind] += 1
        began = time.perf_counter()
        try:
            yield
        finally:
            self._spans.append((began, time.perf_counter()))


def write_log(root: Path, objects: int) -> str:
    """One reign of ``objects`` small batches; returns the log's URL."""
    (root / "batches").mkdir(parents=True)
    identity = Identity(LeaderId(b"l" * 16), b"s" * 16, "127.0.0.1:1")
    claim = claim_header(
        Frontier(FIRST_SLOT, None, 1),
        identity,
        nonce=bytes(16),
        log_id=LogId(bytes(16)),
        now=Instant(0.0, 1_700_000_000_000),
    )
    (root / object_name(FIRST_SLOT)).write_bytes(encode_claim(claim))
    head, slot = claim, jump(FIRST_SLOT)
    for number in range(objects):
        head = _batch(root, head, slot, number)
        slot = Slot(slot - 1)
    return root.as_uri()


def _batch(root: Path, head: Header, slot: Slot, number: int) -> Header:
    version = Version(head.last_version + 1)
    body = encode_body([LoggedTransaction(version, None, None, (Write(b"key/%d" % number, b"value"),), ())])
    header = replace(
        head,
        kind=Kind.DATA,
        slot=slot,
        prev=head.slot,
        nonce=number.to_bytes(16, "little"),
        first_version=version,
        last_version=version,
        prev_version=head.last_transaction_version,
        durable=head.slot,
        transactions=1,
        body_length=len(body),
        body_crc=zlib.crc32(body),
    )
    (root / object_name(slot)).write_bytes(encode_object(header, body))
    return header


async def recover(url: str, objects: int, *, probe: bool) -> Recovered:
    """Take the log over, commit once. ``probe``: with the check of the store that a process makes at its first start,
    and a standby that takes over does not repeat."""
    store = SlowStore(open_store(url))
    began = time.perf_counter()
    service = await CommitService.lead(store, ServiceOptions(address="127.0.0.1:1", take_over=True, probe=probe))
    ready = time.perf_counter()
    requests, ready_waits = dict(store.requests), store.sequential_waits
    answered: asyncio.Future[CommitEntry] = asyncio.get_running_loop().create_future()
    service.submit([CommitEntry(Transaction(operations=[Write(b"first", b"commit")]), answered.set_result)])
    entry = await asyncio.wait_for(answered, 30)
    first_commit_waits = store.sequential_waits
    assert isinstance(entry.outcome, Committed), "nothing stands against the first commit"
    waits = service.takeover.waits
    await service.step_down()
    await service.close()
    await store.close()
    return Recovered(
        objects=objects,
        probed=probe,
        ready_waits=ready_waits,
        ready_waits_counted=waits,
        first_commit_waits=first_commit_waits,
        ready_ms=round((ready - began) * 1000, 1),
        requests=requests,
    )
