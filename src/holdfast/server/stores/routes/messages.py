"""The routes that publish, deliver, acknowledge, browse and forget messages, and those of maps."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Final

import msgspec

from holdfast.errors import Code, HoldfastError, InvalidRequest, NotFound
from holdfast.server.http.rights_table import ORIGIN
from holdfast.server.http.routes import GET_OR_POST, Call, Parameter, Response, Route
from holdfast.server.stores.hosting import OpenStores, StoreHost
from holdfast.server.stores.hot_routes import ACKS_ROUTE, POLL_ROUTE, PUBLISH_ROUTE
from holdfast.server.stores.operations import POLL_MESSAGES_DEFAULT, POLL_MESSAGES_MAX, POLL_WAIT_MS_MAX, flag
from holdfast.server.stores.routes.store_call import DOCUMENT, StoreCall, parameter, store_route
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.machine.explain import explain
from holdfast.stores.matching import Matcher
from holdfast.stores.values import commands
from holdfast.stores.values.sequence_set import SequenceSet
from holdfast.wire import stores as wire
from holdfast.wire.parts import KEY_BYTES_MAX, AckedResponse, BatchReceipt, ChangedResponse, Delivery, Message

BROWSE_MESSAGES_DEFAULT: Final = 100
BROWSE_MESSAGES_MAX: Final = 1_000

FULL_CODES: Final = (Code.STORE_FULL, Code.CLUSTER_FULL, Code.MESSAGE_TOO_LARGE, Code.DISK_LIMIT, Code.NO_QUORUM)
PUBLISH_CODES: Final = (*FULL_CODES, Code.SEQUENCE_GAP, Code.UNKNOWN_PUBLISHER)


async def _publish(call: StoreCall) -> Response:
    return await call.hot(PUBLISH_ROUTE, await call.raw_body())


async def _poll(call: StoreCall) -> Response:
    texts = {name: call.call.text(name) for name in ("subscriber", "max", "wait_ms", "key", "take_over", "token")}
    parameters = {name: text for name, text in texts.items() if text is not None}
    return await call.hot(POLL_ROUTE, durable=call.durable, poll=parameters)


async def _acknowledge(call: StoreCall) -> Response:
    return await call.hot(ACKS_ROUTE, await call.raw_body(), durable=call.durable)


async def _browse(call: StoreCall) -> Response:
    query = call.call
    messages, next_after = call.opened.operations.browse(
        call.store,
        call.durable,
        after=query.number("after") or 0,
        count=query.number("max", low=1, high=BROWSE_MESSAGES_MAX) or BROWSE_MESSAGES_DEFAULT,
        match=(query.text("match") or "").encode(),
        parked=flag("parked", query.text("parked")),
    )
    _, durable = call.opened.state.find(call.store, call.durable)
    parked = durable.dying if isinstance(durable, Consumption) and durable.parks else {}
    token = call.token
    await call.opened.service.wait_until_safe()
    return call.answer(wire.Page(messages, next_after, [one.seq for one in messages if one.seq in parked], token))


async def _purge(call: StoreCall) -> Response:
    result = await call.submit(call.opened.service.submit(commands.Purge(0, call.store, call.durable)), commands.Purged)
    return call.answer(wire.PurgedAnswer(result.messages, result.bytes))


async def _rewind(call: StoreCall) -> Response:
    request = await call.body(wire.RewindRequest)
    if sum(one is not None for one in (request.to, request.seq, request.time_ms)) != 1:
        raise InvalidRequest('a rewind names one of {"to": "start"}, {"seq": n} and {"time_ms": t}')
    command = commands.Rewind(0, call.store, call.durable, request.seq or 0, request.time_ms or 0)
    await call.submit(call.opened.service.rewind(command), commands.Done)
    return call.answer(wire.NothingMore())


def _number_in(call: Call) -> int:
    text = call.path_text("seq")
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 16):
        raise InvalidRequest("the number of a message is a whole number")
    return int(text)


async def _explain_message(call: StoreCall) -> Response:
    explanation = explain(call.opened.state, call.store, _number_in(call.call))
    await call.opened.service.wait_until_safe()
    return call.answer(explanation)


async def _drop(call: StoreCall) -> Response:
    await call.submit(
        call.opened.service.submit(commands.Drop(0, call.store, call.durable, _number_in(call.call))), commands.Done
    )
    return call.answer(wire.NothingMore())


TAKE_OVER: Final = parameter(
    "take_over", "boolean", "Take a standard durable from the subscriber that has it (right: administer)", default=False
)

POLL_PARAMETERS: Final = (
    parameter("subscriber", "string", "Whose; attached by its first poll", minLength=1, maxLength=256),
    parameter(
        "max", "integer", "How many at most", minimum=1, maximum=POLL_MESSAGES_MAX, default=POLL_MESSAGES_DEFAULT
    ),
    parameter(
        "wait_ms", "integer", "How long to wait for the first, and for a standard durable that another subscriber has",
        minimum=0, maximum=POLL_WAIT_MS_MAX, default=0,
    ),
    TAKE_OVER,
    parameter("key", "string", "The one key of a last_value durable", maxLength=KEY_BYTES_MAX),
)  # fmt: skip


def message_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    store, durable = "/v1/stores/{store}", "/v1/stores/{store}/durables/{durable}"
    return (
        store_route(
            host, "POST", f"{store}/messages", "Publish a batch: all of it or nothing", _publish,
            body=wire.PublishRequest, answer=BatchReceipt, codes=PUBLISH_CODES,
        ),
        *(
            store_route(
                host, method, f"{durable}/messages", "The next messages for a subscriber (long poll)",
                _poll, answer=wire.DeliveredResponse, changes=True,
                codes=(
                    Code.MATCHER_MISMATCH, Code.TYPE_MISMATCH, Code.DURABLE_COLLISION, Code.DURABLE_BUSY,
                    Code.TOO_MANY_DURABLES, Code.TOO_MANY_SUBSCRIBERS,
                ),
                parameters=POLL_PARAMETERS,
            )
            for method in GET_OR_POST
        ),
        store_route(
            host, "POST", f"{durable}/acks", "Acknowledge, give back, reject or extend", _acknowledge,
            body=wire.AckRequest, answer=AckedResponse, codes=(Code.TYPE_MISMATCH,),
        ),
        store_route(
            host, "GET", f"{durable}/browse", "Look at messages without consuming them", _browse, is_page=True,
            answer=wire.Page, codes=(Code.TYPE_MISMATCH,), through=lambda call: call.number("after") or 0,
            parameters=(
                parameter("after", "integer", "Above this number", minimum=0, default=0),
                parameter("max", "integer", "How many at most", minimum=1, maximum=BROWSE_MESSAGES_MAX,
                          default=BROWSE_MESSAGES_DEFAULT),
                parameter("match", "string", "A matcher, as JSON"),
                parameter("parked", "boolean", "Only messages that were delivered too often", default=False),
            ),
        ),
        store_route(
            host, "GET", f"{store}/messages/{{seq}}/explain", "What became of a message in every durable",
            _explain_message, answer=DOCUMENT, through=_number_in,
        ),
        store_route(
            host, "POST", f"{durable}/purge", "Forget every message that the durable keeps", _purge,
            answer=wire.PurgedAnswer,
        ),
        store_route(
            host, "POST", f"{durable}/redeliver",
            "Put parked messages back, and dead letters to where they came from", _redeliver,
            body=wire.RedeliverRequest, answer=wire.RedeliveredResponse, codes=(Code.TYPE_MISMATCH,),
        ),
        store_route(
            host, "POST", f"{durable}/rewind", "Deliver again what is retained", _rewind,
            body=wire.RewindRequest, answer=wire.NothingMore, codes=(Code.TYPE_MISMATCH,),
        ),
        store_route(
            host, "DELETE", f"{durable}/messages/{{seq}}", "Delete one message of a durable", _drop,
            answer=wire.NothingMore, codes=(Code.TYPE_MISMATCH,), through=_number_in,
        ),
    )  # fmt: skip


PAGE: Final = 500
PAGES_MAX: Final = 20
"""Pages that one request searches; with a ``match`` a page may be empty, and takes some 100 ms."""


async def _redeliver(call: StoreCall) -> Response:
    request = await call.body(wire.RedeliverRequest)
    for first, last in request.messages:
        if first > last:
            raise InvalidRequest("a range of numbers begins with its lowest", first=first, last=last)
    match = msgspec.json.encode(request.match) if request.match else b""
    if match:
        Matcher.parse(match)  # before anything is done
    opened = call.opened
    _, durable = opened.state.find(call.store, call.durable)
    letters = wire.RedeliveredResponse(0, {}, None)
    if isinstance(durable, Consumption) and _takes_letters(opened, call.store):
        letters = await _Letters(call, request, match).send_back()
        if letters.next_after is not None:
            return call.answer(letters)
    command = commands.Redeliver(0, call.store, call.durable, request.messages, match, request.max, request.after)
    result = await call.submit(opened.service.submit(command), commands.Redelivered)
    redelivered = letters.redelivered + result.messages
    return call.answer(wire.RedeliveredResponse(redelivered, letters.left, result.after or None))


def _takes_letters(opened: OpenStores, name: str) -> bool:
    """Whether the store is the dead-letter store of some durable."""
    stores = opened.state.stores.values()
    if any(durable.definition.dead_letter_store == name for store in stores for durable in store.durables.values()):
        return True
    return any(
        template.pattern.dead_letter_store == name
        for store in stores
        for template in store.definition.templates.values()
    )


class _Letters:
    def __init__(self, call: StoreCall, asked: wire.RedeliverRequest, match: bytes) -> None:
        self._call = call
        self._opened = call.opened
        self._asked = asked
        self._ranges = SequenceSet(sorted(asked.messages))
        self._match = match
        self._sent = 0
        self._left: Counter[str] = Counter()

    async def send_back(self) -> wire.RedeliveredResponse:
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
                    call.call.require_right()
                    await self._send_back(letter)
            # Where nothing was sent back, nothing above has let other requests run.
            await asyncio.sleep(0)
        return wire.RedeliveredResponse(self._sent, dict(self._left), following)

    async def _send_back(self, letter: Delivery) -> None:
        origin = letter.origin
        if origin is None:
            return
        message = Message(body=letter.body, fields=letter.fields, key=letter.key)
        opened, call = self._opened, self._call
        problem = opened.access.problem_with(call.call.authorization, call.call.need.right_of(ORIGIN), origin.store)
        if problem is not None:
            self._left[str(problem.code)] += 1
            return
        volatile = opened.state.definition.volatile_stores
        apart = (origin.store in volatile) is not (call.store in volatile)
        command = commands.Resend(
            0, "" if apart else call.store, call.durable, letter.seq, message, origin.store, origin.durable
        )
        try:
            await call.submit(opened.service.submit(command), commands.Published)
            if apart:
                # One is in the log and the other is not, so it takes two commands: kept there first, then dropped here.
                await opened.service.submit(commands.Drop(0, call.store, call.durable, letter.seq))
        except HoldfastError as error:
            if error.code in (Code.OUTCOME_UNKNOWN, Code.CLOSED):
                raise
            self._left[str(error.code)] += 1
            return
        self._sent += 1


ENTRIES_DEFAULT: Final = 100
ENTRIES_MAX: Final = 1_000
_REVISION: Final = re.compile(r'"?(\d{1,16})"?', re.ASCII)


async def _get_entry(call: StoreCall) -> Response:
    key = call.call.path_text("key")
    token = call.token
    entry = call.opened.operations.entry(call.store, call.durable, key)
    await call.opened.service.wait_until_safe()
    if entry is None:
        raise NotFound("there is no such key", code=Code.NO_SUCH_KEY, store=call.store, map=call.durable)
    _, value, revision = entry
    return call.answer(wire.Entry(key, value, revision, token), headers={"ETag": f'"{revision}"'})


async def _list_entries(call: StoreCall) -> Response:
    query = call.call
    token = call.token
    count = query.number("max", low=1, high=ENTRIES_MAX) or ENTRIES_DEFAULT
    entries, more = call.opened.operations.entries(
        call.store, call.durable, after=query.text("after") or "", count=count
    )
    await call.opened.service.wait_until_safe()
    items = [wire.Entry(key, value, revision) for key, value, revision in entries]
    return call.answer(wire.EntriesResponse(items, more, token))


async def _put_entry(call: StoreCall) -> Response:
    request = await call.body(wire.SetRequest)
    return await _change_one(call, request.value)


async def _delete_entry(call: StoreCall) -> Response:
    return await _change_one(call, None)


async def _change_one(call: StoreCall, value: bytes | None) -> Response:
    change = (call.call.path_text("key"), value, _revision_in(call.call))
    return await _change(
        call, commands.MapChange(0, call.store, call.durable, [change], call.call.number("fence") or 0)
    )


async def _change_entries(call: StoreCall) -> Response:
    request = await call.body(wire.ChangesRequest)
    changes = [(one.key, one.value, one.if_revision) for one in request.changes]
    return await _change(
        call, commands.MapChange(0, call.store, call.durable, changes, request.fence, request.remove_all)
    )


async def _change(call: StoreCall, command: commands.MapChange) -> Response:
    result = await call.submit(call.opened.service.submit(command), commands.MapChanged)
    return call.answer(ChangedResponse(result.revision, result.changed), headers={"ETag": f'"{result.revision}"'})


def _revision_in(call: Call) -> int | None:
    matches, none_matches = call.header("if-match"), call.header("if-none-match")
    if none_matches is not None:
        if none_matches.strip() != "*" or matches is not None:
            raise InvalidRequest("If-None-Match is * and stands alone")
        return 0
    if matches is None:
        return None
    match = _REVISION.fullmatch(matches.strip())
    if match is None:
        raise InvalidRequest('If-Match is a revision, for example "7"')
    return int(match[1])


def _remembered_revision(call: Call) -> int | None:
    """None with a fence, too: a restored map gives fences out again."""
    return None if call.number("fence") else _revision_in(call)


async def _lock(call: StoreCall) -> Response:
    request = await call.body(wire.LockRequest)
    command = commands.MapLock(0, call.store, call.durable, request.key, request.owner, request.ttl_ms, request.steal)
    submitted = call.opened.service.submit(command)
    token = call.opened.service.token_if_there(call.store, call.durable)
    result = await call.submit(submitted, commands.MapLocked)
    return call.answer(wire.LockedResponse(result.fence, result.until_ms, token))


async def _unlock(call: StoreCall) -> Response:
    request = await call.body(wire.UnlockRequest)
    command = commands.MapUnlock(0, call.store, call.durable, request.key, request.owner, request.fence)
    await call.submit(call.opened.service.submit(command), commands.Done)
    return call.answer(wire.NothingMore())


_CONDITIONS: Final = (
    parameter("fence", "integer", "The token of a lock that must be held still", minimum=0, default=0),
    Parameter("If-Match", "header", {"type": "string"}, "Only where the key has this revision"),
    Parameter("If-None-Match", "header", {"type": "string"}, "*: only where there is no such key"),
)


def map_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    whole = "/v1/stores/{store}/maps/{map}"
    one = f"{whole}/{{key:any}}"
    change_codes = (Code.TYPE_MISMATCH, Code.REVISION_MISMATCH, Code.NOT_HOLDER, Code.LOCK_HELD, *FULL_CODES)
    return (
        store_route(
            host, "POST", f"{whole}/lock", "Take, extend or steal a lock", _lock,
            body=wire.LockRequest, answer=wire.LockedResponse, codes=(Code.LOCK_HELD, Code.TYPE_MISMATCH),
        ),
        store_route(
            host, "POST", f"{whole}/unlock", "Give a lock back", _unlock,
            body=wire.UnlockRequest, answer=wire.NothingMore, codes=(Code.NOT_HOLDER, Code.TYPE_MISMATCH),
        ),
        store_route(
            host, "GET", whole, "Keys and values, in the order of keys", _list_entries, is_page=True,
            answer=wire.EntriesResponse, codes=(Code.TYPE_MISMATCH,),
            parameters=(
                parameter("after", "string", "Above this key"),
                parameter("max", "integer", "At most as many", minimum=1, maximum=ENTRIES_MAX, default=ENTRIES_DEFAULT),
            ),
        ),
        store_route(
            host, "POST", whole, "Change several keys: all or nothing", _change_entries,
            body=wire.ChangesRequest, answer=ChangedResponse, codes=change_codes,
        ),
        store_route(
            host, "GET", one, "A key's value and revision", _get_entry,
            answer=wire.Entry, codes=(Code.TYPE_MISMATCH, Code.NO_SUCH_KEY),
        ),
        store_route(
            host, "PUT", one, "Set a key", _put_entry,
            body=wire.SetRequest, answer=ChangedResponse, codes=change_codes, parameters=_CONDITIONS,
            through=_remembered_revision,
        ),
        store_route(
            host, "DELETE", one, "Remove a key", _delete_entry,
            answer=ChangedResponse, codes=change_codes, parameters=_CONDITIONS, through=_remembered_revision,
        ),
    )  # fmt: skip


async def subscribe(_: StoreCall) -> Response:
    """``GET .../subscribe`` without an upgrade."""
    raise InvalidRequest(
        "this route speaks WebSocket",
        hint="ask for an upgrade with the subprotocol holdfast.stores.v1+json or holdfast.stores.v1+msgpack",
    )


def subscribe_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    return (
        store_route(
            host, "GET", "/v1/stores/{store}/durables/{durable}/subscribe",
            "One WebSocket for a subscriber: credit, messages, acknowledgements, advisories; of a map its changes",
            subscribe,
            answer=wire.NothingMore,
            codes=(
                Code.MATCHER_MISMATCH, Code.TYPE_MISMATCH, Code.DURABLE_COLLISION, Code.DURABLE_BUSY,
                Code.TOO_MANY_DURABLES, Code.TOO_MANY_SUBSCRIBERS, Code.NO_QUORUM,
            ),
            parameters=(
                parameter("subscriber", "string", "The subscriber's name", minLength=1, maxLength=256),
                parameter("template", "string", "What a durable that does not exist is made of"),
                parameter("matcher", "string", "Its matcher, as JSON"),
                parameter("key", "string", "The one key of a last-value subscriber, or of a map that is to be watched"),
                parameter("prefix", "string", "Of a map, the keys that begin so"),
                parameter("prefetch", "integer", "How many messages it wants to hold", minimum=0, maximum=999_999),
                parameter("wait_ms", "integer", "How long to wait for a standard durable that another subscriber has",
                          minimum=0, maximum=POLL_WAIT_MS_MAX, default=0),
                TAKE_OVER,
            ),
        ),
    )  # fmt: skip
