"""A process that follows the change stream into a view of its own, from the first version to the last.

Owns: one subscription, one ``View``, and writing the view down at the end. It is told on standard input up to which
version, and knows nothing of the leader's death but what the client library makes of it: it goes on.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pyarrow as pa

from holdfast.aio import Client
from holdfast.view import View

__all__ = ["follow"]

ROWS_MAX = 1 << 40


async def follow(urls: list[str], output: Path) -> None:
    """Follow until the version read from standard input; then write the view to ``output`` as an Arrow file."""
    view = View.memory()
    counts = {"transactions": 0, "operations": 0}
    async with Client(urls) as client, client.subscribe(0) as stream:
        following = asyncio.create_task(_apply(stream, view, counts))
        telling = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        await asyncio.wait({following, telling}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        last_version = int(await telling)
        reached = asyncio.create_task(view.reached(last_version))
        await asyncio.wait({following, reached}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    _write(view, output)
    print(json.dumps({"version": view.version, **counts}), flush=True)


async def _apply(stream: object, view: View, counts: dict[str, int]) -> None:
    async for events in stream.batches():  # type: ignore[attr-defined]
        view.apply(events)
        for event in events:
            operations = getattr(event, "operations", None)
            if operations is not None:
                counts["transactions"] += 1
                counts["operations"] += len(operations)


def _write(view: View, output: Path) -> None:
    keys, values, versions = zip(*view.range(limit=ROWS_MAX), strict=True)
    table = pa.table(
        {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()), "version": pa.array(versions)}
    )
    with pa.OSFile(str(output), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


if __name__ == "__main__":
    asyncio.run(follow(json.loads(sys.argv[1]), Path(sys.argv[2])))
