"""Stores, durables, templates and the cluster as an administrator configures them.

    {"cluster": {"name": "default", "persistence": "sync"},
     "stores": {"orders": {"bytelimit": "1g",
                           "durables": {"work": {"type": "shared", "max_delivery": 5, "dead_letter_store": "dead"}},
                           "templates": {"jobs": {"type": "shared", "durable_ttl": "1h"}}},
                "dead": {}},
     "permissions": {}}

``reader`` has the spellings of sizes and times. In the classes below a size is in bytes and a time in milliseconds; 0
is no limit and no time. A definition is read whole or refused whole; the error names the path of every wrong value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from types import MappingProxyType
from typing import Final

import msgspec

from holdfast.errors import Code, InvalidRequest
from holdfast.stores.definitions.permissions import OPEN, Permissions, permissions_document, read_permissions
from holdfast.stores.definitions.reader import Reader, check_name, raise_problems, seconds_document
from holdfast.stores.matching import EVERYTHING, Matcher
from holdfast.wire.formats import UNDECODABLE, decode_each_once

PREFETCH_DEFAULT: Final = 256
PREFETCH_MAX: Final = 65_536
MESSAGE_SIZE_DEFAULT: Final = 10 << 20
MESSAGE_SIZE_MAX: Final = 256 << 20  # a message is written and checked whole, in memory
MAX_DELIVERY_MAX: Final = 65_535
DYNAMIC_DURABLES: Final = 10_000
"""How many a store has by default: who may subscribe makes one with each new name."""
DAY_MS: Final = 86_400_000
SECTIONS: Final = frozenset({"cluster", "permissions"})
"""The sections of a definition that are not made of parts with names."""


class DurableType(StrEnum):
    """What a durable does with messages."""

    STANDARD = "standard"
    SHARED = "shared"
    LAST_VALUE = "last_value"
    MAP = "map"


class AckMode(StrEnum):
    """Whether a subscriber waits for its acknowledgements to be durable."""

    SYNC = "sync"
    ASYNC = "async"


class Discard(StrEnum):
    """Which message goes when a durable is at its limit: its oldest, or the one that arrives."""

    OLD = "old"
    NEW = "new"


class PublisherMode(StrEnum):
    """Whether a publisher learns that the store has its message."""

    CONFIRM = "store_confirm_send"
    NO_CONFIRM = "store_send_noconfirm"


class Persistence(StrEnum):
    """When a message is confirmed: after a data sync, after the operating system has it, or at once."""

    SYNC = "sync"
    ASYNC = "async"
    NONE = "none"


_CONSUMED: Final = frozenset({DurableType.STANDARD, DurableType.SHARED})
_DELIVERING: Final = _CONSUMED | {DurableType.LAST_VALUE}
_LIMITED: Final = _CONSUMED | {DurableType.MAP}
_EVERY: Final = frozenset(DurableType)

PARAMETER_TYPES: Final[Mapping[str, frozenset[DurableType]]] = MappingProxyType(
    {
        "matcher": _DELIVERING,
        "prefetch": _DELIVERING,
        "ack_mode": _CONSUMED,
        "ack_wait": _CONSUMED,
        "buffer_wait": _CONSUMED,
        "ack_batch_count": _CONSUMED,
        "ack_batch_time": _CONSUMED,
        "subscriber_timeout": _DELIVERING,
        "message_ttl": _EVERY,
        "durable_ttl": _EVERY,
        "message_limit": _LIMITED,
        "bytelimit": _LIMITED,
        "discard": _LIMITED,
        "max_delivery": _CONSUMED,
        "dead_letter_store": _CONSUMED,
        "retention_time": _CONSUMED,
        "swap_bytelimit": _EVERY,
        "key_field": frozenset({DurableType.LAST_VALUE}),
        "key_ordered": frozenset({DurableType.SHARED}),
    }
)
"""The types of durable that each parameter applies to; given elsewhere it is refused."""


@dataclass(frozen=True, slots=True)
class DurableDefinition:
    """One durable. ``template`` is the template of a dynamic one, empty for a static one.

    *Units*: times in milliseconds, sizes in bytes; 0 is none, except for ``swap_bytelimit`` (0 swaps everything, -1
    leaves it to the store). A parameter that does not apply to the type has its default.
    """

    name: str
    type: DurableType
    template: str = ""
    matcher: Matcher = EVERYTHING
    prefetch: int = PREFETCH_DEFAULT
    """As configured; ``window`` is what holds."""
    ack_mode: AckMode = AckMode.ASYNC
    ack_wait_ms: int = 30_000
    """From the moment at which the application gets a message."""
    buffer_wait_ms: int = 0
    """From its delivery to that moment; 0 is as long as ``ack_wait``."""
    ack_batch_count: int = 1_000
    ack_batch_time_ms: int = 100
    subscriber_timeout_ms: int = 5_000
    message_ttl_ms: int = 0
    durable_ttl_ms: int = 0
    message_limit: int = 0
    bytelimit: int = 0
    discard: Discard = Discard.NEW
    max_delivery: int = 0
    dead_letter_store: str = ""
    retention_time_ms: int = 0
    swap_bytelimit: int = -1
    key_field: str = ""
    """The field whose text is the key of a last value; empty for the message's own key."""
    key_ordered: bool = False

    @property
    def window(self) -> int:
        """How many unacknowledged messages one subscriber holds at most."""
        return self.prefetch or PREFETCH_DEFAULT

    @property
    def buffered_ms(self) -> int:
        """How long a delivered message may wait for the application; 0 (no limit) where nothing is acknowledged."""
        return (self.buffer_wait_ms or self.ack_wait_ms) if self.type in _CONSUMED else 0

    @property
    def order(self) -> str:
        """What is handed over in order: ``durable`` for all of it, ``key`` for the messages of one key."""
        return "durable" if self.type is DurableType.STANDARD else "key" if self.key_ordered else ""

    @property
    def dynamic(self) -> bool:
        """Whether it was made of a template when somebody subscribed."""
        return bool(self.template)

    def document(self) -> dict[str, object]:
        """Its JSON with everything in force; ``durable_of`` of it, with name and template, is equal."""
        values: dict[str, object] = {
            "matcher": self.matcher.document(),
            "prefetch": self.prefetch,
            "ack_mode": str(self.ack_mode),
            "ack_wait": seconds_document(self.ack_wait_ms),
            "buffer_wait": seconds_document(self.buffer_wait_ms),
            "ack_batch_count": self.ack_batch_count,
            "ack_batch_time": seconds_document(self.ack_batch_time_ms),
            "subscriber_timeout": seconds_document(self.subscriber_timeout_ms),
            "message_ttl": seconds_document(self.message_ttl_ms),
            "durable_ttl": seconds_document(self.durable_ttl_ms),
            "message_limit": self.message_limit,
            "bytelimit": self.bytelimit,
            "discard": str(self.discard),
            "max_delivery": self.max_delivery,
            "dead_letter_store": self.dead_letter_store,
            "retention_time": seconds_document(self.retention_time_ms),
            "swap_bytelimit": self.swap_bytelimit,
            "key_field": self.key_field,
            "key_ordered": self.key_ordered,
        }
        applying = {name: value for name, value in values.items() if self.type in PARAMETER_TYPES[name]}
        return {"type": str(self.type)} | applying


@dataclass(frozen=True, slots=True)
class TemplateDefinition:
    """What dynamic durables are made of. ``pattern`` has every parameter."""

    name: str
    pattern: DurableDefinition

    def durable(self, name: str, matcher: Matcher | None = None) -> DurableDefinition:
        """The durable ``name`` of this template; a ``matcher`` given stands instead of the template's."""
        wanted = matcher if matcher is not None else self.pattern.matcher
        return replace(self.pattern, name=name, template=self.name, matcher=wanted)


@dataclass(frozen=True, slots=True)
class StoreDefinition:
    """One store with its static durables and its templates."""

    name: str
    description: str = ""
    replicated: bool = True
    publisher_mode: PublisherMode = PublisherMode.CONFIRM
    bytelimit: int = 0
    message_limit: int = 0
    max_message_size: int = MESSAGE_SIZE_DEFAULT
    dynamic_durable_limit: int = DYNAMIC_DURABLES
    swap_bytelimit: int = 0
    durables: Mapping[str, DurableDefinition] = field(default_factory=dict[str, DurableDefinition])
    templates: Mapping[str, TemplateDefinition] = field(default_factory=dict[str, TemplateDefinition])
    default_durable: str = ""
    """The static durable of subscribers that name none."""
    default_template: str = ""
    """The template of a durable that is made on subscribing without naming one."""
    subscribers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Static durables by the name of the subscriber that they belong to."""

    def template(self, name: str) -> TemplateDefinition | None:
        """The template of this name: the store's own, else a built-in one; empty is the default template."""
        wanted = name or self.default_template
        return self.templates.get(wanted) or BUILT_IN_TEMPLATES.get(wanted)

    def durable_for(self, subscriber: str) -> str:
        """The durable of a subscriber that names none; empty where there is none for it."""
        return self.subscribers.get(subscriber, self.default_durable)

    def own_document(self) -> dict[str, object]:
        """Its own parameters as JSON: all but its durables and templates."""
        return {
            "description": self.description,
            "replicated": self.replicated,
            "publisher_mode": str(self.publisher_mode),
            "bytelimit": self.bytelimit,
            "message_limit": self.message_limit,
            "max_message_size": self.max_message_size,
            "dynamic_durable_limit": self.dynamic_durable_limit,
            "swap_bytelimit": self.swap_bytelimit,
            "default_durable": self.default_durable,
            "default_template": self.default_template,
            "subscribers": dict(self.subscribers),
        }

    def document(self) -> dict[str, object]:
        """Its JSON with everything in force."""
        return self.own_document() | {
            "durables": {name: durable.document() for name, durable in self.durables.items()},
            "templates": {name: template.pattern.document() for name, template in self.templates.items()},
        }


@dataclass(frozen=True, slots=True)
class ClusterDefinition:
    """The whole: the cluster, its stores, its permissions. Without configuration it is this class's defaults."""

    name: str = "default"
    persistence: Persistence = Persistence.SYNC
    services: tuple[str, ...] = ()
    """The services of the cluster; empty is this service alone."""
    bytelimit: int = 0
    message_limit: int = 0
    swap: bool = True
    publisher_ttl_ms: int = 7 * DAY_MS
    max_disk_fraction: float = 0.95
    disk_compact: bool = True
    min_disk_inuse_ratio: float = 0.5
    max_deployment_history: int = 25
    stores: Mapping[str, StoreDefinition] = field(default_factory=dict[str, StoreDefinition])
    permissions: Permissions = OPEN
    sections_given: frozenset[str] = field(default=SECTIONS, compare=False, repr=False)
    """Which of ``SECTIONS`` the document that was read has; see ``parts.keep_sections``."""

    def is_volatile(self, store: StoreDefinition) -> bool:
        """Whether a store lives in memory only: it is not replicated, or nothing is persisted."""
        return not store.replicated or self.persistence is Persistence.NONE

    @property
    def volatile_stores(self) -> frozenset[str]:
        """The names of the stores that live in memory only."""
        return frozenset(name for name, store in self.stores.items() if self.is_volatile(store))

    def own_document(self) -> dict[str, object]:
        """The cluster's own parameters as JSON."""
        return {
            "name": self.name,
            "persistence": str(self.persistence),
            "services": list(self.services),
            "bytelimit": self.bytelimit,
            "message_limit": self.message_limit,
            "swap": self.swap,
            "publisher_ttl": seconds_document(self.publisher_ttl_ms),
            "max_disk_fraction": self.max_disk_fraction,
            "disk_compact": self.disk_compact,
            "min_disk_inuse_ratio": self.min_disk_inuse_ratio,
            "max_deployment_history": self.max_deployment_history,
        }

    def document(self) -> dict[str, object]:
        """Its JSON with everything in force; ``definition_of`` of it is equal."""
        return {
            "cluster": self.own_document(),
            "stores": {name: store.document() for name, store in self.stores.items()},
            "permissions": permissions_document(self.permissions),
        }

    def json(self) -> bytes:
        """The bytes of ``document``, alike for equal definitions: what the command ``Define`` carries."""
        return msgspec.json.encode(self.document())


def parse_definition(data: bytes) -> ClusterDefinition:
    """A whole definition from its JSON; no bytes at all are the defaults. Raises ``InvalidRequest``.

    >>> definition = parse_definition(b'{"stores": {"orders": {"bytelimit": "1g"}}}')
    >>> definition.stores["orders"].bytelimit
    1073741824
    >>> parse_definition(b'{"stores": {"orders": {"bytelimt": "1g"}}}')
    Traceback (most recent call last):
    holdfast.errors.InvalidRequest: the definition has 1 problem: stores.orders.bytelimt: there is no such parameter; \
did you mean bytelimit? problems=1; nothing was applied: correct every value named and send the whole definition again
    """
    try:
        document: object = decode_each_once(data, object) if data else {}
    except UNDECODABLE as error:
        raise InvalidRequest(
            "the definition cannot be read as JSON", code=Code.BAD_CONFIGURATION, facts={"reason": str(error)}
        ) from None
    return definition_of(document)


def definition_of(document: object, line_of: Callable[[str], int | None] | None = None) -> ClusterDefinition:
    """A whole definition from parsed JSON, TOML or YAML. ``line_of`` gives the line of a path, for the error.

    Raises ``InvalidRequest`` (``bad_configuration``) naming every problem.
    """
    problems: list[str] = []
    reader = Reader(document, "", problems)
    definition = read_cluster(reader.section("cluster"))
    stores = {name: _read_store(name, section) for name, section in reader.sections("stores", "store").items()}
    permissions = read_permissions(reader.section("permissions"))
    reader.finish()
    for store in stores.values():
        check_dead_letters(stores, store, _dead_letter_targets(store), problems)
    raise_problems(problems if line_of is None else [_with_line(problem, line_of) for problem in problems])
    given = frozenset(name for name in SECTIONS if reader.given(name))
    return replace(definition, stores=stores, permissions=permissions, sections_given=given)


def _with_line(problem: str, line_of: Callable[[str], int | None]) -> str:
    line = line_of(problem.partition(": ")[0])
    return problem if line is None else f"line {line}: {problem}"


def durable_of(name: str, document: object, template: str = "") -> DurableDefinition:
    """One durable from its parsed JSON (as ``DurableDefinition.document`` gives it). Raises ``InvalidRequest``."""
    problems: list[str] = []
    check_name("durable", name)
    durable = read_durable(name, Reader(document, "", problems), template)
    raise_problems(problems)
    return durable


def read_cluster(reader: Reader) -> ClusterDefinition:
    """The cluster's own parameters; problems are left with the reader."""
    default = ClusterDefinition()
    services = reader.names("services", "service")
    if services and (len(services) == 2 or len(services) % 2 == 0):
        reader.problem("services", "1 service or an odd number of at least 3: with 2 the loss of either stops both")
    elif len(services) > 1:
        reader.problem("services", "one service: this release does not replicate between services")
    cluster = ClusterDefinition(
        name=reader.name("name", "cluster") or default.name,
        persistence=reader.word("persistence", Persistence, default.persistence),
        services=services,
        bytelimit=reader.size("bytelimit"),
        message_limit=reader.limit("message_limit"),
        swap=reader.flag("swap", default.swap),
        publisher_ttl_ms=reader.time_ms("publisher_ttl", default.publisher_ttl_ms, least_ms=1_000),
        max_disk_fraction=reader.fraction("max_disk_fraction", default.max_disk_fraction),
        disk_compact=reader.flag("disk_compact", default.disk_compact),
        min_disk_inuse_ratio=reader.fraction("min_disk_inuse_ratio", default.min_disk_inuse_ratio),
        max_deployment_history=reader.whole("max_deployment_history", default.max_deployment_history, 1, 10_000),
    )
    reader.finish()
    return cluster


def _read_store(name: str, reader: Reader) -> StoreDefinition:
    durables = {key: read_durable(key, item) for key, item in reader.sections("durables", "durable").items()}
    templates = {
        key: TemplateDefinition(key, read_durable(key, item, template=key))
        for key, item in reader.sections("templates", "template").items()
    }
    return read_store(name, reader, durables, templates)


def read_store(
    name: str, reader: Reader, durables: Mapping[str, DurableDefinition], templates: Mapping[str, TemplateDefinition]
) -> StoreDefinition:
    """A store of its own parameters with these durables and templates; problems are left with the reader."""
    default = StoreDefinition(name)
    store = StoreDefinition(
        name=name,
        description=reader.text("description"),
        replicated=reader.flag("replicated", default.replicated),
        publisher_mode=reader.word("publisher_mode", PublisherMode, default.publisher_mode),
        bytelimit=reader.size("bytelimit"),
        message_limit=reader.limit("message_limit"),
        max_message_size=reader.size("max_message_size", default.max_message_size, 1, MESSAGE_SIZE_MAX),
        dynamic_durable_limit=reader.limit("dynamic_durable_limit", default.dynamic_durable_limit),
        swap_bytelimit=reader.swap_limit("swap_bytelimit", default.swap_bytelimit),
        durables=durables,
        templates=templates,
        default_durable=reader.name("default_durable", "durable"),
        default_template=reader.name("default_template", "template"),
        subscribers=_read_subscribers(reader.section("subscribers")),
    )
    reader.finish()
    check_references(store, reader)
    return store


def _read_subscribers(section: Reader) -> dict[str, str]:
    subscribers: dict[str, str] = {}
    for subscriber in section.entries():
        try:
            check_name("subscriber", subscriber)
        except InvalidRequest as error:
            section.problem("", str(error))
            continue
        subscribers[subscriber] = section.name(subscriber, "durable")
    return subscribers


def check_references(store: StoreDefinition, reader: Reader) -> None:
    """Note a problem for each durable and template that the store's own parameters name in vain."""
    if store.default_durable and store.default_durable not in store.durables:
        reader.problem("default_durable", "a static durable of this store", store.default_durable)
    if store.default_template and store.template("") is None:
        reader.problem("default_template", "a template of this store, or a built-in one", store.default_template)
    for subscriber, durable in store.subscribers.items():
        if durable not in store.durables:
            reader.problem(f"subscribers.{subscriber}", "a static durable of this store", durable)


def read_durable(name: str, reader: Reader, template: str = "") -> DurableDefinition:
    """One durable, or the pattern of a template; problems are left with the reader."""
    if not reader.given("type"):
        reader.problem("type", "one of " + ", ".join(DurableType))
    kind = reader.word("type", DurableType, DurableType.STANDARD)
    default = DurableDefinition(name, kind, template)
    durable = DurableDefinition(
        name=name,
        type=kind,
        template=template,
        matcher=reader.matcher("matcher"),
        prefetch=reader.whole("prefetch", default.prefetch, 0 if kind is DurableType.STANDARD else 1, PREFETCH_MAX),
        ack_mode=reader.word("ack_mode", AckMode, default.ack_mode),
        ack_wait_ms=reader.time_ms("ack_wait", default.ack_wait_ms, least_ms=10),
        buffer_wait_ms=reader.time_ms("buffer_wait"),
        ack_batch_count=reader.whole("ack_batch_count", default.ack_batch_count, 1, PREFETCH_MAX),
        ack_batch_time_ms=reader.time_ms("ack_batch_time", default.ack_batch_time_ms),
        subscriber_timeout_ms=reader.time_ms("subscriber_timeout", default.subscriber_timeout_ms, least_ms=10),
        message_ttl_ms=reader.time_ms("message_ttl"),
        durable_ttl_ms=reader.time_ms("durable_ttl"),
        message_limit=reader.limit("message_limit"),
        bytelimit=reader.size("bytelimit"),
        discard=reader.word("discard", Discard, default.discard),
        max_delivery=reader.whole("max_delivery", 0, 0, MAX_DELIVERY_MAX),
        dead_letter_store=reader.name("dead_letter_store", "store"),
        retention_time_ms=reader.time_ms("retention_time"),
        swap_bytelimit=reader.swap_limit("swap_bytelimit", default.swap_bytelimit),
        key_field=reader.text("key_field"),
        key_ordered=reader.flag("key_ordered", default.key_ordered),
    )
    for parameter, types in PARAMETER_TYPES.items():
        if reader.given(parameter) and kind not in types:
            reader.problem(parameter, f"a parameter of {', '.join(sorted(types))}; this one is {kind}")
    if durable.durable_ttl_ms and not template:
        reader.problem(
            "durable_ttl",
            "only for the durables of a template: a static one stays until the definition removes it. To end its "
            "messages give it a message_ttl; to end the durable itself make it of a template with this durable_ttl",
        )
    if durable.retention_time_ms and 0 < durable.message_ttl_ms < durable.retention_time_ms:
        reader.problem("retention_time", "at most message_ttl, which removes the message first")
    reader.finish()
    return durable


Targets = Mapping[str, str]
"""The dead-letter stores that durables and templates of one store name, by their paths within it."""


def _dead_letter_targets(store: StoreDefinition) -> Targets:
    named = chain(
        ((f"durables.{name}", durable) for name, durable in store.durables.items()),
        ((f"templates.{name}", template.pattern) for name, template in store.templates.items()),
    )
    return {path: durable.dead_letter_store for path, durable in named if durable.dead_letter_store}


def check_dead_letters(
    stores: Mapping[str, StoreDefinition], store: StoreDefinition, targets: Targets, problems: list[str]
) -> None:
    """Dead letters go to a store that exists and keeps them as long, and never in a circle.

    ``targets`` are those of the store to check. *Cost*: the durables of the stores that letters reach from there.
    """
    reached: dict[str, frozenset[str]] = {}
    for part, target in targets.items():
        path = f"stores.{store.name}.{part}.dead_letter_store"
        if target not in stores:
            problems.append(f"{path}: a store that is defined, not {target!r}")
            continue
        if store.replicated and not stores[target].replicated:
            problems.append(f"{path}: a replicated store, for {target} loses its messages at a restart")
        if target not in reached:
            reached[target] = _reached(target, stores)
        if store.name in reached[target]:
            problems.append(f"{path}: not {target}, whose own dead letters come back to {store.name}")


def _reached(start: str, stores: Mapping[str, StoreDefinition]) -> frozenset[str]:
    reached: set[str] = set()
    ahead = [start]
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead.extend(sorted({*_dead_letter_targets(stores[name]).values()} & stores.keys()))
    return frozenset(reached)


BUILT_IN_TEMPLATES: Final[Mapping[str, TemplateDefinition]] = MappingProxyType(
    {
        str(kind): TemplateDefinition(str(kind), DurableDefinition(str(kind), kind, template=str(kind)))
        for kind in DurableType
    }
)
"""A template for each type, with every default, in every store; a store's own template of that name stands instead."""
