"""Tokens and certificates that change while a service runs: real processes, real sockets."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.crash.server_process import NO_VIEW, ServerProcess
from tests.integration.curl import curl
from tests.integration.test_client_tls import self_signed
from tests.rgw import free_port

from holdfast.errors import InvalidRequest
from holdfast.server.http.auth import Role
from holdfast.server.http.key_scope import EVERYTHING, KeyScope
from holdfast.server.reloading import read_token_file

OLD, NEW, READ = "old-token-of-sixteen", "new-token-of-sixteen", "reads-and-nothing-else"


def until(holds: Callable[[], bool], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


def replaced(path: Path, text: str) -> None:
    """As tools for secrets do it: whole, under another inode."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


def served(folder: Path, port: int, **settings: str) -> ServerProcess:
    return ServerProcess(
        folder, (folder / "log").as_uri(), port, flags=("--init",),
        environment={"HOLDFAST_STORES__ENABLED": "false", **NO_VIEW, **settings},
    )  # fmt: skip


def status(port: int, token: str, path: str = "/v1/version", method: str = "GET") -> tuple[int, str]:
    answer = curl(port, method, path, None, (f"Authorization: Bearer {token}",))
    return answer.status, answer.body.decode()


def test_tokens_are_replaced_on_a_signal_and_when_the_file_changes(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "tokens"
    later, over = ((datetime.now(UTC) + timedelta(days=days)).isoformat() for days in (1, -1))
    file.write_text(f"# of the test\nadmin:{OLD}\n\nread:{READ} until={later}\n")
    server = served(tmp_path, port, HOLDFAST_SERVER__TOKENS_FILE=str(file))
    try:
        server.wait_until_leading()
        assert status(port, OLD)[0] == 200
        assert status(port, NEW)[0] == 401
        assert status(port, READ)[0] == 200
        assert status(port, READ, "/v1/admin/step-down", "POST")[0] == 403

        replaced(file, f"admin:{OLD}\nadmin:{NEW}\nread:{READ} until={over}\n")
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: status(port, NEW)[0] == 200)
        until(lambda: status(port, READ)[0] == 401)
        assert "has expired" in status(port, READ)[1]

        replaced(file, f"admin:{NEW}\n")  # no signal: the file is looked at
        until(lambda: status(port, OLD)[0] == 401)

        for wrong in ("", "admin:short\n", f"boss:{NEW}\n", f"admin:{NEW}\nread:{NEW}\n", f"admin:{OLD} until=soon\n"):
            before = server.tail().count("reload_refused")
            replaced(file, wrong)
            os.kill(server.pid, signal.SIGHUP)
            until(lambda before=before: server.tail().count("reload_refused") > before)  # type: ignore[misc]
            assert status(port, NEW)[0] == 200, "what was in force stays"
        file.unlink()
        os.kill(server.pid, signal.SIGHUP)
        assert status(port, NEW)[0] == 200
        assert status(port, "")[0] == 401, "a file that is gone does not open the service"
        text = server.output.read_text()
        assert "event=audit act=reload" in text
        for secret in (OLD, NEW, READ, "short"):
            assert secret not in text.replace("too short", ""), "no secret is logged"
    finally:
        server.kill()


def serial_of(port: int) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        found = secure.getpeercert(binary_form=True)
        assert found is not None
        return found


def test_a_certificate_is_replaced_without_a_restart(tmp_path: Path) -> None:
    port = free_port()
    first, second = self_signed(tmp_path, "localhost"), self_signed(tmp_path, "rotated")
    certificate, key = tmp_path / "in-force.crt", tmp_path / "in-force.key"
    replaced(certificate, first.read_text())
    replaced(key, first.with_suffix(".key").read_text())
    server = served(
        tmp_path, port, HOLDFAST_SERVER__TLS_CERTIFICATE=str(certificate), HOLDFAST_SERVER__TLS_KEY=str(key)
    )
    try:
        until(lambda: "event=leading" in server.tail())
        before = serial_of(port)
        replaced(certificate, second.read_text())  # its key is not there yet
        until(lambda: "reload_refused" in server.tail())
        assert serial_of(port) == before, "never half changed"
        replaced(key, second.with_suffix(".key").read_text())
        until(lambda: serial_of(port) != before)
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "has no token"),
        ("# only a comment\n", "has no token"),
        ("admin:sixteen-or-more-characters later\n", "line=1"),
        ("\nadmin:sixteen-or-more-characters until=2027-01-01T00:00:00\n", "line=2"),
        ("admin:sixteen-or-more-characters until=2027-01-01T00:00:00Z more\n", "line=1"),
        ("admin:sixteen-or-more-characters prefix=orders/\n", "line=1"),
        ("write:sixteen-or-more-characters prefix=\n", "line=1"),
        ("sixteen-or-more-characters\n", "ROLE:TOKEN"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_line_and_without_the_token(
    tmp_path: Path, text: str, names: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        read_token_file(file)
    assert names in str(refused.value)
    assert "sixteen" not in str(refused.value)


def test_a_token_has_a_role_and_perhaps_an_end(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(
        "read:sixteen-or-more-characters until=2027-01-31T00:00:00+01:00\nadmin:another-long-enough-token\n"
    )
    found = read_token_file(file)
    assert [grant.role for grant in found.values()] == [Role.READ, Role.ADMIN]
    assert [grant.until for grant in found.values()] == [1_801_350_000.0, None]
    assert [grant.scope for grant in found.values()] == [EVERYTHING, EVERYTHING]
    file.write_text("write:sixteen-or-more-characters prefix=orders/ until=2027-01-31T00:00:00Z prefix=stock/\n")
    (scoped,) = read_token_file(file).values()
    assert scoped.scope == KeyScope((b"orders/", b"stock/"))
    assert scoped.until is not None
