"""Operations that wait at the same time, gathered into few requests: which leaves when, and what an answer settles.

The rules:

    what happens                                      what follows
    an item is offered, and nothing is under way      it travels alone, as without gathering
    an item is offered, something is under way        it waits
    nothing is under way any more                     what waits leaves together
    the first that waits has waited ``gather_ms``     what waits leaves, unless ``UNDER_WAY_MAX`` are under way
    an item leaves before it is sent                  nothing of it is sent
    its caller leaves after that, or its time is up   its outcome is open; its answer is read and dropped
    an answer                                         settles the next item of its request, if it names that one
    an error that ends the stream                     settles its item; those after it wait again, as the first
    the connection breaks, or answers do not fit      the outcome of every item without an answer is open
    the whole request is refused                      each item is refused so; or travels alone, where only the
                                                      form of the request was refused
    no connection                                     the items that wait for one were not sent

An item is sent in one request only, until an answer proves that nothing of it was accepted. Its time begins when it is
offered. What an answer or an open outcome means is the caller's procedure (``log_operations``).

The shells own connections, clocks and callers. Callers that have just got their answers often offer again, so what
leaves after an answer waits for them. With ``has_turns`` (asyncio) that is until the end of the loop's turn; else
(threads) until as many have come back, and no longer than ``RETURN_MS`` after the first offer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final, Protocol

import msgspec

from holdfast.client.protocol.effects import ALONE, Answer, Failed, Item, ItemRefused, Request, Response, Unreadable
from holdfast.client.protocol.endpoint import ClientRoute, Endpoint
from holdfast.client.protocol.messages import service_error
from holdfast.client.protocol.options import ClientOptions

ITEM_BYTES_MAX: Final = 64 << 10
"""A larger item travels alone."""
UNDER_WAY_MAX: Final = 16
RETURN_MS: Final = 1.0
"""How long what waits is held for callers that were just answered, while nothing is under way."""

_NO_SUCH_ROUTE: Final = (404, 405)
_FORM_REFUSED: Final = (*_NO_SUCH_ROUTE, 411, 413, 414, 415)
"""A server refuses the request for what it is, not for what is in it."""

CLOSED: Final = "this client was closed"
NO_ANSWER: Final = "no answer in time"
NOT_SENT: Final = "it was not sent in time"
CUT_SHORT: Final = "the response ended before the answer to this item"
WRONG_ANSWER: Final = "an answer in the response belongs to another item"


class AnswerReader(Protocol):
    """Cuts the body of one response into answers, in the order of the items."""

    def feed(self, data: bytes, now_ms: float) -> Sequence[Answer]:
        """The answers that are whole now."""
        ...

    def end(self, now_ms: float) -> Sequence[Answer]:
        """The answers that are whole because the response is."""
        ...


class GatheredKind(Protocol):
    """What is gathered. ``bytes_max``: of the items of one request. ``is_harmless``: an item may be sent again."""

    bytes_max: int
    is_harmless: bool

    def alone(self, item: Item) -> Request:
        """The request of an item that travels alone."""
        ...

    def alone_answer(self, item: Item, response: Response) -> Answer:
        """The result in a response with status 200 to ``alone``; the response where that is not to be read so."""
        ...

    def together(self, items: Sequence[Item]) -> Request:
        """The request of those that travel together, also of one."""
        ...

    def reader(self, items: int) -> AnswerReader:
        """For the response to ``together`` with this many."""
        ...

    def own(self, answers: Sequence[Answer], items: Sequence[Item]) -> int:
        """How many answers, from the first on, are results of these items one after another."""
        ...


class SharedRequest:
    """One request that carries several items, or is about to: it has none until it has a connection."""

    __slots__ = ("answered", "began_ms", "deadline_ms", "endpoint", "is_over", "items", "reader")

    def __init__(self, endpoint: Endpoint, began_ms: float, deadline_ms: float) -> None:
        self.endpoint = endpoint
        self.began_ms = began_ms
        self.deadline_ms = deadline_ms
        self.items: list[Item] = []
        self.answered = 0
        self.reader: AnswerReader | None = None
        self.is_over = False
        """Nothing is waited for any more; what still comes is dropped."""


class Effects(msgspec.Struct, frozen=True):
    """``settled``: wake their callers. ``to_open``: get a connection for it, then ``opened`` or ``not_opened``.
    ``broken``: its connection must not be used again. ``ends_turn``: call ``turn_ended`` at the end of the turn."""

    settled: Sequence[Item] = ()
    to_open: SharedRequest | None = None
    broken: SharedRequest | None = None
    ends_turn: bool = False


NOTHING: Final = Effects()
NEW_DUE_MS: Final = Effects()
"""Nothing but ``due_ms`` has changed."""


class Gathering:
    """What waits and what is under way for one client. Not thread-safe.

    ``due_ms``: call ``look`` then, at the latest; it changes with every call.
    """

    def __init__(self, kind: GatheredKind, route: ClientRoute, options: ClientOptions, *, has_turns: bool) -> None:
        self._kind = kind
        self._route = route
        self._options = options
        self._request_timeout_ms = options.request_timeout_ms
        self._has_turns = has_turns
        self._waiting: deque[Item] = deque()
        self._under_way: dict[SharedRequest, None] = {}
        self._alone = 0
        """How many items travel alone."""
        self._is_crowded = False
        """Whether what travelled last was not by itself."""
        self._turn_ends = False
        self._may_return = 0
        """Without turns: how many callers have got their answers, and may offer again, since the last request began."""
        self._opening = 0
        self._opening_since_ms = -math.inf
        self._deadline_ms = math.inf
        """No item has an earlier one."""
        self._without_route: set[Endpoint] = set()

    # ---- items

    def offered(self, item: Item, now_ms: float) -> Effects:
        """A caller offers an item; its time begins. If ``ALONE`` at once and awaited, ``alone_ended`` follows."""
        item.offered_ms = now_ms
        deadline_ms = item.deadline_ms = now_ms + self._request_timeout_ms
        if self._without_route and self._route.current in self._without_route:
            item.settled = ALONE
            return NOTHING
        if self._may_return:
            self._may_return -= 1
        is_crowded = self._under_way or self._alone
        if is_crowded:
            self._is_crowded = True
        elif not (self._waiting or (self._is_crowded if self._has_turns else self._may_return)):
            item.settled = ALONE
            item.is_awaited = True
            self._alone += 1
            return NOTHING
        waiting = self._waiting
        waiting.append(item)
        if deadline_ms < self._deadline_ms:
            self._deadline_ms = deadline_ms
        if not (is_crowded or self._turn_ends):
            return self._go_on(now_ms)
        return NEW_DUE_MS if len(waiting) == 1 else NOTHING

    def alone_request(self, item: Item) -> Request:
        """What its caller sends, to ``endpoint``."""
        item.endpoint = self._route.current
        return self._kind.alone(item)

    def alone_answered(self, item: Item, reply: Response | Failed) -> None:
        """Settle an item that travelled alone."""
        if isinstance(reply, Response) and reply.status == 200:
            item.settled = self._kind.alone_answer(item, reply)
        else:
            item.settled = reply

    def alone_ended(self, item: Item, now_ms: float) -> Effects:
        """An item that travelled alone has its answer, or its caller has left."""
        if not item.is_awaited:
            return NOTHING
        item.is_awaited = False
        self._alone -= 1
        self._may_return += not self._has_turns
        return self._go_on(now_ms)

    def left(self, item: Item) -> None:
        """The caller of an item does not wait any more. Nothing of it is sent if it was not."""
        item.has_left = True
        if item.settled is None:
            try:
                self._waiting.remove(item)
            except ValueError:
                pass  # it is under way: its answer is dropped

    # ---- time

    @property
    def due_ms(self) -> float:
        """When something is due, if nothing happens before."""
        return min(self._leaves_ms(), self._deadline_ms)

    @property
    def first(self) -> Item | None:
        """The item that waits first."""
        return self._waiting[0] if self._waiting else None

    def _leaves_ms(self) -> float:
        """When the next request may leave while others are under way."""
        if not self._waiting or self._turn_ends or len(self._under_way) + self._alone >= UNDER_WAY_MAX:
            return math.inf
        if self._opening and not self._has_turns:  # no thread is to spare for another connection
            return math.inf
        since_ms = self._waiting[0].offered_ms
        if self._opening:  # what waits leaves with the connection that is being made, if that does not take long
            since_ms = max(since_ms, self._opening_since_ms)
        if self._under_way or self._alone:
            return since_ms + self._options.gather_ms
        return since_ms + min(self._options.gather_ms, RETURN_MS)

    def look(self, now_ms: float) -> Effects:
        """Time has passed."""
        settled: list[Item] = []
        if now_ms >= self._deadline_ms:
            self._expire(now_ms, settled)
        effects = self._begin(now_ms) if now_ms >= self._leaves_ms() else self._go_on(now_ms)
        return msgspec.structs.replace(effects, settled=settled) if settled else effects

    def turn_ended(self, now_ms: float) -> Effects:
        """The turn has ended in which ``ends_turn`` was asked for."""
        self._turn_ends = False
        if not self._waiting or self._under_way or self._alone:
            return NOTHING
        return self._begin(now_ms)

    def _go_on(self, now_ms: float) -> Effects:
        """Begin the next request if nothing is under way."""
        if not self._waiting or self._under_way or self._alone or self._turn_ends:
            return NOTHING
        if self._has_turns:
            self._turn_ends = True
            return Effects(ends_turn=True)
        if self._may_return and now_ms < self._leaves_ms():
            return NOTHING
        return self._begin(now_ms)

    def _begin(self, now_ms: float) -> Effects:
        shared = SharedRequest(self._route.current, now_ms, self._waiting[0].deadline_ms)
        self._under_way[shared] = None
        self._opening += 1
        self._opening_since_ms = now_ms
        self._may_return = 0
        return Effects(to_open=shared)

    def _expire(self, now_ms: float, settled: list[Item]) -> None:
        """End the time of items whose deadline has passed."""
        earliest_ms = math.inf
        kept: deque[Item] = deque()
        for item in self._waiting:
            if item.deadline_ms <= now_ms:
                item.endpoint = self._route.current
                self._settle((item,), (Failed(now_ms, False, NOT_SENT, asked=self._opening > 0),), settled)
            else:
                kept.append(item)
                earliest_ms = min(earliest_ms, item.deadline_ms)
        self._waiting = kept
        for shared in self._under_way:
            for item in shared.items[shared.answered :]:
                if item.settled is not None or item.has_left:
                    continue
                if item.deadline_ms <= now_ms:
                    self._settle((item,), (Failed(now_ms, True, NO_ANSWER),), settled)
                else:
                    earliest_ms = min(earliest_ms, item.deadline_ms)
        self._deadline_ms = earliest_ms

    # ---- requests

    def opened(self, shared: SharedRequest, now_ms: float) -> Request | None:
        """It has a connection: the request to send there, with what waits. None, and it is over, if nothing does."""
        if shared.is_over:
            return None
        self._opening -= 1
        options, waiting, size = self._options, self._waiting, 0
        items: list[Item] = []
        while waiting and len(items) < options.commits_per_request_max:
            item = waiting[0]
            size += len(item.data) + 1
            if items and (size > self._kind.bytes_max or item.group != items[0].group):
                break
            item.endpoint = shared.endpoint
            items.append(waiting.popleft())
        shared.items = items
        shared.deadline_ms = now_ms + options.request_timeout_ms
        self._is_crowded = len(items) > 1
        if not items:
            self._end(shared)
            return None
        shared.reader = self._kind.reader(len(items))
        return self._kind.together(items)

    def not_opened(self, shared: SharedRequest, failed: Failed) -> Effects:
        """It got no connection. What waited before it began was not sent."""
        if shared.is_over:
            return NOTHING
        self._opening -= 1
        self._end(shared)
        settled: list[Item] = []
        waiting = self._waiting
        while waiting and waiting[0].offered_ms <= shared.began_ms:
            item = waiting.popleft()
            item.endpoint = shared.endpoint
            self._settle((item,), (failed,), settled)
        return self._then(failed.now_ms, settled)

    def received(self, shared: SharedRequest, data: bytes, now_ms: float) -> Effects:
        """Bytes of the body of a response with status 200."""
        if shared.is_over:
            return NOTHING
        assert shared.reader is not None, "a response follows a request"
        return self._answered(shared, shared.reader.feed(data, now_ms), now_ms)

    def _answered(self, shared: SharedRequest, answers: Sequence[Answer], now_ms: float) -> Effects:
        settled: list[Item] = []
        while answers:
            items = shared.items[shared.answered :]
            own = self._kind.own(answers, items)
            self._settle(items[:own], answers, settled)
            shared.answered += own
            if own == len(answers):
                break
            answer = answers[own]
            if isinstance(answer, Unreadable):
                if answer.is_too_large and len(shared.items) > 1:  # each alone may fit
                    self._leave_open(shared, ALONE, settled)
                    return msgspec.structs.replace(self._then(now_ms, settled), broken=shared)
                return self._break(shared, answer, now_ms, settled)
            if own == len(items) or not isinstance(answer, ItemRefused) or answer.index != shared.answered:
                return self._break(shared, Unreadable(WRONG_ANSWER), now_ms, settled)
            self._settle((items[own],), (answer.reply,), settled)
            shared.answered += 1
            if answer.ends:
                return self._take_back(shared, now_ms, settled)
            answers = answers[own + 1 :]
        if shared.answered == len(shared.items):
            self._end(shared)
            return self._then(now_ms, settled)
        return Effects(settled=settled) if settled else NOTHING

    def _take_back(self, shared: SharedRequest, now_ms: float, settled: list[Item]) -> Effects:
        """The service has taken none of the items after the answer: they wait again, before all others. It closes the
        connection, so nothing more may be sent there."""
        self._end(shared)
        for item in reversed(shared.items[shared.answered :]):
            if item.settled is None and not item.has_left:
                self._waiting.appendleft(item)
        if not self._waiting or len(self._under_way) + self._alone >= UNDER_WAY_MAX:
            return Effects(settled=settled, broken=shared)
        return msgspec.structs.replace(self._begin(now_ms), settled=settled, broken=shared)

    def _break(self, shared: SharedRequest, answer: Unreadable, now_ms: float, settled: list[Item]) -> Effects:
        self._leave_open(shared, Failed(now_ms, True, answer.reason, too_large=answer.is_too_large), settled)
        return msgspec.structs.replace(self._then(now_ms, settled), broken=shared)

    def ended(self, shared: SharedRequest, reply: Response | Failed) -> Effects:
        """The whole response is there, its body of status 200 through ``received``; or there will be no more of it."""
        if shared.is_over:
            return NOTHING
        settled: list[Item] = []
        if isinstance(reply, Response) and reply.status == 200:
            assert shared.reader is not None, "a response follows a request"
            effects = self._answered(shared, shared.reader.end(reply.now_ms), reply.now_ms)
            if shared not in self._under_way:
                return effects
            settled.extend(effects.settled)
            if self._kind.is_harmless and shared.answered:  # the others did not fit
                return self._take_back(shared, reply.now_ms, settled)
            self._leave_open(shared, Failed(reply.now_ms, True, CUT_SHORT), settled)
        elif isinstance(reply, Response) and self._refuses_form(shared, reply):
            self._leave_open(shared, ALONE, settled)
        else:
            self._leave_open(shared, reply, settled)
        return self._then(reply.now_ms, settled)

    def _refuses_form(self, shared: SharedRequest, reply: Response) -> bool:
        if len(shared.items) == 1:  # it has the form of one that travels alone
            return False
        error = service_error(reply)
        if reply.status in _NO_SUCH_ROUTE:
            self._without_route.add(shared.endpoint)
        return reply.status in _FORM_REFUSED or (error is None and 400 <= reply.status < 500 and reply.status != 429)

    def _leave_open(self, shared: SharedRequest, answer: Answer, settled: list[Item]) -> None:
        """The request is over, and every item without an answer gets this one."""
        self._end(shared)
        self._settle(shared.items[shared.answered :], repeat(answer), settled)

    def closed(self, now_ms: float, *, ends_sent: bool) -> Effects:
        """The client is closed: what waits ends. ``ends_sent``: what was sent does, too."""
        settled: list[Item] = []
        if ends_sent:
            for shared in list(self._under_way):
                self._leave_open(shared, Failed(now_ms, True, CLOSED), settled)
        while self._waiting:
            item = self._waiting.popleft()
            item.endpoint = self._route.current
            self._settle((item,), (Failed(now_ms, False, CLOSED, asked=False),), settled)
        return Effects(settled=settled)

    def _end(self, shared: SharedRequest) -> None:
        shared.is_over = True
        self._under_way.pop(shared, None)

    def _settle(self, items: Iterable[Item], answers: Iterable[Answer], settled: list[Item]) -> None:
        """Each item gets its answer; as many as there are items."""
        count = len(settled)
        for item, answer in zip(items, answers, strict=False):
            if item.settled is None and not item.has_left:
                item.settled = answer
                settled.append(item)
        if not self._has_turns:
            self._may_return += len(settled) - count

    def _then(self, now_ms: float, settled: list[Item]) -> Effects:
        effects = self._go_on(now_ms)
        return msgspec.structs.replace(effects, settled=settled) if settled else effects

    def check(self) -> None:
        """Assert every law of the state; for tests."""
        carried = [item for shared in self._under_way for item in shared.items[shared.answered :]]
        assert len(self._under_way) <= UNDER_WAY_MAX, "requests under way are bounded"
        assert not any(shared.is_over for shared in self._under_way), "what is over is not under way"
        assert len({id(item) for item in (*carried, *self._waiting)}) == len(carried) + len(self._waiting), (
            "an item is in one place"
        )
        assert not any(item.settled is not None or item.has_left for item in self._waiting), "what waits has a caller"
        for item in (*carried, *self._waiting):
            if item.settled is None and not item.has_left:
                assert item.deadline_ms >= self._deadline_ms, "no deadline is forgotten"
        if self._waiting:
            is_awaited = self._turn_ends or self._may_return
            assert self._under_way or self._alone or is_awaited, "something will make what waits leave"
        assert self._opening >= 0, "what is opened was begun"
