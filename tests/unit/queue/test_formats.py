"""The formats of the queue: what is written is read, and nothing else is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.errors import CorruptData
from holdfast.queue.format.checksum import CRC32, CRC32C, checksum_for_reading
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.frame import (
    HEAD,
    HEAD_BYTES,
    SEQ_MASK,
    batch_body,
    encode_head,
    implied_seq,
    page_seed,
    payloads,
    split_batches,
)
from holdfast.queue.format.meta import (
    SLOT_BYTES,
    PagePosition,
    QueueIdentity,
    WritePosition,
    decode_identity,
    decode_write_position,
    encode_identity,
    encode_slot,
    newest_slot,
    slot_offset,
)
from holdfast.queue.format.page import PageHeader, decode_header, encode_header


@pytest.mark.parametrize("checksum_id", [CRC32, CRC32C])
def test_a_frame_implies_its_own_number_and_any_flipped_bit_implies_another(checksum_id: int) -> None:
    checksum = checksum_for_reading(checksum_id)
    seed = page_seed(checksum, 77, 3)
    seq = (5 << 32) + 9
    body = batch_body([b"first", b"", b"third"])
    frame = encode_head(checksum, seed, seq, 1234, 3, 0, body) + b"".join(body)
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        assert implied_seq(checksum, seed, HEAD.unpack_from(damaged), damaged[HEAD_BYTES:]) != seq & SEQ_MASK
    assert implied_seq(checksum, seed, HEAD.unpack_from(frame), frame[HEAD_BYTES:]) == seq & SEQ_MASK
    other_life = page_seed(checksum, 78, 3)
    assert implied_seq(checksum, other_life, HEAD.unpack_from(frame), frame[HEAD_BYTES:]) != seq & SEQ_MASK


def test_batches_are_cut_at_their_bounds_and_come_back_whole() -> None:
    chance = random.Random(3)
    for sizes in ((0, 10), (0, 100_000), (200_000, 300_000), (50, 50)):
        messages = [
            chance.randbytes(chance.randint(*sizes))
            for _ in range(chance.choice((1, 30, 9000 if sizes[1] < 99 else 40)))
        ]
        back: list[bytes] = []
        for parts, count in split_batches(messages)[1]:
            body = b"".join(parts)
            assert count <= 4096
            assert len(body) <= 256 << 10 or count == 1
            back += payloads(body, 0, len(body), count)
        assert back == messages


def test_a_batch_whose_lengths_do_not_add_up_is_refused() -> None:
    with pytest.raises(CorruptData):
        payloads(b"\x05\0\0\0\x01\0\0\0abc", 0, 11, 2)


def test_every_flipped_bit_of_a_header_or_identity_is_noticed() -> None:
    header = encode_header(PageHeader(number=2, page_bytes=4096, salt=9, checksum_id=1, base_seq=5, base_time_ns=6))
    identity = encode_identity(QueueIdentity(bytes(range(16)), 4096, 1))
    for bit in range(8 * 64):
        for whole, decode in ((header, lambda data: decode_header(data, 2)), (identity, decode_identity)):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            assert decode(bytes(damaged)) is None
            assert decode(whole) is not None


def test_the_newest_whole_slot_is_believed_and_each_writing_spares_the_other() -> None:
    assert slot_offset(6) != slot_offset(7)
    file = bytearray(2 * SLOT_BYTES)
    for generation in range(1, 9):
        start = slot_offset(generation)
        file[start : start + SLOT_BYTES] = encode_slot(generation, b"value %d" % generation)
        assert newest_slot(bytes(file)) == (generation, b"value %d" % generation)
        torn = bytearray(file)
        torn[start + 20] ^= 1
        expected = None if generation == 1 else (generation - 1, b"value %d" % (generation - 1))
        assert newest_slot(bytes(torn)) == expected


def test_a_write_position_is_decoded_as_it_was_encoded() -> None:
    fields: dict[str, Any] = dict(  # noqa: C408
        end=PagePosition(3, 1 << 63, 1 << 40, -5, 100), frames=7, index_records=2, index_check=9,
        index_due=4196, clean=True, durable=PagePosition(2, 11, 1 << 39, -6, 99), boot_id=bytes(range(16)),
        first_page=2, first_seq=17,
    )  # fmt: skip
    value = WritePosition(**fields).encode()
    back = decode_write_position(value)
    assert back is not None
    assert back == WritePosition(**fields)
    assert (back.end.page, back.durable.position, back.clean) == (3, 99, True)
    assert decode_write_position(value[:-1]) is None


def test_only_the_names_of_this_queue_are_its_own() -> None:
    names = FileNames("a")
    assert [names.page_number(name) for name in ("a-1.page", "a-01.page", "a-b-1.page", "b-1.page", "a-.page")] == [
        1,
        None,
        None,
        None,
        None,
    ]
    assert names.is_temporary("a-3.page.tmp")
    assert not names.is_temporary("b-3.page.tmp")
    assert not names.is_temporary("a-3.page")
