"""Commits as ``gathering`` carries them: an item, its requests, and the lines of a response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.client.protocol.effects import Answer, Failed, Item, ItemRefused, Request, Response, Unreadable
from holdfast.client.protocol.messages import (
    COMMIT_HEADERS,
    COMMITS_HEADERS,
    decode_commit,
    leaves_open,
    status_of_item,
)
from holdfast.client.protocol.options import ClientOptions
from holdfast.commit.format.transaction import Transaction
from holdfast.errors import Code, CorruptData
from holdfast.wire.formats import UNDECODABLE
from holdfast.wire.log import CommitReceipt, ErrorResponse, ItemError, NotCommitted

_JSON: Final = msgspec.json.Encoder()
_Verdict: Final = (CommitReceipt, NotCommitted)
_VERDICT: Final = msgspec.json.Decoder(CommitReceipt | NotCommitted)
_ITEM_ERROR: Final = msgspec.json.Decoder(ItemError)

UNREADABLE: Final = Unreadable("a line of the response cannot be read")
TOO_LONG: Final = Unreadable("a line of the response is too long")
LINE_BYTES_MAX: Final = 4 << 20
"""A line names at most the preconditions of one item."""


def item_of(txn: Transaction) -> Item:
    """The item of an attempt. Raises: CorruptData (it has no name)."""
    if txn.request_id is None or txn.read_version is None:
        raise CorruptData("a commit is only sent with an id and a read version")
    return Item(txn.request_id, _JSON.encode(txn), txn=txn)


class Lines:
    """The verdicts of one response."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes, now_ms: float) -> Sequence[Answer]:
        """See ``AnswerReader``."""
        whole, end, rest = data.rpartition(b"\n")
        if not end:
            self._rest += data
            return (TOO_LONG,) if len(self._rest) > LINE_BYTES_MAX else ()
        if self._rest:
            whole = self._rest + whole
        self._rest = rest
        try:
            return _VERDICT.decode_lines(whole)
        except UNDECODABLE:  # an error is among them
            return _one_by_one(whole.split(b"\n"), now_ms)

    def end(self, now_ms: float) -> Sequence[Answer]:
        """See ``AnswerReader``. The verdict of one alone has no end of line."""
        rest, self._rest = self._rest, b""
        return _one_by_one([rest], now_ms) if rest else ()


def _one_by_one(lines: Sequence[bytes], now_ms: float) -> Sequence[Answer]:
    """The answers up to the first that cannot be read."""
    answers: list[Answer] = []
    for line in lines:
        try:
            answers.append(_VERDICT.decode(line))
            continue
        except UNDECODABLE:
            pass
        answer = _refusal(line, now_ms)
        answers.append(answer)
        if answer is UNREADABLE:
            break
    return answers


def _refusal(line: bytes, now_ms: float) -> Answer:
    try:
        result = _ITEM_ERROR.decode(line)
        Code(result.error.code)
    except (*UNDECODABLE, ValueError):  # an unknown code says nothing about the item
        return UNREADABLE
    status = status_of_item(result.error)
    if result.ends is True and leaves_open(result.error, status):
        return ItemRefused(Failed(now_ms, False, result.error.code), result.index, ends=True)  # it was not submitted
    body = _JSON.encode(ErrorResponse(result.error))
    return ItemRefused(Response(now_ms, status, {}, body), result.index, ends=result.ends is True)


class Commits:
    """See ``Kind``."""

    is_harmless = False

    def __init__(self, options: ClientOptions) -> None:
        self.bytes_max = int(options.commits_bytes_max)

    def alone(self, item: Item) -> Request:
        """``POST /v1/commit``."""
        return Request("POST", "/v1/commit", item.data, COMMIT_HEADERS)

    def alone_answer(self, item: Item, response: Response) -> Answer:
        """A verdict that names the id of its commit."""
        verdict = decode_commit(response.body)
        return response if verdict is None or verdict.request_id != item.key else verdict

    def together(self, items: Sequence[Item]) -> Request:
        """``POST /v1/commits``, and for one ``POST /v1/commit``, which costs the service less."""
        if len(items) == 1:
            return self.alone(items[0])
        body = b"\n".join([item.data for item in items]) + b"\n"
        return Request("POST", "/v1/commits", body, COMMITS_HEADERS, accepted_in_parts=True)

    def reader(self, items: int) -> Lines:
        """Of either response."""
        del items
        return Lines()

    def own(self, answers: Sequence[Answer], items: Sequence[Item]) -> int:
        """A verdict names the id of its commit."""
        count = 0
        for answer, item in zip(answers, items, strict=False):
            if not isinstance(answer, _Verdict) or answer.request_id != item.key:
                break
            count += 1
        return count
