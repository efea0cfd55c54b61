"""The options of ``holdfast console``, checked together with a reason for every refusal."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.client.protocol.endpoint import TrustedHosts, parse_endpoint
from holdfast.errors import Code, InvalidRequest
from holdfast.files.private_files import others_can_write

TOKENS_MAX: Final = 1_000
FILE_BYTES_MAX: Final = 1 << 20
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|\[?[0-9A-Fa-f:.]{2,45}\]?")
LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """What a console is started with. ``tables``: Delta tables of pipelines. ``ca_file``: who signs the service's
    certificate, by default the system's authorities. ``trusted_hosts``: addresses besides ``services`` that may get the
    token, as ``ClientOptions`` has them."""

    services: tuple[str, ...]
    listen_host: str
    listen_port: int
    hosts: tuple[str, ...] = ()
    token_file: Path | None = None
    read_only: bool = False
    login: bool = False
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    ca_file: Path | None = None
    trusted_hosts: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for service in self.services:
            parse_endpoint(service)
        TrustedHosts(self.trusted_hosts)
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise _bad(f"--host is a name or an address, not {host!r}", hint="give it without a scheme and a port")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise _bad("--tls-certificate and --tls-key belong together")
        if not self.is_loopback:
            if self.tls_certificate is None:
                raise _bad(
                    "a console that other machines can reach needs TLS, or tokens cross the network readably",
                    hint="give --tls-certificate and --tls-key, or listen on 127.0.0.1 and use an ssh tunnel",
                )
            if self.token_file is None:
                raise _bad(
                    "a console that other machines can reach needs a login",
                    hint="give --token-file with the tokens that may log in",
                )
            if self._is_any and not self.hosts:
                raise _bad(
                    "a console that listens on every address needs --host NAME, the name in its users' address bar"
                )
        if self.login and self.token_file is None:
            raise _bad("--login needs --token-file, the tokens that may log in")
        if self.token_file is not None and not self.needs_login and len(read_tokens(self.token_file)) != 1:
            raise _bad(
                "without a login the token file has exactly one token, which the console uses", hint="or give --login"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the console."""
        return self.listen_host == "localhost" or (self._ip is not None and self._ip.is_loopback)

    @property
    def _is_any(self) -> bool:
        return self._ip is not None and self._ip.is_unspecified

    @property
    def _ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        with suppress(ValueError):
            return ipaddress.ip_address(self.listen_host.strip("[]"))
        return None

    @property
    def needs_login(self) -> bool:
        """Whether each user logs in with a token, which then is the token of all that they do."""
        return self.login or not self.is_loopback

    @property
    def acts(self) -> bool:
        """Whether pages have actions."""
        return self.token_file is not None and not self.read_only

    @property
    def scheme(self) -> str:
        """Of the console's own address."""
        return "http" if self.tls_certificate is None else "https"

    @property
    def own_hosts(self) -> frozenset[str]:
        """The values of ``Host`` that name this console: with its port, and without where that is the scheme's."""
        names = {name.lower() for name in self.hosts}
        if self.is_loopback:
            names |= set(LOOPBACK_NAMES)
        if not self._is_any:
            names.add(f"[{self.listen_host}]" if ":" in self.listen_host.strip("[]") else self.listen_host.lower())
        with_port = {f"{name}:{self.listen_port}" for name in names}
        is_usual = self.listen_port == (80 if self.scheme == "http" else 443)
        return frozenset(with_port | names if is_usual else with_port)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        host = self.hosts[0] if self.hosts else self.listen_host
        return (
            f"{self.scheme}://{f'[{host}]' if ':' in host.strip('[]') and host[0] != '[' else host}:{self.listen_port}/"
        )

    def tokens(self) -> tuple[str, ...]:
        """The tokens of the file as it is now, so that a replaced file counts for the next login."""
        return () if self.token_file is None else read_tokens(self.token_file)

    def service_tls(self) -> ssl.SSLContext | None:
        """How the service's certificate is checked. Raises: InvalidRequest."""
        if self.ca_file is None:
            return None
        try:
            return ssl.create_default_context(cafile=str(self.ca_file))
        except (OSError, ValueError) as error:
            raise _bad(f"the file of --ca-file cannot be used: {error}", file=str(self.ca_file)) from error

    def check_tls(self) -> None:
        """Read the files of TLS, so that a wrong one is refused before the console listens. Raises: InvalidRequest."""
        self.service_tls()
        if self.tls_certificate is None or self.tls_key is None:
            return
        for option, file in (("--tls-certificate", self.tls_certificate), ("--tls-key", self.tls_key)):
            if not file.is_file():
                raise _bad(f"the file of {option} cannot be read", file=str(file))
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.tls_certificate, self.tls_key, lambda: "")  # else OpenSSL asks the terminal
        except (OSError, ValueError) as error:
            raise _bad(
                f"the certificate and its key cannot be used: {error}",
                hint="--tls-certificate is the certificate, --tls-key its key without a password, each a PEM file",
                certificate=str(self.tls_certificate),
                key=str(self.tls_key),
            ) from error


def parse_listen(text: str) -> tuple[str, int]:
    """HOST:PORT. Raises: InvalidRequest.

    >>> parse_listen("127.0.0.1:8081"), parse_listen("[::1]:8081")
    (('127.0.0.1', 8081), ('::1', 8081))
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise _bad(f"--listen is HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


def read_tokens(path: Path) -> tuple[str, ...]:
    """The tokens of a file, one a line; ``ROLE:TOKEN`` as in the service's file is read, too. Raises: InvalidRequest.

    Empty lines and those that begin with ``#`` are nothing. An error names the line, never the token.
    """
    try:
        if others_can_write(path):
            raise _bad("every user of this machine can write the token file: chmod o-w it", file=str(path))
        if path.stat().st_size > FILE_BYTES_MAX:
            raise _bad(f"the token file has more than {FILE_BYTES_MAX} bytes")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(f"the token file cannot be read: {error}") from error
    tokens = tuple(_tokens_of(lines))
    if not tokens or len(tokens) > TOKENS_MAX:
        raise _bad(f"the token file has {len(tokens)} tokens; it needs 1 to {TOKENS_MAX}")
    return tokens


def _tokens_of(lines: Sequence[str]) -> list[str]:
    tokens: list[str] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        role, colon, rest = words[0].partition(":")
        token = rest if colon and role in ("read", "write", "job", "admin") else words[0]
        if not token or not (token.isascii() and token.isprintable()):
            raise _bad(f"line {number} of the token file has no printable token")
        tokens.append(token)
    return tokens


def _bad(problem: str, hint: str = "", **facts: str) -> InvalidRequest:
    return InvalidRequest(problem, code=Code.BAD_CONFIGURATION, hint=hint, facts=facts)
