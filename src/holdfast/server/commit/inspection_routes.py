"""The routes that show the log itself: its objects, one transaction with its preconditions, its leaderships.

They read the log's store, within bounds, and change nothing. ``/v1/configuration`` shows the settings in force, and
``/v1/admin/log-level`` the level of the process log, which it also changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Final

import structlog

from holdfast.commit.format.batch import FIRST_SLOT, HEADER_BYTES, Header
from holdfast.commit.leadership.takeover import now
from holdfast.commit.reading.reader import LeadershipWalk, damage_unless_truncated, find_header, follow, walker_from
from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.server.gateway import Gateway
from holdfast.server.http.routes import Call, Parameter, Response, Route, json_response
from holdfast.server.http.state import JSON
from holdfast.server.logs import in_force
from holdfast.values import LogPosition, parse_slot, slot_text
from holdfast.wire.formats import UNDECODABLE, decode_each_once
from holdfast.wire.log import (
    ConfigurationAnswer,
    ConflictingPlace,
    Conflicts,
    LeadershipPeriod,
    Leaderships,
    LogLevelInForce,
    LogObject,
    LogObjects,
    NewLogLevel,
    TransactionInLog,
)

OBJECTS_MAX: Final = 100
LEADERSHIPS_MAX: Final = 100
CONFLICTS_MAX: Final = 100
AT_ONCE_MAX: Final = 4
"""Requests of these routes that read the store at the same time."""
SECONDS_MAX: Final = 10.0
LEVEL_BYTES_MAX: Final = 1_024
_CODES: Final = (Code.NOT_LEADER, Code.OVERLOADED, Code.STORE_UNAVAILABLE, Code.LOG_TRUNCATED)

log = structlog.get_logger("holdfast.server.commit.inspection")


class Inspection:
    """Reads the log that this process leads or follows, a few requests at a time."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)

    async def objects(self, call: Call) -> Response:
        """The newest objects of the chain, or those from a slot on, newest first."""
        reader = self._gateway.reading()
        limit = call.number("limit", low=1, high=OBJECTS_MAX) or OBJECTS_MAX
        newest = reader.durable_header()
        given = call.text("slot")
        found: list[LogObject] = []
        following: int | None = newest.slot
        if given is not None:
            following = parse_slot(given)
            if following is None:
                raise InvalidRequest("slot is 20 digits")
            if following < newest.slot:
                raise NotFound("no durable object has this slot", slot=given)
        async with self._bounded():
            while following is not None and len(found) < limit:
                header = newest if following == newest.slot else await find_header(reader.store, following)
                if header is None:
                    if not found:
                        raise NotFound("the log has no object in this slot", slot=slot_text(following))
                    following = None  # retention removed it, or it is missing, which `verify` finds
                    break
                found.append(_object_of(header))
                following = None if header.slot == FIRST_SLOT else header.prev
        return json_response(LogObjects(tuple(found), None if following is None else slot_text(following)))

    async def transaction(self, call: Call) -> Response:
        """One transaction as the log keeps it, with the object that it is in."""
        reader = self._gateway.reading()
        text = call.path_text("version")
        if not (text.isascii() and text.isdigit() and len(text) <= 16):
            raise InvalidRequest("the version is a whole number")
        version = self._gateway.version_of(LogPosition(int(text)))
        newest = reader.durable_header()
        if not 0 < version <= newest.last_version:
            raise NotFound("no transaction has this version", version=version)
        async with self._bounded():
            try:
                walker = await walker_from(reader.store, (newest, reader.claim), version - 1)
                async with aclosing(follow(reader.store, walker, until=newest.slot, prefetch=1)) as batches:
                    async for batch in batches:
                        for txn in batch.transactions():
                            if txn.version == version:
                                return json_response(
                                    TransactionInLog(
                                        _object_of(batch.header),
                                        txn.version,
                                        txn.request_id,
                                        txn.read_version,
                                        tuple(txn.preconditions),
                                        tuple(txn.operations),
                                    )
                                )
                        if batch.header.last_version >= version:
                            break
            except NotFound as error:
                raise damage_unless_truncated(error, newest) from error
        raise NotFound("no transaction has this version", version=version)

    async def leaderships(self, call: Call) -> Response:
        """The leaders of the log, newest first."""
        reader = self._gateway.reading()
        limit = call.number("limit", low=1, high=LEADERSHIPS_MAX) or LEADERSHIPS_MAX
        found: list[LeadershipPeriod] = []
        async with self._bounded():
            async for leadership in LeadershipWalk(reader.store, reader.claim, reader.claim):
                claim = leadership.claim
                found.append(
                    LeadershipPeriod(
                        claim.leader_id.hex(),
                        claim.address,
                        claim.epoch,
                        slot_text(claim.slot),
                        claim.time_ms,
                        claim.last_version,
                    )
                )
                if len(found) == limit:
                    break
        return json_response(Leaderships(tuple(found)))

    async def conflicts(self, call: Call) -> Response:
        """The keys of the conflicts of the last minutes."""
        service = self._gateway.leading()
        limit = call.number("limit", low=1, high=CONFLICTS_MAX) or CONFLICTS_MAX
        top = service.metrics.conflict_keys.top(limit, now().boot_ms)
        places = tuple(ConflictingPlace(*place, count) for place, count in top.places)
        return json_response(Conflicts(round(top.seconds, 1), top.total, top.lost, places))

    @asynccontextmanager
    async def _bounded(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(SECONDS_MAX), self._turns:
                yield
        except TimeoutError:
            raise Unavailable("the log could not be read in time", retry_after_ms=1000) from None


def _object_of(header: Header) -> LogObject:
    return LogObject(
        slot_text(header.slot),
        header.kind.name.lower(),
        HEADER_BYTES + header.body_length,
        header.first_version,
        header.last_version,
        header.transactions,
        header.epoch,
        header.leader_id.hex(),
        header.address,
        header.time_ms,
    )


async def _configuration(answer: ConfigurationAnswer, call: Call) -> Response:
    del call
    return json_response(answer)


async def _log_level(call: Call) -> Response:
    del call
    return json_response(LogLevelInForce(in_force.level, in_force.configured))


async def _change_log_level(call: Call) -> Response:
    try:
        level = decode_each_once(await call.body(LEVEL_BYTES_MAX), NewLogLevel).level
    except UNDECODABLE as error:
        raise InvalidRequest(f"the body cannot be read: {error}") from None
    if in_force.is_written("info", at=in_force.level):  # else the new level may allow the line
        log.info("audit", act="set_log_level", author=call.who, log_level=level)
        in_force.change(level)
    else:
        in_force.change(level)
        log.info("audit", act="set_log_level", author=call.who, log_level=level)
    return await _log_level(call)


def inspection_routes(gateway: Gateway, configuration: ConfigurationAnswer) -> tuple[Route, ...]:
    """The rows of the route table. ``configuration``: the settings in force, without a secret."""
    inspection = Inspection(gateway)

    def limit(most: int) -> Parameter:
        return Parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": most}, "How many at most")

    return (
        Route(
            method="GET", path="/v1/log/objects", summary="The objects of the log, newest first",
            is_page=True,
            handler=inspection.objects, answers={JSON: LogObjects}, codes=(*_CODES, Code.NOT_FOUND),
            parameters=(
                Parameter("slot", "query", {"type": "string", "pattern": "^[0-9]{20}$"}, "Begin with this object"),
                limit(OBJECTS_MAX),
            ),
        ),
        Route(
            method="GET", path="/v1/log/transactions/{version}",
            summary="One transaction with the preconditions that it passed, and its object", is_page=True,
            handler=inspection.transaction, answers={JSON: TransactionInLog}, codes=(*_CODES, Code.NOT_FOUND),
            parameters=(
                Parameter("version", "path", {"type": "string", "pattern": "^[0-9]{1,16}$"}, "Its version", True),
            ),
        ),
        Route(
            method="GET", path="/v1/log/leaderships", summary="The leaders of the log, newest first",
            handler=inspection.leaderships, answers={JSON: Leaderships}, codes=_CODES,
            parameters=(limit(LEADERSHIPS_MAX),),
        ),
        Route(
            method="GET", path="/v1/log/conflicts",
            summary="The keys that broke preconditions in the last minutes, most first",
            handler=inspection.conflicts, answers={JSON: Conflicts}, codes=(Code.NOT_LEADER, Code.LEADER_CHANGED),
            parameters=(limit(CONFLICTS_MAX),),
        ),
        Route(
            method="GET", path="/v1/configuration",
            summary="Every setting in force and where it came from, without secrets",
            handler=partial(_configuration, configuration), answers={JSON: ConfigurationAnswer}, tag="admin",
        ),
        Route(
            method="GET", path="/v1/admin/log-level", summary="The level of the process log",
            handler=_log_level, answers={JSON: LogLevelInForce}, tag="admin",
        ),
        Route(
            method="PUT", path="/v1/admin/log-level",
            summary="Change the level of the process log until the process ends",
            handler=_change_log_level, body={JSON: NewLogLevel}, answers={JSON: LogLevelInForce},
            codes=(Code.TOO_LARGE,), tag="admin",
        ),
    )  # fmt: skip
