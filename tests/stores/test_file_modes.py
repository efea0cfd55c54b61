"""Files of the stores and the log are their owner's alone, whatever the process's umask lets others do."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from pathlib import Path

import pytest
from tests.crash.server_process import ServerProcess
from tests.definitions import define
from tests.rgw import free_port

from holdfast import Client, StoreClient
from holdfast.objects.open import open_store
from holdfast.stores.service import StoreService
from holdfast.stores.values.commands import Publish
from holdfast.view.sqlite import open_for_writer
from holdfast.wire.parts import Message


@pytest.fixture(autouse=True)
def open_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


def stat_of(path: Path) -> os.stat_result | None:
    """None where the running service has removed it since it was listed."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*") if path.is_file()}


def test_files_of_the_stores_are_their_owners_alone(tmp_path: Path) -> None:
    async def scenario() -> dict[str, int]:
        service = await StoreService.open(str(tmp_path / "stores"))
        document = {"stores": {"s": {"durables": {"a": {"type": "shared"}}}}}
        await service.submit(define(json.dumps(document).encode()))
        await service.submit(Publish(0, "s", "", [Message(b"x")]))
        await service.checkpoint()
        await service.copy_files(str(tmp_path / "backup"))
        found = modes(tmp_path)
        await service.close()
        return found

    found = asyncio.run(scenario())
    assert {"index.sqlite", "backup.json"} <= set(found)
    assert set(found.values()) == {0o600}, found


def test_objects_of_the_log_are_their_owners_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = open_store((tmp_path / "log").as_uri(), create_missing=True)
        await store.create("a/b", b"x")
        await store.close()

    asyncio.run(scenario())
    found = modes(tmp_path)
    assert found and set(found.values()) == {0o600}, found


def test_no_file_of_a_service_with_everything_on_is_for_others(tmp_path: Path) -> None:
    data = tmp_path / "missing" / "data"
    service = ServerProcess(tmp_path, (data / "log").as_uri(), port := free_port(), flags=["--init"])
    try:
        service.wait_until_leading()
        url = f"http://127.0.0.1:{port}"
        with Client(url) as client:
            client.transact(lambda txn: txn.write(b"secret", b"value"))
            assert client.get(b"secret") is not None
        with StoreClient(url) as stores:
            stores.define_store("s")
            stores.define_durable("s", "a", {"type": "shared"})
            with stores.publisher("s") as publisher:
                publisher.publish(b"secret")
            stores.cluster_command("backup", {"name": "copy"})
        # Reads come from memory: the process of the view may start later.
        while not any("view" in str(path) for path in data.rglob("*.sqlite-wal")):
            time.sleep(0.02)
        found = {path.relative_to(data): one for path in (data, *data.rglob("*")) if (one := stat_of(path)) is not None}
    finally:
        service.kill()
    names = {str(path) for path in found}
    assert any(name.endswith(".sqlite-wal") and "view" in name for name in names), names
    assert any(name.startswith("log-stores-backups") for name in names), names
    open_to_others = {str(path): oct(one.st_mode) for path, one in found.items() if one.st_mode & 0o077}
    assert not open_to_others


def test_the_files_of_an_older_view_become_their_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "view.sqlite"
    connection, _ = open_for_writer(file)
    connection.execute("PRAGMA user_version")
    others = [tmp_path / f"view.sqlite{end}" for end in ("", "-wal", "-shm")]
    for path in others:
        path.chmod(0o644)
    again, _ = open_for_writer(file)
    assert set(modes(tmp_path).values()) == {0o600} and len(modes(tmp_path)) == 3
    again.close()
    connection.close()
