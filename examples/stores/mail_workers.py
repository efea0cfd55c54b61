"""Workers that share mails: what fails for now is tried again later, what fails for good goes to the dead letters.

    holdfast serve --log file:$PWD/log --init &
    python -m examples.stores.mail_workers [--url URL]

URL is the address of the service, with standbys all addresses with commas. A service with tokens needs HOLDFAST_TOKEN.

Each worker is a task; in earnest each is a process of its own, on any machine. A worker that is killed gives its mails
to the others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter

from holdfast.aio import StoreClient
from holdfast.client.stores import Delivery, SubscriberOptions

MAILS = [b"ann@example.org", b"no-such-host@invalid", b"slow@example.org", b"bob@example.org"]


class NotNow(Exception):
    """The mail server is busy: the same mail may go out later."""


class NotEver(Exception):
    """There is no such address."""


def send_mail(message: Delivery) -> None:
    if message.body.endswith(b"@invalid"):
        raise NotEver
    if message.body.startswith(b"slow@") and message.delivery_count < 3:
        raise NotNow


async def work(client: StoreClient, name: str, sent: Counter[bytes], done: asyncio.Event, expected: int) -> None:
    """One worker, until every mail was sent or given up."""
    options = SubscriberOptions(explicit_ack=True, prefetch=2)
    async with client.subscriber("mails", "outgoing", subscriber=name, options=options) as mails:
        while not done.is_set():
            mail = await mails.receive(timeout=0.2)
            if mail is None:
                continue
            try:
                send_mail(mail)
            except NotNow:
                await mails.put_back(mail, delay=0.05)
                continue
            except NotEver:
                await mails.reject(mail, confirmed=True)
            else:
                await mails.acknowledge(mail, confirmed=True)
            sent[mail.body] += 1
            if len(sent) == expected:
                done.set()


async def run(url: str) -> tuple[Counter[bytes], list[Delivery]]:
    """What was sent or given up, and the dead letters."""
    async with StoreClient(url, token=os.environ.get("HOLDFAST_TOKEN")) as client:
        await client.define_store("undeliverable")
        await client.define_durable("undeliverable", "all", {"type": "shared"})
        await client.define_store("mails")
        await client.define_durable(
            "mails", "outgoing", {"type": "shared", "max_delivery": 10, "dead_letter_store": "undeliverable"}
        )
        async with client.publisher("mails") as publisher:
            for address in MAILS:
                await publisher.send(address)
            await publisher.flush()
        sent: Counter[bytes] = Counter()
        done = asyncio.Event()
        await asyncio.gather(*[work(client, f"worker-{number}", sent, done, len(MAILS)) for number in range(3)])
        async with client.subscriber("undeliverable", "all") as letters:
            letter = await letters.receive(timeout=10)
        return sent, [] if letter is None else [letter]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    sent, letters = asyncio.run(run(parser.parse_args().url))
    for address in MAILS:
        print(f"{address.decode()}: {'done' if sent[address] else 'lost'}")
    for letter in letters:
        print(f"undeliverable: {letter.body.decode()}, {letter.origin.cause if letter.origin else ''}")


if __name__ == "__main__":
    main()
