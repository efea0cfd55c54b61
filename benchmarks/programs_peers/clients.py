"""One client for each system, with one interface: what a lane asks of it.

Owns: how a program uses each system's own Python library, as its documents recommend and with its defaults. Does not
own: load and time (``worker``), tasks and threads (``ways``), servers.

    lane                  holdfast                etcd (aetcd)                      redis (redis-py)
    commit                commit of one Write     put                               SET
    several keys          commit of ten           transaction without a compare     MULTI, SETs, EXEC
    get                   get                     get(serializable=True)            GET
    get, linearizable     get(linearizable=True)  get                               (the same as get)
    range                 range                   get_range                         ZRANGE BYLEX, values in the members
    transact              transact                get, transaction comparing mod    transaction: WATCH, GET, MULTI, EXEC
    change stream         commit, subscribe       put, watch_prefix                 MULTI, SET, XADD, EXEC; XREAD BLOCK

One exception from the defaults: redis-py refuses more than 100 commands at the same time, so its pool has as many
connections as the program has tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from programs_peers.ways import Way

__all__ = ["CLIENTS", "Client", "Pair", "plus_one"]

Pair = tuple[bytes, bytes]
Stop = Callable[[], Awaitable[None]]
Arrived = Callable[[bytes, bytes], None]
Failed = Callable[[BaseException], None]
BLOCK_MS = 100


def plus_one(found: bytes | None) -> bytes:
    """The value after this one in the lane ``transact``, in 100 bytes."""
    return b"%0100d" % (int(found or 0) + 1)


class Client(Protocol):
    """What a lane asks of a system."""

    def __init__(self, way: Way) -> None: ...

    async def open(self, port: int, tasks: int) -> None:
        """Make the library's client, for this many tasks or threads."""
        ...

    async def commit(self, key: bytes, value: bytes) -> None:
        """Write one key; returns when it is durable."""
        ...

    async def commit_many(self, pairs: Sequence[Pair]) -> None:
        """Write several keys, all or nothing; returns when they are durable."""
        ...

    async def fill(self, pairs: Sequence[Pair]) -> None:
        """Write keys in order so that ``get`` and ``range`` find all of them."""
        ...

    async def get(self, key: bytes) -> bytes | None:
        """The value; it may be older than the newest one."""
        ...

    async def get_linearizable(self, key: bytes) -> bytes | None:
        """The value; not older than any that was there when this was called."""
        ...

    async def range(self, begin: bytes, end: bytes) -> list[Pair]:
        """What ``fill`` wrote in ``[begin, end)``: at most 100 keys."""
        ...

    async def add_one(self, key: bytes) -> None:
        """Read, check, write: ``plus_one``, again after a conflict."""
        ...

    async def follow(self, prefix: bytes, arrived: Arrived, failed: Failed) -> Stop:
        """Call ``arrived`` with each key that ``commit_followed`` writes from now on; the answer ends that."""
        ...

    async def commit_followed(self, key: bytes, value: bytes) -> None:
        """``commit``, so that who follows gets it."""
        ...

    async def read_back(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The newest values of keys that are neighbours, at most 1,000."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


class Holdfast:
    """This package: ``holdfast.aio.Client``, or ``holdfast.Client`` with threads."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._answer = way.answer

    async def open(self, port: int, tasks: int) -> None:
        import holdfast
        from holdfast import aio
        from holdfast.commit.format.transaction import Write
        from programs_peers.ways import Tasks

        self._write = Write
        url = f"http://127.0.0.1:{port}"
        self._client: Any = aio.Client(url) if isinstance(self._way, Tasks) else holdfast.Client(url)

    async def commit(self, key: bytes, value: bytes) -> None:
        await self._answer(self._client.commit([self._write(key, value)]))

    commit_followed = commit

    async def commit_many(self, pairs: Sequence[Pair]) -> None:
        await self._answer(self._client.commit([self._write(key, value) for key, value in pairs]))

    async def fill(self, pairs: Sequence[Pair]) -> None:
        await self.commit_many(pairs)
        await self.read_back([pairs[0][0]])

    async def get(self, key: bytes) -> bytes | None:
        found = await self._answer(self._client.get(key))
        return None if found is None else found.value

    async def get_linearizable(self, key: bytes) -> bytes | None:
        found = await self._answer(self._client.get(key, linearizable=True))
        return None if found is None else found.value

    async def range(self, begin: bytes, end: bytes) -> list[Pair]:
        found = await self._answer(self._client.range(begin, end))
        return [(row.key, row.value) for row in found.items]

    async def add_one(self, key: bytes) -> None:
        async def add(txn: Any) -> None:
            txn.write(key, plus_one(await self._answer(txn.get(key))))

        await self._answer(self._client.transact(self._way.function(add)))

    async def follow(self, prefix: bytes, arrived: Arrived, failed: Failed) -> Stop:
        newest = await self._answer(self._client.version(local=True))
        events = self._client.subscribe(newest.position, prefix=prefix)

        async def read() -> None:
            while True:
                try:
                    event = await self._way.next_of(events)
                except StopAsyncIteration:
                    return
                for written in event.operations:
                    arrived(written.key, written.value)

        ended = self._way.spawn(read(), failed)

        async def stop() -> None:
            await self._way.close(events)
            await ended()

        return stop

    async def read_back(self, keys: Sequence[bytes]) -> list[bytes | None]:
        newest = await self._answer(self._client.version(local=True))
        found = await self._answer(self._client.range(keys[0], keys[-1] + b"\0", at=newest.position))
        values = {row.key: row.value for row in found.items}
        return [values.get(key) for key in keys]

    async def close(self) -> None:
        await self._way.close(self._client)


class Etcd:
    """aetcd, an asyncio client over gRPC. There is no blocking one that is kept up to date."""

    def __init__(self, way: Way) -> None:
        self._way = way

    async def open(self, port: int, tasks: int) -> None:
        import aetcd

        self._client = aetcd.Client("127.0.0.1", port)
        await self._client.connect()

    async def commit(self, key: bytes, value: bytes) -> None:
        await self._client.put(key, value)

    commit_followed = commit

    async def commit_many(self, pairs: Sequence[Pair]) -> None:
        put = self._client.transactions.put
        await self._client.transaction(compare=[], success=[put(key, value) for key, value in pairs], failure=[])

    fill = commit_many

    async def get(self, key: bytes) -> bytes | None:
        found = await self._client.get(key, serializable=True)
        return None if found is None else found.value

    async def get_linearizable(self, key: bytes) -> bytes | None:
        found = await self._client.get(key)
        return None if found is None else found.value

    async def range(self, begin: bytes, end: bytes) -> list[Pair]:
        return [(row.key, row.value) for row in await self._client.get_range(begin, end)]

    async def add_one(self, key: bytes) -> None:
        choose = self._client.transactions
        while True:
            found = await self._client.get(key)
            mod, value = (0, None) if found is None else (found.mod_revision, found.value)
            held, _ = await self._client.transaction(
                compare=[choose.mod(key) == mod], success=[choose.put(key, plus_one(value))], failure=[]
            )
            if held:
                return

    async def follow(self, prefix: bytes, arrived: Arrived, failed: Failed) -> Stop:
        watch = await self._client.watch_prefix(prefix)

        async def read() -> None:
            async for event in watch:
                arrived(event.kv.key, event.kv.value)

        ended = self._way.spawn(read(), failed)

        async def stop() -> None:
            await watch.cancel()
            await ended()

        return stop

    async def read_back(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = {row.key: row.value for row in await self._client.get_range(keys[0], keys[-1] + b"\0")}
        return [values.get(key) for key in keys]

    async def close(self) -> None:
        await self._client.close()


class Redis:
    """redis-py, with asyncio or with threads. A range of keys is a sorted set; a change stream is a stream."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._answer = way.answer

    async def open(self, port: int, tasks: int) -> None:
        import redis
        import redis.asyncio

        from programs_peers.ways import Tasks

        library = redis.asyncio if isinstance(self._way, Tasks) else redis
        self._client: Any = library.Redis(host="127.0.0.1", port=port, max_connections=tasks + 1)

    async def commit(self, key: bytes, value: bytes) -> None:
        await self._answer(self._client.set(key, value))

    async def commit_many(self, pairs: Sequence[Pair]) -> None:
        pipeline = self._client.pipeline()
        for key, value in pairs:
            pipeline.set(key, value)
        await self._answer(pipeline.execute())

    async def fill(self, pairs: Sequence[Pair]) -> None:
        self._set = pairs[0][0].split(b"/")[0] + b"/all"
        await self.commit_many(pairs)
        await self._answer(self._client.zadd(self._set, {key + b"\0" + value: 0 for key, value in pairs}))

    async def get(self, key: bytes) -> bytes | None:
        found: bytes | None = await self._answer(self._client.get(key))
        return found

    get_linearizable = get

    async def range(self, begin: bytes, end: bytes) -> list[Pair]:
        found = await self._answer(self._client.zrange(self._set, b"[" + begin, b"(" + end, bylex=True))
        return [tuple(member.split(b"\0", 1)) for member in found]

    async def add_one(self, key: bytes) -> None:
        async def add(pipeline: Any) -> None:
            found = await self._answer(pipeline.get(key))
            pipeline.multi()
            pipeline.set(key, plus_one(found))

        await self._answer(self._client.transaction(self._way.function(add), key))

    async def follow(self, prefix: bytes, arrived: Arrived, failed: Failed) -> Stop:
        self._stream = prefix + b"changes"
        going_on = True

        async def read() -> None:
            last: Any = "0"
            while going_on:
                found = await self._answer(self._client.xread({self._stream: last}, block=BLOCK_MS))
                for _, entries in found.items() if isinstance(found, dict) else found:
                    for last, fields in entries:  # noqa: B007  # the next read continues after it
                        arrived(fields[b"k"], fields[b"v"])

        ended = self._way.spawn(read(), failed)

        async def stop() -> None:
            nonlocal going_on
            going_on = False
            await ended()

        return stop

    async def commit_followed(self, key: bytes, value: bytes) -> None:
        pipeline = self._client.pipeline()
        pipeline.set(key, value)
        pipeline.xadd(self._stream, {"k": key, "v": value})
        await self._answer(pipeline.execute())

    async def read_back(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = await self._answer(self._client.mget(keys))
        return found

    async def close(self) -> None:
        await self._way.close(self._client)


CLIENTS: dict[str, Callable[[Way], Client]] = {"holdfast": Holdfast, "etcd": Etcd, "redis": Redis}
