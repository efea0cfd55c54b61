"""``GET /v1/snapshot`` of a real service, and readers that begin with it."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from tests.command import command
from tests.crash.server_process import NO_VIEW, ServerProcess
from tests.integration.test_retention_process import until
from tests.rgw import free_port

from holdfast import Client, Delete, InvalidRequest, View, Write
from holdfast.aio import Client as AsyncClient
from holdfast.objects.open import open_store
from holdfast.snapshots import Manifest, make_snapshot
from holdfast.wire.log import SNAPSHOT_LAST_TRANSACTION, SNAPSHOT_LOG_ID, SNAPSHOT_ROWS, SNAPSHOT_VERSION

KEYS = 300


class Served(NamedTuple):
    port: int
    log: Path
    manifest: Manifest


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def ask(port: int, path: str, method: str = "GET") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()


def snapshot_of(log: Path) -> Manifest:
    async def make() -> Manifest:
        store = open_store(log.as_uri())
        try:
            return await make_snapshot(store, part_bytes=2_000)
        finally:
            await store.close()

    return asyncio.run(make())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("snapshot")
    port, log = free_port(), folder / "log"
    environment = {"HOLDFAST_STORES__ENABLED": "false", **NO_VIEW}
    server = ServerProcess(folder, log.as_uri(), port, flags=("--init", "--take-over"), environment=environment)
    server.wait_until_leading()
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            assert ask(port, "/v1/snapshot").status == 404
            for number in range(KEYS):
                client.commit([Write(b"key/%04d" % number, b"value %d" % number)])
            client.commit([Delete(b"key/0007")])
        manifest = snapshot_of(log)
        assert len(manifest.parts) > 2
        with Client(f"http://127.0.0.1:{port}") as client:
            client.commit([Write(b"key/0008", b"later")])
        yield Served(port, log, manifest)
    finally:
        server.stop()


def lines(body: bytes) -> list[tuple[bytes, bytes, int]]:
    rows = [json.loads(line) for line in body.splitlines()]
    return [(base64.b64decode(row["key"]), base64.b64decode(row["value"]), row["version"]) for row in rows]


def test_the_stream_has_every_row_of_one_version_in_both_formats_and_goes_on_after_a_key(served: Served) -> None:
    port, manifest = served.port, served.manifest
    whole = ask(port, "/v1/snapshot")
    assert (whole.status, whole.headers["content-type"]) == (200, "application/x-ndjson")
    assert [whole.headers[name.lower()] for name in (SNAPSHOT_VERSION, SNAPSHOT_LOG_ID)] == [
        str(manifest.version),
        manifest.log_id,
    ]
    assert whole.headers[SNAPSHOT_LAST_TRANSACTION.lower()] == str(manifest.last_transaction)
    rows = lines(whole.body)
    assert whole.headers[SNAPSHOT_ROWS.lower()] == str(len(rows)) == str(KEYS - 1)
    assert [(key, value) for key, value, _ in rows] == [
        (b"key/%04d" % number, b"value %d" % number) for number in range(KEYS) if number != 7
    ]
    arrow = pa.ipc.open_stream(ask(port, "/v1/snapshot?format=arrow").body).read_all()
    assert list(zip(*(arrow[name].to_pylist() for name in ("key", "value", "version")), strict=True)) == rows
    for cut in (0, 1, 23, len(rows) - 1):
        query = f"version={manifest.version}@{manifest.log_id}&after_text={rows[cut][0].decode()}"
        assert lines(ask(port, f"/v1/snapshot?{query}").body) == rows[cut + 1 :]
        rest = pa.ipc.open_stream(ask(port, f"/v1/snapshot?format=arrow&{query}").body).read_all()
        assert rest["key"].to_pylist() == [key for key, _, _ in rows[cut + 1 :]]
    head = ask(port, "/v1/snapshot", "HEAD")
    assert (head.status, head.body) == (200, b"")


def test_what_is_asked_wrongly_and_what_does_not_exist_is_named(served: Served) -> None:
    for query, status, code in (
        ("format=parquet", 400, "malformed"),
        (f"version={served.manifest.version - 1}", 404, "not_found"),
        (f"version={served.manifest.version}@{'ab' * 16}", 409, "log_mismatch"),
        ("after=%25", 400, "bad_base64"),
        ("limit=3", 400, "malformed"),
    ):
        answer = ask(served.port, f"/v1/snapshot?{query}")
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code), query


def test_cat_prints_the_rows_of_the_snapshot_and_then_what_came_after_it(served: Served) -> None:
    def cat(*flags: str) -> list[dict[str, object]]:
        words = ("log", "cat", served.log.as_uri(), "--from-snapshot", "--json", *flags)
        done = command(*words)
        return [json.loads(line) for line in done.stdout.splitlines()]

    rows = cat()
    assert len(rows) == KEYS - 1 + 1
    assert {row.get("snapshot") for row in rows[:-1]} == {served.manifest.version}
    assert "later" in json.dumps(rows[-1]) or base64.b64encode(b"later").decode() in json.dumps(rows[-1])
    assert cat("--limit", "5") == rows[:5]
    words = ("log", "cat", served.log.as_uri(), "--from-snapshot", "--after", "3")
    refused = command(*words)
    assert (refused.returncode, "exclude each other" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_view_begins_with_the_snapshot_and_follows_the_stream_from_there(
    served: Served, kind: str, tmp_path: Path
) -> None:
    view = View.memory() if kind == "memory" else View.sqlite(tmp_path / "view.sqlite")
    with Client(f"http://127.0.0.1:{served.port}") as client, view:
        assert client.load_snapshot(view) == view.position
        assert view.version == served.manifest.version
        assert view.get(b"key/0008") == (b"value 8", view.get(b"key/0008")[1])  # type: ignore[index]
        with client.subscribe(view.position) as stream:
            for events in stream.batches():
                view.apply(events)
                if view.get(b"key/0008")[0] == b"later":  # type: ignore[index]
                    break
        assert len(view.range(limit=1000)) == KEYS - 1
        with pytest.raises(InvalidRequest, match="empty"):
            client.load_snapshot(view)


def test_an_asyncio_client_loads_it_and_the_hold_of_the_reader_ends(served: Served) -> None:
    async def scenario() -> None:
        view = View.memory()
        async with AsyncClient(f"http://127.0.0.1:{served.port}") as client:
            await client.load_snapshot(view)
            assert view.version == served.manifest.version
            assert (await client.retention()).generation >= 1, "a hold was set"

    asyncio.run(scenario())
    until(lambda: json.loads(ask(served.port, "/v1/retention").body)["holds"] == {})


def test_without_a_snapshot_a_view_stays_empty(tmp_path: Path) -> None:
    port = free_port()
    environment = {"HOLDFAST_STORES__ENABLED": "false", **NO_VIEW}
    server = ServerProcess(tmp_path, "memory:", port, flags=("--init",), environment=environment)
    server.wait_until_leading()
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            view = View.memory()
            assert client.load_snapshot(view).version == 0
    finally:
        server.stop()
