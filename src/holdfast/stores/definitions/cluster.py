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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from holdfast.errors import Code, InvalidRequest
from holdfast.stores.definitions.permissions import OPEN, Permissions, permissions_document, read_permissions
from holdfast.stores.definitions.reader import STATISTICS, FieldReader, check_name, raise_problems, seconds_document
from holdfast.stores.matching import EVERYTHING, Matcher
from holdfast.wire.formats import UNDECODABLE, decode_each_once

PREFETCH_DEFAULT: Final = 256
PREFETCH_MAX: Final = 65_536
MESSAGE_SIZE_DEFAULT: Final = 10 << 20
MESSAGE_SIZE_MAX: Final = 256 << 20  # a message is written and checked whole, in memory
MAX_DELIVERY_MAX: Final = 65_535
DYNAMIC_DURABLES: Final = 10_000
"""How many a store has by default: who may subscribe makes one with each new name."""
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

T = TypeVar("T")


def _parameter(
    read: Callable[..., T], default: T, *bounds: object, types: frozenset[DurableType] = frozenset(DurableType)
) -> T:
    """A parameter that a document gives: its method of ``FieldReader`` with its default and bounds, and the types of
    durable that it applies to. Its name there is that of the field, without ``_ms``."""
    return field(default=default, metadata={"read": (read, bounds), "types": types})


class _Parameter(NamedTuple):
    name: str
    field: str
    read: Callable[..., object]
    default: object
    bounds: tuple[object, ...]
    types: frozenset[DurableType]


def _parameters(definition: type) -> tuple[_Parameter, ...]:
    return tuple(
        _Parameter(each.name.removesuffix("_ms"), each.name, read, each.default, bounds, each.metadata["types"])
        for each in fields(definition)
        if each.metadata
        for read, bounds in [each.metadata["read"]]
    )


def _values(parameters: Sequence[_Parameter], reader: FieldReader) -> dict[str, Any]:
    """The value of each parameter that is given, by field; problems are left with the reader."""
    reader.expect(each.name for each in parameters)
    return {
        each.field: each.read(reader, each.name, each.default, *each.bounds)
        for each in parameters
        if reader.given(each.name)
    }


def _writer(parameters: Sequence[_Parameter]) -> Callable[[object], dict[str, object]]:
    """What makes JSON of these parameters of a definition."""
    names, values_of = [each.name for each in parameters], attrgetter(*(each.field for each in parameters))
    others: list[tuple[str, Callable[[Any], object]]] = []
    for each in parameters:
        if each.read is FieldReader.time_ms:
            others.append((each.name, seconds_document))
        elif isinstance(each.default, StrEnum | tuple | Matcher):
            as_list = Matcher.document if isinstance(each.default, Matcher) else list
            others.append((each.name, str if isinstance(each.default, StrEnum) else as_list))

    def write(definition: object) -> dict[str, object]:
        document = dict(zip(names, values_of(definition), strict=True))
        for name, to_json in others:
            document[name] = to_json(document[name])
        return document

    return write


@dataclass(frozen=True, slots=True)
class DurableDefinition:
    """One durable. ``template`` is the template of a dynamic one, empty for a static one.

    *Units*: times in milliseconds, sizes in bytes; 0 is none, except for ``swap_bytelimit`` (0 swaps everything, -1
    leaves it to the store). A parameter that does not apply to the type has its default.
    """

    name: str
    type: DurableType
    template: str = ""
    matcher: Matcher = _parameter(FieldReader.matcher, EVERYTHING, types=_DELIVERING)
    prefetch: int = _parameter(FieldReader.whole, PREFETCH_DEFAULT, 0, PREFETCH_MAX, types=_DELIVERING)
    """As configured; ``window`` is what holds."""
    ack_mode: AckMode = _parameter(FieldReader.word, AckMode.ASYNC, types=_CONSUMED)
    ack_wait_ms: int = _parameter(FieldReader.time_ms, 30_000, 10, types=_CONSUMED)
    """From the moment at which the application gets a message."""
    buffer_wait_ms: int = _parameter(FieldReader.time_ms, 0, types=_CONSUMED)
    """From its delivery to that moment; 0 is as long as ``ack_wait``."""
    ack_batch_count: int = _parameter(FieldReader.whole, 1_000, 1, PREFETCH_MAX, types=_CONSUMED)
    ack_batch_time_ms: int = _parameter(FieldReader.time_ms, 100, types=_CONSUMED)
    subscriber_timeout_ms: int = _parameter(FieldReader.time_ms, 5_000, 10, types=_DELIVERING)
    message_ttl_ms: int = _parameter(FieldReader.time_ms, 0)
    durable_ttl_ms: int = _parameter(FieldReader.time_ms, 0)
    message_limit: int = _parameter(FieldReader.limit, 0, types=_LIMITED)
    bytelimit: int = _parameter(FieldReader.size, 0, types=_LIMITED)
    discard: Discard = _parameter(FieldReader.word, Discard.NEW, types=_LIMITED)
    max_delivery: int = _parameter(FieldReader.whole, 0, 0, MAX_DELIVERY_MAX, types=_CONSUMED)
    dead_letter_store: str = _parameter(FieldReader.name, "", "store", types=_CONSUMED)
    retention_time_ms: int = _parameter(FieldReader.time_ms, 0, types=_CONSUMED)
    swap_bytelimit: int = _parameter(FieldReader.swap_limit, -1)
    key_field: str = _parameter(FieldReader.text, "", types=frozenset({DurableType.LAST_VALUE}))
    """The field whose text is the key of a last value; empty for the message's own key."""
    key_ordered: bool = _parameter(FieldReader.flag, False, types=frozenset({DurableType.SHARED}))

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
        return {"type": str(self.type)} | _DURABLE_WRITERS[self.type](self)


_OF_DURABLES: Final = _parameters(DurableDefinition)
PARAMETER_TYPES: Final = MappingProxyType({each.name: each.types for each in _OF_DURABLES})
"""The types of durable that each parameter applies to; given elsewhere it is refused."""
_DURABLE_WRITERS: Final = {kind: _writer([each for each in _OF_DURABLES if kind in each.types]) for kind in DurableType}


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
    description: str = _parameter(FieldReader.text, "")
    replicated: bool = _parameter(FieldReader.flag, True)
    publisher_mode: PublisherMode = _parameter(FieldReader.word, PublisherMode.CONFIRM)
    bytelimit: int = _parameter(FieldReader.size, 0)
    message_limit: int = _parameter(FieldReader.limit, 0)
    max_message_size: int = _parameter(FieldReader.size, MESSAGE_SIZE_DEFAULT, 1, MESSAGE_SIZE_MAX)
    dynamic_durable_limit: int = _parameter(FieldReader.limit, DYNAMIC_DURABLES)
    swap_bytelimit: int = _parameter(FieldReader.swap_limit, 0)
    durables: Mapping[str, DurableDefinition] = field(default_factory=dict[str, DurableDefinition])
    templates: Mapping[str, TemplateDefinition] = field(default_factory=dict[str, TemplateDefinition])
    default_durable: str = _parameter(FieldReader.name, "", "durable")
    """The static durable of subscribers that name none."""
    default_template: str = _parameter(FieldReader.name, "", "template")
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
        return _write_store(self) | {"subscribers": dict(self.subscribers)}

    def document(self) -> dict[str, object]:
        """Its JSON with everything in force."""
        return self.own_document() | {
            "durables": {name: durable.document() for name, durable in self.durables.items()},
            "templates": {name: template.pattern.document() for name, template in self.templates.items()},
        }


@dataclass(frozen=True, slots=True)
class ClusterDefinition:
    """The whole: the cluster, its stores, its permissions. Without configuration it is this class's defaults."""

    name: str = _parameter(FieldReader.name, "default", "cluster")
    persistence: Persistence = _parameter(FieldReader.word, Persistence.SYNC)
    services: tuple[str, ...] = _parameter(FieldReader.names, (), "service")
    """The services of the cluster; empty is this service alone."""
    bytelimit: int = _parameter(FieldReader.size, 0)
    message_limit: int = _parameter(FieldReader.limit, 0)
    swap: bool = _parameter(FieldReader.flag, True)
    publisher_ttl_ms: int = _parameter(FieldReader.time_ms, 7 * 86_400_000, 1_000)
    max_disk_fraction: float = _parameter(FieldReader.fraction, 0.95)
    disk_compact: bool = _parameter(FieldReader.flag, True)
    min_disk_inuse_ratio: float = _parameter(FieldReader.fraction, 0.5)
    max_deployment_history: int = _parameter(FieldReader.whole, 25, 1, 10_000)
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
        return _write_cluster(self)

    def document(self) -> dict[str, object]:
        """Its JSON with everything in force; ``definition_of`` of it is equal."""
        return {
            "cluster": self.own_document(),
            "stores": {name: store.document() for name, store in self.stores.items()},
            "permissions": permissions_document(self.permissions),
        }

    def json(self) -> bytes:
        """The bytes of ``document``, alike for equal definitions."""
        return msgspec.json.encode(self.document())


_OF_STORES: Final = _parameters(StoreDefinition)
_OF_CLUSTER: Final = _parameters(ClusterDefinition)
_write_store: Final = _writer(_OF_STORES)
_write_cluster: Final = _writer(_OF_CLUSTER)


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
    reader = FieldReader(document, "", problems)
    definition = read_cluster(reader.section("cluster"))
    stores = {name: _read_store(name, section) for name, section in reader.sections("stores", "store").items()}
    permissions = read_permissions(reader.section("permissions"))
    reader.finish()
    for store in stores.values():
        check_dead_letters(stores, store, dead_letter_targets(store), problems)
    raise_problems(problems if line_of is None else [_with_line(problem, line_of) for problem in problems])
    sections = frozenset(name for name in SECTIONS if reader.given(name))
    return replace(definition, stores=stores, permissions=permissions, sections_given=sections)


def _with_line(problem: str, line_of: Callable[[str], int | None]) -> str:
    line = line_of(problem.partition(": ")[0])
    return problem if line is None else f"line {line}: {problem}"


def durable_of(name: str, document: object, template: str = "") -> DurableDefinition:
    """One durable from its parsed JSON (as ``DurableDefinition.document`` gives it). Raises ``InvalidRequest``."""
    problems: list[str] = []
    check_name("durable", name)
    durable = read_durable(name, FieldReader(document, "", problems), template)
    raise_problems(problems)
    return durable


def read_cluster(reader: FieldReader) -> ClusterDefinition:
    """The cluster's own parameters; problems are left with the reader."""
    cluster = replace(ClusterDefinition(), **_values(_OF_CLUSTER, reader))
    if cluster.services and len(cluster.services) % 2 == 0:
        reader.problem("services", "1 service or an odd number of at least 3: with 2 the loss of either stops both")
    elif len(cluster.services) > 1:
        reader.problem("services", "one service: this release does not replicate between services")
    reader.finish()
    return cluster


def _read_store(name: str, reader: FieldReader) -> StoreDefinition:
    durables = {key: read_durable(key, item) for key, item in reader.sections("durables", "durable").items()}
    templates = {
        key: TemplateDefinition(key, read_durable(key, item, template=key))
        for key, item in reader.sections("templates", "template").items()
    }
    return read_store(name, reader, durables, templates)


def read_store(
    name: str,
    reader: FieldReader,
    durables: Mapping[str, DurableDefinition],
    templates: Mapping[str, TemplateDefinition],
) -> StoreDefinition:
    """A store of its own parameters with these durables and templates; problems are left with the reader."""
    store = StoreDefinition(name, durables=durables, templates=templates)
    store = replace(
        store,
        **_values(_OF_STORES, reader),
        subscribers=_read_subscribers(reader.section("subscribers")),
    )
    reader.finish()
    check_references(store, reader)
    return store


def _read_subscribers(section: FieldReader) -> dict[str, str]:
    subscribers: dict[str, str] = {}
    for subscriber in section.entries():
        if section.is_name("", "subscriber", subscriber):
            subscribers[subscriber] = section.name(subscriber, "", "durable")
    return subscribers


def check_references(store: StoreDefinition, reader: FieldReader) -> None:
    """Note a problem for each durable and template that the store's own parameters name in vain."""
    if store.default_durable and store.default_durable not in store.durables:
        reader.problem("default_durable", "a static durable of this store", store.default_durable)
    if store.default_template and store.template("") is None:
        reader.problem("default_template", "a template of this store, or a built-in one", store.default_template)
    for subscriber, durable in store.subscribers.items():
        if durable not in store.durables:
            reader.problem(f"subscribers.{subscriber}", "a static durable of this store", durable)


def read_durable(name: str, reader: FieldReader, template: str = "") -> DurableDefinition:
    """One durable, or the pattern of a template; problems are left with the reader."""
    if not reader.given("type"):
        reader.problem("type", "one of " + ", ".join(DurableType))
    kind = reader.word("type", DurableType.STANDARD)
    durable = replace(DurableDefinition(name, kind, template), **_values(_OF_DURABLES, reader))
    if durable.prefetch == 0 and kind is not DurableType.STANDARD:
        reader.problem("prefetch", f"a whole number 1 to {PREFETCH_MAX}", 0)
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


def dead_letter_targets(store: StoreDefinition) -> dict[str, str]:
    """The stores that durables and templates of a store name for their dead letters, by their paths within it."""
    targets = chain(
        ((f"durables.{name}", durable) for name, durable in store.durables.items()),
        ((f"templates.{name}", template.pattern) for name, template in store.templates.items()),
    )
    return {path: durable.dead_letter_store for path, durable in targets if durable.dead_letter_store}


def check_dead_letters(
    stores: Mapping[str, StoreDefinition], store: StoreDefinition, targets: Mapping[str, str], problems: list[str]
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
            ahead.extend(sorted({*dead_letter_targets(stores[name]).values()} & stores.keys()))
    return frozenset(reached)


BUILT_IN_TEMPLATES: Final[Mapping[str, TemplateDefinition]] = MappingProxyType(
    {
        str(kind): TemplateDefinition(str(kind), DurableDefinition(str(kind), kind, template=str(kind)))
        for kind in DurableType
    }
)
"""A template for each type, with every default, in every store; a store's own template of that name stands instead."""

STATISTICS_MESSAGES_MAX: Final = 1_000
STATISTICS_BYTES_MAX: Final = 16 << 20


def _statistics_template(kind: DurableType) -> TemplateDefinition:
    pattern = BUILT_IN_TEMPLATES[kind].pattern
    if kind is not DurableType.LAST_VALUE:
        most, most_bytes = STATISTICS_MESSAGES_MAX, STATISTICS_BYTES_MAX
        pattern = replace(pattern, discard=Discard.OLD, message_limit=most, bytelimit=most_bytes)
    return TemplateDefinition(kind, pattern)


STATISTICS_STORE: Final = StoreDefinition(
    name=STATISTICS,
    description="the numbers of /metrics as messages, while subscribers are attached",
    replicated=False,
    bytelimit=STATISTICS_BYTES_MAX,
    message_limit=STATISTICS_MESSAGES_MAX,
    max_message_size=STATISTICS_BYTES_MAX,
    dynamic_durable_limit=100,
    swap_bytelimit=-1,
    templates={kind: _statistics_template(kind) for kind in DurableType if kind is not DurableType.MAP},
    default_template=DurableType.SHARED,
)
"""The store that the service makes itself: no definition has it, and no command of it is recorded. It is in memory,
outside the limits of the cluster, while subscribers are attached. Each of its durables is made of its templates."""
