"""A document that somebody else sent keeps the loop for a bounded time: its values are counted before it is parsed."""

from __future__ import annotations

import gc

import msgspec
import pytest

from holdfast.errors import Code, LimitExceeded
from holdfast.server.stores.operations import REQUEST_VALUES_MAX, decode
from holdfast.values import GivenTwice
from holdfast.wire import formats
from holdfast.wire.formats import LARGE_BYTES, WireFormat, decode_each_once, require_few_values
from holdfast.wire.stores import PublishRequest

COUNT = LARGE_BYTES


def test_a_large_document_is_decoded_without_the_collector_which_goes_on_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proof = formats.require_each_once
    collects: list[bool] = []

    def noted(*arguments: object) -> None:
        collects.append(gc.isenabled())
        proof(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(formats, "require_each_once", noted)
    large = b"[" + b",".join([b"[]"] * COUNT) + b"]"
    assert decode_each_once(large, object) == [[]] * COUNT
    assert decode_each_once(b"[1]", object) == [1]
    assert collects == [False, True]
    for wrong, problem in (
        (b'{"a":"' + b"x" * LARGE_BYTES + b'","a":1}', GivenTwice),
        (large[:-1], msgspec.DecodeError),
    ):
        with pytest.raises(problem):
            decode_each_once(wrong, object)
        assert gc.isenabled()


@pytest.mark.parametrize("wire_format", ["json", "msgpack"])
def test_a_document_with_too_many_values_is_refused(wire_format: WireFormat) -> None:
    encode = msgspec.json.encode if wire_format == "json" else msgspec.msgpack.encode
    data = encode([[]] * COUNT)
    with pytest.raises(LimitExceeded) as refused:
        require_few_values(data, COUNT, wire_format)
    assert refused.value.code is Code.TOO_LARGE
    require_few_values(data, 3 * COUNT, wire_format)
    require_few_values(b"[" * LARGE_BYTES, 1, wire_format)


def test_a_request_with_too_many_values_is_refused_before_it_is_parsed() -> None:
    few = b'{"messages":[' + b",".join([b'{"body":""}'] * 9_000) + b"]}"
    assert len(decode(few, PublishRequest, "json").messages) == 9_000
    with pytest.raises(LimitExceeded):
        decode(b'{"messages":[' + b"{}," * REQUEST_VALUES_MAX, PublishRequest, "json")
