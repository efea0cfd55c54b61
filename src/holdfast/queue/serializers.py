"""What a message is to the program: bytes, text, JSON, or a pair of functions; and its record in the queue. Pure.

A function that raises, raises to its caller; nothing was appended. Opening a queue runs no code from its files.

| name | appended | read | recorded, and not named at the opening |
|---|---|---|---|
| ``"bytes"`` | bytes | bytes; nothing is called | used |
| ``"str"`` | str, as UTF-8 | str | used |
| ``"json"`` | what ``json.dumps`` takes, written compactly | what ``json.loads`` gives | used |
| ``"pickle"`` | what ``pickle.dumps`` takes | what ``pickle.loads`` gives, which can run any code | refused |
| a ``Serializer`` | what its ``dump`` takes | what its ``load`` gives | refused |

*Refused*: payloads can be read as bytes; ``append`` and ``value`` raise ``InvalidRequest`` with the name to give.
"""

from __future__ import annotations

from holdfast.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Never

NAME_BYTES_MAX = 24
HINT = "bytes, str, json, pickle or holdfast.queue.Serializer(dump, load, name)"
BUILT_IN = ("bytes", "str", "json", "pickle")
USED_BY_RECORD = ("str", "json")
BYTES_BY_RECORD = ("", "bytes")


class Serializer:
    """``dump`` makes bytes of a value, ``load`` a value of bytes. ``name`` is recorded in the queue: ASCII, 1 to 24
    bytes. The queue refuses a serializer of another name.

    >>> number = Serializer(lambda value: b"%d" % value, int, "number")
    >>> number.load(number.dump(7))
    7
    """

    __slots__ = ("dump", "load", "name")

    def __init__(self, dump: Callable[[object], bytes], load: Callable[[bytes], object], name: str = "custom") -> None:
        self.dump = dump
        self.load = load
        self.name = name


def serializer_named(serializer: Serializer | str) -> Serializer | None:
    """The serializer of an argument; None for bytes.

    >>> serializer_named("json").dump({"a": [1, 2]})
    b'{"a":[1,2]}'
    """
    if isinstance(serializer, Serializer):
        name = serializer.name
        if type(name) is not str or not name.isascii() or not name.isprintable() or name in BUILT_IN:
            raise InvalidRequest("this cannot be the name of a serializer of your own", name=repr(name))
        if not 1 <= len(name) <= NAME_BYTES_MAX:
            raise InvalidRequest("the name of a serializer is 1 to 24 bytes", name=name, max=NAME_BYTES_MAX)
        return serializer
    if serializer == "bytes":
        return None
    if serializer == "str":
        return Serializer(_text_bytes, bytes.decode, "str")
    if serializer == "json":
        import json

        encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
        return Serializer(lambda value: encode(value).encode(), json.loads, "json")
    if serializer == "pickle":
        import pickle

        return Serializer(lambda value: pickle.dumps(value, 5), pickle.loads, "pickle")
    raise InvalidRequest("unknown serializer", serializer=serializer, hint=HINT)


def record_of(serializer: Serializer | str | None) -> str:
    """The name to record; "" for none."""
    return serializer.name if isinstance(serializer, Serializer) else serializer or ""


def chosen_serializer(given: Serializer | str | None, recorded: str) -> Serializer | None:
    """The serializer of a queue, from the argument and its record ("" for none). Raises: ``InvalidRequest``."""
    if given is not None:
        if recorded and record_of(given) != recorded:
            raise other_serializer(record_of(given), recorded)
        return serializer_named(given)
    if recorded in BYTES_BY_RECORD:
        return None
    if recorded in USED_BY_RECORD:
        return serializer_named(recorded)

    def refuse(value: object) -> Never:  # noqa: ARG001 - replaces a function that takes one
        raise _not_named(recorded)

    return Serializer(refuse, refuse, recorded)


def check_named(given: Serializer | str | None, recorded: str) -> None:
    """Raise ``InvalidRequest`` without the recorded serializer, if the program has to name it."""
    if given is None and recorded not in BYTES_BY_RECORD and recorded not in USED_BY_RECORD:
        raise _not_named(recorded)


def other_serializer(given: str, recorded: str) -> InvalidRequest:
    """The error for a serializer that is not the recorded one."""
    return InvalidRequest(
        "this queue was written with another serializer",
        serializer=given,
        recorded=recorded,
        hint=f"open the queue with the serializer {recorded}, or do not name a serializer",
    )


def _not_named(name: str) -> InvalidRequest:
    if name == "pickle":
        hint = 'serializer="pickle": only for files that you trust, because they can run any code'
    else:
        hint = f'serializer=Serializer(dump, load, "{name}"); holdfast.Queue reads the payloads without it'
    return InvalidRequest("this queue needs its serializer to be named", serializer=name, hint=hint)


def _text_bytes(value: object) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest("this queue takes text", type=type(value).__name__)
    return value.encode()
