"""Requests to the message stores with one response each, as procedures without I/O.

A harmless request is repeated until ``within_ms`` is over. A change that depends on the current state (a
compare-and-set) is sent again only while it was certainly not accepted; otherwise ``OutcomeUnknown`` is raised.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.client.protocol.effects import Failed, Procedure, Request, Response, Send, Woken
from holdfast.client.protocol.log_operations import response_too_large
from holdfast.client.protocol.messages import require_progress
from holdfast.client.protocol.retry_budget import RetryBudget, Session
from holdfast.client.protocol.stores.messages import (
    PASSING_CODES,
    coded_error,
    decode,
    durable_path,
    is_unclear,
    map_path,
    query_of,
    request_of,
)
from holdfast.errors import Code, HoldfastError, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from holdfast.wire.parts import ChangedResponse
from holdfast.wire.stores import REDELIVER_MAX, EntriesResponse, Entry, Lock, LockedResponse, RedeliveredResponse

Definition = dict[str, object]
"""The parameters of a store, durable or template, with the values in force and its counts."""

ClusterCommand = Literal["suspend", "resume", "save", "backup", "compact", "force-quorum"]


class Redelivered(msgspec.Struct, frozen=True):
    """How many messages are delivered again, and of the dead letters that could not go back how many, by reason."""

    messages: int
    left: dict[str, int]


def ask(
    session: Session, request: Request, now_ms: float, within_ms: float, *, repeatable: bool = True
) -> Procedure[Response]:
    """The response to one request. Raises: what the service refuses with; Unavailable; OutcomeUnknown."""
    budget = RetryBudget(session, now_ms, within_ms)
    while True:
        asked = session.route.current
        timeout_ms = session.options.request_timeout_ms
        if within_ms > 0:  # without retries, the first try still has its time
            timeout_ms = min(timeout_ms, budget.left_ms(now_ms))
        reply = yield Send(asked, request, timeout_ms)
        assert isinstance(reply, Response | Failed), "the reply to Send is Response or Failed"
        if isinstance(reply, Response) and reply.status < 300:
            return reply
        error: HoldfastError
        if isinstance(reply, Failed):
            error = Unavailable(f"the service cannot be reached: {reply.reason}", endpoint=asked)
            if reply.too_large:
                error = response_too_large(session.options)
            again, is_open = not reply.too_large, reply.perhaps_accepted
            budget.missed(asked, reply)
        else:
            error, again, is_open = _meaning(reply)
            budget.unusable.heard(asked)
        if is_open and not repeatable:
            raise OutcomeUnknown("whether this was done is not known", target=request.target) from error
        if not again or budget.exhausted(reply.now_ms):
            raise error
        wait = budget.turns.after_error(asked, error, reply)
        woken = yield budget.within(wait, reply.now_ms)
        assert isinstance(woken, Woken), "the reply to Wait is Woken"
        now_ms = woken.now_ms
        if budget.exhausted(now_ms):  # another try would have no time, and its failure would say less
            raise error


def _meaning(reply: Response) -> tuple[HoldfastError, bool, bool]:
    """The error, whether a retry may help, and whether the request may have been carried out."""
    error = coded_error(reply.status, reply.headers, reply.body)
    if error is None:
        unclear = Unavailable("something before the service answered with an error", status=reply.status)
        return unclear, reply.status >= 500 or reply.status == 429, reply.status >= 500
    return error, error.code in PASSING_CODES, is_unclear(error, reply.status)


def rewind_target(seq: int | None, time_ms: int | None) -> Mapping[str, object]:
    """The body of a rewind request.

    >>> rewind_target(None, None), rewind_target(7, None)
    ({'to': 'start'}, {'seq': 7})
    """
    if seq is not None and time_ms is not None:
        raise InvalidRequest("rewind goes to a number or to a time, not to both")
    if seq is None and time_ms is None:
        return {"to": "start"}
    return {"seq": seq} if seq is not None else {"time_ms": time_ms}


def redeliver(
    session: Session,
    store: str,
    durable: str,
    messages: Sequence[tuple[int, int]],
    match: Mapping[str, object] | None,
    limit: int | None,
    now_ms: float,
) -> Procedure[Redelivered]:
    """Deliver parked messages again, and send dead letters back, in as many requests as it takes."""
    total, left, after = 0, Counter[str](), 0
    following: int | None = 0
    while following is not None and (limit is None or total < limit):
        after = following
        body: dict[str, object] = {"messages": messages, "match": match or {}, "after": after}
        if limit is not None:
            body["max"] = min(limit - total, REDELIVER_MAX)
        request = request_of("POST", f"{durable_path(store, durable)}/redeliver", body)
        response = yield from ask(session, request, now_ms, session.options.give_up_after_ms)
        page = decode(response, RedeliveredResponse)
        total += page.redelivered
        left.update(page.left)
        following, now_ms = page.next_after, response.now_ms
    return Redelivered(total, dict(left))


def browse_target(
    path: str, after: int, count: int, match: Mapping[str, object] | None, parked: bool, token: str = ""
) -> str:
    """The next ``count`` messages above number ``after`` that match, at most, of the durable at ``path``. ``token``: of
    the durable that the number is of."""
    text = None if match is None else msgspec.json.encode(match).decode()
    query = query_of(after=after, max=count, match=text, parked="true" if parked else None, token=token or None)
    return f"{path}/browse{query}"


class MapOperations:
    """The operations on one map. ``within_ms`` bounds the repeats of each.

    ``if_revision``: the revision that the key must have, 0 for no such key. ``fence``: the token of a lock that must be
    held still.

    What depends on a revision, a fence or a key of an earlier page is for the map that was met first: in another one of
    the name it is refused (``store_replaced``). What depends on nothing is for whatever map has the name.
    """

    def __init__(self, session: Session, store: str, name: str, within_ms: float) -> None:
        self._token = ""
        self._session = session
        self._path = map_path(store, name)
        self._key_path = functools.partial(map_path, store, name)
        self._within_ms = within_ms

    def _ask(self, request: Request, now_ms: float, *, repeatable: bool = True) -> Procedure[Response]:
        return ask(self._session, request, now_ms, self._within_ms, repeatable=repeatable)

    def get(self, key: str, now_ms: float) -> Procedure[Entry | None]:
        """A key, None where there is none. Raises: NotFound for the map or the store."""
        try:
            response = yield from self._ask(request_of("GET", self._key_path(key)), now_ms)
        except NotFound as error:
            if error.code is not Code.NO_SUCH_KEY:
                raise
            return None
        entry = decode(response, Entry)
        self._met(entry.token)
        return entry

    def _met(self, token: str) -> None:
        self._token = self._token or token

    def entries(self, after: str, count: int, now_ms: float) -> Procedure[EntriesResponse]:
        """Keys above ``after``, in their order."""
        token = self._token if after else ""
        target = f"{self._path}{query_of(after=after or None, max=count, token=token or None)}"
        page = decode((yield from self._ask(request_of("GET", target), now_ms)), EntriesResponse)
        self._met(page.token)
        return require_progress(page, page.entries, more=page.more)

    def change(
        self, key: str, value: bytes | None, if_revision: int | None, fence: int, now_ms: float
    ) -> Procedure[ChangedResponse]:
        """Set a key, or remove it where ``value`` is None."""
        token = self._token if fence or if_revision else ""
        target = f"{self._key_path(key)}{query_of(fence=fence or None, token=token or None)}"
        headers: tuple[tuple[str, str], ...] = ()
        if if_revision is not None:
            headers = (("if-none-match", "*"),) if if_revision == 0 else (("if-match", f'"{if_revision}"'),)
        body = None if value is None else {"value": value}
        request = request_of("DELETE" if value is None else "PUT", target, body, headers)
        response = yield from self._ask(request, now_ms, repeatable=if_revision is None)
        return decode(response, ChangedResponse)

    def change_many(self, values: Mapping[str, bytes | None], fence: int, now_ms: float) -> Procedure[ChangedResponse]:
        """Set keys, and remove those with None: all or nothing."""
        changes = [{"key": key, "value": value, "if_revision": None} for key, value in values.items()]
        token = self._token if fence else ""
        request = request_of("POST", self._path, {"changes": changes, "fence": fence, "token": token})
        return decode((yield from self._ask(request, now_ms)), ChangedResponse)

    def lock(self, key: str, owner: str, ttl_ms: int, now_ms: float, *, steal: bool) -> Procedure[Lock]:
        """Take or extend a lock: the same owner may ask again, so a repeat is harmless."""
        body = {"key": key, "owner": owner, "ttl_ms": ttl_ms, "steal": steal}
        response = yield from self._ask(request_of("POST", f"{self._path}/lock", body), now_ms)
        held = decode(response, LockedResponse)
        self._met(held.token)
        return Lock(key, owner, held.fence, held.until_ms, held.token)

    def unlock(self, held: Lock, now_ms: float) -> Procedure[None]:
        """Give a lock back. Raises: Conflict (``not_holder``) where another owner has it."""
        body = {"key": held.key, "owner": held.owner, "fence": held.fence, "token": held.token}
        yield from self._ask(request_of("POST", f"{self._path}/unlock", body), now_ms)
