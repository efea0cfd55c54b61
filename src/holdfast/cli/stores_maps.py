"""``holdfast stores map``: keys and locks of a map from the command line."""

from __future__ import annotations

import base64
import contextlib
from typing import Annotated

import typer

from holdfast.cli.options import (
    Encoding,
    EncodingOption,
    JsonOption,
    TimeoutOption,
    TokenOption,
    UrlOption,
    parse_bytes,
)
from holdfast.cli.output import print_json, print_line, printable
from holdfast.cli.service import store_asking
from holdfast.cli.stores import PlaceArgument, commands, split_place
from holdfast.cli.transactions import LOCAL
from holdfast.errors import Code, NotFound

__all__ = ["commands", "get", "lock", "rm", "set_key", "unlock"]

maps = typer.Typer(no_args_is_help=True, help="Keys and locks of a map.", rich_markup_mode=None)
commands.add_typer(maps, name="map")

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="A key of the map.", show_default=False)]
FenceOption = Annotated[int, typer.Option("--fence", min=0, help="Only while this lock is held; 0 for none.")]
RevisionOption = Annotated[
    int | None,
    typer.Option("--if-revision", min=0, help="Only where this is its revision; 0: is absent.", show_default=False),
]


def _text_of(value: bytes, encoding: Encoding) -> str:
    """A value as it is printed: text where it is text, else Base64."""
    if encoding is Encoding.HEX:
        return value.hex()
    if encoding is Encoding.TEXT:
        with contextlib.suppress(UnicodeDecodeError):
            return printable(value.decode())
    return base64.b64encode(value).decode()


def _no_such_key(place: str, key: str) -> NotFound:
    return NotFound("there is no such key", code=Code.NO_SUCH_KEY, map=place, key=key)


@maps.command()
def get(
    place: PlaceArgument,
    key: KeyArgument,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    encoding: EncodingOption = Encoding.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Print the value of a key; exit code 1 where there is none."""
    store, name = split_place(place)
    with store_asking(url, token, timeout, as_json=as_json) as client:
        entry = client.map(store, name).get(key)
    if entry is None:
        raise _no_such_key(place, key)
    value = _text_of(entry.value, encoding)
    print_json({"key": key, "value": value, "revision": entry.revision}) if as_json else print_line(value)


@maps.command("set")
def set_key(
    place: PlaceArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(help="The value.", show_default=False)],
    if_revision: RevisionOption = None,
    fence: FenceOption = 0,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    encoding: EncodingOption = Encoding.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Set a key, and print its revision."""
    store, name = split_place(place)
    data = parse_bytes(value, encoding)
    with store_asking(url, token, timeout, as_json=as_json) as client:
        revision = client.map(store, name).set(key, data, if_revision=if_revision, fence=fence)
    print_json({"key": key, "revision": revision}) if as_json else print_line(f"set {key}, revision {revision}")


@maps.command()
def rm(
    place: PlaceArgument,
    key: KeyArgument,
    if_revision: RevisionOption = None,
    fence: FenceOption = 0,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a key; exit code 1 where there is none."""
    store, name = split_place(place)
    with store_asking(url, token, timeout, as_json=as_json) as client:
        was_there = client.map(store, name).remove(key, if_revision=if_revision, fence=fence)
    if not was_there:
        raise _no_such_key(place, key)
    print_json({"removed": key}) if as_json else print_line(f"removed {key}")


@maps.command()
def lock(
    place: PlaceArgument,
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="A key; the whole map without one.")] = "",
    owner: Annotated[str, typer.Option("--owner", help="Who holds it.", show_default=False)] = "command-line",
    ttl_ms: Annotated[int, typer.Option("--ttl-ms", min=1, help="For how long.")] = 30_000,
    steal: Annotated[bool, typer.Option("--steal", help="Take it from who holds it.")] = False,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take the lock of a key, and print its fence: writes with --fence are refused when the lock is another's."""
    store, name = split_place(place)
    with store_asking(url, token, timeout, as_json=as_json) as client:
        held = client.map(store, name).lock(key, owner=owner, ttl_ms=ttl_ms, steal=steal)
    facts = {"key": held.key, "owner": held.owner, "fence": held.fence, "until_ms": held.until_ms}
    print_json(facts) if as_json else print_line(f"locked until {held.until_ms}, fence {held.fence}")


@maps.command()
def unlock(
    place: PlaceArgument,
    fence: Annotated[int, typer.Argument(help="What lock printed.", min=1, show_default=False)],
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="A key; the whole map without one.")] = "",
    owner: Annotated[str, typer.Option("--owner", help="Who holds it.", show_default=False)] = "command-line",
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a lock back."""
    from holdfast.client.stores import Lock

    store, name = split_place(place)
    with store_asking(url, token, timeout, as_json=as_json) as client:
        client.map(store, name).unlock(Lock(key, owner, fence, 0))
    print_json({"unlocked": key}) if as_json else print_line("unlocked")
