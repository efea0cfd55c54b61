"""A disk that does not give what is there: a command that meets it is no refusal, and nothing is built on it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.definitions import define
from tests.integration.http_harness import run, until

from holdfast.errors import HoldfastError
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.service import StoreService
from holdfast.stores.storage.locations import Locations
from holdfast.stores.values.commands import (
    Acknowledge,
    Attach,
    Command,
    Deliver,
    Delivered,
    Drop,
    MapChange,
    Publish,
    Purge,
    Rewind,
)
from holdfast.stores.values.ports import ReadUnavailable
from holdfast.wire.parts import Message

RETAINS = {"type": "shared", "prefetch": 60_000, "retention_time": "1h"}
DEFINITION = {"stores": {"s": {"durables": {"a": RETAINS, "m": {"type": "map"}, "last": {"type": "last_value"}}}}}
MESSAGES = 8 * 1_024
MEMORY_BYTES = 64 << 10

COMMANDS: dict[str, Callable[[], Command]] = {
    "publish": lambda: Publish(0, "s", "", [Message(body=b"important", key="k9")]),
    "deliver": lambda: Deliver(0, "s", "a", "me", 5_000),
    "acknowledge": lambda: Acknowledge(0, "s", "a", "me", ack=[(1, 2_000)]),
    "purge": lambda: Purge(0, "s", "a"),
    "drop": lambda: Drop(0, "s", "a", 17),
    "rewind": lambda: Rewind(0, "s", "a", 0),
    "map": lambda: MapChange(0, "s", "m", [("k1", b"new", None), ("k2", None, None)]),
}


class FailingReader:
    """The index's connection, whose n-th read fails once as a disk does."""

    def __init__(self, real: Any, fails: int) -> None:
        self.real = real
        self._left = fails

    def execute(self, query: str, values: tuple[object, ...] = ()) -> Any:
        self._left -= 1
        if self._left == 0:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return self.real.execute(query, values)

    @property
    def has_failed(self) -> bool:
        return self._left <= 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores whose blocks, entries and messages are in the index and the log, and not in memory."""
    directory = tmp_path_factory.mktemp("unread") / "stores"

    async def fill() -> None:
        service = await StoreService.open(str(directory), memory_bytes=MEMORY_BYTES)
        await service.submit(define(json.dumps(DEFINITION).encode()))
        await service.submit(Attach(0, "s", "a", "me"))
        await service.submit(MapChange(0, "s", "m", [(f"k{n}", b"value", None) for n in range(50)]))
        for _ in range(MESSAGES // 1_024):
            await service.submit(Publish(0, "s", "", [Message(body=b"x", key=f"k{n % 50}") for n in range(1_024)]))
        delivered = await service.submit(Deliver(0, "s", "a", "me", MESSAGES // 2))
        assert isinstance(delivered, Delivered)
        await service.submit(Acknowledge(0, "s", "a", "me", ack=[(2_500, 3_500)]))
        await service.checkpoint()
        await service.close()
        # The start after which no start changes anything: what is held is marked.
        service = await StoreService.open(str(directory), memory_bytes=MEMORY_BYTES)
        await service.checkpoint()
        await service.close()

    run(fill)
    return directory


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_that_meets_a_failed_read_ends_the_service_or_changed_nothing(
    filled: Path, tmp_path: Path, name: str
) -> None:
    async def scenario(fails: int) -> bool:
        directory = tmp_path / str(fails)
        shutil.copytree(filled, directory)
        service = await StoreService.open(str(directory), memory_bytes=MEMORY_BYTES)
        before = service.state.snapshot()
        index = service._storage.index  # type: ignore[attr-defined]
        reader = index._reader = FailingReader(index._reader, fails)
        refused: HoldfastError | None = None
        try:
            await service.submit(COMMANDS[name]())
        except HoldfastError as error:
            refused = error
        met, index._reader = reader.has_failed, reader.real
        if met:
            assert isinstance(refused, ReadUnavailable)
            assert service.failure is not None or service.state.snapshot() == before
        await service.close()
        again = await StoreService.open(str(directory), memory_bytes=MEMORY_BYTES)
        if met:
            assert again.state.snapshot() == before
        await again.close()
        return met

    met: list[bool] = []

    async def every() -> None:
        met.extend([await scenario(fails) for fails in range(1, 6)])

    run(every)
    assert any(met)


def test_a_start_that_meets_a_failed_read_says_so_and_the_next_one_is_whole(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.stores.storage.index import Index

    directory = tmp_path / "stores"
    shutil.copytree(filled, directory)

    async def grow() -> None:
        service = await StoreService.open(str(directory), memory_bytes=MEMORY_BYTES)
        await service.submit(Acknowledge(0, "s", "a", "me", ack=[(1, 2_000)]))
        shutil.copytree(directory, tmp_path / "killed")  # with a record behind the index
        await service.close()

    async def start(*, fails: bool) -> None:
        with monkeypatch.context() as patched:
            if fails:
                real = Index.block

                def block(self: Index, store: str, number: int) -> tuple[bytes, int] | None:
                    self._reader = FailingReader(self._reader, 1)  # type: ignore[assignment]
                    return real(self, store, number)

                patched.setattr(Index, "block", block)
            service = await StoreService.open(str(tmp_path / "killed"), memory_bytes=MEMORY_BYTES)
        await service.close()

    run(grow)
    with pytest.raises(ReadUnavailable) as told:
        run(lambda: start(fails=True))
    assert "damaged" not in told.value.message
    run(lambda: start(fails=False))


def test_a_dying_message_that_is_not_found_is_kept_and_no_empty_letter_is_made_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = str(tmp_path / "stores")

    def definition(dead: dict[str, object]) -> bytes:
        dying = {"durables": {"a": {"type": "shared", "dead_letter_store": "dead"}}}
        return json.dumps({"stores": {"s": dying, "dead": {"durables": dead}}}).encode()

    async def reject() -> None:
        service = await StoreService.open(directory)
        await service.submit(define(definition({})))
        await service.submit(Attach(0, "s", "a", "me"))
        await service.submit(Publish(0, "s", "", [Message(body=b"precious")]))
        await service.submit(Deliver(0, "s", "a", "me", 1))
        await service.submit(Acknowledge(0, "s", "a", "me", ack=[], reject=[1]))  # and nobody wants it yet
        await service.submit(define(definition({"all": {"type": "shared"}}), service.state))
        await service.checkpoint()
        await service.close()

    async def look() -> None:
        service = await StoreService.open(directory)
        await until(lambda: "cannot be read" in caplog.text)
        durable = service.state.stores["s"].durables["a"]
        assert isinstance(durable, Consumption)
        assert (list(durable.dying), service.failure) == ([1], None)
        assert service.state.stores["dead"].counts.live == 0
        await service.close()

    run(reject)
    with sqlite3.connect(f"{directory}/index.sqlite") as database:
        assert database.execute("DELETE FROM extents").rowcount == 1
    database.close()
    run(look)


def test_messages_that_are_half_moved_end_the_service(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "stores"
    shutil.copytree(filled, directory)

    async def compact(*, fails: bool) -> None:
        service = await StoreService.open(str(directory), memory_bytes=MEMORY_BYTES)
        with monkeypatch.context() as patched:
            if fails:

                def change(*_: object) -> None:
                    raise ReadUnavailable("the disk does not give it")

                patched.setattr(Locations, "_change", change)
                with pytest.raises(HoldfastError):
                    await service.compaction.now()
                assert isinstance(service.failure, ReadUnavailable)
            else:
                await service.compaction.now()
            await service.close()
        if not fails:
            assert service.failure is None

    run(lambda: compact(fails=True))
    run(lambda: compact(fails=False))

    async def read() -> None:
        service = await StoreService.open(str(directory), memory_bytes=MEMORY_BYTES)
        assert len(service.messages("s", [(1, MESSAGES, 1)])) == MESSAGES
        await service.close()

    run(read)
