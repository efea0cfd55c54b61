"""Bodies that are joined column by column give what an Arrow decoder gives, and nothing broken is believed."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from tests.spark.log_builder import random_log

from holdfast.commit.format.batch import (
    BODY_SCHEMA,
    FLAG_LZ4,
    HEADER_BYTES,
    Header,
    LoggedTransaction,
    decode_header,
    encode_body,
    read_body_table,
)
from holdfast.commit.format.transaction import Delete, PointRead, RangeDelete, Write
from holdfast.spark.source.bodies import join_bodies

HEAD = BODY_SCHEMA.serialize().size


def bodies_of(seed: int) -> list[tuple[Header, bytes]]:
    found = [(decode_header(data, slot=slot), data) for slot, data in random_log(seed).objects.items()]
    return [(header, data) for header, data in found if header.transactions and not header.flags & FLAG_LZ4]


def body_of(header: Header, data: bytes) -> memoryview:
    return memoryview(data)[HEADER_BYTES : HEADER_BYTES + header.body_length]


def few() -> list[memoryview]:
    """Three bodies with every kind of column: full, empty, and of both kinds of rows."""
    writes = [LoggedTransaction(v, f"r{v}", 3, [Write(b"k%d" % v, b"x" * v)], []) for v in range(1, 12)]
    others = [
        LoggedTransaction(20, None, 7, [Delete(b"a"), RangeDelete(b"b", b"c"), Write(b"d", b"")], [PointRead(b"e", 2)])
    ]
    return [memoryview(encode_body(part)) for part in (writes, others, writes[:1])]


@pytest.mark.parametrize("seed", range(12))
def test_joined_bodies_are_what_an_arrow_decoder_gives(seed: int) -> None:
    objects = bodies_of(seed)
    tables = [read_body_table(data, header) for header, data in objects]
    joined = join_bodies([body_of(header, data) for header, data in objects])
    assert joined is not None, "this version knows the layout that it writes"
    counts, table = joined
    assert counts == [part.num_rows for part in tables]
    table.validate(full=True)
    assert table.equals(pa.concat_tables(tables).combine_chunks())


def test_a_body_that_another_writer_laid_out_is_left_to_an_arrow_decoder() -> None:
    table = pa.ipc.open_stream(few()[0]).read_all()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BODY_SCHEMA) as writer:
        for batch in table.to_batches(max_chunksize=5):
            writer.write_batch(batch)
    compressed = encode_body([LoggedTransaction(1, None, None, [Write(b"k", b"v" * 100)], [])], compress=True)
    assert join_bodies([*few(), memoryview(sink.getvalue())]) is None
    assert join_bodies([*few(), memoryview(compressed)]) is None
    assert join_bodies([]) is None


def test_no_number_of_a_head_is_believed() -> None:
    whole = few()
    for at in range(HEAD, HEAD + 544):
        for bit in (1, 128):
            broken = bytearray(whole[1])
            broken[at] ^= bit
            assert join_bodies([whole[0], memoryview(broken), whole[2]]) is None, f"byte {at} of {len(broken)}"


def test_a_body_that_is_cut_or_longer_is_not_believed() -> None:
    whole = few()
    for cut in range(len(whole[1])):
        assert join_bodies([whole[0], whole[1][:cut]]) is None
    assert join_bodies([whole[0], memoryview(bytes(whole[1]) + b"\0" * 8)]) is None


def test_whatever_is_broken_the_columns_stay_within_their_bytes() -> None:
    draw = random.Random(4)
    whole = few()
    refused = 0
    for _ in range(2000):
        broken = bytearray(whole[draw.randrange(3)])
        broken[draw.randrange(HEAD + 544, len(broken))] = draw.randrange(256)
        joined = join_bodies([whole[0], memoryview(broken), whole[2]])
        refused += joined is None
        if joined is not None:
            for column in joined[1].drop_columns(["request_id"]).columns:
                column.validate(full=True)
            joined[1]["request_id"].cast(pa.binary()).validate(full=True)
    assert 0 < refused < 2000, "some of it was in offsets, and some in values"
