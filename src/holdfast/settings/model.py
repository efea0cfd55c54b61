"""Every configuration key: its type, default, rule and reason; and the frozen settings made from them.

Owns: the table ``KEYS`` (from which the parser, ``holdfast check-config`` and the reference page are made), the
defaults that depend on other keys, and the rules between keys. Does not own: where values come from (``load``).

Failure model: pure. ``build`` returns settings and warnings, or the list of everything that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar, cast
from urllib.parse import unquote, urlsplit

from holdfast.settings import parse
from holdfast.settings.parse import Token

__all__ = [
    "KEYS",
    "CommitSettings",
    "Key",
    "LeaderSettings",
    "LogSettings",
    "LoggingSettings",
    "PersistSettings",
    "ServerSettings",
    "Settings",
    "StoresSettings",
    "SubscriptionSettings",
    "ViewSettings",
    "build",
    "depends_on_log_url",
]

T = TypeVar("T")
OF_THIS_MACHINE: Final = ("unix:", "127.", "localhost:", "[::1]:")  # how addresses begin that others cannot ask
KIBI: Final = 1 << 10
MEBI: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The HTTP front."""

    listen: tuple[str, ...]
    advertised_address: str
    max_request_size_bytes: int
    max_connections: int
    max_in_flight_commits: int
    max_in_flight_bytes: int
    client_commits_per_second_max: int
    drain_seconds_max: float
    tls_certificate: str | None
    tls_key: str | None
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Where the log is. ``init_implied``: an empty one may be initialised without being asked. ``segments_url``: a
    table of its segments, which history is read from. ``scrub_days`` None: the log is not scrubbed."""

    url: str
    segments_url: str | None
    init_implied: bool
    scrub_days: float | None
    scrub_bytes_per_second: int

    @property
    def scheme(self) -> str:
        """The kind of store: file, s3, gs, az or memory."""
        return urlsplit(self.url).scheme


@dataclass(frozen=True, slots=True)
class PersistSettings:
    """Forming batches and making them durable. ``None`` means unlimited, or off."""

    batch_timeout_ms: float
    batch_timeout_max_ms: float
    batch_size_threshold: int
    put_requests_per_second_max: int | None
    max_in_flight_requests: int
    target_pool_size: int
    request_timeout_ms: float
    max_retry_attempts: int | None
    give_up_after_seconds: float
    retry_base_delay_ms: float
    retry_max_delay_ms: float
    hedge_after_percentile: float | None


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """Liveness between processes; safety never depends on it."""

    silence_ms: float
    heartbeat_ms: float


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """The embedded view behind ``/v1/keys`` and ``/v1/range``."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """What a commit may ask for, and how far back it is judged."""

    min_request_id_length: int
    conflict_window_seconds: float
    conflict_window_bytes: int
    max_operations: int
    max_preconditions: int
    stalled_after_seconds: float


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """Streams of events."""

    max_buffer_size_bytes: int
    keepalive_interval_seconds: float


@dataclass(frozen=True, slots=True)
class StoresSettings:
    """The message stores. ``directory`` None: none are hosted, whatever ``enabled`` says."""

    enabled: bool
    directory: str | None
    definitions: str | None
    max_request_size_bytes: int
    page_size_bytes: int
    memory_bytes: int
    statistics_seconds: float
    clock: Literal["steady", "wall"]

    @property
    def hosted(self) -> str | None:
        """The directory of the stores that this service hosts, None for none."""
        return self.directory if self.enabled else None


@dataclass(frozen=True, slots=True)
class LoggingSettings:
    """The service's own log lines."""

    format: Literal["logfmt", "json"]
    level: Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a service runs with. Frozen, and checked as a whole before anything is opened."""

    server: ServerSettings
    log: LogSettings
    persist: PersistSettings
    leader: LeaderSettings
    view: ViewSettings
    commit: CommitSettings
    subscription: SubscriptionSettings
    stores: StoresSettings
    logging: LoggingSettings


@dataclass(frozen=True, slots=True)
class Key(Generic[T]):
    """One configuration key. Where the default depends on other keys, ``build`` decides it by ``default_rule``."""

    name: str
    parse: Callable[[object], T]
    default: T | None
    rule: str
    default_rule: str | None = None
    secret: bool = False

    @property
    def environment_name(self) -> str:
        """``HOLDFAST_SECTION__KEY``."""
        return "HOLDFAST_" + self.name.replace(".", "__").upper()


POSITIVE: Final = parse.number(0, low_included=False)

LISTEN: Final[Key[tuple[str, ...]]] = Key(
    "server.listen", parse.listen_addresses, ("127.0.0.1:8080",), "TCP or unix:PATH, several allowed"
)
ADVERTISED: Final = Key(
    "server.advertised_address",
    parse.optional_text,
    None,
    "where other processes ask whether this leader is alive; at most 256 bytes",
    default_rule="the first of server.listen",
)
REQUEST_SIZE: Final = Key(
    "server.max_request_size_bytes", parse.size(1, 256 * MEBI), MEBI, "> 0, at most 256 MiB; answered 413 above"
)
CONNECTIONS: Final = Key("server.max_connections", parse.whole(0), 50_000, ">= 0; 0 is unlimited")
IN_FLIGHT_COMMITS: Final = Key(
    "server.max_in_flight_commits", parse.whole(1), 65_536, ">= 1 taken in and not answered; answered 503 above"
)
IN_FLIGHT_BYTES: Final = Key(
    "server.max_in_flight_bytes", parse.size(1), 256 * MEBI, "> 0 of requests not answered; answered 503 above"
)
CLIENT_RATE: Final = Key(
    "server.client_commits_per_second_max",
    parse.whole(0),
    0,
    ">= 0 for each client; 0 is off; answered 429 above, streams are slowed",
)
DRAIN: Final = Key(
    "server.drain_seconds_max", POSITIVE, 30.0, "> 0; every stop ends within it; what is not durable by then is unknown"
)
TLS_CERTIFICATE: Final = Key(
    "server.tls_certificate", parse.optional_text, None, "PEM file; together with server.tls_key"
)
TLS_KEY: Final = Key("server.tls_key", parse.optional_text, None, "PEM file; together with server.tls_certificate")
TOKENS: Final[Key[tuple[Token, ...]]] = Key(
    "server.tokens", parse.tokens, (), "ROLE:TOKEN, the role read, write or admin; none: no checks", secret=True
)
URL: Final = Key(
    "log.url",
    parse.log_url,
    None,
    "file:, s3:, az: or memory:; no credentials in it",
    default_rule="holdfast-data under the working directory",
)
SEGMENTS: Final = Key(
    "log.segments_url",
    parse.optional_table_url,
    None,
    "a table of the log's segments, file:, s3: or az:; subscribers and the view read history from it",
)
SCRUB_DAYS: Final = Key(
    "log.scrub_days",
    parse.off_or_number(1 / 24, 3_650),
    None,
    "1/24..3650 or off: in this time every object of the log is read once and checked",
    default_rule="7 on file:, off elsewhere",
)
SCRUB_RATE: Final = Key(
    "log.scrub_bytes_per_second", parse.size(1 << 16), 4 * MEBI, ">= 64 KiB; a small object counts as 64 KiB"
)
BATCH_TIMEOUT: Final = Key("persist.batch_timeout_ms", POSITIVE, None, "> 0", default_rule="1 on file:, 5 elsewhere")
BATCH_TIMEOUT_MAX: Final = Key("persist.batch_timeout_max_ms", POSITIVE, 50.0, ">= persist.batch_timeout_ms")
BATCH_SIZE: Final = Key(
    "persist.batch_size_threshold", parse.size(1, 1 << 30), MEBI, "> 0, at most 1 GiB; the last commit may exceed it"
)
PUTS_PER_SECOND: Final = Key(
    "persist.put_requests_per_second_max", parse.unlimited_or_whole(1), None, ">= 1 or unlimited"
)
IN_FLIGHT: Final = Key("persist.max_in_flight_requests", parse.whole(1, 1000), 50, "1..1000 slots unacknowledged")
POOL: Final = Key(
    "persist.target_pool_size",
    parse.whole(1),
    None,
    ">= persist.max_in_flight_requests; a warning above twice that",
    default_rule="2 x persist.max_in_flight_requests",
)
REQUEST_TIMEOUT: Final = Key(
    "persist.request_timeout_ms", POSITIVE, 10_000.0, "> 0; a request without an answer is sent again"
)
RETRIES: Final = Key(
    "persist.max_retry_attempts", parse.unlimited_or_whole(0), None, ">= 0 or unlimited; 0 disables retries"
)
GIVE_UP: Final = Key("persist.give_up_after_seconds", POSITIVE, 60.0, "> 0; then the leader steps down")
RETRY_BASE: Final = Key("persist.retry_base_delay_ms", POSITIVE, 100.0, "> 0")
RETRY_MAX: Final = Key("persist.retry_max_delay_ms", POSITIVE, 5_000.0, ">= persist.retry_base_delay_ms")
HEDGE: Final = Key(
    "persist.hedge_after_percentile",
    parse.off_or_number(50, 99.9),
    None,
    "50..99.9 or off",
    default_rule="off on file:, 95 elsewhere",
)
SILENCE: Final = Key("leader.silence_ms", POSITIVE, 2_000.0, "> 2 x leader.heartbeat_ms")
HEARTBEAT: Final = Key("leader.heartbeat_ms", POSITIVE, 500.0, "< leader.silence_ms / 2")
VIEW: Final = Key("view.enabled", parse.switch, None, "true or false", default_rule="on for file: and memory:")
REQUEST_ID: Final = Key("commit.min_request_id_length", parse.whole(1, 255), 20, "1..255 characters")
WINDOW_SECONDS: Final = Key(
    "commit.conflict_window_seconds", POSITIVE, 60.0, "> 0; this or the bytes, whichever is first"
)
WINDOW_BYTES: Final = Key("commit.conflict_window_bytes", parse.size(1), 256 * MEBI, "> 0; this or the seconds")
OPERATIONS: Final = Key("commit.max_operations", parse.whole(1), 10_000, ">= 1 in one commit; answered 413 above")
PRECONDITIONS: Final = Key("commit.max_preconditions", parse.whole(1), 10_000, ">= 1 in one commit; answered 413 above")
STALLED: Final = Key(
    "commit.stalled_after_seconds",
    POSITIVE,
    3.0,
    "> 0; while the oldest batch waits longer for the store, commits are answered 503",
)
STREAM_BUFFER: Final = Key(
    "subscription.max_buffer_size_bytes", parse.size(1), 10 * MEBI, "> 0; a reader further behind is closed"
)
KEEPALIVE: Final = Key("subscription.keepalive_interval_seconds", POSITIVE, 30.0, "> 0")
STORES: Final = Key("stores.enabled", parse.switch, True, "true or false; needs stores.directory")
STORES_DIRECTORY: Final = Key(
    "stores.directory",
    parse.optional_text,
    None,
    "a directory on a local disk, made where it is missing",
    default_rule="the log's directory with -stores behind it for file:, none elsewhere",
)
STORES_DEFINITIONS: Final = Key(
    "stores.definitions",
    parse.optional_text,
    None,
    "a JSON, TOML or YAML file: stores and durables, made or changed at every start; what it does not name stays",
)
STORES_REQUEST: Final = Key(
    "stores.max_request_size_bytes", parse.size(1), 16 * MEBI, "> 0; a request to the stores above is answered 413"
)
STORES_PAGE: Final = Key(
    "stores.page_size_bytes", parse.size(MEBI), 64 * MEBI, ">= 1 MiB; space is taken and given back by pages"
)
STORES_MEMORY: Final = Key(
    "stores.memory_bytes",
    parse.size(8 * MEBI),
    128 * MEBI,
    ">= 8 MiB held of messages and counts, whatever the backlog; what is under way comes on top",
)
STORES_STATISTICS: Final = Key(
    "stores.statistics_seconds", parse.number(0), 60.0, ">= 0 between lines of statistics in the log; 0 is off"
)
STORES_CLOCK: Final = Key(
    "stores.clock",
    parse.choice("steady", "wall"),
    "steady",
    "steady: a start goes on from the last time known; wall: it takes the machine's time, and what ended by it ends",
)
LOG_FORMAT: Final = Key("logging.format", parse.choice("logfmt", "json"), "logfmt", "logfmt or json")
LOG_LEVEL: Final = Key(
    "logging.level", parse.choice("debug", "info", "warning", "error"), "info", "debug, info, warning or error"
)

KEYS: Final[tuple[Key[object], ...]] = cast(
    "tuple[Key[object], ...]",
    (
        LISTEN, ADVERTISED, REQUEST_SIZE, CONNECTIONS, IN_FLIGHT_COMMITS, IN_FLIGHT_BYTES, CLIENT_RATE, DRAIN,
        TLS_CERTIFICATE, TLS_KEY, TOKENS,
        URL,
        SEGMENTS, SCRUB_DAYS, SCRUB_RATE,
        BATCH_TIMEOUT, BATCH_TIMEOUT_MAX, BATCH_SIZE, PUTS_PER_SECOND, IN_FLIGHT, POOL, REQUEST_TIMEOUT, RETRIES,
        GIVE_UP, RETRY_BASE, RETRY_MAX, HEDGE,
        SILENCE, HEARTBEAT,
        VIEW,
        REQUEST_ID, WINDOW_SECONDS, WINDOW_BYTES, OPERATIONS, PRECONDITIONS, STALLED,
        STREAM_BUFFER, KEEPALIVE,
        STORES, STORES_DIRECTORY, STORES_DEFINITIONS, STORES_REQUEST, STORES_PAGE, STORES_MEMORY, STORES_STATISTICS,
        STORES_CLOCK,
        LOG_FORMAT, LOG_LEVEL,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The parsed values that some source gave; every other key falls back to its default."""

    values: Mapping[str, object]

    def get(self, key: Key[T], default: T | None = None) -> T:
        fallback = key.default if default is None else default
        return cast(T, self.values.get(key.name, fallback))


def depends_on_log_url(url: str) -> tuple[float, float | None, bool]:
    """The defaults of batch_timeout_ms, hedge_after_percentile and view.enabled for a kind of store.

    A directory answers in about a millisecond and loses no request on the way, so waiting and hedging buy nothing.
    """
    scheme = urlsplit(url).scheme
    return (1.0, None, True) if scheme == "file" else (5.0, 95.0, scheme == "memory")


def stores_beside(url: str) -> str | None:
    """Where the stores are by default: beside the log, whose own directory holds nothing but the log.

    >>> stores_beside("file:///var/lib/holdfast"), stores_beside("s3://bucket/log")
    ('/var/lib/holdfast-stores', None)
    """
    parts = urlsplit(url)
    return unquote(parts.path).rstrip("/") + "-stores" if parts.scheme == "file" else None


def _server_settings(chosen: _Chosen, listen: tuple[str, ...]) -> ServerSettings:
    return ServerSettings(
        listen=listen,
        advertised_address=chosen.get(ADVERTISED) or listen[0],
        max_request_size_bytes=chosen.get(REQUEST_SIZE),
        max_connections=chosen.get(CONNECTIONS),
        max_in_flight_commits=chosen.get(IN_FLIGHT_COMMITS),
        max_in_flight_bytes=chosen.get(IN_FLIGHT_BYTES),
        client_commits_per_second_max=chosen.get(CLIENT_RATE),
        drain_seconds_max=chosen.get(DRAIN),
        tls_certificate=chosen.get(TLS_CERTIFICATE),
        tls_key=chosen.get(TLS_KEY),
        tokens=chosen.get(TOKENS),
    )


def _log_settings(chosen: _Chosen, url: str, default_url: str) -> LogSettings:
    scheme = urlsplit(url).scheme
    return LogSettings(
        url,
        chosen.get(SEGMENTS),
        url == default_url or scheme == "memory",
        scrub_days=chosen.get(SCRUB_DAYS, 7.0 if scheme == "file" else None),
        scrub_bytes_per_second=chosen.get(SCRUB_RATE),
    )


def build(values: Mapping[str, object], *, default_url: str) -> tuple[Settings, tuple[str, ...], tuple[str, ...]]:
    """The settings from parsed ``values`` by key name, then warnings, then problems (a problem: do not use it)."""
    chosen = _Chosen(values)
    url = chosen.get(URL, default_url)
    batch_timeout_ms, hedge, view = depends_on_log_url(url)
    listen = chosen.get(LISTEN)
    in_flight = chosen.get(IN_FLIGHT)
    settings = Settings(
        server=_server_settings(chosen, listen),
        log=_log_settings(chosen, url, default_url),
        persist=PersistSettings(
            batch_timeout_ms=chosen.get(BATCH_TIMEOUT, batch_timeout_ms),
            batch_timeout_max_ms=chosen.get(BATCH_TIMEOUT_MAX),
            batch_size_threshold=chosen.get(BATCH_SIZE),
            put_requests_per_second_max=chosen.get(PUTS_PER_SECOND),
            max_in_flight_requests=in_flight,
            target_pool_size=chosen.get(POOL, 2 * in_flight),
            request_timeout_ms=chosen.get(REQUEST_TIMEOUT),
            max_retry_attempts=chosen.get(RETRIES),
            give_up_after_seconds=chosen.get(GIVE_UP),
            retry_base_delay_ms=chosen.get(RETRY_BASE),
            retry_max_delay_ms=chosen.get(RETRY_MAX),
            hedge_after_percentile=chosen.get(HEDGE, hedge),
        ),
        leader=LeaderSettings(silence_ms=chosen.get(SILENCE), heartbeat_ms=chosen.get(HEARTBEAT)),
        view=ViewSettings(enabled=chosen.get(VIEW, view)),
        commit=CommitSettings(
            min_request_id_length=chosen.get(REQUEST_ID),
            conflict_window_seconds=chosen.get(WINDOW_SECONDS),
            conflict_window_bytes=chosen.get(WINDOW_BYTES),
            max_operations=chosen.get(OPERATIONS),
            max_preconditions=chosen.get(PRECONDITIONS),
            stalled_after_seconds=chosen.get(STALLED),
        ),
        subscription=SubscriptionSettings(
            max_buffer_size_bytes=chosen.get(STREAM_BUFFER), keepalive_interval_seconds=chosen.get(KEEPALIVE)
        ),
        stores=StoresSettings(
            enabled=chosen.get(STORES),
            directory=chosen.get(STORES_DIRECTORY) or stores_beside(url),
            definitions=chosen.get(STORES_DEFINITIONS),
            max_request_size_bytes=chosen.get(STORES_REQUEST),
            page_size_bytes=chosen.get(STORES_PAGE),
            memory_bytes=chosen.get(STORES_MEMORY),
            statistics_seconds=chosen.get(STORES_STATISTICS),
            clock=cast('Literal["steady", "wall"]', chosen.get(STORES_CLOCK)),
        ),
        logging=LoggingSettings(
            format=cast('Literal["logfmt", "json"]', chosen.get(LOG_FORMAT)),
            level=cast('Literal["debug", "info", "warning", "error"]', chosen.get(LOG_LEVEL)),
        ),
    )
    return settings, _warnings(settings), _problems(settings)


def _problems(settings: Settings) -> tuple[str, ...]:
    """The rules between keys, each with its reason."""
    server, persist, leader, stores = settings.server, settings.persist, settings.leader, settings.stores
    rules = (
        (
            stores.definitions is None or stores.hosted is not None,
            "stores.definitions needs stores that are hosted: set stores.directory, and stores.enabled to true",
        ),
        (
            (server.tls_certificate is None) == (server.tls_key is None),
            "server.tls_certificate and server.tls_key must be given together: one is useless without the other",
        ),
        (
            len(server.advertised_address.encode()) <= parse.ADDRESS_BYTES_MAX,
            "server.advertised_address must fit the 256 bytes that a batch's header keeps for it",
        ),
        (
            persist.batch_timeout_max_ms >= persist.batch_timeout_ms,
            (
                f"persist.batch_timeout_max_ms ({persist.batch_timeout_max_ms:g}) must be at least "
                f"persist.batch_timeout_ms ({persist.batch_timeout_ms:g}): the adaptive "
                "interval moves between them"
            ),
        ),
        (
            persist.target_pool_size >= persist.max_in_flight_requests,
            (
                f"persist.target_pool_size ({persist.target_pool_size}) must be at least "
                f"persist.max_in_flight_requests ({persist.max_in_flight_requests}): otherwise a batch "
                "that may be sent waits for a connection"
            ),
        ),
        (
            persist.retry_max_delay_ms >= persist.retry_base_delay_ms,
            (
                f"persist.retry_max_delay_ms ({persist.retry_max_delay_ms:g}) must be at least "
                f"persist.retry_base_delay_ms ({persist.retry_base_delay_ms:g}): the delay grows from one to the other"
            ),
        ),
        (
            leader.heartbeat_ms < leader.silence_ms / 2,
            (
                f"leader.heartbeat_ms ({leader.heartbeat_ms:g}) must be below half of leader.silence_ms "
                f"({leader.silence_ms:g}): one lost heartbeat must not look like a dead leader"
            ),
        ),
    )
    return tuple(text for holds, text in rules if not holds)


def _warnings(settings: Settings) -> tuple[str, ...]:
    """What is allowed and probably not meant."""
    server, persist = settings.server, settings.persist
    loopback = all(a.startswith(OF_THIS_MACHINE) for a in server.listen)
    advertised = server.advertised_address.removeprefix("http://").removeprefix("https://")
    cautions = (
        (
            persist.target_pool_size > 2 * persist.max_in_flight_requests,
            (
                f"persist.target_pool_size ({persist.target_pool_size}) is above twice persist.max_in_flight_requests "
                f"({persist.max_in_flight_requests}): the connections beyond that stay idle"
            ),
        ),
        (
            persist.request_timeout_ms >= persist.give_up_after_seconds * 1000,
            "persist.request_timeout_ms is not below persist.give_up_after_seconds: one lost answer ends the leader",
        ),
        (
            advertised.rpartition(":")[0] in ("0.0.0.0", "[::]"),
            f"server.advertised_address is {server.advertised_address}, which nobody can ask: name a reachable one",
        ),
        (
            advertised.startswith(OF_THIS_MACHINE) and settings.log.scheme not in ("file", "memory"),
            (
                f"server.advertised_address is {server.advertised_address}, another place on each machine that shares "
                "the log: from elsewhere this leader cannot be asked, and is taken over once idle for leader.silence_ms"
            ),
        ),
        (
            not loopback and not server.tokens,
            "server.listen is open to other machines and server.tokens is empty: anybody may commit",
        ),
        (
            bool(server.tokens) and not loopback and server.tls_certificate is None,
            "server.tokens are sent in clear: set server.tls_certificate and server.tls_key, or end TLS in front",
        ),
        (
            settings.log.scheme == "gs",
            "log.url is gs:, which is not tested: no emulator speaks what its client does; keep a copy of the data",
        ),
        (settings.log.scheme == "memory", "log.url is memory: and everything is gone when the process ends"),
    )
    return tuple(text for applies, text in cautions if applies)
