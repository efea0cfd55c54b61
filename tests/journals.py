"""Checks the journals of the workers of one shared durable: what each application was handed, did, and saw confirmed.

A worker writes one line for each event, and the journal of the faults is written by the one that makes them. All times
are of the clock of one machine. A worker holds a message from its hand-over to the end of that hold.

    end of a hold         what the journals show
    acknowledged          the acknowledgement was confirmed, and was not stale
    ack_wait ended        the next hand-over comes ``ack_wait`` later at the earliest
    process died          the worker was killed in between
    process stopped       the worker was stopped (SIGSTOP) in between
    connection lost       the service was stopped in between and went on later, and the job was not done ``HEARD_NS``
                          after the stop: what the worker sends until then is on a connection that it has still
    buffer_wait ended     the message may have waited for ``buffer_wait`` (as long as ``ack_wait``) until its hand-over,
                          and its acknowledgement was not confirmed: the report of the hand-over came too late

    law                   meaning
    nothing_lost          each published message is done by a worker
    nothing_after_its_end no message is handed over after the end of its hold by a confirmed acknowledgement
    one_holder            no message is handed over while another hand-over of it has not ended
    repeats_are_marked    a repeat is ``redelivered`` and counts more, unless the report of the hand-over before was
                          late or ended with the service

A client cannot know of an end at once: ``ROUND_TRIP_NS`` later it must, and after a change of the service ``CHANGE_NS``
later. A repeat in that time is tolerated, and counted as *under way*.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

ROUND_TRIP_NS: Final = 100_000_000
CHANGE_NS: Final = 1_000_000_000
HEARD_NS: Final = 2_500_000_000
UNDER_WAY: Final = "under way"
BUFFER_ENDED: Final = "buffer_wait ended"
SERVICE: Final = "service"


@dataclass(frozen=True, slots=True)
class Fault:
    """``kind`` happened to ``who``, a worker or ``SERVICE``, which was there again at ``end_ns``.

    A process is killed, or stopped and goes on; a service that is stopped may be replaced meanwhile.
    """

    kind: str
    who: str
    begin_ns: int
    end_ns: int

    def is_during(self, begin_ns: float, end_ns: float) -> bool:
        return self.begin_ns <= end_ns and self.end_ns >= begin_ns


@dataclass(slots=True)
class HandOver:
    """A message given to an application, and what became of it."""

    worker: str
    seq: int
    at_ns: int
    count: int
    redelivered: bool
    done_ns: int | None = None
    acked_ns: int | None = None
    stale_ns: int | None = None


@dataclass(slots=True)
class Judgement:
    """What the journals show."""

    messages: int = 0
    hand_overs: int = 0
    repeats: Counter[str] = field(default_factory=Counter)
    """By the end of the hold before."""
    anomalies: list[str] = field(default_factory=list)


def hand_overs_of(journals: Mapping[str, Iterable[str]]) -> list[HandOver]:
    """By time. ``journals``: the lines of each worker, ``WHAT NS SEQ``, and the count and the mark after ``handed``."""
    found: list[HandOver] = []
    for worker, lines in journals.items():
        newest: dict[int, HandOver] = {}
        for line in lines:
            what, *numbers = line.split()
            at_ns, seq, *more = map(int, numbers)
            if what == "handed":
                newest[seq] = HandOver(worker, seq, at_ns, more[0], more[1] == 1)
                found.append(newest[seq])
            else:
                setattr(newest[seq], f"{what}_ns", at_ns)
    return sorted(found, key=lambda one: one.at_ns)


def judge(
    published: Mapping[int, int], hand_overs: Sequence[HandOver], faults: Sequence[Fault], ack_wait_ns: int
) -> Judgement:
    """Judge all laws. ``published``: when the publishing of each message began. Cost: O(hand-overs * faults)."""
    by_message: dict[int, list[HandOver]] = defaultdict(list)
    for one in hand_overs:
        by_message[one.seq].append(one)
    judgement = Judgement(hand_overs=len(hand_overs))
    for seq, since_ns in published.items():
        judgement.messages += 1
        rows = by_message[seq]
        found: list[str] = []
        if not any(one.done_ns for one in rows):
            found.append("nothing_lost: nobody has done it")
        for before, again in pairwise(rows):
            is_late = before.acked_ns is None and before.at_ns >= since_ns + ack_wait_ns - ROUND_TRIP_NS
            end = end_of(before, again, faults, ack_wait_ns) or (BUFFER_ENDED if is_late else None)
            since_ns = before.at_ns
            judgement.repeats[end or "none"] += 1
            if end is None:
                found.append(f"one_holder: {again.worker} got it, and nothing had ended the hold of {before.worker}")
            if end != UNDER_WAY and not is_marked(before, again, faults, is_counted=not is_late):
                found.append(f"repeats_are_marked: {again.worker} got it with count {again.count}")
        ended_ns = min((one.acked_ns for one in rows if one.acked_ns), default=None)
        if ended_ns is not None:
            late = [one for one in rows if one.at_ns > known_ns(ended_ns, faults)]
            found += [f"nothing_after_its_end: {one.worker} got it later" for one in late]
        judgement.anomalies += [f"message {seq}: {each}\n{story(rows, faults)}" for each in found]
    return judgement


def known_ns(lost_ns: int, faults: Sequence[Fault]) -> int:
    """When every client must know that a message was lost to it at ``lost_ns``."""
    known = lost_ns + ROUND_TRIP_NS
    for fault in faults:
        if fault.who == SERVICE and fault.is_during(lost_ns - CHANGE_NS, lost_ns + ROUND_TRIP_NS):
            known = max(known, fault.end_ns + CHANGE_NS)
    return known


def end_of(before: HandOver, again: HandOver, faults: Sequence[Fault], ack_wait_ns: int) -> str | None:
    """What ended the first hold before the second began; None for nothing."""
    between = [fault for fault in faults if fault.is_during(before.at_ns, again.at_ns)]
    if before.acked_ns is not None and before.acked_ns <= again.at_ns:
        return UNDER_WAY  # or too late, which is another law
    for fault in between:
        if fault.who == before.worker:
            return f"process {'died' if fault.kind == 'killed' else fault.kind}"
        if fault.who == SERVICE and fault.kind == "stopped":
            if before.done_ns is None or before.done_ns > fault.begin_ns + HEARD_NS:
                return "connection lost"
    if again.at_ns >= before.at_ns + ack_wait_ns - ROUND_TRIP_NS:
        return "ack_wait ended"
    return UNDER_WAY if again.at_ns <= known_ns(before.at_ns, faults) else None


def is_marked(before: HandOver, again: HandOver, faults: Sequence[Fault], *, is_counted: bool) -> bool:
    """Whether a repeat says that it is one. A service that is killed loses the reports that it had not stored."""
    changed = any(fault.who == SERVICE and fault.is_during(before.at_ns, again.at_ns) for fault in faults)
    return again.redelivered and again.count >= before.count + (is_counted and not changed)


def story(rows: Sequence[HandOver], faults: Sequence[Fault]) -> str:
    """All events of one message and all faults, by time, in milliseconds from the first."""
    events = [(fault.begin_ns, f"{fault.who} {fault.kind}") for fault in faults]
    events += [(fault.end_ns, f"{fault.who} there again") for fault in faults]
    for one in rows:
        events.append((one.at_ns, f"{one.worker} handed count={one.count} redelivered={one.redelivered}"))
        ends = {"done": one.done_ns, "acked": one.acked_ns, "stale": one.stale_ns}
        events += [(at_ns, f"{one.worker} {what}") for what, at_ns in ends.items() if at_ns is not None]
    first_ns = min((at_ns for at_ns, _ in events), default=0)
    return "\n".join(f"  {(at_ns - first_ns) / 1e6:10.1f} {what}" for at_ns, what in sorted(events))
