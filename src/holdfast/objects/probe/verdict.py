"""The verdict on one name that several writers created at the same time: a pure function of the answers and the reads.

The rows are tried in this order; the first that fits decides.

| creates that succeeded | what the reads show | verdict |
|---|---|---|
| two or more | anything | unfit |
| any | bytes that no writer sent | unfit |
| any | the bytes of two writers | unfit |
| any | the bytes of a writer, and in a later round nothing | unfit |
| one | the bytes of another writer | unfit |
| one | nothing | unfit |
| any | no answer, or no read | undecided |
| none | nothing, in some read | undecided: one may land late |
| none | the bytes of a create that was refused | undecided: something between may have sent it twice |
| one | its bytes | fit, if enough creates were answered |
| none | the bytes of a create without an answer | fit, if enough creates were answered |

A 409, a 5xx and a lost answer do not count as answers. Enough is three quarters of the creates. With fewer, the race
proved too little, and the caller races another name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.objects.port import CreateAnswer, Created, Refused


class Sight(Enum):
    """What a read showed that is not the bytes of one writer."""

    ABSENT = "absent"
    FOREIGN = "foreign"
    """Bytes that no writer sent: parts of two bodies, or of one."""
    SILENT = "silent"
    """The read had no answer."""


Read = int | Sight
"""What one read showed; a number is the writer whose bytes were read, all of them."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Exactly one create took effect."""


@dataclass(frozen=True, slots=True)
class UnfitStore:
    """The store broke a promise. ``why`` completes "this object store cannot hold a log"."""

    why: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """The answers prove nothing."""

    why: str


Verdict = Fit | UnfitStore | Undecided


def judge(answers: Sequence[CreateAnswer], rounds: Sequence[Sequence[Read]]) -> Verdict:
    """The verdict on one name. ``answers`` are those of the writers 0, 1, ...; each of ``rounds`` holds reads that were
    sent after all creates had ended, and after the round before."""
    created = [writer for writer, answer in enumerate(answers) if isinstance(answer, Created)]
    reads = [read for each in rounds for read in each]
    owners = sorted({read for read in reads if isinstance(read, int)})
    broken = _broken(created, owners, rounds)
    if broken is not None:
        return UnfitStore(broken)
    if not reads or Sight.SILENT in reads:
        return Undecided("a read had no answer")
    if not owners or Sight.ABSENT in reads:
        return Undecided("no create took effect before it was read")
    if not created and _is_refusal(answers[owners[0]]):
        return Undecided("a create was refused, and its bytes are there")
    if not _enough(answers):
        return Undecided("too few creates were answered")
    return Fit()


def _broken(created: Sequence[int], seen: Sequence[int], rounds: Sequence[Sequence[Read]]) -> str | None:
    """The promise that was broken, None for none."""
    reads = [read for each in rounds for read in each]
    if len(created) > 1:
        return "two creates of one name succeeded: it ignores If-None-Match, or checks it without a lock"
    if Sight.FOREIGN in reads:
        return "an object reads back with other bytes than any create sent"
    if len(seen) > 1:
        return "one name reads back with other bytes at another time or place"
    if _has_vanished(rounds):
        return "an object that could be read has gone"
    if created and seen and seen != list(created):
        return "an object that it acknowledged reads back with other bytes"
    if created and Sight.ABSENT in reads:
        return "an object that it acknowledged cannot be read back"
    return None


def _has_vanished(rounds: Sequence[Sequence[Read]]) -> bool:
    was_there = False
    for each in rounds:
        if was_there and Sight.ABSENT in each:
            return True
        was_there = was_there or any(isinstance(read, int) for read in each)
    return False


def _enough(answers: Sequence[CreateAnswer]) -> bool:
    clear = sum(isinstance(each, Created) or _is_refusal(each) for each in answers)
    return 4 * clear >= 3 * len(answers)


def _is_refusal(answer: CreateAnswer) -> bool:
    return isinstance(answer, Refused) and answer.certain
