"""Slow readers of ``GET /v1/snapshot`` lock nobody out: they end with a coded last line, and may resume."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket

import pytest
from tests.integration.http_harness import Serving, request, run, serving, until

from holdfast.retention.policies import LOAD_PREFIX
from holdfast.server.commit import snapshot_readers, snapshot_route
from holdfast.server.commit.snapshot_readers import SnapshotReaders
from holdfast.server.commit.snapshot_route import SnapshotSender
from holdfast.server.gateway import GatewayLimits
from holdfast.server.http.auth import Role
from holdfast.snapshots import make_snapshot

TOKEN = "a-long-random-token"
KEYS = 40
VALUE = 500_000
KEYS_64 = [base64.b64encode(b"k%03d" % number).decode() for number in range(KEYS)]


async def filled(here: Serving) -> None:
    client = await here.connect()
    for number in range(KEYS):
        value = base64.b64encode(os.urandom(VALUE)).decode()
        body = json.dumps({"operations": [{"type": "write", "key_text": f"k{number:03d}", "value": value}]}).encode()
        assert (await client.ask("POST", "/v1/commit", body, Authorization=f"Bearer {TOKEN}")).status == 200
    await make_snapshot(here.store, part_bytes=4 << 20)


async def reader(here: Serving, more: str = "") -> socket.socket:
    """A reader whose kernel takes little for it."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, (here.host, here.port))
    await loop.sock_sendall(peer, request("GET", f"/v1/snapshot{more}", Authorization=f"Bearer {TOKEN}"))
    return peer


async def rows_of(peer: socket.socket) -> tuple[int, list[dict[str, object]]]:
    """The status, and every line that comes."""
    client = await asyncio.open_connection(sock=peer, limit=1 << 22)
    head = await client[0].readuntil(b"\r\n\r\n")
    status = int(head.split()[1])
    rows = bytearray()
    while size := int(await client[0].readline(), 16):
        rows += await client[0].readexactly(size)
        await client[0].readline()
    client[1].close()
    return status, [json.loads(line) for line in rows.splitlines()]


def readers_of(here: Serving) -> SnapshotReaders:
    sender = getattr(next(row for row in here.rows if row.path == "/v1/snapshot").stream, "__self__", None)
    assert isinstance(sender, SnapshotSender)
    return sender._readers  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("waits", ["reader", "truncation"])
def test_a_slow_reader_ends_with_a_reason_when_something_waits(monkeypatch: pytest.MonkeyPatch, waits: str) -> None:
    monkeypatch.setattr(snapshot_readers, "PACE_SECONDS", 0.2)
    monkeypatch.setattr(snapshot_readers, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(snapshot_route, "LINGER_SECONDS", 60.0)

    async def scenario() -> None:
        limits = GatewayLimits(request_bytes_max=1 << 20)
        async with serving(limits=limits, tokens={TOKEN: Role.WRITE}, view=False) as here:
            truncator = here.retention.truncator
            assert truncator is not None
            await filled(here)
            slow = [await reader(here) for _ in range(snapshot_readers.READERS_OF_CLIENT)]
            connections = here.server.context.open
            await until(lambda: sum(each.transport.get_write_buffer_size() > 0 for each in connections) == len(slow))
            await asyncio.sleep(2 * snapshot_readers.PACE_SECONDS)  # they take nothing for that long
            if waits == "reader":
                status, lines = await rows_of(await reader(here))
                assert (status, len(lines)) == (200, KEYS)
            else:
                truncator.state.waits_for_loads = True
                await until(lambda: not len(readers_of(here)))
            found = [await rows_of(peer) for peer in slow]
            truncator.state.waits_for_loads = False
            ended = [lines for _, lines in found if "error" in lines[-1]]
            assert len(ended) == (1 if waits == "reader" else len(slow))
            for lines in ended:
                assert lines[-1]["error"]["code"] == "lagging"  # type: ignore[index]
                rest = (await rows_of(await reader(here, f"?after={lines[-2]['key']}")))[1]
                assert [row["key"] for row in [*lines[:-1], *rest]] == KEYS_64

            def held() -> list[int]:
                generation = truncator.state.generation
                assert generation is not None
                holds = generation.holds.items()
                return [hold.lasts_ms for name, hold in holds if name.startswith(LOAD_PREFIX)]

            await until(lambda: held() == [snapshot_route.RESUME_MS] * len(ended))

    run(scenario)
