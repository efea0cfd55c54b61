"""What the server makes of a view process that misbehaves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import msgspec
import pytest
from tests.integration.test_commit_service import Gate, lead

from holdfast.commit.service import CommitService
from holdfast.server.children.background_process import LINE_BYTES_MAX, BackgroundProcess
from holdfast.server.view.child import CLOSE_SECONDS, ReadCounts, ViewChild
from holdfast.server.view.messages import ViewReport, ViewStart


class Process:
    """A process that has said this, and ends at once unless it ``stays``."""

    pid = 1

    def __init__(self, said: bytes, *, stays: bool, fails: bool = False) -> None:
        self.output = asyncio.StreamReader(LINE_BYTES_MAX)
        self.output.feed_data(said)
        self._fails = fails
        if not stays:
            self.output.feed_eof()

    def send(self, line: bytes) -> None:
        pass

    def end_input(self) -> None:
        pass

    async def exit_code(self) -> int:
        if self._fails:
            raise PermissionError("not this process's child")
        return 0


class Scripted(ViewChild):
    """Its first process says what it is told to; the second reports, and stays."""

    cannot_be_reaped = False

    def __init__(self, service: CommitService, said: bytes, report: ViewReport) -> None:
        self._lines = [said, msgspec.json.encode(report) + b"\n"]
        super().__init__(ViewStart(log_url="memory:"), service, ReadCounts(), str)

    async def _begin(self, start: ViewStart) -> BackgroundProcess:
        said = self._lines.pop(0)
        return cast(BackgroundProcess, Process(said, stays=not self._lines, fails=self.cannot_be_reaped))


@pytest.mark.parametrize(
    "said",
    [b"nonsense\n", b"\xff\n", b'{"path":"p","version":"many","done":true}\n', b"x" * (LINE_BYTES_MAX + 1) + b"\n"],
    ids=["no json", "no text", "no report", "too long"],
)
def test_a_report_that_cannot_be_read_costs_the_process_and_not_the_view(said: bytes, tmp_path: Path) -> None:
    async def scenario() -> None:
        service = await lead(Gate())
        child = Scripted(service, said, ViewReport(str(tmp_path / "view.sqlite"), service.local_version(), True))
        try:
            shown = asyncio.ensure_future(child.at(service.local_version()))
            await asyncio.wait({shown, child._keeping}, return_when=asyncio.FIRST_COMPLETED)
            assert not child._keeping.done()
            await shown
        finally:
            shown.cancel()
            await child.close()
            await service.close()

    asyncio.run(scenario())


class Unreapable(Scripted):
    """Its process cannot be waited for."""

    cannot_be_reaped = True


def test_a_view_process_that_cannot_be_reaped_does_not_keep_the_view_from_closing(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = await lead(Gate())
        report = ViewReport(str(tmp_path / "view.sqlite"), service.local_version(), True)
        child = Unreapable(service, msgspec.json.encode(report) + b"\n", report)
        await child.at(service.local_version())
        async with asyncio.timeout(CLOSE_SECONDS):
            await child.close()
        assert child._keeping.cancelled(), "its cancellation was not replaced by the error"
        await service.close()

    asyncio.run(scenario())
