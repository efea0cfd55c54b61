"""``POST .../redeliver``: parked messages are delivered again, and dead letters go back to where they came from.

A dead letter goes to the one durable that it died in and to no other. What cannot go back stays, counted by reason.
One request sends back ``REDELIVER_MAX`` messages at most, searches ``PAGES_MAX`` pages, and says where to go on. Other
requests run after each page.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import msgspec

from holdfast.errors import Code, HoldfastError, InvalidRequest
from holdfast.server.http.routes import Answer
from holdfast.server.stores.hosting import OpenStores
from holdfast.server.stores.store_call import StoreCall
from holdfast.stores.dead_letters import origin_of
from holdfast.stores.definitions.permissions import Right
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.matching.matcher import Matcher
from holdfast.stores.values.commands import Drop, Published, Redeliver, Redelivered, Resend
from holdfast.stores.values.messages import Delivery
from holdfast.stores.values.sequence_set import SequenceSet
from holdfast.wire.stores import RedeliveredResponse, RedeliverRequest

__all__ = ["redeliver"]


PAGE: Final = 500
PAGES_MAX: Final = 20
"""Pages that one request searches; with a ``match`` a page may be empty, and takes some 100 ms."""


async def redeliver(call: StoreCall) -> Answer:
    """The route."""
    asked = await call.body(RedeliverRequest)
    for first, last in asked.messages:
        if first > last:
            raise InvalidRequest("a range of numbers begins with its lowest", first=first, last=last)
    match = msgspec.json.encode(asked.match) if asked.match else b""
    if match:
        Matcher.parse(match)  # before anything is done
    opened = call.opened
    durable = opened.state.store(call.store).durable(call.durable)
    letters = RedeliveredResponse(0, {}, None)
    if isinstance(durable, Consumption) and _takes_letters(opened, call.store):
        letters = await _Letters(call, asked, match).send_back()
        if letters.next_after is not None:
            return call.answer(letters)
    command = Redeliver(0, call.store, call.durable, asked.messages, match, asked.max, asked.after)
    result = await call.submit(opened.service.submit(command), Redelivered)
    redelivered = letters.redelivered + result.messages
    return call.answer(RedeliveredResponse(redelivered, letters.left, result.after or None))


def _takes_letters(opened: OpenStores, name: str) -> bool:
    """Whether the store is, or was, the dead-letter store of some durable."""
    stores = opened.state.stores.values()
    if any(durable.definition.dead_letter_store == name for store in stores for durable in store.durables.values()):
        return True
    return any(
        template.pattern.dead_letter_store == name
        for store in stores
        for template in store.definition.templates.values()
    )


class _Letters:
    """The letters of one durable."""

    def __init__(self, call: StoreCall, asked: RedeliverRequest, match: bytes) -> None:
        self._call = call
        self._opened = call.opened
        self._asked = asked
        self._ranges = SequenceSet(sorted(asked.messages))
        self._match = match
        self._sent = 0
        self._left: Counter[str] = Counter()

    async def send_back(self) -> RedeliveredResponse:
        """Look at the letters in order. They leave the durable one by one, so a crash leaves the rest there."""
        call, looked, pages = self._call, 0, 0
        following: int | None = self._asked.after
        while following is not None and looked < self._asked.max and pages < PAGES_MAX:
            reached, pages = following, pages + 1
            letters, following = self._opened.operations.browse(
                call.store, call.durable, after=reached, count=min(PAGE, self._asked.max - looked), match=self._match
            )
            looked += len(letters)
            for letter in letters:
                if not self._asked.messages or letter.seq in self._ranges:
                    await self._send_back(letter)
            # Where nothing was sent back, nothing above has let other requests run.
            await asyncio.sleep(0)
        return RedeliveredResponse(self._sent, dict(self._left), following)

    async def _send_back(self, letter: Delivery) -> None:
        origin = origin_of(letter)
        if origin is None:
            return
        opened, call = self._opened, self._call
        problem = opened.access.problem_with(call.call.authorization, Right.ADMINISTER, origin.store)
        if problem is not None:
            self._left[str(problem.code)] += 1
            return
        volatile = opened.state.definition.volatile_stores
        apart = (origin.store in volatile) is not (call.store in volatile)
        command = Resend(
            0, "" if apart else call.store, call.durable, letter.seq, origin.message, origin.store, origin.durable
        )
        try:
            await call.submit(opened.service.submit(command), Published)
            if apart:
                # One is in the log and the other is not, so it takes two commands: kept there first, then let go here.
                await opened.service.submit(Drop(0, call.store, call.durable, letter.seq))
        except HoldfastError as error:
            if error.code in (Code.OUTCOME_UNKNOWN, Code.CLOSED):
                raise
            self._left[str(error.code)] += 1
            return
        self._sent += 1
