"""The running server against its own description: no 500, every error coded, every answer as described.

Bounded by time: a minute, ten under ``HOLDFAST_PROVE=1``.
"""

from __future__ import annotations

import errno
import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from tests.crash.server_process import ServerProcess
from tests.integration.fuzz_checks import check_error_body
from tests.rgw import free_port

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
FUZZ_SECONDS = 600 if PROVE else 2 if os.environ.get("HOLDFAST_SMALL") == "1" else 45
EXAMPLES = 1000 if PROVE else 60
# Not the fuzzer's own "no 5xx": 503 and 504 are answers that the API describes; errors_are_coded forbids the others.
CHECKS = (
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "errors_are_coded",
)
# A stream does not end, stepping down ends the server and suspending its stores, and a job starts a process: they are
# tested by themselves.
EXCLUDED = (
    "/v1/subscribe", "/v1/admin/step-down", "/v1/admin/snapshot", "/v1/admin/verify", "/v1/cluster/suspend",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A leading server on a directory of its own."""
    directory = tmp_path_factory.mktemp("fuzz")
    process = ServerProcess(directory, f"file://{directory}/log", free_port(), flags=["--init"])
    try:
        process.wait_until_leading()
        durables = {"work": {"type": "shared"}, "prices": {"type": "map"}}
        store = {"durables": durables, "templates": {"jobs": {"type": "shared"}}}
        while True:  # the log is served a moment before the stores are open
            made = requests.put(f"http://127.0.0.1:{process.port}/v1/stores/orders", json=store, timeout=20)
            if made.status_code != 503:
                break
        assert made.status_code == 200, made.text
        yield process
    finally:
        process.kill()


@pytest.mark.timeout(FUZZ_SECONDS * 2 + 120)
def test_every_answer_to_generated_requests_is_described_and_every_error_coded(
    server: ServerProcess, tmp_path: Path
) -> None:
    paths = os.pathsep.join([str(Path.cwd()), *(path for path in sys.path if path)])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json"),
            *("--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing"),
            *("--max-time", str(FUZZ_SECONDS), "--request-timeout", "10", "--continue-on-failure"),
            *("--max-examples", str(EXAMPLES), "--suppress-health-check", "all"),
            *(word for path in EXCLUDED for word in ("--exclude-path", path)),
        ],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=paths, SCHEMATHESIS_HOOKS="tests.integration.fuzz_checks"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=FUZZ_SECONDS * 2 + 90,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert server.leads()


# The strategy of schemathesis draws with the module `random` now and then, which Hypothesis reports.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
def test_a_stream_is_refused_with_a_code_or_begins(server: ServerProcess) -> None:
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")
    began = 0

    @given(case=schema["/v1/subscribe"]["GET"].as_strategy())
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def subscribe(case: schemathesis.Case) -> None:
        nonlocal began
        asked = case.as_transport_kwargs(base_url=f"http://127.0.0.1:{server.port}")
        with requests.request(**asked, stream=True, timeout=10) as answer:
            if answer.status_code == http.client.OK:
                assert answer.headers["content-type"].startswith("text/event-stream")
                began += 1
            else:
                check_error_body(answer.status_code, "GET", answer.headers.get("content-type", ""), answer.content)

    subscribe()
    assert began, "not one generated stream began: the fuzzer saw errors only"
    assert server.leads()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\xff\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Many: y\r\n" * 20_000 + b"\r\n",
    ],
    ids=["garbage", "no target", "odd version", "length below 0", "two lengths", "bad chunk", "huge", "long", "many"],
)
def test_broken_http_is_refused_or_cut_and_harms_nobody(server: ServerProcess, raw: bytes) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        answer = b""
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(65536):
                answer += more
        except OSError as error:  # the service may cut such a connection, even before its last byte was sent
            if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
                raise
    assert not answer or answer.split(b" ", 2)[1][:1] == b"4", answer[:200]
    assert server.leads()
