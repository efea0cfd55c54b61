"""The asyncio publisher of a store. A cancelled ``publish`` may still send its message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from holdfast.client.aio.client import Closing
from holdfast.client.protocol.options import PublisherOptions
from holdfast.client.protocol.stores.messages import Advisory
from holdfast.client.protocol.stores.publisher import Failure, PublisherMachine, Sent
from holdfast.client.transport.aio_stores import Pool, PublisherDriver
from holdfast.client.transport.clock import now_ms
from holdfast.errors import Closed, HoldfastError
from holdfast.wire.parts import FieldValue, Message, Receipt

_NO_FIELDS: Mapping[str, FieldValue] = {}


class Publisher(Closing):
    """Sends messages to one store, in order. Made by ``StoreClient.publisher``; any number of tasks may share it.

    ``publish`` and ``publish_batch`` return when the store has confirmed; ``send`` returns when the window has room,
    and ``flush`` when everything sent is confirmed. Raises: what the store refuses with; OutcomeUnknown; Closed.
    """

    def __init__(self, pool: Pool, machine: PublisherMachine, options: PublisherOptions) -> None:
        self._machine = machine
        self._options = options
        self._driver = PublisherDriver(pool, machine)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except HoldfastError:
            if error is None:  # otherwise the block's own error is raised
                raise

    @property
    def publisher_id(self) -> str:
        """The id under which messages are sent now."""
        return self._machine.publisher_id

    @property
    def unconfirmed(self) -> int:
        """How many messages are neither confirmed nor failed."""
        return self._machine.unconfirmed

    async def publish(
        self,
        body: bytes,
        *,
        fields: Mapping[str, FieldValue] = _NO_FIELDS,
        key: str | None = None,
        ttl_ms: int = 0,
        deliver_at_ms: int = 0,
    ) -> Receipt:
        """Send one message and wait until the store has it as durably as its cluster's ``persistence`` says.

        Cost: one request, which it shares with what other tasks publish at the same time.
        """
        message = Message(body, dict(fields) if fields else {}, key, 0, ttl_ms, deliver_at_ms)
        if not self._machine.has_room:
            await self._driver.room()
        return await self._driver.confirmation(self._driver.add(message, now_ms(), told=True), 1)

    async def publish_batch(self, messages: Sequence[Message]) -> Receipt:
        """Send messages that are kept all together or not at all, and wait as ``publish`` does."""
        if not self._machine.has_room:
            await self._driver.room()
        items = self._driver.add_batch(messages, now_ms())
        return await self._driver.confirmation(items[-1], len(items))

    async def send(
        self,
        body: bytes,
        *,
        fields: Mapping[str, FieldValue] = _NO_FIELDS,
        key: str | None = None,
        ttl_ms: int = 0,
        deliver_at_ms: int = 0,
    ) -> Sent:
        """Send one message; waits only for room in the window. ``flush`` raises the first failure."""
        if not self._machine.has_room:
            await self._driver.room()
        message = Message(body, dict(fields) if fields else {}, key, 0, ttl_ms, deliver_at_ms)
        sent = self._driver.add(message, now_ms())
        if self._driver.is_idle:
            self._driver.wake()
        return sent

    async def flush(self) -> None:
        """Wait until nothing is unconfirmed.

        Raises: the first failure of what was sent since ``take_failures`` was called last.
        """
        await self._driver.flush()
        self._raise_first_error()

    def take_advisories(self) -> list[Advisory]:
        """The advisories since the last call: why the store takes nothing, and that it does again."""
        with self._driver.lock:
            return self._machine.blockage.advisories.take()

    def on_advisory(self, function: Callable[[Advisory], None] | None) -> None:
        """Call this with each advisory as it comes, on the event loop."""
        self._machine.blockage.advisories.on_advisory = function

    def take_failures(self) -> list[Failure]:
        """The messages given to ``send`` that failed since the last call, each with its error."""
        with self._driver.lock:
            return self._machine.take_failures()

    async def aclose(self) -> None:
        """Wait up to ``close_linger`` for what is unconfirmed; the rest fails with Closed or OutcomeUnknown.

        Raises: the first failure that ``take_failures`` has not returned.
        """
        try:
            await self._driver.flush(self._options.close_linger)
        finally:
            await self._driver.aclose(Closed("the publisher was closed before the store confirmed"))
        self._raise_first_error()

    def _raise_first_error(self) -> None:
        error = self._machine.first_error
        if error is not None:
            raise error
