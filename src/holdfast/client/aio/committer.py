"""The asyncio client of ``holdfast spark ingest``: commit requests as messages, verdicts as messages.

One of those who wait receives for all, and hands each verdict to the waiters of its request. A verdict is acknowledged
when a caller gets it. Until then the store keeps it, and delivers it again to the next committer of the same name.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from holdfast.client.aio.stores import StoreClient
from holdfast.client.protocol.options import SubscriberOptions
from holdfast.client.protocol.stores import committing
from holdfast.client.transport import aio as transport
from holdfast.client.transport.clock import now_ms
from holdfast.commit.format.transaction import Operation, Precondition, Transaction
from holdfast.errors import Code, HoldfastError, InvalidRequest, NotFound, OutcomeUnknown
from holdfast.wire.log import CommitReceipt
from holdfast.wire.parts import Delivery, Receipt

_OPTIONS: Final = SubscriberOptions(explicit_ack=True, prefetch=committing.PREFETCH)
_logger = logging.getLogger("holdfast.committer")


async def define_spark_stores(
    client: StoreClient, requests: str | None = "requests", verdicts: str | None = "verdicts", durable: str = "spark"
) -> None:
    """Make the stores of requests and verdicts where they are missing; None makes none. What exists stays as it is.

    ``durable`` keeps the requests until Spark has answered them. Verdicts are kept for seven days, the newest of each
    request. A store of requests that is made here has a ``bytelimit`` of 1 GiB: requests above it wait at their
    publishers (``store_full``), so that they do not fill a limit of the cluster that the verdicts need. Raises:
    PermissionDenied, Unavailable.
    """
    if requests is not None:
        try:
            await client.describe_store(requests)
        except NotFound:
            durables = {durable: committing.REQUESTS_DURABLE}
            await client.define_store(requests, {"bytelimit": 1 << 30, "durables": durables})
        try:
            await client.describe_durable(requests, durable)
        except NotFound:
            await client.define_durable(requests, durable, committing.REQUESTS_DURABLE)
    if verdicts is not None:
        try:
            await client.describe_store(verdicts)
        except NotFound:
            await client.define_store(verdicts, committing.VERDICTS_STORE)


class _Held:
    """A verdict that was received and not given to a caller. ``takers``: how many waiters are about to take it."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.takers = 0


class _Waiter:
    """One call of ``verdict``. ``woken`` is set when it has its verdict, and when it is to receive for all."""

    def __init__(self) -> None:
        self.woken = transport.Event()
        self.held: _Held | None = None


class SparkCommitter:
    """Sends commit requests to ``holdfast spark ingest`` and waits for its verdicts; see ``define_spark_stores``.

    A request is a message of the store ``requests``; its verdict comes in the store ``verdicts``, as a message with the
    same fields. ``name``: a committer that is made again under its name gets every verdict that no caller got, for a
    day; random by default; any number of tasks may share it. A request that was confirmed is committed or refused
    exactly once, also when this process ends before the verdict comes.

    Bounds: 10,000 verdicts that were received and not asked for, fewer where ``prefetch`` of the durable is lower. At
    this bound it receives nothing more, and ``verdict`` raises OutcomeUnknown for every other request, with the id
    ``oldest_held``, until held ones are asked for. The store keeps all of them.
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
            options=_OPTIONS,
        )
        self._requests = requests
        self._lock = transport.Lock()
        self._waiting: OrderedDict[str, list[_Waiter]] = OrderedDict()
        """The waiters without a verdict, by request."""
        self._receiver: _Waiter | None = None
        """The one of them that receives for all; None only while there is none."""
        self._held: dict[str, _Held] = {}
        self._unasked = 0
        """How many of the held verdicts have no taker."""
        self._given: OrderedDict[str, None] = OrderedDict()
        """The requests whose verdicts were given last: a further verdict of the same attempt is not held."""

    async def __aenter__(self) -> Self:
        """Wait until the store delivers. Raises: NotFound (there is no such store), PermissionDenied, Unavailable."""
        try:
            await self._subscriber.__aenter__()
        except NotFound as error:
            raise committing.no_stores(error) from error
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

        ``request_id`` with ``read_version`` names an attempt: sent again, it is committed once, and each of its
        messages gets the same verdict. Without both, a request that is sent again is another one.

        Raises: InvalidRequest (a request id without a read version); NotFound (no durable keeps requests, so nothing
        was kept); OutcomeUnknown, whose ``request_id`` ``verdict`` takes; what the store refuses with.
        """
        if request_id is not None and read_version is None:
            raise InvalidRequest(
                "a request id names an attempt only together with its read version",
                code=Code.READ_VERSION_REQUIRED,
                hint="give read_version, or no request_id: then the request is committed once because its message is",
                request_id=request_id,
            )
        name = request_id if request_id is not None else f"spark-{secrets.token_hex(12)}"
        txn = Transaction(list(operations), list(preconditions), request_id, None, read_version, log_id)
        fields = {committing.CLIENT: self.name, committing.REQUEST_ID: name}
        with self._lock:
            self._given.pop(name, None)  # the verdict of this message is wanted
        try:
            receipt = await self._publisher.publish(msgspec.json.encode(txn), fields=fields)
        except OutcomeUnknown as error:
            raise committing.perhaps_sent(name, error.statement()) from error
        except NotFound as error:
            raise committing.no_stores(error) from error
        self._require_kept(name, receipt)
        return name

    async def verdict(self, request_id: str, timeout: float = 60.0) -> CommitReceipt:
        """The receipt of a request that was sent. Cost: O(1) for each verdict that comes, whatever waits.

        Raises: OutcomeUnknown when no verdict came within ``timeout`` seconds, or none can come now (too many verdicts
        are held; the committer is closed; the subscriber failed): it may still come, so ask again, with the id that the
        error has. Conflict and others: the request's own refusal, as ``Client.commit`` raises it. CorruptData: the
        message with this request's id is not a verdict.
        After a crash: a verdict that no caller got comes again to the next committer of this name.
        """
        end_ms = now_ms() + timeout * 1000
        waiter = self._begin_to_wait(request_id)
        is_given = False
        try:
            while (held := waiter.held) is None:
                left_s = (end_ms - now_ms()) / 1000
                if left_s <= 0:
                    raise self._no_verdict(request_id, "no verdict came in time")
                if self._receiver is waiter:
                    await self._receive(request_id, left_s, end_ms)
                else:
                    await waiter.woken.wait(left_s)
            await self._acknowledge(held.delivery)
            is_given = True
        finally:
            self._end_to_wait(request_id, waiter, is_given=is_given)
        outcome = committing.verdict_of(held.delivery.body)
        if isinstance(outcome, CommitReceipt):
            return outcome
        raise outcome

    def _require_kept(self, name: str, receipt: Receipt) -> None:
        """Raises: NotFound, OutcomeUnknown. The count in a receipt is that of all messages of one HTTP request."""
        if receipt.unmatched > receipt.last_seq - receipt.first_seq:
            raise NotFound(
                "no durable keeps the requests, so this one was dropped",
                hint="define_spark_stores, or a first run of `holdfast spark ingest`, makes the durable",
                store=self._requests,
                request_id=name,
            )
        if receipt.unmatched:
            raise committing.perhaps_sent(name, f"no durable keeps {receipt.unmatched} of the requests sent together")

    def _no_verdict(self, request_id: str, reason: str) -> OutcomeUnknown:
        with self._lock:
            oldest = next((name for name, held in self._held.items() if not held.takers), None)
            return committing.no_verdict(request_id, reason, self._unasked, oldest)

    def _begin_to_wait(self, name: str) -> _Waiter:
        waiter = _Waiter()
        with self._lock:
            held = self._held.get(name)
            if held is not None:
                self._take(waiter, held)
            else:
                self._waiting.setdefault(name, []).append(waiter)
                if self._receiver is None:
                    self._receiver = waiter
        return waiter

    def _take(self, waiter: _Waiter, held: _Held) -> None:
        """The waiter is about to give the verdict to its caller. Until it has, the verdict stays held."""
        waiter.held = held
        self._unasked -= held.takers == 0
        held.takers += 1

    def _end_to_wait(self, name: str, waiter: _Waiter, *, is_given: bool) -> None:
        """Also of a cancelled task: its verdict stays held, and another waiter receives instead of it."""
        with self._lock:
            held = waiter.held
            if held is None:
                waiters = self._waiting[name]
                waiters.remove(waiter)
                if not waiters:
                    del self._waiting[name]
            else:
                held.takers -= 1
                if self._held.get(name) is not held:
                    pass  # another waiter of the same request has given it
                elif not is_given:
                    self._unasked += held.takers == 0
                else:
                    del self._held[name]
                    self._given[name] = None
                    if len(self._given) > committing.HELD_MAX:
                        self._given.popitem(last=False)
            if self._receiver is waiter:
                others = next(iter(self._waiting.values()), None)
                self._receiver = None if others is None else others[0]
                if self._receiver is not None:
                    self._receiver.woken.set()

    async def _receive(self, request_id: str, left_s: float, end_ms: float) -> None:
        """Receive a message for all. Raises: OutcomeUnknown where none will come."""
        if self._unasked >= committing.HELD_MAX:
            raise self._no_verdict(request_id, "the limit of verdicts that were not asked for is reached")
        try:
            message = await self._subscriber.receive(left_s)
        except HoldfastError as error:  # a Fenced subscriber must not look like a fenced request
            raise self._no_verdict(request_id, error.statement()) from error
        if message is not None:
            if not self._hand_over(message):
                await self._acknowledge(message)
        elif now_ms() < end_ms:
            raise self._no_verdict(request_id, "the committer is closed")

    def _hand_over(self, message: Delivery) -> bool:
        """Hold a verdict, and wake its waiters. False where it is not needed: a caller has, or gets, another one."""
        name = message.fields.get(committing.REQUEST_ID)
        if not isinstance(name, str):
            _logger.warning("a message of the verdict store has no request id seq=%d", message.seq)
            return False
        with self._lock:
            held = self._held.get(name)
            if held is not None:
                return held.delivery.seq == message.seq  # delivered again, after its connection was lost
            waiters = self._waiting.pop(name, None)
            if waiters is None and name in self._given:
                return False
            held = self._held[name] = _Held(message)
            self._unasked += 1
            for waiter in waiters or ():
                self._take(waiter, held)
                waiter.woken.set()
            return True

    async def _acknowledge(self, message: Delivery) -> None:
        """An error is not the caller's: its verdict is known, and comes again to the next committer of this name."""
        with contextlib.suppress(HoldfastError):
            await self._subscriber.acknowledge(message)
