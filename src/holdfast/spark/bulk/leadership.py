"""A bulk job as the leader of a log: claim, write batches, resign.

The slots and headers are those of a service (``Persist``). A slot that holds the very bytes of a batch is this leader's
own earlier PUT; any other object there raises Fenced. A service that leads the log is left alone and raises Closed,
unless the job may ask it to step down (``step_down``) or may claim without asking (``take_over``). A leading job
answers at an address as a service does (``JobAddress``). After a crash: a claim, and batches up to the first hole.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

import structlog

from holdfast.client.protocol.effects import Request, Response, Send
from holdfast.client.protocol.endpoint import TrustedHosts, parse_endpoint
from holdfast.client.protocol.http1 import token_of
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.transport.sync import Pool
from holdfast.commit.format.batch import (
    HEADER_BYTES,
    PREFIX,
    Header,
    Kind,
    decode_header,
    encode_object,
    object_name,
)
from holdfast.commit.leadership.claims import Identity, has_successor
from holdfast.commit.leadership.evidence import LeaderAnswer, Reply, Shown
from holdfast.commit.leadership.leader_question import ask_leader
from holdfast.commit.leadership.peer_tls import PeerTls
from holdfast.commit.leadership.signs import Signs
from holdfast.commit.leadership.takeover import (
    TakeoverOptions,
    local_place,
    local_scope,
    newest_slot,
    now,
    outward_host,
    take_the_lead,
)
from holdfast.commit.stages.persist import Persist, PersistRules
from holdfast.errors import Closed, Code, CorruptData, Fenced, InvalidRequest, NotFound, Unavailable
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.service_client import TRUSTED_VARIABLE, trusted_hosts
from holdfast.spark.runtime.store_thread import LoopThread, StoreThread, is_directory, with_store
from holdfast.values import LeaderId, LogId, Slot, slot_text

HEAD_BYTES_MAX: Final = 16_384
REQUEST_SECONDS_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 64


class JobAddress:
    """Answers ``GET /livez`` as a service does, and refuses everything else. Listens from construction until ``close``,
    on the loop of the job's store. ``leader_id`` is what it answers, with what the job has ``shown`` of itself.

    A service that starts, and a standby, ask the leader that the newest record names before they claim. Without an
    answer they would take an idle job for dead. Liveness only: what a deposed job wrote is never live, whatever it
    answers.

    Raises: InvalidRequest (nothing can listen there). Cost: nothing while nobody asks.
    """

    def __init__(
        self, thread: LoopThread[ObjectStore], listen: str, leader_id: str, shown: Callable[[], Shown]
    ) -> None:
        self._leader_id = leader_id
        self._shown = shown
        self._connections = 0
        host, port = _parts(listen)
        try:
            self._listening = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            raise bad_configuration(
                "a job cannot listen at this address",
                hint="give --listen HOST:PORT, an address of this machine that services of the log can reach",
                listen=listen,
                cause=str(error),
            ) from error
        text = f"[{host}]" if ":" in host else host
        self.address = f"http://{text}:{self._listening.getsockname()[1]}"
        self._server = thread.run(
            lambda _: asyncio.start_server(self._answer, sock=self._listening, limit=HEAD_BYTES_MAX)
        )

    def close(self) -> None:
        """Answer no more. Harmless when repeated."""
        try:
            self._server.get_loop().call_soon_threadsafe(self._server.close)
        except RuntimeError:  # the loop is closed, which leaves the socket open
            self._listening.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_SECONDS_MAX):
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                    writer.write(self._response(head.partition("\r\n")[0]))
                    await writer.drain()
                    if re.search(r"\n\s*(content-length|transfer-encoding)\s*:", head, re.IGNORECASE):
                        # A connection that is closed before its request was read may lose the answer.
                        while await reader.read(HEAD_BYTES_MAX):
                            pass
        except (OSError, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError):
            pass  # the other side gets no answer, and asks again
        finally:
            self._connections -= 1
            writer.close()

    def _response(self, line: str) -> bytes:
        method, _, target = line.partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        if method != "GET" or path != "/livez":
            return _encode("503 Service Unavailable", _REFUSAL, "Retry-After: 1\r\n")
        shown = self._shown()
        slot = "" if shown.slot is None else slot_text(shown.slot)
        alive = {"leader_id": self._leader_id, "leading": True, "address": self.address, "job": True}
        return _encode("200 OK", {**alive, "slot": slot, "sign": shown.sign})


_REFUSAL: Final = {
    "error": {
        "code": str(Code.NOT_LEADER),
        "message": "a Spark job leads this log, and takes no requests over HTTP",
    }
}


def _encode(status: str, body: object, more: str = "") -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{more}"
    return f"{head}Connection: close\r\n\r\n".encode() + data


def own_address(*, shared_by_machines: bool) -> str:
    """Where a job listens by default, with any free port: this machine alone, or its address in the network."""
    return f"{outward_host() if shared_by_machines else '127.0.0.1'}:0"


def _parts(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise bad_configuration(
            "not an address to listen at",
            hint="give HOST:PORT, for example 10.0.0.7:8090; port 0 is any free one",
            listen=listen,
        )
    return host, int(port)


async def put_batch(store: ObjectStore, header: Header, data: bytes) -> None:
    """Bring the object to its slot. Raises: Fenced where the slot has another one, Unavailable.

    After a crash: the object may or may not exist; a repeat decides it.
    """
    if not await create_exactly(store, object_name(header.slot), data):
        raise _deposed(header)


def _deposed(own: Header) -> Fenced:
    return Fenced(
        "another leader has taken over the log",
        code=Code.DEPOSED,
        hint="when that leader has ended, start this job again with the same arguments: it continues where it was. "
        "Where a service leads, --step-down asks it to stand by",
        slot=slot_text(own.slot),
    )


log = structlog.get_logger("holdfast.spark")

RESPONSE_MS_MAX: Final = 2_000.0
DRAIN_SECONDS_MAX: Final = 60.0
SYSTEM_AUTHORITIES: Final = PeerTls()
LIVENESS: Final = Request("GET", "/livez")
STEP_DOWN: Final = Request("POST", "/v1/admin/step-down?then=stand_by")


async def leader_at(address: str, ms_max: float = RESPONSE_MS_MAX, host: str = "") -> LeaderAnswer:
    """Whether a service or a job leads at ``address``, whose certificate has to name ``host``."""
    return await ask_leader(address, ms_max, host, tls=SYSTEM_AUTHORITIES)


async def ask_to_step_down(address: str, ms_max: float, host: str = "", *, token: str | None) -> LeaderAnswer:
    """Ask the leader at ``address`` to stand by. Returns whether it still leads. A job is not asked. The address comes
    from the log, so a token is sent there only where ``HOLDFAST_TRUSTED_HOSTS`` allows it.
    """
    answer = await leader_at(address, ms_max, host)
    if answer.reply is not Reply.LEADS or await asyncio.to_thread(_is_job, address):
        return answer
    if token is not None and not _may_get_token(address):
        log.warning("token_not_sent", address=address, allow_by=TRUSTED_VARIABLE)
        return answer
    await asyncio.to_thread(_exchange, address, STEP_DOWN, DRAIN_SECONDS_MAX, token)
    # The response may be lost when the service closes its connections; what counts is whether it leads.
    return await leader_at(address, ms_max, host)


def _may_get_token(address: str) -> bool:
    try:
        return TrustedHosts(trusted_hosts()).allows(parse_endpoint(address))
    except InvalidRequest:
        return False


def _exchange(address: str, request: Request, seconds_max: float, token: str | None = None) -> Response | None:
    """The response of the process at ``address``, None without one."""
    try:
        endpoint = parse_endpoint(address)
    except InvalidRequest:  # the address in the log's newest record need not be one
        return None
    pool = Pool(ClientOptions(), token_of(token), None)
    try:
        reply = pool.exchange(Send(endpoint, request, seconds_max * 1000.0))
        return reply if isinstance(reply, Response) else None
    finally:
        pool.close()


def _is_job(address: str) -> bool:
    """Whether a job leads at ``address``."""
    if not address.startswith("http://"):  # as jobs write theirs
        return False
    response = _exchange(address, LIVENESS, RESPONSE_MS_MAX / 1000.0)
    try:
        health = {} if response is None else json.loads(response.body)
    except ValueError:
        return False
    return isinstance(health, dict) and bool(health.get("job"))


@dataclass(frozen=True, slots=True)
class LeadershipOptions:
    """How to come to lead. A job is refused while a service leads the log, unless one of the two is set.

    ``step_down`` asks the service to stand by; it leads again when the job has resigned. ``token`` is the bearer token
    for this request, with the role ``admin``. ``take_over`` claims without asking, and the service is deposed.
    ``sign_interval_ms``: as ``leader.sign_interval_ms`` of a service; 0: its default.
    ``listen``: HOST:PORT at which this job answers that it leads; by default 127.0.0.1 for a log in a directory, else
    this machine's address, with any free port.
    """

    take_over: bool = False
    sign_interval_ms: float = 0.0
    token: str | None = None
    step_down: bool = False
    listen: str | None = None

    def __post_init__(self) -> None:
        if self.take_over and self.step_down:
            raise bad_configuration(
                "take_over and step_down exclude each other",
                hint="step_down asks the leader, take_over claims without asking",
            )


async def require_no_leader(store: ObjectStore, options: LeadershipOptions) -> None:
    """Raise Closed when a service leads this log and the job may neither ask it to step down nor take over.

    For a job that computes before it claims. The claim checks again. Cost: two requests to the store and one to the
    service.
    """
    slot = None if options.take_over or options.step_down else await newest_slot(store)
    if slot is None:
        return
    try:
        newest = decode_header(await store.read(object_name(slot), length=HEADER_BYTES), slot=slot)
    except (NotFound, CorruptData, Unavailable):
        return  # the claim reads the log with care
    if newest.kind is Kind.RESIGN or not newest.address:
        return
    leader_id = newest.leader_id.hex()
    if (await leader_at(newest.address)).leader_id == leader_id:
        raise leader_alive(options, leader_id, newest.address)


def require_free_log(url: str, options: LeadershipOptions) -> None:
    """As ``require_no_leader`` for the log at ``url``, before Spark is started. A log that does not exist is free."""
    with suppress(NotFound):
        with_store(url, partial(require_no_leader, options=options))


def leader_alive(options: LeadershipOptions, leader_id: str, address: str) -> Closed:
    """The error for a log that another process leads. Asks ``address`` whether a job leads there."""
    facts = {"leader_id": leader_id, "leader_address": address}
    if not address or _is_job(address):
        message = "another job leads this log"
        hint = "wait until that job is over, or depose it without asking: --take-over (take_over=True)"
    elif options.step_down:
        message = "the leader of this log did not step down"
        hint = (
            f"give --token for the role admin at {address}, and allow this address in {TRUSTED_VARIABLE}, so that it "
            "gets the token; or stop that leader, or claim without asking: --take-over"
        )
    else:
        message = "a service leads this log"
        hint = (
            f"give --step-down (step_down=True), and the service at {address} stands by while this job leads; or "
            "--take-over (take_over=True), which deposes it without asking"
        )
    return Closed(message, code=Code.LEADER_ALIVE, hint=hint, facts=facts)


DEFAULT_LEADERSHIP: Final = LeadershipOptions()


LOOK_SECONDS: Final = 5.0
"""How often an idle job looks whether another leader has claimed, as a service does."""
TICK_SECONDS: Final = 0.25


class JobLeadership:
    """This job as a leader: its claim, the head of its chain, and the end of it.

    From the claim until it ends (``resign``, ``stop`` or a failure) the job answers at an address, and shows signs of
    life next to the log as a service does, also while it computes. So no service takes a job that is idle or computes
    for dead, and the log does not grow. While nothing is written, a thread looks every ``LOOK_SECONDS`` whether the job
    still leads. Cost when idle on S3: about 1,500 requests an hour.

    A failure while something is written ends the leadership: an object in the chain may be missing, and a later one
    would name it as durable.
    """

    def __init__(self, thread: StoreThread, leading: LeadershipOptions) -> None:
        self._thread = thread
        self._leading = leading
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._written_s = self._looked_s = 0.0
        self._signs: Signs | None = None
        self._shown_s = -inf
        self._address: JobAddress | None = None
        self._failure: BaseException | None = None
        self._slots: Persist | None = None

    def claim(self) -> Header:
        """Take the lead. Raises: Closed while a service leads the log, unless it steps down or is taken over."""
        leading, leader_id = self._leading, LeaderId(os.urandom(16))
        listen = leading.listen or own_address(shared_by_machines=not is_directory(self._thread.url))
        self._address = JobAddress(self._thread, listen, leader_id.hex(), self._shown)
        try:
            address = self._address.address
            here = local_place([address])
            nonce_seed = os.urandom(32)
            identity = Identity(leader_id, nonce_seed, address, local_scope(address), here)
            ask = partial(ask_to_step_down, token=leading.token) if leading.step_down else leader_at

            options = TakeoverOptions(
                allow_new=True, take_over=leading.take_over, sign_interval_ms=leading.sign_interval_ms, ask_leader=ask
            )

            async def lead(store: ObjectStore) -> tuple[Header, Signs]:
                claim = (await take_the_lead(store, identity, LogId(os.urandom(16)), options)).claim
                return claim, Signs(store, claim, here, options.interval_ms(store.url))

            claim, self._signs = self._thread.run(lead)
        except BaseException as error:
            self._address.close()
            if not isinstance(error, Closed) or error.code is not Code.LEADER_ALIVE:
                raise
            fields = {name: str(error.fields.get(name, "")) for name in ("leader_id", "leader_address")}
            raise leader_alive(leading, fields["leader_id"], fields["leader_address"]) from error
        self._slots = Persist(claim, nonce_seed, PersistRules())
        self._written_s = self._looked_s = time.monotonic()
        threading.Thread(target=self._show_signs, name="holdfast-signs", daemon=True).start()
        return claim

    @contextmanager
    def writing(self) -> Generator[None]:
        """Around headers, their PUTs and ``confirm``. An exception ends the leadership.

        Raises: what has ended the leadership before, Closed after ``resign`` or ``stop``.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._stopped.is_set():
                raise Closed("this job does not lead any more", code=Code.NOT_LEADER)
            try:
                yield
            except BaseException as error:
                self._fail(error)
                raise

    @property
    def failure(self) -> BaseException | None:
        """What has ended this leadership; None while it may lead."""
        return self._failure

    def _fail(self, error: BaseException) -> None:
        """End the leadership, and say no longer that this job leads."""
        self._failure = error
        self.stop()

    def stop(self) -> None:
        """Show no more signs of life: the lead is left to the next leader. Harmless when repeated."""
        self._stopped.set()
        if self._address is not None:
            self._address.close()

    def _shown(self) -> Shown:
        """What this leader has shown of itself in the log and next to it."""
        durable = None if self._slots is None else self._slots.durable_slot
        return Shown(durable, 0 if self._signs is None else self._signs.newest.number)

    def _show_signs(self) -> None:
        signs = self._signs
        assert signs is not None, "a leader has claimed"
        interval_s = signs.newest.interval_ms / 1000.0
        tick_s = min(TICK_SECONDS, interval_s / 4.0)
        while not self._stopped.wait(tick_s):
            if time.monotonic() - max(self._shown_s, self._written_s) >= interval_s or not signs.newest.number:
                began_s = time.monotonic()
                try:
                    if self._thread.run(lambda _: signs.show()):
                        self._shown_s = began_s
                except BaseException as error:  # noqa: BLE001 - the store is closed; raised by the next write
                    self._fail(error)
                    return
            if time.monotonic() - max(self._written_s, self._looked_s) < LOOK_SECONDS:
                continue
            if self._lock.acquire(blocking=False):
                try:
                    if not self._stopped.is_set():
                        self._look()
                finally:
                    self._lock.release()

    def _look(self) -> None:
        """Note a later leader as the failure. A store that does not answer is asked again later."""
        try:
            newest = self._thread.run(newest_slot)
            if has_successor(newest, oldest_free=self._own.next_slot):
                self._fail(_deposed(self.head))
        except Unavailable:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by the next write
            self._fail(error)
        self._looked_s = time.monotonic()

    @property
    def _own(self) -> Persist:
        """The slots of this leader."""
        assert self._slots is not None, "a leader has claimed"
        return self._slots

    @property
    def head(self) -> Header:
        """The header that the next one follows."""
        return self._own.head

    def next_header(self, first_version: int, last_version: int, floor: int, transactions: int) -> Header:
        """The header of the next batch, without the lengths and CRCs of its body. It becomes the head."""
        return self._own.next_header(now(), first_version, last_version, floor, transactions)

    def confirm(self, last: Header, objects: int) -> None:
        """The last ``objects`` slots, down to ``last``, exist: durable, unless another leader has claimed.

        Raises: Fenced, Unavailable; InvalidRequest when they are not where this job reads.
        """
        newest = self._thread.run(newest_slot)
        if has_successor(newest, oldest_free=Slot(last.slot - 1)):
            raise _deposed(last)
        first = object_name(last.slot - 1)
        listed = self._thread.run(lambda store: store.list(PREFIX, after=first, limit=objects))
        if [row.key for row in listed] != [object_name(slot) for slot in range(last.slot, last.slot + objects)]:
            raise bad_configuration(
                "the batches that tasks have written are not in this log",
                hint="a log in a directory: every worker must see that same directory under the same path",
            )
        self._own.durable_header = last
        self._written_s = time.monotonic()

    def resign(self) -> None:
        """Write the last record, so that the next leader need not wait. Raises: Fenced, Unavailable."""
        try:
            with self.writing():
                self._stopped.set()
                version = self.head.last_version
                header = self._own.next_header(now(), version, version, 0, 0, kind=Kind.RESIGN)
                self._thread.run(lambda store: put_batch(store, header, encode_object(header)))
        finally:
            self.stop()
