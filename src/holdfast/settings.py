"""Settings of a service: every key with its default and rule, where each value came from, and why a value is refused.

Read the section structs first: each key is one annotated field, and ``KEYS`` is made from them. A flag wins over the
environment, the environment over the file, the file over the default. A configuration with any problem
is refused before anything is opened, and one error names every problem. One module because a key, its rule and its
source are read together.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar, cast, get_args, get_type_hints
from urllib.parse import unquote, urlsplit

from holdfast.browsers import listed_hosts
from holdfast.errors import Code, InvalidRequest
from holdfast.files.documents import YAML_ENDINGS, Document, read_document
from holdfast.files.file_urls import path_of
from holdfast.values import LOOPBACK, sign_interval_ms

Role = Literal["read", "write", "job", "admin"]
Parse = Callable[[object], object]
Source = Literal["default", "file", "env", "flag"]
T = TypeVar("T")
MEBI: Final = 1 << 20
ADDRESS_BYTES_MAX: Final = 256
"""The header of a batch has this much room for an address."""
ETCD_REQUEST_BYTES_MAX: Final = 24 << 20
"""A batch of one request stays far below the largest object on etcd."""
CONFIGURATION_FILES: Final = ("holdfast.toml", *(f"holdfast{ending}" for ending in YAML_ENDINGS))
"""The files looked for in the working directory. Two of them are an error."""
ENVIRONMENT_PREFIX: Final = "HOLDFAST_"
_CREDENTIALS: Final = re.compile(r"//[^/]*@")
_SIZE: Final = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB)?", re.ASCII)
_UNITS: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SWITCH: Final = {
    **dict.fromkeys(("true", "on", "yes", "1"), True),
    **dict.fromkeys(("false", "off", "no", "0"), False),
}


# -- values: each parser returns the typed value, or raises ValueError with a text that says which values fit ----------


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token and the role it gives. The token itself is never shown."""

    role: Role
    token: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.role}:***"


def _number(low: float, high: float = math.inf, *, low_included: bool = True) -> Callable[[object], float]:
    """A finite number; the upper bound is included."""
    rule = f"a number {'>=' if low_included else '>'} {low:g}" + (f" and <= {high:g}" if high < math.inf else "")

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(rule)
        try:
            parsed = float(value)
        except (ValueError, OverflowError):
            raise ValueError(rule) from None
        if not math.isfinite(parsed) or parsed > high or parsed < low or (parsed == low and not low_included):
            raise ValueError(rule)
        return parsed

    return parse


def _in_bounds(value: object, low: int, high: int | None, rule: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise ValueError(rule)
    return value


def _whole(low: int, high: int | None = None) -> Callable[[object], int]:
    """A whole number; both bounds are included."""
    rule = f"a whole number {low}..{high}" if high is not None else f"a whole number >= {low}"

    def parse(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?\d[\d_,]*", value.strip(), re.ASCII):
            value = int(value.replace("_", "").replace(",", ""))
        return _in_bounds(value, low, high, rule)

    return parse


def _size(low: int, high: int | None = None) -> Callable[[object], int]:
    """A number of bytes, or text with B, KiB, MiB or GiB; both bounds are included."""
    bounds = f">= {low}" if high is None else f"{low}..{high}"
    rule = f'a number of bytes {bounds}, or text such as "256 MiB"'

    def parse(value: object) -> int:
        if isinstance(value, str):
            match = _SIZE.fullmatch(value.strip().replace(",", "").replace("_", ""))
            if match is None:
                raise ValueError(rule)
            value = int(match[1]) * _UNITS[match[2] or ""]
        return _in_bounds(value, low, high, rule)

    return parse


def _or_word(word: str, parse: Callable[[object], T]) -> Callable[[object], T | None]:
    """None for ``word`` (for ``off`` also false), otherwise what ``parse`` returns."""

    def parse_word(value: object) -> T | None:
        if value == word or (word == "off" and value is False):
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f'{error} or "{word}"') from None

    return parse_word


def _switch(value: object) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _SWITCH:
        return _SWITCH[value.lower()]
    raise ValueError("true or false")


def _choice(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise ValueError("one of " + ", ".join(words))

    return parse


def _optional_text(value: object) -> str | None:
    """Text; the empty text means none, so that an environment variable can remove a value."""
    if not isinstance(value, str):
        raise ValueError("text")
    return value or None


def _texts(value: object, rule: str) -> list[str]:
    """A TOML array of texts, or one text with commas."""
    if isinstance(value, str):
        return [item for part in value.split(",") if (item := part.strip())]
    if isinstance(value, list | tuple):
        items = cast("list[object] | tuple[object, ...]", value)
        texts = [item for item in items if isinstance(item, str)]
        if len(texts) == len(items):
            return texts
    raise ValueError(rule)


def _listen_addresses(value: object) -> tuple[str, ...]:
    """At least one address, each ``HOST:PORT`` (an IPv6 host in brackets) or ``unix:PATH``."""
    rule = 'addresses such as "127.0.0.1:8080", "[::1]:8080" or "unix:/run/holdfast.sock"'
    addresses = tuple(dict.fromkeys(_texts(value, rule)))
    if not addresses:
        raise ValueError(rule)
    for address in addresses:
        if len(address.encode()) > ADDRESS_BYTES_MAX:
            raise ValueError(f"addresses of at most {ADDRESS_BYTES_MAX} bytes")
        if address.startswith("unix:"):
            if len(address) == len("unix:"):
                raise ValueError(rule)
            continue
        host, colon, port = address.rpartition(":")
        bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
        if not colon or not host or bare_ipv6 or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(rule)
    return addresses


def _hosts(value: object) -> tuple[str, ...]:
    """Names of hosts, each with or without a port."""
    return listed_hosts(_texts(value, 'names such as "log.example" or "app.example:3000"'))


def _mode(value: object) -> int:
    """The mode of a socket, in octal digits as text; read and write alone count there.

    >>> oct(_mode("0660")), oct(_mode("600"))
    ('0o660', '0o600')
    """
    if isinstance(value, str) and re.fullmatch(r"0?6[06]{2}", value, re.ASCII):
        return int(value, 8)
    raise ValueError('octal digits as text, "0600", "0660" or "0666"')


def _tokens(value: object) -> tuple[Token, ...]:
    """Bearer tokens, each ``ROLE:TOKEN``. Errors never repeat a token."""
    rule = 'tokens such as "admin:SECRET"; the roles are read, write, job and admin'
    tokens: dict[str, Token] = {}
    texts = _texts(value, rule)
    if isinstance(value, str) and not texts:
        # A secret that was not filled in must not open the service to everyone.
        raise ValueError(f"{rule}; to accept every request leave the key out")
    for text in texts:
        role, _, token = text.partition(":")
        printable = token.isascii() and token.isprintable() and " " not in token
        if role not in get_args(Role) or not printable or len(token) < 16:
            raise ValueError(f"{rule}; a token has at least 16 printable characters and no space")
        if token in tokens:
            raise ValueError("each token once")
        tokens[token] = Token(cast(Role, role), token)
    return tuple(tokens.values())


def _log_url(value: object) -> str:
    """The address of a log: ``file:///absolute/path``, ``s3://bucket/prefix``, ``az:``, ``etcd:`` or ``memory:``."""
    rule = "one of file:///var/lib/holdfast, s3://bucket/prefix, az://container/prefix, etcd://host:port/log, memory:"
    if not isinstance(value, str):
        raise ValueError(rule)
    parts = urlsplit(value)
    if parts.scheme not in ("file", "s3", "gs", "az", "etcd", "memory"):
        raise ValueError(rule)
    if parts.username or parts.password:
        raise ValueError(f"{rule}; credentials come from the environment, never from the URL")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise ValueError("a file URL with an absolute path, such as file:///var/lib/holdfast")
    if parts.scheme in ("s3", "gs", "az") and not parts.netloc:
        raise ValueError(f"{rule}; the bucket is missing")
    if parts.scheme == "etcd" and (not parts.netloc or not parts.path.strip("/")):
        raise ValueError("the members of a cluster and a prefix, such as etcd://a:2379,b:2379,c:2379/log")
    return value


def _optional_table_url(value: object) -> str | None:
    """The address of a table: a log's address, but not in memory or on etcd. The empty text means none."""
    if value == "":
        return None
    url = _log_url(value)
    if urlsplit(url).scheme in ("memory", "etcd"):
        raise ValueError("one of file:///lake/segments, s3://bucket/prefix, az://container/prefix")
    return url


_POSITIVE: Final = _number(0, low_included=False)


# -- keys --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key, written next to the type of its field.

    ``depends``: in words, the default that depends on other keys (``_derived`` computes it). ``none``: the word for
    None. ``name`` is ``section.field``.
    """

    parse: Parse
    default: object
    rule: str
    depends: str | None = None
    none: str = "none"
    name: str = ""

    @property
    def environment_name(self) -> str:
        """``HOLDFAST_SECTION__KEY``."""
        return ENVIRONMENT_PREFIX + self.name.replace(".", "__").upper()


# fmt: off
@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The HTTP server."""

    listen: Annotated[tuple[str, ...], Key(_listen_addresses, ("127.0.0.1:8080",),
        "TCP addresses HOST:PORT or unix:PATH; several are allowed")]
    advertised_address: Annotated[str, Key(_optional_text, None,
        "address at which other processes ask whether this leader is alive; at most 256 bytes",
        depends="the first of server.listen")]
    hosts: Annotated[tuple[str, ...], Key(_hosts, (),
        "NAME or NAME:PORT; without tokens: further names under which the service is reached, and pages of other "
        "places that may send it requests")]
    socket_mode: Annotated[int, Key(_mode, 0o660,
        "0600, 0660 or 0666 as text; the mode of unix: sockets, whatever the umask is")]
    max_request_size_bytes: Annotated[int, Key(_size(1, 256 * MEBI), MEBI,
        "1 byte to 256 MiB; a larger request gets 413")]
    max_connections: Annotated[int, Key(_whole(0), 50_000,
        "at least 0; 0 means unlimited; with tokens, connections that have sent no valid one get a quarter")]
    min_body_bytes_per_second: Annotated[int, Key(_size(1), 16_384,
        "at least 1 byte; the body of a request that is slower after 30 s gets 408")]
    max_unsent_bytes: Annotated[int, Key(_size(MEBI), 256 * MEBI,
        "at least 1 MiB; bytes of streams that wait until clients take them; one client, a token or without tokens an "
        "address, gets a quarter; at the bound the stream with the most ends as `lagging`")]
    max_in_flight_commits: Annotated[int, Key(_whole(1), 65_536,
        "at least 1; counts commits that are accepted and not answered yet; more commits get 503")]
    max_in_flight_bytes: Annotated[int, Key(_size(1), 256 * MEBI,
        "at least 1 byte; counts requests that are accepted and not answered yet; more requests get 503")]
    client_commits_per_second_max: Annotated[int, Key(_whole(0), 0,
        "at least 0, for each client; 0 means off; above it requests get 429, and streams slow down")]
    drain_seconds_max: Annotated[float, Key(_POSITIVE, 30.0,
        "above 0; every stop ends within this time; a commit that is not durable by then has an unknown outcome")]
    tls_certificate: Annotated[str | None, Key(_optional_text, None, "PEM file; needs server.tls_key")]
    tls_key: Annotated[str | None, Key(_optional_text, None, "PEM file; needs server.tls_certificate")]
    peer_ca_file: Annotated[str | None, Key(_optional_text, None,
        "PEM file; authorities that sign the certificates of the log's other processes; without it those of the system "
        "and the certificates in server.tls_certificate")]
    peer_name: Annotated[str | None, Key(_optional_text, None,
        "the name that the certificate of the log's other processes has, where their address is an IP address")]
    tokens: Annotated[tuple[Token, ...], Key(_tokens, (),
        "ROLE:TOKEN with the role read, write, job or admin; without tokens every request is allowed")]
    tokens_file: Annotated[str | None, Key(_optional_text, None,
        "file with a ROLE:TOKEN in each line, more tokens; it is read again on SIGHUP and when it changes")]

    @property
    def has_tokens(self) -> bool:
        """Whether requests need a token."""
        return bool(self.tokens) or self.tokens_file is not None

    @property
    def has_peer_files(self) -> bool:
        """Whether a file says which processes of the log are trusted."""
        return self.tls_certificate is not None or self.peer_ca_file is not None


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Where the log is. ``init_implied`` is not a key: an empty log there may be initialised without ``--init``."""

    url: Annotated[str, Key(_log_url, None,
        "URL with file:, s3:, az:, etcd: or memory:, without credentials",
        depends="holdfast-data in the working directory")]
    segments_url: Annotated[str | None, Key(_optional_table_url, None,
        "URL with file:, s3: or az: of a table of the log's segments; subscribers and the view read history from it")]
    init_implied: bool
    scrub_days: Annotated[float | None, Key(_or_word("off", _number(1 / 24, 3_650)), None,
        "1/24 to 3650, or off; in this time every object of the log is read and checked once",
        depends="7 for file:, otherwise off", none="off")]
    scrub_bytes_per_second: Annotated[int, Key(_size(1 << 16), 4 * MEBI,
        "at least 64 KiB; a smaller object counts as 64 KiB")]

    @property
    def scheme(self) -> str:
        """The kind of store: file, s3, gs, az or memory."""
        return urlsplit(self.url).scheme


@dataclass(frozen=True, slots=True)
class PersistSettings:
    """Forming batches and making them durable. ``None`` means unlimited, or off."""

    batch_timeout_ms: Annotated[float, Key(_POSITIVE, None, "above 0", depends="1 for file:, otherwise 5")]
    batch_timeout_max_ms: Annotated[float, Key(_POSITIVE, 50.0, "at least persist.batch_timeout_ms")]
    batch_size_threshold: Annotated[int, Key(_size(1, 1 << 30), MEBI,
        "1 byte to 1 GiB; the last commit of a batch may exceed it")]
    put_requests_per_second_max: Annotated[int | None, Key(_or_word("unlimited", _whole(1)), None,
        "at least 1, or unlimited", none="unlimited")]
    max_in_flight_requests: Annotated[int, Key(_whole(1, 1000), 50, "1 to 1000 unacknowledged slots")]
    target_pool_size: Annotated[int, Key(_whole(1), None,
        "at least persist.max_in_flight_requests; above twice that a warning is given",
        depends="2 x persist.max_in_flight_requests")]
    request_timeout_ms: Annotated[float, Key(_POSITIVE, 10_000.0,
        "above 0; a request without a response is sent again")]
    max_retry_attempts: Annotated[int | None, Key(_or_word("unlimited", _whole(0)), None,
        "at least 0, or unlimited; 0 disables retries", none="unlimited")]
    give_up_after_seconds: Annotated[float, Key(_POSITIVE, 60.0,
        "above 0; a leader that cannot write for this time steps down")]
    retry_base_delay_ms: Annotated[float, Key(_POSITIVE, 100.0, "above 0")]
    retry_max_delay_ms: Annotated[float, Key(_POSITIVE, 5_000.0, "at least persist.retry_base_delay_ms")]
    hedge_after_percentile: Annotated[float | None, Key(_or_word("off", _number(50, 99.9)), None,
        "50 to 99.9, or off", depends="off for file: and etcd:, otherwise 95", none="off")]


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """Liveness between processes; safety never depends on it."""

    sign_interval_ms: Annotated[float, Key(_number(50, 600_000), None,
        "50 to 600,000; how often an idle leader shows that it lives",
        depends="2,000 for file: and memory:, 1,000 for etcd:, otherwise 10,000")]


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """The order of standbys."""

    delay_ms: Annotated[float, Key(_number(0, 600_000), 0.0,
        "0 to 600,000; how much later than others this standby claims a log that nobody leads")]


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """The embedded view that answers ``/v1/keys``, ``/v1/range`` and ``/v1/read``."""

    enabled: Annotated[bool, Key(_switch, None, "true or false", depends="true for file: and memory:, otherwise false")]
    memory_bytes: Annotated[int, Key(_size(0), 64 * MEBI,
        "at least 0; of the newest changes of keys in memory, which reads find without the view's file")]


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """Limits of a commit, and the conflict window."""

    min_request_id_length: Annotated[int, Key(_whole(1, 255), 20, "1 to 255 characters")]
    conflict_window_seconds: Annotated[float, Key(_POSITIVE, 60.0,
        "above 0; age of the oldest write in the window, unless conflict_window_bytes is reached first")]
    conflict_window_bytes: Annotated[int, Key(_size(1), 256 * MEBI,
        "at least 1 byte; size of the window, unless conflict_window_seconds is reached first")]
    max_operations: Annotated[int, Key(_whole(1), 10_000, "at least 1 per commit; a larger commit gets 413")]
    max_preconditions: Annotated[int, Key(_whole(1), 10_000, "at least 1 per commit; a larger commit gets 413")]
    stalled_after_seconds: Annotated[float, Key(_POSITIVE, 3.0,
        "above 0; commits get 503 while the oldest batch has waited longer for the store")]


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How much of the log stays. ``max_age_seconds`` or ``max_bytes`` is the policy named `configuration`."""

    max_age_seconds: Annotated[float | None, Key(_or_word("none", _POSITIVE), None,
        "above 0, or none; keep what is younger; not together with retention.max_bytes")]
    max_bytes: Annotated[int | None, Key(_or_word("none", _size(1)), None,
        "at least 1 byte, or none; keep the newest objects of together this size")]
    min_age_seconds: Annotated[float, Key(_number(0), 3_600.0,
        "at least 0; whatever the policies say, a younger object is never removed")]
    check_seconds: Annotated[float, Key(_number(0.05), 60.0,
        "at least 0.05; how often the leader applies the policies")]
    deletes_per_second: Annotated[float, Key(_number(1), 1_000.0,
        "at least 1; how many objects are removed in a second")]
    warn_after_seconds: Annotated[float, Key(_number(0), 2_592_000.0,
        "at least 0; a warning, once a day, for a policy that keeps older log by its version")]


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """The snapshots of the log's state."""

    keep: Annotated[int, Key(_whole(2), 3,
        "at least 2; older snapshots are removed once this many newer ones were verified")]
    every_bytes: Annotated[int | None, Key(_or_word("off", _size(1)), 1 << 30,
        "at least 1 byte of log since the last snapshot, or off", none="off")]
    every_seconds: Annotated[float | None, Key(_or_word("off", _POSITIVE), 86_400.0,
        "above 0, since the last snapshot, or off; without new commits none is made", none="off")]
    check_seconds: Annotated[float, Key(_number(0.05), 60.0,
        "at least 0.05; how often the leader looks whether a snapshot is due")]


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """Streams of events."""

    max_buffer_size_bytes: Annotated[int, Key(_size(1), 10 * MEBI,
        "at least 1 byte; the stream of a reader that is further behind is closed")]
    keepalive_interval_seconds: Annotated[float, Key(_POSITIVE, 30.0, "above 0")]


@dataclass(frozen=True, slots=True)
class StoresSettings:
    """The message stores. Without ``directory`` the service hosts none, whatever ``enabled`` says."""

    enabled: Annotated[bool, Key(_switch, True, "true or false; needs stores.directory")]
    durability: Annotated[Literal["disk", "log"] | None, Key(_choice("disk", "log"), None,
        "disk: the stores are files on the leader's machine; log: they live in the log, and any leader serves them; "
        "sets the mode of a new log, and has to be that of another", depends="what the log has; disk for a new log")]
    directory: Annotated[str | None, Key(_optional_text, None,
        "directory on a local disk; created if it is missing",
        depends="the log's directory followed by -stores for file:, otherwise none")]
    definitions: Annotated[str | None, Key(_optional_text, None,
        "JSON, TOML or YAML file with stores and durables; every start creates or changes these; others stay")]
    max_request_size_bytes: Annotated[int, Key(_size(1), 16 * MEBI,
        "at least 1 byte; a larger request to the stores gets 413")]
    page_size_bytes: Annotated[int, Key(_size(MEBI), 64 * MEBI,
        "at least 1 MiB; disk space is taken and given back in pages of this size")]
    memory_bytes: Annotated[int, Key(_size(8 * MEBI), 128 * MEBI,
        "at least 8 MiB; memory for messages and counts, however long the backlog is; requests in progress need more")]
    checkpoint_bytes: Annotated[int, Key(_size(MEBI), 1024 * MEBI,
        "at least 1 MiB; of stores that live in the log: so much is written between two checkpoints")]
    checkpoint_seconds: Annotated[float, Key(_POSITIVE, 900.0,
        "above 0; of stores that live in the log: the time between two checkpoints while something changes")]
    statistics_seconds: Annotated[float, Key(_number(0), 60.0,
        "at least 0 between two log lines with statistics; 0 means off")]
    statistics_message_seconds: Annotated[float, Key(_number(0), 2.0,
        "at least 0 between two messages in the store _statistics while a subscriber is attached; 0 means off")]
    clock: Annotated[Literal["steady", "wall"], Key(_choice("steady", "wall"), "steady",
        "steady: a start continues from the last known time; wall: a start takes the machine's time, and "
        "everything whose time has passed by then expires")]

    @property
    def hosted(self) -> str | None:
        """The directory of the stores that this service hosts, None for none."""
        return self.directory if self.enabled else None


@dataclass(frozen=True, slots=True)
class LoggingSettings:
    """The service's own log lines."""

    format: Annotated[Literal["logfmt", "json"], Key(_choice("logfmt", "json"), "logfmt", "logfmt or json")]
    level: Annotated[Literal["debug", "info", "warning", "error"], Key(
        _choice("debug", "info", "warning", "error"), "info", "debug, info, warning or error")]


# fmt: on
@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a service runs with. Frozen, and checked as a whole before anything is opened."""

    server: ServerSettings
    log: LogSettings
    persist: PersistSettings
    leader: LeaderSettings
    standby: StandbySettings
    view: ViewSettings
    commit: CommitSettings
    retention: RetentionSettings
    snapshots: SnapshotSettings
    subscription: SubscriptionSettings
    stores: StoresSettings
    logging: LoggingSettings


_SECTIONS: Final[Mapping[str, type[object]]] = get_type_hints(Settings)
_KEYS: Final[Mapping[str, Key]] = {
    name: Key(key.parse, key.default, key.rule, key.depends, key.none, name)
    for section, kind in _SECTIONS.items()
    for field_name, annotation in get_type_hints(kind, include_extras=True).items()
    for key in getattr(annotation, "__metadata__", ())
    for name in [f"{section}.{field_name}"]
}
KEYS: Final = tuple(_KEYS.values())


# -- from values to settings -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """One key in force. ``why`` says where the value came from, or which rule gave it."""

    key: str
    value: str
    source: Source
    why: str
    rule: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings in force, with an origin for every key and the warnings about them."""

    settings: Settings
    origins: tuple[SettingOrigin, ...]
    warnings: tuple[str, ...]
    file: Path | None


def _build(given: Mapping[str, object], *, default_url: str) -> Settings:
    """The settings from parsed values by key name."""
    values: dict[str, object] = {key.name: given.get(key.name, key.default) for key in KEYS}
    for name, value in _derived(values, default_url).items():
        # The empty text means none, so an address or a directory that is given may be None and has its default then.
        if name not in given or (values[name] is None and _KEYS[name].parse is _optional_text):
            values[name] = value
    sections = {
        section: kind(**{each.name: values[f"{section}.{each.name}"] for each in fields(cast("type[Settings]", kind))})
        for section, kind in _SECTIONS.items()
    }
    return Settings(**cast("dict[str, LoggingSettings]", sections))  # type: ignore[arg-type]


def _derived(values: dict[str, object], default_url: str) -> dict[str, object]:
    """The defaults that depend on other keys.

    A directory answers in about a millisecond and loses no request, so waiting longer and hedging gain nothing. A
    second request to etcd waits for the same election as the first. The stores are next to the log, because its own
    directory holds the log only.
    """
    url = values["log.url"] = values["log.url"] or default_url
    parts = urlsplit(str(url))
    values["log.init_implied"] = url == default_url or parts.scheme == "memory"
    is_file = parts.scheme == "file"
    return {
        "server.advertised_address": cast("tuple[str, ...]", values["server.listen"])[0],
        "log.scrub_days": 7.0 if is_file else None,
        "leader.sign_interval_ms": sign_interval_ms(parts.scheme),
        "persist.batch_timeout_ms": 1.0 if is_file else 5.0,
        "persist.target_pool_size": 2 * cast(int, values["persist.max_in_flight_requests"]),
        "persist.hedge_after_percentile": None if is_file or parts.scheme == "etcd" else 95.0,
        "view.enabled": is_file or parts.scheme == "memory",
        "stores.directory": unquote(parts.path).rstrip("/") + "-stores" if is_file else None,
    }


def _problems(settings: Settings) -> Iterator[str]:
    """The rules between keys that do not hold, each with its reason."""
    server, persist, stores = settings.server, settings.persist, settings.stores
    for name, url in (("log.url", settings.log.url), ("log.segments_url", settings.log.segments_url)):
        if url is not None and urlsplit(url).scheme == "file":
            try:
                path_of(url)
            except InvalidRequest as error:
                yield f"{name}: {error}"
    if stores.definitions is not None and stores.hosted is None:
        yield "stores.definitions needs stores that are hosted: set stores.directory, and stores.enabled to true"
    if settings.retention.max_age_seconds is not None and settings.retention.max_bytes is not None:
        yield "retention.max_age_seconds and retention.max_bytes are one policy: give one, and the other by a command"
    for name, size in (
        ("server.max_request_size_bytes", server.max_request_size_bytes),
        ("stores.max_request_size_bytes", stores.max_request_size_bytes),
        ("persist.batch_size_threshold", persist.batch_size_threshold),
    ):
        if settings.log.scheme == "etcd" and size > ETCD_REQUEST_BYTES_MAX:
            yield (
                f"{name} ({size}) must be at most {ETCD_REQUEST_BYTES_MAX} where log.url is etcd: a batch that etcd "
                "refuses would end one leader after the other"
            )
    if (server.tls_certificate is None) != (server.tls_key is None):
        yield "server.tls_certificate and server.tls_key must be given together: one is useless without the other"
    if len(server.advertised_address.encode()) > ADDRESS_BYTES_MAX:
        yield "server.advertised_address must fit into the 256 bytes that the header of a batch has for it"
    for larger, smaller, why in (
        ("batch_timeout_max_ms", "batch_timeout_ms", "the adaptive interval moves between them"),
        ("target_pool_size", "max_in_flight_requests", "otherwise a batch that may be sent waits for a connection"),
        ("retry_max_delay_ms", "retry_base_delay_ms", "the delay grows from one to the other"),
    ):
        high, low = getattr(persist, larger), getattr(persist, smaller)
        if high < low:
            yield f"persist.{larger} ({high:.15g}) must be at least persist.{smaller} ({low:.15g}): {why}"


def _warnings(settings: Settings) -> Iterator[str]:
    """Settings that are allowed and probably not meant."""
    server, persist, scheme = settings.server, settings.persist, settings.log.scheme
    loopback = all(address.startswith(LOOPBACK) for address in server.listen)
    advertised = server.advertised_address.removeprefix("http://").removeprefix("https://")
    pool, in_flight = persist.target_pool_size, persist.max_in_flight_requests
    if pool > 2 * in_flight:
        yield (
            f"persist.target_pool_size ({pool}) is above twice persist.max_in_flight_requests ({in_flight}): "
            "the connections beyond that stay idle"
        )
    if persist.request_timeout_ms >= persist.give_up_after_seconds * 1000:
        yield "persist.request_timeout_ms is not below persist.give_up_after_seconds: one lost answer ends the leader"
    if advertised.startswith(LOOPBACK) and scheme not in ("file", "memory"):
        yield (
            f"server.advertised_address is {server.advertised_address}, another place on each machine that shares "
            "the log: other machines cannot ask this leader, and after its end they wait for 2.5 of its intervals "
            "(leader.sign_interval_ms)"
        )
    if not loopback and not server.has_tokens:
        yield "server.listen is open to other machines and server.tokens is empty: anybody may commit"
    if server.has_tokens and not loopback and server.tls_certificate is None:
        yield "server.tokens are sent in clear: set server.tls_certificate and server.tls_key, or end TLS in a proxy"
    if scheme == "gs":
        yield "log.url is gs:, which is not tested: no emulator supports the client's requests; keep a copy of the data"
    if scheme == "memory":
        yield "log.url is memory: and everything is gone when the process ends"


# -- sources: file, environment, flags ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    """One value as a source gave it."""

    value: object
    source: Source
    why: str


def load_configuration(
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    working_directory: Path | None = None,
) -> Configuration:
    """The configuration in force.

    ``flags`` maps key names (``log.url``) to values and wins. Without ``file``, ``HOLDFAST_CONFIG`` names one;
    otherwise ``holdfast.toml`` or ``holdfast.yaml`` in the working directory is read if it exists.
    Raises: InvalidRequest (code ``bad_configuration``) naming every problem.
    """
    environ = os.environ if environ is None else environ
    directory = Path.cwd() if working_directory is None else working_directory
    problems: list[str] = []
    path = _find_file(file, environ, directory)
    given: dict[str, _Given] = {}
    if path is not None:
        given.update(_from_file(path, problems))
    given.update(_from_environment(environ, problems))
    for name, value in (flags or {}).items():
        if _is_key(name, f"flag {name}", problems):
            given[name] = _Given(value, "flag", "given on the command line")
    settings = _build(_parse(given, problems), default_url=(directory / "holdfast-data").absolute().as_uri())
    problems += _problems(settings)
    if problems:
        raise InvalidRequest(
            "the configuration cannot be used: " + "; ".join(problems),
            code=Code.BAD_CONFIGURATION,
            hint="`holdfast check-config` shows every key, its rule and where its value came from",
        )
    origins = tuple(_origin(key, settings, given.get(key.name)) for key in KEYS)
    return Configuration(settings, origins, tuple(_warnings(settings)), path)


def _find_file(file: Path | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    """The file to read: a named one must exist, the one in the working directory may."""
    named = file if file is not None else Path(environ[name]) if environ.get(name := "HOLDFAST_CONFIG") else None
    if named is None:
        # Not Path.is_file: it raises where the working directory may not be read, as for a command of another user.
        usual = [path for name in CONFIGURATION_FILES if os.path.isfile(path := directory / name)]
        if len(usual) > 1:
            names = " and ".join(path.name for path in usual)
            raise InvalidRequest(f"there are {names} in {directory}: name one", code=Code.BAD_CONFIGURATION)
        return usual[0] if usual else None
    path = named if named.is_absolute() else directory / named
    if not os.path.isfile(path):
        raise InvalidRequest(f"no configuration file at {path}, or it cannot be read", code=Code.BAD_CONFIGURATION)
    return path


def _from_file(path: Path, problems: list[str]) -> dict[str, _Given]:
    """The values of a file with one table for each section."""
    document = read_document(path)
    if document.value is None:
        return {}
    if not isinstance(document.value, dict):
        problems.append(f"{path.name}: sections with keys, not {type(document.value).__name__}")
        return {}
    given: dict[str, _Given] = {}
    for section, table in cast("dict[str, object]", document.value).items():
        if not isinstance(table, dict):
            where = f"{path.name}{_line(document, section)}"
            problems.append(f"{where}: {section} stands outside of a section{_nearest(section)}")
            continue
        for field_name, value in cast("dict[str, object]", table).items():
            name = f"{section}.{field_name}"
            line = _line(document, name)
            if _is_key(name, f"{path.name}{line}", problems):
                given[name] = _Given(value, "file", f"{path}{line}")
    return given


def _line(document: Document, name: str) -> str:
    line = document.line_of(name)
    return "" if line is None else f" line {line}"


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, _Given]:
    """The values of ``HOLDFAST_SECTION__KEY``. Names without a section (``HOLDFAST_CONFIG``) belong to programs."""
    given: dict[str, _Given] = {}
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        rest = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        section, double, field_name = rest.partition("__")
        if not double:
            # A variable with one underscore too few would otherwise be ignored silently.
            section, _, field_name = rest.partition("_")
            if section in _SECTIONS and field_name:
                near = _nearest(f"{section}.{field_name}")
                problems.append(f"environment: {variable} needs two underscores after the section{near}")
            continue
        name = f"{section}.{field_name}"
        if _is_key(name, f"environment variable {variable}", problems):
            given[name] = _Given(environ[variable], "env", variable)
    return given


def _is_key(name: str, where: str, problems: list[str]) -> bool:
    """Whether there is a key of this name; notes the problem if not."""
    if name not in _KEYS:
        problems.append(f"{where}: there is no key {name}{_nearest(name)}")
    return name in _KEYS


def _nearest(name: str) -> str:
    """A suggestion for a name that is not a key."""
    close = difflib.get_close_matches(name, list(_KEYS), n=1, cutoff=0.5)
    if not close:
        last = name.rpartition(".")[2]
        tails = difflib.get_close_matches(last, [known.partition(".")[2] for known in _KEYS], n=1, cutoff=0.6)
        close = [known for known in _KEYS if tails and known.endswith("." + tails[0])]
    return f", did you mean {close[0]}?" if close else ""


def _parse(given: Mapping[str, _Given], problems: list[str]) -> dict[str, object]:
    """The given values with their types; one that does not fit is noted and left out."""
    parsed: dict[str, object] = {}
    for key in KEYS:
        if (item := given.get(key.name)) is None:
            continue
        try:
            parsed[key.name] = key.parse(_in_utf8(item.value))
        except ValueError as error:
            is_secret = key.parse is _tokens
            shown = "" if is_secret else f" is {_CREDENTIALS.sub('//***@', repr(item.value))} and"
            problems.append(f"{key.name}{shown} must be {error} (from {item.why})")
    return parsed


def _in_utf8(value: object) -> object:
    """The value itself. Bytes of an argument or a variable that are no text arrive as surrogates."""
    for text in cast("list[object]", value) if isinstance(value, list) else [value]:
        if isinstance(text, str):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ValueError("text in UTF-8") from None
    return value


def _origin(key: Key, settings: Settings, given: _Given | None) -> SettingOrigin:
    section, _, field_name = key.name.partition(".")
    value = _shown(key, cast(object, getattr(getattr(settings, section), field_name)))
    if given is None:
        return SettingOrigin(key.name, value, "default", key.depends or "the default", key.rule)
    return SettingOrigin(key.name, value, given.source, given.why, key.rule)


def _shown(key: Key, value: object) -> str:
    """A value in the form that people write; a token stars itself out."""
    if value is None:
        return key.none
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, tuple):
        return ", ".join(map(str, cast("tuple[object, ...]", value))) or "none"
    return f"{value:04o}" if key.parse is _mode else str(value)
