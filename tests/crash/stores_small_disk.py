"""Message stores on a file system of their own that is too small; prints what happened as one line of JSON.

unshare -Urm python stores_small_disk.py DIRECTORY limit|full
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.definitions import define

from holdfast.errors import HoldfastError
from holdfast.stores import checkpoints
from holdfast.stores.repair.backup import verify
from holdfast.stores.service import StoreService
from holdfast.stores.storage.disk_limit import disk_use
from holdfast.stores.values.commands import Acknowledge, Attach, Deliver, Delivered, Publish, Published
from holdfast.wire.parts import Message

DISK_BYTES = 24 << 20
PAGE_BYTES = 1 << 20
BODY = bytes(10_000)
Happened = dict[str, object]


async def open_service(directory: Path, fraction: float) -> StoreService:
    """Stores with the limit; the definition is put in force the first time."""
    service = await StoreService.open(str(directory), page_bytes=PAGE_BYTES)
    if not service.state.revision:
        store = {"durables": {"work": {"type": "shared", "prefetch": 65_536}}}
        document = {"cluster": {"max_disk_fraction": fraction}, "stores": {"orders": store}}
        await service.submit(define(json.dumps(document).encode()))
        await service.submit(Attach(0, "orders", "work", "s"))
    return service


async def publish_until_refused(service: StoreService) -> tuple[int, HoldfastError]:
    """Publish as long as it goes. Returns the last number that was confirmed, and the refusal."""
    last = 0
    while True:
        try:
            answer = await service.submit(Publish(0, "orders", "", [Message(BODY)] * 10))
        except HoldfastError as error:
            return last, error
        assert isinstance(answer, Published)
        last = answer.last_seq


async def limited(directory: Path) -> Happened:
    """At the limit publishers are refused, consumers go on, and publishers too when that has freed space."""
    checkpoints.INTERVAL_S = 0.02
    service = await open_service(directory, 0.5)
    last, refusal = await publish_until_refused(service)
    use = disk_use(str(directory))
    delivered = await service.submit(Deliver(0, "orders", "work", "s", 100_000))
    assert isinstance(delivered, Delivered)
    bodies = {one.body for one in service.messages("orders", delivered.runs)}
    ranges = [(first, end) for first, end, _ in delivered.runs]
    await service.submit(Acknowledge(0, "orders", "work", "s", ranges))
    again, tries = 0, 0
    while not again:
        tries += 1
        try:
            answer = await service.submit(Publish(0, "orders", "", [Message(BODY)]))
            assert isinstance(answer, Published)
            again = answer.last_seq
        except HoldfastError:
            await asyncio.sleep(0.01)
    await service.close()
    return {
        "last": last,
        "refusal": refusal.code,
        "fraction": use.used / use.capacity,
        "acknowledged": sum(end - first + 1 for first, end in ranges),
        "bodies": [len(body) for body in bodies],
        "again": again,
        "kept": verify(str(directory)).messages,
    }


async def full(directory: Path) -> Happened:
    """Without a limit the disk fills up: the service ends, and the next one has everything that was confirmed."""
    ballast = directory.parent / "ballast"
    ballast.write_bytes(bytes(4 << 20))
    service = await open_service(directory, 0)
    failures: list[BaseException] = []
    service.observer.fail = failures.append  # type: ignore[method-assign]
    last, refusal = await publish_until_refused(service)
    await service.close()
    service = await open_service(directory, 0)
    found = service.state.stores["orders"].counts.next_seq - 1
    ballast.unlink()
    answer = await service.submit(Publish(0, "orders", "", [Message(BODY)]))
    assert isinstance(answer, Published)
    await service.close()
    return {
        "last": last,
        "answer": refusal.code,
        "cause": refusal.fields["cause_code"],
        "failures": len(failures),
        "found": found,
        "again": answer.last_seq,
        "kept": verify(str(directory)).messages,
    }


def main(mount: Path, story: str) -> None:
    """Tell one story on a new small file system, seen by this process alone."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(mount)], check=True)
    happened = asyncio.run({"limit": limited, "full": full}[story](mount / "stores"))
    os.write(1, json.dumps(happened).encode() + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
