"""Fakes for an ``Ingest`` without Spark: micro-batches, a source, a store of verdicts; and retention of its log."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame

from holdfast.commit.format.batch import HEADER_BYTES, Kind, decode_header, object_name, slot_of
from holdfast.commit.format.transaction import Transaction, Write
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.stages.events import CommitEntry
from holdfast.objects.open import open_store
from holdfast.snapshots import make_snapshot
from holdfast.spark.bulk.leadership import LeadershipOptions
from holdfast.spark.ingest.ingest import Ingest
from holdfast.spark.ingest.numbered_source import MessageRequest, Relation, request_in
from holdfast.spark.ingest.verdict_output import Judged, VerdictOutput
from holdfast.values import Version

POLITE = LeadershipOptions(sign_interval_ms=50.0)


def request(number: int) -> MessageRequest:
    """A request without an id: taken twice, it would be committed twice."""
    value = b64encode(b"value %d" % number).decode()
    body = json.dumps({"operations": [{"type": "write", "key": "aw==", "value": value}]}).encode()
    return request_in(number, body, {}, 1_000 + number)


class Source:
    """Messages that stay until they are acknowledged."""

    identity = "store:00ff/requests/spark"
    is_moved = False

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def relation(self, identity: str | None, through: int, time_ms: int) -> Relation:
        return Relation.SAME

    def attach(self, consumer: str) -> None:
        assert consumer

    def require_same(self) -> None:
        pass

    def kept(self, first: int, last: int) -> dict[int, MessageRequest]:
        return {each: request(each) for each in self.numbers if first <= each <= last}

    def acknowledge(self, through: int) -> None:
        self.numbers = [each for each in self.numbers if each > through]

    def close(self) -> None:
        pass


class Verdicts:
    """As a store keeps them: each number of a publisher once, and none after a gap."""

    def __init__(self) -> None:
        self.codes: dict[str, str | None] = {}
        self.newest: dict[int, int] = {}
        self.is_broken = False

    def begin(self, log_id: str, name: str) -> int:
        return 0

    def write(self, judged: Judged) -> None:
        if self.is_broken:
            raise RuntimeError("killed")
        pairs = zip(judged.requests, judged.outcomes, strict=True)
        for seq, (each, outcome) in enumerate(pairs, judged.before - judged.published + 1):
            newest = self.newest.get(judged.publisher, 0)
            assert seq <= newest + 1, "sequence_gap"
            if seq > newest:
                assert each.order not in self.codes, "a second verdict"
                self.codes[each.order] = outcome.code
                self.newest[judged.publisher] = seq


class Frame:
    sparkSession = None  # noqa: N815  Spark's name

    def __init__(self, *numbers: int) -> None:
        self.requests = [request(number) for number in numbers]


def offered(*numbers: int) -> DataFrame:
    return cast("DataFrame", Frame(*numbers))


def an_ingest(root: Path, verdicts: str | VerdictOutput, source: Source | None, group_requests: int = 100) -> Ingest:
    root.mkdir(exist_ok=True)
    return Ingest(
        root.as_uri(), verdicts, "orders", request_format=None, source=source, leading=POLITE,
        group_requests=group_requests,
    )  # fmt: skip


def retention(root: Path, *, snapshot: bool = True) -> None:
    """A service leads, makes a snapshot, truncates the log, and deletes what may go."""

    async def truncates() -> None:
        store = open_store(root.as_uri())
        service = await CommitService.lead(store, ServiceOptions(address="", allow_new=False, probe=False))
        for number in range(3):
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            service.submit([CommitEntry(Transaction([Write(b"other", b"%d" % number)]), done.set_result)])
            await done
        if snapshot:
            await make_snapshot(store)
        through = service.claim.last_version
        await service.truncate(Version(through))
        for path in (root / "batches").iterdir():
            slot = slot_of(f"batches/{path.name}")
            assert slot is not None, "the store made it"
            header = decode_header(path.read_bytes()[:HEADER_BYTES], slot=slot)
            is_own = header.claim == service.claim.slot
            if header.last_version <= through and header.kind is not Kind.CLAIM and not is_own:
                await store.delete(object_name(slot))
        await service.step_down()
        await service.close()
        await store.close()

    asyncio.run(truncates())
