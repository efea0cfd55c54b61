"""The asyncio client of ``holdfast spark ingest``: commit requests as messages, verdicts as messages."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from holdfast.client.aio.stores import StoreClient
from holdfast.client.protocol.stores import committing
from holdfast.client.transport import aio as transport
from holdfast.client.transport.clock import now_ms
from holdfast.commit.format.transaction import Operation, Precondition, Transaction
from holdfast.errors import HoldfastError, InvalidRequest, NotFound, OutcomeUnknown
from holdfast.wire.log import CommitReceipt

VERDICTS_MAX: Final = 100_000


async def define_spark_stores(
    client: StoreClient, requests: str | None = "requests", verdicts: str | None = "verdicts", durable: str = "spark"
) -> None:
    """Make the stores of requests and verdicts where they are missing; None makes none. What exists stays as it is.

    ``durable`` keeps the requests until Spark has answered them. Verdicts are kept for seven days, the newest of each
    request. Raises: PermissionDenied, Unavailable.
    """
    if requests is not None:
        try:
            await client.describe_store(requests)
        except NotFound:
            await client.define_store(requests, {"durables": {durable: committing.REQUESTS_DURABLE}})
        try:
            await client.describe_durable(requests, durable)
        except NotFound:
            await client.define_durable(requests, durable, committing.REQUESTS_DURABLE)
    if verdicts is not None:
        try:
            await client.describe_store(verdicts)
        except NotFound:
            await client.define_store(verdicts, committing.VERDICTS_STORE)


class SparkCommitter:
    """Sends commit requests to ``holdfast spark ingest`` and waits for its verdicts; see ``define_spark_stores``.

    A request is a message of the store ``requests``; its verdict comes in the store ``verdicts``, as a message with the
    same fields. ``name``: a committer that is made again under its name gets the verdicts that came meanwhile, for a
    day; random by default; any number of tasks may share it. A request that was confirmed is committed or refused
    exactly once, also when this process ends before the verdict comes.
    """

    def __init__(
        self, client: StoreClient, *, requests: str = "requests", verdicts: str = "verdicts", name: str | None = None
    ) -> None:
        self.name = name if name is not None else secrets.token_hex(8)
        self._publisher = client.publisher(requests)
        self._subscriber = client.subscriber(
            verdicts,
            f"client-{self.name}",
            subscriber=self.name,
            template=committing.TEMPLATE,
            matcher={committing.CLIENT: self.name},
        )
        self._requests = requests
        self._lock = transport.Lock()
        self._arrived: OrderedDict[str, CommitReceipt | HoldfastError] = OrderedDict()
        self._waiting: dict[str, transport.Event] = {}
        self._receives = False
        """Whether one of those who wait receives for all."""

    async def __aenter__(self) -> Self:
        """Wait until the store delivers. Raises: NotFound (there is no such store), PermissionDenied, Unavailable."""
        await self._subscriber.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._publisher.aclose()
        finally:
            await self._subscriber.aclose()

    async def commit(
        self,
        operations: Sequence[Operation],
        preconditions: Sequence[Precondition] = (),
        *,
        read_version: int | None = None,
        log_id: str | None = None,
        request_id: str | None = None,
        timeout: float = 60.0,
    ) -> CommitReceipt:
        """Send a request and wait ``timeout`` seconds for its verdict. Raises: as ``send`` and ``verdict``."""
        sent = await self.send(
            operations, preconditions, read_version=read_version, log_id=log_id, request_id=request_id
        )
        return await self.verdict(sent, timeout)

    async def send(
        self,
        operations: Sequence[Operation],
        preconditions: Sequence[Precondition] = (),
        *,
        read_version: int | None = None,
        log_id: str | None = None,
        request_id: str | None = None,
    ) -> str:
        """Send a request; returns its id when the store has it durably.

        Raises: NotFound (no durable keeps requests, so nothing was kept); OutcomeUnknown; what the store refuses with.
        """
        name = request_id if request_id is not None else f"spark-{secrets.token_hex(12)}"
        # The id of an attempt needs a read version; a request without one is committed once because its message is.
        known = None if read_version is None else name
        txn = Transaction(list(operations), list(preconditions), known, None, read_version, log_id)
        fields = {committing.CLIENT: self.name, committing.REQUEST_ID: name}
        with self._lock:
            if name in self._waiting or name in self._arrived:
                raise InvalidRequest("this request id is in use", request_id=name)
            self._waiting[name] = transport.Event()
        try:
            receipt = await self._publisher.publish(committing.request_body(txn), fields=fields)
            if receipt.unmatched:
                raise NotFound(
                    "no durable keeps the requests, so this one was dropped",
                    hint="define_spark_stores, or a first run of `holdfast spark ingest`, makes the durable",
                    store=self._requests,
                )
        except OutcomeUnknown:
            raise
        except BaseException:
            with self._lock:
                self._waiting.pop(name, None)
            raise
        return name

    async def verdict(self, request_id: str, timeout: float = 60.0) -> CommitReceipt:
        """The receipt of a request that was sent.

        Raises: OutcomeUnknown when no verdict came within ``timeout`` seconds: it may still come, so ask again, with
        the id that the error has. Conflict and others: the request's own refusal, as ``Client.commit`` raises it.
        """
        end_ms = now_ms() + timeout * 1000
        with self._lock:
            event = self._waiting.setdefault(request_id, transport.Event())
        while (found := self._take(request_id)) is None:
            left_s = (end_ms - now_ms()) / 1000
            if left_s <= 0:
                raise OutcomeUnknown(
                    "no verdict came in time: the request may be committed later",
                    hint="ask again by verdict(request_id); is `holdfast spark ingest` running?",
                    request_id=request_id,
                )
            if self._begins_to_receive():
                try:
                    await self._receive(request_id, end_ms)
                finally:
                    self._ends_to_receive()
            else:
                await event.wait(left_s)
                self._renew(request_id, event)
                event = self._waiting.get(request_id, event)
        if isinstance(found, CommitReceipt):
            return found
        raise found

    def _take(self, request_id: str) -> CommitReceipt | HoldfastError | None:
        with self._lock:
            found = self._arrived.pop(request_id, None)
            if found is not None:
                self._waiting.pop(request_id, None)
            return found

    def _renew(self, request_id: str, event: transport.Event) -> None:
        """An event that woke its waiter for another reason than its verdict is replaced."""
        with self._lock:
            if event.is_set() and request_id not in self._arrived and self._waiting.get(request_id) is event:
                self._waiting[request_id] = transport.Event()

    def _begins_to_receive(self) -> bool:
        with self._lock:
            begins = not self._receives
            self._receives = True
            return begins

    def _ends_to_receive(self) -> None:
        """Another one that waits goes on."""
        with self._lock:
            self._receives = False
            for event in self._waiting.values():
                event.set()

    async def _receive(self, request_id: str, end_ms: float) -> None:
        """Hand out verdicts until that of ``request_id`` has come, or its time is over."""
        while now_ms() < end_ms:
            message = await self._subscriber.receive(max(0.0, (end_ms - now_ms()) / 1000))
            if message is None:
                return
            name = message.fields.get(committing.REQUEST_ID)
            if not isinstance(name, str):
                continue
            verdict = committing.verdict_of(message.body)
            with self._lock:
                self._arrived[name] = verdict
                if len(self._arrived) > VERDICTS_MAX:
                    self._arrived.popitem(last=False)
                event = self._waiting.get(name)
            if event is not None:
                event.set()
            if name == request_id:
                return
