"""A service in a process of its own, for sinks: Spark's tasks reach it as they reach any other."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.fork_server import ForkedCommand
from tests.spark.log_builder import read_plainly

from holdfast.commit.format.batch import LoggedTransaction, slot_of

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS_MAX = 30
NO_VIEW = "view.enabled=false"
"""For a service whose keys nothing reads: a view is a process of its own."""


class ServiceProcess:
    """``holdfast serve`` on a log in ``root``, or at ``log_url``; ``settings`` are ``KEY=VALUE``."""

    def __init__(self, root: Path, *settings: str, log_url: str | None = None, listen: str = "127.0.0.1:0") -> None:
        self.root = root
        self.log_url = log_url or root.as_uri()
        sets = [text for setting in settings for text in ("--set", setting)]
        command = ["serve", "--log", self.log_url, "--listen", listen, "--init", *sets]
        reading, writing = os.pipe()
        self._output = open(reading, encoding="utf-8")  # noqa: SIM115 - as long as the service
        with open(writing, "wb") as output:
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
            self.process = ForkedCommand(command, stdout=output, cwd=root, env=environment)
        line = self._output.readline()
        found = re.match(r"ready listen=(\S+) ", line)
        assert found, f"the service did not start: {line!r}"
        self.address = found[1]
        self.url = f"http://{self.address}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self._wait()

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self._wait()

    def _wait(self) -> None:
        self.process.wait(STOP_SECONDS_MAX)
        self._output.close()

    def transactions(self) -> list[LoggedTransaction]:
        """Everything committed so far, read from the directory without the product's reader."""
        objects = {slot_of(f"batches/{path.name}"): path.read_bytes() for path in (self.root / "batches").iterdir()}
        live = read_plainly({slot: data for slot, data in objects.items() if slot is not None})
        return [txn for batch in live for txn in batch.transactions]
