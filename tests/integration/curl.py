"""Requests as a reader of the documentation sends them: by curl, where there is one, else as curl would send them.

Owns: the command line, and cutting what it prints into status, headers and body. Does not own: what is asked for.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CURL = shutil.which("curl")
SECONDS_MAX = 60


@dataclass(frozen=True)
class Answered:
    """What came back. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """Of an error, None of anything else."""
        if self.status < 400:
            return None
        return str(self.json["error"]["code"])


def curl(
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: tuple[str, ...] = (),
    *,
    seconds: float = SECONDS_MAX,
) -> Answered:
    """One request and its answer; of a stream, what came within ``seconds``."""
    if CURL is None:
        return _asked_without_curl(port, method, path, body, headers, seconds)
    command = [CURL, "-s", "-i", "-N", "-m", str(seconds), "-X", method, f"http://127.0.0.1:{port}{path}"]
    for header in headers:
        command += ["-H", header]
    if body is not None:
        command += ["--data-binary", "@-"]
    done = subprocess.run(command, input=body, capture_output=True, timeout=SECONDS_MAX + 30, check=False)
    rest = done.stdout
    while True:
        head, _, rest = rest.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 "), f"curl ended with {done.returncode}: {done.stdout!r}"
        status = int(head.split(b" ", 2)[1])
        if status >= 200:  # before it, 100: go on and send the body
            break
    lines = head.decode("latin-1").split("\r\n")[1:]
    named = (line.partition(":") for line in lines)
    return Answered(status, {name.lower(): value.strip() for name, _, value in named}, rest)


def _asked_without_curl(
    port: int, method: str, path: str, body: bytes | None, headers: tuple[str, ...], seconds: float
) -> Answered:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request(method, path, body, dict(header.split(": ", 1) for header in headers))
        answer = connection.getresponse()
        whole = bytearray()
        try:
            while part := answer.read1():
                whole += part
        except TimeoutError:
            pass
        return Answered(answer.status, {name.lower(): value for name, value in answer.getheaders()}, bytes(whole))
    finally:
        connection.close()
