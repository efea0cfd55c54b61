"""Laws of the two shells of a subscriber: what they tell the machine, and when. No network, no waiting."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.client.protocol.endpoint import Route, parse_endpoint
from holdfast.client.protocol.options import ClientOptions, SubscriberOptions
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.subscriber import Connect, SubscriberMachine, Talk
from holdfast.client.transport import aio, aio_stores, sync, sync_stores
from holdfast.stores.values.messages import Delivery


class Clock:
    """What both shells read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        for module in (aio_stores, sync_stores):
            monkeypatch.setattr(module, "now_ms", lambda: self.now_ms)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def attached_machine(options: SubscriberOptions) -> SubscriberMachine:
    machine = SubscriberMachine(
        Session(Route((parse_endpoint("http://store:1"),))), "/v1/stores/s/durables/d/subscribe?subscriber=me", options
    )
    assert isinstance(machine.next_step(0), Connect)
    machine.opened(0)
    machine.received(msgspec.msgpack.encode({"type": "attached", "created": False, "prefetch": 8}), 0)
    machine.next_step(0)
    return machine


DELIVERY = Delivery(seq=1, published_ms=0, body=b"a", fields={}, key=None, delivery_count=1, redelivered=False)


class Halves:
    """A line on which bytes come that are no whole frame yet."""

    def __init__(self) -> None:
        here, self._there = socket.socketpair()
        self._there.send(b"part")
        self.connection = SimpleNamespace(socket=here)
        self.socket = SimpleNamespace(feed=lambda _data: [])

    def say(self, *_: object, **__: object) -> None:
        pass

    def write(self) -> None:
        pass

    def hear(self) -> list[object]:
        return []

    def close(self) -> None:
        self.connection.socket.close()
        self._there.close()


def shell_of(kind: Any, machine: SubscriberMachine, options: SubscriberOptions) -> Any:
    transport = sync if kind is sync_stores.SubscriberDriver else aio
    return kind(machine, options, None, None, transport.Watch(machine._session.route, ClientOptions(), None))


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_part_of_a_frame_is_a_sign_of_life(clock: Clock, is_blocking: bool) -> None:
    options = SubscriberOptions(heartbeat_ms=2_000, timeout_ms=5_000)
    machine, line = attached_machine(options), Halves()
    kind = sync_stores.SubscriberDriver if is_blocking else aio_stores.SubscriberDriver
    shell = shell_of(kind, machine, options)
    try:
        for now_ms in (4_000, 8_000, 12_000):
            clock.now_ms = now_ms
            if is_blocking:
                assert shell._talk(line, Talk((), False, 0)) is line
            else:
                shell._line = line
                shell._arrived(line, b"part")
            assert isinstance(machine.next_step(now_ms), Talk)
    finally:
        line.close()
        if is_blocking:
            shell.close()


def test_what_is_acknowledged_while_the_thread_goes_to_sleep_goes_out_when_it_is_due(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SubscriberOptions(explicit_ack=True)
    machine, line = attached_machine(options), Halves()
    shell = shell_of(sync_stores.SubscriberDriver, machine, options)
    slept: list[float] = []

    def wait(_numbers: list[int], ms: float) -> set[int]:
        slept.append(ms)
        return set()

    def say(*_: object, **__: object) -> None:  # between the machine's step and the sleep, as another thread may
        machine.acknowledge([(DELIVERY.seq, DELIVERY.seq)], clock.now_ms)
        shell.schedule()

    monkeypatch.setattr(shell, "_wait", wait)
    monkeypatch.setattr(line, "say", say)
    try:
        clock.now_ms = 1_000
        step = machine.next_step(1_000)
        assert isinstance(step, Talk) and step.timeout_ms == 1_000, "until the next probe"
        shell._talk(line, step)
        assert slept == [100 + sync_stores.EARLY_MS], "for as long as acknowledgements wait for company"
    finally:
        line.close()
        shell.close()
