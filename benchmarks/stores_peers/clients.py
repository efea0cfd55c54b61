"""One asyncio client for each system, behind one shape: what a lane asks of it.

Owns: how each system's own Python library publishes with confirmation and consumes with acknowledgement, as its
documents recommend. Does not own: time (``worker``), servers (``servers``).

    system      publish confirmed                      consume with acknowledgement
    holdfast    StoreClient.publisher: send, publish,  StoreClient.subscriber, batches as they come; acknowledgements
                publish_batch                          confirmed by the service, synced with the group they fall in
    nats        JetStream publish and publish_async    pull consumer, fetch(100), ack of each, not awaited
    redis       XADD, one command each; a pipeline     XREADGROUP COUNT 100, then one XACK of 100, both awaited
                without a transaction for batches
    rabbitmq    publisher confirms, a quorum queue     prefetch 256, ack of each, not awaited
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

__all__ = ["CLIENTS", "PREFILLED", "Client"]

WINDOW = 256
FETCHED = 100
PREFILLED = {"holdfast": 100_000, "nats": 30_000, "redis": 100_000, "rabbitmq": 12_000}
"""How many messages a run that consumes finds: a few seconds of work for each system."""


class Client(Protocol):
    """What a lane asks of a system."""

    async def open(self, port: int, name: str) -> None:
        """Connect; make the stream or queue ``name``, empty."""
        ...

    async def publish(self, body: bytes) -> None:
        """One message; returns when it is confirmed."""
        ...

    async def start(self, body: bytes, done: Callable[[], None]) -> None:
        """One message within a window of ``WINDOW``; ``done`` when it is confirmed."""
        ...

    async def settle(self) -> None:
        """Until everything started is confirmed."""
        ...

    async def publish_batch(self, bodies: Sequence[bytes]) -> None:
        """Messages together; returns when all are confirmed."""
        ...

    async def prepare(self) -> None:
        """Make who will consume, before the messages are there."""
        ...

    async def consume(self, count: int) -> int:
        """Consume and acknowledge so many. Answers how many there were."""
        ...

    async def follow(self, arrived: Callable[[bytes], None]) -> Callable[[], Awaitable[None]]:
        """Consume and acknowledge whatever comes, until the answer is called."""
        ...

    async def count(self) -> int:
        """How many messages the stream has taken, for the check."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


class Holdfast:
    """This package."""

    async def open(self, port: int, name: str) -> None:
        from holdfast.aio import StoreClient
        from holdfast.client.stores import PublisherOptions

        self._name = name
        self._client = StoreClient(f"http://127.0.0.1:{port}")
        await self._client.define_store(name)
        await self._client.define_durable(name, "kept", {"type": "shared"})
        self._publisher = self._client.publisher(name, options=PublisherOptions(window_messages=WINDOW))

    async def publish(self, body: bytes) -> None:
        await self._publisher.publish(body)

    async def start(self, body: bytes, done: Callable[[], None]) -> None:
        (await self._publisher.send(body)).on_done = lambda _: done()

    async def settle(self) -> None:
        await self._publisher.flush()

    async def publish_batch(self, bodies: Sequence[bytes]) -> None:
        from holdfast.client.stores import Message

        await self._publisher.publish_batch([Message(body) for body in bodies])

    async def prepare(self) -> None:
        pass

    async def consume(self, count: int) -> int:
        seen = 0
        async with self._client.subscriber(self._name, "kept") as subscriber:
            async for messages in subscriber.batches():
                seen += len(messages)
                if seen >= count:
                    await subscriber.acknowledge(*messages)
                    break
        return seen

    async def follow(self, arrived: Callable[[bytes], None]) -> Callable[[], Awaitable[None]]:
        subscriber = self._client.subscriber(self._name, "kept")
        await subscriber.__aenter__()

        async def run() -> None:
            async for message in subscriber:
                arrived(message.body)

        task = asyncio.create_task(run())

        async def stop() -> None:
            await subscriber.aclose()
            await task

        while not subscriber.is_attached:  # noqa: ASYNC110  # nothing is measured yet
            await asyncio.sleep(0.01)
        return stop

    async def count(self) -> int:
        last = await self._publisher.publish(b"last")
        return last.last_seq - 1

    async def close(self) -> None:
        await self._publisher.aclose()
        await self._client.delete_store(self._name)
        await self._client.aclose()


class Nats:
    """NATS JetStream, file storage, one replica."""

    async def open(self, port: int, name: str) -> None:
        import nats

        self._name = name
        self._connection = await nats.connect(f"nats://127.0.0.1:{port}")
        self._stream = self._connection.jetstream(publish_async_max_pending=WINDOW)
        await self._stream.add_stream(name=name, subjects=[name])
        self._pending: set[asyncio.Future[Any]] = set()
        self._room = asyncio.Semaphore(WINDOW)

    async def publish(self, body: bytes) -> None:
        await self._stream.publish(self._name, body)

    async def start(self, body: bytes, done: Callable[[], None]) -> None:
        await self._room.acquire()
        future = await self._stream.publish_async(self._name, body)
        self._pending.add(future)

        def confirmed(future: asyncio.Future[Any]) -> None:
            self._pending.discard(future)
            future.result()
            self._room.release()
            done()

        future.add_done_callback(confirmed)

    async def settle(self) -> None:
        await self._stream.publish_async_completed()
        if self._pending:
            await asyncio.wait(self._pending)

    async def publish_batch(self, bodies: Sequence[bytes]) -> None:
        await asyncio.gather(*[await self._stream.publish_async(self._name, body) for body in bodies])

    async def prepare(self) -> None:
        pass

    async def consume(self, count: int) -> int:
        subscription = await self._stream.pull_subscribe(self._name, durable="bench")
        seen = 0
        while seen < count:
            for message in await subscription.fetch(FETCHED, timeout=10):
                await message.ack()
                seen += 1
        await self._connection.flush()
        return seen

    async def follow(self, arrived: Callable[[bytes], None]) -> Callable[[], Awaitable[None]]:
        async def on_message(message: Any) -> None:
            arrived(message.data)
            await message.ack()

        subscription = await self._stream.subscribe(self._name, durable="follow", cb=on_message, manual_ack=True)
        return subscription.unsubscribe

    async def count(self) -> int:
        info = await self._stream.stream_info(self._name)
        taken: int = info.state.messages
        return taken

    async def close(self) -> None:
        await self._stream.delete_stream(self._name)
        await self._connection.close()


class Redis:
    """Redis Streams, through the library's own connection where its client has no window."""

    async def open(self, port: int, name: str) -> None:
        import redis.asyncio as redis

        self._name = name
        self._client = redis.Redis(host="127.0.0.1", port=port)
        self._reading = redis.Redis(host="127.0.0.1", port=port)
        await self._client.delete(name)
        self._line = redis.Connection(host="127.0.0.1", port=port)
        await self._line.connect()
        self._waiting: collections.deque[Callable[[], None]] = collections.deque()
        self._room = asyncio.Semaphore(WINDOW)
        self._reader: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    async def publish(self, body: bytes) -> None:
        await self._client.xadd(self._name, {"d": body})

    async def start(self, body: bytes, done: Callable[[], None]) -> None:
        await self._room.acquire()
        self._waiting.append(done)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        # The connection's own send waits for its buffer after each command, which halved what its server gets to do.
        writer = self._line._writer
        assert writer is not None, "the line is connected"
        writer.writelines(self._line.pack_command("XADD", self._name, "*", "d", body))

    async def _read(self) -> None:
        while True:
            await self._line.read_response()
            self._waiting.popleft()()
            self._room.release()
            if not self._waiting:
                self._settled.set()

    async def settle(self) -> None:
        self._settled.clear()
        if self._waiting:
            await self._settled.wait()

    async def publish_batch(self, bodies: Sequence[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd(self._name, {"d": body})
        await pipeline.execute()

    async def prepare(self) -> None:
        await self._client.xgroup_create(self._name, "bench", id="0", mkstream=True)

    async def consume(self, count: int) -> int:
        seen = 0
        while seen < count:
            found = await self._client.xreadgroup("bench", "c", {self._name: ">"}, count=FETCHED, block=10_000)
            names = [name for name, _ in found[0][1]]
            await self._client.xack(self._name, "bench", *names)
            seen += len(names)
        return seen

    async def follow(self, arrived: Callable[[bytes], None]) -> Callable[[], Awaitable[None]]:
        going_on = True

        async def run() -> None:
            while going_on:
                found = await self._reading.xreadgroup("bench", "c", {self._name: ">"}, count=FETCHED, block=200)
                if found:
                    for _, fields in found[0][1]:
                        arrived(fields[b"d"])
                    await self._reading.xack(self._name, "bench", *[name for name, _ in found[0][1]])

        task = asyncio.create_task(run())

        async def stop() -> None:
            nonlocal going_on
            going_on = False
            await task

        return stop

    async def count(self) -> int:
        taken: int = await self._client.xlen(self._name)
        return taken

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._client.delete(self._name)
        await self._line.disconnect()
        await self._reading.aclose()
        await self._client.aclose()


class RabbitMQ:
    """A quorum queue of one member, publisher confirms."""

    async def open(self, port: int, name: str) -> None:
        import aio_pika

        self._library = aio_pika
        self._name = name
        self._connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
        self._channel = await self._connection.channel(publisher_confirms=True)
        self._queue = await self._channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(WINDOW)
        self._taken = 0

    async def publish(self, body: bytes) -> None:
        message = self._library.Message(body, delivery_mode=self._library.DeliveryMode.PERSISTENT)
        await self._channel.default_exchange.publish(message, self._name)
        self._taken += 1

    async def start(self, body: bytes, done: Callable[[], None]) -> None:
        await self._room.acquire()
        task = asyncio.create_task(self.publish(body))
        self._tasks.add(task)

        def confirmed(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            task.result()
            self._room.release()
            done()

        task.add_done_callback(confirmed)

    async def settle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def publish_batch(self, bodies: Sequence[bytes]) -> None:
        await asyncio.gather(*[self.publish(body) for body in bodies])

    async def prepare(self) -> None:
        await self._channel.set_qos(prefetch_count=WINDOW)

    async def consume(self, count: int) -> int:
        seen = 0
        async with self._queue.iterator() as messages:
            async for message in messages:
                await message.ack()
                seen += 1
                if seen == count:
                    break
        return seen

    async def follow(self, arrived: Callable[[bytes], None]) -> Callable[[], Awaitable[None]]:
        connection = await self._library.connect(self._connection.url)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=WINDOW)
        queue = await channel.get_queue(self._name)

        async def on_message(message: Any) -> None:
            arrived(message.body)
            await message.ack()

        tag = await queue.consume(on_message)

        async def stop() -> None:
            await queue.cancel(tag)
            await connection.close()

        return stop

    async def count(self) -> int:
        # A quorum queue counts what is ready some time later; what the broker confirmed is what this client counted.
        return self._taken

    async def close(self) -> None:
        await self._queue.delete(if_unused=False, if_empty=False)
        await self._connection.close()


CLIENTS: dict[str, Callable[[], Client]] = {
    "holdfast": Holdfast,
    "nats": Nats,
    "redis": Redis,
    "rabbitmq": RabbitMQ,
}
