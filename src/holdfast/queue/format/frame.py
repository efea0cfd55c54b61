"""Frames: the messages in a page, and how a reader knows that they are whole. Pure.

A frame is one message or a batch. Little-endian; all offsets from the first byte of the frame:

| offset | bytes | field |
|---|---|---|
| 0 | 4 | length: bytes after this head |
| 4 | 4 | check, see below |
| 8 | 8 | arrival: nanoseconds since 1970, signed; never falls from frame to frame |
| 16 | 4 | count: messages in the frame, at least 1; 0 in a SEAL |
| 20 | 2 | flags: bit 0 the body is compressed, bits 1-3 the codec (0 zlib), bit 4 SEAL; others zero |
| 22 | 2 | zero |
| 24 | 4 x count | lengths of the messages, only where count > 1 |
| | | the messages, one after the other |

Compression covers everything after the head.

The *check* is ``c(fields, c(body, seed)) xor (first sequence number mod 2^32)``, where ``c`` is the page's checksum,
``seed`` is ``c(salt u64, page number u64)``, ``body`` is everything after the head, and ``fields`` are the 20 bytes
length, arrival, count, flags and zero. A page never holds 2^32 messages, so each position accepts one sequence number
only. That number comes last, so it can be computed where it is not known (``implied_seq``); the next frames confirm it.

A frame is *valid* at a position with an expected sequence number when its length stays within the page, its count is
not zero (unless it is a SEAL), unknown flags are zero and the check matches. Stale bytes of another life of the page
have another salt; a frame from another position has another sequence number.

A SEAL closes a page. Its count is 0, its arrival that of the last frame, and its body:

| offset | bytes | field |
|---|---|---|
| 24 | 4 | frames in the page, without the SEAL |
| 28 | 8 | last sequence number in the page |
| 36 | 8 | arrival of the last frame |
| 44 | 4 | checksum of the page's index file, from 0; 0 where there is no index |
"""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from struct import Struct

from holdfast.crc32 import Checksum, Octets
from holdfast.errors import Code, CorruptData, InvalidRequest

HEAD = Struct("<IIqQ")
"""Length, check, arrival, and count with the flags above it: ``count | flags << 32``."""
FIELDS = Struct("<IqQ")
HEAD_BYTES = HEAD.size
SEAL_BODY = Struct("<IQqI")
"""Frames, last sequence number, last arrival and index check."""
SEAL_BYTES = HEAD_BYTES + SEAL_BODY.size
COMPRESSED = 1
SEAL = 16
KNOWN_FLAGS = COMPRESSED | SEAL
BATCH_BYTES_MAX = 256 << 10
BATCH_MESSAGES_MAX = 4096
RAW_BODY_BYTES_MAX = 1 << 30
"""Bound of a decompressed body: a small frame may not ask for more memory than this."""
SEQ_MASK = 0xFFFFFFFF

_SEED = Struct("<QQ")
_UNIFORM_MAX = 32
_uniform: dict[tuple[int, int], Struct] = {}


class SinglePackers(dict[int, "tuple[Callable[..., bytes], Callable[..., None]]"]):
    """For frames of one message, by its size: the functions that pack the octets of the check (message, length,
    arrival, 1) and store the whole frame (buffer, offset, length, check, arrival, 1, message). Entries are kept.
    """

    __slots__ = ()

    def __missing__(self, size: int) -> tuple[Callable[..., bytes], Callable[..., None]]:
        packers = self[size] = Struct(f"<{size}sIqQ").pack, Struct(f"<IIqQ{size}s").pack_into
        return packers


single_packers = SinglePackers()


@lru_cache(_UNIFORM_MAX)
def single_frame(size: int) -> Struct:
    """A whole frame of one message of this size: length, check, arrival, 1, message."""
    return Struct(f"<IIqQ{size}s")


def octets(payload: object) -> bytes:
    """A message as bytes. Raises: ``InvalidRequest`` if it is not a buffer; ``bytes()`` would accept a number."""
    if type(payload) is bytes:
        return payload
    try:
        return bytes(memoryview(payload))  # type: ignore[arg-type]  # refused by it if it is something else
    except TypeError:
        wrong = type(payload).__name__
        raise InvalidRequest(f"a message is bytes, not {wrong}: give the queue a serializer") from None


def page_seed(checksum: Checksum, salt: int, page_number: int) -> int:
    """The first value of every check in a page."""
    return checksum(_SEED.pack(salt, page_number), 0)


def encode_head(
    checksum: Checksum, seed: int, seq: int, time_ns: int, count: int, flags: int, parts: Sequence[Octets]
) -> bytes:
    """The 24 bytes before ``parts``, which are the body in order."""
    length = 0
    check = seed
    for part in parts:
        length += len(part)
        check = checksum(part, check)
    tail = count | flags << 32
    check = checksum(FIELDS.pack(length, time_ns, tail), check) ^ (seq & SEQ_MASK)
    return HEAD.pack(length, check, time_ns, tail)


def length_table(lengths: Sequence[int]) -> tuple[bytes, int]:
    """The lengths of a batch as stored in a frame, and their sum."""
    first, count = lengths[0], len(lengths)
    # Equal lengths are common and faster to detect than to list; the last length excludes most other batches.
    if lengths[-1] == first and lengths.count(first) == count:
        return first.to_bytes(4, "little") * count, first * count
    table = array("I", lengths)
    if sys.byteorder == "big":
        table.byteswap()
    return table.tobytes(), sum(lengths)


def split_batches(messages: Sequence[bytes]) -> tuple[int, Iterable[tuple[list[bytes], int]]]:
    """Cut messages into frame bodies of at most 256 KiB, lengths included, or 4,096 messages: their total bytes, and
    (parts, count) of each.

    Several bodies are joined as they are taken, so the memory of one serves the next. Raises: ``InvalidRequest`` for a
    message that is not bytes, before the first.

    >>> [count for parts, count in split_batches([b"x" * 100] * 5000)[1]]
    [2516, 2484]
    """
    lengths = _lengths(messages)
    count, (table, size) = len(lengths), length_table(lengths)
    if count == 1 or (count <= BATCH_MESSAGES_MAX and size + len(table) <= BATCH_BYTES_MAX):
        return size, [(_body(messages, table, size), count)]
    messages = tuple(messages)  # the caller's list may change while a frame is being written
    bodies = (
        (_body(messages[start:stop], *length_table(lengths[start:stop])), stop - start)
        for start, stop in _cut(list(accumulate(lengths)))
    )
    # Only plain bytes cannot fail when a part is in the log already.
    return size, bodies if set(map(type, messages)) == {bytes} else list(bodies)


def _cut(ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last message of each body, where the bytes of each message end at ``ends``."""
    start, before = 0, 0
    while start < len(ends):
        bound = min(len(ends), start + BATCH_MESSAGES_MAX)
        stop = bisect_right(ends, before + BATCH_BYTES_MAX, start, bound)
        # Room for the lengths of as many messages as fit without them: at most a few messages too few.
        stop = max(start + 1, bisect_right(ends, before + BATCH_BYTES_MAX - 4 * (stop - start), start, stop))
        yield start, stop
        start, before = stop, ends[stop - 1]


def batch_body(messages: Sequence[bytes]) -> list[bytes]:
    """The parts of one body: the lengths of several messages, then the messages. Raises: ``InvalidRequest``."""
    return _body(messages, *length_table(_lengths(messages)))


def _lengths(messages: Sequence[bytes]) -> list[int]:
    try:
        return list(map(len, messages))
    except TypeError:
        raise _no_bytes(messages) from None


def _no_bytes(messages: Sequence[object]) -> InvalidRequest:
    """Find the message that is not bytes, after something has failed."""
    for message in messages:
        octets(message)
    return InvalidRequest("a message is bytes, not a buffer of wider items")


def _body(messages: Sequence[bytes], table: bytes, size: int) -> list[bytes]:
    try:
        joined = b"".join(messages)
    except TypeError:
        raise _no_bytes(messages) from None
    if len(messages) == 1:
        return [joined]
    # A buffer of wide items has fewer items than bytes: its frame would verify and be unreadable.
    if len(joined) != size:
        raise _no_bytes(messages)
    return [table, joined]


def compress_body(parts: Sequence[bytes], level: int) -> list[bytes]:
    """A body as one zlib stream; its frame has the flag ``COMPRESSED``."""
    return [zlib.compress(b"".join(parts), level)]


def implied_seq(checksum: Checksum, seed: int, head: tuple[int, int, int, int], body: Octets) -> int:
    """The low 32 bits of the sequence number for which this frame verifies. A wrong frame gives a random one."""
    length, check, time_ns, tail = head
    return checksum(FIELDS.pack(length, time_ns, tail), checksum(body, seed)) ^ check


def encode_seal(
    checksum: Checksum, seed: int, next_seq: int, frames: int, last_time_ns: int, index_check: int
) -> bytes:
    """A whole SEAL, to be written where the next frame would go."""
    body = SEAL_BODY.pack(frames, next_seq - 1, last_time_ns, index_check)
    return encode_head(checksum, seed, next_seq, last_time_ns, 0, SEAL, (body,)) + body


def raw_body(body: bytes) -> bytes:
    """The body before compression. Raises: ``CorruptData`` for a damaged stream or a body above 1 GiB."""
    decompressor = zlib.decompressobj()
    try:
        # One more than the bound: at exactly the bound the end of the stream would not be seen.
        raw = decompressor.decompress(body, RAW_BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise CorruptData("a verified frame does not decompress", code=Code.CORRUPT_QUEUE) from error
    if not decompressor.eof or len(raw) > RAW_BODY_BYTES_MAX:
        raise CorruptData("a compressed frame is cut or too large", code=Code.CORRUPT_QUEUE, max=RAW_BODY_BYTES_MAX)
    return raw


def message_lengths(body: Octets, start: int, count: int) -> array[int]:
    """The lengths of a batch whose body begins at ``start``."""
    lengths = array("I")
    lengths.frombytes(body[start : start + 4 * count])
    if sys.byteorder == "big":
        lengths.byteswap()
    return lengths


def payloads(body: bytes, start: int, end: int, count: int) -> Sequence[bytes]:
    """The messages of a verified, uncompressed frame ``body[start:end]``. Raises: ``CorruptData`` for wrong lengths."""
    if count == 1:
        return (body[start:end],)
    position = start + 4 * count
    first = int.from_bytes(body[start : start + 4], "little")
    if first * count == end - position and body[start:position] == body[start : start + 4] * count:
        layout = _uniform.get((first, count))
        if layout is None:
            if len(_uniform) >= _UNIFORM_MAX:
                _uniform.clear()
            layout = _uniform[first, count] = Struct(f"{first}s" * count)
        return layout.unpack_from(body, position)
    lengths = message_lengths(body, start, count)
    if position + sum(lengths) != end:
        raise CorruptData("the lengths of a batch do not add up", code=Code.CORRUPT_QUEUE)
    return [body[a:b] for a, b in pairwise(accumulate(lengths, initial=position))]
