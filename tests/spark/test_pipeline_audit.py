"""The audit on logs that the real pipeline wrote under simulated faults: every planted damage is found, and only that.

Most of it runs without Spark: a piece is audited by a plain function, and the pieces are cut as small as they get, so
that every border is crossed. The last tests run the pipeline itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, PlainBatch, read_plainly
from tests.worlds.log.shape import draw_shape
from tests.worlds.log.world import World

from holdfast.commit.format.batch import (
    FIRST_SLOT,
    VERSION_JUMP,
    Header,
    Kind,
    LoggedTransaction,
    encode_body,
    encode_object,
    object_name,
)
from holdfast.commit.format.transaction import PointRead, RangeDelete, Write
from holdfast.errors import CorruptData
from holdfast.objects import memory
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectStore
from holdfast.spark import Schedule, Verify, run_pipeline
from holdfast.spark.log import audit as audit_module
from holdfast.spark.log.audit import Breach, audit, audit_piece, heads_before, survey
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.source.plan import Piece, cut
from holdfast.values import LeaderId, LogId, Slot, slot_text

Objects = dict[int, bytes]
NAMES = count()


@cache
def world_seeds() -> tuple[int, ...]:
    """Seeds whose worlds have the real protocol's width and keep their whole log."""
    drawn = ((seed, draw_shape(Random(seed))) for seed in range(400))
    return tuple(
        seed
        for seed, shape in drawn
        if shape.span == 1000 and shape.version_jump == VERSION_JUMP and not shape.retention
    )


@cache
def world(seed: int) -> Objects:
    """The objects that the real state machines left in the store of a simulated world."""
    made = World(seed, check_every=1000)
    made.run()
    return dict(made.store.objects)


def stored(objects: Objects, foreign: dict[str, bytes] | None = None) -> str:
    url = f"memory:audit-{next(NAMES)}"
    store = open_store(url)
    assert isinstance(store, memory.MemoryStore)
    for slot, data in objects.items():
        store.objects.create(object_name(slot), data)
    for key, data in (foreign or {}).items():
        store.objects.create(key, data)
    return url


def audited(objects: Objects, *, piece_bytes: int, foreign: dict[str, bytes] | None = None) -> list[Breach]:
    """Every finding, with the log cut into pieces of ``piece_bytes``."""
    url = stored(objects, foreign)
    with StoreThread(url) as thread:
        found = thread.start(survey).result()
    findings = list(found.findings)
    findings += [Breach("missing", slot_text(first)) for first, _ in found.holes]
    pieces = cut(found.chain, 0, len(found.chain.slots), piece_bytes)
    for piece, before_head in zip(pieces, heads_before(found.chain, 0, pieces), strict=True):
        findings += audit_piece(url, piece, before_head).findings
    return findings


ONE_OBJECT, FEW_OBJECTS, WHOLE = 1, 150_000, 2**40


@pytest.mark.matrix  # the next tests audit logs that are whole but for their damage
@pytest.mark.parametrize("piece_bytes", matrix([FEW_OBJECTS, ONE_OBJECT, WHOLE]))
def test_nothing_is_found_in_what_the_real_pipeline_wrote(
    prove: bool, piece_bytes: int, record_property: Callable[[str, object], None]
) -> None:
    seeds = world_seeds() if prove else world_seeds()[:6]
    for seed in seeds:
        assert audited(world(seed), piece_bytes=piece_bytes) == [], f"seed {seed}"
    record_property("audited_worlds", len(seeds))


@dataclass(frozen=True)
class Log:
    """A log to damage: its objects, its live chain, and what to draw from."""

    objects: Objects
    live: list[PlainBatch]
    random: Random

    def data(self) -> PlainBatch:
        """A live batch with transactions, that is not the newest object."""
        return self.random.choice([batch for batch in self.live[:-1] if batch.transactions])

    def put(self, header: Header, transactions: list[LoggedTransaction] | None = None) -> int:
        """Write an object again, whole and with fitting CRCs."""
        if transactions is None:
            body = self.objects[header.slot][512 : 512 + header.body_length]
        else:
            body = encode_body(transactions)
            header = replace(header, transactions=len(transactions), flags=0)
        self.objects[header.slot] = encode_object(replace(header, body_length=len(body)), body)
        return header.slot


def flip(log: Log, slot: int, first: int, past: int) -> int:
    data = bytearray(log.objects[slot])
    bit = log.random.randrange(8 * first, 8 * past)
    data[bit // 8] ^= 1 << bit % 8
    log.objects[slot] = bytes(data)
    return slot


def a_flipped_bit_in_a_body(log: Log) -> int:
    header = log.data().header
    return flip(log, header.slot, 512, 512 + header.body_length)


def a_flipped_bit_in_a_header(log: Log) -> int:
    return flip(log, log.random.choice(log.live[:-1]).header.slot, 0, 512)


def a_missing_object(log: Log) -> int:
    newest = log.live[-1].header
    slot = log.random.choice([b.header.slot for b in log.live if b.transactions and b.header.slot >= newest.durable])
    del log.objects[slot]
    return slot


def a_missing_genesis(log: Log) -> int:
    del log.objects[FIRST_SLOT]
    return FIRST_SLOT


def a_cut_object(log: Log) -> int:
    header = log.random.choice([b.header for b in log.live[:-1] if b.header.body_length > 600])
    log.objects[header.slot] = log.objects[header.slot][: 512 + header.body_length // 2 + 100]
    return header.slot


def an_object_cut_to_the_size_of_a_claim(log: Log) -> int:
    slot = log.random.choice([b.header.slot for b in log.live[:-1] if b.header.kind is Kind.DATA])
    log.objects[slot] = log.objects[slot][:512]
    return slot


def a_wrong_prev(log: Log) -> int:
    header = log.data().header
    return log.put(replace(header, prev=Slot(header.prev + 1)))


def an_object_of_another_log(log: Log) -> int:
    header = log.data().header
    return log.put(replace(header, log_id=LogId(bytes(16))))


def an_object_of_a_leader_that_never_claimed(log: Log) -> int:
    header = log.data().header
    return log.put(replace(header, leader_id=LeaderId(bytes(16))))


def an_object_in_another_slot(log: Log) -> int:
    header = log.data().header
    log.objects[header.slot] = log.objects[log.live[-1].header.slot]
    return header.slot


def a_claim_in_a_slot_of_data(log: Log) -> int:
    """A claim is told by its size, so this one is followed by whoever does not ask what it says."""
    slot = log.data().header.slot
    log.objects[slot] = log.objects[log.random.choice([b for b in log.live if b.header.kind is Kind.CLAIM]).header.slot]
    return slot


def a_claim_of_a_wrong_epoch(log: Log) -> int:
    claim = log.random.choice([b.header for b in log.live if b.header.kind is Kind.CLAIM and b.header.epoch > 1])
    return log.put(replace(claim, epoch=claim.epoch + 1))


def time_that_falls(log: Log) -> int:
    header = log.random.choice([b.header for b in log.live[1:-1] if b.header.kind is Kind.DATA])
    return log.put(replace(header, time_ms=log.live[0].header.time_ms - 1))


def a_window_floor_that_falls(log: Log) -> int:
    return log.put(replace(log.data().header, window_floor=0))


def a_repeated_version(log: Log) -> int:
    """A batch whose first transaction has the version of the last one before it."""
    at = log.random.choice([i for i, b in enumerate(log.live[1:-1], 1) if b.transactions])
    batch = log.live[at]
    before = log.live[at - 1].header.last_version
    first = replace(batch.header, first_version=before)
    transactions = [replaced(batch.transactions[0], version=before), *batch.transactions[1:]]
    if len(transactions) == 1:
        first = replace(first, last_version=before)
    return log.put(first, transactions)


def a_forged_verdict(log: Log) -> int:
    """A committed transaction gets a precondition that an earlier commit had broken."""
    for batch in log.random.sample(log.live[:-1], len(log.live) - 1):
        floor = batch.header.window_floor
        earlier = [
            txn
            for each in log.live
            for txn in each.transactions
            if each.header.claim == batch.header.claim and floor < txn.version < batch.header.first_version
        ]
        writes = [(txn, op) for txn in earlier for op in txn.operations if isinstance(op, Write)]
        if batch.transactions and writes:
            txn, write = log.random.choice(writes)
            index = log.random.randrange(len(batch.transactions))
            victim = batch.transactions[index]
            forged = replaced(victim, preconditions=[*victim.preconditions, PointRead(write.key, txn.version - 1)])
            return log.put(batch.header, [*batch.transactions[:index], forged, *batch.transactions[index + 1 :]])
    raise AssertionError("a world has two transactions in one window")


def a_read_below_the_window(log: Log) -> int:
    batch = log.random.choice([b for b in log.live[:-1] if b.transactions and b.header.window_floor > 0])
    victim = batch.transactions[0]
    forged = replaced(victim, preconditions=[PointRead(b"never written", batch.header.window_floor - 1)])
    return log.put(batch.header, [forged, *batch.transactions[1:]])


def a_request_id_committed_twice(log: Log) -> int:
    for batch in log.random.sample(log.live[:-1], len(log.live) - 1):
        floor = batch.header.window_floor
        named = [
            txn
            for each in log.live
            for txn in each.transactions
            if each.header.claim == batch.header.claim
            and txn.request_id is not None
            and floor < txn.version < batch.header.first_version
        ]
        if batch.transactions and named:
            first = log.random.choice(named)
            again = replaced(
                batch.transactions[0], request_id=first.request_id, read_version=first.version - 1, preconditions=[]
            )
            return log.put(batch.header, [again, *batch.transactions[1:]])
    raise AssertionError("a world has an attempt with an id before another transaction in one window")


def an_empty_range_delete(log: Log) -> int:
    batch = log.data()
    victim = batch.transactions[0]
    forged = replaced(victim, operations=[*victim.operations, RangeDelete(b"b", b"a")])
    return log.put(batch.header, [forged, *batch.transactions[1:]])


def replaced(txn: LoggedTransaction, **changes: object) -> LoggedTransaction:
    names = ("version", "request_id", "read_version", "operations", "preconditions")
    return LoggedTransaction(**{**{name: getattr(txn, name) for name in names}, **changes})  # type: ignore[arg-type]


DAMAGES: list[Callable[[Log], int]] = [
    a_flipped_bit_in_a_body,
    a_flipped_bit_in_a_header,
    a_missing_object,
    a_missing_genesis,
    a_cut_object,
    an_object_cut_to_the_size_of_a_claim,
    a_wrong_prev,
    an_object_of_another_log,
    an_object_of_a_leader_that_never_claimed,
    an_object_in_another_slot,
    a_claim_in_a_slot_of_data,
    a_claim_of_a_wrong_epoch,
    time_that_falls,
    a_window_floor_that_falls,
    a_repeated_version,
    a_forged_verdict,
    a_read_below_the_window,
    a_request_id_committed_twice,
    an_empty_range_delete,
]


def damageable() -> Iterator[int]:
    """Seeds whose logs have enough of everything."""
    for seed in world_seeds():
        live = list(read_plainly(world(seed)))
        claims = sum(batch.header.kind is Kind.CLAIM for batch in live)
        if claims > 1 and sum(bool(batch.transactions) for batch in live) > 30:
            yield seed


@pytest.mark.parametrize("damage", matrix(DAMAGES, 3), ids=lambda damage: damage.__name__)
def test_a_planted_damage_is_found_and_nothing_else(
    prove: bool, damage: Callable[[Log], int], record_property: Callable[[str, object], None]
) -> None:
    wanted = 40 if prove else 2
    for round_number, seed in zip(range(wanted), damageable(), strict=False):
        objects = dict(world(seed))
        log = Log(objects, list(read_plainly(objects)), Random(round_number))
        slot = damage(log)
        for piece_bytes in (ONE_OBJECT, FEW_OBJECTS, WHOLE):
            found = audited(log.objects, piece_bytes=piece_bytes)
            assert found, f"seed {seed}: not found"
            assert {each.slot for each in found} == {slot_text(slot)}, f"seed {seed}: {found}"
    record_property("planted_damages", wanted)


def test_a_foreign_key_is_found_and_holds_nothing_back() -> None:
    seed = next(damageable())
    found = audited(world(seed), piece_bytes=WHOLE, foreign={"batches/notes.txt": b"mine"})
    assert [(each.rule, each.detail) for each in found] == [("a key under batches/ is not a slot", "batches/notes.txt")]


def test_a_dropped_transaction_is_found_at_the_link_behind_it() -> None:
    logs = ((objects, list(read_plainly(objects))) for objects in (dict(world(seed)) for seed in damageable()))
    objects, live, at = next(
        (objects, live, i) for objects, live in logs for i, batch in enumerate(live[:-1]) if len(batch.transactions) > 1
    )
    log = Log(objects, live, Random(0))
    kept = live[at].transactions[:-1]
    log.put(replace(live[at].header, last_version=kept[-1].version), kept)
    found = audited(objects, piece_bytes=ONE_OBJECT)
    assert [(each.slot, each.rule) for each in found] == [
        (slot_text(live[at + 1].header.slot), "prev_version does not name the last transaction")
    ]


# -- the pipeline on Spark --------------------------------------------------------------------------------------------


def on_disk(objects: Objects, root: Path) -> str:
    builder = LogBuilder()
    builder.objects = objects
    return builder.write_to(root)


def verified(spark: SparkSession, log: str, table: Path, *, step_bytes: int = 2**40) -> Verify:
    job = Verify(spark, log, table.as_uri())
    run_pipeline(job, log, table.as_uri(), schedule=Schedule(), step_bytes=step_bytes)
    return job


def test_the_audit_of_a_good_log_marks_its_head_step_by_step(spark: SparkSession, tmp_path: Path) -> None:
    objects = world(next(damageable()))
    live = list(read_plainly(objects))
    log = on_disk(dict(objects), tmp_path / "log")
    job = verified(spark, log, tmp_path / "table", step_bytes=len(live) * 600)
    head = live[-1].header.last_version
    assert job.audit.findings == [] and job.audit.verified == head and job.is_good(head)
    assert job.audit.counts.objects == len(live), "every object is audited once"
    assert job.audit.counts.transactions == sum(len(batch.transactions) for batch in live)
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().sort_by("step").to_pylist()
    assert len(rows) > 1 and {row["rule"] for row in rows} == {"verified up to"}
    assert rows[-1]["version"] == rows[-1]["step"] == head


@pytest.mark.parametrize("damage", matrix([a_missing_object, a_forged_verdict]), ids=lambda damage: damage.__name__)
def test_a_finding_is_a_row_and_holds_the_mark_back(
    spark: SparkSession, tmp_path: Path, damage: Callable[[Log], int]
) -> None:
    objects = dict(world(next(damageable())))
    live = list(read_plainly(objects))
    slot = damage(Log(objects, live, Random(7)))
    before = max(b.header.last_version for b in live if b.header.slot > slot)
    log = on_disk(objects, tmp_path / "log")
    job = verified(spark, log, tmp_path / "table")
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert {row["slot"] for row in rows if row["rule"] != "verified up to"} == {slot_text(slot)}
    assert [row["version"] for row in rows if row["rule"] == "verified up to"] == [before]
    assert job.audit.verified == before and not job.is_good(live[-1].header.last_version)
    assert [each.slot for each in audit(spark, log).findings] == [slot_text(slot)]
    again = verified(spark, log, tmp_path / "table")
    assert again.audit.verified == before and not again.is_good(live[-1].header.last_version)


def a_write_behind(head: Header) -> LoggedTransaction:
    return LoggedTransaction(head.last_version + 1, None, None, [Write(b"k", b"v")], [])


@pytest.fixture
def audited_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces are audited by this process, without Spark."""

    def run_pieces_here(spark: SparkSession, url: str, pieces: list[tuple[Piece, int | None]]) -> pa.Table:
        found = [audit_piece(url, piece, before_head) for piece, before_head in pieces]
        rows = [asdict(one) for each in found for one in (*each.findings, each.counts)]
        return pa.Table.from_pylist(rows, schema=audit_module._RESULT_SCHEMA)

    monkeypatch.setattr(audit_module, "_run_pieces", run_pieces_here)


@pytest.mark.usefixtures("audited_here")
@pytest.mark.parametrize("step_bytes", [1, 1000, 1536])
def test_a_step_goes_on_to_a_version_above_the_last_one_however_small_it_is(tmp_path: Path, step_bytes: int) -> None:
    """A resign record has no version of its own: a step that held it alone was taken for the end of the log."""
    spark = cast("SparkSession", None)
    builder = LogBuilder(9)
    leader = builder.lead()
    leader.send([a_write_behind(leader.head)])
    log = builder.write_to(tmp_path / "log")
    verified(spark, log, tmp_path / "table", step_bytes=step_bytes)
    leader.resign()
    successor = builder.lead()
    successor.send([a_write_behind(successor.head)])
    builder.write_to(tmp_path / "log")
    job = verified(spark, log, tmp_path / "table", step_bytes=step_bytes)
    assert job.audit.counts.objects == 3 and job.is_good(successor.head.last_version)


@pytest.mark.usefixtures("audited_here")
@pytest.mark.parametrize("damage", ["header", "size"])
def test_what_came_behind_a_step_without_a_version_of_its_own_is_audited_by_the_next(
    tmp_path: Path, damage: str
) -> None:
    """The resign record of a leader whose last batch the audit had reached."""
    spark = cast("SparkSession", None)
    builder = LogBuilder(8)
    leader = builder.lead()
    for _ in range(4):
        leader.send([a_write_behind(leader.head)])
    log = builder.write_to(tmp_path / "log")
    assert verified(spark, log, tmp_path / "table", step_bytes=2000).audit.counts.objects == 5
    leader.resign()
    slot = leader.head.slot
    resigned = builder.objects[slot]
    successor = builder.lead()
    successor.send([a_write_behind(successor.head)])
    flipped = bytes([*resigned[:100], resigned[100] ^ 1, *resigned[101:]])
    builder.objects[slot] = flipped if damage == "header" else resigned + b"more"
    builder.write_to(tmp_path / "log")
    job = verified(spark, log, tmp_path / "table")
    assert job.audit.counts.objects == 3, "what was audited before is not audited again"
    assert [each.slot for each in job.audit.findings] == [slot_text(slot)]
    assert not job.is_good(successor.head.last_version)


@pytest.mark.usefixtures("audited_here")
def test_a_step_takes_what_its_look_has_surveyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Counter[str]()
    surveyed, look = audit_module.survey, Verify.look

    async def counted_survey(store: ObjectStore) -> audit_module.ChainSurvey:
        calls["surveys"] += 1
        return await surveyed(store)

    def counted_look(job: Verify, *args: object) -> object:
        calls["looks"] += 1
        return look(job, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(audit_module, "survey", counted_survey)
    monkeypatch.setattr(Verify, "look", counted_look)
    leader = (builder := LogBuilder(11)).lead()
    for _ in range(4):
        leader.send([a_write_behind(leader.head)])
    job = verified(cast("SparkSession", None), builder.write_to(tmp_path / "log"), tmp_path / "table", step_bytes=1)
    assert job.audit.counts.objects >= 5 and calls["surveys"] == calls["looks"] >= 3


def test_a_damaged_newest_object_is_an_error_that_names_it(spark: SparkSession, tmp_path: Path) -> None:
    objects = dict(world(next(damageable())))
    live = list(read_plainly(objects))
    log = on_disk(dict(objects), tmp_path / "log")
    newest = live[-1].header.slot
    (tmp_path / "log" / object_name(newest)).unlink()
    verified(spark, log, tmp_path / "table")
    (tmp_path / "log" / object_name(newest)).write_bytes(bytes(1024))
    with pytest.raises(CorruptData, match=f"newest object of the log is damaged.*{newest}"):
        verified(spark, log, tmp_path / "table")
