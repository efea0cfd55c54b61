"""The frames that a page's scan verifies, against a scan that encodes each frame again and compares."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.queue.format.checksum import CRC32, checksum_for_reading
from holdfast.queue.format.frame import (
    COMPRESSED,
    HEAD,
    HEAD_BYTES,
    KNOWN_FLAGS,
    batch_body,
    encode_head,
    encode_seal,
    page_seed,
)
from holdfast.queue.format.page import HEADER_BYTES, PageHeader
from holdfast.queue.log.page_scan import PageScan

PAGE_BYTES = 64 << 10
HEADER = PageHeader(number=3, page_bytes=PAGE_BYTES, salt=77, checksum_id=CRC32, base_seq=2**32 - 20)
CHECKSUM = checksum_for_reading(CRC32)
SEED = page_seed(CHECKSUM, HEADER.salt, HEADER.number)
Run = tuple[int, int, int, int, int, int]
Found = list[tuple[int, int, int, int, bytes]]


class OnePage:
    """A file port of one file."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, file: int, offset: int, length: int) -> bytes:
        assert file == 0
        return self.data[offset : offset + length]


# How many frames, of how many messages, of which size, with which flags, and how far number and time move before each:
# mostly as they must.
runs = st.tuples(
    st.integers(1, 120),
    st.sampled_from([1, 1, 1, 1, 7]),
    st.sampled_from([0, 1, 40, 41, 512, 513, 3000]),
    st.sampled_from([0, 0, 0, 0, 0, COMPRESSED, 2]),
    st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]),
    st.sampled_from([0, 0, 5, 5, 5, 5, -1]),
)


def page(content: Sequence[Run], *, sealed: bool, flipped: Sequence[int]) -> bytes:
    """A page with these runs of frames. Bits at these places of the content, counted around its end, are flipped."""
    data = bytearray(HEADER_BYTES)
    seq, time_ns = HEADER.base_seq, 1_700_000_000_000_000_000
    for frames, count, size, flags, skipped, passed in content:
        seq += skipped
        for _ in range(frames):
            time_ns += passed
            parts = batch_body([bytes([seq & 0xFF]) * size] * count)
            frame = encode_head(CHECKSUM, SEED, seq, time_ns, count, flags, parts) + b"".join(parts)
            if len(data) + len(frame) > PAGE_BYTES - 100:
                break
            data += frame
            seq += count
    if sealed:
        data += encode_seal(CHECKSUM, SEED, seq, 9, time_ns, 0)
    bits = 8 * (len(data) - HEADER_BYTES)
    for place in flipped if bits else ():
        data[HEADER_BYTES + place % bits // 8] ^= 1 << place % 8
    return bytes(data) + bytes(PAGE_BYTES - len(data))


def expected(data: bytes) -> Found:
    """Frames as they must be, up to the first that is not."""
    found: Found = []
    position, seq, last_ns = HEADER_BYTES, HEADER.base_seq, 0
    while position + HEAD_BYTES <= PAGE_BYTES:
        length, _, time_ns, tail = HEAD.unpack_from(data, position)
        count, flags = tail & 0xFFFFFFFF, tail >> 32
        start, end = position + HEAD_BYTES, position + HEAD_BYTES + length
        if count == 0 or flags & ~KNOWN_FLAGS or time_ns < last_ns or end > PAGE_BYTES:
            break
        body = data[start:end]
        if data[position:start] != encode_head(CHECKSUM, SEED, seq, time_ns, count, flags, (body,)):
            break
        found.append((seq, time_ns, count, flags, body))
        position, seq, last_ns = end, seq + count, time_ns
    return found


@given(
    content=st.lists(runs, max_size=6),
    sealed=st.booleans(),
    flipped=st.lists(st.integers(0, 8 * PAGE_BYTES), max_size=2),
)
@example(content=[(60, 1, 90, 0, 0, 5), (60, 1, 90, COMPRESSED, 0, 5)], sealed=True, flipped=[])
@example(content=[(60, 1, 90, 0, 0, 5), (1, 1, 90, 0, 0, -1)], sealed=False, flipped=[])
@example(content=[(60, 1, 90, 0, 0, 5), (1, 1, 91, 0, 0, -1)], sealed=False, flipped=[])
@example(content=[(60, 1, 90, 0, 0, 5), (1, 1, 90, 0, 1, 5)], sealed=False, flipped=[])
@example(content=[(400, 1, 90, 0, 0, 5)], sealed=True, flipped=[8 * 9_000])
def test_exactly_the_valid_frames_before_the_first_invalid_one_are_verified(
    content: list[Run], sealed: bool, flipped: list[int]
) -> None:
    data = page(content, sealed=sealed, flipped=flipped)
    scan = PageScan(OnePage(data), 0, HEADER, next_seq=HEADER.base_seq)  # type: ignore[arg-type]
    found: Found = []
    while (window := scan.read()) is not None:
        found += [(*frame[:4], window.data[frame[4] : frame[5]]) for frame in window.frames]
    assert found == expected(data)
    assert scan.next_seq == HEADER.base_seq + sum(frame[2] for frame in found)
