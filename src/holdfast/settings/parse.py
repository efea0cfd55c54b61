"""One configuration value, from TOML, an environment variable or a flag, checked and typed.

Owns: the accepted spellings of each type. Does not own: which key uses which type (``model``).

Failure model: a value that does not fit raises ``ValueError`` whose text says what would fit. TOML brings typed values,
the environment and flags bring text; both spellings of a value mean the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args
from urllib.parse import urlsplit

__all__ = [
    "LOG_SCHEMES",
    "Role",
    "Token",
    "choice",
    "listen_addresses",
    "log_url",
    "number",
    "off_or_number",
    "optional_table_url",
    "optional_text",
    "size",
    "switch",
    "tokens",
    "unlimited_or_whole",
    "whole",
]

Role = Literal["read", "write", "admin"]
LOG_SCHEMES: Final = ("file", "s3", "gs", "az", "memory")
ADDRESS_BYTES_MAX: Final = 256
_SIZE: Final = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB)?", re.ASCII)
_UNITS: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SWITCH: Final = {
    "true": True,
    "on": True,
    "yes": True,
    "1": True,
    "false": False,
    "off": False,
    "no": False,
    "0": False,
}


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token and what it allows. The token itself is never shown."""

    role: Role
    token: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.role}:***"


def number(low: float, high: float = math.inf, *, low_included: bool = True) -> Callable[[object], float]:
    """A finite number in the given bounds; the upper bound is included."""
    rule = f"a number {'>=' if low_included else '>'} {low:g}" + (f" and <= {high:g}" if high < math.inf else "")

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(rule)
        try:
            parsed = float(value)
        except (ValueError, OverflowError):
            raise ValueError(rule) from None
        if not math.isfinite(parsed) or parsed > high or parsed < low or (parsed == low and not low_included):
            raise ValueError(rule)
        return parsed

    return parse


def whole(low: int, high: int | None = None) -> Callable[[object], int]:
    """A whole number in the given bounds, both included."""
    rule = f"a whole number {low}..{high}" if high is not None else f"a whole number >= {low}"

    def parse(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?\d[\d_,]*", value.strip(), re.ASCII):
            value = int(value.replace("_", "").replace(",", ""))
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(rule)
        if value < low or (high is not None and value > high):
            raise ValueError(rule)
        return value

    return parse


def unlimited_or_whole(low: int) -> Callable[[object], int | None]:
    """A whole number, or None for the word ``unlimited``."""
    parse_whole = whole(low)

    def parse(value: object) -> int | None:
        if value == "unlimited":
            return None
        try:
            return parse_whole(value)
        except ValueError as error:
            raise ValueError(f'{error} or "unlimited"') from None

    return parse


def off_or_number(low: float, high: float) -> Callable[[object], float | None]:
    """A number, or None for ``off`` (in TOML also ``false``)."""
    parse_number = number(low, high)

    def parse(value: object) -> float | None:
        if value == "off" or value is False:
            return None
        try:
            return parse_number(value)
        except ValueError as error:
            raise ValueError(f'{error} or "off"') from None

    return parse


def size(low: int, high: int | None = None) -> Callable[[object], int]:
    """A number of bytes in the given bounds, both included: a whole number, or text with B, KiB, MiB or GiB.

    >>> size(1)("256 MiB"), size(1)(1024)
    (268435456, 1024)
    """
    bounds = f">= {low}" if high is None else f"{low}..{high}"
    rule = f'a number of bytes {bounds}, or text such as "256 MiB"'

    def parse(value: object) -> int:
        if isinstance(value, str):
            match = _SIZE.fullmatch(value.strip().replace(",", "").replace("_", ""))
            if match is None:
                raise ValueError(rule)
            value = int(match[1]) * _UNITS[match[2] or ""]
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(rule)
        if value < low or (high is not None and value > high):
            raise ValueError(rule)
        return value

    return parse


def switch(value: object) -> bool:
    """On or off.

    >>> switch("off"), switch(True)
    (False, True)
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _SWITCH:
        return _SWITCH[value.lower()]
    raise ValueError("true or false")


def choice(*words: str) -> Callable[[object], str]:
    """One of a closed list of words."""
    rule = "one of " + ", ".join(words)

    def parse(value: object) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise ValueError(rule)

    return parse


def optional_table_url(value: object) -> str | None:
    """The address of a table, as that of a log but not in memory; the empty text means none.

    >>> optional_table_url("s3://lake/segments")
    's3://lake/segments'
    """
    if value == "":
        return None
    url = log_url(value)
    if urlsplit(url).scheme == "memory":
        raise ValueError("one of file:///lake/segments, s3://bucket/prefix, az://container/prefix")
    return url


def optional_text(value: object) -> str | None:
    """Text that is not empty; the empty text means none, so that an environment variable can take a value away."""
    if not isinstance(value, str):
        raise ValueError("text")
    return value or None


def _texts(value: object, rule: str) -> list[str]:
    """A TOML array of texts, or one text with commas."""
    if isinstance(value, str):
        return [item for part in value.split(",") if (item := part.strip())]
    if isinstance(value, list | tuple):
        items = cast("list[object] | tuple[object, ...]", value)
        texts = [item for item in items if isinstance(item, str)]
        if len(texts) == len(items):
            return texts
    raise ValueError(rule)


def listen_addresses(value: object) -> tuple[str, ...]:
    """At least one address, each ``HOST:PORT`` (an IPv6 host in brackets) or ``unix:PATH``.

    >>> listen_addresses("127.0.0.1:8080, unix:/run/holdfast.sock")
    ('127.0.0.1:8080', 'unix:/run/holdfast.sock')
    """
    rule = 'addresses such as "127.0.0.1:8080", "[::1]:8080" or "unix:/run/holdfast.sock"'
    addresses = tuple(dict.fromkeys(_texts(value, rule)))
    if not addresses:
        raise ValueError(rule)
    for address in addresses:
        if len(address.encode()) > ADDRESS_BYTES_MAX:
            raise ValueError(f"addresses of at most {ADDRESS_BYTES_MAX} bytes")
        if address.startswith("unix:"):
            if len(address) == len("unix:"):
                raise ValueError(rule)
            continue
        host, colon, port = address.rpartition(":")
        bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
        if not colon or not host or bare_ipv6 or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(rule)
    return addresses


def tokens(value: object) -> tuple[Token, ...]:
    """Bearer tokens, each ``ROLE:TOKEN`` with the role read, write or admin. Errors never repeat a token."""
    rule = 'tokens such as "admin:SECRET"; the roles are read, write and admin'
    found: dict[str, Token] = {}
    texts = _texts(value, rule)
    if isinstance(value, str) and not texts:
        # A secret that was not filled in must not open the service to everybody.
        raise ValueError(f"{rule}; to serve everybody leave the key out")
    for text in texts:
        role, _, token = text.partition(":")
        if (
            role not in get_args(Role)
            or not token.isascii()
            or not token.isprintable()
            or " " in token
            or len(token) < 16
        ):
            raise ValueError(f"{rule}; a token has at least 16 printable characters and no space")
        if token in found:
            raise ValueError("each token once")
        found[token] = Token(cast(Role, role), token)
    return tuple(found.values())


def log_url(value: object) -> str:
    """The address of a log: ``file:///absolute/path``, ``s3://bucket/prefix``, ``az:`` or ``memory:``.

    >>> log_url("file:///var/lib/holdfast")
    'file:///var/lib/holdfast'
    """
    rule = "one of file:///var/lib/holdfast, s3://bucket/prefix, az://container/prefix, memory:"
    if not isinstance(value, str):
        raise ValueError(rule)
    parts = urlsplit(value)
    if parts.scheme not in LOG_SCHEMES:
        raise ValueError(rule)
    if parts.username or parts.password:
        raise ValueError(f"{rule}; credentials come from the environment, never from the URL")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise ValueError("a file URL with an absolute path, such as file:///var/lib/holdfast")
    if parts.scheme in ("s3", "gs", "az") and not parts.netloc:
        raise ValueError(f"{rule}; the bucket is missing")
    return value
