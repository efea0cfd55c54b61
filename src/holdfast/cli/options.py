"""Options that several commands share, and the keys, values and settings that they name."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from holdfast.errors import InvalidRequest
from holdfast.settings import Configuration, load_configuration
from holdfast.values import LogPosition
from holdfast.values import parse_position as read_position


class TextForm(StrEnum):
    """How keys and values are written on the command line."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, one value a line.")]
UrlOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="HOLDFAST_URL",
        help="The service: http://HOST:PORT, https:// or unix:/PATH; with standbys all addresses, with commas.",
    ),
]
TokenOption: TypeAlias = Annotated[str | None, typer.Option("--token", envvar="HOLDFAST_TOKEN", help="Bearer token.")]
TrustedOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--trusted-hosts",
        envvar="HOLDFAST_TRUSTED_HOSTS",
        help="Further addresses that may get the token: NAME:PORT, *.SUFFIX:PORT or NETWORK/BITS:PORT, with commas.",
    ),
]


def patterns_of(text: str) -> tuple[str, ...]:
    """The patterns of ``TrustedOption``."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


EncodingOption: TypeAlias = Annotated[
    TextForm, typer.Option("--encoding", help="How keys and values are written here.")
]
ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config", envvar="HOLDFAST_CONFIG", help="TOML, YAML or JSON; holdfast.toml or .yaml here by default."
    ),
]
SetOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set any configuration key; repeatable.")
]
LogArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="[URL]", help="The log, for example file:///var/lib/holdfast; log.url by default."),
]


def configuration(
    config: Path | None, settings: list[str] | None = None, *, log: str | None = None, listen: list[str] | None = None
) -> Configuration:
    """The configuration in force under these flags. Raises: InvalidRequest."""
    flags: dict[str, object] = {**parse_pairs("--set", settings, "leader.sign_interval_ms=3000")}
    if log is not None:
        flags["log.url"] = log
    if listen:
        flags["server.listen"] = listen
    return load_configuration(flags=flags, file=config)


def parse_pairs(option: str, items: list[str] | None, example: str) -> dict[str, str]:
    """The values of a repeatable option KEY=VALUE by key. Raises: InvalidRequest."""
    pairs: dict[str, str] = {}
    for item in items or ():
        key, equals, value = item.partition("=")
        if not equals:
            raise InvalidRequest(f"{option} needs KEY=VALUE, for example {option} {example}, and got {item}")
        pairs[key.strip()] = value.strip()
    return pairs


def add_command(
    group: typer.Typer, name: str | None, command: Callable[..., None], parameters: Sequence[Parameter], help_text: str
) -> None:
    """Add a command with these parameters, which typer reads instead of those of the function."""
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    group.command(name, help=help_text)(command)


def items_max(limit: int) -> int:
    """What ``islice`` takes for --limit, of which 0 means no limit."""
    return min(limit or sys.maxsize, sys.maxsize)


def log_url_of(url: str | None, config: Path | None) -> str:
    """The URL of a command's log: the given one, else ``log.url``. Raises: InvalidRequest."""
    return configuration(config, log=url).settings.log.url


def parse_position(option: str, text: str | None) -> LogPosition | None:
    """A version with or without its log's id; None if the option was not given. Raises: InvalidRequest."""
    if text is None:
        return None
    position = read_position(text)
    if position is None:
        raise InvalidRequest(
            f"{option} is VERSION or VERSION@LOGID, not {text!r}", hint="`holdfast version --position` prints one"
        )
    return position


def parse_bytes(text: str, encoding: TextForm) -> bytes:
    """The bytes of a text on the command line.

    >>> parse_bytes("6b6579", TextForm.HEX)
    b'key'
    """
    try:
        match encoding:
            case TextForm.TEXT:
                return text.encode("utf-8")
            case TextForm.HEX:
                return bytes.fromhex(text.removeprefix("0x"))
            case TextForm.BASE64:
                return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidRequest(f"{text!r} is not {encoding.value}") from error
