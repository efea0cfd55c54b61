"""A process that hosts message stores and works on them until it is killed, and says what was answered.

    python stores_writer.py DIRECTORY PERSISTENCE SEED

Each message is a function of its number, so that whoever reads knows what it has to be. Before acknowledgements are
asked for, and after each answer, a line of JSON goes to standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from random import Random

from tests.definitions import define

from holdfast.errors import HoldfastError
from holdfast.stores import checkpoints
from holdfast.stores.service import StoreService
from holdfast.stores.values.commands import Acknowledge, Attach, Deliver, Delivered, MapChange, Publish, Result
from holdfast.wire.parts import Message

PAGE_BYTES = 65_536
STORE, DURABLE, MAPS, MAP = "orders", "work", "maps", "settings"
IN_FLIGHT = 4
KEYS = 20


def body_of(seq: int) -> bytes:
    """The message with this number."""
    random = Random(seq)
    size = random.choice((0, 10, 100, 100, 100, 1000, 3000)) if seq % 197 else 40_000
    return b"%d:" % seq + random.randbytes(size)


def definition_of(persistence: str) -> bytes:
    """One store to consume from and one with a map."""
    return json.dumps(
        {
            "cluster": {"persistence": persistence},
            "stores": {
                STORE: {"durables": {DURABLE: {"type": "shared", "prefetch": 65_536, "ack_wait": "1h"}}},
                MAPS: {"durables": {MAP: {"type": "map"}}},
            },
        }
    ).encode()


def tell(**what: object) -> None:
    """One line, in one write."""
    os.write(1, json.dumps(what).encode() + b"\n")


class Writer:
    """Keeps ``IN_FLIGHT`` commands under way."""

    def __init__(self, service: StoreService, seed: int) -> None:
        self.service = service
        self.random = Random(seed)
        self.next_seq = service.state.stores[STORE].counts.next_seq
        self.value = seed << 20

    def step(self, free: Callable[[], None]) -> None:
        """Submit one command; ``free`` is called when it is answered."""
        what = self.random.random()
        if what < 0.5:
            self.publish(free)
        elif what < 0.8:
            self.consume(free)
        else:
            self.set_key(free)

    def publish(self, free: Callable[[], None]) -> None:
        count = self.random.choice((1, 1, 1, 5, 40))
        first, self.next_seq = self.next_seq, self.next_seq + count
        messages = [Message(body_of(seq), publisher_seq=seq) for seq in range(first, first + count)]

        def done(result: Result | HoldfastError) -> None:
            tell(published=first + count - 1, result=type(result).__name__)
            free()

        self.service.submit_nowait(Publish(0, STORE, "p", messages), done)

    def consume(self, free: Callable[[], None]) -> None:
        def delivered(result: Result | HoldfastError) -> None:
            assert isinstance(result, Delivered)
            ranges = [(first, last) for first, last, _ in result.runs if self.random.random() < 0.9]
            for one in self.service.messages(STORE, result.runs):
                assert one.body == body_of(one.seq)
            tell(asking=ranges)

            def done(_: Result | HoldfastError) -> None:
                tell(acknowledged=ranges)
                free()

            self.service.submit_nowait(Acknowledge(0, STORE, DURABLE, "s", ranges), done)

        self.service.submit_nowait(Deliver(0, STORE, DURABLE, "s", self.random.choice((1, 10, 60))), delivered)

    def set_key(self, free: Callable[[], None]) -> None:
        self.value += 1
        key, value = f"k{self.random.randrange(KEYS)}", self.value

        def done(_: Result | HoldfastError) -> None:
            tell(key=key, value=value)
            free()

        self.service.submit_nowait(MapChange(0, MAPS, MAP, [(key, str(value).encode(), None)]), done)


async def main(directory: str, persistence: str, seed: int) -> None:
    """Work for ever."""
    checkpoints.LOG_BYTES = 150_000
    service = await StoreService.open(directory, page_bytes=PAGE_BYTES)
    if not service.state.revision:
        await service.submit(define(definition_of(persistence)))
    await service.submit(Attach(0, STORE, DURABLE, "s"))
    writer = Writer(service, seed)
    places = asyncio.Semaphore(IN_FLIGHT)
    tell(ready=True)
    while True:
        await places.acquire()
        writer.step(places.release)
        await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
