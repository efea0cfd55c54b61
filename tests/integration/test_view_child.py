"""What the server makes of a view process that misbehaves."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.integration.test_commit_service import Gate, lead

from holdfast.commit.service import CommitService
from holdfast.server.view.child import CLOSE_SECONDS, ReadCounts, ViewChild
from holdfast.server.view.messages import Report, ViewStart


class Scripted(ViewChild):
    """Its first process says what it is told to; the second reports, and stays."""

    def __init__(self, service: CommitService, said: bytes, report: Report) -> None:
        self._lines = [said, msgspec.json.encode(report) + b"\n"]
        self._kept: socket.socket | None = None
        super().__init__(ViewStart(log_url="memory:"), service, ReadCounts(), str)

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        theirs.sendall(self._lines.pop(0))
        if self._lines:
            theirs.close()
        else:
            self._kept = theirs
        return subprocess.Popen(["true"])

    async def close(self) -> None:
        await super().close()
        if self._kept is not None:
            self._kept.close()


@pytest.mark.parametrize(
    "said",
    [b"nonsense\n", b"\xff\n", b'{"path":"p","version":"many","done":true}\n', b"x" * (1 << 17) + b"\n"],
    ids=["no json", "no text", "no report", "too long"],
)
def test_a_report_that_cannot_be_read_costs_the_process_and_not_the_view(said: bytes, tmp_path: Path) -> None:
    async def scenario() -> None:
        service = await lead(Gate())
        child = Scripted(service, said, Report(str(tmp_path / "view.sqlite"), service.local_version(), True))
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

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        raise PermissionError("not this process's child")


def test_a_view_process_that_cannot_be_reaped_does_not_keep_the_view_from_closing(tmp_path: Path) -> None:
    async def scenario() -> None:
        service = await lead(Gate())
        report = Report(str(tmp_path / "view.sqlite"), service.local_version(), True)
        child = Unreapable(service, msgspec.json.encode(report) + b"\n", report)
        await child.at(service.local_version())
        async with asyncio.timeout(CLOSE_SECONDS):
            await child.close()
        assert child._keeping.cancelled(), "its cancellation was not replaced by the error"
        await service.close()

    asyncio.run(scenario())
