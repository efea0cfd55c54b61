"""The view's process over a store that cannot be read again and again: it keeps what it has read, and goes on."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import cast

import msgspec
import pytest
from tests.integration.test_commit_service import Gate, law, lead, put

from holdfast.objects.port import StoreDenies
from holdfast.server.view import process
from holdfast.server.view.messages import Announcement, ViewReport, ViewStart
from holdfast.server.view.process import ViewProcess
from holdfast.view.sqlite import open_for_readers

OBJECTS = 100
PART = 0.2
"""The part of the reads that are interruptions, as if all attempts of each had failed."""


class Interrupting:
    """A reader of the store that fails some reads of objects for good."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._random = Random(1)
        self.whole: Counter[str] = Counter()
        self.interrupted = 0

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        if length is None:
            self.whole[key] += 1
            if self._random.random() < PART:
                self.interrupted += 1
                raise StoreDenies("not now", key=key)
        return await self._gate.read(key, start=start, length=length)

    async def close(self) -> None:
        """Nothing is open."""


class Reports:
    """The server's end of the socket."""

    def __init__(self) -> None:
        self.newest: ViewReport | None = None

    def write(self, line: bytes) -> None:
        self.newest = msgspec.json.decode(line, type=ViewReport)


def test_an_interrupted_view_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its builder used to end at the first failed read, with all that was not in the file: it never came further."""
    monkeypatch.setattr(process, "RETRY_SECONDS", 0.0)

    @law
    async def scenario(gate: Gate) -> None:
        service = await lead(gate)
        for number in range(OBJECTS):
            await put(service, b"k%03d" % number)
        header = service.durable_header()
        store, reports = Interrupting(gate), Reports()
        start = ViewStart(log_url=gate.url, log_id=service.log_id)
        keeper = ViewProcess(start, store, cast(asyncio.StreamWriter, reports), None)
        monkeypatch.setattr(keeper, "_load_snapshot", nothing)
        keeping = asyncio.ensure_future(keeper.keep(tmp_path / "view.sqlite"))
        keeper.announced(Announcement(header.slot, header.claim, flush=True))
        while reports.newest is None or not reports.newest.done:
            assert not keeping.done()
            await asyncio.sleep(0)
        keeping.cancel()
        assert reports.newest.version == header.last_version
        assert reports.newest.interruptions > OBJECTS * PART / 2
        with open_for_readers(tmp_path / "view.sqlite") as connection:
            assert connection.execute("SELECT count(*) FROM latest").fetchone() == (OBJECTS,)
        # Nothing that the builder took is read again; what was read ahead of an interruption is.
        assert store.whole.total() <= OBJECTS + store.interrupted * process.PREFETCH
        await service.close()

    scenario()


async def nothing(*_: object) -> None:
    """A log in memory has no snapshot."""
