"""Objects of a log that has stores: format 3, entries between transactions, and what older readers see of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_struct
from tests.unit.commit.builders import LOG_ID, genesis, identity, logged, record

from holdfast.commit.format.batch import (
    FIRST_SLOT,
    Header,
    LoggedEntry,
    LoggedTransaction,
    StoresMode,
    decode_all,
    decode_body,
    decode_header,
    decode_records,
    encode_body,
    encode_object,
    read_body_table,
)
from holdfast.commit.format.chain import ChainWalker, check_link, next_slot
from holdfast.commit.leadership.claims import Frontier, claim_header, encode_claim
from holdfast.commit.reading.entries import Entries
from holdfast.errors import CorruptData, NotFound
from holdfast.objects.memory import MemoryStore
from holdfast.server.view.process import ViewBuilder
from holdfast.values import Instant, Version

RECORDS = [("orders", b"\x01one"), ("", b"\x01two")]


def first_claim() -> Header:
    who = identity()
    frontier = Frontier(FIRST_SLOT, None, 1)
    return claim_header(
        frontier, who, nonce=who.nonce_seed[:16], log_id=LOG_ID, now=Instant(0.0, 1_000), stores_mode=StoresMode.LOG
    )


def mixed(head: Header, claim: Header | None = None) -> tuple[Header, bytes]:
    """A transaction between two entries, after ``head``, in the reign of ``claim``."""
    first = head.last_version + 1
    (txn,) = logged(first + 1)
    everything = [LoggedEntry(first, RECORDS), txn, LoggedEntry(first + 2, RECORDS[:1])]
    body = encode_body(everything)
    header = replace(
        record(head, claim or head),
        first_version=Version(first),
        last_version=Version(first + 2),
        prev_version=head.last_transaction_version,
        stores_mode=StoresMode.LOG,
        entries=2,
        transactions=1,
        newest_transaction=Version(first + 1),
    )
    data = encode_object(header, body)
    return decode_header(data, slot=header.slot), data


def test_entries_and_transactions_come_back_in_order() -> None:
    header, data = mixed(first_claim())
    first = header.first_version
    assert (header.entries, header.transactions) == (2, 1)
    assert header.last_transaction_version == first + 1
    everything = decode_all(data, header)
    assert [each.version for each in everything] == [first, first + 1, first + 2]
    assert decode_records(data, header) == [LoggedEntry(first, RECORDS), LoggedEntry(first + 2, RECORDS[:1])]


def test_a_transaction_has_the_record_of_its_parts() -> None:
    claim = first_claim()
    first = Version(claim.last_version + 1)
    (txn,) = logged(first)
    with_parts = replace_struct(txn, record=b"\x01parts", parts_digest=b"digest")
    alone = LoggedTransaction(first + 1, None, None, [], [], b"\x01alone", b"other")
    body = encode_body([with_parts, alone])
    changes = {"first_version": first, "last_version": Version(first + 1), "newest_transaction": Version(first + 1)}
    header = replace(record(claim, claim), stores_mode=StoresMode.LOG, transactions=2, **changes)  # type: ignore[arg-type]
    data = encode_object(header, body)
    header = decode_header(data, slot=header.slot)
    assert decode_body(data, header) == [with_parts, alone]
    assert decode_records(data, header) == [
        LoggedEntry(first, [("", b"\x01parts")]),
        LoggedEntry(first + 1, [("", b"\x01alone")]),
    ]


def moved(head: Header, claim: Header, mode: StoresMode) -> Header:
    """A claim after ``head`` that moves the stores."""
    who = identity()
    frontier = Frontier(next_slot(head), head, claim.epoch + 1)
    made = claim_header(
        frontier, who, nonce=who.nonce_seed[:16], log_id=LOG_ID, now=Instant(0.0, 1_000), stores_mode=mode, moves=True
    )
    return decode_header(encode_claim(made), slot=made.slot)


def test_only_a_claim_moves_the_stores_and_the_last_transaction_is_known_after_it() -> None:
    head, body = mixed(first_claim())
    claim = first_claim()
    back = moved(head, claim, StoresMode.RETURNED)
    assert back.stores_mode.durability == "disk"
    assert back.prev_version == back.newest_transaction == head.newest_transaction
    again = moved(back, back, StoresMode.LOG)
    check_link(head, claim, back)
    check_link(back, back, again)
    assert again.newest_transaction == head.newest_transaction
    for mode in (StoresMode.DISK, StoresMode.RETURNED):
        with pytest.raises(CorruptData, match="mode of the stores changes"):
            check_link(claim, claim, replace(head, stores_mode=mode))
    with pytest.raises(CorruptData, match="mode of the stores changes"):
        check_link(head, claim, replace(back, stores_mode=StoresMode.DISK))
    with pytest.raises(CorruptData, match="impossible field"):
        decode_header(encode_object(replace(head, stores_mode=StoresMode.RETURNED), body[512:]), slot=head.slot)


def test_readers_of_transactions_do_not_see_entries() -> None:
    header, data = mixed(first_claim())
    assert [txn.version for txn in decode_body(data, header)] == [header.first_version + 1]
    table = read_body_table(data, header)
    assert set(table.column("version").to_pylist()) == {header.first_version + 1}
    assert header.spans(header.first_version + 1, header.first_version + 1)
    assert not header.spans(header.first_version + 1, header.last_version)


def test_the_transaction_after_an_entry_names_the_transaction_before_it() -> None:
    claim = first_claim()
    walker = ChainWalker()
    walker.accept(claim)
    header, _ = mixed(claim)
    walker.accept(header)
    second, _ = mixed(header, claim)
    assert second.prev_version == header.first_version + 1
    walker.accept(second)


def test_a_log_without_stores_has_zeros_for_them() -> None:
    claim = genesis()
    assert encode_object(claim)[470:508] == bytes(38)


@pytest.mark.parametrize(
    "changes",
    [
        {"newest_transaction": Version(0)},
        {"newest_transaction": Version(1 << 40)},
        {"stores_mode": StoresMode.DISK},
        {"entries": 1 << 20},
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_its_chain_is_damage(changes: dict[str, object]) -> None:
    claim = first_claim()
    header, _ = mixed(claim)
    with pytest.raises(CorruptData, match="damaged"):
        check_link(claim, claim, replace(header, **changes))  # type: ignore[arg-type]


def test_a_count_that_the_rows_do_not_keep_is_damage() -> None:
    header, data = mixed(first_claim())
    with pytest.raises(CorruptData, match="rows do not keep"):
        decode_body(data, replace(header, entries=1, transactions=2))


def test_fields_of_stores_are_refused_in_a_log_without() -> None:
    data = bytearray(encode_object(replace(genesis(), entries=0)))
    data[472] = 1
    with pytest.raises(CorruptData):
        decode_header(bytes(data), slot=FIRST_SLOT)


def test_entries_that_retention_has_removed_are_not_passed_over() -> None:
    claim = first_claim()
    newest, _ = mixed(claim)
    newest = replace(newest, truncated_through=newest.first_version)

    async def read() -> None:
        async for _ in Entries(MemoryStore()).through(claim, newest, after=claim.last_version):
            pass

    with pytest.raises(NotFound, match="retention has removed what the stores did next"):
        asyncio.run(read())


def test_a_view_follows_transactions_between_entries(tmp_path: Path) -> None:
    claim = first_claim()
    first, first_data = mixed(claim)
    second, second_data = mixed(first, claim)
    builder = ViewBuilder(tmp_path / "view.sqlite", LOG_ID.hex())
    builder.add(first, first_data)
    builder.add(second, second_data)
    assert (builder.seen.version, builder.seen.last_transaction) == (second.last_version, second.newest_transaction)
