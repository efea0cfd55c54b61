"""The stores of one process: open while it leads, closed when it does not.

While nothing is open, requests are answered ``not_leader``. A service whose log failed cannot continue: ``failed`` is
set, and the process ends with a named code. At most ``IN_FLIGHT_BYTES_MAX`` of publishes wait for their response; above
that they are answered ``overloaded``.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from holdfast.errors import (
    Backpressure,
    Code,
    Conflict,
    CorruptData,
    HoldfastError,
    InternalError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from holdfast.objects.directory.files import PosixFiles, settled
from holdfast.objects.directory.identity import replaced
from holdfast.server.gateway import OVERLOADED_RETRY_AFTER_MS, Gateway
from holdfast.server.http.responses import NOT_LEADING_RETRY_MS
from holdfast.server.http.rights_table import PERMISSIONS, need_of
from holdfast.server.stores.access import StoreAccess
from holdfast.server.stores.deliveries import Deliveries
from holdfast.server.stores.figures import Statistics, StatisticsFeed
from holdfast.server.stores.operations import InForce, StoreOperations
from holdfast.soundness import report_broken
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.pending import SET_APART_MAX
from holdfast.stores.service import StoreObserver, StoreService
from holdfast.stores.values.effects import Advise, Changed, Displaced, Effect, Withdrawn
from holdfast.wire.stores import Sample

IN_FLIGHT_BYTES_MAX: Final = 256 * 1_048_576
IN_FLIGHT_MAX: Final = 65_536
SILENT_EVERY_SECONDS: Final = 1.0
LINE_EVERY_SECONDS: Final = 10.0
"""About the parked messages of one durable."""

_log = structlog.get_logger("holdfast.stores")


class Socket(Protocol):
    """The WebSocket of one subscriber, as far as its host ends it."""

    def fail(self, error: HoldfastError) -> None:
        """End the connection because of an error."""

    def shut_down(self) -> None:
        """End the connection because the service stops."""


class OpenStores:
    """What there is while the stores are open."""

    __slots__ = ("access", "definitions", "deliveries", "operations", "service", "state", "statistics")

    def __init__(
        self, gateway: Gateway, service: StoreService, samples: Callable[[], list[Sample]] | None, every_seconds: float
    ) -> None:
        state = service.state
        self.service = service
        self.state = state
        self.definitions = InForce(state)
        access = self.access = StoreAccess(gateway.authenticator, lambda: state.definition.permissions)
        gateway.knows_user = lambda authorization: access.user_of(authorization) is not None
        self.deliveries = Deliveries(service, gateway.loop)
        self.operations = StoreOperations(service, self.deliveries, self.definitions)
        self.statistics = StatisticsFeed(service, gateway.loop, samples, every_seconds)


class StoreHost(StoreObserver):
    """The stores of one process, and who asks for them."""

    def __init__(
        self, gateway: Gateway, directory: str, *, request_bytes_max: int, statistics_message_seconds: float = 0.0
    ) -> None:
        self.directory = directory
        self.samples: Callable[[], list[Sample]] | None = None
        """Makes the numbers of ``/metrics``."""
        self._statistics_message_seconds = statistics_message_seconds
        self.request_bytes_max = request_bytes_max
        self.sockets: dict[Socket, None] = {}
        self.failed: asyncio.Future[HoldfastError] = gateway.loop.create_future()
        self.gateway = gateway
        self.current: OpenStores | None = None
        """What is open, None while nothing is."""
        self._parked: dict[tuple[str, str], tuple[float, int]] = {}
        """By durable: when the last line about its parked messages was written, and messages parked since."""
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self.suspended = False
        self._place: OpenPlace | None = None
        gateway.rights.also(lambda: None if self.current is None else self.current.state.definition.permissions)

    def opened(self, *, cluster: bool = False) -> OpenStores:
        """The open stores. ``cluster``: also while the cluster is suspended. Raises: Fenced, Unavailable."""
        opened = self.current
        if opened is None and self.gateway.service is not None:
            raise Unavailable(
                "the stores are not open yet",
                code=Code.OVERLOADED,
                retry_after_ms=NOT_LEADING_RETRY_MS,
                hint="another process may have them open, or their disk may be full: this service opens them as soon "
                "as it can, and its log has the reason",
            )
        if opened is None:
            raise self.gateway.not_leader()
        if self.gateway.draining:
            raise Unavailable("the service is stopping", code=Code.OVERLOADED, retry_after_ms=NOT_LEADING_RETRY_MS)
        if self.suspended and not cluster:
            raise Unavailable("the cluster is suspended", code=Code.NO_QUORUM, retry_after_ms=OVERLOADED_RETRY_AFTER_MS)
        return opened

    def scrape_problem(self, authorization: bytes | None) -> HoldfastError | None:
        """Why the caller may not see the metrics, which name the stores. ``server.tokens`` decide if set."""
        opened = self.current
        if opened is None or self.gateway.authenticator.required or not opened.state.definition.permissions.enabled:
            return None
        return opened.access.problem_with(authorization, need_of("GET", "/metrics").right_of(PERMISSIONS))

    @property
    def condition(self) -> str:
        """open, held (they are to be served here, and are not open yet) or suspended."""
        return "held" if self.current is None else "suspended" if self.suspended else "open"

    def open(self, service: StoreService) -> OpenStores:
        """Serve the stores of this service from now on. A suspension was one of the leadership before.

        While stores in files are open, their path is compared with their directory every second: one that was moved or
        replaced ends the process. Raises: Unavailable.
        """
        self.suspended = False
        self._place = None if service.lives_in_log else OpenPlace(service.directory)
        opened = self.current = OpenStores(self.gateway, service, self.samples, self._statistics_message_seconds)
        service.observer = self
        if service.disk_is_full:
            self.tell_disk()
        self.warn_about_open_log()
        self._expect_attached(opened)
        self._detach_silent()
        return opened

    @staticmethod
    def _expect_attached(opened: OpenStores) -> None:
        """Subscribers attached before a restart have their timeout to return."""
        for store, durable, subscriber in opened.state.subscribers():
            _, source = opened.state.find(store, durable)
            seconds = source.definition.subscriber_timeout_ms / 1000
            polls = isinstance(source, Consumption) and source.leases.of[subscriber].polls
            opened.deliveries.expect(store, durable, subscriber, seconds, polls=polls)

    def suspend(self) -> None:
        """Serve nothing more but the cluster's own routes, until ``resume`` or a restart."""
        self.suspended = True
        for socket in list(self.sockets):
            socket.fail(Unavailable("the cluster is suspended", code=Code.NO_QUORUM))

    def resume(self) -> None:
        """Serve everything again. Clients that waited come back by themselves."""
        self.suspended = False

    def tell_statistics(self, every_seconds: float) -> None:
        """Write statistics into the log lines from now on; 0 writes none."""
        if self.current is None or not every_seconds:
            return
        statistics = Statistics(self.gateway.loop.time())

        def tell() -> None:
            if self.current is not None:
                statistics.tell(self.current.service, self.gateway.loop.time())
                self._telling = self.gateway.loop.call_later(every_seconds, tell)

        self._telling = self.gateway.loop.call_later(every_seconds, tell)

    async def close(self) -> None:
        """Tell every subscriber, then answer what is under way and close the service."""
        opened, self.current = self.current, None
        for timer in (self._timer, self._telling):
            if timer is not None:
                timer.cancel()
        self._timer = self._telling = None
        if self._place is not None:
            self._place.close()
            self._place = None
        if opened is not None:
            for socket in list(self.sockets):
                socket.shut_down()
            stopping = Unavailable("the service is stopping", code=Code.OVERLOADED, retry_after_ms=NOT_LEADING_RETRY_MS)
            opened.deliveries.close(stopping)
            opened.statistics.close()
            self._closing = self.gateway.loop.create_task(opened.service.close())
        if self._closing is not None:
            # Stores that live in the log may wait for it: a caller that gives up leaves the rest to the next call.
            await asyncio.shield(self._closing)

    async def back_up(self, name: str) -> str:
        """Copy everything into the folder ``name`` next to the stores' directory. Returns its path.

        Raises: as the service's ``copy_files``, Conflict when the folder exists, InvalidRequest where the log has them.
        """
        service = self.opened(cluster=True).service
        if service.lives_in_log:
            raise InvalidRequest(
                "these stores live in the log, so a copy of the log has them",
                hint="`holdfast log mirror` or `holdfast log restore` copies the log",
            )
        target = await asyncio.to_thread(_place_for_backup, self.directory, name)
        await service.copy_files(target)
        return target

    # Admission

    def admit(self, size: int) -> None:
        """Admit one publish with a request body of ``size`` bytes, until ``settled``. Raises: Backpressure."""
        if self._in_flight >= IN_FLIGHT_MAX or self._in_flight_bytes >= IN_FLIGHT_BYTES_MAX:
            raise Backpressure(
                "the stores are full of unanswered publishes",
                retry_after_ms=OVERLOADED_RETRY_AFTER_MS,
                bytes_in_flight=self._in_flight_bytes,
                bytes_in_flight_max=IN_FLIGHT_BYTES_MAX,
            )
        self._in_flight += 1
        self._in_flight_bytes += size

    def settled(self, size: int) -> None:
        """A publish of ``size`` bytes has its answer."""
        self._in_flight -= 1
        self._in_flight_bytes -= size
        assert self._in_flight >= 0, "a publish is completed once"

    # From the service

    def ready(self, store: str, durable: str) -> None:
        """See ``StoreObserver``."""
        if self.current is not None:
            self.current.deliveries.ready(store, durable)

    def before_lapse(self, now_ms: int) -> None:
        """See ``StoreObserver``."""
        if self.current is not None:
            self.current.deliveries.before_lapse(now_ms)

    def contended(self, now_ms: int) -> list[tuple[str, str]]:
        """See ``StoreObserver``."""
        return [] if self.current is None else self.current.deliveries.contended(now_ms)

    def carry_out(self, effect: Effect) -> None:
        """See ``StoreObserver``."""
        opened = self.current
        if opened is None:
            return
        if isinstance(effect, Advise):
            deliveries = opened.deliveries
            deliveries.advise(effect.store, effect.durable, effect.subscriber, effect.kind, dict(effect.facts))
            if effect.kind == "messages_parked":
                self._tell_parked(effect.store, effect.durable, dict(effect.facts))
            if effect.kind == "durable_deleted":
                gone = NotFound("the durable was deleted", store=effect.store, durable=effect.durable)
                deliveries.dropped(effect.store, effect.durable, gone)
        elif isinstance(effect, Withdrawn):
            opened.deliveries.withdrawn(effect)
        elif isinstance(effect, Displaced) and effect.cause == "lapsed":
            opened.deliveries.displace(effect.store, effect.durable, effect.subscriber, effect.cause)
        elif isinstance(effect, Changed):
            opened.deliveries.changed(effect.store, effect.map, effect.changes)

    def _tell_parked(self, store: str, durable: str, facts: Mapping[str, object]) -> None:
        """These messages were parked. ``facts`` are those of the advisory."""
        now_seconds = self.gateway.loop.time()
        written_seconds, since = self._parked.get((store, durable), (-LINE_EVERY_SECONDS, 0))
        messages, parked = facts["messages"], facts["parked"]
        assert isinstance(messages, int) and isinstance(parked, int), "the advisory counts messages"
        since += messages
        if now_seconds - written_seconds < LINE_EVERY_SECONDS:
            self._parked[store, durable] = written_seconds, since
            return
        self._parked[store, durable] = now_seconds, 0
        if parked >= SET_APART_MAX:
            _log.error(
                "delivery_stopped",
                store=store,
                durable=durable,
                parked=parked,
                parked_max=SET_APART_MAX,
                hint="holdfast stores redeliver or purge makes room; until then nothing new is delivered",
            )
            return
        _log.warning(
            "messages_parked",
            store=store,
            durable=durable,
            messages=since,
            seq=facts["seq"],
            parked=parked,
            hint="holdfast stores redeliver puts them back; a dead_letter_store would take them",
        )

    def fail(self, error: BaseException) -> None:
        """The stores can go on no more: the process is to end, at once where it is a bug."""
        is_known = isinstance(error, HoldfastError | OSError | sqlite3.OperationalError)
        if not is_known or isinstance(error, InternalError):
            report_broken(self.gateway.loop, error)
        reason = error if isinstance(error, HoldfastError) else _unnamed(error)
        _log.error("stores_failed", error=reason.statement(), code=str(reason.code), hint=reason.hint or None)
        if not self.failed.done():
            self.failed.set_result(reason)

    def tell_disk(self) -> None:
        """See ``StoreObserver``."""
        opened = self.current
        if opened is None:
            return
        if opened.service.disk_is_full:
            _log.warning(
                "stores_disk_full",
                directory=opened.service.directory,
                kept_back_bytes=opened.service.kept_back_bytes,
                hint="free some space: publishes are refused until then, and continue by themselves",
            )
        else:
            _log.info("stores_disk_has_room", directory=opened.service.directory)

    def warn_about_open_log(self) -> None:
        """Log that permissions of the stores leave the routes of the log open, where the service has no tokens."""
        opened = self.current
        if opened is None or self.gateway.authenticator.required or not opened.state.definition.permissions.enabled:
            return
        _log.warning(
            "permissions_without_tokens",
            hint="every caller may read and change the log and administer the service: set server.tokens_file",
        )

    def _detach_silent(self) -> None:
        opened = self.current
        if opened is None:
            return
        if self._place is not None and (problem := self._place.problem()) is not None:
            self.fail(problem)
            return
        silent = opened.deliveries.detach_silent()
        if silent:
            _log.info("subscribers_timed_out", subscribers=silent)
        self._timer = self.gateway.loop.call_later(SILENT_EVERY_SECONDS, self._detach_silent)


def _place_for_backup(directory: str, name: str) -> str:
    target = os.path.join(f"{directory}-backups", name)
    if os.path.lexists(target):
        raise Conflict("there is such a backup already", code=Code.ALREADY_OPEN, path=target)
    return target


def _unnamed(error: BaseException) -> HoldfastError:
    if isinstance(error, OSError):
        return Unavailable("the stores' log cannot be written", code=Code.STORE_UNAVAILABLE, cause=str(error))
    if isinstance(error, sqlite3.OperationalError):
        return Unavailable("the stores' index cannot be read or written", code=Code.STORE_UNAVAILABLE, cause=str(error))
    return InternalError("the stores have failed", cause=f"{type(error).__name__}: {error}")


HINT: Final = "what was confirmed is in the directory that was open: put that one back at its path, then start again"


class OpenPlace:
    """The directory of stores in files, as it was opened: whether its path still names it. The stores write through
    open files, which follow a move. It is held open, so that no other directory gets its inode.

    Raises: Unavailable (``store_unfit``) where the file system has no lasting inodes, or refuses.
    """

    def __init__(self, directory: str) -> None:
        self._files = PosixFiles()
        self._directory = directory
        try:
            self._handle, self._identity = settled(self._files, directory)
        except OSError as error:
            raise Unavailable(
                f"the stores cannot be opened: {error.strerror or error}", code=Code.STORE_UNFIT, path=directory
            ) from error

    def problem(self) -> HoldfastError | None:
        """What stands at the path instead, if anything does. Cost: one ``stat``."""
        try:
            now = self._files.identity_at(self._directory)
        except OSError:
            now = None
        if now == self._identity:
            return None
        text = str(replaced(self._directory, now).strerror)
        return CorruptData(text, code=Code.DIRECTORY_REPLACED, hint=HINT, directory=self._directory)

    def close(self) -> None:
        """Give the directory back."""
        self._files.close(self._handle)
