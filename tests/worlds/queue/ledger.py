"""The plain model of a queue, a list, and the seven promises that everything read from the real one must keep.

``PromiseBroken`` begins with the promise:

| | promise |
|---|---|
| I1 | delivered messages are byte-exact |
| I2 | a recovered log is a prefix of what was appended, and a frame is there whole or not at all |
| I3 | that prefix holds everything at or below ``durable_seq``; after a kill, everything that was accepted |
| I4 | sequence numbers rise by exactly one and times never fall |
| I5 | every index and metadata file may be deleted without losing a message |
| I6 | ``read(since=T)`` never misses a message that arrived at or after T |
| I7 | the size of a page follows from its number: pages double up to the configured size (``world`` checks it) |
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

from tests.worlds.harness import PromiseBroken

from holdfast.queue import Gap, Message, Queue, Trimmed

__all__ = ["LOST", "Ledger", "check_reading", "moment", "never_durable"]

LOST: Final = b"lost"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Ledger:
    """Every message that may be found, in order, and how many have to be.

    ``pending`` is being appended: it may be there or not. ``inner`` are lengths that would cut a frame in two.
    ``durable`` is what was promised to survive a loss of power, ``accepted`` what survives a kill. ``trimmed_max`` is
    the highest sequence number that retention may have removed.
    """

    __slots__ = ("accepted", "arrivals", "durable", "inner", "payloads", "pending", "pending_ns", "trimmed_max")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.arrivals: list[int] = []
        self.inner: set[int] = set()
        self.pending: list[bytes] = []
        self.pending_ns = 0
        self.durable = 0
        self.accepted = 0
        self.trimmed_max = 0

    def copy(self) -> Ledger:
        """The same, to go on from in another way."""
        other = Ledger()
        other.payloads, other.arrivals, other.pending = list(self.payloads), list(self.arrivals), list(self.pending)
        other.pending_ns = self.pending_ns
        other.inner = set(self.inner)
        other.durable, other.accepted, other.trimmed_max = self.durable, self.accepted, self.trimmed_max
        return other

    def begin(self, payloads: list[bytes], arrival_ns: int, *, frame: bool) -> None:
        """These are about to be appended, no earlier than this, in one frame or, for all the ledger knows, not."""
        self.pending = payloads
        self.pending_ns = arrival_ns
        if frame:
            self.inner.update(range(len(self.payloads) + 1, len(self.payloads) + len(payloads)))

    def appended(self, first: int, last: int) -> None:
        """The queue has answered."""
        expected = len(self.payloads) + 1
        if (first, last) != (expected, expected + len(self.pending) - 1):
            raise PromiseBroken(f"I4: appended {len(self.pending)} as {first} to {last}, not from {expected}")
        self.payloads += self.pending
        self.arrivals += [self.pending_ns] * len(self.pending)
        self.pending = []
        self.accepted = len(self.payloads)

    def refused(self, appended: int) -> None:
        """The queue has said that only so many of the pending messages are in it."""
        self.inner.difference_update(range(len(self.payloads) + 1, len(self.payloads) + len(self.pending)))
        self.payloads += self.pending[:appended]
        self.arrivals += [self.pending_ns] * appended
        self.pending = []

    def recovered(self, last_seq: int) -> None:
        """A start has found the log to end here: the rest is gone, and may not come back."""
        history = [*self.payloads, *self.pending]
        arrivals = [*self.arrivals, *[self.pending_ns] * len(self.pending)]
        self.payloads, self.arrivals, self.pending = history[:last_seq], arrivals[:last_seq], []
        self.inner = {length for length in self.inner if length < last_seq}

    def forget(self, skipped: Collection[int]) -> None:
        """The messages with these numbers are gone, and no other gets the numbers."""
        for seq in skipped:
            if seq <= len(self.payloads):
                self.payloads[seq - 1] = LOST

    def check(
        self, messages: list[Message], first_seq: int, last_seq: int, *, floor: int, skipped: Collection[int] = ()
    ) -> None:
        """I1 to I4 for everything that is found between the first message and the last, except ``skipped`` numbers.

        Raises: ``PromiseBroken``.
        """
        history = [*self.payloads, *self.pending]
        if last_seq > len(history):
            raise PromiseBroken(f"I2: {last_seq} messages found, {len(history)} were ever appended")
        if last_seq < floor:
            raise PromiseBroken(f"I3: the log ends at {last_seq}, {floor} was promised")
        if last_seq in self.inner:
            raise PromiseBroken(f"I2: a frame was cut in two at {last_seq}")
        if first_seq - 1 > self.trimmed_max:
            raise PromiseBroken(f"I3: begins at {first_seq}, nothing above {self.trimmed_max} may be removed")
        check_order(messages, first_seq, last_seq, skipped)
        for message in messages:
            if message.payload != history[message.seq - 1]:
                raise PromiseBroken(f"I1: message {message.seq} is {message.payload[:40]!r}")

    def check_reported(
        self, messages: list[Message], reports: list[Gap | Trimmed], first_seq: int, last_seq: int
    ) -> None:
        """I1, and I2 where something is missing: what is delivered is exact and in order, what is not is reported.

        Raises: ``PromiseBroken``.
        """
        history = [*self.payloads, *self.pending]
        found = [message.seq for message in messages]
        if found != sorted(set(found)) or any(seq > len(history) for seq in found):
            raise PromiseBroken(f"I4: {len(found)} messages out of order, or more than the {len(history)} appended")
        for message in messages:
            if message.payload != history[message.seq - 1]:
                raise PromiseBroken(f"I1: message {message.seq} is {message.payload[:40]!r}")
        reported = {
            seq for report in reports if isinstance(report, Gap) for seq in range(report.first, report.last + 1)
        }
        missing = set(range(first_seq, last_seq + 1)) - set(found)
        if not missing <= reported or (reported and min(reported) <= self.durable and min(reported) > self.trimmed_max):
            raise PromiseBroken(f"I2: {sorted(missing)[:5]} are missing, {sorted(reported)[:5]} reported")

    def arrived_since(self, time_ns: int, first_seq: int, last_seq: int) -> int:
        """The first message at or after this time that has to be delivered; ``last_seq + 1`` where there is none."""
        for seq in range(first_seq, min(last_seq, len(self.arrivals)) + 1):
            if self.arrivals[seq - 1] >= time_ns:
                return seq
        return last_seq + 1


def never_durable(reports: list[Gap | Trimmed]) -> set[int]:
    """The numbers that were used and never durable: the only ones that may be missing.

    Raises: ``PromiseBroken``.
    """
    missing: set[int] = set()
    for report in reports:
        if not isinstance(report, Gap) or report.reason != "crash":
            raise PromiseBroken(f"I2: nothing is damaged, and {report} is reported")
        missing.update(range(report.first, report.last + 1))
    return missing


def check_order(messages: list[Message], first_seq: int, last_seq: int, skipped: Collection[int] = ()) -> None:
    """I4: from the first to the last without a hole but the skipped numbers, and in time."""
    found = [message.seq for message in messages]
    if found != [seq for seq in range(first_seq, last_seq + 1) if seq not in skipped]:
        missing = sorted(set(range(first_seq, last_seq + 1)) - set(found))[:5]
        raise PromiseBroken(f"I4: {len(found)} messages for {first_seq} to {last_seq}, missing {missing}")
    times = [message.time_ns for message in messages]
    if times != sorted(times):
        raise PromiseBroken("I4: time falls")


def moment(time_ns: int) -> datetime:
    """Nanoseconds since 1970, a multiple of 1000, as a time."""
    return EPOCH + timedelta(microseconds=time_ns // 1000)


def check_reading(queue: Queue, ledger: Ledger, messages: list[Message], last_seq: int, random: Random) -> None:
    """Every way of reading gives the same messages: since a time (I6), from a sequence number, in blocks.

    Raises: ``PromiseBroken``.
    """
    if not messages:
        return
    first_seq = messages[0].seq
    chosen = random.choice(messages)
    for time_ns in (chosen.time_ns, chosen.time_ns + 1000, ledger.arrivals[random.randrange(len(ledger.arrivals))]):
        found = list(queue.read(since=moment(time_ns)))
        wanted = ledger.arrived_since(time_ns, first_seq, last_seq)
        if wanted <= last_seq and (not found or found[0].seq > wanted):
            raise PromiseBroken(f"I6: message {wanted} arrived at or after {time_ns} and is missed")
        if found != messages[len(messages) - len(found) :]:
            raise PromiseBroken(f"I1: reading since {time_ns} gives other messages than reading all")
    if list(queue.read(seq=chosen.seq)) != messages[chosen.seq - first_seq :]:
        raise PromiseBroken(f"I1: reading from {chosen.seq} gives other messages than reading all")
    payloads = [message.payload for message in messages[chosen.seq - first_seq :]]
    if list(queue.read_payloads(seq=chosen.seq)) != payloads:
        raise PromiseBroken(f"I1: payloads from {chosen.seq} are not those of reading all")
    blocks = list(queue.batches(seq=chosen.seq))
    if [bytes(item) for block in blocks for item in block] != payloads:
        raise PromiseBroken(f"I1: blocks from {chosen.seq} give other messages than reading all")
