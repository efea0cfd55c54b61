"""``holdfast bench``: how fast does a running service commit, seen from this machine.

Owns: the load and its figures. Does not own: comparisons with other systems (``benchmarks/``).

Every commit writes a fresh key and has one precondition on it, so that none conflicts. The client shares the machine's
cores with whatever else runs here, and is Python: the service is faster than what is measured.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from typing import Annotated

import typer

from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, TokenOption, UrlOption
from holdfast.cli.output import print_fields, print_json, progress
from holdfast.cli.service import asking
from holdfast.cli.transactions import LOCAL
from holdfast.errors import HoldfastError

__all__ = ["bench"]


def bench(
    connections: Annotated[
        int, typer.Option("--connections", "-c", min=1, max=1024, help="Clients at the same time.")
    ] = 64,
    seconds: Annotated[float, typer.Option("--seconds", "-s", min=0.1, max=3600, help="How long to run.")] = 10.0,
    value_bytes: Annotated[int, typer.Option("--value-bytes", min=0, max=1_000_000, help="Size of each value.")] = 100,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit from many clients at once for a while, then print rate and latency. Writes keys under bench/."""
    with asking(url, token, None, as_json=as_json) as client:
        newest = client.version().version
    found = asyncio.run(_run(url, token, connections, seconds, value_bytes, newest, shown=not as_json))
    if as_json:
        print_json(found)
    else:
        print_fields(found)
    if found["errors"]:
        raise typer.Exit(Exit.UNAVAILABLE)


async def _run(
    url: str, token: str | None, connections: int, seconds: float, value_bytes: int, newest: int, *, shown: bool
) -> dict[str, object]:
    from holdfast.aio import Client
    from holdfast.commit.format.transaction import PointRead, Write

    run = secrets.token_hex(4)
    value = secrets.token_bytes(value_bytes)
    latencies_ms: list[float] = []
    errors: Counter[str] = Counter()
    async with Client(url, token=token) as client:
        began = time.perf_counter()
        end = began + seconds

        async def one(number: int) -> None:
            nonlocal newest  # a read version of the start would fall out of the conflict window of a long run
            count = 0
            while (before := time.perf_counter()) < end:
                key = f"bench/{run}/{number}/{count}".encode()
                count += 1
                try:
                    receipt = await client.commit([Write(key, value)], [PointRead(key)], read_version=newest)
                except HoldfastError as error:
                    errors[error.code.value] += 1
                else:
                    newest = max(newest, receipt.version)
                    latencies_ms.append((time.perf_counter() - before) * 1000)

        with progress("committing", shown=shown) as moved:
            work = asyncio.gather(*(one(number) for number in range(connections)))
            while not work.done():
                await asyncio.wait([work], timeout=0.2)
                moved(min(int(time.perf_counter() - began), int(seconds)), int(seconds))
            await work
        elapsed = time.perf_counter() - began
    latencies_ms.sort()
    return {
        "commits": len(latencies_ms),
        "seconds": round(elapsed, 3),
        "commits_per_second": round(len(latencies_ms) / elapsed),
        "p50_ms": _percentile(latencies_ms, 0.50),
        "p99_ms": _percentile(latencies_ms, 0.99),
        "p99_9_ms": _percentile(latencies_ms, 0.999),
        "max_ms": _percentile(latencies_ms, 1.0),
        "connections": connections,
        "errors": dict(sorted(errors.items())),
    }


def _percentile(ordered: list[float], part: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 3) if ordered else None
