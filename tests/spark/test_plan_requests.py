"""What a plan asks of the log's store: the objects of its versions, once, however long the log is."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.spark.log_builder import LogBuilder

from holdfast.commit.format.batch import FIRST_SLOT, SPAN_MAX
from holdfast.commit.format.transaction import Write
from holdfast.errors import NotFound
from holdfast.objects.port import Listed
from holdfast.spark.log import increments
from holdfast.spark.log.delta_output import DeltaJob
from holdfast.spark.log.increments import Increment, next_increment
from holdfast.spark.log.runner import Schedule, StepResult, run_pipeline
from holdfast.spark.options import parse_read_options
from holdfast.spark.runtime import store_thread
from holdfast.spark.runtime.store_thread import with_store
from holdfast.spark.source.chain import live_chain, log_head, read_header
from holdfast.spark.source.plan import ReadPlan, plan_of, plan_read
from holdfast.spark.source.shapes import row_filter
from holdfast.spark.source.stream import starting_position
from holdfast.values import Version

COMMITS = 600
"""Of each leadership."""
END_KEYS = SPAN_MAX
"""The page that shows where a log ends."""


@dataclass
class Requests:
    """What the store was asked for."""

    lists: int = 0
    listed: int = 0
    reads: int = 0

    def clear(self) -> None:
        self.lists = self.listed = self.reads = 0


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    counts = Requests()
    store: Any = store_thread._DirectoryHere
    list_page, read = store.list, store.read

    async def counted_list(self: Any, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        rows: builtins.list[Listed] = await list_page(self, prefix, after=after, limit=limit)
        counts.lists += 1
        counts.listed += len(rows)
        return rows

    async def counted_read(self: Any, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        counts.reads += 1
        data: bytes = await read(self, key, start=start, length=length)
        return data

    monkeypatch.setattr(store, "list", counted_list)
    monkeypatch.setattr(store, "read", counted_read)
    return counts


def long_log() -> LogBuilder:
    """Three leaderships of 600 objects each, with the gaps that claims leave between them."""
    builder = LogBuilder(seed=8)
    for _ in range(3):
        leader = builder.lead()
        for number in range(COMMITS):
            leader.commit([Write(b"k%d" % number, b"v")])
    return builder


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    return long_log().write_to(tmp_path_factory.mktemp("log"))


@pytest.fixture(scope="module")
def versions(log: str) -> list[int]:
    """The last version of each live object, oldest first."""

    async def all_of(store: Any) -> list[int]:
        chain = await live_chain(store)
        return [(await read_header(store, int(slot))).last_version for slot in chain.slots]

    return with_store(log, all_of)


def planned(log: str, **given: object) -> ReadPlan:
    options = parse_read_options({"url": log, **{name: str(value) for name, value in given.items()}})
    found: ReadPlan = with_store(log, lambda store: plan_read(store, options))
    return found


def objects(plan: ReadPlan) -> list[int]:
    return [slot for piece in plan.pieces for slot in piece.slots()]


def test_a_plan_of_the_last_versions_lists_them_alone(log: str, versions: list[int], requests: Requests) -> None:
    plan = planned(log, startingVersion=versions[-10])
    assert len(objects(plan)) == 10
    assert requests.listed <= END_KEYS + 10 + 2
    assert requests.lists == 2, "the end of the log, and the part"
    assert requests.reads <= 40


@pytest.mark.parametrize("at", [3, 500, 805])
def test_a_plan_inside_the_log_lists_what_is_between_its_bounds(
    log: str, versions: list[int], requests: Requests, at: int
) -> None:
    plan = planned(log, startingVersion=versions[at], endingVersion=versions[at + 7])
    assert objects(plan) == objects(planned(log))[at : at + 8]
    requests.clear()
    planned(log, startingVersion=versions[at], endingVersion=versions[at + 7])
    assert requests.listed <= END_KEYS + 8 + 2
    assert requests.reads <= 60


@pytest.mark.parametrize(
    "given",
    [
        {"startingVersion": "latest"},
        {"startingVersion": "5"},
        {"endingVersion": "40"},
        {"startingOffsets": '{"seq": 30}'},
        {"startingOffsets": '{"seq": 30}', "endingOffsets": '{"seq": 33}'},
        {"endingOffsets": '{"seq": 33}'},
        {"startingOffsets": '{"version": 700000000000}'},
    ],
)
def test_a_part_has_the_objects_that_the_whole_chain_has(
    log: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = planned(log, **given)

    async def none(*_: object) -> None:
        return None

    monkeypatch.setattr("holdfast.spark.source.plan._part", none)
    whole = planned(log, **given)
    assert objects(part) == objects(whole)
    assert part.wanted == whole.wanted
    assert [piece.lineage for piece in part.pieces] == [piece.lineage for piece in whole.pieces]


def test_a_stream_that_starts_at_a_version_lists_what_follows(
    log: str, versions: list[int], requests: Requests
) -> None:
    options = parse_read_options({"url": log, "startingVersion": str(versions[-5])})
    position = with_store(log, lambda store: starting_position(store, options))
    assert position.version == versions[-5] - 1 or position.version == versions[-6]
    assert requests.listed <= END_KEYS + 8


def test_a_look_that_finds_nothing_lists_the_end_of_the_log_once(
    log: str, versions: list[int], requests: Requests
) -> None:
    assert next_increment(log, versions[-1], step_bytes=2**40).is_empty
    assert (requests.lists, requests.listed) == (1, END_KEYS)


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_look_lists_what_follows_its_version_and_reading_lists_nothing(
    log: str, versions: list[int], requests: Requests, is_marked: bool
) -> None:
    before = next_increment(log, 0, until=versions[-11], step_bytes=2**40)
    requests.clear()
    found = next_increment(log, versions[-11], step_bytes=2**40, near_seq=before.last_seq if is_marked else 0)
    assert (found.through, found.objects, found.behind_bytes) == (versions[-1], 10, 0)
    assert requests.listed <= END_KEYS + 12
    assert requests.lists == 2
    assert requests.reads <= (20 if is_marked else 45)
    requests.clear()
    assert found.part is not None
    options = parse_read_options({"url": log})
    assert len(objects(plan_of(found.part, options, row_filter(options)))) == 10
    assert (requests.lists, requests.reads) == (0, 0)


def test_a_mark_that_is_wrong_or_gone_changes_nothing(log: str, versions: list[int]) -> None:
    expected = next_increment(log, versions[600], step_bytes=1)
    for seq in (1, 7, 2**40, FIRST_SLOT, expected.last_seq, expected.last_seq + 5):
        assert next_increment(log, versions[600], step_bytes=1, near_seq=seq) == expected


def test_increments_in_small_windows_are_those_of_the_whole_chain(
    log: str, versions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps() -> Iterator[Increment]:
        after, near = 0, 0
        while not (each := next_increment(log, after, step_bytes=20_000, near_seq=near)).is_empty:
            yield each
            after, near = each.through, each.last_seq

    monkeypatch.setattr(increments, "LOOK_SLOTS", 50)
    in_windows = list(steps())

    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(increments, "_choose", nothing)
    whole = [replace(each, last_seq=0) for each in steps()]
    assert [(each.after, each.through, each.objects, each.log_bytes) for each in in_windows] == [
        (each.after, each.through, each.objects, each.log_bytes) for each in whole
    ]
    assert len(whole) > 5
    assert in_windows[0].behind_bytes > whole[0].behind_bytes / 2, "an estimate"


def test_what_retention_is_about_to_remove_is_not_read(tmp_path: Path) -> None:
    builder = LogBuilder(seed=5)
    leader = builder.lead()
    for _ in range(10):
        leader.commit([Write(b"k", b"v")])
    slots = sorted(leader.transactions, reverse=True)
    versions = [leader.transactions[slot][-1].version for slot in slots]
    leader.head = replace(leader.head, truncated_through=Version(versions[5]))
    leader.commit([Write(b"k", b"v")])
    for slot in slots[:3]:
        del builder.objects[slot]
    url = builder.write_to(tmp_path)
    with pytest.raises(NotFound, match="retention has removed"):
        next_increment(url, versions[4], step_bytes=1)
    assert next_increment(url, versions[5], step_bytes=2**40).objects == 5
    assert next_increment(url, versions[7], step_bytes=2**40).objects == 3


class Marked(DeltaJob):
    """A table without rows."""

    name = "marked"
    schema = pa.schema([("key", pa.binary())])

    def __init__(self, log: str, output: str) -> None:
        super().__init__(cast("SparkSession", None), log, output)

    def advance(self, increment: Increment) -> StepResult:
        return self._commit(self._open(increment), increment, [])


def test_a_table_keeps_the_object_from_which_its_next_step_goes_on(
    log: str, versions: list[int], requests: Requests, tmp_path: Path
) -> None:
    job = Marked(log, (tmp_path / "table").as_uri())
    run_pipeline(job, log, "out", schedule=Schedule(until=versions[-11] - 1))
    application = "holdfast/marked"
    table = DeltaTable(tmp_path / "table")
    assert table.transaction_version(application) == versions[-11] - 1
    mark = table.transaction_version(f"{application}/seq")
    assert mark is not None
    header = with_store(log, lambda store: read_header(store, FIRST_SLOT - mark))
    assert header.last_version == versions[-12], "the last object that ends at or below the offset"
    job.offset(job.log_id())
    requests.clear()
    assert job.look(versions[-11] - 1, None, 2**40).objects == 11
    assert requests.listed <= END_KEYS + 13


class Counted:
    """A pipeline that does nothing but get on."""

    name = "counted"

    def __init__(self, url: str) -> None:
        self._url = url
        self.reached = self.looks = 0

    settles = False

    def log_id(self) -> str:
        return log_head(self._url).log_id

    def offset(self, log_id: str) -> int:
        return self.reached

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        self.looks += 1
        return next_increment(self._url, after, until=until, step_bytes=step_bytes)

    def advance(self, increment: Increment) -> StepResult:
        self.reached = increment.through
        return StepResult()


def test_a_run_that_has_reached_the_head_it_found_does_not_look_again(log: str, versions: list[int]) -> None:
    job = Counted(log)
    report = run_pipeline(job, log, "out")
    assert (job.looks, report.step_count, report.version) == (1, 1, versions[-1])
    report = run_pipeline(job, log, "out")
    assert (job.looks, report.step_count, report.behind_bytes) == (2, 0, 0)
