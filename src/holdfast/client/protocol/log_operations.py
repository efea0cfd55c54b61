"""The operations on the log, as procedures without I/O.

The rules for a commit, in the order in which they are tried on each reply:

    the reply                                    what is known   what happens
    200 committed / not_committed                the outcome     it is returned
    coded 503 overloaded, not_leader, 429        not accepted    wait (Retry-After, jitter), the same attempt again
    400 id_needs_tag, the id was drawn here      not accepted    a new attempt, whose id begins with the tag
    not sent: no connection, or last byte unsent not accepted    wait with jitter, the same attempt again
    a stream of commits broken while it is sent  unknown         ask status until it is final, item by item
    coded 504, 409 leader_changed, 5xx           unknown         ask status until it is final
    uncoded 429, 5xx (some proxy)                unknown         ask status until it is final
    sent, then silence or a broken connection    unknown         ask status until it is final
    shared, and the stream ended before it       not accepted    the same attempt again, at once (``gathering``)
    any other coded error                        refused         it is raised

An *attempt* is (request_id, read_version). It is sent again only while it is known that no earlier sending was
accepted. Asking status closes an attempt permanently. So after ``not_committed`` a new attempt (new request id) never
commits the transaction a second time. Every loop has a bound. An operation that runs out of time while its outcome is
unknown raises ``OutcomeUnknown`` with the request id and ``min_version``, with which status can be asked later.

A client first tries to let a commit travel with others: it offers the ``first_attempt`` to its ``Gatherer``. ``commit``
then begins with that attempt and its answer (``begun``), or, where it may not travel so, with one of its own.

One module because commits, reads and questions share the rules of asking again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from holdfast.client.protocol.effects import (
    Answer,
    Failed,
    Item,
    KeyRead,
    Learn,
    Procedure,
    Request,
    Response,
    Send,
    Share,
    Woken,
)
from holdfast.client.protocol.endpoint import Endpoint
from holdfast.client.protocol.gathered_commits import item_of
from holdfast.client.protocol.gathered_reads import item_of as read_item
from holdfast.client.protocol.gathering import ITEM_BYTES_MAX
from holdfast.client.protocol.messages import (
    COMMIT_HEADERS,
    COMMITS_HEADERS,
    COORDINATION_CODES,
    REFUSED_BEFORE_ACCEPTANCE,
    Place,
    Shape,
    base64url,
    decode,
    decode_commit,
    decode_items,
    json_request,
    key_request,
    leaves_open,
    query_of,
    require_progress,
    service_error,
    status_of_item,
)
from holdfast.client.protocol.retry_budget import RetryBudget, Session, pause
from holdfast.commit.format.transaction import (
    JobChange,
    Operation,
    Part,
    Precondition,
    RangeDelete,
    Transaction,
    prefix_end,
)
from holdfast.errors import (
    Code,
    CorruptData,
    HoldfastError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
)
from holdfast.values import LogPosition
from holdfast.wire.log import (
    CommitReceipt,
    ErrorBody,
    Found,
    FoundRange,
    JobRecord,
    JobRecords,
    NotCommitted,
    ReadAnswer,
    ReadKey,
    ReadRequest,
    ReadResult,
    StatusAnswer,
    ValueResponse,
    VersionAnswer,
)
from holdfast.wire.parts import StoresReceipt
from holdfast.wire.stores import AcknowledgePart, MapPart, PublishPart

_JSON: Final = msgspec.json.Encoder()


def transaction_of(
    operations: Sequence[Operation],
    preconditions: Sequence[Precondition] = (),
    *,
    request_id: str | None = None,
    leader_id: str | None = None,
    read_version: int | None = None,
    log_id: str | None = None,
    acknowledge: Sequence[AcknowledgePart] = (),
    maps: Sequence[MapPart] = (),
    publish: Sequence[PublishPart] = (),
    jobs: Sequence[JobChange] = (),
) -> Transaction:
    """A commit request; its parts for the message stores are encoded here."""
    names = request_id, leader_id, read_version, log_id
    parts = _encoded(acknowledge), _encoded(maps), _encoded(publish)
    return Transaction(list(operations), list(preconditions), *names, *parts, tuple(jobs))


def _encoded(part: Sequence[object]) -> Part:
    return msgspec.Raw(_JSON.encode(part)) if part else UNSET


COMMIT_ATTEMPTS_MAX = 8
"""How many attempts one ``commit`` makes on its own when asking closed the ones before."""

REPEATABLE_CODES = (
    REFUSED_BEFORE_ACCEPTANCE
    | COORDINATION_CODES
    | {Code.STORE_UNAVAILABLE, Code.VIEW_BEHIND, Code.LAGGING, Code.CLOSED, Code.OUTCOME_UNKNOWN, Code.INTERNAL}
)
"""Errors after which a harmless request (one that reads, or asks for an outcome) is repeated."""


def ask(session: Session, request: Request, shape: type[Shape], now_ms: float) -> Procedure[Shape]:
    """The response to a request that may be repeated. Raises: as ``version``; what the service refuses with."""
    return decode((yield from _request(session, request, now_ms)), shape)


def _request(session: Session, request: Request, now_ms: float) -> Procedure[Response]:
    """A request that may be repeated: until it succeeds, is refused, or ``give_up_after_ms`` is over."""
    budget = RetryBudget(session, now_ms, session.options.give_up_after_ms)
    return (yield from _request_within(session, request, budget))


def _request_within(
    session: Session, request: Request, budget: RetryBudget, *, in_turn: bool = False
) -> Procedure[Response]:
    now_ms = budget.now_ms
    while True:
        timeout_ms = min(session.options.request_timeout_ms, budget.left_ms(now_ms))
        endpoint = session.route.current
        reply = yield Send(endpoint, request, timeout_ms, in_turn)
        assert isinstance(reply, Response | Failed), "the reply to Send is Response or Failed"
        if isinstance(reply, Response) and reply.status == 200:
            budget.now_ms = reply.now_ms
            return reply
        now_ms = yield from _until_again(session, budget, endpoint, reply)


def _until_again(
    session: Session, budget: RetryBudget, endpoint: Endpoint, reply: Response | Failed
) -> Procedure[float]:
    """Wait until a harmless request is sent again. Raises: what the reply means, where another try changes nothing."""
    if isinstance(reply, Failed):
        return (yield from wait_again(budget, endpoint, reply, *no_response(session, budget, endpoint, reply)))
    error = service_error(reply)
    again = error.code in REPEATABLE_CODES if error is not None else reply.status >= 500 or reply.status == 429
    return (yield from wait_again(budget, endpoint, reply, session.refused(error, reply.status), again))


def no_response(session: Session, budget: RetryBudget, endpoint: Endpoint, reply: Failed) -> tuple[HoldfastError, bool]:
    """The error for a request without a response, and whether another try may help. Raises: as ``budget.missed``."""
    budget.missed(endpoint, reply)
    if not reply.too_large:
        return budget.unreachable("the service cannot be reached", endpoint, reply), True
    return LimitExceeded(
        "the response is larger than this client takes",
        hint="ask for less, or raise response_bytes_max",
        response_bytes_max=session.options.response_bytes_max,
    ), False


def wait_again(
    budget: RetryBudget, endpoint: Endpoint, reply: Response | Failed, error: HoldfastError, again: bool
) -> Procedure[float]:
    """Wait before the next try. Raises: ``error`` without ``again``, or where no time is left for another try."""
    budget.now_ms = reply.now_ms
    if not again or budget.exhausted(reply.now_ms):
        raise error
    now_ms = yield from pause(budget, endpoint, reply, error)
    if budget.exhausted(now_ms):  # another try would have no time, and its failure would say less
        raise error
    return now_ms


def _share_read(session: Session, item: Item, now_ms: float) -> Procedure[KeyRead | Response]:
    """Read a key together with others; a response is that of one alone. Raises: as ``_request``."""
    budget = RetryBudget(session, now_ms, session.options.give_up_after_ms)
    while True:
        if item.settled is None:
            yield Share(item, reads=True)
        endpoint, reply = _answer(item)
        assert isinstance(reply, KeyRead | Response | Failed), "a read is not a commit"
        if isinstance(reply, KeyRead) or (isinstance(reply, Response) and reply.status == 200):
            return reply
        yield from _until_again(session, budget, endpoint, reply)
        item = item.again()


def _answer(item: Item) -> tuple[Endpoint, Answer | None]:
    """What became of an item that was shared, and where."""
    assert item.endpoint is not None, "an answer comes from somewhere"
    return item.endpoint, item.settled


SendReply = CommitReceipt | NotCommitted | Response | Failed
Submitted = tuple[Endpoint, SendReply, ErrorBody | None]


def _send(session: Session, request: Request, item: Item | None) -> Procedure[tuple[Endpoint, SendReply]]:
    """Send a request that commits, shared with others as ``item`` if there is one; its endpoint and the reply."""
    if item is not None:
        if item.settled is None:
            yield Share(item)
        endpoint, answer = _answer(item)
        assert isinstance(answer, SendReply), "a commit is not a read"
        return endpoint, answer
    endpoint = session.route.current
    reply = yield Send(endpoint, request, session.options.request_timeout_ms)
    assert isinstance(reply, Response | Failed), "the reply to Send is Response or Failed"
    return endpoint, reply


def _submit(session: Session, request: Request, now_ms: float, item: Item | None = None) -> Procedure[Submitted]:
    """Send a request that commits until it may have been accepted; the endpoint, its reply and the error in it.

    ``item``: the same, if it may be shared; it may be settled already. The reply is a verdict, has status 200, or
    leaves the outcome open. Raises: what the service refuses with; Unavailable or Backpressure when the request was not
    accepted within ``give_up_after_ms``.
    """
    budget = RetryBudget(session, now_ms, session.options.give_up_after_ms)
    refusal: HoldfastError | None = None
    while True:
        endpoint, reply = yield from _send(session, request, item)
        if isinstance(reply, CommitReceipt | NotCommitted):
            return endpoint, reply, None
        if item is not None:
            item = item.again()
        if isinstance(reply, Failed):
            budget.missed(endpoint, reply)
            if reply.perhaps_accepted:
                return endpoint, reply, None
            if budget.exhausted(reply.now_ms):
                raise budget.unreachable("the service cannot be reached", endpoint, reply)
        elif reply.status == 200:
            return endpoint, reply, None
        else:
            error = service_error(reply)
            if leaves_open(error, reply.status):
                return endpoint, reply, error
            refusal = session.refused(error, reply.status)
            if refusal.code not in REFUSED_BEFORE_ACCEPTANCE or budget.exhausted(reply.now_ms):
                raise refusal
        yield from pause(budget, endpoint, reply, refusal)


def version(session: Session, now_ms: float, *, local: bool) -> Procedure[VersionAnswer]:
    """The service's version. Raises: Unavailable, PermissionDenied, Fenced, CorruptData, Backpressure."""
    request = Request("GET", f"/v1/version{query_of(consistency='local' if local else None)}")
    reply = yield from ask(session, request, VersionAnswer, now_ms)
    session.saw(reply.version, reply.log_id)
    session.id_tag = reply.id_tag or ""
    return reply


def newest_position(session: Session, now_ms: float) -> Procedure[LogPosition]:
    """The newest position of any response; before the first one, that of one request for all that wait for it.

    Raises: as ``version``.
    """
    while (newest := session.newest) is None:
        yield Learn(now_ms)
    return newest


def first_read(session: Session, key: bytes, own: LogPosition | None, *, linearizable: bool) -> Item | None:
    """The read of a key at ``own``, as it is shared with others. None where it is not offered."""
    newest = session.newest
    # A read that names something newer than the client knows is not offered: others would wait for it.
    if not session.options.gather or (own is not None and session.read_position(own) != newest):
        return None
    item = read_item(key, newest, linearizable=linearizable)
    return item if len(item.data) <= ITEM_BYTES_MAX else None


def read_key(
    session: Session,
    key: bytes,
    at: Place | None,
    now_ms: float,
    *,
    linearizable: bool = False,
    begun: Item | None = None,
) -> Procedure[tuple[Found | None, int]]:
    """The value of a key, never older than ``at`` and ``session.newest``, and the version at which this is so; 0 where
    the service does not name it. ``begun``: the first read, with its answer. Raises: as ``version``, InvalidRequest."""
    make = partial(key_request, key, linearizable=linearizable)
    own = None if at is None else session.resolve_position(at)
    item = begun if begun is not None else first_read(session, key, own, linearizable=linearizable)
    try:
        read = yield from _read_at(session, make, own, now_ms, item)
    except NotFound as error:
        row, version = None, error.fields.get("at")
    else:
        if isinstance(read, KeyRead):
            row, version = found_in(read, key), read.at
        else:
            answer = decode(read, ValueResponse)
            row, version = Found(answer.key, answer.value, answer.version), answer.at or answer.version
    version = version if isinstance(version, int) else 0
    saw_in(session, at, version)
    return row, version


def found_in(read: KeyRead, key: bytes) -> Found | None:
    """What was read, with its key."""
    return None if read.value is None or read.version is None else Found(key, read.value, read.version)


def _read(
    session: Session, make: Callable[[LogPosition | None], Request], at: Place | None, now_ms: float
) -> Procedure[Response]:
    """The response to a read at ``session.newest``, or at ``at`` where that is newer or in another log."""
    response = yield from _read_at(session, make, None if at is None else session.resolve_position(at), now_ms, None)
    assert isinstance(response, Response), "only a shared read is a KeyRead"
    return response


def _read_at(
    session: Session,
    make: Callable[[LogPosition | None], Request],
    own: LogPosition | None,
    now_ms: float,
    item: Item | None,
) -> Procedure[KeyRead | Response]:
    """As ``_read``; shared with others as ``item``, if there is one."""
    position = session.read_position(own)
    try:
        if item is not None:
            return (yield from _share_read(session, item, now_ms))
        return (yield from _request(session, make(position), now_ms))
    except InvalidRequest as error:
        if position == own or error.code not in (Code.LOG_MISMATCH, Code.ROLLED_BACK):
            raise
    # Another log is at this address now, as for a commit: what the caller has named is all that is still asked for.
    return (yield from _request(session, make(own), now_ms))


def saw_in(session: Session, at: Place | None, version: int) -> None:
    """A read at ``at`` found something of this version: later reads are not older. It is not known of which log, unless
    it was read at a position of ``session.newest``'s."""
    position = None if at is None else session.resolve_position(at)
    if session.newest is not None and (position is None or position.log_id == session.log_id):
        session.saw(version, session.log_id)


READ_ITEMS_MAX: Final = 1_000
READ_KEYS_BYTES_MAX: Final = 512 << 10
"""Of the keys of one request, whose body has at most 1 MiB by default."""


def read_keys(session: Session, keys: Sequence[bytes], at: Place | None, now_ms: float) -> Procedure[KeysRead]:
    """The first of ``keys``, all at one version, which is not older than ``at`` and ``session.newest``: as many as fit
    in a request and its response, one at least. Raises: as ``read_key``."""
    items = [ReadKey(key) for key in _first_keys(keys)]

    def make(at: LogPosition | None) -> Request:
        return json_request("POST", "/v1/read", ReadRequest(items, None if at is None else str(at)))

    budget = RetryBudget(session, now_ms, session.options.give_up_after_ms)
    while True:
        answer = decode((yield from _read(session, make, at, budget.now_ms)), ReadAnswer)
        problem = next((item.error for item in answer.items if item.error is not None), None)
        if problem is None:
            saw_in(session, at, answer.version)
            require_progress(answer, answer.items, more=bool(items))
            return KeysRead(answer.version, [_stored(item) for item in answer.items])
        failure = session.refused(problem, 200)
        if failure.code not in REPEATABLE_CODES or budget.exhausted(budget.now_ms):
            raise failure
        woken = yield budget.next_wait(budget.now_ms)
        assert isinstance(woken, Woken), "the reply to Wait is Woken"
        budget.now_ms = woken.now_ms


class KeysRead(NamedTuple):
    """What is stored at the first of some keys, at exactly ``version``: values with the versions that wrote them."""

    version: int
    values: list[tuple[bytes, int] | None]


def _first_keys(keys: Sequence[bytes]) -> Iterator[bytes]:
    size = 0
    for number, key in enumerate(keys):
        size += len(key)
        if number and (number == READ_ITEMS_MAX or size > READ_KEYS_BYTES_MAX):
            return
        yield key


def _stored(item: ReadResult) -> tuple[bytes, int] | None:
    return None if item.value is None or item.version is None else (item.value, item.version)


def bounds_of(begin: bytes | None, end: bytes | None, prefix: bytes | None) -> tuple[bytes, bytes | None]:
    """The range of two bounds or of a prefix. Raises: InvalidRequest (malformed).

    >>> bounds_of(None, None, b"seat/"), bounds_of(b"a", None, None)
    ((b'seat/', b'seat0'), (b'a', None))
    """
    if prefix is None:
        return begin or b"", end
    if begin is not None or end is not None:
        raise InvalidRequest("prefix excludes begin and end: it is a range by itself")
    return prefix, prefix_end(prefix)


def read_range(
    session: Session,
    begin: bytes,
    end: bytes | None,
    limit: int,
    at: Place | None,
    now_ms: float,
    *,
    linearizable: bool = False,
) -> Procedure[FoundRange]:
    """Keys of ``[begin, end)``, not older than ``at`` and ``session.newest``. Raises: as ``read_key``."""
    bounds = {"begin": base64url(begin), "end": None if end is None else base64url(end)}
    consistency = "linearizable" if linearizable else None

    def make(at: LogPosition | None) -> Request:
        return Request("GET", f"/v1/range{query_of(**bounds, limit=limit, at=at, consistency=consistency)}")

    page = decode((yield from _read(session, make, at, now_ms)), FoundRange)
    saw_in(session, at, page.version)
    return require_progress(page, page.items, more=page.more)


def job(session: Session, name: str, at: Place | None, now_ms: float) -> Procedure[JobRecord | None]:
    """The record of a job in the service's view, not older than ``at``. Raises: as ``version``, InvalidRequest."""

    def make(at: LogPosition | None) -> Request:
        return Request("GET", f"/v1/jobs/{quote(name, safe='')}{query_of(at=at)}")

    try:
        return decode((yield from _read(session, make, at, now_ms)), JobRecord)
    except NotFound:
        return None


def jobs(
    session: Session, prefix: str, after: str | None, limit: int, at: Place | None, now_ms: float
) -> Procedure[JobRecords]:
    """Records of jobs by name in the service's view, not older than ``at``. Raises: as ``version``, InvalidRequest."""

    def make(at: LogPosition | None) -> Request:
        return Request("GET", f"/v1/jobs{query_of(prefix=prefix, limit=limit, after=after, at=at)}")

    page = decode((yield from _read(session, make, at, now_ms)), JobRecords)
    return require_progress(page, page.items, more=page.more)


def ask_status(session: Session, request_id: str, min_version: Place, now_ms: float) -> Procedure[StatusAnswer]:
    """The final outcome of an attempt. Asking closes it: an attempt that has not committed never will. Raises:
    OutcomeUnknown without a final status within ``resolve_within_ms``, or where the token may not ask for the attempt;
    InvalidRequest; PermissionDenied for a token that is not valid."""
    budget = RetryBudget(session, now_ms, session.options.resolve_within_ms)
    return (yield from _ask_status(session, request_id, session.resolve_position(min_version), budget))


def _ask_status(
    session: Session, request_id: str, min_version: LogPosition, budget: RetryBudget
) -> Procedure[StatusAnswer]:
    request = Request("GET", f"/v1/status/{quote(request_id, safe='')}?min_version={min_version}")
    try:
        response = yield from _request_within(session, request, budget, in_turn=True)
    except HoldfastError as error:
        if isinstance(error, InvalidRequest) or error.code is Code.UNAUTHENTICATED:
            raise
        hint = OTHER_TOKEN_HINT if isinstance(error, PermissionDenied) else ASK_HINT
        raise _unknown(request_id, min_version.version, Code.OUTCOME_UNKNOWN, hint) from error
    reply = decode(response, StatusAnswer)
    if reply.status == "committed":
        if reply.version is None:
            raise CorruptData("a committed status names no version", request_id=request_id)
        session.saw(reply.version, min_version.log_id)
    return reply


ASK_HINT: Final = "ask status with this request id and min_version"
OTHER_TOKEN_HINT: Final = "this token may not ask: ask status with a token that may commit with this request id"


def _unknown(request_id: str | None, min_version: int | None, code: Code, hint: str = ASK_HINT) -> OutcomeUnknown:
    return OutcomeUnknown(
        "whether the transaction committed is not known",
        code=code,
        hint=hint,
        request_id=request_id,
        min_version=min_version,
    )


def _resolve(session: Session, txn: Transaction, budget: RetryBudget) -> Procedure[CommitReceipt | NotCommitted]:
    """After an unknown outcome: ask status until it is final."""
    assert txn.request_id is not None, "an attempt has an id"
    assert txn.read_version is not None, "an attempt has a read version"
    try:
        position = LogPosition(txn.read_version, txn.log_id)
        reply = yield from _ask_status(session, txn.request_id, position, budget)
    except OutcomeUnknown:
        raise
    except HoldfastError as error:
        raise _unknown(txn.request_id, txn.read_version, Code.OUTCOME_UNKNOWN) from error
    if reply.status == "committed" and reply.version is not None:
        stores = UNSET if reply.stores is None else msgspec.convert(reply.stores, StoresReceipt)
        return CommitReceipt(reply.version, "", txn.request_id, stores)
    if reply.status == "not_committed":
        return NotCommitted("banned", (), txn.read_version, "", txn.request_id)
    raise _unknown(txn.request_id, txn.read_version, Code.LOG_TRUNCATED)


def first_attempt(
    session: Session,
    operations: Sequence[Operation],
    preconditions: Sequence[Precondition],
    log_id: str | None,
    entropy: str,
) -> Item | None:
    """The attempt with which ``commit`` begins where its caller decides nothing, as most commits begin, and often end.

    None where it is not offered, or a position must be learned before. Raises: InvalidRequest.
    """
    newest = session.newest
    if newest is None or not session.options.gather:
        return None
    txn = Transaction(
        list(operations),
        list(preconditions),
        session.draw_id(entropy, 0),
        None,
        newest.version,
        log_id or newest.log_id,
    )
    check_transaction(txn, None)
    item = item_of(txn)
    return item if len(item.data) <= ITEM_BYTES_MAX else None


def attempt(
    session: Session, txn: Transaction, now_ms: float, *, may_share: bool = False, begun: Item | None = None
) -> Procedure[CommitReceipt | NotCommitted]:
    """One attempt until its outcome is final; ``txn`` has a request id and a read version.

    ``may_share``: it may travel in one request with other attempts, if it is small. ``begun``: it, with its answer.
    Raises: OutcomeUnknown; Unavailable or Backpressure when it was never accepted in time; what the service refuses
    with.
    """
    item = item_of(txn) if begun is None else begun
    request = Request("POST", "/v1/commit", item.data, COMMIT_HEADERS)
    shared = item if may_share and session.options.gather and len(item.data) <= ITEM_BYTES_MAX else None
    endpoint, reply, error = yield from _submit(session, request, now_ms, shared)
    if isinstance(reply, CommitReceipt | NotCommitted):
        session.saw(reply.version, txn.log_id)
        return reply
    if isinstance(reply, Response) and reply.status == 200 and (verdict := decode_commit(reply.body)) is not None:
        session.saw(verdict.version, txn.log_id)
        return verdict
    names_leader = error is not None and error.code in COORDINATION_CODES
    if error is not None and names_leader and session.options.follow_leader:
        session.route.follow(endpoint, error.leader_address)
    budget = RetryBudget(session, reply.now_ms, session.options.resolve_within_ms)
    verdict = yield from _resolve(session, txn, budget)
    if isinstance(reply, Response) and names_leader and txn.leader_id is not None and isinstance(verdict, NotCommitted):
        raise session.refused(error, reply.status)
    return verdict


def commit(
    session: Session, request: Transaction, entropy: str, now_ms: float, *, begun: Item | None = None
) -> Procedure[CommitReceipt | NotCommitted]:
    """A commit until its outcome is final. ``begun``: its first attempt, if that has its answer.

    Defaults: the read version is the newest one known, or the service's; the request id is made from ``entropy``, a new
    one for every attempt. An attempt with defaults that ended without a verdict on its content (closed by asking, or
    too old from the start) is repeated; one with the caller's id is not. The default log is that of ``newest``.
    """
    check_transaction(request, request.read_version)
    chosen, draws_id = request.read_version is None, request.request_id is None
    may_share = chosen and draws_id and request.leader_id is None and not request.has_store_parts
    number = 0
    while True:
        if begun is not None:
            assert begun.txn is not None, "it is a commit"
            txn = begun.txn
        else:
            if request.read_version is None:
                position = yield from newest_position(session, now_ms)
            else:
                position = LogPosition(request.read_version, session.log_id)
            txn = replace(
                request,
                request_id=session.draw_id(entropy, number) if draws_id else request.request_id,
                read_version=position.version,
                log_id=request.log_id or position.log_id,
            )
        first, begun = begun, None
        try:
            verdict = yield from attempt(session, txn, now_ms, may_share=may_share, begun=first)
        except InvalidRequest as error:
            if error.code is Code.ID_NEEDS_TAG and draws_id and number < COMMIT_ATTEMPTS_MAX:
                number += 1  # it was not accepted, and the next id begins with the tag that the refusal named
                continue
            of_another_log = error.code in (Code.FUTURE_VERSION, Code.LOG_MISMATCH, Code.ROLLED_BACK)
            # After a fork the answer to an older version names one of the new log, and is taken for the old one's.
            tries_max = COMMIT_ATTEMPTS_MAX if error.code is Code.ROLLED_BACK else 1
            is_bound = request.log_id is not None or request.preconditions
            if not of_another_log or not chosen or number >= tries_max or is_bound:
                raise
            session.newest = None  # another log is at this address now, and nothing was read from the one before
            number += 1
            continue
        if isinstance(verdict, CommitReceipt):
            return verdict
        closed_by_us = verdict.reason == "banned" and draws_id
        # Also repeatedly: after a change of leader every earlier version is too old, and the response has a newer one.
        stale_choice = verdict.reason == "too_old" and chosen and draws_id
        number += 1
        if not (closed_by_us or stale_choice) or number >= COMMIT_ATTEMPTS_MAX:
            return verdict


def check_transaction(txn: Transaction, read_version: int | None) -> None:
    """Refuse here what the service would refuse; ``read_version`` is the caller's. Raises: InvalidRequest."""
    if not txn.operations and not txn.has_parts:
        raise InvalidRequest("a commit needs at least one operation", code=Code.NO_OPERATIONS)
    for operation in txn.operations:
        if isinstance(operation, RangeDelete) and operation.end is not None and operation.begin >= operation.end:
            raise InvalidRequest("a range needs begin < end", code=Code.BAD_RANGE)
    if txn.preconditions and read_version is None and any(item.version is None for item in txn.preconditions):
        raise InvalidRequest(
            "a precondition needs its own version or a read version",
            code=Code.READ_VERSION_REQUIRED,
            hint="pass read_version, the version the decision was made at",
        )


ItemResult = CommitReceipt | NotCommitted | HoldfastError


def commit_group(session: Session, items: list[Item], now_ms: float) -> Procedure[list[ItemResult]]:
    """One request of a stream of commits; one result per item, in order.

    The status of each item without a result line is asked: it is committed, or closed as ``NotCommitted("banned")`` and
    safe to submit again. ``resolve_within_ms`` bounds the asking about all of them; an item that it does not reach is
    ``OutcomeUnknown``.
    """
    txns = [item.txn for item in items if item.txn is not None]
    body = b"".join(item.data + b"\n" for item in items)
    request = Request("POST", "/v1/commits", body, COMMITS_HEADERS, accepted_in_parts=True)
    _, reply, _ = yield from _submit(session, request, now_ms)
    assert isinstance(reply, Response | Failed), "this request is not shared"
    if isinstance(reply, Failed):
        lines = decode_items(reply.partial)
    else:
        lines = decode_items(reply.body) if reply.status == 200 else []
    return (yield from _resolve_items(session, txns, lines, reply.now_ms))


def _resolve_items(
    session: Session, txns: list[Transaction], lines: list[CommitReceipt | NotCommitted | ErrorBody], now_ms: float
) -> Procedure[list[ItemResult]]:
    if len(lines) > len(txns):
        raise CorruptData("more results than items", items=len(txns), results=len(lines))
    end_ms = now_ms + session.options.resolve_within_ms
    results: list[ItemResult] = []
    for index, txn in enumerate(txns):
        line = lines[index] if index < len(lines) else None
        if isinstance(line, CommitReceipt | NotCommitted):
            session.saw(line.version, txn.log_id)
            results.append(line)
        elif line is not None and not leaves_open(line, status_of_item(line)):
            results.append(session.refused(line, status_of_item(line)))
        elif now_ms >= end_ms:
            results.append(_unknown(txn.request_id, txn.read_version, Code.OUTCOME_UNKNOWN))
        else:
            # One bound for all items, but each starts with short waits again.
            budget = RetryBudget(session, now_ms, end_ms - now_ms)
            try:
                results.append((yield from _resolve(session, txn, budget)))
            except OutcomeUnknown as error:
                results.append(error)
            now_ms = budget.now_ms
    return results


class Grouping:
    """Cuts a stream of transactions into requests, and gives each item a request id and a read version."""

    def __init__(self, session: Session, start: LogPosition, entropy: str) -> None:
        self._session = session
        self._read_version, self._log_id = start.version, start.log_id
        self._entropy = entropy
        self._number = 0
        self._group: list[Item] = []
        self._size = 0

    def add(self, txn: Transaction) -> list[Item]:
        """Add one; returns the group that it completes, or an empty list. Raises: InvalidRequest."""
        check_transaction(txn, txn.read_version)
        newest, options = self._session.newest, self._session.options
        if newest is not None and newest.log_id == self._log_id:
            # Long streams outlive the conflict window of their start.
            self._read_version = max(newest.version, self._read_version)
        drawn = self._session.draw_id(self._entropy, self._number)
        self._number += 1
        item = item_of(
            replace(
                txn,
                request_id=drawn if txn.request_id is None else txn.request_id,
                read_version=self._read_version if txn.read_version is None else txn.read_version,
                log_id=self._log_id if txn.log_id is None else txn.log_id,
            )
        )
        self._group.append(item)
        self._size += len(item.data)
        is_full = len(self._group) >= options.commits_per_request_max or self._size >= options.commits_bytes_max
        return self.rest() if is_full else []

    def rest(self) -> list[Item]:
        """The incomplete group."""
        group, self._group, self._size = self._group, [], 0
        return group
