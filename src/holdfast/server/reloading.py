"""Tokens and certificates that are replaced while the service runs: on SIGHUP, and when a file changes.

Everything is read and checked before anything is replaced. Where something is wrong, for example a certificate whose
key has not been written yet, the service keeps what it has, logs ``reload_refused``, and looks again after the next
change. New connections get the new certificate; requests get the new tokens at once.

``server.tokens_file`` has one bearer token a line, with its role and perhaps the moment when it ends:

| line | meaning |
|---|---|
| ``ROLE:TOKEN`` | the token has the role ``read``, ``write``, ``job`` or ``admin`` |
| ``ROLE:TOKEN until=2027-01-31T00:00:00Z`` | until then; the time is ISO 8601 with an offset or ``Z`` |
| ``read:TOKEN prefix=orders/ prefix=stock/`` | only for keys that begin with one of these; not for ``admin`` |
| empty, or begins with ``#`` | nothing |

Errors name the line, never the token.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from holdfast.commit.leadership.peer_tls import UNVERIFIED_FIX, PeerTls
from holdfast.errors import Code, InvalidRequest
from holdfast.files.private_files import openness_of, others_can_write
from holdfast.server.http.auth import Authenticator, Grant, Role
from holdfast.server.http.key_scope import EVERYTHING, PREFIX_BYTES_MAX, KeyScope
from holdfast.settings import ServerSettings

TOKEN_LENGTH_MIN: Final = 16
BYTES_MAX: Final = 1 << 20
_ALLOWED: Final = "until=2027-01-31T00:00:00Z and, unless it is for admin, prefix=KEYS/"
_ROLES: Final = {role.name.lower(): role for role in (Role.READ, Role.WRITE, Role.JOB, Role.ADMIN)}


def read_token_file(path: Path) -> dict[str, Grant]:
    """The tokens of a file. Raises: InvalidRequest (``bad_configuration``), also for a file without a token, and for
    one that every user of the machine can write.
    """
    try:
        if others_can_write(path):
            raise _bad(path, 0, "every user of this machine can write it: chmod o-w it")
        if path.stat().st_size > BYTES_MAX:
            raise _bad(path, 0, f"the file has more than {BYTES_MAX} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(path, 0, f"it cannot be read: {error}") from error
    tokens: dict[str, Grant] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        role, _, token = words[0].partition(":")
        if role not in _ROLES or len(token) < TOKEN_LENGTH_MIN or not (token.isascii() and token.isprintable()):
            raise _bad(path, number, f"write ROLE:TOKEN, with at least {TOKEN_LENGTH_MIN} printable characters")
        if token in tokens:
            raise _bad(path, number, "the token is there twice")
        tokens[token] = _grant(path, number, _ROLES[role], words[1:])
    if not tokens:
        # An empty file must not open the service to everyone.
        raise _bad(path, 0, "the file has no token")
    return tokens


def _grant(path: Path, number: int, role: Role, words: list[str]) -> Grant:
    until: float | None = None
    prefixes: list[bytes] = []
    for word in words:
        name, _, value = word.partition("=")
        if name == "until" and until is None and (moment := _moment(value)) is not None:
            until = moment
        elif name == "prefix" and value and role is not Role.ADMIN:
            prefixes.append(value.encode())
            if len(prefixes[-1]) > PREFIX_BYTES_MAX:
                raise _bad(path, number, f"a prefix has at most {PREFIX_BYTES_MAX} bytes: request ids begin with it")
        else:
            raise _bad(path, number, f"after the token only {_ALLOWED} is allowed")
    return Grant(role, until, KeyScope(tuple(prefixes)) if prefixes else EVERYTHING)


def _moment(value: str) -> float | None:
    """Unix time in seconds; None for a text that is not a moment with an offset."""
    with suppress(ValueError):
        moment = datetime.fromisoformat(value)
        return None if moment.tzinfo is None else moment.timestamp()
    return None


def _bad(path: Path, number: int, problem: str) -> InvalidRequest:
    facts = {"file": str(path)} | ({"line": number} if number else {})
    return InvalidRequest(f"server.tokens_file cannot be used: {problem}", code=Code.BAD_CONFIGURATION, facts=facts)


log = structlog.get_logger("holdfast.server")

LOOK_SECONDS: Final = 2.0


def tokens_of(settings: ServerSettings) -> dict[str, Grant]:
    """The tokens of the configuration and of its file. Raises: InvalidRequest (``bad_configuration``)."""
    tokens = {token.token: Grant(Role[token.role.upper()]) for token in settings.tokens}
    if settings.tokens_file is not None:
        from_file = read_token_file(Path(settings.tokens_file))
        if tokens.keys() & from_file.keys():
            raise InvalidRequest(
                "a token is both in server.tokens and in server.tokens_file", code=Code.BAD_CONFIGURATION
            )
        tokens |= from_file
    return tokens


def tls_of(settings: ServerSettings) -> ssl.SSLContext | None:
    """A new context with the certificate, None without one. Raises: InvalidRequest (``bad_configuration``)."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"the TLS certificate cannot be used: {error}", code=Code.BAD_CONFIGURATION, certificate=certificate
        ) from error
    return context


def peer_tls_of(settings: ServerSettings) -> PeerTls:
    """How this service verifies another one of its log."""
    return PeerTls(settings.tls_certificate, settings.peer_ca_file, settings.peer_name)


def warn_of_unverified(own: ssl.SSLContext, peers: PeerTls, advertised: str) -> None:
    """Log it when the other processes of the log would not verify this one by its certificate."""
    if (problem := peers.problem_of(own, advertised)) is not None:
        log.warning("peers_cannot_verify", address=advertised, problem=problem, hint=UNVERIFIED_FIX)


def warn_about_open_files(settings: ServerSettings) -> None:
    """Log each file with secrets that other users can read or replace."""
    named = (settings.tokens_file, settings.tls_key)
    for problem in openness_of(Path(name) for name in named if name is not None):
        log.warning("secret_file_open", problem=problem)


@dataclass
class Reloading:
    """Replaces the tokens of ``authenticator``, by ``replace_tls`` the certificate, and what ``peers`` trusts."""

    settings: ServerSettings
    authenticator: Authenticator
    replace_tls: Callable[[ssl.SSLContext], None]
    peers: PeerTls
    advertised: str

    def __post_init__(self) -> None:
        settings = self.settings
        self._files = [
            Path(name)
            for name in (settings.tokens_file, settings.tls_certificate, settings.tls_key, settings.peer_ca_file)
            if name is not None
        ]
        self._seen = self._look()

    async def watch(self) -> None:
        """Reload whenever a file changes. Cancel it to end it."""
        while self._files:
            await asyncio.sleep(LOOK_SECONDS)
            if self._look() != self._seen:
                self.reload("changed")

    def reload(self, why: str) -> bool:
        """Read everything again; whether it was replaced. Never raises for what a file holds."""
        self._seen = self._look()
        try:
            tokens, tls = tokens_of(self.settings), tls_of(self.settings)
            trusted = self.peers.read() if self.settings.has_peer_files else None
        except InvalidRequest as error:
            log.error("reload_refused", why=why, error=error.statement())
            return False
        warn_about_open_files(self.settings)
        self.authenticator.replace(tokens)
        if trusted is not None:
            self.peers.replace(trusted)
        if tls is not None:
            self.replace_tls(tls)
            warn_of_unverified(tls, self.peers, self.advertised)
        log.info("audit", act="reload", author=why, tokens=len(tokens), tls=tls is not None)
        return True

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp_of(file) for file in self._files]


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
