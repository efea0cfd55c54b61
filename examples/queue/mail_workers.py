"""Workers on one event loop that send mail, try again when that fails, and give up at last.

    python -m examples.queue.mail_workers [directory]

Requests append mail and wait until it is on disk: those that come at the same time share one sync. Eight tasks send it.
A mailbox that is busy gets its mail later; one that does not exist gets none, and the mail goes to the dead letters
with the reason.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from holdfast.aio import Queue

MAILS = 300
WORKERS = 8


class Busy(Exception):
    """Later, perhaps."""


class NoSuchMailbox(Exception):
    """Never."""


class MailServer:
    """What mail is sent to: every seventh mailbox is busy the first time, every fiftieth does not exist."""

    def __init__(self) -> None:
        self.delivered: list[int] = []
        self.busy = {number for number in range(MAILS) if number % 7 == 0}

    async def send(self, number: int) -> None:
        """Deliver one mail."""
        await asyncio.sleep(0)
        if number % 50 == 49:
            raise NoSuchMailbox(f"there is no mailbox {number}")
        if number in self.busy:
            self.busy.remove(number)
            raise Busy(f"mailbox {number} is busy")
        self.delivered.append(number)


async def send_mail(queue: Queue, server: MailServer) -> int:
    """Everything that is in the queue, with several workers. Returns how many deliveries had to be tried again."""
    tried_again = 0
    async with queue.work_queue("mailer", ack_wait=30, max_deliveries=3, retry_delay=0.01) as work:

        async def worker() -> None:
            nonlocal tried_again
            while await work.lag():
                job = await work.get(timeout=0.05)
                if job is None:
                    continue
                try:
                    await server.send(json.loads(job.payload)["to"])
                except Busy as error:
                    tried_again += 1
                    await work.retry(job, reason=str(error))
                except NoSuchMailbox as error:
                    await work.dead_letter(job, str(error))
                else:
                    await work.ack(job)

        await asyncio.gather(*(worker() for _ in range(WORKERS)))
        async for letter in work.dead_letters():
            print(f"given up: {letter.payload.decode()} ({letter.reason})")
    return tried_again


async def main(folder: Path) -> None:
    """Accept mail, send it, compare."""
    server = MailServer()
    async with Queue(folder / "mail", sync="always", serializer="json", page_size=1 << 20) as queue:
        await asyncio.gather(*(queue.append({"to": number}) for number in range(MAILS)))
        print(f"{MAILS} mails accepted, on disk up to {queue.durable_seq}")
        tried_again = await send_mail(queue, server)
    wanted = [number for number in range(MAILS) if number % 50 != 49]
    assert sorted(server.delivered) == wanted, "every mail that can be delivered was, once"
    print(f"{len(server.delivered)} delivered, {tried_again} of them at the second try")


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            asyncio.run(main(Path(temporary)))
