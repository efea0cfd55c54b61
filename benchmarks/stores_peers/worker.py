"""One figure: one asyncio client process, one lane, one system. Prints JSON.

    python worker.py SYSTEM LANE BYTES SECONDS PORT

    one         publish confirmed, one at a time
    window      publish confirmed, 256 unconfirmed at most
    batch       publish confirmed, batches of 100, one at a time
    consume     consume with acknowledgement what was published before
    end_to_end  1,000 messages a second, open loop; latency from the call of publish to the arrival at the subscriber

A run ends with a check that the system has as many messages as were confirmed, or delivered as many as were there.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from stores_peers.clients import CLIENTS, PREFILLED, Client

LANES = ("one", "window", "batch", "consume", "end_to_end")
BATCH = 100
RATE = 1_000


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


async def one(client: Client, body: bytes, seconds: float) -> tuple[int, float, list[float]]:
    latencies: list[float] = []
    began = now = time.perf_counter()
    while now - began < seconds:
        await client.publish(body)
        after = time.perf_counter()
        latencies.append(after - now)
        now = after
    return len(latencies), now - began, latencies


async def window(client: Client, body: bytes, seconds: float) -> tuple[int, float, list[float]]:
    latencies: list[float] = []
    clock = time.perf_counter
    began = now = clock()
    started = 0
    while now - began < seconds:
        now = clock()
        await client.start(body, lambda since=now: latencies.append(clock() - since))  # type: ignore[misc]
        started += 1
    await client.settle()
    elapsed = clock() - began
    assert len(latencies) == started, "every message is confirmed"
    return started, elapsed, latencies


async def batch(client: Client, body: bytes, seconds: float) -> tuple[int, float, list[float]]:
    latencies: list[float] = []
    began = now = time.perf_counter()
    while now - began < seconds:
        await client.publish_batch([body] * BATCH)
        after = time.perf_counter()
        latencies.append(after - now)
        now = after
    return len(latencies) * BATCH, now - began, latencies


async def consume(client: Client, count: int) -> tuple[int, float, list[float]]:
    began = time.perf_counter()
    seen = await client.consume(count)
    elapsed = time.perf_counter() - began
    assert seen == count, f"{seen} of {count} were delivered"
    return seen, elapsed, []


async def end_to_end(client: Client, size: int, seconds: float) -> tuple[int, float, list[float]]:
    clock = time.perf_counter_ns
    latencies: list[float] = []
    expected = int(seconds * RATE)
    everything = asyncio.Event()

    def arrived(body: bytes) -> None:
        latencies.append((clock() - int.from_bytes(body[:8], "big")) / 1e9)
        if len(latencies) == expected:
            everything.set()

    stop = await client.follow(arrived)
    rest = bytes(size - 8)
    began = time.perf_counter()
    for number in range(expected):
        wait = began + number / RATE - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        await client.start(clock().to_bytes(8, "big") + rest, lambda: None)
    await client.settle()
    elapsed = time.perf_counter() - began
    async with asyncio.timeout(30):
        await everything.wait()
    await stop()
    return expected, elapsed, latencies


async def run(system: str, lane: str, size: int, seconds: float, port: int) -> dict[str, object]:
    client = CLIENTS[system]()
    name = f"bench-{lane.replace('_', '-')}-{size}-{time.time_ns()}"
    await client.open(port, name)
    body = bytes(size)
    try:
        lanes: dict[str, Callable[[], Awaitable[tuple[int, float, list[float]]]]] = {
            "one": lambda: one(client, body, seconds),
            "window": lambda: window(client, body, seconds),
            "batch": lambda: batch(client, body, seconds),
            "consume": lambda: consume(client, PREFILLED[system]),
            "end_to_end": lambda: end_to_end(client, size, seconds),
        }
        if lane in ("consume", "end_to_end"):
            await client.prepare()
        if lane == "consume":
            for _ in range(PREFILLED[system] // BATCH):
                await client.publish_batch([body] * BATCH)
        processor = time.process_time()
        messages, elapsed, latencies = await lanes[lane]()
        processor = time.process_time() - processor
        if lane != "consume":
            taken = await client.count()
            assert taken == messages, f"{taken} messages are there, {messages} were confirmed"
    finally:
        await client.close()
    return {
        "messages": messages,
        "seconds": elapsed,
        "rate": messages / elapsed,
        "p50_ms": percentile(latencies, 0.5) * 1e3,
        "p99_ms": percentile(latencies, 0.99) * 1e3,
        "client_us": processor / messages * 1e6,
    }


if __name__ == "__main__":
    system, lane, size, seconds, port = sys.argv[1:]
    print(json.dumps(asyncio.run(run(system, lane, int(size), float(seconds), int(port)))))
