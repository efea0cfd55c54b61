"""What the log promises, held against everything that a world shows.

``Promises`` follows the true log with a real ``ChainWalker`` at the moment an object lands, audits every transaction,
and remembers what each client was answered. It raises ``PromiseBroken`` at the moment a promise breaks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Final, NoReturn

from tests.worlds.harness import PromiseBroken
from tests.worlds.log.network import StrictStore

from holdfast.commit.format import batch as batch_format
from holdfast.commit.format import chain
from holdfast.commit.format.batch import Header, Kind, LoggedTransaction
from holdfast.commit.format.transaction import Delete, PointRead, RangeDelete, Rejected, Write
from holdfast.commit.stages.events import CommitEntry
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from tests.worlds.log.journal import Journal

__all__ = ["OPENING_BALANCE", "Attempt", "Promises"]

OPENING_BALANCE: Final = 100
BANK: Final = b"a/"
RING: Final = b"r/"
COUNTER: Final = b"c/"


class Attempt:
    """One attempt of one client: (request id, read version) or, without an id, the marker key it writes."""

    __slots__ = ("committed_at", "denied", "identity", "request_id", "complete", "txn_read_version")

    def __init__(self, identity: tuple[str, int], request_id: str | None) -> None:
        self.identity = identity
        self.request_id = request_id
        self.txn_read_version = identity[1]
        self.committed_at: int | None = None
        self.denied = False
        self.complete = False


def identity_of(txn: LoggedTransaction) -> tuple[str, int]:
    """What distinguishes this transaction from every other attempt of the world."""
    if txn.request_id is not None:
        return txn.request_id, txn.read_version or 0
    last = txn.operations[-1]
    assert isinstance(last, Write), "a transaction without an id ends with its marker"
    return last.key.decode(), 0


class Promises:
    """The auditor. ``ring_size`` is the number of nodes of the ring workload."""

    def __init__(self, store: StrictStore, ring_size: int, seen: Counter[str]) -> None:
        self._store = store
        self._seen = seen
        self._ring_size = ring_size
        self.walker = chain.ChainWalker()
        self.headers: dict[int, Header] = {}
        self.transactions: dict[int, LoggedTransaction] = {}
        self.versions: list[int] = []
        self.at: dict[tuple[str, int], int] = {}
        self.by_request: dict[str, list[int]] = {}
        self._history: dict[bytes, tuple[list[int], list[bytes | None]]] = {}
        self._range_deletes: list[tuple[int, bytes, bytes | None]] = []
        self._denied: set[tuple[str, int]] = set()
        self._committed: dict[tuple[str, int], int] = {}
        self._handed_out: dict[int, int] = {}
        self.frontier = 0
        self.journal: Journal | None = None
        self.increments = 0
        self.broken: BaseException | None = None

    def break_(self, promise: str, detail: str) -> NoReturn:
        """A promise is broken. The world ends with it, even where a real shell catches the error."""
        error = PromiseBroken(f"{promise}: {detail}")
        self.trouble(error)
        raise error

    def trouble(self, error: BaseException) -> None:
        """Something went wrong that ends the world; the first of them counts."""
        self.broken = self.broken or error

    # -- the true log -------------------------------------------------------------------------------------------------

    def landed(self, slot: int) -> None:
        """An object was created: walk on as far as the log now reaches."""
        walker = self.walker
        if slot != walker.next_slot:
            if walker.claim is not None and walker.claim.slot > slot > walker.next_slot:
                self._seen["dead_object_landed"] += 1
            return
        while (data := self._store.objects.get(walker.next_slot)) is not None:
            here = walker.next_slot
            try:
                header = batch_format.decode_header(data, slot=here)
                walker.accept(header)
                everything = batch_format.decode_all(data, header)
            except HoldfastError as error:
                self.break_("the chain holds no damage", f"slot {here}: {error}")
            self.headers[here] = header
            if header.kind is Kind.CLAIM:
                self._seen["claims"] += 1
            for logged in everything:
                if isinstance(logged, LoggedTransaction):
                    self._append(logged)
                if self.journal is not None:
                    self.journal.landed(logged)

    def _append(self, txn: LoggedTransaction) -> None:
        if self.versions and txn.version <= self.versions[-1]:
            self.break_("versions rise strictly", f"{txn.version} after {self.versions[-1]}")
        identity = identity_of(txn)
        if identity in self.at:
            self.break_("an attempt commits at most once", f"{identity} at {self.at[identity]} and {txn.version}")
        if identity in self._denied:
            self.break_("what was answered not_committed never commits", f"{identity} at {txn.version}")
        self._audit_verdict(txn)
        self._audit_bank(txn)
        self.versions.append(txn.version)
        self.transactions[txn.version] = txn
        self.at[identity] = txn.version
        if txn.request_id is not None:
            self.by_request.setdefault(txn.request_id, []).append(txn.version)
        self._apply(txn)
        if any(isinstance(op, Write) and op.key.startswith(RING) for op in txn.operations):
            self._audit_ring(txn.version)
        self.increments += any(isinstance(op, Write) and op.key.startswith(COUNTER) for op in txn.operations)

    def _apply(self, txn: LoggedTransaction) -> None:
        for op in txn.operations:
            if isinstance(op, RangeDelete):
                self._range_deletes.append((txn.version, op.begin, op.end))
                for key in [key for key in self._history if op.begin <= key and (op.end is None or key < op.end)]:
                    self._record(key, txn.version, None)
            else:
                self._record(op.key, txn.version, None if isinstance(op, Delete) else op.value)

    def _record(self, key: bytes, version: int, value: bytes | None) -> None:
        versions, values = self._history.setdefault(key, ([], []))
        versions.append(version)
        values.append(value)

    def value(self, key: bytes, version: int) -> bytes | None:
        """The value of a key as of a version of the true log."""
        found = self._history.get(key)
        if found is None:
            return None
        index = bisect_right(found[0], version)
        return found[1][index - 1] if index else None

    # -- the auditor --------------------------------------------------------------------------------------------------

    def _audit_verdict(self, txn: LoggedTransaction) -> None:
        """Every precondition of a committed transaction must have held."""
        for read in txn.preconditions:
            since = txn.read_version if read.version is None else read.version
            assert since is not None, "a precondition has a version"
            if isinstance(read, PointRead):
                begin, end = read.key, read.key + b"\0"
                touched = [read.key] if read.key in self._history else []
            else:
                begin, end = read.begin, read.end or b"\xff" * 9
                touched = [key for key in self._history if begin <= key < end]
            for key in touched:
                if self._history[key][0][-1] > since:
                    self.break_("a verdict holds against the log", f"{txn.version} read {key!r} at {since}")
            for version, first, last in self._range_deletes:
                if version > since and first < end and (last is None or begin < last):
                    self.break_("a verdict holds against the log", f"{txn.version} read {begin!r} at {since}")

    def _audit_bank(self, txn: LoggedTransaction) -> None:
        change = 0
        for op in txn.operations:
            if isinstance(op, Write) and op.key.startswith(BANK):
                before = self.value(op.key, txn.version)
                change += int(op.value) - (OPENING_BALANCE if before is None else int(before))
        if change:
            self.break_("money is neither made nor lost", f"{change} at version {txn.version}")

    def _audit_ring(self, version: int) -> None:
        seen: list[int] = []
        here = 0
        while here not in seen:
            seen.append(here)
            here = self.ring_next(here, version)
        if here != 0 or len(seen) != self._ring_size:
            self.break_("the ring stays one ring", f"{seen} then {here} at version {version}")

    def ring_next(self, node: int, version: int) -> int:
        """Where a node of the ring points to as of a version."""
        found = self.value(b"%s%d" % (RING, node), version)
        return (node + 1) % self._ring_size if found is None else int(found)

    # -- answers ------------------------------------------------------------------------------------------------------

    def answered_committed(self, attempt: Attempt, version: int, *, by_id: bool = False) -> None:
        """A leader reports that an attempt committed. ``by_id``: it was asked for the id alone."""
        txn = self.transactions.get(version)
        if txn is None:
            self.break_("nothing acknowledged is lost", f"{attempt.identity} at {version} is not in the log")
        if txn.request_id != attempt.request_id or (not by_id and identity_of(txn) != attempt.identity):
            self.break_("nothing acknowledged is moved", f"{attempt.identity} at {version} is {identity_of(txn)}")
        if attempt.identity in self._denied and not by_id:
            self.break_("an outcome is final", f"{attempt.identity} was denied, then committed at {version}")
        if identity_of(txn) == attempt.identity:
            self._committed[attempt.identity] = version
        self.frontier = max(self.frontier, version)

    def answered_not_committed(self, attempt: Attempt) -> None:
        """A leader reports that an attempt did not commit and never will."""
        if attempt.identity in self.at:
            self.break_(
                "what was answered not_committed never commits",
                f"{attempt.identity} is at {self.at[attempt.identity]}",
            )
        self._denied.add(attempt.identity)

    def answered_rejected(self, entry: CommitEntry, outcome: Rejected, durable_end: int) -> None:
        """A rejection names versions: all of them are durable and at or below the version it names."""
        if entry.durable_version > durable_end:
            self.break_("a rejection names a durable version", f"{entry.durable_version} above {durable_end}")
        for conflict in outcome.conflicts:
            if conflict.version not in self.transactions or conflict.version > entry.durable_version:
                self.break_("a rejection comes after the versions it lists", f"{conflict} {entry.durable_version}")

    def end_version(self) -> int:
        """The last version that is decided in the true log."""
        return self.walker.head.last_version if self.walker.head is not None else 0

    def version_answered(self, version: int, frontier: int) -> None:
        """A version question asked when ``frontier`` was the newest known answer gets ``version``."""
        if version < frontier:
            self.break_("version answers are linearizable", f"{version} after {frontier} was known")
        if version > self.end_version():
            self.break_("a version that is answered is durable", f"{version} above {self.end_version()}")
        self.frontier = max(self.frontier, version)

    def shown_durable(self, last: Header, header: Header) -> Header:
        """A leader shows a durable batch to subscribers: it is in the log, right after the one shown ``last``."""
        if self.headers.get(header.slot) != header:
            self.break_("what is shown durable is in the log", f"slot {header.slot}")
        if header.prev != last.slot or header.prev_version != last.last_transaction_version:
            self.break_("a durable stream has no gap", f"slot {header.slot} after {last.slot}")
        return header

    def handed_out(self, versions: list[int], claim: int) -> None:
        """A leader shows accepted transactions early: their versions belong to it alone, for ever."""
        for version in versions:
            if self._handed_out.setdefault(version, claim) != claim:
                self.break_("a version is handed out once", f"{version} by {claim} and {self._handed_out[version]}")

    def deposed(self, claim: Header, detail: str) -> None:
        """A leader says that it was deposed: another must have claimed after it."""
        if self.walker.claim is None or self.walker.claim.slot >= claim.slot:
            self.break_("only a later leader deposes", f"claim {claim.slot}: {detail}")

    def at_the_end(self, attempts: list[Attempt]) -> None:
        """When every outcome is known: exactly the committed attempts with an id are in the log."""
        for attempt in attempts:
            if attempt.request_id is None or not attempt.complete:
                continue
            there = self.at.get(attempt.identity)
            if attempt.denied and there is not None:
                self.break_("what was answered not_committed never commits", f"{attempt.identity} is at {there}")
            if attempt.committed_at is not None and there != attempt.committed_at:
                self.break_("nothing acknowledged is moved", f"{attempt.identity}: {attempt.committed_at}, {there}")
            if attempt.committed_at is None and not attempt.denied:
                self.break_("every outcome is found in the end", f"{attempt.identity}")
