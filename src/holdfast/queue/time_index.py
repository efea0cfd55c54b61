"""The index of a page: arrival time to position, 12 bytes a record.

Owns: the record and the searches. Does not own: the file. An index is derived from its page: it may be absent, short,
torn or damaged, and nothing is lost by it but time.

Failure model: pure. A record is a hint; whoever follows it verifies the frame that it leads to.

| offset | bytes | field |
|---|---|---|
| 0 | 8 | arrival of the frame, nanoseconds since 1970, signed |
| 8 | 4 | position of the frame in its page |

One record for each batch; for frames of a single message at most one in 4 KiB of page. In order of position, which is
order of time.
"""

from __future__ import annotations

from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RECORD", "RECORD_BYTES", "SINGLES_SPACING_BYTES", "last_before"]

RECORD = Struct("<qI")
RECORD_BYTES = RECORD.size
SINGLES_SPACING_BYTES = 4096
_NEAR_RECORDS = 2730
_NEAR_BYTES = _NEAR_RECORDS * RECORD_BYTES


def last_before(
    read: Callable[[int, int], bytes], records: Callable[[], int], belongs_before: Callable[[int, int], bool]
) -> tuple[int, int, int]:
    """How many records come before, by ``belongs_before(time_ns, position)``, and the last of them, time and position;
    zeros where none does.

    ``read(offset, length)`` reads the index file of ``records()`` records; a small one is not asked how many. What is
    asked of a record must hold for a run of them from the start and for none after it.

    Cost: O(log records) reads, the last of them of at most 32 KiB; one where there are no more.

    >>> index = b"".join(RECORD.pack(time, 64 + time) for time in (5, 5, 7, 9))
    >>> last_before(lambda offset, length: index[offset : offset + length], lambda: 4, lambda time, position: time < 7)
    (2, 5, 69)
    """
    start, data = 0, read(0, _NEAR_BYTES)
    if len(data) == _NEAR_BYTES and belongs_before(*RECORD.unpack_from(data, _NEAR_BYTES - RECORD_BYTES)):
        low, high = _NEAR_RECORDS, records()  # every record before `low` belongs before, none from `high` on does
        while high - low > _NEAR_RECORDS:
            middle = (low + high) // 2
            data = read(middle * RECORD_BYTES, RECORD_BYTES)
            if len(data) == RECORD_BYTES and belongs_before(*RECORD.unpack(data)):
                low = middle + 1
            else:
                high = middle
        start = low - 1
        data = read(start * RECORD_BYTES, (high - start) * RECORD_BYTES)
    unpack = RECORD.unpack_from
    first, last = 0, len(data) // RECORD_BYTES
    while first < last:
        middle = (first + last) // 2
        if belongs_before(*unpack(data, middle * RECORD_BYTES)):
            first = middle + 1
        else:
            last = middle
    if first == 0:
        return 0, 0, 0
    time_ns, position = RECORD.unpack_from(data, (first - 1) * RECORD_BYTES)
    return start + first, time_ns, position
