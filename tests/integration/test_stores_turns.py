"""Who is served of a durable: nobody stays connected and unserved, nothing is handed out that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.http_harness import request, run, until
from tests.integration.stores_harness import MSGPACK, StoresServing, bodies, stores_serving

from holdfast.server.stores.deliveries import PIECE_BYTES
from holdfast.server.stores.socket import UNSENT_BYTES_MAX
from holdfast.server.stores.subscribers import Poller
from holdfast.stores.values.commands import Attach, Drop, Publish
from holdfast.wire.parts import Delivery, Message, Portion

pytestmark = pytest.mark.usefixtures("durability")

SHARED = {"type": "shared"}
STANDARD = {"type": "standard"}


@pytest.mark.parametrize(
    ("durable", "newer"), [(STANDARD, "other"), (STANDARD, "same"), (SHARED, "same")], ids=["place", "both", "name"]
)
def test_who_was_displaced_by_one_that_left_before_it_came_is_told(
    tmp_path: Path, durable: dict[str, Any], newer: str
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"mine": durable})
            older = await stores.subscribe("orders", "mine", "same")
            await older.next()
            deliveries = stores.opened.deliveries
            passing = Poller(deliveries, "orders", "mine", newer, timeout_seconds=5)
            deliveries.attach(passing, Attach(0, "orders", "mine", newer, take_over=True), lambda _: None)
            deliveries.leave(passing, "disconnected")
            assert (await older.next())["kind"] == "durable_collision"
            assert (await older.next())["code"] == 4409
            assert list(stores.opened.state.subscribers()) == []
            again = await stores.subscribe("orders", "mine", "same")
            await again.next()

    run(scenario)


def test_what_comes_while_a_portion_is_on_its_way_to_a_poll_waits_for_the_next_poll(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "max_delivery": 1}})
            assert await stores.poll("orders", "work") == []
            deliveries, service = stores.opened.deliveries, stores.opened.service
            poller = deliveries.find("orders", "work", "s")
            assert isinstance(poller, Poller)
            answers: list[asyncio.Future[Portion]] = []

            def poll(count: int) -> asyncio.Future[Portion]:
                answers.append(asyncio.get_running_loop().create_future())
                deliveries.poll(poller, count, 60.0, answers[-1].set_result, lambda: None)  # type: ignore[arg-type]
                return answers[-1]

            def publish(count: int) -> None:
                service.submit_nowait(Publish(0, "orders", "", [Message(b"x")] * count), lambda _: None)

            first = poll(100)
            publish(3)
            deliveries.ready("orders", "work")  # as before the group is taken
            assert poller.on_its_way == 3
            publish(2)
            deliveries.ready("orders", "work")
            assert [one.seq for one in (await first).messages] == [1, 2, 3]
            await service.wait_until_safe()
            assert [(one.seq, one.delivery_count) for one in (await poll(100)).messages] == [(4, 1), (5, 1)]

    run(scenario)


POLL = "/v1/stores/orders/durables/work/messages?subscriber=gone&wait_ms=60000"


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}], ids=["kept", "closes"])
@pytest.mark.parametrize("known", [False, True], ids=["first", "again"])
def test_a_long_poll_whose_peer_has_ended_takes_nothing_and_waits_no_longer(
    tmp_path: Path, headers: dict[str, str], known: bool
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "max_delivery": 1}})
            if known:
                assert await stores.poll("orders", "work", "gone") == []
            gone = await stores.connect()
            gone.send(request("GET", POLL, **headers))

            def waits() -> bool:
                poller = stores.opened.deliveries.find("orders", "work", "gone")
                return isinstance(poller, Poller) and poller.takes

            await until(waits)
            gone.writer.write_eof()
            assert (await gone.answer()).json["messages"] == []
            assert await gone.is_closed_by_peer()
            await stores.publish("orders", "a")
            assert bodies(await stores.poll("orders", "work", "other", wait_ms=60_000)) == ["a"]

    run(scenario, seconds_max=30)  # before the poll's own time is over


def test_a_long_poll_of_a_peer_that_sends_no_more_is_given_what_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a")
            half = await stores.connect()
            half.send(request("GET", POLL))
            half.writer.write_eof()
            assert bodies((await half.answer()).json["messages"]) == ["a"]

    run(scenario)


MEGABYTE = "x" * 1_000_000


async def publish_large_before_small(stores: StoresServing, large: int) -> None:
    """So many of a megabyte before so many small ones that the average of them all says little."""
    await stores.define("orders", durables={"work": {**SHARED, "prefetch": 60_000}})
    for _ in range(large):
        await stores.publish("orders", MEGABYTE)
    for _ in range(4):
        await stores.publish("orders", *["s"] * 1_000)


def pieces_read(stores: StoresServing) -> list[int]:
    """The bytes of what is read at once, as it is read."""
    sizes: list[int] = []
    service = stores.opened.service
    read = service.messages

    def messages(store: str, runs: Iterable[tuple[int, int, int]]) -> list[Delivery]:
        found = read(store, runs)
        sizes.append(sum(len(one.body) for one in found))
        return found

    service.messages = messages  # type: ignore[method-assign]
    return sizes


def test_a_reader_that_does_not_read_is_read_for_in_pieces_however_large_the_first_messages_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await publish_large_before_small(stores, 30)
            sizes = pieces_read(stores)
            slow = await stores.subscribe("orders", "work", subprotocol=MSGPACK)
            await slow.next()
            slow.client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            slow.send(type="credit", messages=2_000)
            (subscriber,) = stores.opened.deliveries.connected("orders", "work")
            await until(lambda: subscriber.paused)
            (socket,) = stores.host.sockets
            assert socket._transport is not None
            assert socket._transport.get_write_buffer_size() < UNSENT_BYTES_MAX + PIECE_BYTES + 100_000
            assert len(subscriber.unread) > 0
            slow.client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert [one["seq"] for one in await slow.messages(2_000)] == list(range(1, 2_001))
            assert max(sizes) <= PIECE_BYTES

    run(scenario)


def test_a_poll_is_answered_with_a_piece_and_the_next_one_with_the_rest(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await publish_large_before_small(stores, 10)
            sizes = pieces_read(stores)
            found: list[Any] = []
            asked = iter([500, 500, 1, 500, 500])
            while len(found) < 500:
                most = next(asked)
                answer = await stores.poll("orders", "work", max=most, wait_ms=60_000)
                assert len(answer) <= most
                found += answer
            assert [one["seq"] for one in found] == list(range(1, len(found) + 1))
            assert {one["delivery_count"] for one in found} == {1}
            assert max(sizes) <= PIECE_BYTES

    run(scenario)


def test_what_waits_to_be_read_and_went_to_another_meanwhile_is_not_given(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await publish_large_before_small(stores, 10)
            assert len(await stores.poll("orders", "work", max=10)) == 4
            await stores.acks("orders", "work", nack=[{"seq": seq, "delay_ms": 0} for seq in range(5, 8)])
            assert [one["seq"] for one in await stores.poll("orders", "work", "other", max=3)] == [5, 6, 7]
            assert [one["seq"] for one in await stores.poll("orders", "work", max=3)] == [8, 9, 10]

    run(scenario)


def test_what_was_on_its_way_to_an_abandoned_poll_is_for_the_next_one_of_that_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "max_delivery": 1}})
            assert await stores.poll("orders", "work") == []
            await stores.publish("orders", "a")
            deliveries, service = stores.opened.deliveries, stores.opened.service
            poller = deliveries.find("orders", "work", "s")
            assert isinstance(poller, Poller)

            def nobody(_: object) -> None:
                raise AssertionError("nobody waits for this answer")

            deliveries.poll(poller, 100, 60.0, nobody, lambda: None)
            assert poller.on_its_way
            poller.seen_seconds -= 60.0  # so long it has waited
            poller.abandon(nobody)
            assert deliveries.detach_silent() == 0
            await service.wait_until_safe()
            (got,) = await stores.poll("orders", "work", wait_ms=60_000)
            assert (got["seq"], got["delivery_count"]) == (1, 1)

    run(scenario)


def test_the_key_of_a_removed_message_that_was_never_sent_is_free_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "key_ordered": True, "ack_wait": "1h"}})
            one = await stores.subscribe("orders", "work", "one")
            await one.next()
            await stores.publish("orders", "a", key="k")
            await stores.publish("orders", "b", key="k")
            deliveries, service = stores.opened.deliveries, stores.opened.service
            slow = deliveries.find("orders", "work", "one")
            assert slow is not None
            deliveries.add_room(slow, 1)
            slow.paused = True  # it does not read
            await service.wait_until_safe()
            await until(lambda: bool(slow.unread))
            await service.submit(Drop(0, "orders", "work", 1))
            got = await stores.poll("orders", "work", "two", wait_ms=15_000)
            assert bodies(got) == ["b"]
            assert deliveries.find("orders", "work", "one") is slow, "nor did it have to leave"

    run(scenario)


def test_a_silent_poller_that_reports_what_it_started_stays_with_what_it_holds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "ack_wait": "1h"}})
            await stores.publish("orders", "a", "b")
            for seq in (1, 2):
                (got,) = await stores.poll("orders", "work", max=1)
                assert got["seq"] == seq
                await stores.acks("orders", "work", ack=[seq - 1] if seq > 1 else [], started=[seq])
            deliveries = stores.opened.deliveries
            poller = deliveries.find("orders", "work", "s")
            assert isinstance(poller, Poller)
            poller.timeout_seconds = -1.0  # it has been over for a second
            assert deliveries.detach_silent() == 0, "it works on the second message"
            assert (await stores.acks("orders", "work", ack=[2]))["stale"] == []
            assert deliveries.detach_silent() == 1

    run(scenario)


@pytest.mark.parametrize("subscriber", ["s", "never"], ids=["let-go", "never-there"])
def test_an_acknowledgement_of_a_poller_that_was_let_go_is_stale(tmp_path: Path, subscriber: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a", "b", "c", "d", "e")
            assert len(await stores.poll("orders", "work")) == 5
            poller = stores.opened.deliveries.find("orders", "work", "s")
            assert isinstance(poller, Poller)
            poller.timeout_seconds = -1.0  # it has been over for a second
            assert stores.opened.deliveries.detach_silent() == 0, "who holds messages stays until their ack_wait ends"
            poller.keeps = False
            assert stores.opened.deliveries.detach_silent() == 1
            late = await stores.acks(
                "orders",
                "work",
                subscriber,
                ack=[1],
                ranges=[[4, 5]],
                nack=[{"seq": 2, "delay_ms": 0}],
                reject=[3],
                extend=[5],
            )
            assert (late["acknowledged"], sorted(set(late["stale"]))) == (0, [1, 2, 3, 4, 5])
            again = await stores.poll("orders", "work", "other")
            counts = [(one["seq"], one["delivery_count"], one["redelivered"]) for one in again]
            assert counts == [(seq, 2 if seq == 1 else 1, True) for seq in range(1, 6)]

    run(scenario)


@pytest.mark.parametrize("place", ["orders/durables/none", "none/durables/work"])
def test_an_acknowledgement_of_what_is_not_there_is_refused(tmp_path: Path, place: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            refused = await stores.ask("POST", f"/v1/stores/{place}/acks", {"subscriber": "s", "ack": [1]})
            assert (refused.status, refused.code) == (404, "not_found")

    run(scenario)
