"""A client of ``holdfast spark ingest`` under test: it sends requests by stores, and judges the verdicts.

Owns: the processes of the command and of the service, the requests, and what each verdict must be. Of the requests one
in twenty reads a key that the request before it writes. Request n reads and writes two keys.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.server_process import ServerProcess
from tests.rgw import free_port

from holdfast import StoreClient
from holdfast.client.stores import PublisherOptions, SubscriberOptions
from holdfast.spark.runtime.session import find_java

ONE_IN = 20
SECONDS_MAX = 300.0


class Service:
    """``holdfast serve`` with the stores of requests and verdicts, on one port for its whole life."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: ServerProcess | None = None

    def start(self) -> None:
        self._process = ServerProcess(
            self.folder, (self.folder / "served").as_uri(), self.port, flags=["--init", "--take-over"],
            environment={"HOLDFAST_VIEW__ENABLED": "false"},
        )  # fmt: skip
        self._process.wait_until_leading()

    def kill(self) -> None:
        assert self._process is not None, "it was started"
        self._process.kill()


class IngestCommand:
    """The command in a process group of its own, as its users start it."""

    def __init__(self, folder: Path, source: str, log: str, *more: str) -> None:
        self.output = folder / "ingest.log"
        self._words = [
            *("spark", "ingest", "--from", source, "--log", log, "--init", "--name", "live"),
            *("--checkpoint", str(folder / "checkpoint"), *more),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli.main", *self._words],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, "PYTHONPATH": paths, "JAVA_HOME": str(find_java())},
            )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """``kill -9`` of the driver, its Java and its Python workers."""
        assert self._process is not None, "it was started"
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None, "it was started"
        self._process.terminate()
        return self._process.wait(120)

    def tail(self) -> str:
        return self.output.read_text(errors="replace")[-2500:]


def name_of(number: int) -> str:
    return f"request-{number:016}"


def depends(number: int) -> bool:
    """Whether this request reads a key that the one before it writes."""
    return number % ONE_IN == ONE_IN - 1


def key_of(number: int, which: int) -> bytes:
    return b"key/%09d/%d" % (number, which)


def body_of(number: int, read_version: int) -> bytes:
    """The request ``number``, read at this version."""

    def text(data: bytes) -> str:
        return b64encode(data).decode()

    reads = [key_of(number - 1 if depends(number) else number, 0), key_of(number, 1)]
    return json.dumps(
        {
            "request_id": name_of(number),
            "read_version": read_version,
            "preconditions": [{"type": "point_read", "key": text(key)} for key in reads],
            "operations": [
                {"type": "write", "key": text(key_of(number, which)), "value": text(b"value of %d" % number)}
                for which in (0, 1)
            ],
        }
    ).encode()


@dataclass
class LiveClient:
    """Sends requests in order, each read at the newest version that a verdict has named, and keeps every verdict."""

    url: str
    sent: int = 0
    read_versions: dict[int, int] = field(default_factory=dict)
    verdicts: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    newest: int = 0

    def __post_init__(self) -> None:
        options = SubscriberOptions(prefetch=4_096)
        self._seen: set[int] = set()
        self._stores = StoreClient(self.url)
        self._publisher = self._stores.publisher("requests", options=PublisherOptions(window_messages=8_192))
        self._subscriber = self._stores.subscriber(
            "verdicts", "of-the-test", template="shared", subscriber="test", options=options
        )
        self._subscriber.__enter__()

    def close(self) -> None:
        self._publisher.close()
        self._subscriber.close()
        self._stores.close()

    def send(self, count: int) -> None:
        """The next requests; returns when the store has them."""
        for number in range(self.sent, self.sent + count):
            self.read_versions[number] = self.newest
            self._publisher.send(body_of(number, self.newest), fields={"number": number, "request_id": name_of(number)})
        self._publisher.flush()
        self.sent += count

    def receive(self, seconds: float) -> bool:
        """Take the verdicts that come, until each request has one or the time is over. Whether each has one."""
        until = time.monotonic() + seconds
        while len(self.verdicts) < self.sent and time.monotonic() < until:
            self._take(0.2)
        return len(self.verdicts) == self.sent

    def drain(self, seconds: float) -> None:
        """Take what comes in this number of seconds: a second verdict would."""
        while self._take(seconds):
            pass

    def _take(self, seconds: float) -> bool:
        message = self._subscriber.receive(timeout=seconds)
        if message is None:
            return False
        if message.seq in self._seen:
            return True  # the same message once more: its acknowledgement was lost with the service
        self._seen.add(message.seq)
        verdict = json.loads(message.body)
        self.verdicts.setdefault(int(message.fields["number"]), []).append(verdict)
        self.newest = max(self.newest, verdict.get("version", 0))
        return True

    def begin(self, seconds: float = SECONDS_MAX) -> None:
        """The first request has no version to read at: it is refused, and its verdict names one."""
        self.send(1)
        assert self.receive(seconds), "the first request has a verdict"


def judge(client: LiveClient, committed: dict[str, int], claims: list[int]) -> dict[str, int]:
    """Assert that each request has one verdict, the one of a service that decides in this order; counts by outcome.

    ``committed``: version by request id, as the log has them; ``claims``: the versions of its claims.
    """
    counts: dict[str, int] = {}
    versions: dict[int, int] = {}
    for number in range(client.sent):
        (verdict,) = client.verdicts[number]
        read_version = client.read_versions[number]
        in_log = committed.get(name_of(number))
        outcome = verdict["status"] if verdict.get("status") == "committed" else verdict["reason"]
        counts[outcome] = counts.get(outcome, 0) + 1
        before = versions.get(number - 1, 0) if depends(number) else 0
        if outcome == "committed":
            versions[number] = verdict["version"]
            assert in_log == verdict["version"], (number, verdict, in_log)
            assert before <= read_version, (number, "was to conflict", verdict, before)
            continue
        assert in_log is None, (number, verdict, in_log)
        if outcome == "conflict":
            assert verdict["conflicts"] == [{"precondition": 0, "version": before}], (number, verdict, before)
            assert before > read_version, (number, verdict, before)
        else:
            assert outcome == "too_old", verdict
            assert any(read_version < claim for claim in claims), (number, verdict, claims)
    return counts
