"""The machine of a watch: each change is its key's last word, also over lost connections."""

from __future__ import annotations

import random

import msgspec
import pytest

from holdfast.client.protocol.effects import Wait
from holdfast.client.protocol.endpoint import ClientRoute, parse_endpoint
from holdfast.client.protocol.options import SubscriberOptions
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.messages import subscribe_target
from holdfast.client.protocol.stores.subscriber import Connect
from holdfast.client.protocol.stores.watch import WatchMachine
from holdfast.wire.stores import KeyChange


class Service:
    """The other side of the line, and an application that takes changes now and then."""

    def __init__(self) -> None:
        session = Session(ClientRoute((parse_endpoint("http://store:1"),)))
        self.machine = WatchMachine(session, subscribe_target("s", "m", "me"), SubscriberOptions())
        self.now_ms = 0.0
        self.view: dict[str, bytes] = {}

    def connects(self) -> Connect:
        step = self.machine.next_step(self.now_ms)
        assert isinstance(step, Connect)
        self.machine.opened(self.now_ms)
        self.says({"type": "attached"})
        return step

    def says(self, frame: dict[str, object]) -> None:
        self.machine.received(msgspec.msgpack.encode(frame), self.now_ms)
        self.machine.check()

    def tells(self, *changes: tuple[str, int, str]) -> None:
        awaited: list[dict[str, object]] = []
        for key, revision, cause in changes:
            value = b"%d" % revision if cause in ("present", "set") else None
            awaited.append({"key": key, "revision": revision, "cause": cause, "value": value})
        self.says({"type": "changes", "changes": awaited})

    def loses(self) -> None:
        self.machine.lost(self.now_ms, "cut")
        step = self.machine.next_step(self.now_ms)
        assert isinstance(step, Wait)
        self.now_ms += step.at_most_ms
        self.machine.waited()

    def takes(self) -> list[KeyChange]:
        taken = []
        while (change := self.machine.take_change()) is not None:
            taken.append(change)
            if change.value is None:
                self.view.pop(change.key, None)
            else:
                self.view[change.key] = change.value
        return taken


def test_a_watch_asks_for_its_keys() -> None:
    session = Session(ClientRoute((parse_endpoint("http://store:1"),)))
    machine = WatchMachine(session, subscribe_target("s", "m", "me", prefix="a b"), SubscriberOptions())
    step = machine.next_step(0.0)
    assert isinstance(step, Connect)
    assert step.target == "/v1/stores/s/durables/m/subscribe?subscriber=me&prefix=a+b"


def test_a_watch_is_current_when_all_that_was_there_was_taken() -> None:
    service = Service()
    service.connects()
    service.tells(("a", 1, "present"))
    assert not service.machine.is_current
    service.says({"type": "current"})
    assert service.machine.has_ready and not service.machine.is_current
    assert service.takes() == [KeyChange("a", 1, "present", b"1")]
    assert service.machine.is_current and not service.machine.has_ready


def test_what_differs_after_a_lost_connection_is_told_and_nothing_else() -> None:
    service = Service()
    service.connects()
    service.tells(("same", 1, "present"), ("newer", 2, "present"), ("gone", 3, "set"))
    service.says({"type": "current"})
    service.takes()
    service.loses()
    service.connects()
    service.tells(("new", 7, "present"), ("newer", 6, "present"), ("same", 1, "present"))
    service.says({"type": "current"})
    assert service.takes() == [
        KeyChange("new", 7, "present", b"7"),
        KeyChange("newer", 6, "present", b"6"),
        KeyChange("gone", 3, "removed"),
    ]


def test_a_change_that_was_overtaken_before_it_was_taken_is_not_told() -> None:
    service = Service()
    service.connects()
    service.tells(("a", 1, "set"), ("b", 2, "set"), ("a", 3, "set"), ("b", 4, "removed"))
    assert service.takes() == [KeyChange("a", 3, "set", b"3"), KeyChange("b", 4, "removed")]


@pytest.mark.parametrize("seed", range(40))
def test_the_view_is_the_map_whatever_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    service = Service()
    there: dict[str, int] = {}
    revision = 0
    connected = False
    for _ in range(300):
        match rng.choice(["set", "set", "remove", "take", "lose"]):
            case "take":
                service.takes()
            case "lose":
                if connected:
                    service.loses()
                connected = False
            case what:
                key = rng.choice("abcdef")
                revision += 1
                awaited = (key, revision, "set" if what == "set" else "expired")
                if what == "set":
                    there[key] = revision
                elif there.pop(key, None) is None:
                    continue
                if connected:
                    service.tells(awaited)
        if not connected and rng.random() < 0.3:
            service.connects()
            connected = True
            service.tells(*[(key, number, "present") for key, number in sorted(there.items())])
            if rng.random() < 0.7:
                service.says({"type": "current"})
    if connected:
        service.loses()
    service.connects()
    service.tells(*[(key, number, "present") for key, number in sorted(there.items())])
    service.says({"type": "current"})
    service.takes()
    assert service.view == {key: b"%d" % number for key, number in there.items()}
