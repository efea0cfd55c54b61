"""``kill -9`` of the whole service while publishers and subscribers use it over HTTP.

What must hold over all rounds: a message whose publish was confirmed is delivered until it is acknowledged; one whose
acknowledgement was confirmed never comes again; every publisher's messages keep their order and are kept once however
often they were sent.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.crash.server_process import ServerProcess
from tests.matrix import matrix
from tests.rgw import free_port

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
ROUNDS = 20 if PROVE else 1 if os.environ.get("HOLDFAST_SMALL") == "1" else 3
CONFIRMED_BEFORE_A_KILL = (50, 400)
PUBLISHERS = 4
SECONDS_MAX = 3_600 if PROVE else 600
DURABLE = {"type": "shared", "subscriber_timeout": "1s", "ack_wait": "2s"}
"""What a kill cut off on its way to the subscriber comes again after ``ack_wait``."""
ENVIRONMENT = {"HOLDFAST_STORES__PAGE_SIZE_BYTES": "1 MiB", "HOLDFAST_VIEW__ENABLED": "false"}


pytestmark = pytest.mark.timeout(SECONDS_MAX + 60)


class Wire:
    """One keep-alive connection. Raises: OSError, EOFError when the service is gone."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, target: str, body: object = None) -> tuple[int, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        data = b"" if body is None else json.dumps(body).encode()
        writer.write(
            f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        )
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            return int(head.split(" ", 2)[1]), json.loads(await reader.readexactly(size))
        except (OSError, EOFError):
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Ledger:
    """What the clients know."""

    def __init__(self) -> None:
        self.confirmed: dict[tuple[str, int], int] = {}
        """Publisher and its number -> the store's number."""
        self.acknowledged: set[int] = set()
        self.seen: dict[int, tuple[str, int]] = {}
        self.counts: dict[int, int] = {}

    def delivered(self, message: Mapping[str, Any]) -> None:
        seq = message["seq"]
        publisher, number = base64.b64decode(message["body"]).decode().split()
        assert seq not in self.acknowledged, f"{seq} was acknowledged and came again"
        assert self.seen.setdefault(seq, (publisher, int(number))) == (publisher, int(number))
        again = seq in self.counts
        assert message["delivery_count"] >= self.counts.get(seq, 1), "a delivery count never goes back"
        assert message["redelivered"] or not (again or message["delivery_count"] > 1), "what comes again says so"
        self.counts[seq] = message["delivery_count"]


class Load:
    """Publishers and one subscriber that go on until they are told to stop, through any number of restarts."""

    def __init__(self, port: int, ledger: Ledger) -> None:
        self._port = port
        self._ledger = ledger
        self._stopping = False

    async def publish(self, name: str) -> None:
        wire, number = Wire(self._port), 1
        while not self._stopping:
            messages = [
                {
                    "publisher_seq": number + index,
                    "body": base64.b64encode(f"{name} {number + index}".encode()).decode(),
                }
                for index in range(1 + number % 3)
            ]
            batch = {"publisher_id": name, "messages": messages}
            with suppress(OSError, EOFError):
                status, answer = await wire.ask("POST", "/v1/stores/orders/messages", batch)
                if status != 200:
                    assert answer["error"]["code"] in ("not_leader", "overloaded"), answer
                    await asyncio.sleep(0.02)
                    continue
                for index in range(len(messages)):
                    self._ledger.confirmed[name, number + index] = answer["first_seq"] + index
                number += len(messages)
                continue
            await asyncio.sleep(0.02)
        wire.close()

    async def consume(self) -> None:
        wire = Wire(self._port)
        while not self._stopping:
            with suppress(OSError, EOFError):
                target = "/v1/stores/orders/durables/work/messages?subscriber=s&max=50&wait_ms=50"
                status, answer = await wire.ask("GET", target)
                if status == 200:
                    await self._settle(wire, answer["messages"])
                    continue
            await asyncio.sleep(0.02)
        wire.close()

    async def _settle(self, wire: Wire, messages: list[Mapping[str, Any]]) -> None:
        for message in messages:
            self._ledger.delivered(message)
        taken = [message["seq"] for message in messages if message["seq"] % 4]
        status, answer = await wire.ask(
            "POST", "/v1/stores/orders/durables/work/acks", {"subscriber": "s", "ack": taken}
        )
        if status == 200:
            self._ledger.acknowledged |= set(taken) - set(answer["stale"])

    def stop(self) -> None:
        self._stopping = True


async def drain(port: int, ledger: Ledger) -> None:
    """Take and acknowledge everything that is left, also what another subscriber holds until its time is over."""
    wire = Wire(port)
    left = 1
    while left:
        target = "/v1/stores/orders/durables/work/messages?subscriber=last&max=500&wait_ms=2000"
        status, answer = await wire.ask("GET", target)
        assert status == 200, answer
        for message in answer["messages"]:
            ledger.delivered(message)
        taken = [message["seq"] for message in answer["messages"]]
        status, answer = await wire.ask(
            "POST", "/v1/stores/orders/durables/work/acks", {"subscriber": "last", "ack": taken}
        )
        ledger.acknowledged |= set(taken) - set(answer["stale"])
        status, durable = await wire.ask("GET", "/v1/stores/orders/durables/work")
        left = durable["counts"]["messages"]
    wire.close()


async def rounds(directory: Path, persistence: str) -> Ledger:
    port = free_port()
    ledger = Ledger()
    load = Load(port, ledger)
    draw = random.Random(5)

    def start() -> ServerProcess:
        return ServerProcess(directory, (directory / "log").as_uri(), port, flags=("--init",), environment=ENVIRONMENT)

    server = start()
    try:
        await asyncio.to_thread(server.wait_until_leading)
        wire = Wire(port)
        status = 0
        while status != 200:
            definition = {
                "cluster": {"persistence": persistence},
                "stores": {"orders": {"durables": {"work": DURABLE}}},
            }
            status, _ = await wire.ask("PUT", "/v1/cluster/definition", definition)
        wire.close()
        clients = [asyncio.ensure_future(load.publish(f"p{number}")) for number in range(PUBLISHERS)]
        clients.append(asyncio.ensure_future(load.consume()))
        for _ in range(ROUNDS):
            wanted = len(ledger.confirmed) + draw.randrange(*CONFIRMED_BEFORE_A_KILL)
            while len(ledger.confirmed) < wanted:
                assert not any(client.done() for client in clients), [client for client in clients if client.done()]
                assert server.running, server.tail()
                await asyncio.sleep(0.005)
            server.kill()
            server = start()
        while len(ledger.confirmed) < wanted + 50:
            assert server.running, server.tail()
            await asyncio.sleep(0.005)
        load.stop()
        await asyncio.gather(*clients)
        await drain(port, ledger)
        assert await asyncio.to_thread(server.stop) == 0
    finally:
        if server.running:
            server.kill()
    return ledger


@pytest.mark.parametrize("persistence", matrix(["sync", "async"]))
def test_nothing_confirmed_is_lost_and_nothing_acknowledged_comes_again(
    tmp_path: Path,
    persistence: str,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a killed process; the file system goes on, so ``async`` must keep everything, too."""

    async def bounded() -> Ledger:
        async with asyncio.timeout(SECONDS_MAX):
            return await rounds(tmp_path, persistence)

    ledger = asyncio.run(bounded())
    lost = [message for message, seq in ledger.confirmed.items() if ledger.seen.get(seq) != message]
    assert not lost, f"{len(lost)} of {len(ledger.confirmed)} confirmed messages were lost"
    assert len(set(ledger.seen.values())) == len(ledger.seen), "a message is kept once"
    for name in {publisher for publisher, _ in ledger.seen.values()}:
        numbers = [number for _, (publisher, number) in sorted(ledger.seen.items()) if publisher == name]
        assert numbers == sorted(numbers), "a publisher's messages keep their order"
    with capsys.disabled():
        print(
            f"\n{persistence}: {ROUNDS} kills of the service over HTTP, {len(ledger.confirmed)} messages confirmed, "
            f"0 lost, {len(ledger.acknowledged)} acknowledged, 0 came again"
        )
    for name, value in (("kills", ROUNDS), ("confirmed", len(ledger.confirmed)), ("lost", 0)):
        record_property(f"stores_http_{name}_{persistence}", value)
