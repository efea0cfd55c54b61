"""The stores of the log in commits and in the change stream: the parts of commits, and what was published.

``read_parts`` turns what a commit says into one command and checks all that needs no state. ``StoresOfCommits`` is what
the commit service asks when it decides: the stores carry the command out in that moment, or refuse it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from holdfast.commit.format.json_request import undecodable
from holdfast.commit.format.transaction import StoreRefusal, Transaction
from holdfast.commit.stages.events import CommitEntry
from holdfast.errors import Code, HoldfastError, InvalidRequest, LimitExceeded, NotFound
from holdfast.server.http.auth import HeldRight
from holdfast.server.http.rights_table import ACKNOWLEDGE, MAPS, PUBLISHES, STORES, need_of
from holdfast.server.stores.hosting import OpenStores, StoreHost
from holdfast.stores.service import StoreService
from holdfast.stores.storage.frames import decode_frame, removals_of, runs_of
from holdfast.stores.values.commands import (
    Acknowledge,
    CommitPart,
    CommitParts,
    MapChange,
    PartsCommitted,
    Publish,
    Record,
)
from holdfast.stores.values.messages import fields_hint
from holdfast.values import ranges_of
from holdfast.wire.formats import UNDECODABLE, WireFormat
from holdfast.wire.log import StreamMessage
from holdfast.wire.stores import AcknowledgePart, MapPart, PublishPart

MESSAGES_MAX: Final = 10_000
BYTES_MAX: Final = 16 << 20
NAMES: Final = (ACKNOWLEDGE, MAPS, PUBLISHES)
_OF: Final = {Acknowledge: "durable", MapChange: "map", Publish: "publisher"}
"""What a part is of, in the order of ``NAMES``."""
_TYPES: Final = (AcknowledgePart, MapPart, PublishPart)
_DECODERS: Final[dict[WireFormat, tuple[Any, ...]]] = {
    "json": tuple(msgspec.json.Decoder(list[each]) for each in _TYPES),  # type: ignore[valid-type]
    "msgpack": tuple(msgspec.msgpack.Decoder(list[each]) for each in _TYPES),  # type: ignore[valid-type]
}
_encode = msgspec.msgpack.Encoder().encode


class GatewayStores:
    """The stores of this process, for the gateway: see ``HostedStores``."""

    def __init__(self, host: StoreHost) -> None:
        self._host = host

    def read_parts(
        self, txn: Transaction, authorization: bytes | None, wire_format: WireFormat
    ) -> tuple[CommitParts, bytes]:
        """The command for the stores, and a digest of what was sent.

        Raises: InvalidRequest (``stores_not_in_log``, ``duplicate_part``, ``malformed``, ``bad_request_id``),
        LimitExceeded, PermissionDenied, NotFound, Fenced, Unavailable.
        """
        opened = self._host.opened()
        if not opened.service.lives_in_log:
            raise not_in_log()
        sent = _decode(txn, wire_format)
        if sent[0] and txn.request_id is None:
            raise InvalidRequest(
                "a commit that acknowledges needs a request_id, or its outcome could not be asked for",
                code=Code.BAD_REQUEST_ID,
            )
        _require_rights(opened, authorization, sent)
        parts = [*_commands(opened, sent)]
        _require_distinct(parts)
        _require_limits(parts)
        tokens = [part.token for parts_of_kind in sent for part in parts_of_kind]
        return CommitParts(0, parts, tokens), blake2b(_encode(sent), digest_size=16).digest()

    def watch(self, authorization: bytes | None, stores: Sequence[str]) -> WatchedStores:
        """The messages of these stores, for a caller that may subscribe to each.

        Raises: InvalidRequest (``stores_not_in_log``), PermissionDenied, NotFound (no such store), Fenced, Unavailable.
        """
        opened = self._host.opened()
        if not opened.service.lives_in_log:
            raise not_in_log()
        rights: list[HeldRight] = []
        needed = need_of("GET", "/v1/subscribe").right_of(STORES)
        for store in stores:
            right = opened.access.held(authorization, needed, store)
            if (problem := right.problem()) is not None:
                raise problem
            rights.append(right)
            if store not in opened.state.definition.stores or store in opened.state.definition.volatile_stores:
                raise NotFound("the log has no such store", store=store)
        return WatchedStores(frozenset(stores), rights)


def not_in_log() -> InvalidRequest:
    """The error for parts where the stores are files of one machine, or where there are none."""
    return InvalidRequest(
        "the stores of this log take no part in commits: they do not live in the log",
        code=Code.STORES_NOT_IN_LOG,
        hint="stores.durability is disk here; `holdfast stores move --to log`, with the service stopped, changes it",
    )


_Sent = tuple[list[AcknowledgePart], list[MapPart], list[PublishPart]]


def _decode(txn: Transaction, wire_format: WireFormat) -> _Sent:
    decoded: list[Any] = []
    for name, raw, decoder in zip(NAMES, txn.parts, _DECODERS[wire_format], strict=True):
        try:
            decoded.append([] if raw is msgspec.UNSET else decoder.decode(raw))
        except UNDECODABLE as error:
            wrong = undecodable(error)
            hint = wrong.hint or fields_hint(wrong.message)
            raise InvalidRequest(f"{name}: {wrong.message}", code=wrong.code, hint=hint) from error
    if not any(decoded):
        raise InvalidRequest("a commit has operations, or parts for the stores", code=Code.NO_OPERATIONS)
    return decoded[0], decoded[1], decoded[2]


def _require_rights(opened: OpenStores, authorization: bytes | None, sent: _Sent) -> None:
    need, (acknowledge, maps, publish) = need_of("POST", "/v1/commit"), sent
    stores = {part.store for part in acknowledge}, {part.store for part in maps}, {part.store for part in publish}
    for name, requests in zip(NAMES, stores, strict=True):
        for store in requests:
            opened.access.require(authorization, need.right_of(name), store)


def _commands(opened: OpenStores, sent: _Sent) -> Iterator[CommitPart]:
    acknowledge, maps, publish = sent
    for ack in acknowledge:
        durable = opened.definitions.named(ack.store, ack.durable, ack.subscriber)
        yield Acknowledge(0, ack.store, durable, ack.subscriber, ranges_of(ack.ack))
    for change in maps:
        changes = [(one.key, one.value, one.if_revision) for one in change.changes]
        yield MapChange(0, change.store, change.map, changes, change.fence)
    for batch in publish:
        yield Publish(0, batch.store, batch.publisher_id, batch.messages)  # type: ignore[arg-type]  # only ever read


def _require_distinct(parts: list[CommitPart]) -> None:
    places: set[tuple[str, str, str]] = set()
    for part in parts:
        of = _OF[type(part)]
        place = of, part.store, getattr(part, of)
        if place in places:
            raise InvalidRequest(
                "two parts of a commit are of the same durable, map or publisher: make one of them",
                code=Code.DUPLICATE_PART,
                store=part.store,
                facts={of: place[2]},
            )
        places.add(place)


def _require_limits(parts: list[CommitPart]) -> None:
    messages = size = 0
    for part in parts:
        match part:
            case Acknowledge():
                messages += sum(last - first + 1 for first, last in part.ack)
            case MapChange():
                messages += len(part.changes)
                size += sum(len(body) for _, body, _ in part.changes if body is not None)
            case Publish():
                messages += len(part.messages)
                size += sum(len(message.body) for message in part.messages)
    if messages > MESSAGES_MAX or size > BYTES_MAX:
        raise LimitExceeded(
            "the parts of a commit have too many messages or bytes",
            code=Code.TOO_LARGE,
            messages=messages,
            messages_max=MESSAGES_MAX,
            bytes=size,
            bytes_max=BYTES_MAX,
        )


class StoresOfCommits:
    """The stores of the log, as ``commit.service.StoresOfLog``."""

    def __init__(self, service: StoreService) -> None:
        self._service = service

    def flush(self) -> None:
        """See ``StoresOfLog``."""
        self._service.flush()

    def carry_out(self, entry: CommitEntry) -> StoreRefusal | None:
        """See ``resolve.Stores``."""
        command = entry.parts
        assert isinstance(command, CommitParts), "the gateway has read the parts"
        done = self._service.carry_out_parts(command)
        if len(done) == 2:
            position, error = done
            return _refusal(command, position, error)
        entry.record, result, entry.when_durable = done
        entry.results = _encode(result.results)
        return None

    def results_of(self, record: bytes) -> bytes:
        """See ``StoresOfLog``."""
        frame = decode_frame(record, 0)
        assert isinstance(frame, Record) and isinstance(frame.result, PartsCommitted), "it is the record of parts"
        return _encode(frame.result.results)


def _refusal(command: CommitParts, position: int, error: HoldfastError) -> StoreRefusal:
    kind = type(command.parts[position])
    index = sum(type(part) is kind for part in command.parts[:position])
    return StoreRefusal(NAMES[list(_OF).index(kind)], index, str(error.code), error.statement())


class WatchedStores:
    """The stores that one stream shows."""

    def __init__(self, stores: frozenset[str], rights: Sequence[HeldRight]) -> None:
        self._stores = stores
        self._rights = rights

    def problem(self) -> HoldfastError | None:
        """Why the caller may not see them any more, or None."""
        return next((problem for right in self._rights if (problem := right.problem()) is not None), None)

    def messages(self, records: Iterable[bytes]) -> list[StreamMessage]:
        """What these records published in the stores, in order. Cost: each record is decoded. Raises: CorruptData."""
        shown_messages: list[StreamMessage] = []
        for record in records:
            frame = decode_frame(record, 0)
            removals = removals_of(frame)
            for run in runs_of(frame):
                if run.store in self._stores:
                    shown_messages += [
                        StreamMessage(
                            run.store, seq, run.published_ms,
                            None if (run.store, seq) in removals else message.body,
                            message.fields, message.key, message.publisher_seq, message.ttl_ms, message.deliver_at_ms,
                            message.origin,
                        )
                        for seq, message in enumerate(run.messages, run.first_seq)
                    ]  # fmt: skip
        return shown_messages
