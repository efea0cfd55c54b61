"""TLS between the processes of a log: an answer counts only if its certificate verifies, and one that does not verify
deposes no leader."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.certificates import authority, signed_by
from tests.crash.server_process import NO_VIEW, ServerProcess
from tests.integration.http_harness import run, serving
from tests.rgw import free_port

from holdfast.cli.main import main
from holdfast.commit.leadership.evidence import Reply
from holdfast.commit.leadership.leader_question import ask_leader
from holdfast.commit.leadership.peer_tls import PeerTls
from holdfast.errors import Code, InvalidRequest
from holdfast.server.http.auth import Authenticator
from holdfast.server.reloading import Reloading
from holdfast.settings import load_configuration


@dataclass(frozen=True)
class Files:
    """Two authorities. ``named`` and ``other`` are two certificates of the first one."""

    right: Path
    wrong: Path
    named: Path
    other: Path
    with_ip: Path
    foreign: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")
    right, wrong = authority(folder, "right"), authority(folder, "wrong")
    return Files(
        right,
        wrong,
        signed_by(right, "named", "DNS:log.example", "DNS:localhost"),
        signed_by(right, "other", "DNS:two.example"),
        signed_by(right, "with-ip", "IP:127.0.0.1"),
        signed_by(wrong, "foreign", "DNS:log.example"),
    )


def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context


Row = tuple[str, str, dict[str, str], str, Reply, str]
ROWS: list[Row] = [
    # the leader's certificate, what the asker is configured with, the host that the leader advertises
    ("right authority", "named", {"ca_file": "right"}, "log.example", Reply.LEADS, ""),
    ("wrong authority", "named", {"ca_file": "wrong"}, "log.example", Reply.UNVERIFIED, "self-signed"),
    ("wrong authority and own chain", "named", {"ca_file": "wrong", "certificate": "other"}, "log.example",
        Reply.UNVERIFIED, "self-signed"),
    ("wrong name", "named", {"ca_file": "right"}, "two.example", Reply.UNVERIFIED, "two.example"),
    ("the name is not replaced by peer_name", "named", {"ca_file": "right", "name": "log.example"}, "two.example",
        Reply.UNVERIFIED, "two.example"),
    ("IP without peer_name", "named", {"ca_file": "right"}, "127.0.0.1", Reply.UNVERIFIED, "127.0.0.1"),
    ("IP with peer_name", "named", {"ca_file": "right", "name": "log.example"}, "127.0.0.1", Reply.LEADS, ""),
    ("IP with another peer_name", "named", {"ca_file": "right", "name": "two.example"}, "127.0.0.1",
        Reply.UNVERIFIED, "two.example"),
    ("IP in the certificate", "with_ip", {"ca_file": "right"}, "127.0.0.1", Reply.LEADS, ""),
    ("no host, so that of the address", "with_ip", {"ca_file": "right"}, "", Reply.LEADS, ""),
    ("the same certificate", "named", {"certificate": "named"}, "log.example", Reply.LEADS, ""),
    ("the chain of the own certificate", "named", {"certificate": "other"}, "log.example", Reply.LEADS, ""),
    ("the chain of another authority", "named", {"certificate": "foreign"}, "log.example", Reply.UNVERIFIED, ""),
    ("the system's authorities", "named", {}, "log.example", Reply.UNVERIFIED, ""),
]  # fmt: skip


@asynccontextmanager
async def leading_with(certificate: Path) -> AsyncIterator[tuple[str, str]]:
    """A leader's address with TLS, and its id."""
    async with serving() as here:
        here.server._tls = server_side(certificate)
        yield (await here.server.listen(["127.0.0.1:0"]))[-1], here.service.leader_id


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_a_leader_is_believed_if_its_certificate_verifies_for_what_it_advertises(row: Row, files: Files) -> None:
    _, certificate, configured, host, reply, problem = row
    peers = PeerTls(**{option: str(getattr(files, value, value)) for option, value in configured.items()})

    async def scenario() -> None:
        async with leading_with(getattr(files, certificate)) as (address, leader_id):
            answer = await ask_leader(f"https://{address}", 5_000.0, host, tls=peers)
            assert answer.reply is reply, answer
            assert answer.leader_id == (leader_id if reply is Reply.LEADS else "")
            assert problem in answer.problem and bool(answer.problem) is (reply is Reply.UNVERIFIED)

    run(scenario)


def test_an_address_without_a_scheme_speaks_tls_where_the_asker_does(files: Files) -> None:
    async def scenario() -> None:
        async with leading_with(files.named) as (address, _):
            secure, plain = PeerTls(str(files.named)), PeerTls(ca_file=str(files.right))
            assert (await ask_leader(address, 5_000.0, "localhost", tls=secure)).reply is Reply.LEADS
            assert (await ask_leader(address, 5_000.0, "localhost", tls=plain)).reply is Reply.SILENT
            assert (await ask_leader(f"http://{address}", 5_000.0, "localhost", tls=secure)).reply is Reply.SILENT

    run(scenario)


def test_what_is_no_tls_at_all_is_neither_a_refusal_nor_a_leader(files: Files) -> None:
    async def scenario() -> None:
        peers = PeerTls(str(files.named))

        async def asked(port: int) -> Reply:
            return (await ask_leader(f"localhost:{port}", 2_000.0, tls=peers)).reply

        async with serving() as plain:
            assert await asked(plain.port) is Reply.UNVERIFIED, "it leads, and cannot prove it"
        ends = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = int(ends.sockets[0].getsockname()[1])
        async with ends:
            assert await asked(port) is Reply.SILENT
        assert await asked(port) is Reply.REFUSES

    run(scenario)


def test_a_leader_finds_out_what_its_standbys_will_find(files: Files) -> None:
    """The same rows, without a socket."""
    for what, certificate, configured, host, reply, problem in ROWS:
        given = {option: str(getattr(files, value, value)) for option, value in configured.items()}
        peers = PeerTls(**given)
        found = peers.problem_of(server_side(getattr(files, certificate)), f"https://{host or '127.0.0.1'}:8443")
        assert (found is None) is (reply is Reply.LEADS), (what, found)
        assert problem in (found or ""), what
    assert PeerTls(str(files.foreign)).problem_of(server_side(files.named), "unix:/run/holdfast.sock") is None


def test_what_is_trusted_is_replaced_with_a_reload_and_kept_where_the_file_is_wrong(
    files: Files, tmp_path: Path
) -> None:
    trusted = tmp_path / "peers.crt"
    trusted.write_text(files.wrong.read_text())
    settings = load_configuration(flags={"server.peer_ca_file": str(trusted)}, environ={}).settings.server
    peers, own = PeerTls(ca_file=str(trusted)), server_side(files.named)
    reloading = Reloading(settings, Authenticator({}), lambda _: None, peers, "log.example:8443")
    address = "https://log.example:8443"
    assert peers.problem_of(own, address) is not None
    trusted.write_text(files.right.read_text())
    assert reloading.reload("test") and peers.problem_of(own, address) is None
    trusted.write_text("nonsense")
    assert not reloading.reload("test") and peers.problem_of(own, address) is None


def test_a_file_of_authorities_that_cannot_be_read_ends_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for missing in (tmp_path / "absent", tmp_path):
        with pytest.raises(InvalidRequest) as caught:
            PeerTls(ca_file=str(missing)).read()
        assert caught.value.code is Code.BAD_CONFIGURATION and str(missing) in caught.value.statement()
    command = ["serve", "--log", "memory:", "--listen", "127.0.0.1:0", "--set", f"server.peer_ca_file={missing}"]
    assert main(command) == 2 and str(missing) in capsys.readouterr().err


# -- processes ---------------------------------------------------------------------------------------------------------

INTERVAL_MS = 1_000
"""A loaded disk shows a sign in time."""


def served(folder: Path, port: int, certificate: Path, *flags: str, **settings: str) -> ServerProcess:
    environment = {
        "HOLDFAST_STORES__ENABLED": "false",
        "HOLDFAST_LEADER__SIGN_INTERVAL_MS": str(INTERVAL_MS),
        "HOLDFAST_SERVER__TLS_CERTIFICATE": str(certificate),
        "HOLDFAST_SERVER__TLS_KEY": str(certificate.with_suffix(".key")),
        **NO_VIEW,
        **settings,
    }
    return ServerProcess(folder, (folder / "log").as_uri(), port, flags=flags, environment=environment)


def until(holds: Callable[[], object], *servers: ServerProcess, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "\n".join(server.output.read_text() for server in servers)
        time.sleep(0.02)


def signs_shown(folder: Path) -> Callable[[], int]:
    """How many signs were seen since."""
    seen: dict[str, None] = {}

    def count() -> int:
        seen[min(os.listdir(folder / "log" / "meta" / "alive"), default="")] = None
        return len(seen)

    return count


@pytest.mark.parametrize("verifies", [True, False])
def test_a_standby_follows_a_leader_that_it_verifies_and_deposes_none_that_it_does_not(
    files: Files, tmp_path: Path, verifies: bool
) -> None:
    one, two = free_port(), free_port()
    trusted = {"HOLDFAST_SERVER__PEER_CA_FILE": str(files.right if verifies else files.wrong)}
    name = {"HOLDFAST_SERVER__PEER_NAME": "log.example"}
    leader = served(tmp_path, one, files.named, "--init", **trusted, **name)
    standby = None
    try:
        until(lambda: "ready listen=" in leader.tail(), leader)
        assert ("peers_cannot_verify" in leader.output.read_text()) is not verifies
        standby = served(tmp_path, two, files.named, "--standby", **trusted, **name)
        said = "standby leader_id=" if verifies else "event=leader_not_verified"
        until(lambda: said in standby.output.read_text(), leader, standby)
        shown = signs_shown(tmp_path)
        # Longer than a leader without a sign counts as alive, and than a refusal would take.
        until(lambda: shown() > 4, leader, standby)
        assert "event=leading" not in standby.output.read_text() and leader.running
        if verifies:
            assert f"clients=https://127.0.0.1:{one},https://127.0.0.1:{two}" in standby.output.read_text()
        else:
            assert "server.peer_ca_file" in standby.output.read_text(), "the hint names what to set"
            start = served(tmp_path, free_port(), files.named, **trusted, **name)
            assert start.wait() == 3 and "shows signs of life" in start.output.read_text()
        leader.kill()
        until(lambda: "event=leading" in standby.output.read_text(), standby)
    finally:
        for server in (leader, standby):
            if server is not None and server.running:
                server.kill()
