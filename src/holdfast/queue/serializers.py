"""What a message is to the program: bytes, text, JSON, or a pair of functions of its own.

Owns: the pairs. Does not own: when they are called (``queue``).

Failure model: pure. A function that raises, raises to its caller; nothing was appended. There is no pickle here: a file
that is unpickled can run anything, so who wants it passes it by hand.

| name | appended | read |
|---|---|---|
| ``"bytes"`` | bytes | bytes; nothing is called |
| ``"str"`` | str, as UTF-8 | str |
| ``"json"`` | what ``json.dumps`` takes, written compactly | what ``json.loads`` gives |
| a ``Serializer`` | what its ``dump`` takes | what its ``load`` gives |
"""

from __future__ import annotations

from holdfast.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Serializer", "serializer_named"]


class Serializer:
    """``dump`` makes bytes of a value, ``load`` a value of bytes.

    >>> number = Serializer(lambda value: b"%d" % value, int)
    >>> number.load(number.dump(7))
    7
    """

    __slots__ = ("dump", "load")

    def __init__(self, dump: Callable[[object], bytes], load: Callable[[bytes], object]) -> None:
        self.dump = dump
        self.load = load


def serializer_named(serializer: Serializer | str) -> Serializer | None:
    """The serializer of an argument; None for bytes, which need none.

    >>> serializer_named("json").dump({"a": [1, 2]})
    b'{"a":[1,2]}'
    """
    if isinstance(serializer, Serializer):
        return serializer
    if serializer == "bytes":
        return None
    if serializer == "str":
        return Serializer(_text_bytes, bytes.decode)
    if serializer == "json":
        import json

        encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
        return Serializer(lambda value: encode(value).encode(), json.loads)
    hint = "bytes, str, json or holdfast.queue.Serializer(dump, load)"
    raise InvalidRequest("unknown serializer", serializer=serializer, hint=hint)


def _text_bytes(value: object) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest("this queue takes text", type=type(value).__name__)
    return value.encode()
