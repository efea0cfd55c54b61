"""Every number of a page leads to its detail: each page is made of a service's documents, and its cells are walked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any, Self, cast

import msgspec
import pytest

from holdfast.client.protocol.effects import Checkpoint, TransactionEvent
from holdfast.commit.format.transaction import PointRead, Write
from holdfast.console.call import PageCall
from holdfast.console.html import text_of
from holdfast.console.options import ConsoleOptions
from holdfast.console.pages import PAGES, cluster
from holdfast.console.pages.jobs import job_of
from holdfast.console.pages.pipelines import Table, _kept
from holdfast.console.reading.exposition import Scrape
from holdfast.console.reading.service import Document, Member, WatchedService
from holdfast.console.reading.watcher import Watcher
from holdfast.console.security import BrowserSession
from holdfast.wire.log import (
    AgeOfLog,
    CheckpointOfStores,
    ConflictingPlace,
    Conflicts,
    Found,
    FoundRange,
    HoldState,
    LeadershipPeriod,
    Leaderships,
    Liveness,
    LogJobState,
    LogObject,
    LogObjects,
    LogStorage,
    PolicyState,
    Readiness,
    RetentionAnswer,
    SnapshotOfLog,
    TransactionInLog,
    VersionAnswer,
)
from holdfast.wire.parts import Delivery
from holdfast.wire.stores import EntriesResponse, Entry
from holdfast.wire.stores import Page as MessagePage

LEADER, STANDBY, SLOT = "http://127.0.0.1:1", "http://127.0.0.1:2", "18446744073709551610"
NEWEST = 300
WRITTEN = TransactionEvent(
    NEWEST, 200, "request-1", "leader-1", 1_795_000_000_000, (Write(b"seat/1", b"7"), Write(b"seat/2", b"8"))
)
BATCH = LogObject(SLOT, "data", 512, 290, NEWEST, 11, 3, "leader-1", LEADER, 1_795_000_000_000)
COUNTS = {
    "messages": 5, "bytes": 99, "durables": 2, "dynamic_durables": 1, "publishers": 3, "unmatched": 4, "next_seq": 9,
    "backlog": 6, "unacknowledged": 2, "parked": 1, "dying": 1, "dead_letters": 8, "redelivered": 7, "acknowledged": 70,
    "ack_wait_lapsed": 3, "oldest_ms": 1_795_000_000_000, "expired": {"ttl": 4},
}  # fmt: skip
SUBSCRIBER = {"name": "clerk", "connected": True, "unacknowledged": 2, "room": 8, "address": "desk", "since_ms": 1}
WORK = {"name": "work", "store": "orders", "type": "shared", "max_delivery": 5, "message_limit": 50, "counts": COUNTS,
        "subscribers": [SUBSCRIBER], "dead_letter_store": "dead"}  # fmt: skip
PRICES = {"name": "prices", "store": "orders", "type": "map", "counts": COUNTS, "subscribers": [],
          "locks": [{"key": "eu", "owner": "desk", "fence": 3, "until_ms": 32_503_680_000_000}]}  # fmt: skip
ORDERS = {"name": "orders", "message_limit": 1_000, "bytelimit": 10_000, "replicated": True, "counts": COUNTS}
JOB = LogJobState("done", {"after": 100, "through": NEWEST}, 1, 2, 3, 3, {"last_transaction": NEWEST, "bytes": 12})


def document_of(value: object) -> Document:
    """A document as the service sends it."""
    return cast(Document, msgspec.json.decode(msgspec.json.encode(value)))


DOCUMENTS: dict[str, Document] = {
    "/v1/cluster": {"revision": 8, "stores": 2, "durables": 3, "messages": 5, "message_limit": 50, "bytes": 77,
                    "bytelimit": 1_000, "disk": {"used": 10, "limit": 100},
                    "log": {"allocated": 2048, "in_use": 1024}},
    "/v1/cluster/history": {"history": [{"revision": 7, "at_ms": 1}, {"revision": 8, "at_ms": 2}]},
    "/v1/cluster/definition": {"revision": 8, "definition": {"permissions": {"users": {"ann2": {"roles": ["all"]}}}}},
    "/v1/stores": {"stores": [{**ORDERS, "durables": {"work": {"type": "shared"}, "prices": {"type": "map"}}}]},
    "/v1/stores/orders": cast(Document, ORDERS),
    "/v1/stores/orders/durables": {"durables": [WORK, PRICES]},
    "/v1/stores/orders/templates": {"templates": [{"name": "jobs", "type": "shared", "durable_ttl": 86_400}]},
    "/v1/stores/orders/durables/work": cast(Document, WORK),
    "/v1/stores/orders/durables/prices": cast(Document, PRICES),
    "/v1/stores/orders/durables/work/browse": document_of(
        MessagePage([Delivery(7, {"kind": "a"}, "k1", b"12", 1_795_000_000_000, 3, True)], 7, [7])
    ),
    "/v1/stores/orders/messages/7/explain": {"durables": [{"durable": "work", "fate": "parked", "deliveries": 3}]},
    "/v1/stores/orders/maps/prices": document_of(EntriesResponse([Entry("eu", b"12", 41)])),
    "/v1/log/objects": document_of(LogObjects((BATCH,), SLOT)),
    "/v1/log/leaderships": document_of(
        Leaderships((LeadershipPeriod("leader-1", LEADER, 3, SLOT, 1_795_000_000_000, 250),))
    ),
    f"/v1/log/transactions/{NEWEST}": document_of(
        TransactionInLog(
            BATCH, NEWEST, "request-1", 280, (PointRead(b"seat/1", 270),), (Write(b"seat/1", b"7"),)
        )
    ),
    "/v1/log/conflicts": document_of(Conflicts(60.0, 9, 0, (ConflictingPlace(b"hot", None, False, 9),))),
    "/v1/log/storage": document_of(
        LogStorage(
            1_795_000_000_000, (SnapshotOfLog(200, 30, 400, 2, SLOT),), (CheckpointOfStores(190, 50),),
            (AgeOfLog(3600.0, 10, 1024), AgeOfLog(86_400.0, 5, 2048), AgeOfLog(None, 1, 4096)), True,
        )
    ),
    "/v1/admin/snapshot": document_of(JOB),
    "/v1/admin/verify": document_of(JOB),
    "/v1/admin/log-level": {"level": "info", "configured": "info"},
    "/v1/configuration": {"settings": [{"key": "commit.window", "value": "7", "source": "default", "why": ""}]},
}  # fmt: skip
RETENTION = RetentionAnswer(
    3,
    {"a-month": PolicyState(max_age_seconds=2_592_000.0, from_version=150, held_seconds=90.0, held_bytes=700)},
    {"mirror-b": HoldState(120, 32_503_680_000_000, 200), "reader": HoldState(130, 32_503_680_000_000)},
    140,
    100,
)


class Stream:
    """The change stream, with one transaction."""

    def __init__(self, after: int) -> None:
        self._after = after

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def __aiter__(self) -> AsyncIterator[object]:
        if self._after < NEWEST:
            yield WRITTEN
        yield Checkpoint(NEWEST, "leader-1")


class Log:
    """A log with one transaction."""

    async def version(self, **_: object) -> VersionAnswer:
        return VersionAnswer(NEWEST, "leader-1", "log-1")

    async def range(self, *_: object, **__: object) -> FoundRange:
        return FoundRange((Found(b"seat/1", b"7", NEWEST),), NEWEST)

    async def get(self, key: bytes, *_: object) -> Found:
        return Found(key, b"text", NEWEST)

    async def retention(self) -> RetentionAnswer:
        return RETENTION

    def subscribe(self, after: int, **_: object) -> Stream:
        return Stream(after)


class Stores:
    """A map with one entry."""

    def map(self, *_: object, **__: object) -> Any:
        async def get(key: str) -> Entry:
            return Entry(key, b"text", 41)

        return SimpleNamespace(get=get)


def metrics_of(count: int) -> str:
    """A scrape of the leader."""
    orders = '{store="orders"} '
    work = '{durable="work",store="orders"} '
    return "\n".join(
        [
            f"holdfast_leading 1\nholdfast_store_healthy 1\nholdfast_epoch 3\nholdfast_durable_version {NEWEST}",
            f'holdfast_commits_total{{outcome="committed"}} {count}\nholdfast_batches_total {count}',
            f"holdfast_batch_bytes_total {count * 9}\nholdfast_commit_seconds_count {count}",
            f'holdfast_commit_seconds_bucket{{le="0.1"}} {count}\nholdfast_commit_seconds_bucket{{le="+Inf"}} {count}',
            f'holdfast_store_seconds_count{{kind="put"}} {count}\nprocess_cpu_seconds_total {count}',
            f"holdfast_message_store_published_total{orders}{count}\nprocess_resident_memory_bytes 7000",
            f"holdfast_durable_acknowledged_total{work}{count}\nholdfast_durable_backlog{work}6",
            f"holdfast_durable_parked{work}1\nholdfast_durable_oldest_timestamp_seconds{work}1795000000",
        ]
    )


class Answers(WatchedService):
    """A service that answers from ``DOCUMENTS``."""

    def __init__(self) -> None:
        super().__init__([LEADER, STANDBY], None)

    async def read(self, target: str, *, member: str = "") -> Document:
        del member
        return DOCUMENTS[target.partition("?")[0]]

    async def read_text(self, target: str, *, member: str = "") -> str:
        del target
        return metrics_of(9) if member == LEADER else "holdfast_followed_version 270\nholdfast_followed_time_seconds 9"

    async def members(self) -> list[Member]:
        leads, follows = Liveness("leader-1", True, LEADER), Liveness("standby-2", False, STANDBY)
        return [Member(LEADER, leads, None, 0.01), Member(STANDBY, follows, None, 0.02)]

    async def readiness(self, member: str) -> Readiness:
        del member
        return Readiness(True, "leader-1", NEWEST, "open")

    @property
    def log(self) -> Any:
        return Log()

    @property
    def stores(self) -> Any:
        return Stores()


class Walker(HTMLParser):
    """Collects cells of tables, tiles and facts: where each is, what it says, and whether it leads on."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[tuple[str, str, str, bool]] = []
        self._section = self._name = self._text = ""
        self._inside: str | None = None
        self._depth = 0
        self._leads = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "section":
            self._section = (given.get("aria-labelledby") or "").removeprefix("h-")
        if tag == "dt":
            self._name = ""
            self._inside = "dt"
        if self._inside in ("td", "dd", "tile"):
            self._leads |= tag in ("a", "time")
            self._depth += tag == "div"
        elif tag in ("td", "dd") or (tag == "div" and "tile" in (given.get("class") or "").split()):
            self._inside, self._depth, self._text, self._leads = "tile" if tag == "div" else tag, 1, "", False
            self._name = given.get("data-label") or ("" if tag == "div" else self._name)

    def handle_endtag(self, tag: str) -> None:
        if self._inside == "dt" and tag == "dt":
            self._inside = None
        elif self._inside == "tile" and tag == "div":
            self._depth -= 1
            if not self._depth:
                self._end()
        elif self._inside == tag:
            self._end()

    def _end(self) -> None:
        label = self._text.split("\n")[0].strip() if self._inside == "tile" else self._name
        self.cells.append((self._section, label, self._text.strip(), self._leads))
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "dt":
            self._name += data
        elif self._inside is not None:
            self._text += data + "\n"


PLACES = {
    "/key": {"key": "c2VhdC8x"},
    "/transaction": {"version": str(NEWEST)},
    "/store": {"store": "orders"},
    "/durable": {"store": "orders", "durable": "work"},
    "/messages": {"store": "orders", "durable": "work"},
    "/message": {"store": "orders", "durable": "work", "seq": "7"},
    "/map": {"store": "orders", "map": "prices"},
    "/map/entry": {"store": "orders", "map": "prices", "key": "eu"},
}
ALSO = (("/messages", {"store": "orders"}), ("/messages", {}), ("/definition", {"revision": ""}))
NO_DETAIL = {
    ("", "Publishers"): "no page lists the publishers",
    ("snapshots", "Keys"): "a snapshot is not browsed; its version leads to the log",
    ("snapshots", "Bytes"): "as its keys",
    ("snapshots", "Parts"): "as its keys",
    ("checkpoints-of-the-stores-in-the-log", "Bytes"): "as a snapshot's keys",
    ("tables", "Delta version"): "the table is not read through the service",
    ("facts", "Version"): "the page itself",
    ("facts", "Request id"): "the page itself",
    ("entry", "Revision"): "the page itself",
    ("processes", "Memory"): "of a standby; that of the leader has its curve",
}
"""Numbers without a detail anywhere, by section and column, and why."""
TEXTS = frozenset(
    {"parameters", "templates", "the-service", "this-console", "users-and-roles", "verification", "making-a-snapshot"}
)
"""Sections of a definition, a configuration or the result of a job: what they show is the detail."""
VALUES = frozenset(
    {
        "Value",
        "Body",
        "Fields",
        "Key",
        "Address",
        "Subscriber",
        "Facts",
        "Policy",
        "Keeps",
        "Table",
        "Key in base64url",
        "Part of the log",
    }
)
"""Columns of texts that a user wrote, and of what their own row says."""


async def _cells_of(path: str, query: dict[str, str]) -> list[tuple[str, str, str, bool]]:
    service = Answers()
    watcher = Watcher(service)
    try:
        watcher.members = await service.members()
        for at in range(3):
            watcher._add(Scrape(metrics_of(5 + at), at * 2.0))
        options = ConsoleOptions((LEADER, STANDBY), "127.0.0.1", 8081, tables=("s3://b/latest",))
        page = next(each for each in PAGES if each.path == path)
        call = PageCall(path, query, BrowserSession("x", 0.0), cast(WatchedService, service), watcher, options)
        walker = Walker()
        walker.feed(text_of(await page.render(call)))
        return walker.cells
    finally:
        await service.aclose()


def numbers_without_detail(page: str) -> set[tuple[str, str]]:
    """The section and the column of each number of a page that leads nowhere, but for the exceptions."""
    walker = Walker()
    walker.feed(page)
    return _without_detail(walker.cells) - NO_DETAIL.keys()


def _without_detail(cells: list[tuple[str, str, str, bool]]) -> set[tuple[str, str]]:
    return {
        (section, name)
        for section, name, text, leads in cells
        if re.search(r"\d", text) and not leads and section not in TEXTS and name not in VALUES
    }


@pytest.fixture(autouse=True)
def _a_table() -> None:
    _kept["s3://b/latest"] = (float("inf"), Table("s3://b/latest", "latest", "log-1", 260, 4, 1, 0, 255))


@pytest.mark.parametrize(
    ("path", "query"), [*((page.path, PLACES.get(page.path, {})) for page in PAGES), *ALSO]
)  # fmt: skip
def test_every_number_leads_to_its_detail(path: str, query: dict[str, str]) -> None:
    cells = asyncio.run(_cells_of(path, query))
    assert _without_detail(cells) <= NO_DETAIL.keys(), path
    assert cells or path == "/runbooks", "the walk sees the page"


def test_the_walk_sees_every_table() -> None:
    seen: set[str] = set()
    for path, query in [*((page.path, PLACES.get(page.path, {})) for page in PAGES), *ALSO]:
        seen |= {section for section, *_ in asyncio.run(_cells_of(path, query))}
    assert seen >= {
        "what-is-slow", "what-is-stuck", "transactions", "batches", "leaderships", "browse", "keys-that-change-most",
        "keys-of-conflicts", "stores", "durables", "subscribers", "messages--oldest-first", "maps", "entries", "locks",
        "policies", "readers-that-hold-the-log", "bytes-by-age", "snapshots", "checkpoints-of-the-stores-in-the-log",
        "processes", "mirrors", "tables",
    }  # fmt: skip


def test_the_walk_names_a_number_without_a_link() -> None:
    walker = Walker()
    walker.feed(
        '<section aria-labelledby="h-x"><table><tr><td data-label="Held"><div>7</div></td><td data-label="Key">'
        '<div><a href="/">8</a></div></td></tr></table><div class="tile"><span>Rate</span><span>9 /s</span></div>'
        "<dl><dt>Size</dt><dd>3 B</dd></dl></section>"
    )
    assert _without_detail(walker.cells) == {("x", "Held"), ("x", "Rate"), ("x", "Size")}


def test_versions_of_a_job_are_written_as_everywhere_and_lead_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def shown() -> str:
        service = Answers()
        try:
            call: Any = SimpleNamespace(service=service, options=SimpleNamespace(acts=False))
            return text_of(await job_of(call, "snapshot"))
        finally:
            await service.aclose()

    versions = JOB.result | {"last_transaction": 338_420_434_407}
    monkeypatch.setitem(DOCUMENTS, "/v1/admin/snapshot", document_of(LogJobState("done", result=versions)))
    assert '<a href="/log?at=338420434407">338420434407</a>' in asyncio.run(shown())


def test_numbers_that_changes_of_leader_left_unused_are_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror that has version 120 of the first leader, and a log of three leaders whose newest version is 300."""
    jump, begins = cluster.VERSION_JUMP, (250, 200)
    assert cluster.missing(300 + 2 * jump, 120, [each + 2 * jump for each in begins]) == 180
    assert cluster.missing(300, 300, begins) == 0
    monkeypatch.setattr(cluster, "VERSION_JUMP", 30)
    cells = asyncio.run(_cells_of("/cluster", {}))
    (missing,) = [text for section, name, text, _ in cells if (section, name) == ("mirrors", "Missing transactions")]
    assert missing == "150", "one leadership of the documents begins above 120"
