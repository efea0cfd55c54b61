"""The stores' client against the real service as a process: both twins, what they promise, and a kill in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.crash.server_process import NO_VIEW, ServerProcess
from tests.rgw import free_port

from holdfast.aio import StoreClient as AsyncStoreClient
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.stores import (
    Delivery,
    Message,
    PublisherOptions,
    StoreClient,
    SubscriberOptions,
)
from holdfast.errors import (
    Backpressure,
    Closed,
    Code,
    Conflict,
    Fenced,
    HoldfastError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from holdfast.wire.parts import Origin

pytestmark = pytest.mark.usefixtures("durability")

NAMES = itertools.count(1)
EXPLICIT = SubscriberOptions(explicit_ack=True)
ONCE = PublisherOptions(retry_duration=0)


class Service:
    """One ``holdfast serve`` that may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        self.log = (folder / "log").as_uri()
        self.process = ServerProcess(folder, self.log, self.port, flags=["--init"], environment=NO_VIEW)
        self.process.wait_until_leading()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def restart(self) -> None:
        """On the main thread: the new process is killed when the thread ends that began it."""
        self.process.kill()
        self.process = ServerProcess(self.folder, self.log, self.port, flags=["--take-over"], environment=NO_VIEW)


@pytest.fixture(scope="module")
def service(durability: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"))
    yield service
    service.process.kill()


@pytest.fixture
def client(service: Service) -> Iterator[StoreClient]:
    with StoreClient(service.url) as client:
        yield client


@pytest.fixture
def store(client: StoreClient) -> str:
    name = f"store-{next(NAMES)}"
    client.define_store(name)
    client.define_durable(name, "work", {"type": "shared"})
    return name


@asynccontextmanager
async def asynchronous(service: Service) -> AsyncIterator[AsyncStoreClient]:
    async with AsyncStoreClient(service.url) as client:
        yield client


def bodies(messages: list[Delivery]) -> list[bytes]:
    return [message.body for message in messages]


def take(client: StoreClient, store: str, count: int, options: SubscriberOptions | None = None) -> list[Delivery]:
    with client.subscriber(store, "work", options=options) as subscriber:
        return [message for message in (subscriber.receive(10) for _ in range(count)) if message is not None]


# publishing


def test_a_publisher_confirms_in_order_and_a_subscriber_gets_the_same_order(client: StoreClient, store: str) -> None:
    with client.publisher(store) as publisher:
        first = publisher.publish(b"0", fields={"kind": "a", "n": 1, "new": True}, key="k")
        sent = [publisher.send(b"%d" % number) for number in range(1, 500)]
        publisher.flush()
        batch = publisher.publish_batch([Message(b"500"), Message(b"501")])
    assert (first.first_seq, sent[0].seq, sent[-1].seq, batch.first_seq, batch.last_seq) == (1, 2, 500, 501, 502)
    found = take(client, store, 502)
    assert bodies(found) == [b"%d" % number for number in range(502)]
    assert (found[0].fields, found[0].key, found[0].delivery_count, found[0].redelivered) == (
        {"kind": "a", "n": 1, "new": True},
        "k",
        1,
        False,
    )


def test_threads_that_share_a_publisher_lose_nothing(client: StoreClient, store: str) -> None:
    with client.publisher(store) as publisher:

        def work(name: int) -> None:
            for number in range(100):
                if number % 2:
                    publisher.publish(b"%d/%d" % (name, number))
                else:
                    publisher.send(b"%d/%d" % (name, number))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        publisher.flush()
    found = bodies(take(client, store, 400))
    assert sorted(found) == sorted(b"%d/%d" % (name, number) for name in range(4) for number in range(100))
    for name in range(4):
        mine = [body for body in found if body.startswith(b"%d/" % name)]
        assert mine == [b"%d/%d" % (name, number) for number in range(100)]


def test_a_full_store_refuses_by_name_and_a_waiting_publisher_goes_on_when_there_is_room(client: StoreClient) -> None:
    store = f"small-{next(NAMES)}"
    client.define_store(store, {"message_limit": 3})
    client.define_durable(store, "work", {"type": "shared"})
    with client.publisher(store, options=ONCE) as publisher:
        for _ in range(3):
            publisher.publish(b"x")
        with pytest.raises(Backpressure) as refused:
            publisher.publish(b"x")
    assert refused.value.code is Code.STORE_FULL
    with client.publisher(store) as publisher:
        sent = publisher.send(b"late")
        assert len(take(client, store, 3)) == 3
        publisher.flush()
        assert sent.seq == 4


def test_one_message_too_large_fails_alone(client: StoreClient) -> None:
    store = f"narrow-{next(NAMES)}"
    client.define_store(store, {"max_message_size": "1k"})
    client.define_durable(store, "work", {"type": "shared"})
    with client.publisher(store) as publisher:
        sent = [publisher.send(b"x" * (2_000 if number == 3 else 10)) for number in range(6)]
        with pytest.raises(LimitExceeded) as refused:
            publisher.flush()
        assert refused.value.code is Code.MESSAGE_TOO_LARGE
        failures = publisher.take_failures()
        publisher.flush()
    assert [len(failure.message.body) for failure in failures] == [2_000]
    assert [item.seq for item in sent] == [1, 2, 3, 0, 4, 5]


def test_a_numbered_publisher_is_kept_once_across_its_own_restart(client: StoreClient, store: str) -> None:
    with client.publisher(store, publisher_id="p", next_seq=7) as publisher:
        publisher.publish_batch([Message(b"7"), Message(b"8")])
    with client.publisher(store, publisher_id="p", next_seq=8) as publisher:
        again = publisher.publish_batch([Message(b"8"), Message(b"9")])
    assert again.duplicates == 1
    assert bodies(take(client, store, 3)) == [b"7", b"8", b"9"]


def test_a_store_that_is_not_there_fails_at_once(client: StoreClient) -> None:
    with client.publisher("nowhere") as publisher, pytest.raises(NotFound):
        publisher.publish(b"x")
    with pytest.raises(NotFound), client.subscriber("nowhere", "work"):
        raise AssertionError("entering waits for the answer")


# subscribing


def test_what_is_not_acknowledged_comes_back_counted_and_flagged(client: StoreClient, store: str) -> None:
    with client.publisher(store) as publisher:
        publisher.publish_batch([Message(b"a"), Message(b"b")])
    with client.subscriber(store, "work", options=EXPLICIT) as subscriber:
        first, second = subscriber.receive(10), subscriber.receive(10)
        assert first is not None and second is not None
        assert subscriber.acknowledge(first, confirmed=True) == []
    again = take(client, store, 1)
    assert [(message.body, message.delivery_count, message.redelivered) for message in again] == [(b"b", 2, True)]


def test_an_acknowledgement_of_what_somebody_else_has_now_is_stale(client: StoreClient, store: str) -> None:
    with client.publisher(store) as publisher:
        publisher.publish(b"a")
    with client.subscriber(store, "work", options=EXPLICIT) as subscriber:
        message = subscriber.receive(10)
        assert message is not None
        subscriber.put_back(message, confirmed=True)
        again = subscriber.receive(10)
        assert again is not None and again.delivery_count == 2
        subscriber.acknowledge(again, confirmed=True)
        assert list(subscriber.acknowledge(message, confirmed=True)) == [message.seq]
        assert subscriber.stale == 1
        assert [advisory.kind for advisory in subscriber.take_advisories()] == ["stale_acknowledgement"]


def test_rejected_messages_go_to_the_dead_letters_with_their_cause(client: StoreClient) -> None:
    store = f"orders-{next(NAMES)}"
    client.define_store(f"{store}-dead")
    client.define_durable(f"{store}-dead", "letters", {"type": "shared"})
    client.define_store(store)
    client.define_durable(store, "work", {"type": "shared", "dead_letter_store": f"{store}-dead"})
    with client.publisher(store) as publisher:
        publisher.publish(b"a", fields={"kind": "x"})
    with client.subscriber(store, "work", options=EXPLICIT) as subscriber:
        message = subscriber.receive(10)
        assert message is not None
        subscriber.reject(message, confirmed=True)
    with client.subscriber(f"{store}-dead", "letters") as dead:
        letter = dead.receive(10)
    assert letter is not None and (letter.body, letter.fields) == (b"a", {"kind": "x"})
    assert letter.origin == Origin(store, "work", 1, "rejected", 1)


def test_a_callback_that_raises_gives_its_message_back(client: StoreClient, store: str) -> None:
    with client.publisher(store) as publisher:
        publisher.publish_batch([Message(b"good"), Message(b"bad")])

    class Broken(Exception):
        pass

    def work(message: Delivery) -> None:
        if message.body == b"bad":
            raise Broken

    with client.subscriber(store, "work") as subscriber, pytest.raises(Broken):
        subscriber.run(work, stop_on_error=True)
    again = take(client, store, 1)
    assert [message.body for message in again] == [b"bad"] and again[0].delivery_count == 2


class Left(Exception):
    pass


@pytest.mark.parametrize("raises", [False, True])
def test_what_is_worked_on_when_the_block_is_left_comes_again(client: StoreClient, store: str, raises: bool) -> None:
    with client.publisher(store) as publisher:
        publisher.publish_batch([Message(b"%d" % number) for number in range(10)])
    with contextlib.suppress(Left), client.subscriber(store, "work") as subscriber:
        for message in subscriber:
            if message.body == b"2":
                if raises:
                    raise Left
                break
    with contextlib.suppress(Left), client.subscriber(store, "work") as subscriber:
        for batch in subscriber.batches():
            assert batch[0].body == b"2", "what was asked past is consumed, and nothing else"
            if raises:
                raise Left
            break
    assert client.describe_durable(store, "work")["counts"]["messages"] == 8  # type: ignore[index]
    left = take(client, store, 8)
    assert bodies(left) == [b"%d" % number for number in range(2, 10)]


def test_what_an_application_settles_itself_is_not_acknowledged_once_more(client: StoreClient, store: str) -> None:
    with client.publisher(store) as publisher:
        publisher.publish_batch([Message(b"a"), Message(b"b"), Message(b"c")])
    with client.subscriber(store, "work") as subscriber:
        first, second = subscriber.receive(10), subscriber.receive(10)
        assert first is not None and second is not None
        subscriber.put_back(second, delay=3_600, confirmed=True)
        last = subscriber.receive(10)
        assert last is not None
        assert list(subscriber.acknowledge(last, confirmed=True)) == []
        assert subscriber.receive(0) is None
        assert subscriber.stale == 0
    assert client.describe_durable(store, "work")["counts"]["messages"] == 1  # type: ignore[index]


def test_the_asyncio_twin_leaves_what_is_worked_on_too(service: Service, store: str) -> None:
    async def work() -> None:
        async with asynchronous(service) as client:
            async with client.publisher(store) as publisher:
                await publisher.publish_batch([Message(b"%d" % number) for number in range(10)])
            async with client.subscriber(store, "work") as subscriber:
                async for message in subscriber:
                    if message.body == b"2":
                        break
            with contextlib.suppress(Left):
                async with client.subscriber(store, "work") as subscriber:
                    async for batch in subscriber.batches():
                        assert batch[0].body == b"2"
                        raise Left
            async with client.subscriber(store, "work") as subscriber:
                message = await subscriber.receive(10)
                assert message is not None and message.body == b"2"
                assert list(await subscriber.acknowledge(message, confirmed=True)) == []
            described = await client.describe_durable(store, "work")
            assert described["counts"]["messages"] == 7  # type: ignore[index]

    run(work)


def test_a_subscriber_takes_over_a_standard_durable(client: StoreClient, store: str) -> None:
    client.define_durable(store, "one", {"type": "standard"})
    with client.subscriber(store, "one", subscriber="old") as old:
        assert old.receive(0.5) is None
        with client.subscriber(store, "one", subscriber="new", take_over=True) as new:
            with pytest.raises(Fenced) as collision:
                old.receive(10)
            assert collision.value.code is Code.DURABLE_COLLISION
            with client.publisher(store) as publisher:
                publisher.publish(b"a")
            assert new.receive(10) is not None


def test_a_dynamic_durable_is_made_of_its_template_and_gets_what_its_matcher_says(
    client: StoreClient, store: str
) -> None:
    client.define_template(store, "jobs", {"type": "shared"})
    with (
        client.publisher(store) as publisher,
        client.subscriber(store, "mine", template="jobs", matcher={"kind": ["a", "b"]}) as subscriber,
    ):
        assert subscriber.receive(0.5) is None
        publisher.publish_batch([Message(kind.encode(), {"kind": kind}) for kind in "abc"])
        found = [subscriber.receive(10), subscriber.receive(10)]
        assert [message.body for message in found if message is not None] == [b"a", b"b"]
    with (
        pytest.raises(HoldfastError) as refused,
        client.subscriber(store, "mine", template="jobs", matcher={"kind": "z"}),
    ):
        raise AssertionError("entering waits for the answer")
    assert refused.value.code is Code.MATCHER_MISMATCH
    client.delete_durable(store, "mine")


def test_prefetch_bounds_what_one_subscriber_holds(client: StoreClient, store: str) -> None:
    with client.publisher(store) as publisher:
        publisher.publish_batch([Message(b"%d" % number) for number in range(10)])
    options = SubscriberOptions(explicit_ack=True, prefetch=3)
    with client.subscriber(store, "work", options=options) as slow:
        held = [slow.receive(10) for _ in range(3)]
        assert all(message is not None for message in held)
        others = bodies(take(client, store, 4))
        assert set(others).isdisjoint(message.body for message in held if message is not None)


def test_closing_twice_and_using_what_is_closed_says_so(client: StoreClient, store: str) -> None:
    subscriber = client.subscriber(store, "work")
    assert subscriber.receive(0.2) is None
    subscriber.close()
    subscriber.close()
    assert subscriber.receive(1) is None
    publisher = client.publisher(store)
    publisher.publish(b"a")
    publisher.close()
    with pytest.raises(Closed):
        publisher.publish(b"b")


# maps, browsing, administration


def test_a_map_keeps_values_with_revisions_and_conditions(client: StoreClient, store: str) -> None:
    client.define_durable(store, "settings", {"type": "map"})
    settings = client.map(store, "settings")
    assert settings.get("a") is None
    first = settings.set("a", b"1", if_revision=0)
    second = settings.set("a", b"2", if_revision=first)
    assert second > first
    with pytest.raises(Conflict) as mismatch:
        settings.set("a", b"3", if_revision=first)
    assert mismatch.value.code is Code.REVISION_MISMATCH
    settings.set_many({"b/c d": b"4", "e": b"5", "a": None})
    assert [(entry.key, entry.value) for entry in settings.items()] == [("b/c d", b"4"), ("e", b"5")]
    found = settings.get("b/c d")
    assert found is not None and found.value == b"4"
    settings.remove("e")
    assert [entry.key for entry in settings.items()] == ["b/c d"]


def test_a_lock_has_one_holder_and_its_fence_guards_writes(client: StoreClient, store: str) -> None:
    client.define_durable(store, "locks", {"type": "map"})
    locks = client.map(store, "locks")
    mine = locks.lock("a", owner="me", ttl_ms=60_000)
    with pytest.raises(Conflict) as held:
        locks.lock("a", owner="you", ttl_ms=60_000)
    assert held.value.code is Code.LOCK_HELD
    locks.set("a", b"1", fence=mine.fence)
    yours = locks.lock("a", owner="you", ttl_ms=60_000, steal=True)
    assert yours.fence > mine.fence
    with pytest.raises(HoldfastError) as stolen:
        locks.set("a", b"2", fence=mine.fence)
    assert stolen.value.code is Code.NOT_HOLDER
    locks.unlock(yours)
    assert locks.lock("a", owner="me", ttl_ms=1_000).fence > yours.fence


def test_browsing_consumes_nothing_and_may_delete_one(client: StoreClient, store: str) -> None:
    with client.publisher(store) as publisher:
        publisher.publish_batch([Message(b"%d" % number, {"parity": number % 2}) for number in range(250)])
    browser = client.browser(store, "work")
    found = list(browser)
    assert len(found) == 250
    browser.delete(found[0])
    even = [int(message.body) for message in client.browser(store, "work", match={"parity": 0})]
    assert even == list(range(2, 250, 2))
    assert client.purge(store, "work").messages == 249
    assert list(client.browser(store, "work")) == []


def test_browsing_finds_the_one_that_matches_behind_thousands_that_do_not(client: StoreClient, store: str) -> None:
    with client.publisher(store) as publisher:
        for _ in range(5):
            publisher.publish_batch([Message(b"other")] * 1_000)
        publisher.publish(b"wanted", fields={"kind": "rare"})
    assert [message.seq for message in client.browser(store, "work", match={"kind": "rare"})] == [5_001]


def test_a_rewind_delivers_what_is_retained_again(client: StoreClient, store: str) -> None:
    client.define_durable(store, "kept", {"type": "shared", "retention_time": "1h"})
    with client.publisher(store) as publisher:
        publisher.publish_batch([Message(b"a"), Message(b"b")])
    with client.subscriber(store, "kept") as subscriber:
        first = [subscriber.receive(10) for _ in range(2)]
    assert [message.replayed for message in first if message is not None] == [False, False]
    client.rewind(store, "kept")
    with client.subscriber(store, "kept") as subscriber:
        again = [subscriber.receive(10) for _ in range(2)]
    assert [message.body for message in again if message is not None] == [b"a", b"b"]
    assert [(message.replayed, message.redelivered) for message in again if message is not None] == [(True, True)] * 2


def test_definitions_are_checked_whole_and_compared(client: StoreClient, store: str) -> None:
    assert store in {str(found["name"]) for found in client.stores()["stores"]}  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequest) as wrong:
        client.define_durable(store, "bad", {"type": "shared", "prefetch": -1})
    assert "prefetch" in str(wrong.value)
    definition = client.definition()["definition"]
    assert isinstance(definition, dict)
    assert client.check_definition(definition)["definition"] == definition


# asyncio


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # counts that tests look at, which no event follows
        await asyncio.sleep(0.005)


def test_the_asyncio_twin_publishes_and_consumes(service: Service, store: str) -> None:
    async def work() -> None:
        async with asynchronous(service) as client:
            async with client.publisher(store) as publisher:
                await asyncio.gather(*[publisher.publish(b"%d" % number) for number in range(300)])
                for number in range(300, 600):
                    await publisher.send(b"%d" % number)
                await publisher.flush()
                assert publisher.unconfirmed == 0
            found: list[bytes] = []
            async with client.subscriber(store, "work") as subscriber:
                async for messages in subscriber.batches():
                    found += bodies(messages)
                    if len(found) == 600:
                        assert list(await subscriber.acknowledge(*messages, confirmed=True)) == []
                        break
                assert subscriber.stale == 0
            assert found == [b"%d" % number for number in range(600)]
            described = await client.describe_durable(store, "work")
            assert described["counts"]["backlog"] == 0  # type: ignore[index]

    run(work)


def test_two_asyncio_subscribers_share_and_one_that_leaves_gives_back(service: Service, store: str) -> None:
    async def work() -> None:
        async with asynchronous(service) as client:
            one = client.subscriber(store, "work", subscriber="one", options=SubscriberOptions(True, 10))
            two = client.subscriber(store, "work", subscriber="two", options=SubscriberOptions(True, 10))
            async with one, two, client.publisher(store) as publisher:
                await until(lambda: one.is_attached and two.is_attached)
                await publisher.publish_batch([Message(b"%d" % number) for number in range(20)])
                mine = [await one.receive(10) for _ in range(10)]
                first_of_two = await two.receive(10)
                assert first_of_two is not None and first_of_two not in mine
                await one.aclose()
                seen = {first_of_two.body}
                await two.acknowledge(first_of_two)
                while len(seen) < 20:
                    message = await two.receive(10)
                    assert message is not None
                    seen.add(message.body)
                    await two.acknowledge(message)
                assert seen == {b"%d" % number for number in range(20)}

    run(work)


def test_a_cancelled_publish_leaves_the_publisher_whole(service: Service, store: str) -> None:
    async def work() -> None:
        async with asynchronous(service) as client, client.publisher(store) as publisher:
            for number in range(50):
                task = asyncio.create_task(publisher.publish(b"%d" % number))
                await asyncio.sleep(0)
                if number % 2:
                    await asyncio.sleep(0.002)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await publisher.publish(b"last")
            found = [message.body async for message in client.browser(store, "work")]
            # A cancelled one may be there or not, but none twice, and none out of order.
            assert found == [body for body in [*(b"%d" % number for number in range(50)), b"last"] if body in found]
            assert len(set(found)) == len(found) and found[-1] == b"last"

    run(work)


@pytest.mark.parametrize("twin", ["blocking", "asyncio"])
def test_closing_the_client_first_ends_its_publisher(service: Service, store: str, twin: str) -> None:
    if twin == "blocking":
        client = StoreClient(service.url)
        publisher = client.publisher(store)
        publisher.publish(b"a")
        client.close()
        with pytest.raises(Closed):
            publisher.publish(b"b")
        return

    async def work() -> None:
        client = AsyncStoreClient(service.url)
        publisher = client.publisher(store)
        await publisher.publish(b"a")
        await client.aclose()
        with pytest.raises(Closed):
            await publisher.publish(b"b")

    run(work)


def test_the_asyncio_twin_runs_a_map_and_a_browser(service: Service, store: str) -> None:
    async def work() -> None:
        async with asynchronous(service) as client:
            await client.define_durable(store, "m", {"type": "map"})
            numbers = client.map(store, "m")
            await numbers.set_many({f"{number:04d}": b"%d" % number for number in range(1_500)})
            assert [entry.key async for entry in numbers.items()] == [f"{number:04d}" for number in range(1_500)]
            async with client.publisher(store) as publisher:
                await publisher.publish(b"a")
            assert [message.body async for message in client.browser(store, "work")] == [b"a"]

    run(work)


def test_nobody_there_is_told_after_retry_duration_and_not_before() -> None:
    options = ClientOptions(request_timeout_ms=200, give_up_after_ms=300)
    with StoreClient(f"http://127.0.0.1:{free_port()}", options=options) as client:
        with (
            client.publisher("s", options=PublisherOptions(retry_duration=0.3)) as publisher,
            pytest.raises(Unavailable),
        ):
            publisher.publish(b"a")
        with (
            pytest.raises(Unavailable),
            client.subscriber("s", "d", options=SubscriberOptions(retry_duration=0.3)),
        ):
            raise AssertionError("entering waits for the answer")
        with pytest.raises(Unavailable):
            client.stores()


# the service is killed


def test_a_kill_in_the_middle_loses_and_doubles_nothing_that_was_confirmed(service: Service, store: str) -> None:
    """Publisher and subscriber go on through it; the restart happens while both are at work."""

    async def work() -> None:
        async with asynchronous(service) as client:
            confirmed: list[bytes] = []
            seen: dict[bytes, int] = {}
            redelivered: set[bytes] = set()
            stop = asyncio.Event()

            async def publish() -> None:
                async with client.publisher(store) as publisher:
                    number = 0
                    while not stop.is_set():
                        batch = [Message(b"%d" % n) for n in range(number, number + 10)]
                        await publisher.publish_batch(batch)
                        confirmed.extend(message.body for message in batch)
                        number += 10
                    # The subscriber looks whether it is done when a message comes: one comes after the last batch.
                    confirmed.append(b"the end")
                    await publisher.publish_batch([Message(b"the end")])

            async def subscribe() -> None:
                async with client.subscriber(store, "work", subscriber="me") as subscriber:
                    async for message in subscriber:
                        seen[message.body] = seen.get(message.body, 0) + 1
                        if message.redelivered:
                            redelivered.add(message.body)
                        if b"the end" in confirmed and seen.keys() >= set(confirmed):
                            break
                    kinds = [advisory.kind for advisory in subscriber.take_advisories()]
                    assert kinds[:2] == ["store_unavailable", "store_available"]

            tasks = [asyncio.create_task(publish()), asyncio.create_task(subscribe())]
            await until(lambda: len(seen) >= 500)
            before = len(confirmed)
            service.restart()
            await until(lambda: len(confirmed) >= before + 500)
            stop.set()
            await asyncio.gather(*tasks)
            assert set(seen) == set(confirmed)
            assert {body for body, count in seen.items() if count > 1} <= redelivered

    run(work)


@pytest.mark.matrix  # the test before kills; the twin is made of the same code
def test_the_blocking_twin_goes_on_through_a_kill_too(service: Service, client: StoreClient, store: str) -> None:
    confirmed: list[bytes] = []
    seen: dict[bytes, int] = {}
    redelivered: set[bytes] = set()
    stop = threading.Event()

    def publish() -> None:
        number = 0
        with client.publisher(store) as publisher:
            while not stop.is_set():
                for _ in range(10):
                    publisher.send(b"%d" % number)
                    number += 1
                publisher.flush()
                confirmed.extend(b"%d" % n for n in range(number - 10, number))

    def subscribe() -> None:
        with client.subscriber(store, "work", subscriber="me") as subscriber:
            # What is confirmed after the stop, the publisher's last batch, is to be seen as well.
            while publishing.is_alive() or not seen.keys() >= set(confirmed):
                message = subscriber.receive(0.2)
                if message is not None:
                    seen[message.body] = seen.get(message.body, 0) + 1
                    if message.redelivered:
                        redelivered.add(message.body)

    publishing = threading.Thread(target=publish)
    threads = [publishing, threading.Thread(target=subscribe)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(seen) >= 300)
        before = len(confirmed)
        service.restart()
        wait_until(lambda: len(confirmed) >= before + 300)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(seen) == set(confirmed)
    assert {body for body, count in seen.items() if count > 1} <= redelivered


def wait_until(holds: Callable[[], bool], seconds_max: float = 60) -> None:
    end = time.monotonic() + seconds_max
    while not holds():
        assert time.monotonic() < end, "it does not come to hold"
        time.sleep(0.01)


def test_a_change_of_one_part_deletes_messages_only_where_delete_allows_it(
    client: StoreClient, service: Service
) -> None:
    store = f"s{next(NAMES)}"
    limit = {"message_limit": 2, "discard": "old"}
    client.define_store(store)
    client.define_durable(store, "work", {"type": "shared"})
    client.define_template(store, "jobs", {"type": "shared"})
    with client.subscriber(store, "made", subscriber="me", template="jobs"):
        pass
    with client.publisher(store) as publisher:
        for _ in range(3):
            publisher.send(b"x")
    for refused in (
        lambda: client.define_durable(store, "work", {"type": "shared", **limit}),
        lambda: client.define_template(store, "jobs", {"type": "shared", **limit}),
        lambda: client.edit(f"{store}/work", limit),
        lambda: client.edit(f"{store}/jobs", limit, template=True),
        lambda: client.define_store(store, {"durables": {}}),
    ):
        with pytest.raises(Conflict, match="delete=true allows it") as caught:
            refused()
        assert caught.value.code is Code.DELETES_MESSAGES
    client.define_durable(store, "work", {"type": "shared", **limit}, delete=True)
    client.define_template(store, "jobs", {"type": "shared", **limit}, delete=True)
    client.edit(f"{store}/work", {"message_limit": 1}, delete=True)

    async def same() -> None:
        async with AsyncStoreClient(service.url) as twin:
            with pytest.raises(Conflict):
                await twin.edit(f"{store}/jobs", {"message_limit": 1}, template=True)
            await twin.edit(f"{store}/jobs", {"message_limit": 1}, template=True, delete=True)
            with pytest.raises(Conflict):
                await twin.define_store(store, {"durables": {}, "templates": {}})
            await twin.define_durable(store, "work", {"type": "shared"}, delete=True)
            await twin.define_template(store, "jobs", {"type": "shared"}, delete=True)
            await twin.define_store(store, {"durables": {}}, delete=True)

    asyncio.run(same())
    assert [one["name"] for one in client.durables(store)["durables"]] == ["made"]


def test_an_absent_map_is_named_and_an_absent_key_is_none(client: StoreClient, service: Service) -> None:
    store = f"s{next(NAMES)}"
    client.define_store(store)
    client.define_durable(store, "m", {"type": "map"})
    known = client.map(store, "m")
    assert known.get("k") is None
    known.set("k", b"v")
    assert (known.remove("k"), known.remove("k"), known.get("k")) == (True, False, None)
    with pytest.raises(NotFound, match="durable=nope"):
        client.map(store, "nope").get("k")
    with pytest.raises(NotFound, match="store=absent"):
        client.map("absent", "m").get("k")

    async def same() -> None:
        async with AsyncStoreClient(service.url) as twin:
            assert await twin.map(store, "m").get("k") is None
            assert not await twin.map(store, "m").remove("k")
            with pytest.raises(NotFound, match="durable=nope"):
                await twin.map(store, "nope").get("k")

    asyncio.run(same())


def test_errors_of_wrong_arguments_say_what_to_give(client: StoreClient, service: Service) -> None:
    store = f"s{next(NAMES)}"
    client.define_store(store)
    client.define_durable(store, "work", {"type": "shared"})
    client.define_durable(store, "last", {"type": "last_value"})
    with pytest.raises(InvalidRequest, match="key="), client.subscriber(store, "last", subscriber="me"):
        pass
    with (
        client.publisher(store, options=PublisherOptions(batch_messages=2)) as publisher,
        pytest.raises(InvalidRequest, match=r"PublisherOptions\(batch_messages=\.\.\.\)"),
    ):
        publisher.publish_batch([Message(b"x")] * 3)
    with client.subscriber(store, "work", subscriber="me") as subscriber:
        for wrong in ("x", 0, 1.5, True, None):
            with pytest.raises(InvalidRequest, match="handlers is a whole number"):
                subscriber.run(print, handlers=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="retry_delay"):
            subscriber.run(print, retry_delay="x")  # type: ignore[arg-type]
