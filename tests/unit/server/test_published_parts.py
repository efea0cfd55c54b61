"""Messages that were published together come in events that a client takes."""

from __future__ import annotations

import json

import pytest

from holdfast.commit.reading.feed import StoresEvent
from holdfast.server.commit import sse
from holdfast.wire.log import StreamMessage


@pytest.mark.parametrize(("sizes", "parts"), [([10], 1), ([600, 600], 2), ([500, 10, 500, 900], 3), ([2_000], 1)])
def test_only_the_last_part_has_an_id_and_no_part_is_empty_or_much_too_large(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], parts: int
) -> None:
    monkeypatch.setattr(sse, "PART_BYTES", 1_000)
    messages = [StreamMessage("orders", seq, 7, bytes(size // 4 * 3)) for seq, size in enumerate(sizes, 1)]
    stored = StoresEvent(8, "ab" * 16, 0, [])
    text = sse.encode_event(stored, "cd" * 16, durable_stream=True, published=messages)
    events = text.decode().strip().split("\n\n")
    assert [event.startswith("id: 8@") for event in events] == [False] * (parts - 1) + [True]
    data = [json.loads(event.partition("data: ")[2]) for event in events]
    assert [each.get("more", False) for each in data] == [True] * (parts - 1) + [False]
    assert [message["seq"] for each in data for message in each["published"]] == list(range(1, len(sizes) + 1))
    assert all(each["published"] for each in data)


def test_fields_and_keys_count_as_well_as_bodies() -> None:
    fields: dict[str, str | int | bool] = {f"{number:03d}" + "f" * 250: "v" * 250 for number in range(20)}
    messages = [StreamMessage("orders", seq, 7, b"", fields) for seq in range(1, 4_097)]
    parts = sse._parts(messages)
    assert [len(part) > 0 for part in parts] == [True] * 3
    assert [message for part in parts for message in part] == messages
    keys = [StreamMessage("orders", seq, 7, b"", key="\0" * 1_000) for seq in range(1, 6_001)]
    assert len(sse._parts(keys)) == 3
