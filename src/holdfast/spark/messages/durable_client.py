"""One durable of a store, over HTTP: look at its messages by number, and acknowledge them up to a number.

Reading consumes nothing, so any number of tasks read the same messages as often as they must. Only a subscriber that
holds a message can acknowledge it. ``acknowledge_through`` therefore polls first, and reports none of what it gets as
started: no delivery of its own counts. After a crash what it held comes back to the durable within ``ack_wait``, and is
acknowledged at the next call. A client that has attached keeps the durable for its ``subscriber``: a thread gives signs
of life, so the service refuses every other subscriber.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Self
from urllib.parse import quote

from holdfast.client import Client, ClientOptions
from holdfast.client.protocol.effects import Request, Response
from holdfast.client.protocol.messages import decode
from holdfast.client.protocol.stores.administration import Definition, ask, browse_target
from holdfast.client.protocol.stores.messages import durable_path, request_of, store_path
from holdfast.client.transport.clock import now_ms
from holdfast.errors import AlreadyOpen, Code, Conflict, Fenced, HoldfastError, LimitExceeded, NotFound, Unavailable
from holdfast.spark.options import SERVED_STORE_RETRY_MS
from holdfast.spark.runtime.refusals import log_truncated
from holdfast.spark.runtime.service_client import ServiceClient, service_token, with_trusted_hosts
from holdfast.stores.values.identity import is_continued, is_same, replaced
from holdfast.values import ranges_of
from holdfast.wire.parts import AckedResponse, Delivery
from holdfast.wire.stores import DeliveredResponse, Page

SUBSCRIBER: Final = "spark"
"""The name of a client that has no other, and the first part of every other one."""
PAGE_MESSAGES_MAX: Final = 1_000
POLL_MESSAGES: Final = 512
ACKNOWLEDGED_AT_ONCE: Final = 10_000
ROUNDS_EXTRA_MAX: Final = 1_000
GIVE_UP_MS: Final = SERVED_STORE_RETRY_MS
ASK_AGAIN_S: Final = 0.25
"""Between two looks whether the durable is free. To wait in line could cost its holder the durable."""


class DurableClient:
    """A client of one durable. Not shared by threads.

    It is of the durable that ``token`` names, or that it meets first. Raises: what the service refuses with, Closed
    (``store_replaced``) where the name has another durable now; Unavailable when it has not answered for ``retry_ms``.
    """

    def __init__(
        self,
        url: str,
        store: str,
        durable: str,
        retry_ms: int | None = None,
        token: str = "",
        subscriber: str = SUBSCRIBER,
    ) -> None:
        self.token = token
        """What every request names; empty before the first answer that has it."""
        self.subscriber = subscriber
        self._url = url
        self._retry_ms = GIVE_UP_MS if retry_ms is None else retry_ms
        self._client = ServiceClient(url, ClientOptions(give_up_after_ms=self._retry_ms))
        self._store = store
        self._durable = durable
        self._path = durable_path(store, durable)
        self._held: list[int] = []
        """Messages that an earlier call got and did not acknowledge, ascending."""
        self._own_through = 0
        """Up to here ``acknowledge_own`` has acknowledged."""
        self._own_total: int | None = None
        """How many messages of the durable were acknowledged then."""
        self._is_attached = False
        self._ended = threading.Event()
        self._end = weakref.finalize(self, _end, self._ended, self._client)  # also where no one calls ``close``

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The durable is free after its ``subscriber_timeout``."""
        self._end()

    def describe(self) -> Definition:
        """The durable's parameters, counts and subscribers. Raises: NotFound for the store and for the durable."""
        description = self._get(self._path)
        self._met(str(description.get("token", "")))
        return description

    def _met(self, token: str) -> None:
        self.token = self.token or token

    def counts(self, path: str | None = None) -> Mapping[str, int]:
        """The counts of the durable, or of what has this ``path``."""
        counts = (self.describe() if path is None else self._get(path))["counts"]
        assert isinstance(counts, dict), "the reference page describes it"
        return counts

    def last_seq(self) -> int:
        """The newest number of the store, 0 before the first message."""
        return self.counts(store_path(self._store))["next_seq"] - 1

    def is_earlier(self, seq: int) -> bool:
        """Whether a message was published before the durable was made, or purged: it never comes here."""
        if seq > self.last_seq():
            return False
        durables = self._get(f"{store_path(self._store)}/messages/{seq}/explain")["durables"]
        assert isinstance(durables, list), "the reference page describes it"
        return any(each["name"] == self._durable and each["fate"] == "earlier" for each in durables)

    def messages(self, after: int, through: int, count: int = PAGE_MESSAGES_MAX) -> Iterator[list[Delivery]]:
        """What the durable keeps above ``after`` and up to ``through``, in order, in pages of about ``count``."""
        following: int | None = after
        while following is not None and following < through:
            try:
                page = self._page(following, count)
            except LimitExceeded:
                if count == 1:
                    raise
                count = max(1, count // 4)
                continue
            wanted = [each for each in page.messages if each.seq <= through]
            if wanted:
                yield wanted
            following = page.next_after if len(wanted) == len(page.messages) else None

    def first_after(self, after: int) -> Delivery | None:
        """The first message above a number that the durable keeps."""
        return next((page[0] for page in self.messages(after, 2**53, 1)), None)

    def acknowledge_through(self, seq: int, after: int = 0) -> int:
        """Acknowledge all that the durable keeps up to ``seq`` and can be had; returns how many.

        ``after``: nothing up to it is left. Messages that are not due yet stay, until a later call gets them.
        Cost: a request for each 512 messages, and one for each 10,000 or the durable's ``prefetch``, if that is less.
        """
        count, highest = 0, after
        # What the service took back before it was acknowledged comes again.
        for _ in range(seq - after + ROUNDS_EXTRA_MAX):
            got = [*self._held, *self._polled(min(seq - highest, ACKNOWLEDGED_AT_ONCE))]
            wanted = [each for each in got if each <= seq]
            self._held = [each for each in got if each > seq]
            if not wanted:
                break
            count += self._acknowledge(wanted)
            highest = max(highest, *wanted)
            if highest == seq:
                break
        return count

    def _polled(self, most: int) -> list[int]:
        """The numbers of the next messages, at most ``most``, and no more than ``prefetch`` allows."""
        numbers: list[int] = []
        while len(numbers) < most:
            page = self._poll(min(POLL_MESSAGES, most - len(numbers)))
            if not page:
                break
            numbers += [each.seq for each in page]
        return numbers

    def acknowledge_left(self, seq: int) -> int:
        """Acknowledge what an earlier process got and did not acknowledge, up to ``seq``; returns how many."""
        return self._acknowledge([each.seq for page in self.messages(0, seq) for each in page])

    def acknowledge_own(self, seq: int) -> None:
        """As ``acknowledge_through``, for the only consumer of the durable; harmless when repeated.

        The first call also acknowledges what an earlier process of this subscriber holds. Raises: Fenced if something
        else has acknowledged since the last call.
        """
        if seq <= self._own_through:
            return
        total, self._own_total = self._own_total, None  # not known where the answer is lost
        if total is None:
            self.acknowledge_left(seq)
        before = self.counts()["acknowledged"]
        # A service whose stores are in memory only counts from 0 after a restart.
        if total is not None and before > total:
            raise self.collision(acknowledged=before - total)
        self.acknowledge_through(seq, self._own_through)
        self._own_through, self._own_total = seq, self.counts()["acknowledged"]

    def open_own(self, template: str, matcher: Mapping[str, object] | None) -> None:
        """Find the durable to be standard, or make it. Raises: Conflict, NotFound."""
        try:
            self.require_standard()
        except NotFound:
            # A dynamic one, which keeps what is published from now on. Raises NotFound where there is no such store.
            self._ask("PUT", self._path, {"template": template} | ({} if matcher is None else {"matcher": matcher}))
            self.require_standard()

    def attach(self) -> None:
        """Have the durable for ``subscriber``, until ``close``. Harmless when it is attached.

        Waits for a holder whose process has died: twice its ``subscriber_timeout``, and 2 s. Raises: AlreadyOpen
        (``durable_busy``: another subscriber has the durable; its messages stay with it), NotFound. Cost: two requests.
        """
        if self._is_attached:
            return
        timeout_s = float(str(self.describe()["subscriber_timeout"]))
        gives_up_s = time.monotonic() + min(2 * timeout_s + 2, self._retry_ms / 1_000)
        got: list[Delivery] | None = None
        while got is None:
            try:
                got = self._ask_for(1)
            except AlreadyOpen as error:
                if time.monotonic() >= gives_up_s:
                    raise self._busy(error.fields.get("holder")) from error
                time.sleep(min(ASK_AGAIN_S, timeout_s / 4))
        # What came is not worked on: it stays with the durable, and its delivery does not count.
        returned = {"nack": [[each.seq, 0] for each in got]} if got else {}
        self._send(self._settling(returned))
        self._is_attached = True
        signs = self._settling({}), self._url, timeout_s / 3, self._ended
        threading.Thread(target=_give_signs_of_life, args=signs, name="holdfast-durable", daemon=True).start()

    def _settling(self, messages: Mapping[str, object]) -> Request:
        """An acknowledgement, or without messages a sign of life."""
        body = {"subscriber": self.subscriber, "started": [], "token": self.token, **messages}
        return request_of("POST", f"{self._path}/acks", body)

    def require_same(self, token: str, seq: int, *, fail_on_data_loss: bool) -> None:
        """Return if the numbers up to ``seq`` of the durable that ``token`` names are of the same messages here.

        In another history, after a restore or a promotion, the service judges: they are if it had them when the two
        parted. Raises: NotFound; Closed (``store_replaced``), of a durable that was made again in its store only with
        ``fail_on_data_loss``: the numbers are the store's.
        """
        current = str(self.describe().get("token", ""))
        if token and not fail_on_data_loss:
            token = f"{token.rpartition('.')[0]}.{current.rpartition('.')[2]}"
        if not token or is_same(token, current):
            return
        if not is_continued(token, current):
            raise replaced(token, store=self._store, durable=self._durable)
        self._send(request_of("GET", browse_target(self._path, seq, 1, None, False, token)))

    def require_continued(self, seq: int, token: str, *, fail_on_data_loss: bool) -> None:
        """Return if the durable still has what comes after ``seq``.

        ``token``: of the durable that the number is of; empty where nothing was read. Raises: NotFound (data loss); as
        ``require_same``.
        """
        self.require_same(token, seq, fail_on_data_loss=fail_on_data_loss)
        if seq and fail_on_data_loss and self.is_earlier(seq + 1):
            raise log_truncated(
                "data loss: the durable was made again, or purged, after messages that were not read",
                hint="a stream continues with what the durable keeps with failOnDataLoss=false",
                store=self._store,
                durable=self._durable,
                read_through=seq,
            )

    def require_standard(self) -> Definition:
        """The description of the durable, if it is of type standard. Raises: Conflict (``type_mismatch``), NotFound."""
        description = self.describe()
        if description["type"] != "standard":
            raise Conflict(
                "a stream needs a durable of type standard, which gives each message to one subscriber",
                code=Code.TYPE_MISMATCH,
                hint="name a durable of the stream's own; one that does not exist is made",
                store=self._store,
                durable=self._durable,
                type=description["type"],
            )
        return description

    def require_free(self, for_prefix: str) -> None:
        """Return if the durable is standard and no subscriber has it whose name begins otherwise. Raises: AlreadyOpen,
        Conflict, NotFound."""
        subscribers = self.require_standard()["subscribers"]
        assert isinstance(subscribers, list), "the reference page describes it"
        for each in subscribers:
            if not str(each["name"]).startswith(for_prefix):
                raise self._busy(each["name"])

    def _busy(self, holder: object) -> AlreadyOpen:
        return AlreadyOpen(
            "another subscriber has this durable; it goes on, and nothing was read or acknowledged here",
            code=Code.DURABLE_BUSY,
            hint="give each stream, table, ingest and subscriber a durable of its own, or stop the other one first",
            store=self._store,
            durable=self._durable,
            holder=holder,
        )

    def collision(self, **fields: object) -> Fenced:
        """The error for a durable that something else consumes as well."""
        return Fenced(
            "another subscriber consumes the durable of this stream, which may miss messages now",
            code=Code.DURABLE_COLLISION,
            hint="give each stream and each subscriber a durable of its own",
            facts={"store": self._store, "durable": self._durable, **fields},
        )

    def _page(self, after: int, count: int) -> Page:
        page = decode(self._ask("GET", browse_target(self._path, after, count, None, False)), Page)
        if self.token and not is_same(self.token, page.token):
            # In another history a number may be the same message, and those after it others than were planned.
            raise replaced(self.token, store=self._store, durable=self._durable)
        self._met(page.token)
        return page

    def _poll(self, count: int) -> list[Delivery]:
        self.attach()
        try:
            return self._ask_for(count)
        except AlreadyOpen as error:
            raise self.collision(subscriber=error.fields.get("holder")) from error

    def _ask_for(self, count: int) -> list[Delivery]:
        target = f"{self._path}/messages?subscriber={quote(self.subscriber, safe='')}&max={count}&wait_ms=0"
        delivered = decode(self._ask("GET", target), DeliveredResponse)
        self._met(delivered.token)
        return delivered.messages

    def _acknowledge(self, seqs: Iterable[int]) -> int:
        ranges, count = ranges_of(seqs), 0
        for first in range(0, len(ranges), POLL_MESSAGES):
            acked = self._settling({"ranges": ranges[first : first + POLL_MESSAGES]})
            count += decode(self._send(acked), AckedResponse).acknowledged
        return count

    def _get(self, target: str) -> Definition:
        return decode(self._ask("GET", target), Definition)

    def _ask(self, method: str, target: str, body: Mapping[str, object] | None = None) -> Response:
        if self.token and body is None:
            target = f"{target}{'&' if '?' in target else '?'}token={self.token}"
        return self._send(request_of(method, target, body))

    def _send(self, request: Request) -> Response:
        return self._client.run(ask(self._client.session, request, now_ms(), self._retry_ms))


def _end(ended: threading.Event, client: Client) -> None:
    ended.set()
    client.close()


def _give_signs_of_life(sign: Request, url: str, every_s: float, ended: threading.Event) -> None:
    """Keep a durable for a subscriber that may be silent for long, until ``ended``.

    A refusal ends it: the next poll of the subscriber gets the reason.
    """
    bounds = with_trusted_hosts(ClientOptions(give_up_after_ms=max(1, round(every_s * 1_000))))
    with Client(url, token=service_token(), options=bounds) as client:
        while not ended.wait(every_s):
            try:
                client.run(ask(client.session, sign, now_ms(), bounds.give_up_after_ms))
            except Unavailable:
                continue  # it may come back within the time
            except HoldfastError:
                return
