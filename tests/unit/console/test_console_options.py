"""What a console refuses to be started with, and which names are its own."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import application, main
from holdfast.console.options import ConsoleOptions, parse_listen, read_tokens
from holdfast.errors import InvalidRequest
from holdfast.files.private_files import openness_of
from holdfast.server.children.console_child import url_for_console


@pytest.fixture
def one(tmp_path: Path) -> Path:
    file = tmp_path / "one"
    file.write_text("# the operators\nadmin:0123456789abcdef\n\n")
    return file


@pytest.fixture
def two(tmp_path: Path) -> Path:
    file = tmp_path / "two"
    file.write_text("0123456789abcdef\nread:fedcba9876543210 until=2027-01-31T00:00:00Z\n")
    return file


def options(host: str = "127.0.0.1", port: int = 8081, **given: object) -> ConsoleOptions:
    return ConsoleOptions(services=("http://127.0.0.1:8080",), listen_host=host, listen_port=port, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "console.example", "::"])
def test_an_address_that_others_reach_needs_tls_and_a_login(host: str, one: Path) -> None:
    with pytest.raises(InvalidRequest, match="needs TLS"):
        options(host, token_file=one, hosts=("console.example",))
    with pytest.raises(InvalidRequest, match="needs a login"):
        options(host, tls_certificate=one, tls_key=one, hosts=("console.example",))
    made = options(host, tls_certificate=one, tls_key=one, token_file=one, hosts=("console.example",))
    assert made.needs_login
    assert made.scheme == "https"


def test_a_console_on_every_address_has_to_be_given_its_name(one: Path) -> None:
    with pytest.raises(InvalidRequest, match="--host"):
        options("0.0.0.0", tls_certificate=one, tls_key=one, token_file=one)
    made = options("0.0.0.0", 443, tls_certificate=one, tls_key=one, token_file=one, hosts=("Console.example",))
    assert made.own_hosts == {"console.example", "console.example:443"}


def test_a_console_reads_only_without_a_token_file_and_where_it_is_told_to(one: Path) -> None:
    assert not options().acts
    assert not options(token_file=one, read_only=True).acts
    assert options(token_file=one).acts
    assert not options(token_file=one).needs_login


def test_what_does_not_fit_together_is_refused(one: Path, two: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="belong together"):
        options(tls_certificate=one)
    with pytest.raises(InvalidRequest, match="needs --token-file"):
        options(login=True)
    with pytest.raises(InvalidRequest, match="exactly one token"):
        options(token_file=two)
    assert options(token_file=two, login=True).tokens() == ("0123456789abcdef", "fedcba9876543210")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        options(token_file=tmp_path / "missing")


def test_a_token_file_without_a_token_is_refused_and_never_quoted(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# nothing\n")
    with pytest.raises(InvalidRequest, match="0 tokens"):
        read_tokens(file)
    file.write_text("tökén-with-a-secret\n")
    with pytest.raises(InvalidRequest) as refused:
        read_tokens(file)
    assert "secret" not in str(refused.value)
    assert "line 1" in str(refused.value)


@pytest.mark.parametrize("text", ["8081", "127.0.0.1", "127.0.0.1:", ":8081", "a:0", "a:65536", "a:http"])
def test_listen_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(InvalidRequest, match="HOST:PORT"):
        parse_listen(text)


def test_own_names_have_the_port() -> None:
    assert options().own_hosts == {"127.0.0.1:8081", "localhost:8081", "[::1]:8081"}
    assert options("::1").address == "http://[::1]:8081/"


def test_the_command_refuses_before_it_listens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "--listen", "0.0.0.0:8081"]) == 2
    assert "TLS" in capsys.readouterr().err
    shown = CliRunner().invoke(application(), ["console", "--help"])
    assert "--read-only" in shown.output


def test_a_service_with_tokens_starts_no_console_that_could_see_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["serve", "--log", "memory:", "--set", "server.tokens=admin:0123456789abcdef", "--console"]
    assert main(command) == 2
    assert "--console-token-file" in capsys.readouterr().err
    assert main(["serve", "--log", "memory:", "--console", "--console-listen", "0.0.0.0:8081"]) == 2
    assert "needs TLS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("bound", "advertised", "with_tls", "url"),
    [
        ("127.0.0.1:8080", "log.example:8080", False, "http://127.0.0.1:8080"),
        ("[::]:8080", "[::]:8080", False, "http://[::1]:8080"),
        ("0.0.0.0:8443", "log.example:8443", True, "https://log.example:8443"),
        ("unix:/run/holdfast", "", False, "unix:/run/holdfast"),
    ],
)
def test_the_console_of_a_service_asks_it_on_this_machine(
    bound: str, advertised: str, with_tls: bool, url: str
) -> None:
    assert url_for_console(bound, advertised, with_tls=with_tls) == url


def made_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate and its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", "/CN=console", "-keyout", str(key), "-out", str(certificate)),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_is_taken_is_said_as_the_service_says_it(capsys: pytest.CaptureFixture[str], host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["console", "--listen", f"{host}:{port}"]) == 2
        said = capsys.readouterr()
        assert f"cannot listen on {host}:{port}: Address already in use" in said.err
        assert not said.out
        assert main(["console", "--listen", f"{host}:{port}", "--until-input-ends"]) == 7, "its service tries again"


def test_an_address_of_another_machine_is_refused(
    capsys: pytest.CaptureFixture[str], one: Path, tmp_path: Path
) -> None:
    certificate, key = made_certificate(tmp_path)
    listen = ["--listen", "192.0.2.7:8081", "--tls-certificate", str(certificate), "--tls-key", str(key)]
    assert main(["console", *listen, "--token-file", str(one)]) == 2
    assert "cannot listen on 192.0.2.7:8081" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--service", "ftp://x"], "this is not an address"),
        (["--service", ""], "this is not an address"),
        (["--ca-file", "nope"], "--ca-file cannot be used"),
        (["--host", "a b"], "not 'a b'"),
        (["--host", "https://console.example"], "without a scheme"),
        (["--tls-certificate", "nope", "--tls-key", "nope"], "--tls-certificate cannot be read"),
    ],
)
def test_a_wrong_option_is_named_before_the_console_listens(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["console", "--listen", "127.0.0.1:1", *given]) == 2
    written = capsys.readouterr().err
    assert said in written
    assert "Traceback" not in written


def test_a_certificate_and_a_key_that_are_swapped_are_refused(tmp_path: Path) -> None:
    certificate, key = made_certificate(tmp_path)
    options(tls_certificate=certificate, tls_key=key).check_tls()
    with pytest.raises(InvalidRequest, match="its key without a password"):
        options(tls_certificate=key, tls_key=certificate).check_tls()


def test_a_token_file_that_others_can_read_is_named(one: Path) -> None:
    one.chmod(0o600)
    assert not openness_of([one])
    one.chmod(0o644)
    assert openness_of([one]) == [f"every user can read {one}: chmod o-r it"]
