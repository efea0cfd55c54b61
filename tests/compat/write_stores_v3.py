"""Write the golden directory of the message stores' rules 3. Run once, with the code that had these rules.

    python -m tests.compat.write_stores_v3 FOLDER

``killed`` has a rewind after its checkpoint that these rules carry out in one command, and that of now in several.
``contents.json`` next to it has what a client saw last.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path

from tests.compat.write_stores_v1 import PAGE_BYTES, Clock, Writer, summary

from holdfast.stores.service import StoreService
from holdfast.stores.values import commands
from holdfast.stores.values.messages import Message

MATCHED = {"type": "shared", "retention_time": 86_400, "matcher": {"kind": "a"}, "prefetch": 10_000}
DEFINITION = {"cluster": {"persistence": "sync"}, "stores": {"orders": {"durables": {"work": MATCHED}}}}


async def write(folder: Path) -> None:
    """The directory and what it holds."""
    clock = Clock()
    running = folder / "running"
    writer = Writer(await StoreService.open(str(running), page_bytes=PAGE_BYTES, clock=clock), clock)
    await writer.define(DEFINITION)
    for _ in range(6):
        await writer.publish("orders", [Message(fields={"kind": "ab"[number % 2]}) for number in range(1_000)])
    await writer.do(commands.Attach(0, "orders", "work", "ann"))
    await writer.do(commands.Deliver(0, "orders", "work", "ann", 10_000))
    await writer.do(commands.Acknowledge(0, "orders", "work", "ann", [(seq, seq) for seq in range(1, 5_990, 2)]))
    await writer.service.checkpoint()
    await writer.do(commands.Rewind(0, "orders", "work", 100))
    await writer.do(commands.Deliver(0, "orders", "work", "ann", 3))
    await writer.publish("orders", [Message(fields={"kind": "a"})])
    contents = {"killed": summary(writer.service.state)}
    shutil.copytree(running, folder / "killed", ignore=shutil.ignore_patterns("*.lock"))
    await writer.service.close()
    shutil.rmtree(running)
    (folder / "contents.json").write_text(json.dumps(contents) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(exist_ok=False)
    asyncio.run(write(target))
