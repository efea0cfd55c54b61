"""A process that piles up a backlog and is never asked for it; prints what it took, as one line of JSON.

python backlog_process.py DIRECTORY MESSAGES
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections import deque

from tests.definitions import define

from holdfast.stores import checkpoints
from holdfast.stores.service import StoreService
from holdfast.stores.values.commands import Publish, Result
from holdfast.wire.parts import Message

MEMORY_BYTES = 4 << 20
PAGE_BYTES = 4 << 20
LOG_BYTES = 1 << 20
BODY_BYTES = 1_000
BATCH = 100
IN_FLIGHT = 4


async def main(directory: str, messages: int) -> None:
    """Publish, and end without closing anything."""
    checkpoints.LOG_BYTES = LOG_BYTES
    service = await StoreService.open(directory, page_bytes=PAGE_BYTES, memory_bytes=MEMORY_BYTES)
    durables = {"one": {"type": "shared"}, "other": {"type": "standard"}}
    document = {"stores": {"orders": {"durables": durables}}, "cluster": {"persistence": "async"}}
    await service.submit(define(json.dumps(document).encode()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    waiting: deque[asyncio.Future[Result]] = deque()
    for _ in range(messages // BATCH):
        batch = [Message(os.urandom(8) + bytes(BODY_BYTES - 8)) for _ in range(BATCH)]
        waiting.append(service.submit(Publish(0, "orders", "", batch)))
        if len(waiting) >= IN_FLIGHT:
            await waiting.popleft()
    for answer in waiting:
        await answer
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    os.write(1, json.dumps({"grown_bytes": (after - before) * 1024}).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
