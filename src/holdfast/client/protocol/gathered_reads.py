"""Reads of single keys as ``gathering`` carries them: an item, its requests, and the one answer to several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.client.protocol.effects import Answer, Item, ItemRefused, KeyRead, Request, Response, Unreadable
from holdfast.client.protocol.messages import JSON_TYPE, key_request, status_of_item
from holdfast.client.protocol.options import ClientOptions
from holdfast.values import LogPosition
from holdfast.wire.formats import UNDECODABLE
from holdfast.wire.log import ErrorResponse, ReadAnswer, ReadKey, ReadResult, ValueResponse

_JSON: Final = msgspec.json.Encoder()
_KEY: Final = msgspec.json.Decoder(ReadKey)
_VALUE: Final = msgspec.json.Decoder(ValueResponse)
_ANSWER: Final = msgspec.json.Decoder(ReadAnswer)

_RESULTS: Final = (KeyRead, Response)

READ_BYTES_MAX: Final = 768 << 10
"""Of one request, whose body has at most 1 MiB by default."""
UNREADABLE: Final = Unreadable("the response cannot be read")
TOO_LARGE: Final = Unreadable("the response is too large", is_too_large=True)


def item_of(key: bytes, at: LogPosition | None, *, linearizable: bool) -> Item:
    """The item of a read that must reach ``at``. Those of one log travel together."""
    group = (None if at is None else at.log_id, linearizable)
    return Item("", _JSON.encode(ReadKey(key)), group, 0 if at is None else at.version)


def _group(items: Sequence[Item]) -> tuple[str | None, bool]:
    group = items[0].group
    assert group is not None, "every read has one"
    return group


def _position(items: Sequence[Item]) -> LogPosition | None:
    """The newest of what the items must reach."""
    log_id = _group(items)[0]
    version = max([item.at for item in items])
    return LogPosition(version, log_id) if version or log_id is not None else None


class _One:
    """The answer to a read that travels alone: the caller's procedure reads it."""

    def __init__(self, bytes_max: int) -> None:
        self._parts: list[bytes] = []
        self._bytes_left = bytes_max

    def feed(self, data: bytes, now_ms: float) -> Sequence[Answer]:
        """See ``AnswerReader``."""
        del now_ms
        self._parts.append(data)
        self._bytes_left -= len(data)
        return () if self._bytes_left >= 0 else (TOO_LARGE,)

    def end(self, now_ms: float) -> Sequence[Answer]:
        """See ``AnswerReader``."""
        return (Response(now_ms, 200, {}, b"".join(self._parts)),)


class _Several(_One):
    """The answers to several."""

    def end(self, now_ms: float) -> Sequence[Answer]:
        """See ``AnswerReader``."""
        try:
            answer = _ANSWER.decode(b"".join(self._parts))
        except UNDECODABLE:
            return (UNREADABLE,)
        at = answer.version
        return [
            KeyRead(at, result.value, result.version)
            if result.error is None and result.index == index
            else _refusal(result, index, now_ms)
            for index, result in enumerate(answer.items)
        ]


def _refusal(result: ReadResult, index: int, now_ms: float) -> Answer:
    if result.error is None or result.index != index:
        return UNREADABLE
    body = _JSON.encode(ErrorResponse(result.error))
    return ItemRefused(Response(now_ms, status_of_item(result.error), {}, body), index)


class Reads:
    """See ``Kind``."""

    bytes_max = READ_BYTES_MAX
    is_harmless = True

    def __init__(self, options: ClientOptions) -> None:
        self._response_bytes_max = int(options.response_bytes_max)

    def alone(self, item: Item) -> Request:
        """``GET /v1/keys/{key}``."""
        linearizable = _group([item])[1]
        return key_request(_KEY.decode(item.data).key, _position([item]), linearizable=linearizable)

    def alone_answer(self, item: Item, response: Response) -> Answer:
        """What is stored at the key."""
        del item
        try:
            answer = _VALUE.decode(response.body)
        except UNDECODABLE:
            return response
        return KeyRead(answer.at or answer.version, answer.value, answer.version)

    def together(self, items: Sequence[Item]) -> Request:
        """``POST /v1/read``."""
        if len(items) == 1:
            return self.alone(items[0])
        linearizable = _group(items)[1]
        at = _position(items)
        body = b'{"items":[%b]%b%b}' % (
            b",".join([item.data for item in items]),
            b"" if at is None else b',"at":"%b"' % str(at).encode(),
            b',"consistency":"linearizable"' if linearizable else b"",
        )
        return Request("POST", "/v1/read", body, (("content-type", JSON_TYPE),))

    def reader(self, items: int) -> _One:
        """Of either response."""
        return _One(self._response_bytes_max) if items == 1 else _Several(self._response_bytes_max)

    def own(self, answers: Sequence[Answer], items: Sequence[Item]) -> int:
        """The answers have been counted."""
        count = 0
        for answer, _ in zip(answers, items, strict=False):
            if not isinstance(answer, _RESULTS):
                break
            count += 1
        return count
