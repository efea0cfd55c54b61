"""The file of ``server.tokens_file``: one bearer token a line, with its role and perhaps the moment when it ends.

| line | meaning |
|---|---|
| ``ROLE:TOKEN`` | the token has the role ``read``, ``write``, ``job`` or ``admin`` |
| ``ROLE:TOKEN until=2027-01-31T00:00:00Z`` | until then; the time is ISO 8601 with an offset or ``Z`` |
| ``read:TOKEN prefix=orders/ prefix=stock/`` | only for keys that begin with one of these; not for ``admin`` |
| empty, or begins with ``#`` | nothing |

Errors name the line, never the token.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from holdfast.errors import Code, InvalidRequest
from holdfast.files.private_files import others_can_write
from holdfast.server.http.auth import Grant, Role
from holdfast.server.http.key_scope import EVERYTHING, PREFIX_BYTES_MAX, KeyScope

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
        if name == "until" and until is None:
            until = _moment(path, number, value)
        elif name == "prefix" and value and role is not Role.ADMIN:
            prefixes.append(value.encode())
            if len(prefixes[-1]) > PREFIX_BYTES_MAX:
                raise _bad(path, number, f"a prefix has at most {PREFIX_BYTES_MAX} bytes: request ids begin with it")
        else:
            raise _bad(path, number, f"after the token only {_ALLOWED} is allowed")
    return Grant(role, until, KeyScope(tuple(prefixes)) if prefixes else EVERYTHING)


def _moment(path: Path, number: int, value: str) -> float:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise _bad(path, number, f"after the token only {_ALLOWED} is allowed")
    return moment.timestamp()


def _bad(path: Path, number: int, problem: str) -> InvalidRequest:
    facts = {"file": str(path)} | ({"line": number} if number else {})
    return InvalidRequest(f"server.tokens_file cannot be used: {problem}", code=Code.BAD_CONFIGURATION, facts=facts)
