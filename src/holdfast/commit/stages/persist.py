"""Stage 3, persist: one batch becomes the object in one slot.

The answer to a PUT is created, refused or unknown. Answers come in any order, or never. A slot with a hedge (a second
PUT of the same bytes) can get more than one. If the answer is unknown, the same bytes are sent again with capped
exponential backoff and full jitter. If the PUT is refused, the object in the slot is read. If this object has this
leader's id, nonce and body CRC, it is from an earlier PUT of this leader (R6); any other object deposes the leader. A
batch is durable when its slot, and every older slot back to the jump (this leader's first slot after its claim), was
created or is proved to be this leader's own (R5). Slot numbers count down. The number of slots in flight is limited
(backpressure): slot n is sent only while the oldest unacknowledged slot minus n is below ``window`` (R1).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import blake2b
from itertools import pairwise
from typing import Final

from holdfast.commit.format.batch import (
    SPAN_MAX,
    Header,
    Kind,
    Logged,
    LoggedEntry,
    LoggedTransaction,
    StoresMode,
    encode_body,
    encode_object,
    jump,
)
from holdfast.commit.format.log_clock import LogClock
from holdfast.commit.stages.events import Batch, CommitEntry, Place, Put, ReadBack, Records
from holdfast.crc32 import fastest_crc32
from holdfast.objects.port import CreateAnswer, Created, Refused, Unknown
from holdfast.values import Instant, Slot, Version

LATE_MS: Final = 1_000.0
"""A process woken this much later than it asked for was paused."""
GRACE_MS: Final = 2_000.0


class Deadline:
    """A deadline for the store's answers. There is one at a time; its instant identifies it.

    When a paused process wakes, its deadlines may have passed while answers are still unread. So a deadline that is
    checked much too late is moved once, by ``GRACE_MS``.
    """

    __slots__ = ("_due_ms", "_moved_to_ms")

    def __init__(self) -> None:
        self._due_ms = -1.0
        self._moved_to_ms = -1.0

    def at_ms(self, due_ms: float) -> float:
        """When to check: ``due_ms``, or the time it was moved to."""
        return self._moved_to_ms if due_ms == self._due_ms else due_ms

    def has_passed(self, due_ms: float, now_ms: float) -> bool:
        """Whether it is missed. The first time it is checked much too late, it moves instead."""
        if now_ms < due_ms + LATE_MS or due_ms == self._due_ms:
            return now_ms >= self.at_ms(due_ms)
        self._due_ms, self._moved_to_ms = due_ms, now_ms + GRACE_MS
        return False


HEARTBEAT_VERSIONS: Final = 10_000_000
"""An empty batch is due when this many versions were assigned since the last batch."""
RETURN_TIMEOUTS: Final = 2
"""A client that has not sent again this many batch timeouts after its reply is not expected any more."""
LATENCY_SAMPLES: Final = 256
SMOOTHING: Final = 0.1
HEDGE_FLOOR_MS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistRules:
    """The bounds of this stage. Units are in the names; see ``docs/reference/configuration.md``."""

    batch_timeout_ms: float = 5.0
    batch_timeout_max_ms: float = 50.0
    batch_bytes: int = 1 << 20
    window: int = 50
    puts_per_second_max: float | None = None
    retry_base_ms: float = 100.0
    retry_max_ms: float = 5_000.0
    retries_max: int | None = None
    give_up_after_ms: float = 60_000.0
    hedge_percentile: float | None = None

    def __post_init__(self) -> None:
        assert 1 <= self.window <= SPAN_MAX, "the span is at most one LIST page"


class Verdict(Enum):
    """The meaning of an answer of the store for this leader."""

    GOES_ON = auto()
    DEPOSED = auto()
    GAVE_UP = auto()
    SHUT = auto()
    """The store accepts nothing any more, so waiting is useless."""


@dataclass(slots=True)
class PersistCounters:
    """Plain counts since the claim, read at scrape time."""

    batches: int = 0
    transactions: int = 0
    bytes: int = 0
    puts: int = 0
    retries: int = 0
    hedges: int = 0
    own_successes: int = 0


@dataclass(slots=True)
class _Latency:
    """Recent PUT latencies: a smoothed mean for the batch interval, a percentile for the hedge."""

    smoothed_ms: float = 0.0
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCY_SAMPLES))
    hedge_ms: float | None = None
    since: int = 0

    def note(self, latency_ms: float, percentile: float | None) -> None:
        first = not self.smoothed_ms
        self.smoothed_ms = latency_ms if first else self.smoothed_ms + SMOOTHING * (latency_ms - self.smoothed_ms)
        if percentile is None:
            return
        self.samples.append(latency_ms)
        self.since += 1
        if self.since >= 32:
            self.since = 0
            ranked = sorted(self.samples)
            self.hedge_ms = max(HEDGE_FLOOR_MS, ranked[min(len(ranked) - 1, int(len(ranked) * percentile / 100))])


class Persist:
    """The slots of one leader, from its claim's jump downwards.

    After a crash the next leader's recovery decides what is kept: everything that ``durable_slot`` had named, and
    perhaps some of the rest.
    """

    __slots__ = (
        "_claim", "_collecting", "_collecting_floor", "_collecting_since", "_expected", "_expected_since_ms",
        "_give_up", "_last_put_ms", "_latency", "_nonce_seed", "_returned", "_rules",
        "clock", "collecting_bytes", "counters", "durable_header", "last_trouble", "head", "in_flight", "paused",
        "resigned", "truncate_through",
    )  # fmt: skip

    def __init__(self, claim: Header, nonce_seed: bytes, rules: PersistRules) -> None:
        self._claim = claim
        self._nonce_seed = nonce_seed
        self._rules = rules
        self.clock = LogClock.of(claim)
        self.head: Header = claim
        self.durable_header: Header = claim
        self.in_flight: deque[Batch] = deque()
        self._collecting: list[CommitEntry | Place] = []
        self.collecting_bytes = 0
        self._collecting_since = 0.0
        self._collecting_floor = 0
        self._last_put_ms = -1e9
        self._expected = 0
        self._expected_since_ms = 0.0
        self._returned = 0
        self._latency = _Latency()
        self._give_up = Deadline()
        self.counters = PersistCounters()
        self.last_trouble = ""
        self.resigned = False
        self.truncate_through = Version(0)
        """The next batch says that versions at or below this one may be removed."""
        self.paused = False
        """Nothing new is sent until durable batches are answered; what is in flight goes on."""

    # -- collecting ---------------------------------------------------------------------------------------------------

    @property
    def next_slot(self) -> Slot:
        """The oldest slot that this leader has not sent."""
        return jump(self.head.slot) if self.head.kind is Kind.CLAIM else Slot(self.head.slot - 1)

    @property
    def durable_slot(self) -> Slot:
        """The watermark: this slot and every older one of the chain are durable."""
        return self.durable_header.slot

    @property
    def durable_version(self) -> Version:
        """Every version at or below this one is durable or void."""
        return self.durable_header.last_version

    @property
    def waiting(self) -> int:
        """How many entries wait for a batch."""
        return len(self._collecting)

    @property
    def collecting(self) -> bool:
        """Whether anything waits for a batch."""
        return bool(self._collecting)

    def collect(self, entries: list[CommitEntry | Place], added_bytes: int, now_ms: float, floor: int = 0) -> None:
        """Add entries, in order, to the batch being collected. ``floor`` is the one that they were judged by."""
        if not self._collecting:
            self._collecting_since = now_ms
            self._collecting_floor = floor
            self._collecting = entries
        else:
            self._collecting += entries
        self.collecting_bytes += added_bytes
        self._returned += len(entries)

    def interval_ms(self) -> float:
        """How long a batch collects while another is in flight: a tenth of the smoothed PUT latency, within bounds."""
        rules = self._rules
        return min(max(0.1 * self._latency.smoothed_ms, rules.batch_timeout_ms), rules.batch_timeout_max_ms)

    def _due_at_ms(self) -> float:
        """When the batch being collected closes; now or earlier means at once."""
        rules = self._rules
        if self.collecting_bytes >= rules.batch_bytes:
            due = self._collecting_since
        elif not self.in_flight:
            due = self._collecting_since
            late = due - self._expected_since_ms > RETURN_TIMEOUTS * rules.batch_timeout_ms
            if self._returned < self._expected and not late:
                # Clients that just got their replies send again soon, and belong into this batch. Otherwise clients
                # that wait for their replies would split permanently into groups, each with its own batch.
                due = max(due, self._expected_since_ms) + rules.batch_timeout_ms
        else:
            due = self._collecting_since + self.interval_ms()
        if rules.puts_per_second_max:
            due = max(due, self._last_put_ms + 1000.0 / rules.puts_per_second_max)
        return due

    @property
    def is_full(self) -> bool:
        """Whether entries wait because the window of slots in flight is used up, or nothing new may be sent."""
        return bool(self._collecting) and not self._may_send()

    @property
    def bytes_held(self) -> int:
        """Bytes that wait for a batch, and of batches in flight."""
        return self.collecting_bytes + sum(len(batch.payload) for batch in self.in_flight)

    def _may_send(self) -> bool:
        return len(self.in_flight) < self._rules.window and not self.resigned and not self.paused

    def form(self, now: Instant, assigned: int, floor: int) -> list[Put]:
        """Close every batch that is due and return what to send."""
        puts: list[Put] = []
        while self._collecting and self._may_send() and self._due_at_ms() <= now.boot_ms:
            puts.append(self._freeze(now, *self._take(), assigned, self._collecting_floor))
            self._expected = self._returned = 0
        if not self._collecting and assigned - self.head.last_version >= HEARTBEAT_VERSIONS and self._may_send():
            puts.append(self._freeze(now, [], [], assigned, floor))
        return puts

    def form_empty(self, now: Instant, assigned: int, floor: int, kind: Kind = Kind.DATA) -> list[Put]:
        """An empty batch, or the resign record, after which nothing more is sent."""
        if self._collecting or not self._may_send():
            return []
        put = self._freeze(now, [], [], assigned, floor, kind)
        self.resigned = kind is Kind.RESIGN
        return [put]

    def _take(self) -> tuple[list[CommitEntry | Place], list[Logged]]:
        """The entries of one batch: all that wait, or as many as reach the size bound (the last may exceed it)."""
        entries = self._collecting
        if self.collecting_bytes > self._rules.batch_bytes:
            taken_bytes = count = 0
            while count < len(entries) and taken_bytes < self._rules.batch_bytes:
                entry = entries[count]
                count += 1
                if isinstance(entry, Records) or (isinstance(entry, CommitEntry) and entry.accepted):
                    taken_bytes += entry.size
            self._collecting, entries = entries[count:], entries[:count]
            self.collecting_bytes -= taken_bytes
        else:
            self._collecting = []
            self.collecting_bytes = 0
        logged = [
            _logged(entry)
            for entry in entries
            if isinstance(entry, Records) or (isinstance(entry, CommitEntry) and entry.accepted)
        ]
        return entries, logged

    def nonce_of(self, slot: Slot) -> bytes:
        """The nonce of this leader's object in ``slot``. Only readers of the log know it."""
        if slot == self._claim.slot:
            return self._claim.nonce
        return blake2b(slot.to_bytes(8, "little"), key=self._nonce_seed, digest_size=16).digest()

    def _freeze(
        self,
        now: Instant,
        entries: list[CommitEntry | Place],
        logged: list[Logged],
        assigned: int,
        floor: int,
        kind: Kind = Kind.DATA,
    ) -> Put:
        before = self.head
        body = encode_body(logged)
        first = logged[0].version if logged else max(assigned, before.last_version)
        transactions = [each for each in logged if type(each) is LoggedTransaction]
        has_stores = before.stores_mode is StoresMode.LOG
        assert has_stores or len(transactions) == len(logged), "only a log with stores has entries"
        header = self.next_header(
            now,
            first,
            logged[-1].version if logged else first,
            floor,
            len(transactions),
            newest=transactions[-1].version if transactions else None,
            entries=len(logged) - len(transactions),
            body=body,
            kind=kind,
        )
        batch = Batch(header, encode_object(header, body), entries, logged, now.boot_ms)
        self.in_flight.append(batch)
        self._last_put_ms = now.boot_ms
        self.counters.batches += 1
        self.counters.transactions += len(transactions)
        self.counters.bytes += len(batch.payload)
        return self._send(batch, now.boot_ms)

    def next_header(
        self,
        now: Instant,
        first_version: int,
        last_version: int,
        floor: int,
        transactions: int,
        *,
        newest: int | None = None,
        entries: int = 0,
        body: bytes = b"",
        kind: Kind = Kind.DATA,
    ) -> Header:
        """The header of the object in ``next_slot``. It becomes the head.

        ``newest``: the version of its newest transaction, by default the last one.
        """
        before, moment, slot = self.head, self.clock.take(now), self.next_slot
        newest = (newest or last_version) if transactions else before.last_transaction_version
        self.head = Header(
            kind=kind,
            log_id=before.log_id,
            slot=slot,
            claim=self._claim.slot,
            prev=before.slot,
            epoch=self._claim.epoch,
            leader_id=self._claim.leader_id,
            nonce=self.nonce_of(slot),
            first_version=Version(first_version),
            last_version=Version(last_version),
            prev_version=before.last_transaction_version,
            window_floor=Version(max(floor, before.window_floor)),
            durable=self.durable_slot,
            truncated_through=max(before.truncated_through, self.truncate_through),
            time_ms=moment.time_ms,
            lived_ms=moment.lived_ms,
            boot_ms=moment.boot_ms,
            ahead_s=moment.ahead_s,
            clock_steps=moment.clock_steps,
            flags=moment.flags,
            address=self._claim.address,
            scope=self._claim.scope,
            transactions=transactions,
            body_length=len(body),
            body_crc=fastest_crc32()(body, 0),
            stores_mode=before.stores_mode,
            entries=entries,
            newest_transaction=Version(newest if before.stores_mode else 0),
        )
        return self.head

    # -- sending and answers ------------------------------------------------------------------------------------------

    def _send(self, batch: Batch, now_ms: float) -> Put:
        batch.sent_ms = now_ms
        batch.sends_ms.append(now_ms)
        batch.requests += 1
        batch.attempts += 1
        batch.retry_at_ms = None
        self.counters.puts += 1
        return Put(batch.header.slot, batch.payload, batch.attempts)

    def _find(self, slot: int) -> Batch | None:
        if not self.in_flight:
            return None
        index = self.in_flight[0].header.slot - slot
        return self.in_flight[index] if 0 <= index < len(self.in_flight) else None

    def answered(
        self, slot: int, answer: CreateAnswer, now_ms: float, number: int = 1
    ) -> tuple[Verdict, list[ReadBack]]:
        """Take one answer of one PUT. A late answer for a slot that is done changes nothing."""
        batch = self._find(slot)
        if batch is None or batch.done:
            return Verdict.GOES_ON, []
        batch.requests -= 1
        match answer:
            case Created():
                batch.done = True
                batch.proved_ms = batch.sends_ms[number - 1]
                self._expected_since_ms = now_ms
                self._latency.note(now_ms - batch.sent_ms, self._rules.hedge_percentile)
            case Refused(certain=certain):
                if not batch.reading:
                    batch.reading = True
                    return Verdict.GOES_ON, [ReadBack(batch.header.slot, certain)]
            case Unknown(detail=detail, final=True):
                self.last_trouble = detail
                return Verdict.SHUT, []
            case Unknown(detail=detail, retry_after_ms=after_ms):
                return self._again(batch, now_ms, detail, after_ms), []
        return Verdict.GOES_ON, []

    def read_back(self, slot: int, header: Header | Unknown | None, certain: bool, now_ms: float) -> Verdict:
        """Take the header that stands in a slot whose PUT was refused: None when the slot is empty."""
        batch = self._find(slot)
        if batch is None or batch.done:
            return Verdict.GOES_ON
        batch.reading = False
        if isinstance(header, Unknown):
            return self._again(batch, now_ms, header.detail, header.retry_after_ms)
        if header is None:
            # A store that answers "busy" and "taken" alike may have meant busy. One that meant taken, and has nothing
            # there now, removed an object of this log: only a later leader does that.
            return Verdict.DEPOSED if certain else self._again(batch, now_ms, "refused, but nothing there", None)
        own = batch.header
        if (header.log_id, header.leader_id, header.nonce, header.body_crc) != (
            own.log_id, own.leader_id, own.nonce, own.body_crc,
        ):  # fmt: skip
            return Verdict.DEPOSED
        batch.done = True
        self.counters.own_successes += 1
        return Verdict.GOES_ON

    def _again(self, batch: Batch, now_ms: float, detail: str, after_ms: int | None) -> Verdict:
        rules = self._rules
        self.last_trouble = detail
        if rules.retries_max is not None and batch.attempts - batch.hedged > rules.retries_max:
            if batch.requests or batch.reading:
                return Verdict.GOES_ON  # the hedge's answer, or what stands in the slot, may still be a success
            self.last_trouble = f"slot {batch.header.slot:020d} was sent {batch.attempts} times: {detail}"
            return Verdict.GAVE_UP
        if batch.retry_at_ms is None:
            ceiling = min(rules.retry_max_ms, rules.retry_base_ms * 2 ** min(batch.attempts - 1, 30))
            wait = max(ceiling * _jitter(batch), after_ms or 0)
            batch.retry_at_ms = now_ms + wait
        return Verdict.GOES_ON

    def resend(self, now_ms: float) -> list[Put]:
        """The retries and hedges that are due."""
        puts: list[Put] = []
        hedge_ms = self._latency.hedge_ms
        for batch in self.in_flight:
            if batch.done or batch.reading:
                continue
            if batch.retry_at_ms is not None:
                if batch.retry_at_ms <= now_ms:
                    self.counters.retries += 1
                    puts.append(self._send(batch, now_ms))
            elif hedge_ms is not None and not batch.hedged and now_ms >= batch.sent_ms + hedge_ms:
                batch.hedged = True
                self.counters.hedges += 1
                sent_ms = batch.sent_ms
                puts.append(self._send(batch, now_ms))
                batch.sent_ms = sent_ms
        return puts

    def too_long(self, now_ms: float) -> bool:
        """Whether the leader must give up the oldest batch. A pause of this process does not count."""
        return bool(self.in_flight) and self._give_up.has_passed(self._give_up_at_ms(), now_ms)

    def _give_up_at_ms(self) -> float:
        return self.in_flight[0].formed_ms + self._rules.give_up_after_ms

    def next_deadline_ms(self) -> float | None:
        """When this stage wants to be stepped again without an event, None for never."""
        deadlines: list[float] = []
        if self._collecting and self._may_send():
            deadlines.append(self._due_at_ms())
        if self.in_flight:
            deadlines.append(self._give_up.at_ms(self._give_up_at_ms()))
            hedge_ms = self._latency.hedge_ms
            for batch in self.in_flight:
                if batch.done or batch.reading:
                    continue
                if batch.retry_at_ms is not None:
                    deadlines.append(batch.retry_at_ms)
                elif hedge_ms is not None and not batch.hedged:
                    deadlines.append(batch.sent_ms + hedge_ms)
        return min(deadlines, default=None)

    def take_durable(self) -> list[Batch]:
        """Advance the watermark over every batch that is durable in slot order, and return those batches."""
        durable: list[Batch] = []
        while self.in_flight and self.in_flight[0].done:
            batch = self.in_flight.popleft()
            self.durable_header = batch.header
            durable.append(batch)
        if durable:
            self._expected = max(0, self._expected - self._returned) + sum(len(batch.entries) for batch in durable)
            self._returned = 0
        return durable

    def attach_to_newest(self, entries: list[CommitEntry | Place]) -> bool:
        """Let entries without writes wait for the newest batch in flight. False when nothing is in flight."""
        if not self.in_flight:
            return False
        self.in_flight[-1].entries += entries
        return True

    def abandon(self) -> list[CommitEntry | Place]:
        """Everything that waits, in order: the leader is finished and can prove nothing more."""
        waiting = [entry for batch in self.in_flight for entry in batch.entries] + self._collecting
        self.in_flight.clear()
        self._collecting = []
        self.collecting_bytes = 0
        return waiting

    def check(self) -> None:
        """Assert the invariants."""
        slots = [batch.header.slot for batch in self.in_flight]
        assert all(a == b + 1 for a, b in pairwise(slots)), "slots in flight are contiguous"
        assert len(slots) <= self._rules.window, "the span is within the window"
        assert not slots or slots[0] < self.durable_slot, "the watermark is older than every slot in flight"
        assert all(not batch.done or batch.payload for batch in self.in_flight), "frozen bytes stay"


def _logged(entry: CommitEntry | Records) -> Logged:
    if isinstance(entry, Records):
        return LoggedEntry(entry.version, entry.records)
    txn = entry.txn
    return LoggedTransaction(
        entry.version,
        txn.request_id,
        txn.read_version,
        txn.operations,
        txn.preconditions,
        entry.record,
        entry.parts_digest,
        txn.jobs,
    )


def _jitter(batch: Batch) -> float:
    """A deterministic fraction in [0, 1), drawn from the batch's nonce."""
    digest = blake2b(batch.attempts.to_bytes(4, "little"), key=batch.header.nonce, digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
