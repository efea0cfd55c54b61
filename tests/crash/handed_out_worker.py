"""A worker of the durable ``work`` that writes down what it is handed, does, and sees confirmed.

    python handed_out_worker.py URLS STORE NAME JOURNAL KIND

A message's body is the time of its job in milliseconds; another try is faster. KIND is ``thread``, ``task``, ``stuck``
(a job blocks the event loop) or ``implicit`` (asking for the next message acknowledges). The journal's lines: see
``tests/journals.py``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence

from holdfast import StoreClient, aio
from holdfast.client.stores import Delivery, SubscriberOptions

KINDS = ("thread", "task", "stuck", "implicit")
EXPLICIT = SubscriberOptions(explicit_ack=True)


class Journal:
    """Lines that are written before their writer goes on."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, what: str, *numbers: int) -> None:
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.write(self._file, f"{what} {now_ns} {' '.join(map(str, numbers))}\n".encode())

    def handed(self, message: Delivery) -> None:
        self.note("handed", message.seq, message.delivery_count, int(message.redelivered))

    def settled(self, message: Delivery, stale: Sequence[int]) -> None:
        self.note("stale" if stale else "acked", message.seq)


def seconds_of(message: Delivery) -> float:
    """How long its job takes."""
    return int(message.body) / 1000 / message.delivery_count


def work(urls: list[str], store: str, name: str, journal: Journal, *, is_implicit: bool) -> None:
    options = None if is_implicit else EXPLICIT
    with StoreClient(urls) as client, client.subscriber(store, "work", subscriber=name, options=options) as messages:
        for message in messages:
            journal.handed(message)
            time.sleep(seconds_of(message))
            journal.note("done", message.seq)
            if not is_implicit:
                journal.settled(message, messages.acknowledge(message, confirmed=True))


async def work_in_a_loop(urls: list[str], store: str, name: str, journal: Journal, *, is_stuck: bool) -> None:
    async with (
        aio.StoreClient(urls) as client,
        client.subscriber(store, "work", subscriber=name, options=EXPLICIT) as messages,
    ):
        async for message in messages:
            journal.handed(message)
            seconds = seconds_of(message)
            time.sleep(seconds) if is_stuck else await asyncio.sleep(seconds)  # noqa: ASYNC251 - an application's fault
            journal.note("done", message.seq)
            journal.settled(message, await messages.acknowledge(message, confirmed=True))


def main() -> None:
    urls, store, name, path, kind = sys.argv[1:]
    journal = Journal(path)
    if kind in ("thread", "implicit"):
        work(urls.split(","), store, name, journal, is_implicit=kind == "implicit")
    else:
        asyncio.run(work_in_a_loop(urls.split(","), store, name, journal, is_stuck=kind == "stuck"))


if __name__ == "__main__":
    main()
