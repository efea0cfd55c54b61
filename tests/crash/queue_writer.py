"""A process that appends to a queue until it is killed, and says what was accepted.

    python queue_writer.py PATH LEVEL SEED

Each message is a function of its sequence number, so that whoever reads knows what it has to be. After each promise of
the level a line goes to standard output: the last sequence number that it covers.
"""

from __future__ import annotations

import os
import sys
from random import Random

from holdfast.queue import Queue, SyncLevel, every

PAGE_BYTES = 16_384
LEVELS: dict[str, str | SyncLevel] = {
    "os": "os",
    "every": every(messages=7, ms=2),
    "always": "always",
}


def payload_of(seq: int) -> bytes:
    """The message with this number."""
    random = Random(seq)
    size = random.choice((0, 10, 100, 100, 100, 1000, 3000)) if seq % 97 else 20_000
    return b"%d:" % seq + random.randbytes(size)


def main(path: str, level: str, seed: int) -> None:
    """Append for ever."""
    random = Random(seed)
    with Queue(path, page_size=PAGE_BYTES, sync=LEVELS[level]) as queue:
        os.write(1, b"0\n")
        while True:
            following = queue.last_seq + 1
            count = random.choice((1, 1, 1, 2, 30))
            payloads = [payload_of(seq) for seq in range(following, following + count)]
            last = queue.append(payloads[0]) if count == 1 else queue.append_many(payloads)[1]
            os.write(1, b"%d\n" % last)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
