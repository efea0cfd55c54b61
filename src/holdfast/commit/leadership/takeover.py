"""The shell of a takeover: it carries out the requests of ``takeover_machine`` on one object store.

Each request has a time limit. The machine decides everything. The shell writes the machine's steps to the process log.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, assert_never
from urllib.parse import urlsplit

import structlog

from holdfast.boot import clock_id, clock_ns
from holdfast.commit.format.batch import FIRST_SLOT, HEADER_BYTES, PREFIX, AddressScope, StoresMode, object_name
from holdfast.commit.leadership import takeover_events as t
from holdfast.commit.leadership.addresses import on_host, on_loopback
from holdfast.commit.leadership.claims import Identity, read_page
from holdfast.commit.leadership.cluster import require_cluster
from holdfast.commit.leadership.evidence import LeaderAnswer, ProcessPlace
from holdfast.commit.leadership.role import PROMOTED_KEY, ROLE_KEY, RoleRecords
from holdfast.commit.leadership.signs import SignReader
from holdfast.commit.leadership.suspension import Suspension
from holdfast.commit.leadership.suspensions import Suspensions
from holdfast.commit.leadership.takeover_events import Takeover
from holdfast.commit.leadership.takeover_machine import TakeoverMachine, TakeoverRules
from holdfast.errors import Closed, Code, HoldfastError, Unavailable
from holdfast.objects.port import ObjectReader, ObjectStore, Unknown, read_if_there
from holdfast.objects.probe import clean_up, probe
from holdfast.objects.store_clock import AGREES_MS, compare_with_store
from holdfast.values import Instant, LogId, Slot, sign_interval_ms

log = structlog.get_logger("holdfast.commit.leadership.takeover")

AskLeader = Callable[[str, float, str], Awaitable[LeaderAnswer]]
"""Ask the process at an address whether it leads, and wait for this many milliseconds. Its certificate has to name the
host that comes last.

``Reply.REFUSES`` only where the address itself says that no process listens there; an answer whose sender cannot be
verified is ``Reply.UNVERIFIED``, and everything else without an answer is ``Reply.SILENT``."""

Clock = Callable[[], Instant]

REQUEST_S_MAX: Final = 10.0
"""How long one round of requests may hang before it counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverOptions(TakeoverRules):
    """The rules of a takeover, and how to reach other processes.

    ``following`` is called with the id and the address of a leader that a standby follows, whenever it has answered;
    ``staying_out`` with the suspension under which it waits, whenever it has looked.
    """

    following: Callable[[str, str], None] | None = None
    staying_out: Callable[[Suspension], None] | None = None
    ask_leader: AskLeader | None = None

    def interval_ms(self, url: str) -> float:
        """The time between two signs of life in this store."""
        return self.sign_interval_ms or sign_interval_ms(urlsplit(url).scheme)

    def rules_for(self, url: str, *, only_new: bool = False) -> TakeoverRules:
        """The same, for the machine on one store."""
        asks = self.ask_leader is not None
        return replace(self, only_new=only_new, asks=asks, sign_interval_ms=self.interval_ms(url))


def now() -> Instant:
    """Both clocks, read together."""
    return Instant(clock_ns() / 1e6, time.time_ns() // 1_000_000)


async def read_records(store: ObjectReader) -> RoleRecords:
    """Both records of a prefix. Cost: two GETs at once. Raises: Unavailable."""
    return RoleRecords(*await asyncio.gather(read_if_there(store, ROLE_KEY), read_if_there(store, PROMOTED_KEY)))


async def newest_slot(store: ObjectStore) -> Slot | None:
    """The newest slot listed, None for an empty log. Raises: Unavailable, CorruptData."""
    rows = await store.list(PREFIX, limit=1)
    page = read_page([(row.key, row.size) for row in rows])
    return page.slots[0] if page.slots else None


async def take_the_lead(
    store: ObjectStore, identity: Identity, log_id: LogId, options: TakeoverOptions, clock: Clock = now
) -> Takeover:
    """Recover, claim, and check that no leader is past the claim.

    Raises: Unavailable (the store did not answer within ``retry_budget_ms``), NotFound ``log_empty``, CorruptData,
    Closed ``leader_alive`` naming the leader or ``cluster_restored``, InvalidRequest ``store_unfit``.
    After a crash: the claim may or may not stand; either way the next takeover decides by what it lists.
    """
    return await Driver(store, TakeoverMachine(identity, log_id, options.rules_for(store.url)), options, clock).run()


async def init_log(
    store: ObjectStore, identity: Identity, log_id: LogId, *, stores_mode: StoresMode = StoresMode.DISK
) -> bool:
    """Write the genesis claim if nothing is listed. False when the log exists.

    Raises: Unavailable, InvalidRequest, Closed ``cluster_restored``.
    """
    if await store.list(PREFIX, limit=1):
        return False
    options = TakeoverOptions(allow_new=True, stores_mode=stores_mode)
    rules = options.rules_for(store.url, only_new=True)
    try:
        await Driver(store, TakeoverMachine(identity, log_id, rules), options, now).run()
    except Closed as error:
        if error.code is Code.CLUSTER_RESTORED:
            raise
        return False
    return True


class Driver:
    """Carries out the effects of one machine. At most one request and the probe are under way at a time."""

    def __init__(self, store: ObjectStore, steps: TakeoverMachine, options: TakeoverOptions, clock: Clock) -> None:
        self._store = store
        self._signs = SignReader(store)
        self._suspensions = Suspensions(store)
        self._machine = steps
        self._options = options
        self._clock = clock
        self._probing: asyncio.Task[tuple[HoldfastError | None, int | None]] | None = None
        self._probed: list[str] = []
        self._cleaning: asyncio.Task[None] | None = None

    async def run(self) -> Takeover:
        """Step the machine to its end."""
        try:
            effects = self._machine.begin(self._clock())
            while True:
                request: t.Request | t.TakeoverWait | None = None
                for effect in effects:
                    match effect:
                        case t.Led(takeover=takeover):
                            return takeover
                        case t.Fail(error=error):
                            raise error
                        case t.Probe():
                            self._probing = asyncio.ensure_future(self._probe())
                        case t.CleanUp():
                            self._cleaning = asyncio.ensure_future(self._clean_up())
                        case t.StandBy(leader_id=leader_id, address=address):
                            if self._options.following is not None:
                                self._options.following(leader_id, address)
                        case t.StayOut(suspension=suspension):
                            if self._options.staying_out is not None:
                                self._options.staying_out(suspension)
                        case _:
                            request = effect
                effects = self._machine.step(await self._next_event(request))
        finally:
            await self._end()

    async def _next_event(self, request: t.Request | t.TakeoverWait | None) -> t.Event:
        """The answer to ``request``; the probe's is taken when the machine waits for nothing else.

        The probe may have ended long before. A claim of that time would count what passed since as lived.
        """
        if request is not None:
            return await self._carry_out(request)
        probing, self._probing = self._probing, None
        assert probing is not None, "a machine that waits for nothing has ended"
        error, booted_ms = await probing
        return t.Probed(self._clock(), error, booted_ms)

    async def _end(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        if self._cleaning is not None:
            await self._cleaning
        await self._clean_up()

    async def _clean_up(self) -> None:
        names, self._probed = self._probed, []
        if names:
            await clean_up(self._store, names)

    async def _probe(self) -> tuple[HoldfastError | None, int | None]:
        """The fields of ``Probed``."""
        try:
            asking = asyncio.ensure_future(compare_with_store(self._store, self._clock))
            try:
                self._probed = await probe(self._store)
                compared = await asking
            finally:
                asking.cancel()
        except HoldfastError as error:
            return error, None
        if compared is None:
            return None, None
        if abs(compared.ahead_ms) > AGREES_MS:
            seconds = compared.ahead_ms // 1000
            log.warning("clock_contradicted", ahead_of_store_seconds=seconds, hint="set the machine's clock")
        return None, compared.booted_ms

    async def _carry_out(self, effect: t.Request | t.TakeoverWait) -> t.Event:
        clock = self._clock
        match effect:
            case t.TakeoverWait(ms=ms, reason=reason, facts=facts):
                if reason:
                    write = log.info if reason == "waiting_for_signs_of_life" else log.warning
                    write(reason, **facts)
                await asyncio.sleep(ms / 1000.0)
                return t.TakeoverWoken(clock())
            case t.AskLeader():
                assert self._options.ask_leader is not None, "only a machine that can ask does"
                answer = await self._options.ask_leader(effect.address, effect.ms_max, effect.host)
                return t.LeaderAnswered(clock(), answer)
            case t.SendClaim(slot=slot, data=data):
                try:
                    async with asyncio.timeout(REQUEST_S_MAX):
                        await require_cluster(self._store, may_begin=slot == FIRST_SLOT)
                        created = await self._store.create(object_name(slot), data)
                except TimeoutError:
                    created = Unknown("no answer in time")
                except Unavailable as error:
                    created = Unknown(str(error))
                return t.ClaimAnswered(clock(), created)
            case _:
                try:
                    async with asyncio.timeout(REQUEST_S_MAX):
                        return await self._ask_store(effect)
                except TimeoutError:
                    return t.NoAnswer(clock(), Unavailable("the object store did not answer in time"))
                except HoldfastError as error:
                    return t.NoAnswer(clock(), error)

    async def _ask_store(self, effect: t.ListPage | t.ReadHeaders | t.Look | t.ReadHeader) -> t.Event:
        store, clock = self._store, self._clock
        match effect:
            case t.ListPage(limit=limit):
                rows = await store.list(PREFIX, limit=limit)  # before the look at the clock: no event is older
                return t.PageListed(clock(), [(row.key, row.size) for row in rows])
            case t.ReadHeaders(slots=slots):
                records, suspension, headers = await asyncio.gather(
                    read_records(store),
                    self._suspensions.in_force(),
                    asyncio.gather(*(store.read(object_name(slot), length=HEADER_BYTES) for slot in slots)),
                )
                return t.HeadersRead(clock(), dict(zip(slots, headers, strict=True)), records, suspension)
            case t.Look(epoch=epoch, leader_id=leader_id):
                newest, sign = await asyncio.gather(newest_slot(store), self._signs.newest(epoch, leader_id))
                return t.Looked(clock(), newest, sign)
            case t.ReadHeader(slot=slot):
                header = await read_if_there(store, object_name(slot), length=HEADER_BYTES)
                return t.HeaderRead(clock(), header)
            case _:
                assert_never(effect)


NETWORK: Final = "/proc/self/ns/net"
MOUNTS: Final = "/proc/self/ns/mnt"


def local_scope(address: str, *, is_bound: bool = True) -> AddressScope:
    """This boot of this machine, and where on it ``address`` is valid; unknown where the system does not say.

    The same address, 127.0.0.1:8080 for example, is a different endpoint in each container. A namespace lives as long
    as a process in it, so processes with one boot id and one namespace share their addresses. An address that this
    process has not bound (``is_bound``) is valid in no known place.
    """
    namespace = 0
    if address and is_bound:
        with suppress(OSError):
            namespace = os.stat(MOUNTS if address.startswith("unix:") else NETWORK).st_ino
    return AddressScope(clock_id(), namespace)


def local_place(bound: Sequence[str]) -> ProcessPlace:
    """Where this process is, and how processes of the same place reach it: the addresses at which it listens.

    A wildcard is reached by the loopback address. The first scope is that of the first address.
    """
    scopes = [local_scope(each) for each in (*bound, "127.0.0.1:0", "unix:")]
    return ProcessPlace(
        tuple(map(on_loopback, bound)), tuple(dict.fromkeys(scope for scope in scopes if scope.is_known()))
    )


def on_interface(address: str) -> str:
    """How a process of another machine reaches a listener: a wildcard by the address of the bound interface.

    That is the interface that leads to other machines, or the loopback address where no interface does.
    """
    return on_host(address, outward_host(socket.AF_INET6 if "[" in address else socket.AF_INET))


def outward_host(family: socket.AddressFamily = socket.AF_INET) -> str:
    """The address of this machine's interface that leads to other machines. Nothing is sent."""
    six = family is socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as looking:
            looking.connect(("2001:db8::1" if six else "192.0.2.1", 9))
            host = str(looking.getsockname()[0])
    except OSError:
        # A listener on [::] takes connections of both families.
        return outward_host() if six else "127.0.0.1"
    return f"[{host}]" if six else host
