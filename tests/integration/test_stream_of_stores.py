"""A change stream that shows stores: every message once, in the order of the log, across resumes and take-overs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.command import command
from tests.integration.test_stores_in_log import Machine, begin, commit, machines, message, write

from holdfast import Client, StoreClient
from holdfast.client import Event, PublishedEvent, TransactionEvent
from holdfast.errors import Code, HoldfastError, PermissionDenied
from holdfast.values import LogPosition

Shown = tuple[str, int, str | None, bytes | None]
"""Store, number, key and body of a message."""


def url_of(machine: Machine) -> str:
    return f"http://127.0.0.1:{machine.port}"


STORES = {
    "orders": {"durables": {"work": {"type": "shared", "dead_letter_store": "audit"}}},
    "prices": {"durables": {"now": {"type": "map"}}},
    "audit": {"durables": {"all": {"type": "shared"}}},
}


def define(machine: Machine, token: str | None = None, **more: object) -> None:
    with StoreClient(url_of(machine), token=token) as client:
        client.define({"stores": STORES, **more})


def use(machine: Machine) -> int:
    """Publish and commit in every way there is. Returns the version of the last commit."""
    machine.publish("one", "two")
    key = "/v1/stores/prices/maps/now/tea"
    assert machine.ask("PUT", key, {"value": "Mw=="})[0] == 200
    publish = [{"store": "orders", "messages": [message("three")]}, {"store": "audit", "messages": [message("hidden")]}]
    changes = [{"store": "prices", "map": "now", "changes": [{"key": "tea"}, {"key": "milk", "value": "MQ=="}]}]
    assert commit(machine, operations=[write("a", "1")], publish=publish, maps=changes)[0] == 200
    assert commit(machine, operations=[write("b", "2")])[0] == 200
    rejected = machine.take(1)[0][0]
    body = {"subscriber": "s", "reject": [rejected]}
    assert machine.ask("POST", "/v1/stores/orders/durables/work/acks", body)[0] == 200
    status, answer = commit(machine, operations=[write("c", "3")])
    assert status == 200
    return int(answer["version"])


SHOWN: list[Shown] = [
    ("orders", 1, None, b"one"),
    ("orders", 2, None, b"two"),
    ("prices", 1, "tea", b"3"),
    ("prices", 2, "tea", None),
    ("prices", 3, "milk", b"1"),
    ("orders", 3, None, b"three"),
]


def events(
    urls: Sequence[str], after: LogPosition | int, until: int, stores: Sequence[str] = ("orders", "prices")
) -> Iterator[tuple[Event, LogPosition]]:
    """Each event up to the transaction ``until``, with the position after it."""
    with Client(urls) as client, client.subscribe(after, stores=stores) as stream:
        for event in stream:
            yield event, stream.position
            if isinstance(event, TransactionEvent) and event.version >= until:
                return


def shown(found: Sequence[Event]) -> list[Shown]:
    return [
        (one.store, one.seq, one.key, one.body)
        for event in found
        if isinstance(event, TransactionEvent | PublishedEvent)
        for one in event.published
    ]


def shown_of(found: Iterable[tuple[Event, LogPosition]]) -> list[Shown]:
    return shown([event for event, _ in found])


def test_a_stream_shows_each_message_once_from_every_position_and_across_a_take_over(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url) as (first, second):
        first.serve()
        define(first)
        last = use(first)
        urls = [url_of(first), second_url := url_of(second)]
        found = [*events(urls, 0, last)]
        assert shown_of(found) == SHOWN
        keys = [one.key for event, _ in found if isinstance(event, TransactionEvent) for one in event.operations]
        assert keys == [b"a", b"b", b"c"]
        for taken, (_, position) in enumerate(found[:-1], 1):
            assert shown_of(events(urls, position, last)) == SHOWN[len(shown_of(found[:taken])) :]
        # A dead letter is published in another store, by a record of the first.
        assert [(store, body) for store, _, _, body in shown_of(events(urls, 0, last, ["audit"]))] == [
            ("audit", b"hidden"),
            ("audit", b"one"),
        ]
        with Client(urls) as client, client.subscribe(0, stores=["orders"]) as stream:
            seen = [next(stream) for _ in range(2)]
            first.server.kill()
            second.serve("--take-over")
            second.publish("four")
            status, answer = commit(second, operations=[write("d", "4")])
            assert status == 200
            while not (isinstance(seen[-1], TransactionEvent) and seen[-1].version == answer["version"]):
                seen.append(next(stream))
        expected = [one for one in SHOWN if one[0] == "orders"] + [("orders", 4, None, b"four")]
        assert shown(seen) == expected
        assert shown_of(events([second_url], 0, answer["version"], ["orders"])) == expected
        # Without stores the stream has keys only, as before.
        assert all(isinstance(event, TransactionEvent) for event, _ in events([second_url], 0, last, ()))


def test_a_filter_by_key_leaves_the_messages_of_its_stores(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve()
        define(machine)
        last = use(machine)
        with Client(url_of(machine)) as client, client.subscribe(0, prefix=b"c", stores=["orders"]) as stream:
            found: list[Event] = []
            while not (found and isinstance(found[-1], TransactionEvent) and found[-1].version == last):
                found.append(next(stream))
        assert shown(found) == [one for one in SHOWN if one[0] == "orders"]
        assert [one.key for event in found if isinstance(event, TransactionEvent) for one in event.operations] == [b"c"]
        words = ("subscribe", "--url", url_of(machine), "--after", "0", "--store", "orders", "--limit", "2")
        printed = command(*words)
        assert printed.returncode == 0, printed.stderr
        assert "published orders 1 = one" in printed.stdout
        lines = [json.loads(line) for line in command(*words, "--json").stdout.splitlines()]
        assert [one["seq"] for line in lines for one in line["published"]] == [1, 2, 3]


def test_a_stream_of_stores_that_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve()
        define(machine)
        with Client(url_of(machine)) as client:
            for stores, durable, code in (
                (["orders", "nowhere"], True, Code.NOT_FOUND),
                ([""], True, Code.NOT_FOUND),
                (["orders"], False, Code.MALFORMED),
            ):
                with client.subscribe(0, durable=durable, stores=stores) as stream:
                    with pytest.raises(HoldfastError) as raised:
                        next(stream)
                    assert raised.value.code == code


def test_stores_of_one_disk_are_no_part_of_the_stream(tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve("--init")
        define(machine)
        with Client(url_of(machine)) as client, client.subscribe(0, stores=["orders"]) as stream:
            with pytest.raises(HoldfastError) as raised:
                next(stream)
            assert raised.value.code == Code.STORES_NOT_IN_LOG


def test_a_stream_ends_when_its_reader_may_not_see_the_store_any_more(tmp_path: Path) -> None:
    url = begin(tmp_path)
    ann, root = "a-token-of-ann-that-is-long", "a-token-of-root-that-is-long"
    users = {"ann": {"token": ann, "roles": ["reader"]}, "root": {"token": root, "roles": ["root"]}}
    everything = ["publish", "subscribe", "browse", "administer"]
    roles = {
        "reader": {"stores": {"orders": ["subscribe"]}},
        "root": {"stores": {"*": everything}, "cluster": ["browse", "administer"]},
    }
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve()
        define(machine)
        machine.publish("one")
        define(machine, permissions={"enabled": True, "users": users, "roles": roles})
        with (
            StoreClient(url_of(machine), token=root) as client,
            Client(url_of(machine), token=ann) as reader,
            client.publisher("orders") as publisher,
            reader.subscribe(0, stores=["audit"]) as other,
            reader.subscribe(0, stores=["orders"]) as stream,
        ):
            with pytest.raises(PermissionDenied):
                next(other)
            assert shown([next(stream)]) == [("orders", 1, None, b"one")]
            roles["reader"]["stores"] = {}
            define(machine, root, permissions={"enabled": True, "users": users, "roles": roles})
            publisher.send(b"secret")
            publisher.flush()
            with pytest.raises(PermissionDenied):
                next(stream)
