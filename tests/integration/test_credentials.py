"""S3 credentials are looked for before a start: in the environment, then in the metadata service."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.matrix import matrix

from holdfast.errors import Code, InvalidRequest
from holdfast.objects.credentials import require_credentials

ROLE = "/latest/meta-data/iam/security-credentials/"
TOKEN = "/latest/api/token"


@contextlib.contextmanager
def metadata(**answers: Any) -> Iterator[tuple[dict[str, str], list[tuple[str, str]]]]:
    """A metadata service that answers ``put`` and ``get``; what it was asked, with the token."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            asked.append((f"{self.command} {self.path}", self.headers.get("X-aws-ec2-metadata-token", "")))
            status, body = answers[self.command.lower()]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = answer  # noqa: N815 - the names of the library

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {"AWS_METADATA_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}, asked
        finally:
            server.shutdown()


GIVEN = (200, b"token")


@pytest.mark.parametrize(
    ("put", "get", "says"),
    [
        ((403, b""), None, "gives no token (HTTP status 403)"),
        ((404, b""), None, "gives no token (HTTP status 404)"),
        (GIVEN, (404, b"not found"), "has no role (HTTP status 404"),
        (GIVEN, (403, b""), "has no role (HTTP status 403"),
        (GIVEN, (200, b""), "has no role (HTTP status 200"),
        (GIVEN, (200, b" \n"), "has no role (HTTP status 200"),
    ],
)
def test_a_metadata_service_without_a_role_is_named(
    put: tuple[int, bytes], get: tuple[int, bytes] | None, says: str
) -> None:
    with metadata(put=put, get=get) as (environment, _), pytest.raises(InvalidRequest) as caught:
        require_credentials("s3://bucket/log", environment)
    assert caught.value.code is Code.BAD_CONFIGURATION
    assert says in str(caught.value)


@pytest.mark.parametrize(("put", "get"), [(GIVEN, (200, b"role")), ((503, b""), None), (GIVEN, (500, b""))])
def test_a_role_and_a_failure_that_may_pass_let_the_start_go_on(
    put: tuple[int, bytes], get: tuple[int, bytes] | None
) -> None:
    with metadata(put=put, get=get) as (environment, asked):
        require_credentials("s3://bucket/log", environment)
    assert asked == [(f"PUT {TOKEN}", "")] + ([] if get is None else [(f"GET {ROLE}", "token")])


def test_a_refused_token_is_no_error_with_the_first_version_of_the_service() -> None:
    with metadata(put=(403, b""), get=(200, b"role")) as (environment, asked):
        require_credentials("s3://bucket/log", {**environment, "AWS_IMDSV1_FALLBACK": "true"})
    assert asked == [(f"PUT {TOKEN}", ""), (f"GET {ROLE}", "")]


def test_a_metadata_service_that_accepts_and_does_not_answer_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {"AWS_METADATA_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        with pytest.raises(InvalidRequest, match="no metadata service of a virtual machine answers"):
            require_credentials("s3://bucket/log", environment)


@pytest.mark.parametrize("endpoint", ["http://", "elsewhere", "http://127.0.0.1:port"])
def test_an_endpoint_that_is_not_a_url_is_named(endpoint: str) -> None:
    with pytest.raises(InvalidRequest, match="AWS_METADATA_ENDPOINT is not a URL"):
        require_credentials("s3://bucket/log", {"AWS_METADATA_ENDPOINT": endpoint})


@pytest.mark.parametrize(
    "environment",
    [
        {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
        {"AWS_SKIP_SIGNATURE": "true"},
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"},
        {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials"},
    ],
)
def test_credentials_from_elsewhere_ask_no_metadata_service(environment: dict[str, str]) -> None:
    with metadata() as (service, asked):
        require_credentials("s3://bucket/log", environment | service)
    assert asked == []


@pytest.mark.parametrize("command", matrix(["serve --init --listen 127.0.0.1:0 --log", "log ls", "log stat"]))
def test_commands_report_missing_credentials(command: str) -> None:
    with metadata(put=(404, b"")) as (environment, _):
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli.main", *command.split(), "s3://bucket/log"],
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": "src", **environment},
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert "no credentials for S3" in done.stderr
    assert "AWS_ACCESS_KEY_ID" in done.stderr
