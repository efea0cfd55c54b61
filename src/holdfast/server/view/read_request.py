"""Requests of ``POST /v1/read`` as bytes, decoded and checked.

A body that is not of the documented shape is refused as a whole. A key or a range that is wrong by itself (not base64,
a range without keys, one that the token is not for) is the error of that item alone.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct

from holdfast.commit.format.json_request import Given, Text, optional_bytes, required_bytes, undecodable
from holdfast.commit.format.transaction import prefix_end
from holdfast.errors import Code, HoldfastError, InvalidRequest
from holdfast.server.http.key_scope import KeyScope
from holdfast.server.http.responses import without_traceback
from holdfast.view.storage import Asked, KeyRange
from holdfast.wire.formats import UNDECODABLE, decode_each_once
from holdfast.wire.log import Consistency

RANGE_LIMIT_DEFAULT: Final = 1000
RANGE_LIMIT_MAX: Final = 10_000
ITEMS_MAX: Final = 1_000


class JsonReadKey(Struct, tag_field="type", tag="key", frozen=True, forbid_unknown_fields=True):
    """Read one key, given in base64 or as text."""

    key: Given = UNSET
    key_text: Text = UNSET


class JsonReadRange(Struct, tag_field="type", tag="range", frozen=True, forbid_unknown_fields=True):
    """Read at most ``limit`` keys of [begin, end), or all that start with ``prefix``; by default all keys."""

    begin: Given = UNSET
    begin_text: Text = UNSET
    end: Given | None = UNSET
    end_text: Text = UNSET
    prefix: Given = UNSET
    prefix_text: Text = UNSET
    limit: Annotated[int, Meta(ge=1, le=RANGE_LIMIT_MAX)] = RANGE_LIMIT_DEFAULT


class JsonRead(Struct, frozen=True, forbid_unknown_fields=True):
    """Read these items at one version, which is ``at`` or later. ``text``: values that are UTF-8 as text, too."""

    items: Annotated[list[JsonReadKey | JsonReadRange], Meta(min_length=1, max_length=ITEMS_MAX)]
    at: str | None = None
    consistency: Consistency = "local"
    text: bool = False


def decode_read(data: bytes) -> JsonRead:
    """The request in this JSON document. Raises: InvalidRequest (malformed)."""
    try:
        return decode_each_once(data, JsonRead)
    except UNDECODABLE as error:
        raise undecodable(error) from error


def asked_of(request: JsonRead, scope: KeyScope) -> list[Asked | HoldfastError]:
    """What each item asks for, or why it is not read."""
    return [_item(each, index, scope) for index, each in enumerate(request.items)]


def within_scope(item: Asked | HoldfastError, scope: KeyScope) -> Asked | HoldfastError:
    """The item, or the error where it is outside the scope."""
    if isinstance(item, HoldfastError) or scope.is_everything:
        return item
    begin, end = (item.begin, item.end) if isinstance(item, KeyRange) else (item, item + b"\0")
    return scope.problem_with_range(begin, end) or item


def _item(item: JsonReadKey | JsonReadRange, index: int, scope: KeyScope) -> Asked | HoldfastError:
    try:
        return within_scope(_asked(item, f"$.items[{index}]"), scope)
    except InvalidRequest as error:
        return without_traceback(error)


def _asked(item: JsonReadKey | JsonReadRange, path: str) -> Asked:
    if isinstance(item, JsonReadKey):
        return required_bytes("key", item.key, item.key_text, path)
    begin = optional_bytes("begin", item.begin, item.begin_text, path)
    end = optional_bytes("end", item.end, item.end_text, path)
    prefix = optional_bytes("prefix", item.prefix, item.prefix_text, path)
    if prefix is not None:
        if begin is not None or end is not None:
            raise InvalidRequest(f"prefix excludes begin and end: it is a range by itself - at `{path}`")
        return KeyRange(prefix, prefix_end(prefix), item.limit)
    if end is not None and (begin or b"") >= end:
        raise InvalidRequest(f"begin must be below end - at `{path}`", code=Code.BAD_RANGE)
    return KeyRange(begin or b"", end, item.limit)
