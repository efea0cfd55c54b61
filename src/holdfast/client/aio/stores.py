"""The asyncio client of the message stores: administration, maps, browsers; it makes publishers and subscribers.

A client belongs to the event loop that it is first used on; any number of tasks may share it. A cancelled operation
may have been carried out.
"""

from __future__ import annotations

import functools
import secrets
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from holdfast.client.aio.client import Client, Closing
from holdfast.client.aio.publisher import Publisher
from holdfast.client.aio.subscriber import Subscriber, Watch
from holdfast.client.protocol.effects import Request, Response
from holdfast.client.protocol.http1 import token_of
from holdfast.client.protocol.messages import decode, query_of, require_progress
from holdfast.client.protocol.options import (
    FOR_EVER,
    ClientOptions,
    PublisherOptions,
    SubscriberOptions,
    busy_wait_ms,
    within_ms,
)
from holdfast.client.protocol.stores.administration import ClusterCommand, Definition, Redelivered, ask, browse_target
from holdfast.client.protocol.stores.messages import (
    durable_path,
    map_path,
    request_of,
    store_path,
    subscribe_target,
    template_path,
)
from holdfast.client.protocol.stores.publisher import PublisherMachine
from holdfast.client.protocol.stores.subscriber import SubscriberMachine
from holdfast.client.protocol.stores.watch import WatchMachine
from holdfast.client.transport import aio as transport
from holdfast.client.transport.aio_stores import SubscriberDriver
from holdfast.client.transport.clock import now_ms
from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.wire.parts import ChangedResponse, Delivery
from holdfast.wire.stores import (
    REDELIVER_MAX,
    EntriesResponse,
    Entry,
    Lock,
    LockedResponse,
    Page,
    PurgedAnswer,
    RedeliveredResponse,
)

PAGE_MESSAGES = 100
PAGE_ENTRIES = 1_000


class StoreClient(Closing):
    """An asyncio client of the message stores.

    ``url``: ``http://host:port``, ``https://host:port``, ``unix:/path``, or several of them for one service and its
    standbys. ``token``: bearer token. ``tls``: how servers are verified (default: the system's authorities).
    """

    def __init__(
        self,
        url: str | Sequence[str] = "http://127.0.0.1:8080",
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        options: ClientOptions | None = None,
    ) -> None:
        self._client = Client(url, token=token, tls=tls, options=options)
        self._token = token_of(token)
        # A pool of its own: a service that once served a rare request on a connection stays on its slower path there.
        self._publishing = transport.Pool(self._client.session.options, self._token, tls, self._client.watch)
        self._tls = tls

    async def aclose(self) -> None:
        """Close every connection of requests. Publishers and subscribers are closed by themselves, before this."""
        await self._publishing.aclose()
        await self._client.aclose()

    # publishers, subscribers, maps and browsers

    def publisher(
        self,
        store: str,
        *,
        publisher_id: str | None = None,
        next_seq: int | None = None,
        store_token: str = "",
        options: PublisherOptions | None = None,
    ) -> Publisher:
        """A publisher of a store. ``publisher_id`` and ``next_seq``: the application numbers its messages.

        ``store_token``: the token of the store that these numbers are of, as its description has it. If the store was
        made again, nothing is published, and the publisher ends with ``store_replaced``.
        """
        options = options if options is not None else PublisherOptions()
        machine = PublisherMachine(
            self._client.session,
            store,
            options,
            entropy=secrets.token_hex(12),
            publisher_id=publisher_id,
            next_seq=next_seq,
            store_token=store_token,
        )
        return Publisher(self._publishing, machine, options)

    def subscriber(
        self,
        store: str,
        durable: str,
        *,
        subscriber: str | None = None,
        template: str | None = None,
        matcher: Mapping[str, object] | None = None,
        key: str | None = None,
        take_over: bool = False,
        options: SubscriberOptions | None = None,
    ) -> Subscriber:
        """A subscriber of a durable; its name is random unless ``subscriber`` gives one.

        ``template`` makes the durable where it does not exist, with this ``matcher``. ``key``: the one of a last-value
        durable. ``take_over``: take a standard durable from the subscriber that has it (right: administer) instead of
        waiting for it.
        """
        options = options if options is not None else SubscriberOptions()
        name = subscriber if subscriber is not None else f"subscriber-{secrets.token_hex(8)}"
        target = subscribe_target(
            store,
            durable,
            name,
            template=template,
            matcher=matcher,
            key=key,
            prefetch=options.prefetch,
            wait_ms=busy_wait_ms(options),
            session=secrets.token_hex(8),
        )
        machine = SubscriberMachine(self._client.session, target, options, takes_over=take_over)
        return self._subscriber(machine, options)

    def map(self, store: str, name: str, *, retry_duration: float = FOR_EVER) -> Map:
        """Keys and values that a store keeps."""

        def watch(key: str | None, prefix: str, owner: str | None, options: SubscriberOptions | None) -> Watch:
            options = options if options is not None else SubscriberOptions()
            watcher = owner if owner is not None else f"watch-{secrets.token_hex(8)}"
            target = subscribe_target(store, name, watcher, key=key, prefix=prefix, prefetch=options.prefetch)
            machine = WatchMachine(self._client.session, target, options)
            return Watch(machine, self._subscriber(machine, options))

        return Map(self._client, store, name, within_ms(retry_duration), watch)

    def _subscriber(self, machine: SubscriberMachine, options: SubscriberOptions) -> Subscriber:
        driver = SubscriberDriver(machine, options, self._token, self._tls, self._client.watch)
        return Subscriber(machine, driver, is_implicit=not options.explicit_ack)

    def browser(
        self,
        store: str,
        durable: str,
        *,
        match: Mapping[str, object] | None = None,
        after: int = 0,
        parked: bool = False,
        retry_duration: float = FOR_EVER,
    ) -> Browser:
        """The messages of a durable, without consuming them. ``match``: only those with these fields;
        ``parked``: only those that were delivered too often."""
        return Browser(self._client, store, durable, match, after, within_ms(retry_duration), parked=parked)

    # definitions

    async def stores(self, **attributes: str | int | bool) -> Definition:
        """Every store; ``attributes`` leave out those that differ."""
        return await self._describe(f"/v1/stores{query_of(**attributes)}")

    async def define_store(
        self, store: str, parameters: Mapping[str, object] | None = None, *, delete: bool = False
    ) -> Definition:
        """Make a store, or change its parameters; validated whole, applied whole. Raises: as ``define``."""
        return await self._change("PUT", store_path(store), parameters, delete=delete)

    async def describe_store(self, store: str) -> Definition:
        """A store's parameters, the values in force, counts and bytes. Raises: NotFound."""
        return await self._describe(store_path(store))

    async def delete_store(self, store: str) -> None:
        """Delete a store with its messages."""
        await self._ask("DELETE", store_path(store))

    async def define_durable(
        self, store: str, durable: str, parameters: Mapping[str, object], *, delete: bool = False
    ) -> Definition:
        """Make a static durable, or change it. Raises: as ``define``."""
        return await self._change("PUT", durable_path(store, durable), parameters, delete=delete)

    async def describe_durable(self, store: str, durable: str) -> Definition:
        """A durable's parameters, backlog and subscribers. Raises: NotFound."""
        return await self._describe(durable_path(store, durable))

    async def delete_durable(self, store: str, durable: str) -> None:
        """Delete a durable with its messages: also how a dynamic durable is unsubscribed."""
        await self._ask("DELETE", durable_path(store, durable))

    async def define_template(
        self, store: str, template: str, parameters: Mapping[str, object], *, delete: bool = False
    ) -> Definition:
        """Define how dynamic durables are made. Raises: as ``define``."""
        return await self._change("PUT", template_path(store, template), parameters, delete=delete)

    async def durables(self, store: str, **attributes: str | int | bool) -> Definition:
        """Every durable of a store with its counts; ``attributes`` leave out those that differ."""
        return await self._describe(f"{store_path(store)}/durables{query_of(**attributes)}")

    async def definition(self) -> Definition:
        """The whole definition in force, and its ``revision``."""
        return await self._describe("/v1/cluster/definition")

    async def define(self, definition: Mapping[str, object], *, delete: bool = False) -> Definition:
        """Replace the whole definition. Stores and durables that it does not name are deleted.

        Raises: Conflict (``deletes_messages``) where the change would delete messages, unless ``delete``.
        """
        return await self._change("PUT", "/v1/cluster/definition", definition, delete=delete)

    async def edit(
        self, place: str, parameters: Mapping[str, object], *, template: bool = False, delete: bool = False
    ) -> Definition:
        """Change only the ``parameters`` that are given: of a store ("orders"), of a static durable ("orders/work") or
        a ``template`` ("orders/jobs"). Raises: as ``define``."""
        store, _, name = place.partition("/")
        path = store_path(store) if not name else (template_path if template else durable_path)(store, name)
        return await self._change("PATCH", path, parameters, delete=delete)

    async def history(self, revision: int | None = None) -> Definition:
        """The definitions that were in force, or the one of a ``revision``."""
        return await self._describe("/v1/cluster/history" if revision is None else f"/v1/cluster/history/{revision}")

    async def rollback(self, revision: int, *, delete: bool = False) -> Definition:
        """Put an earlier definition in force again; it gets a new number. Raises: as ``define``."""
        parameters = {"revision": revision}
        return await self._change("POST", "/v1/cluster/rollback", parameters, delete=delete, repeatable=False)

    async def check_definition(self, definition: Mapping[str, object]) -> Definition:
        """The definition as it would be applied; changes nothing. Raises: InvalidRequest, naming every wrong value."""
        return await self._change("POST", "/v1/cluster/definition/check", definition)

    async def cluster(self) -> Definition:
        """The cluster's services, disk use and counts."""
        return await self._describe("/v1/cluster")

    async def cluster_command(self, name: ClusterCommand, parameters: Mapping[str, object] | None = None) -> Definition:
        """Make the cluster save, backup (``name``), compact, suspend, resume or force-quorum.

        Raises: OutcomeUnknown where no response came: repeat ``backup`` under another name, all others as they were.
        """
        return await self._change("POST", f"/v1/cluster/{name}", parameters, repeatable=False)

    async def purge(self, store: str, durable: str) -> PurgedAnswer:
        """Delete every message of a durable."""
        return decode(await self._ask("POST", f"{durable_path(store, durable)}/purge", {}), PurgedAnswer)

    async def rewind(self, store: str, durable: str, *, seq: int | None = None, time_ms: int | None = None) -> None:
        """Deliver retained messages again: from a number, from a time (since 1970), or everything kept."""
        if seq is not None and time_ms is not None:
            raise InvalidRequest("rewind goes to a number or to a time, not to both")
        target: dict[str, object] = {"to": "start"}
        if seq is not None or time_ms is not None:
            target = {"seq": seq} if seq is not None else {"time_ms": time_ms}
        await self._ask("POST", f"{durable_path(store, durable)}/rewind", target)

    async def explain(self, store: str, seq: int) -> Definition:
        """The state of a message in every durable of its store."""
        return await self._describe(f"{store_path(store)}/messages/{seq}/explain")

    async def redeliver(
        self,
        store: str,
        durable: str,
        messages: Sequence[tuple[int, int]] = (),
        *,
        match: Mapping[str, object] | None = None,
        limit: int | None = None,
    ) -> Redelivered:
        """Deliver parked messages again; on a durable of a dead-letter store, send the letters back.

        All of them, or only those in the ranges ``messages``, or that ``match``, or the first ``limit``. A letter goes
        only to the durable that it came from. *Cost*: a request for each 10,000 messages.
        """
        total, left = 0, Counter[str]()
        after: int | None = 0
        while after is not None and (limit is None or total < limit):
            body: dict[str, object] = {"messages": messages, "match": match or {}, "after": after}
            if limit is not None:
                body["max"] = min(limit - total, REDELIVER_MAX)
            response = await self._ask("POST", f"{durable_path(store, durable)}/redeliver", body)
            page = decode(response, RedeliveredResponse)
            total, after = total + page.redelivered, page.next_after
            left.update(page.left)
        return Redelivered(total, dict(left))

    async def _describe(self, path: str) -> Definition:
        return decode(await self._ask("GET", path), Definition)

    async def _change(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, object] | None,
        *,
        delete: bool = False,
        repeatable: bool = True,
    ) -> Definition:
        target = f"{path}{query_of(delete='true' if delete else None)}"
        response = await self._ask(method, target, parameters or {}, repeatable=repeatable)
        return decode(response, Definition) if response.body else {}

    async def _ask(
        self, method: str, path: str, parameters: Mapping[str, object] | None = None, *, repeatable: bool = True
    ) -> Response:
        request = request_of(method, path, None if parameters is None else dict(parameters))
        within_ms = self._client.session.options.give_up_after_ms
        return await _ask(self._client, request, within_ms, repeatable=repeatable)


async def _ask(client: Client, request: Request, within_ms: float, *, repeatable: bool = True) -> Response:
    """The response to one request. Raises: what the service refuses with; Unavailable; OutcomeUnknown."""
    return await client.run(ask(client.session, request, now_ms(), within_ms, repeatable=repeatable))


class Map:
    """Keys and values of one map. Made by ``StoreClient.map``. Each change has a revision, which rises.

    Revisions and fences are those of the map that was met first. If it is deleted and made again, each call with one
    raises Closed (``store_replaced``), and a new ``Map`` begins again; calls without are for whatever map has the name.
    """

    def __init__(
        self,
        client: Client,
        store: str,
        name: str,
        within_ms: float,
        watch: Callable[[str | None, str, str | None, SubscriberOptions | None], Watch],
    ) -> None:
        self._client = client
        self._path_of = functools.partial(map_path, store, name)
        self._path = self._path_of()
        self._within_ms = within_ms
        self._watch = watch
        self._token = ""
        """Of the map that was met first."""

    async def get(self, key: str) -> Entry | None:
        """The value of a key with its revision, None where there is none. Raises: NotFound for the map or the store."""
        try:
            entry = decode(await self._ask("GET", self._path_of(key)), Entry)
        except NotFound as error:
            if error.code is not Code.NO_SUCH_KEY:
                raise
            return None
        self._token = self._token or entry.token
        return entry

    async def set(self, key: str, value: bytes, *, if_revision: int | None = None, fence: int = 0) -> int:
        """Set a key; returns its revision.

        ``if_revision``: only where that is its revision, 0 for a new key. ``fence``: the token of a lock that must be
        held still. Raises: Conflict (``revision_mismatch``, ``not_holder``); OutcomeUnknown for a conditional one.
        """
        return (await self._change("PUT", key, {"value": value}, if_revision, fence)).revision

    async def set_many(self, values: Mapping[str, bytes | None], *, fence: int = 0) -> int:
        """Set keys, and remove those with None: all or nothing. Returns the revision of the last."""
        changes = [{"key": key, "value": value, "if_revision": None} for key, value in values.items()]
        body = {"changes": changes, "fence": fence, "token": self._token if fence else ""}
        return decode(await self._ask("POST", self._path, body), ChangedResponse).revision

    async def remove(self, key: str, *, if_revision: int | None = None, fence: int = 0) -> bool:
        """Remove a key; whether it was there. Raises: as ``set``.

        A request whose response was lost is sent again and then finds no key: False does not prove that no call removed
        it.
        """
        return (await self._change("DELETE", key, None, if_revision, fence)).changed > 0

    async def items(self, after: str = "") -> AsyncIterator[Entry]:
        """Every key above ``after`` in order. Changes ahead of the iteration are seen."""
        while True:
            token = self._token if after else ""
            query = query_of(after=after or None, max=PAGE_ENTRIES, token=token or None)
            page = decode(await self._ask("GET", f"{self._path}{query}"), EntriesResponse)
            require_progress(page, page.entries, more=page.more)
            self._token = self._token or page.token
            for entry in page.entries:
                yield entry
            if not page.more:
                return
            after = page.entries[-1].key

    async def lock(self, key: str = "", *, owner: str, ttl_ms: int, steal: bool = False) -> Lock:
        """Take the lock of a key (of the whole map without one) for ``ttl_ms``, or extend it.

        Raises: Conflict (``lock_held``).
        """
        body = {"key": key, "owner": owner, "ttl_ms": ttl_ms, "steal": steal}
        lock = decode(await self._ask("POST", f"{self._path}/lock", body), LockedResponse)
        self._token = self._token or lock.token
        return Lock(key, owner, lock.fence, lock.until_ms, lock.token)

    async def unlock(self, lock: Lock) -> None:
        """Give a lock back. Raises: Conflict (``not_holder``)."""
        body = {"key": lock.key, "owner": lock.owner, "fence": lock.fence, "token": lock.token}
        await self._ask("POST", f"{self._path}/unlock", body)

    def watch(
        self,
        *,
        key: str | None = None,
        prefix: str = "",
        owner: str | None = None,
        options: SubscriberOptions | None = None,
    ) -> Watch:
        """The content of the map, and then each change: of one ``key``, of keys that begin with ``prefix``, or of all.

        ``owner``: the watch's name. Locks that are taken under it end with the watch, or with its lost connection.
        """
        return self._watch(key, prefix, owner, options)

    async def _change(
        self, method: str, key: str, body: object, if_revision: int | None, fence: int
    ) -> ChangedResponse:
        token = self._token if fence or if_revision else ""
        target = f"{self._path_of(key)}{query_of(fence=fence or None, token=token or None)}"
        headers: tuple[tuple[str, str], ...] = ()
        if if_revision is not None:
            headers = (("if-none-match", "*"),) if if_revision == 0 else (("if-match", f'"{if_revision}"'),)
        response = await self._ask(method, target, body, headers, repeatable=if_revision is None)
        return decode(response, ChangedResponse)

    async def _ask(
        self,
        method: str,
        target: str,
        body: object = None,
        headers: tuple[tuple[str, str], ...] = (),
        *,
        repeatable: bool = True,
    ) -> Response:
        request = request_of(method, target, body, headers)
        return await _ask(self._client, request, self._within_ms, repeatable=repeatable)


class Browser:
    """An iterator over the messages of a durable, which consumes none. Made by ``StoreClient.browser``.

    Raises while iterating: Closed (``store_replaced``) where the durable was deleted and made again after a page.
    """

    def __init__(
        self,
        client: Client,
        store: str,
        durable: str,
        match: Mapping[str, object] | None,
        after: int,
        within_ms: float,
        *,
        parked: bool = False,
    ) -> None:
        self._client = client
        self._path = durable_path(store, durable)
        self._parked = parked
        self._match = match
        self._after: int | None = after
        """The next page begins above this number; None at the end."""
        self._within_ms = within_ms
        self._page: list[Delivery] = []
        self._token = ""
        """Of the durable of the last page: numbers of another one mean other messages."""

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        while not self._page:
            if self._after is None:
                raise StopAsyncIteration
            target = browse_target(self._path, self._after, PAGE_MESSAGES, self._match, self._parked, self._token)
            page = decode(await self._ask("GET", target), Page)
            self._token = page.token
            self._page, self._after = page.messages[::-1], page.next_after
        return self._page.pop()

    def reset(self, after: int = 0) -> None:
        """Begin again above this number; at 0 with whatever durable has the name."""
        self._page, self._after = [], after
        if not after:
            self._token = ""

    async def delete(self, message: Delivery) -> None:
        """Take this message out of the durable."""
        await self._ask("DELETE", f"{self._path}/messages/{message.seq}{query_of(token=self._token or None)}")

    async def _ask(self, method: str, target: str) -> Response:
        return await _ask(self._client, request_of(method, target), self._within_ms)
