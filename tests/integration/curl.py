"""Requests as a reader of the documentation sends them: by curl, where there is one, else as curl would send them.

Owns: the command line, and cutting what it prints into status, headers and body. Does not own: what is asked for.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

CURL = shutil.which("curl")
SECONDS_MAX = 60
OPERATION_TIMED_OUT = 28
"""Of curl's exit codes."""


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
    """One request and its answer. Raises: TimeoutError where none came within ``seconds``."""
    if CURL is None:
        return _without_curl(port, method, path, body, headers, None, seconds)
    command = [*_command(port, method, path, headers), "-m", str(seconds)]
    if body is not None:
        command += ["--data-binary", "@-"]
    done = subprocess.run(command, input=body, capture_output=True, timeout=SECONDS_MAX + 30, check=False)
    answer = _parsed(done.stdout)
    if answer is None:
        raise TimeoutError(f"curl ended with {done.returncode}: {done.stdout!r}")
    return answer


def curl_until(
    port: int, path: str, headers: tuple[str, ...], enough: Callable[[bytes], bool], *, seconds: float = SECONDS_MAX
) -> Answered:
    """The answer of a stream, whose body is read until it is ``enough``, or until it ends. Raises: TimeoutError."""
    if CURL is None:
        return _without_curl(port, "GET", path, None, headers, enough, seconds)
    whole = bytearray()
    with subprocess.Popen(
        [*_command(port, "GET", path, headers), "-m", str(seconds)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        while part := process.stdout.read1(1 << 20):
            whole += part
            answer = _parsed(bytes(whole))
            if answer is not None and enough(answer.body):
                process.terminate()
                return answer
    answer = _parsed(bytes(whole))
    if answer is None or process.returncode == OPERATION_TIMED_OUT:
        raise TimeoutError(f"curl ended with {process.returncode}: {bytes(whole[-3000:])!r}")
    return answer


def _command(port: int, method: str, path: str, headers: tuple[str, ...]) -> list[str]:
    named = [word for header in headers for word in ("-H", header)]
    return [str(CURL), "-s", "-i", "-N", "-X", method, f"http://127.0.0.1:{port}{path}", *named]


def _parsed(printed: bytes) -> Answered | None:
    """What ``curl -i`` has printed, None without a whole head."""
    rest = printed
    while True:
        head, blank, rest = rest.partition(b"\r\n\r\n")
        if not blank:
            return None
        status = int(head.split(b" ", 2)[1])
        if status >= 200:  # before it, 100: go on and send the body
            break
    named = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
    return Answered(status, {name.lower(): value.strip() for name, _, value in named}, rest)


def _without_curl(
    port: int,
    method: str,
    path: str,
    body: bytes | None,
    headers: tuple[str, ...],
    enough: Callable[[bytes], bool] | None,
    seconds: float,
) -> Answered:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    ends = time.monotonic() + seconds
    try:
        connection.request(method, path, body, dict(header.split(": ", 1) for header in headers))
        answer = connection.getresponse()
        whole = bytearray()
        with contextlib.suppress(http.client.IncompleteRead):  # a stream that was cut, of which curl prints what came
            while not (enough and enough(bytes(whole))) and (part := answer.read1(1 << 20)):
                whole += part
                if time.monotonic() > ends:
                    raise TimeoutError(f"not enough within {seconds} s: {bytes(whole[-3000:])!r}")
        return Answered(answer.status, {name.lower(): value for name, value in answer.getheaders()}, bytes(whole))
    finally:
        connection.close()
