"""A log that has message stores, written by real leaders in the test's own loop, and what a plain reading says of it.

Owns: leaders on machines that share nothing but the log, their commits with and without parts, checkpoints, truncation.
``published_plainly`` reads the objects slot by slot and believes the results in the records, nothing else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from tests.definitions import define
from tests.spark.log_builder import read_plainly

from holdfast.commit.format.batch import HEADER_BYTES, Kind, StoresMode, decode_all, decode_header, object_name, slot_of
from holdfast.commit.format.transaction import Committed, Operation, Rejected, Transaction, Write
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.stages.events import CommitEntry
from holdfast.errors import HoldfastError
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectStore
from holdfast.server.stores.commit_parts import StoresOfCommits
from holdfast.server.stores.in_log import LocalCopy, open_in_log
from holdfast.settings import load_configuration
from holdfast.stores.checkpoint_objects import CheckpointManifest, make_checkpoint
from holdfast.stores.service import StoreService
from holdfast.stores.values.commands import (
    Acknowledge,
    Attach,
    CommitPart,
    CommitParts,
    Deliver,
    Delivered,
    MapChange,
    Publish,
    Published,
)
from holdfast.values import Version
from holdfast.wire.parts import Message

WORK = {"work": {"type": "shared", "prefetch": 10_000, "ack_wait": 3600}, "prices": {"type": "map"}}
STORES = {"orders": {"durables": WORK}, "others": {"durables": WORK}}


def document(stores: dict[str, Any]) -> bytes:
    return json.dumps({"cluster": {}, "stores": stores}).encode()


@dataclass
class Leader:
    """One leader with its stores, on a machine of its own."""

    service: StoreService
    leader: CommitService

    async def define(self, stores: dict[str, Any]) -> None:
        await self.service.submit(define(document(stores), self.service.state))

    async def publish(self, bodies: Sequence[bytes], store: str = "orders", publisher: str = "", first: int = 0) -> int:
        messages = [
            Message(body, {"n": len(body)}, publisher_seq=first + number if publisher else 0)
            for number, body in enumerate(bodies)
        ]
        found = await self.service.submit(Publish(0, store, publisher, messages))
        assert isinstance(found, Published)
        return found.first_seq

    async def change(self, *changes: tuple[str, bytes | None], remove_all: bool = False) -> None:
        items: list[tuple[str, bytes | None, int | None]] = [(key, body, None) for key, body in changes]
        await self.service.submit(MapChange(0, "orders", "prices", items, remove_all=remove_all))

    async def consume(self, count: int, store: str = "orders") -> list[int]:
        await self.service.submit(Attach(0, store, "work", "s"))
        found = await self.service.submit(Deliver(0, store, "work", "s", count))
        assert isinstance(found, Delivered)
        ranges = [(first, last) for first, last, _ in found.runs]
        if ranges:
            await self.service.submit(Acknowledge(0, store, "work", "s", ranges))
        return [seq for first, last in ranges for seq in range(first, last + 1)]

    async def commit(
        self, *operations: Operation, parts: Sequence[CommitPart] = (), request_id: str | None = None
    ) -> bool:
        """Whether it was committed."""
        done: asyncio.Future[CommitEntry] = asyncio.get_running_loop().create_future()
        command = CommitParts(0, list(parts)) if parts else None
        txn = Transaction(list(operations), request_id=request_id, read_version=self.leader.local_version())
        self.leader.submit([CommitEntry(txn, done.set_result, parts=command)])
        outcome = (await done).outcome
        assert isinstance(outcome, Committed | Rejected), outcome
        return isinstance(outcome, Committed)

    async def checkpoint(self) -> CheckpointManifest:
        return await make_checkpoint(self.service, self.leader.store, self.leader.log_id)

    async def truncate(self, through: int) -> int:
        """Remove data objects of earlier leaders up to this version, as retention leaves the newest slots. How many."""
        await self.leader.truncate(Version(through))
        root = Path(self.leader.store.url.removeprefix("file://"))
        headers = [decode_header(data[:HEADER_BYTES], slot=slot) for slot, data in objects_of(root).items()]
        gone = [
            object_name(header.slot)
            for header in headers
            if header.last_version <= through
            and header.kind is not Kind.CLAIM
            and header.claim != self.leader.claim.slot
        ]
        if gone:
            await self.leader.store.delete(*gone)
        return len(gone)

    async def end(self, *, resign: bool = True) -> None:
        if resign:
            await self.leader.step_down()
        try:
            await self.service.close()
        except HoldfastError:
            assert not resign, "a deposed leader may fail"
        finally:
            await self.leader.close()
            await self.leader.store.close()


@dataclass
class Site:
    """A log in the directory ``root/log`` or at ``log_url``, and the machines that lead it one after the other."""

    root: Path
    page_bytes: int = 65_536
    leaders: list[Leader] = field(default_factory=list)
    log_url: str = ""

    @property
    def url(self) -> str:
        return self.log_url or (self.root / "log").as_uri()

    async def lead(self, machine: str, stores: dict[str, Any] | None = None) -> Leader:
        """A new leader; the one before is deposed, and has void messages under way. ``stores``: of a new log."""
        store: ObjectStore = open_store(self.url, create_missing=True)
        options = ServiceOptions(allow_new=True, take_over=True, probe=False, stores_mode=StoresMode.LOG)
        leader = await CommitService.lead(store, options)
        if self.leaders:
            before = self.leaders.pop()
            void = [before.publish([b"void" * (number + 1)]) for number in range(3)]
            outcomes = await asyncio.gather(*void, return_exceptions=True)
            assert all(isinstance(each, HoldfastError) for each in outcomes), outcomes
            await before.end(resign=False)
        flags = {"log.url": "memory:", "stores.directory": str(self.root / machine)}
        settings = replace(load_configuration(flags=flags).settings.stores, page_size_bytes=self.page_bytes)
        service = await open_in_log(LocalCopy(store, settings, leader.log_id, "test"), leader, settings)
        leader.serve_stores(StoresOfCommits(service))
        made = Leader(service, leader)
        self.leaders.append(made)
        if stores is not None:
            await made.define(stores)
        return made

    async def end(self) -> None:
        for leader in self.leaders:
            await leader.end()


def objects_of(root: Path) -> dict[int, bytes]:
    """The objects of a log by slot."""
    files = {slot_of(f"batches/{path.name}"): path.read_bytes() for path in (root / "batches").iterdir()}
    return {slot: data for slot, data in files.items() if slot is not None}


PlainMessage = tuple[int, bytes | None, str | None, int]
"""Number, body, key, and when it was published in milliseconds."""


def published_plainly(root: Path, store: str) -> dict[int, PlainMessage]:
    """Every message that the log says was published into ``store``, by its number; a later one replaces an earlier."""
    objects = objects_of(root)
    found: dict[int, PlainMessage] = {}
    for batch in read_plainly(objects):
        for logged in decode_all(objects[batch.header.slot], batch.header) if batch.header.has_body else []:
            if hasattr(logged, "records"):
                records = [record for _, record in logged.records]
            else:
                records = [] if logged.record is None else [logged.record]
            for record in records:
                command, result = msgspec.msgpack.decode(record[1:])[:2]
                is_commit = command[0] == "CommitParts"
                for each, done in zip(command[2], result[1], strict=True) if is_commit else [(command, result)]:
                    found |= _of_command(each, done, store)
    return found


def _of_command(command: list[Any], result: list[Any], store: str) -> dict[int, PlainMessage]:
    """By the positions of the fields, which a format that others read cannot change."""
    kind, at_ms, *rest = command
    if kind not in ("Publish", "MapChange") or rest[0] != store:
        return {}
    new: list[tuple[bytes | None, str | None]]
    if kind == "Publish":
        _, _, last, duplicates = result[:4]
        new = [(one.get("body", b""), one.get("key")) for one in rest[2][duplicates:]]
    else:
        _, last, changed, absent = (*result, [])[:4]
        # Of a removal of all keys, and of one that found none, nothing is a row.
        changes = [] if (len(rest) > 4 and rest[4]) or not changed else rest[2]
        new = [(body, key) for position, (key, body, _) in enumerate(changes) if position not in absent]
    first = last - len(new) + 1
    return {first + index: (first + index, body, key, at_ms) for index, (body, key) in enumerate(new)}


__all__ = ["STORES", "WORK", "Leader", "Site", "Write", "document", "objects_of", "published_plainly"]
