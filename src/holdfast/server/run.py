"""``holdfast serve``: one process from its start to its exit code.

    start    bind and listen (answering not_leader), open the store, recover and claim, print "ready"
    stop     SIGTERM or SIGINT: refuse commits, make the accepted ones durable, answer, resign, close, exit 0.
             It ends within ``server.drain_seconds_max``; commits not durable by then are answered outcome_unknown,
             and the code is 6
    again    a second signal exits at once; nothing acknowledged is lost, because the next leader recovers

Exit codes: 0 drained or stepped down; 2 bad configuration; 3 another leader is alive; 4 deposed; 5 there is no log;
6 store or log damaged, unfit or unavailable; 70 a bug. With ``--standby`` a process whose leadership ends becomes a
standby again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import resource
import signal
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
import uvloop

from holdfast import __version__
from holdfast.commit.following import FollowedLog
from holdfast.commit.format.batch import StoresMode
from holdfast.commit.leadership.addresses import without_scheme
from holdfast.commit.leadership.leader_question import ask_leader
from holdfast.commit.leadership.suspension import Suspension
from holdfast.commit.leadership.takeover import on_interface
from holdfast.commit.reading.feed import EventBatch
from holdfast.commit.service import CommitService, ServiceEnd, ServiceOptions
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import PipelineRules
from holdfast.commit.subscription import subscribe
from holdfast.errors import Code, HoldfastError, InvalidRequest
from holdfast.files.file_urls import path_of
from holdfast.files.temporary_files import temporary_directory
from holdfast.objects.budget import BudgetedStore, TimeLimited
from holdfast.objects.credentials import require_credentials
from holdfast.objects.directory.time_slice import COMPUTING_NS, ask_for_time_slice
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectStore
from holdfast.objects.retrying import ANSWERING, RetryingStore
from holdfast.retention.truncator import STORES_NEED_IT
from holdfast.server.children.console_child import ConsoleChild, url_for_console
from holdfast.server.commit.log_job_routes import LogJobs
from holdfast.server.commit.replaced_log import require_places_of_this_log, require_raced, segment_history
from holdfast.server.commit.retention_routes import RetentionHost
from holdfast.server.commit.sse import Subscriptions
from holdfast.server.exits import BUG, StopBound, end_on_broken_invariants, exit_code_of, hint_of
from holdfast.server.gateway import Gateway, limits_of
from holdfast.server.health import StoreWatch
from holdfast.server.http.auth import Authenticator
from holdfast.server.http.http_server import HttpServer
from holdfast.server.http.responses import LeaderHint
from holdfast.server.logs import configure_logs, keep_pandas_out
from holdfast.server.metrics import ServerMetrics
from holdfast.server.reloading import (
    Reloading,
    peer_tls_of,
    tls_of,
    tokens_of,
    warn_about_open_files,
    warn_of_unverified,
)
from holdfast.server.route_table import route_table
from holdfast.server.stores.commit_parts import GatewayStores
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.hot_routes import HotStores
from holdfast.server.stores.in_log import LocalCopy, require_durability
from holdfast.server.stores.opening import Opening, read_definitions
from holdfast.server.stores.socket import SubscribeSocket
from holdfast.server.upkeep import Upkeep
from holdfast.server.view.embedded_view import EmbeddedView
from holdfast.server.view.messages import ViewStart
from holdfast.settings import ServerSettings, Settings
from holdfast.soundness import report_broken
from holdfast.values import UNIX
from holdfast.wire.log import ConfigurationAnswer

GRACE_SECONDS: Final = 5.0
AFTER_FOLLOWING_SECONDS: Final = 1.0
AFTER_LEADERSHIP_SECONDS: Final = (1.0, 5.0)
AFTER_STEPPING_DOWN_SECONDS: Final = (3.0, 5.0)
"""The process that asked for the lead has this time to claim it."""
OWN_CONNECTIONS: Final = 4
"""For the leader's ownership checks and read-backs."""
READER_CONNECTIONS: Final = 8
"""For readers of history."""
log = structlog.get_logger("holdfast.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a process serves, in addition to its settings.

    ``init`` allows a new log where there is none; ``force_new`` also where another log left something. ``read_only``
    never leads, and serves readers. ``configuration`` is what ``/v1/configuration`` shows. ``console``: options of a
    web console that this process starts and ends; None for none.
    """

    init: bool = False
    take_over: bool = False
    standby: bool = False
    force_new: bool = False
    read_only: bool = False
    configuration: ConfigurationAnswer = ConfigurationAnswer()  # noqa: RUF009  # it is frozen
    console: Sequence[str] | None = None


def main(settings: Settings, serving: Serving) -> int:
    """Serve until a signal or the end of the leadership, and return the exit code."""
    configure_logs(settings.logging.format, settings.logging.level)
    _raise_file_limit()
    ask_for_time_slice(COMPUTING_NS)
    keep_pandas_out()
    try:
        if not serving.read_only:
            require_writable_place(settings.log.url)
            _warn_without_temporary_files(settings)
        require_credentials(settings.log.url, os.environ)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_Process(settings, serving, exits=True).run())
    except HoldfastError as error:
        log.error("cannot_serve", code=str(error.code), error=error.statement(), hint=hint_of(error))
        return exit_code_of(error)
    except AssertionError as error:
        log.error("invariant_violated", exc_info=error)
        return BUG


class _Process:
    def __init__(self, settings: Settings, serving: Serving, *, exits: bool) -> None:
        """``exits``: this very process ends after an assertion failed, or a stop that takes too long."""
        self._settings = settings
        self._serving = serving
        self._stopping = StopBound(settings.server.drain_seconds_max, exits=exits)
        self._exits = exits
        self._tls = tls_of(settings.server)
        self._peers = peer_tls_of(settings.server)
        if settings.server.has_peer_files:
            self._peers.replace(self._peers.read())
        self._tokens = tokens_of(settings.server)
        self._address = ""
        self._address_is_bound = False
        self._bound: tuple[str, ...] = ()
        self._opening: Opening | None = None
        self._upkeep: Upkeep | None = None
        self._local_copy: LocalCopy | None = None
        """What this process has of stores that live in the log, while it stands by."""
        # Read before anything is opened: a definition that is wrong must not cost anybody the lead.
        definitions = settings.stores.definitions
        self._definition = None if definitions is None else read_definitions(definitions)

    def _hosted_stores(self) -> StoreHost | None:
        stores = self._settings.stores
        if stores.hosted is None or self._serving.read_only:
            return None
        host = StoreHost(
            self._gateway,
            stores.hosted,
            request_bytes_max=stores.max_request_size_bytes,
            statistics_message_seconds=stores.statistics_message_seconds,
        )
        host.samples = self._metrics.samples
        return host

    async def run(self) -> int:
        """From listening to the exit code."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        if self._exits:
            end_on_broken_invariants(loop)
        self._stop: asyncio.Future[None] = loop.create_future()
        self._signals = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                loop.add_signal_handler(number, self._signalled, number)
        self._gateway = Gateway(
            limits=limits_of(settings),
            authenticator=Authenticator(self._tokens),
            names=_own_names(settings.server),
            hosts=settings.server.hosts,
        )
        self._gateway.read_only = self._serving.read_only
        self._metrics = ServerMetrics(self._gateway)
        self._watch = StoreWatch(self._gateway, stalled_ms_max=settings.commit.stalled_after_seconds * 1000.0)
        self._subscriptions = Subscriptions(self._gateway, self._open_batches)
        self._older = segment_history(settings.log.segments_url)
        self._view = EmbeddedView(
            settings.view.enabled,
            ViewStart(
                log_url=settings.log.url,
                segments_url=settings.log.segments_url or "",
                request_timeout_ms=int(settings.persist.request_timeout_ms),
                log_format=settings.logging.format,
                log_level=settings.logging.level,
            ),
            self._open_batches,
            settings.view.memory_bytes,
        )
        self._metrics.view = self._view
        self._stores = self._hosted_stores()
        self._metrics.stores = self._stores
        if self._stores is not None:
            self._gateway.stores = GatewayStores(self._stores)
        self._retention = self._metrics.retention = RetentionHost(self._gateway)
        self._jobs = LogJobs(self._gateway)
        server = self._http_server()
        self._metrics.server = server
        self._metrics.subscriptions = self._subscriptions
        addresses = await server.listen(settings.server.listen)
        advertised = _advertised(settings, addresses)
        self._address, self._address_is_bound = on_interface(advertised), advertised in addresses
        self._bound = tuple(each if each.startswith(UNIX) or not self._tls else f"https://{each}" for each in addresses)
        reloading = self._reloading(server)
        loop.add_signal_handler(signal.SIGHUP, reloading.reload, "SIGHUP")
        watching = asyncio.ensure_future(reloading.watch())
        self._gateway.own = LeaderHint("", self._address)
        try:
            async with self._with_console(addresses[0]):
                return await self._serve(addresses)
        finally:
            watching.cancel()
            self._stopping.begin()
            await self._subscriptions.close()
            await server.finish(min(GRACE_SECONDS, self._stopping.seconds_left() / 2))
            await self._view.close()

    def _reloading(self, server: HttpServer) -> Reloading:
        """What replaces files of this configuration. Logs what is doubtful about them as they are."""
        settings = self._settings.server
        warn_about_open_files(settings)
        if self._tls is not None:
            warn_of_unverified(self._tls, self._peers, self._address)
        return Reloading(settings, self._gateway.authenticator, server.replace_tls, self._peers, self._address)

    @contextlib.asynccontextmanager
    async def _with_console(self, bound: str) -> AsyncGenerator[None]:
        """A console runs, if one was asked for."""
        if self._serving.console is None:
            yield
            return
        url = url_for_console(bound, self._address, with_tls=self._tls is not None)
        trusted = self._settings.server.peer_ca_file
        options = (*self._serving.console, *(() if trusted is None else ("--ca-file", trusted)))
        console = ConsoleChild(options, url, _say)
        try:
            yield
        finally:
            await console.close()

    def _http_server(self) -> HttpServer:
        stores = self._stores
        routes = route_table(
            self._gateway,
            metrics=self._metrics,
            watch=self._watch,
            subscriptions=self._subscriptions,
            view=self._view,
            retention=self._retention,
            jobs=self._jobs,
            version=__version__,
            stores=stores,
            configuration=self._serving.configuration,
        )
        return HttpServer(
            self._gateway,
            routes,
            tls=self._tls,
            matcher=None if stores is None else HotStores(stores),
            socket=None if stores is None else partial(SubscribeSocket, self._gateway, stores),
            store_connections=self._settings.persist.target_pool_size,
            socket_mode=self._settings.server.socket_mode,
        )

    # Leadership

    async def _serve(self, addresses: list[str]) -> int:
        settings = self._settings
        opened = open_store(
            settings.log.url,
            create_missing=self._serving.init,
            request_timeout_ms=int(settings.persist.request_timeout_ms),
            connections_max=settings.persist.target_pool_size,
            retry=None,
        )
        budgeted = _budgeted(opened, settings)
        self._metrics.store = self._watch.store = budgeted.metrics
        store = RetryingStore(budgeted, ANSWERING, metrics=budgeted.metrics)
        try:
            if self._serving.read_only:
                return await self._serve_readers(store, addresses)
            looking = asyncio.gather(
                require_places_of_this_log(store, settings, init=self._serving.init, force_new=self._serving.force_new),
                require_raced(store, settings.log.url),
            )
            if not await self._ends_before_stop(asyncio.ensure_future(looking)):
                return 0
            await require_durability(store, settings.stores)
            while True:
                service = await self._lead(store, budgeted.own)
                if service is None:
                    return 0
                try:
                    end = await self._serve_leadership(service, addresses)
                    if service.suspending.cause is not None:
                        # It leads again when the log goes on, also without --standby.
                        self._gateway.suspended_by = service.suspending.cause.author
                        self._gateway.stands_by_next = True
                finally:
                    if not self._stands_by():
                        self._stopping.begin()
                    await self._no_longer_leading()
                    await service.close()
                log.info("reign_over", kind=end.kind, detail=end.detail, leader_id=service.leader_id)
                if not self._stands_by():
                    return {"resigned": 0, "deposed": 4}.get(end.kind, 6)
                pause = AFTER_STEPPING_DOWN_SECONDS if self._gateway.stands_by_next else AFTER_LEADERSHIP_SECONDS
                await asyncio.wait({self._stop}, timeout=random.uniform(*pause))
                if self._stop.done():
                    return 0
        except AssertionError as error:
            report_broken(asyncio.get_running_loop(), error)
            raise
        finally:
            if self._local_copy is not None:
                await self._local_copy.close()
            await store.close()

    def _stands_by(self) -> bool:
        """Whether the process waits for its turn when its leadership is over."""
        return (self._serving.standby or self._gateway.stands_by_next) and not self._stop.done()

    async def _lead(self, store: ObjectStore, own: ObjectStore) -> CommitService | None:
        """Become the leader. None when a signal comes first."""
        leading = asyncio.ensure_future(CommitService.lead(store, self._options(), own))
        if not (self._serving.standby or self._gateway.stands_by_next):
            return leading.result() if await self._ends_before_stop(leading) else None
        following = asyncio.ensure_future(self._follow_while_standing_by(store))
        try:
            return leading.result() if await self._ends_before_stop(leading) else None
        finally:
            following.cancel()
            await asyncio.wait({following})
            self._gateway.reader = None

    async def _follow_while_standing_by(self, store: ObjectStore) -> None:
        """Answer readers until this process leads. A log that cannot be followed yet is tried again."""
        while True:
            try:
                followed = await FollowedLog.begin(store, bytes_max=self._settings.subscription.max_buffer_size_bytes)
            except HoldfastError as error:
                log.info("standby_does_not_follow", error=str(error))
                await asyncio.sleep(AFTER_FOLLOWING_SECONDS)
                continue
            self._gateway.read(followed)
            keeping = asyncio.ensure_future(self._keep_stores_up(followed, store))
            try:
                await followed.run()
            finally:
                keeping.cancel()
                await asyncio.wait({keeping})
            log.info("followed_leader_ended", leader_id=followed.leader_id, reason=followed.ended.result())

    async def _keep_stores_up(self, followed: FollowedLog, store: ObjectStore) -> None:
        """A standby follows the stores that live in the log, so that it can serve them at once."""
        if followed.durable_header().stores_mode is not StoresMode.LOG or self._settings.stores.hosted is None:
            return
        if self._local_copy is None:
            self._local_copy = LocalCopy(store, self._settings.stores, followed.log_id, self._address)
        await self._local_copy.keep_up(followed)

    async def _serve_readers(self, store: ObjectStore, addresses: list[str]) -> int:
        """Follow the log until a signal, also when its leader changes. Nothing is written."""
        said = False
        while True:
            beginning = asyncio.ensure_future(
                FollowedLog.begin(store, bytes_max=self._settings.subscription.max_buffer_size_bytes)
            )
            if not await self._ends_before_stop(beginning):
                return 0
            followed = beginning.result()
            self._gateway.leader = LeaderHint(followed.leader_id, followed.address)
            self._gateway.read(followed)
            self._view.follow(followed, in_log_directory=False)
            log.info("following", leader_id=followed.leader_id, version=followed.local_version())
            if not said:
                _say(f"ready listen={','.join(addresses)} read_only=true log_id={followed.log_id}")
                said = True
            running = asyncio.ensure_future(followed.run())
            try:
                await _first_of(running, self._stop)
            finally:
                running.cancel()
                await asyncio.wait({running})
                self._gateway.reader = None
                await self._view.stop()
            if self._stop.done():
                return 0
            log.info("followed_leader_ended", leader_id=followed.leader_id, reason=followed.ended.result())

    async def _ends_before_stop(self, work: asyncio.Future[Any]) -> bool:
        """Whether ``work`` ends before a signal, which cancels it. Raises: the error of ``work``."""
        await _first_of(work, self._stop)
        if work.done():
            work.result()
            return True
        work.cancel()
        await asyncio.wait({work})
        return False

    def _stand_by(self, leader_id: str, address: str) -> None:
        hint = LeaderHint(leader_id, address)
        self._gateway.suspended_by = None
        if hint != self._gateway.leader:
            self._gateway.stop_leading(hint)
            log.info("standing_by", leader_id=hint.leader_id, leader_address=hint.address)
            both = ",".join(self._as_url(each) for each in (hint.address, self._address) if each)
            _say(f"standby leader_id={hint.leader_id} leader_address={hint.address} clients={both}")

    def _stay_out(self, suspension: Suspension) -> None:
        if self._gateway.suspended_by is None:
            log.warning("stays_out", number=suspension.number, author=suspension.author)
            _say(f"suspended by={suspension.author}")
        self._gateway.stop_leading(LeaderHint())
        self._gateway.suspended_by = suspension.author

    def _as_url(self, address: str) -> str:
        """An address of the log's services as a client takes it, among several with commas."""
        if address.startswith((UNIX, "http://", "https://")):
            return address
        return f"{'http' if self._tls is None else 'https'}://{address}"

    async def _serve_leadership(self, service: CommitService, addresses: list[str]) -> ServiceEnd:
        """Serve the log until this leadership ends; a signal drains it first."""
        self._upkeep = Upkeep(
            settings=self._settings,
            metrics=self._metrics,
            retention=self._retention,
            jobs=self._jobs,
            oldest_checkpoint=self._oldest_checkpoint,
            older=self._older,
            watch=self._watch,
            view=self._view,
        )
        self._upkeep.lead(service)
        self._gateway.lead(service)
        self._view.follow(service)
        takeover = service.takeover
        log.info(
            "leading",
            leader_id=service.leader_id,
            log_id=service.log_id,
            epoch=service.claim.epoch,
            version=service.local_version(),
            store_waits=takeover.waits,
            took_ms=round(takeover.took_ms, 1),
            deposed_leader_id=takeover.deposed_leader_id,
        )
        # What exists now lives as long as the process; the collector need not look at it again.
        gc.collect()
        gc.freeze()
        # Commits in flight are many small objects that die young without cycles: at the usual thresholds the collector
        # walks the growing conflict window again and again for them (a third of the rate of commit streams).
        gc.set_threshold(100_000, 20, 100)
        self._upkeep.begin(service)
        stores = self._stores
        if stores is not None:
            retention = self._retention.leading()
            log_id = None if self._settings.log.scheme == "memory" else service.log_id
            self._opening = Opening(
                stores,
                self._settings.stores,
                self._definition,
                log_id=log_id,
                leader=service if service.claim.stores_mode is StoresMode.LOG else None,
                local_copy=self._local_copy,
                checkpoint_wanted=lambda: retention.state.warning == STORES_NEED_IT,
                force_new=self._serving.force_new,
            )
            self._local_copy = None
            await self._opening.begin()
        _say(f"ready listen={','.join(addresses)} leader_id={service.leader_id}")
        await _first_of(service.ended, self._stop, *(() if stores is None else (stores.failed,)))
        if not service.ended.done():
            log.info("draining", commits_in_flight=self._gateway.in_flight_commits)
            # It goes on to listen and to answer /livez until it has resigned: an address that refuses is a proof that
            # its leader has gone.
            self._gateway.draining = True
            await self._drain(service)
        if stores is not None and stores.failed.done():
            raise stores.failed.result()
        return service.ended.result()

    async def _drain(self, service: CommitService) -> None:
        """Make durable what was accepted, and resign; when no time is left, leave the rest to the next leader."""
        self._stopping.begin()
        seconds_max = self._stopping.drain_seconds()
        try:
            async with asyncio.timeout(seconds_max):
                if service.claim.stores_mode is StoresMode.LOG:
                    await self._close_stores()  # what they write last goes into the log
                await service.step_down()
        except TimeoutError:
            log.error("drain_given_up", seconds=round(seconds_max, 2), outcomes_unknown=self._gateway.in_flight_commits)
            await service.close()

    async def _no_longer_leading(self) -> None:
        self._gateway.stop_leading(LeaderHint())
        if self._upkeep is not None:
            await self._upkeep.end()
            self._upkeep = None
        await self._close_stores()
        await self._view.stop()

    async def _oldest_checkpoint(self, held: Collection[int]) -> int:
        checkpoints = None if self._opening is None else self._opening.checkpoints
        return 0 if checkpoints is None else await checkpoints.oldest(held)

    async def _close_stores(self) -> None:
        if self._opening is not None:
            await self._opening.end()
            self._opening = None
        if self._stores is not None:
            await self._stores.close()

    def _options(self) -> ServiceOptions:
        settings = self._settings
        persist = settings.persist

        return ServiceOptions(
            address=self._address,
            address_is_bound=self._address_is_bound,
            bound=self._bound,
            allow_new=self._serving.init,
            stores_mode=StoresMode.LOG if settings.stores.durability == "log" else StoresMode.DISK,
            # Once it has stood by, it deposes no leader.
            take_over=self._serving.take_over and not self._gateway.stands_by_next,
            standby=self._serving.standby or self._gateway.stands_by_next,
            following=self._stand_by,
            staying_out=self._stay_out,
            delay_ms=settings.standby.delay_ms,
            ask_leader=partial(ask_leader, tls=self._peers),
            rules=PipelineRules(
                persist=PersistRules(
                    batch_timeout_ms=persist.batch_timeout_ms,
                    batch_timeout_max_ms=persist.batch_timeout_max_ms,
                    batch_bytes=persist.batch_size_threshold,
                    window=persist.max_in_flight_requests,
                    puts_per_second_max=persist.put_requests_per_second_max,
                    retry_base_ms=persist.retry_base_delay_ms,
                    retry_max_ms=persist.retry_max_delay_ms,
                    retries_max=persist.max_retry_attempts,
                    give_up_after_ms=persist.give_up_after_seconds * 1000.0,
                    hedge_percentile=persist.hedge_after_percentile,
                ),
                window_ms=settings.commit.conflict_window_seconds * 1000.0,
                window_bytes=settings.commit.conflict_window_bytes,
            ),
            request_timeout_ms=persist.request_timeout_ms,
            sign_interval_ms=settings.leader.sign_interval_ms,
            queue_entries_max=settings.server.max_in_flight_commits,
            stalled_ms_max=settings.commit.stalled_after_seconds * 1000.0,
        )

    def _open_batches(self, after: int, durable: bool, with_segments: bool = True) -> AsyncIterator[EventBatch]:
        reader = self._gateway.reading()
        if not durable and self._gateway.service is None:
            raise self._gateway.not_leading()  # only the leader has events that are not durable yet
        return subscribe(
            reader,
            after=after,
            durable=durable,
            bytes_behind_max=self._settings.subscription.max_buffer_size_bytes,
            older=self._older if with_segments else None,
        )

    # Signals

    def _signalled(self, number: int) -> None:
        self._signals += 1
        if self._signals > 1:
            log.warning("exit_at_once", signal=signal.Signals(number).name)
            sys.stderr.flush()
            os._exit(128 + number)
        log.info("stopping", signal=signal.Signals(number).name)
        self._stopping.begin()
        if not self._stop.done():
            self._stop.set_result(None)


def _budgeted(opened: ObjectStore, settings: Settings) -> BudgetedStore:
    """The store with its connections in three parts and a time limit for every request."""
    persist = settings.persist
    pool = persist.target_pool_size
    # A small pool is for the batches first.
    spare = min(OWN_CONNECTIONS + READER_CONNECTIONS, pool // 2)
    return BudgetedStore(
        TimeLimited(opened, persist.request_timeout_ms),
        connections_max=pool,
        creates_max=max(1, min(persist.max_in_flight_requests * 2, pool - spare)),
        own_max=max(1, min(OWN_CONNECTIONS, spare // 3)),
        not_created=lambda key, detail: log.warning("store_did_not_create", key=key, error=detail),
    )


async def _first_of(*awaited: asyncio.Future[Any]) -> None:
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)


def _own_names(server: ServerSettings) -> list[str]:
    """The names of this machine, and those under which the service is reached."""
    machine = socket.gethostname()
    reached = (*server.listen, server.advertised_address)
    return [
        machine,
        machine.partition(".")[0],
        *(without_scheme(each) for each in reached if not each.startswith(UNIX)),
    ]


def _advertised(settings: Settings, bound: list[str]) -> str:
    """The configured address, with the port that was bound."""
    configured = settings.server.advertised_address
    for asked, taken in zip(settings.server.listen, bound, strict=True):
        if configured == asked:
            return taken
    return configured


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # the reader may have gone
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _warn_without_temporary_files(settings: Settings) -> None:
    """Commits need none, so their lack does not keep a leader from leading."""
    if settings.log.scheme == "memory":
        return
    try:
        temporary_directory("holdfast-start-").cleanup()
    except HoldfastError as error:
        log.warning("temporary_files_unusable", error=error.statement(), hint=error.hint)


def require_writable_place(log_url: str) -> None:
    """Check that a leader may be able to write under ``log_url``, without changing anything.

    Raises: InvalidRequest naming the path: ``bad_configuration`` when it is not a directory or this user may not write
    it, ``store_unfit`` when its file system is mounted read-only.
    """
    if urlsplit(log_url).scheme != "file":
        return
    root = path_of(log_url)
    existing = root
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise InvalidRequest(
            "the log cannot be there: this is not a directory",
            code=Code.BAD_CONFIGURATION,
            hint="give --log the directory of the log, for example file:///var/lib/holdfast",
            path=str(existing),
        )
    if os.statvfs(existing).f_flag & os.ST_RDONLY:
        raise InvalidRequest(
            "the log cannot be written: its file system is mounted read-only",
            code=Code.STORE_UNFIT,
            hint="mount it for writing, allow it in the unit (ReadWritePaths=), or give --log another directory",
            path=str(existing),
        )
    # The objects have a directory of their own, and one that was made by another user is the usual mishap.
    for needed in (existing, root / "batches"):
        if needed.is_dir() and not os.access(needed, os.R_OK | os.W_OK | os.X_OK):
            raise InvalidRequest(
                "the log cannot be written: this user may not read, write and enter the directory",
                code=Code.BAD_CONFIGURATION,
                hint="give the directory to the user of the service, or start the service as the directory's owner",
                path=str(needed),
                user_id=os.geteuid(),
            )
