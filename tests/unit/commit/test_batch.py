"""The batch object: its size tells its kind, its bytes tell its damage."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest
from tests.unit.commit.builders import genesis, logged, record, stored

from holdfast.commit.format.batch import (
    BODY_SCHEMA,
    FIRST_SLOT,
    Kind,
    LoggedTransaction,
    decode_body,
    decode_header,
    encode_body,
    encode_object,
    jump,
    object_name,
    read_body_table,
    slot_of,
)
from holdfast.commit.format.transaction import Delete, PointRead, RangeDelete, RangeRead, Write
from holdfast.errors import Code, CorruptData
from holdfast.values import Slot

FIRST = genesis()
DATA = record(FIRST, FIRST, FIRST.last_version + 1, FIRST.last_version + 2)
OBJECT = stored(DATA, FIRST.last_version + 1, FIRST.last_version + 2)


def test_a_claim_is_512_bytes_and_everything_else_at_least_1024() -> None:
    assert len(encode_object(FIRST)) == 512
    assert len(encode_object(record(FIRST, FIRST))) == 1024
    assert len(encode_object(record(FIRST, FIRST, kind=Kind.RESIGN))) == 1024
    assert len(OBJECT) >= 1024
    assert len(OBJECT) == decode_header(OBJECT, slot=DATA.slot).object_bytes()


def test_a_header_comes_back_as_it_was() -> None:
    header = decode_header(OBJECT, slot=DATA.slot)
    assert replace(header, body_crc=0) == replace(DATA, body_crc=0)
    assert decode_header(encode_object(FIRST), slot=FIRST_SLOT) == FIRST


def test_the_fixed_offsets_hold_what_the_documentation_says() -> None:
    data = encode_object(replace(FIRST, time_ms=77, address="host:1"))
    assert data[:8] == b"HOLDFAST"
    assert struct.unpack_from("<HBB", data, 8) == (1, 1, 0)
    assert data[16:32] == FIRST.log_id
    assert struct.unpack_from("<QQQQ", data, 32) == (FIRST_SLOT, FIRST_SLOT, FIRST_SLOT, 1)
    assert data[64:80] == FIRST.leader_id
    assert struct.unpack_from("<QQ", data, 96) == (100_000_000, 100_000_000)
    assert struct.unpack_from("<Q", data, 144) == (77,)
    assert (struct.unpack_from("<H", data, 164), data[166:172]) == ((6,), b"host:1")
    assert struct.unpack_from("<I", data, 508) == (zlib.crc32(data[:508]),)


def test_every_kind_of_item_comes_back_as_it_was() -> None:
    transactions = [
        LoggedTransaction(5, "id", 4, [Write(b"", b""), Delete(b"\x00")], [PointRead(b"k"), PointRead(b"k", 3)]),
        LoggedTransaction(9, None, None, [RangeDelete(b"a"), RangeDelete(b"a", b"b")], [RangeRead(b"", None, 2)]),
        LoggedTransaction(10, "ü", 0, [Write(b"\xff" * 300, bytes(5_000))], [RangeRead(b"a", b"\xff")]),
    ]
    header = replace(DATA, first_version=5, last_version=10, transactions=3)
    for compress in (False, True):
        body = encode_body(transactions, compress=compress)
        data = encode_object(replace(header, flags=int(compress)), body)
        assert decode_body(data, decode_header(data, slot=DATA.slot)) == transactions


def test_a_body_without_transactions_is_no_body() -> None:
    data = encode_object(record(FIRST, FIRST))
    header = decode_header(data, slot=DATA.slot)
    assert (encode_body([]), header.body_length, decode_body(data, header)) == (b"", 0, [])
    assert read_body_table(data, header).schema == BODY_SCHEMA


def test_any_flipped_bit_of_a_header_is_found() -> None:
    for position in range(512):
        for bit in (1, 128):
            data = bytearray(OBJECT)
            data[position] ^= bit
            with pytest.raises(CorruptData):
                decode_header(bytes(data), slot=DATA.slot)


def test_any_flipped_bit_of_a_body_is_found() -> None:
    header = decode_header(OBJECT, slot=DATA.slot)
    for position in range(512, 512 + header.body_length):
        data = bytearray(OBJECT)
        data[position] ^= 4
        with pytest.raises(CorruptData, match="body CRC"):
            decode_body(bytes(data), header)


def test_an_object_cut_short_anywhere_is_found() -> None:
    header = decode_header(OBJECT, slot=DATA.slot)
    for length in (0, 1, 511):
        with pytest.raises(CorruptData, match="shorter than its header"):
            decode_header(OBJECT[:length], slot=DATA.slot)
    for length in (512, 513, len(OBJECT) - 1):
        with pytest.raises(CorruptData, match="size does not fit"):
            decode_body(OBJECT[:length], header)


def test_an_object_with_bytes_after_its_end_is_found() -> None:
    with pytest.raises(CorruptData, match="size does not fit"):
        decode_body(OBJECT + b"\0", decode_header(OBJECT, slot=DATA.slot))


def test_a_header_in_another_slot_than_its_own_is_found() -> None:
    with pytest.raises(CorruptData, match="names another slot") as found:
        decode_header(OBJECT, slot=DATA.slot - 1)
    assert found.value.code is Code.CORRUPT_BATCH


def test_impossible_headers_are_found_behind_a_good_crc() -> None:
    with pytest.raises(CorruptData, match="transaction count"):
        decode_header(encode_object(replace(DATA, transactions=0), OBJECT[512:]), slot=DATA.slot)
    with pytest.raises(CorruptData, match="transaction count"):
        decode_header(encode_object(replace(DATA, transactions=3)), slot=DATA.slot)
    with pytest.raises(CorruptData, match="claim has a body or names another claim"):
        decode_header(encode_object(replace(FIRST, claim=Slot(3))), slot=FIRST_SLOT)
    data = bytearray(OBJECT)
    for offset, value, match in ((8, 9, "format version"), (10, 7, "impossible field")):
        data = bytearray(OBJECT)
        data[offset] = value
        data[508:512] = zlib.crc32(bytes(data[:508])).to_bytes(4, "little")
        with pytest.raises(CorruptData, match=match):
            decode_header(bytes(data), slot=DATA.slot)


@pytest.mark.parametrize("versions", [(7,), (8, 7), (7, 9)])
def test_rows_that_do_not_keep_the_header_s_versions_are_found(versions: tuple[int, ...]) -> None:
    body = encode_body(logged(*versions))
    data = encode_object(replace(DATA, first_version=7, last_version=8, transactions=2), body)
    with pytest.raises(CorruptData, match="versions of the header"):
        decode_body(data, decode_header(data, slot=DATA.slot))


def test_a_body_that_is_no_arrow_stream_is_found() -> None:
    data = encode_object(DATA, b"not arrow at all")
    with pytest.raises(CorruptData, match="not an Arrow stream"):
        decode_body(data, decode_header(data, slot=DATA.slot))


def test_an_address_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    assert decode_header(encode_object(replace(FIRST, address="x" * 256)), slot=FIRST_SLOT).address == "x" * 256
    with pytest.raises(ValueError, match="address longer"):
        encode_object(replace(FIRST, address="x" * 257))


def test_names_and_slots_are_one_to_one() -> None:
    assert object_name(FIRST_SLOT) == "batches/18446744073709551615"
    assert slot_of(object_name(17)) == 17
    for name in ("batches/17", "17", "batches/-0000000000000000017", "probe/00000000000000000017"):
        assert slot_of(name) is None


def test_the_jump_is_one_at_genesis_and_a_thousand_elsewhere() -> None:
    assert jump(FIRST_SLOT) == FIRST_SLOT - 1
    assert jump(FIRST_SLOT - 1) == FIRST_SLOT - 1001
