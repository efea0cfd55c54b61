"""Checks a history of concurrent transactions: one log must explain every response that the clients got.

Every response to a commit has its version, so a history claims its own total order. The checker replays that order and
compares every response with it, in O(n log n). A moment is any number that rises in the order of events; all moments of
a history come from one clock.

    law                       meaning
    versions_rise             the log's versions rise strictly, and prev_version is the version before
    attempts_land_once        an attempt (request id and read version) is in the log at most once
    nothing_lost              a commit with the response committed is in the log
    nothing_moved             ... at the version of the response, with the operations of the request
    nothing_invented          every logged transaction was requested in the history (if the history is complete)
    no_ghosts                 a commit with the response not_committed is not in the log
    preconditions_held        no key that a logged transaction depends on changed between its read and its commit
    rejections_justified      a conflict names a version in the log that changed what the precondition read, and the
                              version to retry from is not below it
    real_time                 a call that begins after a response gets a larger version than that response named,
                              whether or not its own client got a response
    version_is_fresh          a linearizable version is at least every version of an earlier response
    status_is_final           status agrees with the log: committed at that version, or not in it
    read_is_exact             a read shows exactly the state of the log at the version that it names
    read_is_not_older         a read names a version at or above the one that it asked for, which its client had heard
    read_is_fresh             a linearizable read names at least every version of an earlier response

For histories without versions see ``registers``.

Source: Herlihy and Wing, "Linearizability: A Correctness Condition for Concurrent Objects", 1990 (the real-time order).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Literal

from holdfast.commit.format.transaction import (
    Committed,
    Delete,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    Rejected,
    Transaction,
    Write,
)

__all__ = [
    "CommitCall", "History", "Law", "LogEntry", "Moment", "ReadCall", "StatusCall", "VersionCall", "Violation",
    "check_history",
]  # fmt: skip

Moment = float
"""A reading of the one clock of a history. Units: any, for instance nanoseconds of a monotonic clock."""


class Law(StrEnum):
    """The laws of the module's table."""

    VERSIONS_RISE = "versions_rise"
    ATTEMPTS_LAND_ONCE = "attempts_land_once"
    NOTHING_LOST = "nothing_lost"
    NOTHING_MOVED = "nothing_moved"
    NOTHING_INVENTED = "nothing_invented"
    NO_GHOSTS = "no_ghosts"
    PRECONDITIONS_HELD = "preconditions_held"
    REJECTIONS_JUSTIFIED = "rejections_justified"
    REAL_TIME = "real_time"
    VERSION_IS_FRESH = "version_is_fresh"
    STATUS_IS_FINAL = "status_is_final"
    READ_IS_EXACT = "read_is_exact"
    READ_IS_NOT_OLDER = "read_is_not_older"
    READ_IS_FRESH = "read_is_fresh"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken law and the facts that show it."""

    law: Law
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCall:
    """One commit as its client saw it.

    ``outcome`` is None when the client does not know it: no answer, or ``outcome_unknown``. A call that certainly never
    reached the pipeline (refused before it was accepted) is left out of the history. ``durable_version`` is the version
    that a ``not_committed`` answer named.
    """

    begin: Moment
    end: Moment
    txn: Transaction
    outcome: Committed | Rejected | None
    durable_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionCall:
    """One linearizable reading of the log's version."""

    begin: Moment
    end: Moment
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCall:
    """One read of whole ranges, at the version that its answer named. A key is the range of that key alone.

    ``rows``: of each range the keys with their values and the versions that wrote them. ``at``: the version that the
    read had to reach.
    """

    begin: Moment
    end: Moment
    at: int
    version: int
    ranges: Sequence[tuple[bytes, bytes | None]]
    rows: Sequence[Sequence[tuple[bytes, bytes, int]]]
    linearizable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusCall:
    """One final answer about an attempt. ``version`` counts only with ``committed``."""

    begin: Moment
    end: Moment
    request_id: str
    read_version: int
    status: Literal["committed", "not_committed"]
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One transaction as the log keeps it. ``prev_version`` and ``read_version`` are None where the reader has none."""

    version: int
    operations: tuple[Operation, ...]
    request_id: str | None = None
    read_version: int | None = None
    prev_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All calls and the log. ``complete``: no other client wrote to this log."""

    log: Sequence[LogEntry]
    commits: Sequence[CommitCall] = ()
    versions: Sequence[VersionCall] = ()
    statuses: Sequence[StatusCall] = ()
    reads: Sequence[ReadCall] = ()
    complete: bool = True


def check_history(history: History) -> list[Violation]:
    """Every violation found, in the order of the laws; empty when the history is explained by the log.

    Cost: O(n log n) for n calls and entries, and for each precondition the range deletes between its version and its
    verdict; for each range read also the transactions between the two or the keys in the range, whichever are fewer.
    """
    log = _Log(history.log)
    return [
        *_check_order(history.log),
        *_check_once(history.log),
        *_check_commits(history, log),
        *_check_invented(history, log),
        *_check_preconditions(history, log),
        *_check_rejections(history, log),
        *_check_real_time(history, log),
        *_check_statuses(history, log),
        *_check_reads(history),
    ]


# --- the log, indexed ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Log:
    """The log by version, by attempt, and by what it changed."""

    entries: Sequence[LogEntry]
    by_version: dict[int, LogEntry] = field(init=False)
    by_request_id: dict[str, list[LogEntry]] = field(init=False)
    _changes: dict[bytes, list[int]] = field(init=False)
    _keys: list[bytes] = field(init=False)
    _versions: list[int] = field(init=False)
    _range_deletes: list[tuple[int, RangeDelete]] = field(init=False)

    def __post_init__(self) -> None:
        self.by_version = {entry.version: entry for entry in self.entries}
        self.by_request_id = defaultdict(list)
        self._range_deletes = []
        changes: defaultdict[bytes, list[int]] = defaultdict(list)
        for entry in sorted(self.entries, key=lambda entry: entry.version):
            if entry.request_id is not None:
                self.by_request_id[entry.request_id].append(entry)
            for operation in entry.operations:
                if isinstance(operation, RangeDelete):
                    self._range_deletes.append((entry.version, operation))
                else:
                    changes[operation.key].append(entry.version)
        self._changes = dict(changes)
        self._keys = sorted(changes)
        self._versions = sorted(self.by_version)

    def attempt(self, request_id: str, read_version: int | None) -> list[LogEntry]:
        """The entries of one attempt; a log that does not keep read versions cannot tell attempts apart."""
        entries = self.by_request_id.get(request_id, [])
        return [entry for entry in entries if entry.read_version in (None, read_version)]

    def first_change(self, read: Precondition, after: int, before: int) -> int | None:
        """The first version strictly between the two bounds that changed what ``read`` reads."""
        first_version = self._first_range_delete(read, after, before)
        if isinstance(read, PointRead):
            keys = [read.key]
        else:
            first = bisect_left(self._keys, read.begin)
            last = len(self._keys) if read.end is None else bisect_left(self._keys, read.end)
            start, stop = bisect_right(self._versions, after), bisect_left(self._versions, before)
            if stop - start < last - first:
                # Fewer transactions between the two than keys in the range: look at those.
                for version in self._versions[start:stop]:
                    if any(_changes(operation, read) for operation in self.by_version[version].operations):
                        return version
                return None
            keys = self._keys[first:last]
        for key in keys:
            versions = self._changes.get(key, [])
            position = bisect_right(versions, after)
            if position < len(versions) and versions[position] < before:
                first_version = versions[position] if first_version is None else min(first_version, versions[position])
        return first_version

    def _first_range_delete(self, read: Precondition, after: int, before: int) -> int | None:
        start = bisect_right(self._range_deletes, after, key=lambda item: item[0])
        for position in range(start, len(self._range_deletes)):
            version, deleted = self._range_deletes[position]
            if version >= before:
                return None
            if _overlaps(deleted, read):
                return version
        return None


def _overlaps(deleted: RangeDelete, read: Precondition) -> bool:
    if isinstance(read, PointRead):
        return deleted.begin <= read.key and (deleted.end is None or read.key < deleted.end)
    starts_before_read_ends = read.end is None or deleted.begin < read.end
    return starts_before_read_ends and (deleted.end is None or read.begin < deleted.end)


def _changes(operation: Operation, read: Precondition) -> bool:
    if isinstance(operation, RangeDelete):
        return _overlaps(operation, read)
    if isinstance(read, PointRead):
        return operation.key == read.key
    return read.begin <= operation.key and (read.end is None or operation.key < read.end)


# --- the laws --------------------------------------------------------------------------------------------------------


def _check_order(log: Sequence[LogEntry]) -> Iterator[Violation]:
    for before, entry in pairwise(log):
        if entry.version <= before.version:
            yield Violation(Law.VERSIONS_RISE, f"{entry.version} comes after {before.version}")
        if entry.prev_version is not None and entry.prev_version != before.version:
            yield Violation(
                Law.VERSIONS_RISE, f"{entry.version} names {entry.prev_version} before it, not {before.version}"
            )


def _check_once(log: Sequence[LogEntry]) -> Iterator[Violation]:
    seen: dict[tuple[str, int | None], int] = {}
    for entry in log:
        if entry.request_id is None:
            continue
        attempt = (entry.request_id, entry.read_version)
        if attempt in seen:
            yield Violation(Law.ATTEMPTS_LAND_ONCE, f"{attempt} is at {seen[attempt]} and at {entry.version}")
        seen[attempt] = entry.version


def _check_commits(history: History, log: _Log) -> Iterator[Violation]:
    for call in history.commits:
        txn = call.txn
        match call.outcome:
            case Committed(version):
                entry = log.by_version.get(version)
                if entry is not None:
                    if entry.operations != tuple(txn.operations) or entry.request_id != txn.request_id:
                        yield Violation(Law.NOTHING_MOVED, f"{version} holds another transaction than {_name(txn)}")
                elif versions := _places(txn, log):
                    yield Violation(Law.NOTHING_MOVED, f"{_name(txn)} was answered {version} and is at {versions}")
                else:
                    yield Violation(Law.NOTHING_LOST, f"{_name(txn)} was answered {version} and is not in the log")
            case Rejected(reason):
                # Without an id, equal operations may have been committed by somebody else: only an id tells them apart.
                if txn.request_id is not None and (versions := _places(txn, log)):
                    yield Violation(Law.NO_GHOSTS, f"{_name(txn)} was rejected ({reason}) and is at {versions}")
            case None:
                pass  # promises nothing about this call alone; other laws look at where it landed


def _places(txn: Transaction, log: _Log) -> list[int]:
    if txn.request_id is not None:
        return [entry.version for entry in log.attempt(txn.request_id, txn.read_version)]
    return [entry.version for entry in log.entries if entry.operations == tuple(txn.operations)]


def _check_invented(history: History, log: _Log) -> Iterator[Violation]:
    if not history.complete:
        return
    asked_ids = {call.txn.request_id for call in history.commits}
    asked_operations = {tuple(call.txn.operations) for call in history.commits if call.txn.request_id is None}
    for entry in log.entries:
        known = entry.request_id in asked_ids if entry.request_id else entry.operations in asked_operations
        if not known:
            yield Violation(Law.NOTHING_INVENTED, f"{entry.version} was asked for by nobody")


def _landed(call: CommitCall, log: _Log) -> LogEntry | None:
    """The entry that a call's transaction became, whether or not its client knows."""
    if isinstance(call.outcome, Committed):
        return log.by_version.get(call.outcome.version)
    if call.outcome is None and call.txn.request_id is not None:
        entries = log.attempt(call.txn.request_id, call.txn.read_version)
        return entries[0] if entries else None
    return None


def _check_preconditions(history: History, log: _Log) -> Iterator[Violation]:
    for call in history.commits:
        entry = _landed(call, log)
        if entry is None:
            continue
        for index, read in enumerate(call.txn.preconditions):
            version = _read_version(call.txn, read)
            broken_by = log.first_change(read, version, entry.version)
            if broken_by is not None:
                yield Violation(
                    Law.PRECONDITIONS_HELD,
                    f"{_name(call.txn)} at {entry.version}: {broken_by} changed what item {index} read at {version}",
                )


def _check_rejections(history: History, log: _Log) -> Iterator[Violation]:
    for call in history.commits:
        if not isinstance(call.outcome, Rejected) or call.outcome.reason != "conflict":
            continue
        if not call.outcome.conflicts:
            yield Violation(Law.REJECTIONS_JUSTIFIED, f"{_name(call.txn)} conflicts with nothing")
        for failed in call.outcome.conflicts:
            problem = _unjustified(call, failed.precondition, failed.version, log)
            if problem:
                yield Violation(Law.REJECTIONS_JUSTIFIED, f"{_name(call.txn)}: {problem}")


def _unjustified(call: CommitCall, index: int, version: int, log: _Log) -> str:
    """Why this conflict is none; empty when it is one."""
    if not 0 <= index < len(call.txn.preconditions):
        return f"there is no precondition {index}"
    read = call.txn.preconditions[index]
    entry = log.by_version.get(version)
    if entry is None:
        return f"version {version} is not in the log"
    if version <= _read_version(call.txn, read):
        return f"version {version} is not newer than what precondition {index} read"
    if not any(_changes(operation, read) for operation in entry.operations):
        return f"version {version} did not change what precondition {index} read"
    if call.durable_version < version:
        return f"retry from {call.durable_version} would meet {version} again"
    return ""


@dataclass(frozen=True, slots=True)
class _Heard:
    """The largest version heard by anybody up to a moment."""

    moments: list[Moment]
    largest: list[int]

    def before(self, moment: Moment) -> int:
        position = bisect_left(self.moments, moment)
        return self.largest[position - 1] if position else 0


def _heard(history: History) -> _Heard:
    reported: list[tuple[Moment, int]] = []
    for call in history.commits:
        if isinstance(call.outcome, Committed):
            reported.append((call.end, call.outcome.version))
        elif isinstance(call.outcome, Rejected) and call.durable_version:
            reported.append((call.end, call.durable_version))
    reported.extend((asked.end, asked.version) for asked in history.versions)
    reported.extend((asked.end, asked.version) for asked in history.statuses if asked.status == "committed")
    reported.extend((asked.end, asked.version) for asked in history.reads)
    reported.sort()
    largest: list[int] = []
    for _, version in reported:
        largest.append(max(version, largest[-1]) if largest else version)
    return _Heard([moment for moment, _ in reported], largest)


def _check_real_time(history: History, log: _Log) -> Iterator[Violation]:
    heard = _heard(history)
    # A repeated attempt answers with its first version, so an attempt begins when it was first sent.
    first_begin: dict[tuple[str, int | None], Moment] = {}
    for call in history.commits:
        if call.txn.request_id is not None:
            attempt = (call.txn.request_id, call.txn.read_version)
            first_begin[attempt] = min(call.begin, first_begin.get(attempt, call.begin))
    for call in history.commits:
        entry = _landed(call, log)
        if entry is None:
            continue
        begin = call.begin
        if call.txn.request_id is not None:
            begin = first_begin[call.txn.request_id, call.txn.read_version]
        floor = heard.before(begin)
        if entry.version <= floor:
            yield Violation(Law.REAL_TIME, f"{_name(call.txn)} at {entry.version} began after {floor} was heard")
    for read in history.reads:
        floor = heard.before(read.begin) if read.linearizable else 0
        if read.version < floor:
            yield Violation(Law.READ_IS_FRESH, f"a read at {read.version} began after {floor} was heard")
        if read.version < read.at:
            yield Violation(Law.READ_IS_NOT_OLDER, f"a read at {read.version} had to reach {read.at}")
    for asked in history.versions:
        floor = heard.before(asked.begin)
        if asked.version < floor:
            yield Violation(Law.VERSION_IS_FRESH, f"version answered {asked.version} after {floor} was heard")


def _check_reads(history: History) -> Iterator[Violation]:
    """Replay the log once; each read is compared with the state at its version."""
    state: dict[bytes, tuple[bytes, int]] = {}
    log = iter(sorted(history.log, key=lambda entry: entry.version))
    entry = next(log, None)
    for read in sorted(history.reads, key=lambda read: read.version):
        while entry is not None and entry.version <= read.version:
            for operation in entry.operations:
                _apply(state, operation, entry.version)
            entry = next(log, None)
        for (begin, end), rows in zip(read.ranges, read.rows, strict=True):
            keys = sorted(key for key in state if key >= begin and (end is None or key < end))
            expected = [(key, *state[key]) for key in keys]
            if list(rows) != expected:
                yield Violation(
                    Law.READ_IS_EXACT, f"[{begin!r}, {end!r}) at {read.version} is {expected}, and was read as {rows}"
                )


def _apply(state: dict[bytes, tuple[bytes, int]], operation: Operation, version: int) -> None:
    match operation:
        case Write(key, value):
            state[key] = (value, version)
        case Delete(key):
            state.pop(key, None)
        case RangeDelete(begin, end):
            for key in [key for key in state if key >= begin and (end is None or key < end)]:
                del state[key]


def _check_statuses(history: History, log: _Log) -> Iterator[Violation]:
    for asked in history.statuses:
        versions = [entry.version for entry in log.attempt(asked.request_id, asked.read_version)]
        if asked.status == "committed" and asked.version not in versions:
            yield Violation(
                Law.STATUS_IS_FINAL,
                f"{asked.request_id} was reported at {asked.version} and is at {versions or 'none'}",
            )
        if asked.status == "not_committed" and versions:
            yield Violation(Law.STATUS_IS_FINAL, f"{asked.request_id} was reported absent and is at {versions}")


def _read_version(txn: Transaction, read: Precondition) -> int:
    version = read.version if read.version is not None else txn.read_version
    assert version is not None, "an accepted precondition has a version"
    return version


def _name(txn: Transaction) -> str:
    return txn.request_id or f"transaction without id {txn.operations[:1]}"
