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

import sys
from array import array
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RECORD", "RECORD_BYTES", "SINGLES_SPACING_BYTES", "last_before", "times_and_positions"]

RECORD = Struct("<qI")
RECORD_BYTES = RECORD.size
SINGLES_SPACING_BYTES = 4096
_NEAR_RECORDS = 1365


def last_before(
    read: Callable[[int, int], bytes], count: int, belongs_before: Callable[[int, int], bool]
) -> tuple[int, int, int]:
    """How many records come before, by ``belongs_before(time_ns, position)``, and the last of them, time and position;
    zeros where none does.

    ``read(offset, length)`` reads the index file of ``count`` records. What is asked must hold for a run of records
    from the start and for none after it.

    Cost: O(log count) reads, the last of them of at most 16 KiB.

    >>> index = b"".join(RECORD.pack(time, 64 + time) for time in (5, 5, 7, 9))
    >>> last_before(lambda offset, length: index[offset : offset + length], 4, lambda time, position: time < 7)
    (2, 5, 69)
    """
    low, high = 0, count  # every record before `low` belongs before, none from `high` on does
    while high - low > _NEAR_RECORDS:
        middle = (low + high) // 2
        data = read(middle * RECORD_BYTES, RECORD_BYTES)
        if len(data) == RECORD_BYTES and belongs_before(*RECORD.unpack(data)):
            low = middle + 1
        else:
            high = middle
    start = max(0, low - 1)
    data = read(start * RECORD_BYTES, (high - start) * RECORD_BYTES)
    first, last = low - start, len(data) // RECORD_BYTES
    while first < last:
        middle = (first + last) // 2
        if belongs_before(*RECORD.unpack_from(data, middle * RECORD_BYTES)):
            first = middle + 1
        else:
            last = middle
    if first == 0:
        return 0, 0, 0
    time_ns, position = RECORD.unpack_from(data, (first - 1) * RECORD_BYTES)
    return start + first, time_ns, position


def times_and_positions(data: bytes) -> tuple[array[int], array[int]]:
    """The records that ``data`` holds whole, in a form in which searching for a time takes no time.

    >>> times_and_positions(RECORD.pack(-5, 64) + RECORD.pack(7, 96) + b"torn")
    (array('q', [-5, 7]), array('I', [64, 96]))
    """
    count = len(data) // RECORD_BYTES
    words = array("I", data[: count * RECORD_BYTES])
    halves = array("I", bytes(8 * count))
    if sys.byteorder == "little":
        halves[0::2], halves[1::2] = words[0::3], words[1::3]
    else:
        words.byteswap()
        halves[1::2], halves[0::2] = words[0::3], words[1::3]
    return array("q", halves.tobytes()), words[2::3]
