"""One of the two processes of a race: it creates and reads names through connections of its own.

Standard input has one JSON object a line, standard output the reply to each, in order. ``do`` is ``create`` (some
writers of one name, at moments of the monotonic clock, which all processes of a machine share) or ``see`` (read names).
The process ends at the end of its standard input.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from holdfast.errors import HoldfastError
from holdfast.objects.open import open_store
from holdfast.objects.port import CREATED, CreateAnswer, Created, Refused, Unknown
from holdfast.objects.probe.contest import LocalSide, Side
from holdfast.objects.probe.plan import Contest
from holdfast.objects.probe.verdict import Read, Sight
from holdfast.objects.retrying import ANSWERING

REQUEST_TIMEOUT_MS: Final = 30_000

Word = Literal["created", "refused", "busy", "unknown"]


class Create(msgspec.Struct, tag_field="do", tag="create", frozen=True):
    """Create a name for each of ``writers``, at its offset from ``start``."""

    contest: Contest
    writers: Sequence[int]
    start: float


class See(msgspec.Struct, tag_field="do", tag="see", frozen=True):
    """Read each name."""

    contests: Sequence[Contest]


class Answered(msgspec.Struct, tag_field="is", tag="answered", frozen=True):
    """The answers of the creates, each with a detail."""

    answers: list[tuple[Word, str]]

    def decoded(self) -> list[CreateAnswer]:
        """The answers as the port has them."""
        return [
            CREATED if word == "created" else Unknown(detail) if word == "unknown" else Refused(word == "refused")
            for word, detail in self.answers
        ]


class Sightings(msgspec.Struct, tag_field="is", tag="seen", frozen=True):
    """For each name a writer's number, or the name of a ``Sight``."""

    reads: list[int | str]

    def decoded(self) -> list[Read]:
        """The reads as the verdict takes them."""
        return [read if isinstance(read, int) else Sight[read] for read in self.reads]


class RacerFailed(msgspec.Struct, tag_field="is", tag="failed", frozen=True):
    """The store raised this error."""

    code: str
    statement: str


Order = Create | See
Reply = Answered | Sightings | RacerFailed


async def obey(side: Side, order: Order) -> Reply:
    """Carry out one order. An error of the store is a reply."""
    try:
        match order:
            case Create(contest=contest, writers=writers, start=start):
                return Answered([_worded(answer) for answer in await side.create(contest, writers, start)])
            case See(contests=contests):
                reads = await side.see(contests)
                return Sightings([read if isinstance(read, int) else read.name for read in reads])
    except HoldfastError as error:
        return RacerFailed(str(error.code), error.statement())


def _worded(answer: CreateAnswer) -> tuple[Word, str]:
    match answer:
        case Created():
            return "created", ""
        case Refused(certain=certain):
            return "refused" if certain else "busy", ""
        case Unknown(detail=detail):
            return "unknown", detail


async def _serve(url: str) -> None:
    # Without idle connections each request opens one: to any address of the host, through any gateway behind it.
    store = open_store(url, request_timeout_ms=REQUEST_TIMEOUT_MS, connections_max=0, retry=ANSWERING)
    try:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            reply = await obey(LocalSide(store), msgspec.json.decode(line, type=Order))
            sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
            sys.stdout.buffer.flush()
    finally:
        await store.close()


def main() -> int:
    """Run the process: ``python -m holdfast.objects.probe.racer URL``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    try:
        asyncio.run(_serve(sys.argv[1]))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
