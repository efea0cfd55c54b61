"""The batch object, whatever is put into it: it comes back, and damage never does."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commit.format.batch import (
    BODY_SCHEMA,
    FIRST_SLOT,
    FLAG_CLOCK_DOUBTED,
    UNKNOWN_SCOPE,
    AddressScope,
    Header,
    Kind,
    LoggedTransaction,
    decode_body,
    decode_header,
    encode_body,
    encode_object,
)
from holdfast.commit.format.transaction import Delete, PointRead, RangeDelete, RangeRead, Write
from holdfast.errors import CorruptData
from holdfast.values import LeaderId, LogId, Slot, Version

keys = st.binary(max_size=20)
versions = st.integers(0, 2**53 - 1)
operations = st.one_of(
    st.builds(Write, keys, st.binary(max_size=200)),
    st.builds(Delete, keys),
    st.builds(RangeDelete, keys, st.none() | keys),
)
preconditions = st.one_of(
    st.builds(PointRead, keys, st.none() | versions), st.builds(RangeRead, keys, st.none() | keys, st.none() | versions)
)
identifiers = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, 2**64 - 1)


@st.composite
def logged(draw: st.DrawFn) -> list[LoggedTransaction]:
    rising = sorted(draw(st.sets(versions, max_size=6)))
    return [
        LoggedTransaction(
            version,
            draw(st.none() | st.text(min_size=1, max_size=10)),
            draw(st.none() | versions),
            draw(st.lists(operations, min_size=1, max_size=4)),
            draw(st.lists(preconditions, max_size=3)),
        )
        for version in rising
    ]


@st.composite
def headers(draw: st.DrawFn) -> Header:
    """Any header without a body."""
    kind = draw(st.sampled_from(Kind))
    slot = draw(st.integers(0, FIRST_SLOT))
    return Header(
        kind=kind,
        log_id=LogId(draw(identifiers)),
        slot=Slot(slot),
        claim=Slot(slot if kind is Kind.CLAIM else draw(numbers)),
        prev=Slot(draw(numbers)),
        epoch=draw(numbers),
        leader_id=LeaderId(draw(identifiers)),
        nonce=draw(identifiers),
        first_version=Version(draw(numbers)),
        last_version=Version(draw(numbers)),
        prev_version=Version(draw(numbers)),
        window_floor=Version(draw(numbers)),
        durable=Slot(draw(numbers)),
        truncated_through=Version(draw(numbers)),
        time_ms=draw(numbers),
        address=draw(st.text(max_size=60)),
        scope=draw(st.just(UNKNOWN_SCOPE) | st.builds(AddressScope, identifiers, numbers)),
        lived_ms=draw(numbers),
        boot_ms=draw(numbers),
        ahead_s=draw(st.integers(-(2**31), 2**31 - 1)),
        clock_steps=draw(st.integers(0, 2**32 - 1)),
        flags=draw(st.sampled_from((0, FLAG_CLOCK_DOUBTED))),
    )


@given(headers())
def test_any_header_comes_back_as_it_was(header: Header) -> None:
    assert decode_header(encode_object(header), slot=header.slot) == header


def whole(transactions: list[LoggedTransaction], *, compress: bool) -> bytes:
    header = Header(
        kind=Kind.DATA,
        log_id=LogId(b"l" * 16),
        slot=Slot(17),
        claim=Slot(20),
        prev=Slot(18),
        epoch=1,
        leader_id=LeaderId(b"i" * 16),
        nonce=b"n" * 16,
        first_version=Version(transactions[0].version if transactions else 0),
        last_version=Version(transactions[-1].version if transactions else 0),
        prev_version=Version(0),
        window_floor=Version(0),
        durable=Slot(18),
        truncated_through=Version(0),
        time_ms=0,
        address="",
        transactions=len(transactions),
        flags=int(compress and bool(transactions)),
    )
    return encode_object(header, encode_body(transactions, compress=compress))


@given(logged())
def test_an_arrow_library_finds_any_body_valid_and_no_larger_than_its_own(
    transactions: list[LoggedTransaction],
) -> None:
    stream = encode_body(transactions)
    if not stream:
        return
    table = pa.ipc.open_stream(stream).read_all()
    table.validate(full=True)
    assert table.schema.equals(BODY_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BODY_SCHEMA) as writer:
        writer.write_table(table)
    assert pa.ipc.open_stream(sink.getvalue()).read_all().equals(table)
    assert len(stream) <= sink.getvalue().size


@given(logged(), st.booleans())
def test_any_body_comes_back_as_it_was(transactions: list[LoggedTransaction], compress: bool) -> None:
    data = whole(transactions, compress=compress)
    assert decode_body(data, decode_header(data, slot=17)) == transactions


@given(logged(), st.data())
def test_any_damage_before_the_padding_is_found(transactions: list[LoggedTransaction], data: st.DataObject) -> None:
    good = whole(transactions, compress=False)
    header = decode_header(good, slot=17)
    position = data.draw(st.integers(0, 512 + header.body_length - 1))
    damaged = bytearray(good)
    damaged[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptData):
        decode_body(bytes(damaged), decode_header(bytes(damaged), slot=17))


@given(st.binary(max_size=1_100))
def test_bytes_from_anywhere_are_refused_and_never_crash_the_reader(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_header(data, slot=17)


@given(st.binary(min_size=1, max_size=400))
def test_a_body_of_anything_behind_good_crcs_is_refused_and_never_crashes_the_reader(body: bytes) -> None:
    header = replace(decode_header(whole([], compress=False), slot=17), transactions=1)
    data = encode_object(header, body)
    with pytest.raises(CorruptData):
        decode_body(data, decode_header(data, slot=17))
