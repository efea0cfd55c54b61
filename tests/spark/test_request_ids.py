"""One rule for request ids in four runtimes: the service, ``resolve``, ``load`` and ``ingest`` give the same verdicts.

The rule: an id belongs to the attempt under it that is committed. The same attempt again has its version, another one
is ``request_id_reused``. A refused attempt leaves no record, so the id is decided again.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.matrix import matrix
from tests.spark.bulk_requests import SCHEMA, Request
from tests.spark.plain_ingest import POLITE
from tests.spark.test_bulk_load import told

from holdfast.commit.format.batch import VERSION_JUMP
from holdfast.commit.format.transaction import Committed, PointRead, Rejected, Reused, Transaction, Write
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.stages.events import CommitEntry
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectStore
from holdfast.spark.bulk.leadership import LeadershipOptions
from holdfast.spark.bulk.load import LoadOptions, load_requests
from holdfast.spark.bulk.requests import ParsedRequest, RequestFormat, stage
from holdfast.spark.bulk.resolve import look_up, resolve_requests
from holdfast.spark.bulk.verdicts import write_verdicts
from holdfast.spark.ingest.ingest import Ingest
from holdfast.spark.source.chain import log_head

NEW = 2
"""The version at which the second leader begins."""


@dataclass(frozen=True)
class Ask:
    """Writes ``value`` to a key of its own if ``k`` is as it was at ``read``: 0, before all requests; 1, after the
    first one, which writes ``k``; NEW."""

    letter: str | None
    value: str
    read: int

    @property
    def request_id(self) -> str | None:
        return None if self.letter is None else self.letter * 24

    def transaction(self, versions: dict[int, int]) -> Transaction:
        at = versions[self.read]
        return Transaction([Write(b"own", self.value.encode())], [PointRead(b"k", at)], self.request_id, None, at)

    def request(self, versions: dict[int, int]) -> Request:
        at = str(versions[self.read])
        return Request((Write(b"own", self.value.encode()),), ((b"k", None, False, at),), at, self.request_id)


SETUP = Transaction([Write(b"k", b"1")])
BEFORE = (
    (Ask("a", "1", 1), "committed"),
    (Ask("a", "1", 1), "as 0"),  # accepted, and again
    (Ask("a", "2", 1), "request_id_reused"),  # accepted, then other content
    (Ask("b", "0", 0), "conflict"),
    (Ask("b", "0", 0), "conflict"),  # refused, and again
    (Ask("b", "1", 1), "committed"),  # refused, then other content
    (Ask("b", "1", 1), "as 5"),
    (Ask("b", "0", 0), "request_id_reused"),
    (Ask("c", "0", 0), "conflict"),
    (Ask("d", "0", 0), "conflict"),
    (Ask("d", "1", 0), "conflict"),
    (Ask(None, "x", 1), "committed"),
    (Ask("d", "0", 1), "committed"),  # refused twice, then with another read version
    (Ask("d", "1", 0), "request_id_reused"),
    (Ask("e", "0", 0), "conflict"),
)
AFTER = (
    (Ask("a", "1", 1), "as 0"),  # accepted by the leader before
    (Ask("a", "2", 1), "request_id_reused"),
    (Ask("b", "1", 1), "as 5"),
    (Ask("c", "0", 0), "too_old"),  # refused by the leader before
    (Ask("c", "1", NEW), "committed"),
    (Ask("c", "1", NEW), "as 19"),
    (Ask("c", "0", 0), "request_id_reused"),
    (Ask("e", "0", 0), "too_old"),
    (Ask("e", "0", NEW), "committed"),
    (Ask("a", "3", NEW), "committed"),  # a new read version: another attempt, which no window knows
    (Ask("a", "1", 1), "request_id_reused"),
)
ASKS = [ask for ask, _ in (*BEFORE, *AFTER)]
EXPECTED = [verdict for _, verdict in (*BEFORE, *AFTER)]
Found = tuple[str | None, int | None]
"""The code of a refusal, or a version."""


def named(found: Sequence[Found]) -> list[str]:
    """The verdicts, with a version that an earlier request has as ``as n``."""
    first: dict[int, int] = {}
    names: list[str] = []
    for place, (code, version) in enumerate(found):
        if version is None:
            names.append(str(code))
        elif version in first:
            names.append(f"as {first[version]}")
        else:
            first[version] = place
            names.append("committed")
    return names


def by_the_service(root: Path) -> list[Found]:
    """One request after the other, each after the answer to the one before."""
    root.mkdir()
    store: ObjectStore

    async def ask(service: CommitService, txn: Transaction) -> Found:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        service.submit([CommitEntry(txn, done.set_result)])
        entry = await done
        match entry.outcome:
            case None:
                return None, entry.version
            case Committed(version):
                return None, version
            case Rejected(reason, _):
                return reason, None
            case Reused():
                return "request_id_reused", None
            case error:
                raise AssertionError(error)

    async def lead(*, allow_new: bool) -> CommitService:
        return await CommitService.lead(store, ServiceOptions(allow_new=allow_new, probe=False))

    async def main() -> list[Found]:
        nonlocal store
        store = open_store(root.as_uri())
        service = await lead(allow_new=True)
        versions = {0: service.claim.last_version}
        _, versions[1] = cast("tuple[None, int]", await ask(service, SETUP))
        found = [await ask(service, each.transaction(versions)) for each, _ in BEFORE]
        await service.step_down()
        await service.close()
        service = await lead(allow_new=False)
        versions[NEW] = service.claim.last_version
        found += [await ask(service, each.transaction(versions)) for each, _ in AFTER]
        await service.step_down()
        await service.close()
        await store.close()
        return found

    return asyncio.run(main())


class Frame:
    sparkSession = None  # noqa: N815  Spark's name

    def __init__(self, requests: list[ParsedRequest]) -> None:
        self.requests = requests


class Collected:
    """An output of verdicts that keeps them by their order."""

    def __init__(self) -> None:
        self.found: dict[str, Found] = {}

    def begin(self, log_id: str, name: str) -> int:
        return 0

    def write(self, judged: Any) -> None:
        for request, outcome in zip(judged.requests, judged.outcomes, strict=True):
            self.found[request.order] = (outcome.code, outcome.version)


def by_ingest(root: Path, cuts: Sequence[int], group_requests: int) -> list[Found]:
    """Micro-batches that end at ``cuts``; another process leads from the first of ``AFTER`` on."""
    root.mkdir()
    verdicts = Collected()
    versions: dict[int, int] = {}
    number = 0

    def begin() -> Ingest:
        return Ingest(root.as_uri(), verdicts, "orders", leading=POLITE, group_requests=group_requests)

    def send(ingest: Ingest, transactions: Sequence[tuple[str, Transaction]]) -> None:
        nonlocal number
        requests = [ParsedRequest(order, txn.request_id, txn, None) for order, txn in transactions]
        ingest.micro_batch(cast("DataFrame", Frame(requests)), number)
        number += 1

    ingest = begin()
    ingest.lead(cast("SparkSession", None))
    versions[0] = log_head(root.as_uri()).version
    send(ingest, [("setup", SETUP)])
    setup = verdicts.found["setup"][1]
    assert setup is not None
    versions[1] = setup
    edges = sorted({0, *cuts, len(BEFORE), len(ASKS)})
    for first, past in itertools.pairwise(edges):
        if first == len(BEFORE):
            ingest.close()
            ingest = begin()
            ingest.lead(cast("SparkSession", None))
            versions[NEW] = log_head(root.as_uri()).version
        send(ingest, [(str(place), ASKS[place].transaction(versions)) for place in range(first, past)])
    ingest.close()
    return [verdicts.found[str(place)] for place in range(len(ASKS))]


Tell = Callable[[str, list[tuple[object, ...]]], list[dict[str, object]]]


def by_two_inputs(log: Path, tell: Tell) -> list[Found]:
    """The verdicts of a job that takes what each leader gets as one input."""
    first = [Request((Write(b"k", b"1"),), (), "#0").row(0)]
    first += [each.request({0: 0, 1: 1}).row(1 + place) for place, (each, _) in enumerate(BEFORE)]
    rows = tell("before", [_with_indexes(row) for row in first])
    setup = cast("int", rows[0]["version"])
    versions = {0: setup - 1, 1: setup, NEW: log_head(log.as_uri()).version + VERSION_JUMP}
    second = [each.request(versions).row(place) for place, (each, _) in enumerate(AFTER)]
    rows += tell("after", second)
    return [(cast("str | None", row["code"]), cast("int | None", row["version"])) for row in rows[1:]]


def _with_indexes(row: tuple[object, ...]) -> tuple[object, ...]:
    """Versions 0 and 1 as ``#0`` and ``#1``."""
    order, operations, reads, read_version, request_id = row
    at = {"0": "#0", "1": "#1", "#0": "#0"}
    indexed = [(kind, key, end, at[str(version)]) for kind, key, end, version in cast("list[Any]", reads)]
    return order, operations, indexed, at[str(read_version)], request_id


def by_load(spark: SparkSession, root: Path) -> list[Found]:
    """Two loads. ``root / "first"`` is the log as it is between them."""

    def tell(name: str, rows: list[tuple[object, ...]]) -> list[dict[str, object]]:
        options = LoadOptions(name=name, partitions=2, leading=LeadershipOptions(sign_interval_ms=50.0))
        if name == "after":
            shutil.copytree(root / "loaded", root / "first")
        load_requests(
            spark, spark.createDataFrame(rows, SCHEMA), (root / "loaded").as_uri(), (root / name).as_uri(), options
        )
        return told(root / name)

    return by_two_inputs(root / "loaded", tell)


def by_resolve(spark: SparkSession, root: Path) -> list[Found]:
    """``resolve`` writes nothing, so it judges the second input on the log that a load has made of the first one."""
    log = (root / "first").as_uri()
    through = log_head(log).version
    bases = {"before": cast("int", told(root / "before")[0]["version"]) - 1, "after": through + VERSION_JUMP}

    def tell(name: str, rows: list[tuple[object, ...]]) -> list[dict[str, object]]:
        staged = stage(spark.createDataFrame(rows, SCHEMA), RequestFormat(), partitions=2)
        resolution = resolve_requests(staged, bases[name])
        if name == "after":
            resolution = look_up(spark, log, staged, resolution, through)
        target = root / f"resolved-{name}"
        write_verdicts(staged, resolution, lambda at: bases[name] + at, target.as_uri(), made_by="resolve", identity="")
        staged.release()
        return told(target)

    return by_two_inputs(root / "first", tell)


def splits() -> Iterator[tuple[tuple[int, ...], int]]:
    """Where micro-batches end, and how many requests are decided together."""
    yield (), 100
    yield (), 1
    yield tuple(range(len(ASKS))), 100
    yield from (((place,), 100) for place in range(1, len(ASKS)))
    yield from (((place, place + 3), 2) for place in range(1, len(ASKS) - 3))


@pytest.mark.parametrize("split", matrix(splits(), 4))
def test_an_ingest_decides_a_refused_id_again_wherever_a_micro_batch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: tuple[tuple[int, ...], int]
) -> None:
    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
    assert named(by_ingest(tmp_path / "log", *split)) == EXPECTED


def test_four_runtimes_give_the_same_verdicts_on_every_use_of_a_request_id(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert named(by_the_service(tmp_path / "served")) == EXPECTED
    assert named(by_load(spark, tmp_path)) == EXPECTED
    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
    assert named(by_ingest(tmp_path / "ingested", (4, 9), 100)) == EXPECTED
    assert named(by_resolve(spark, tmp_path)) == EXPECTED
