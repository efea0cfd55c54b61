"""Planning without Spark: which objects are live, where pieces begin and end, what is loss and what is retention."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, random_log, read_plainly, seq

from holdfast.commit.format.batch import (
    CLAIM_BYTES,
    FIRST_SLOT,
    HEADER_BYTES,
    Kind,
    decode_header,
    encode_object,
    jump,
    object_name,
)
from holdfast.commit.format.transaction import Write
from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest, NotFound
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import Listed
from holdfast.spark.options import ReadOptions, parse_read_options
from holdfast.spark.runtime.processes import CORES_VARIABLE
from holdfast.spark.source.chain import Chain, live_chain
from holdfast.spark.source.plan import ReadPlan, plan_read
from holdfast.spark.source.shapes import RowFilter
from holdfast.values import Version


def store_of(builder: LogBuilder) -> MemoryStore:
    objects = MemoryObjects()
    for slot, data in builder.objects.items():
        assert objects.create(object_name(slot), data)
    return MemoryStore(objects, url="memory:")


def chain_of(builder: LogBuilder) -> Chain:
    return asyncio.run(live_chain(store_of(builder)))


def options(**given: object) -> ReadOptions:
    return parse_read_options({"url": "memory:", **{name: str(value) for name, value in given.items()}})


def plan(builder: LogBuilder, **given: object) -> ReadPlan:
    return asyncio.run(plan_read(store_of(builder), options(**given)))


def slots_of(plan: ReadPlan) -> list[int]:
    return [slot for piece in plan.pieces for first, last in piece.runs for slot in range(first, last - 1, -1)]


def truncated_log() -> LogBuilder:
    """Two reigns; the first one's data and the first half of the second's are removed as retention does it."""
    builder = LogBuilder(seed=5)
    first = builder.lead()
    for _ in range(10):
        first.commit([Write(b"k", b"v")])
    second = builder.lead()
    for _ in range(10):
        second.commit([Write(b"k", b"v")])
    removed_through = second.transactions[jump(second.claim.slot) - 4][-1].version
    second.head = replace(second.head, truncated_through=Version(removed_through))
    for _ in range(10):
        second.commit([Write(b"k", b"v")])
    for slot in [*first.transactions, *range(jump(second.claim.slot), jump(second.claim.slot) - 5, -1)]:
        del builder.objects[slot]
    return builder


@pytest.mark.parametrize("range_slots", [2, 20_000])
@pytest.mark.parametrize("seed", matrix(range(30), 8))
def test_the_live_chain_found_by_sizes_is_the_one_found_by_walking(
    monkeypatch: pytest.MonkeyPatch, seed: int, range_slots: int
) -> None:
    monkeypatch.setattr("holdfast.spark.source.chain.LIST_RANGE_SLOTS", range_slots)
    builder = random_log(seed)
    walked = [batch.header.slot for batch in read_plainly(builder.objects)]
    chain = chain_of(builder)
    assert [int(slot) for slot in chain.slots] == walked
    assert [int(size) for size in chain.sizes] == [len(builder.objects[slot]) for slot in walked]
    assert not chain.truncated


@pytest.mark.parametrize("seed", range(20))
def test_version_bounds_pick_just_the_objects_whose_versions_meet_them(seed: int) -> None:
    builder = random_log(seed)
    headers = [batch.header for batch in read_plainly(builder.objects)]
    draw = builder.random
    low, high = sorted(draw.choice(headers).last_version + draw.randrange(-2, 1) for _ in range(2))
    picked = slots_of(plan(builder, startingVersion=low, endingVersion=high))
    assert picked == [h.slot for h in headers if h.last_version >= low and h.first_version <= high]


@pytest.mark.parametrize("seed", range(10))
def test_pieces_hold_every_live_object_once_in_order_and_know_what_comes_before(seed: int) -> None:
    builder = random_log(seed, reigns=8, batches=40)
    headers = [batch.header for batch in read_plainly(builder.objects)]
    pieces = plan(builder, targetPartitionBytes=2**20).pieces
    assert len(pieces) > 1
    assert [slot for piece in pieces for slot in slots_of(ReadPlan([piece], RowFilter()))] == [h.slot for h in headers]
    by_slot = {header.slot: header for header in headers}
    for before, piece in pairwise(pieces):
        assert piece.head == before.runs[-1][1]
        assert piece.claim == by_slot[piece.head].claim
        assert piece.object_bytes == sum(
            len(builder.objects[slot]) for slot in slots_of(ReadPlan([piece], RowFilter()))
        )


def test_an_offset_ends_one_read_where_it_starts_the_next() -> None:
    builder = random_log(5)
    everything = slots_of(plan(builder))
    for slot in everything:
        offset = f'{{"seq": {seq(slot)}}}'
        before, after = plan(builder, endingOffsets=offset), plan(builder, startingOffsets=offset)
        assert slots_of(before) + slots_of(after) == everything


def test_a_time_ends_a_read_after_the_last_object_that_was_written_by_then() -> None:
    builder = random_log(5)
    headers = [batch.header for batch in read_plainly(builder.objects)]
    for header in headers[:: len(headers) // 7]:
        time = datetime.fromtimestamp(header.time_ms / 1000, UTC).isoformat()
        by_then = [each.slot for each in headers if each.time_ms <= header.time_ms]
        for option in ("endingTimestamp", "timestampAsOf"):
            assert slots_of(plan(builder, **{option: time})) == by_then, option
    earlier = datetime.fromtimestamp(headers[0].time_ms / 1000 - 1, UTC).isoformat()
    assert slots_of(plan(builder, endingTimestamp=earlier)) == []
    with pytest.raises(NotFound, match="timestampAsOf is before the oldest object"):
        plan(builder, timestampAsOf=earlier)


def test_an_ending_offset_of_another_log_or_past_the_end_is_refused() -> None:
    builder = random_log(5)
    last = seq(slots_of(plan(builder))[-1])
    for offset in (f'{{"seq": {last + 1}}}', '{"version": 9007199254740991}'):
        with pytest.raises(InvalidRequest, match="endingOffsets is past the end of the log") as caught:
            plan(builder, endingOffsets=offset)
        assert caught.value.code is Code.FUTURE_VERSION
    with pytest.raises(InvalidRequest) as caught:
        plan(builder, endingOffsets=f'{{"seq": 1, "log_id": "{"ab" * 16}"}}')
    assert caught.value.code is Code.LOG_MISMATCH


def test_a_log_is_cut_for_every_core_only_where_each_piece_is_worth_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CORES_VARIABLE, "3")
    small, large = LogBuilder(), LogBuilder()
    for builder, value in ((small, b"v"), (large, bytes(2 * 2**20))):
        leader = builder.lead()
        for number in range(12):
            leader.commit([Write(b"%d" % number, value)])
    assert len(plan(small).pieces) == 1
    assert len(plan(large).pieces) == 3
    assert [len(plan(small, minPartitions=count).pieces) for count in (2, 3, 5, 100)] == [2, 3, 5, 13]
    for count in (1, 3, 100):
        assert slots_of(plan(small, minPartitions=count)) == slots_of(plan(small))


def test_a_store_without_objects_is_log_empty() -> None:
    with pytest.raises(NotFound) as caught:
        chain_of(LogBuilder())
    assert caught.value.code == "log_empty"


@pytest.mark.parametrize("reign", [0, 1])
def test_an_acknowledged_slot_that_is_missing_is_data_loss_and_named(reign: int) -> None:
    builder = LogBuilder(seed=3)
    leaders = []
    for _ in range(2):
        leader = builder.lead()
        leaders.append(leader)
        for _ in range(6):
            leader.commit([Write(b"k", b"v")])
    slot = jump(leaders[reign].claim.slot) - 2
    del builder.objects[slot]
    with pytest.raises(CorruptData, match=f"data loss.*slot={slot}"):
        chain_of(builder)


def test_a_slot_that_was_never_acknowledged_just_ends_the_log() -> None:
    builder = LogBuilder(seed=3)
    leader = builder.lead()
    leader.commit([Write(b"k", b"v")])
    leader.commit([Write(b"k", b"v")], lands=False)
    leader.commit([Write(b"k", b"v")])
    assert [int(slot) for slot in chain_of(builder).slots] == [FIRST_SLOT, FIRST_SLOT - 1]


def test_a_missing_genesis_claim_is_data_loss() -> None:
    builder = random_log(2)
    del builder.objects[FIRST_SLOT]
    with pytest.raises(CorruptData, match="no genesis claim"):
        chain_of(builder)


def test_an_object_that_was_cut_to_the_size_of_a_claim_does_not_end_the_log() -> None:
    """It has no body that could be missed: only its size is wrong, and what a listing tells is sizes."""
    builder = LogBuilder(seed=3)
    leader = builder.lead()
    leader.commit([Write(b"k", b"v")])
    leader.send([])
    cut_slot = leader.head.slot
    leader.commit([Write(b"k", b"v")])
    builder.objects[cut_slot] = builder.objects[cut_slot][:HEADER_BYTES]
    with pytest.raises(CorruptData, match=f"object of claim size is no claim slot={cut_slot}"):
        chain_of(builder)


def test_a_key_that_is_no_slot_is_named() -> None:
    store = store_of(random_log(2))
    assert store.objects.create("batches/README", b"hello")
    with pytest.raises(CorruptData, match="key=batches/README"):
        asyncio.run(live_chain(store))


def test_what_retention_removed_is_not_damage_and_reading_starts_behind_it() -> None:
    builder = truncated_log()
    chain = chain_of(builder)
    assert chain.truncated
    oldest = decode_header(builder.objects[int(chain.slots[0])], slot=int(chain.slots[0]))
    assert oldest.kind is Kind.DATA
    assert len(chain.slots) == 15
    assert slots_of(plan(builder)) == [int(slot) for slot in chain.slots]


def test_starting_from_removed_versions_is_loud_unless_loss_is_allowed() -> None:
    builder = truncated_log()
    oldest = int(chain_of(builder).slots[0])
    removed = decode_header(builder.objects[oldest], slot=oldest).prev_version
    with pytest.raises(NotFound, match="retention has removed") as caught:
        plan(builder, startingVersion=removed)
    assert caught.value.code == "log_truncated"
    everything = [int(slot) for slot in chain_of(builder).slots]
    assert slots_of(plan(builder, startingVersion=removed, failOnDataLoss="false")) == everything
    assert slots_of(plan(builder, startingVersion=removed + 1)) == everything


def test_missing_slots_that_retention_does_not_explain_are_loss_even_in_a_truncated_log() -> None:
    builder = truncated_log()
    slot = int(chain_of(builder).slots[3])
    del builder.objects[slot]
    with pytest.raises(CorruptData, match=f"slot={slot}"):
        chain_of(builder)


class MovingStore(MemoryStore):
    """A store to which something happens after each listing, before its answer is looked at."""

    def __init__(self, builder: LogBuilder, happens: Callable[[], None]) -> None:
        super().__init__(MemoryObjects(), url="memory:moving")
        self._builder = builder
        self._happens = happens
        self._follow()

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        rows = await super().list(prefix, after=after, limit=limit)
        self._happens()
        self._follow()
        return rows

    def _follow(self) -> None:
        for slot, data in self._builder.objects.items():
            self.objects.create(object_name(slot), data)


@pytest.mark.parametrize("seed", range(25))
def test_a_log_that_moves_while_it_is_listed_gives_a_state_it_passed_through(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Leaders write, lose PUTs and are deposed between the pages; nothing that was live before is missed or misread."""
    monkeypatch.setattr("holdfast.spark.source.chain.LIST_RANGE_SLOTS", 3)
    builder = random_log(seed, reigns=2)
    draw = builder.random
    before = [batch.header.slot for batch in read_plainly(builder.objects)]
    leader = builder.lead()
    events_left = 12

    def move() -> None:
        nonlocal leader, events_left
        events_left -= 1
        if events_left < 0:
            return
        for slot in list(leader.in_flight):
            if draw.random() < 0.7:
                leader.land(slot)
        leader.acknowledge()
        if draw.random() < 0.3:
            leader = builder.lead()
        for _ in range(draw.randrange(4)):
            leader.commit([Write(b"k", b"v")], lands=draw.random() < 0.6)

    found = [int(slot) for slot in asyncio.run(live_chain(MovingStore(builder, move))).slots]
    after = [batch.header.slot for batch in read_plainly(builder.objects)]
    assert found == after[: len(found)]
    assert before == found[: len(before)]


def test_a_hole_in_one_listing_that_the_next_one_fills_is_no_loss() -> None:
    builder = random_log(2)
    whole = [int(slot) for slot in chain_of(builder).slots]
    slot = next(slot for slot in whole[len(whole) // 2 :] if len(builder.objects[slot]) > CLAIM_BYTES)
    late = builder.objects.pop(slot)
    listings = 0

    def land() -> None:
        nonlocal listings
        listings += 1
        if listings == 2:
            builder.objects[slot] = late

    assert [int(slot) for slot in asyncio.run(live_chain(MovingStore(builder, land))).slots] == whole


def test_objects_that_change_nothing_but_a_header_field_are_still_refused_by_their_crc() -> None:
    builder = LogBuilder(seed=1)
    leader = builder.lead()
    leader.commit([Write(b"k", b"v")])
    data = bytearray(builder.objects[FIRST_SLOT - 1])
    data[136] = 1
    builder.objects[FIRST_SLOT - 1] = bytes(data)
    with pytest.raises(HoldfastError, match="header CRC does not match"):
        plan(builder)


def test_encoding_a_header_again_gives_the_same_object() -> None:
    """The builder's objects are those of the format's owner, not a second definition."""
    builder = random_log(7)
    for batch in read_plainly(builder.objects):
        if not batch.header.transactions:
            assert encode_object(batch.header) == builder.objects[batch.header.slot]
