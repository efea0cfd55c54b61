"""Write the golden files of the embedded queue's format v1. Run once, when the format was released.

    python -m tests.compat.write_queue_v1 [FOLDER]

Without a folder it writes ``queue-v1`` beside this file and refuses to do so twice. The clock, the salts and the boot
id are fixed, so that the bytes depend on the writer alone.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from holdfast.queue import Queue
from holdfast.queue.files.local import LocalFiles

HERE = Path(__file__).parent / "queue-v1"
PAGE_BYTES = 4096
START_NS = 1_767_225_600_000_000_000


class FixedFiles(LocalFiles):
    """Files of a machine whose run has a known id."""

    def boot_id(self) -> bytes:
        return b"a fixed boot id."


class Ticks:
    """A clock that stands still for three looks, then goes on by a millisecond."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        return START_NS + self.looks // 4 * 1_000_000


def messages() -> list[bytes]:
    """What the golden queue holds, in order: single messages, batches, a large one, compressed ones."""
    singles = [b"single %d" % number for number in range(60)]
    batch = [b"batch %d" % number * (number % 7) for number in range(150)]
    return [*singles, *batch, b"J" * 6000, b"", b"after the large one", *(b"compressed " * 30 for _ in range(20))]


def write(folder: Path) -> None:
    """Three openings: plain, with a large message, compressed; the last is closed cleanly."""
    chance = random.Random(1)
    clock = Ticks()
    found = messages()
    for part, compression in ((slice(0, 210), 0), (slice(210, 213), 0), (slice(213, None), 6)):
        with Queue(
            folder / "golden",
            page_size=PAGE_BYTES,
            compression=compression,
            files=FixedFiles(),
            clock=clock,
            entropy=chance.randbytes,
            background=False,
        ) as queue:
            payloads = found[part]
            if len(payloads) > 100:
                for payload in payloads[:60]:
                    queue.append(payload)
                queue.append_many(payloads[60:100])
                queue.append_many(payloads[100:], atomic=True)
            elif compression:
                queue.append_many(payloads)
            else:
                for payload in payloads:
                    queue.append(payload)
    (folder / "golden.lock").unlink()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    if target == HERE and HERE.exists():
        sys.exit(f"{HERE} exists: golden files are written once")
    target.mkdir(parents=True, exist_ok=True)
    write(target)
