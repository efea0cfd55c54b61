"""One name that several writers create at the same time: what they create, and how it is raced until it is decided.

The offsets of one name are 50 ms times the fourth power of an even number: of 16 creates about six begin within the
first millisecond, where a check without a lock is open, and the last ones near the end, when the winner has landed.
A ``Side`` is a party of a race: this process (``LocalSide``), or one of the two of ``racer``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn, Protocol, TypeVar, assert_never

from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.objects.etcd.layout import PART_BYTES
from holdfast.objects.port import CreateAnswer, ObjectStore, Unknown
from holdfast.objects.probe.verdict import Fit, Read, Sight, Undecided, UnfitStore, judge

PREFIX: Final = "probe/"
SPIN_SECONDS: Final = 0.002
"""A timer may be late by a millisecond, so a writer polls the clock for the last ones."""
CLEAN_UP_SECONDS_MAX: Final = 5.0
UNFIT: Final = "this object store cannot hold a log: "
UNFIT_HINT: Final = "use one with conditional creates and ordered listings"

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]

NAMES: Final = 20
WRITERS: Final = 16
SPREAD_MS: Final = 50.0
CROWDING: Final = 4
SMALL_BYTES: Final = 256
LARGE_BYTES: Final = 1 << 20
LARGE: Final = frozenset({6, 13})
"""Which of the names have a large body: a gateway that checks before it has the body is open while it receives it."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One name: writer ``w`` creates it with ``body_of(..., w)``, ``offsets_ms[w]`` after the start."""

    name: str
    size: int
    offsets_ms: tuple[float, ...]


def plan_race(prefix: str, draw: Callable[[], float]) -> list[Contest]:
    """The race of two processes: ``NAMES`` names, each with ``WRITERS`` creates. ``draw``: numbers from 0 to 1."""
    return [
        Contest(
            f"{prefix}.race.{number}",
            LARGE_BYTES if number in LARGE else SMALL_BYTES,
            tuple(SPREAD_MS * draw() ** CROWDING for _ in range(WRITERS)),
        )
        for number in range(NAMES)
    ]


SHORT_LARGE_BYTES: Final = 64 << 10
FULL_REQUEST_BYTES: Final = {"etcd": PART_BYTES}
"""By scheme: the largest request to a store whose servers may refuse it, so that a start finds it out."""
SHORT_WRITERS: Final = 4


def plan_short_race(prefix: str, url: str) -> list[Contest]:
    """The race of one process at a start: few names, all creates at once."""
    large = FULL_REQUEST_BYTES.get(url.partition(":")[0], SHORT_LARGE_BYTES)
    sizes = {"one": SMALL_BYTES, "two": SMALL_BYTES, "large": large}
    return [Contest(f"{prefix}.{part}", size, (0.0,) * SHORT_WRITERS) for part, size in sizes.items()]


def body_of(name: str, size: int, writer: int) -> bytes:
    """The bytes that a writer sends: the same line again and again, cut at ``size``.

    >>> body_of("probe/a", 40, 3)
    b'writer 03 of probe/a\\nwriter 03 of probe/'
    """
    line = f"writer {writer:02d} of {name}\n".encode()
    return (line * (size // len(line) + 1))[:size]


def writer_of(data: bytes, contest: Contest) -> Read:
    """Whose body ``data`` is; foreign when it is not exactly one."""
    first = data[: len("writer 00")].decode("ascii", "replace").removeprefix("writer ")
    writer = int(first) if first.isascii() and first.isdigit() else -1
    is_writer = 0 <= writer < len(contest.offsets_ms)
    return writer if is_writer and data == body_of(contest.name, contest.size, writer) else Sight.FOREIGN


class Side(Protocol):
    """One of the parties of a race."""

    async def create(self, contest: Contest, writers: Sequence[int], start: float) -> list[CreateAnswer]:
        """The answers of these writers, each sent at its offset from ``start``, seconds of the monotonic clock.

        Raises: InvalidRequest (store_unfit), Unavailable.
        """
        ...

    async def see(self, contests: Sequence[Contest]) -> list[Read]:
        """What a read of each name shows. Raises: as ``create``."""
        ...


class LocalSide:
    """A side in this process. ``store`` repeats reads as far as it should."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def create(self, contest: Contest, writers: Sequence[int], start: float) -> list[CreateAnswer]:
        """As ``Side`` says."""

        async def create(writer: int) -> CreateAnswer:
            body = body_of(contest.name, contest.size, writer)
            await _until(start + contest.offsets_ms[writer] / 1000.0)
            return await self._store.create(contest.name, body)

        return await asyncio.gather(*(create(writer) for writer in writers))

    async def see(self, contests: Sequence[Contest]) -> list[Read]:
        """As ``Side`` says."""
        return await asyncio.gather(*(self._see(contest) for contest in contests))

    async def _see(self, contest: Contest) -> Read:
        try:
            return writer_of(await self._store.read(contest.name), contest)
        except NotFound:
            return Sight.ABSENT
        except Unavailable:
            return Sight.SILENT


async def _until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > SPIN_SECONDS:
        await asyncio.sleep(left - SPIN_SECONDS)
    while time.monotonic() < moment:  # noqa: ASYNC110 - the other process sets the moment, and no event tells it
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Settled:
    """A name that is fit so far: its answers, and the reads right after the creates."""

    contest: Contest
    answers: list[CreateAnswer]
    reads: list[Read]


@dataclass(frozen=True, slots=True)
class Patience:
    """How often an undecided name is raced again, and the first pause before that; the pause doubles each time."""

    again_max: int
    pause_seconds: float
    lead_seconds: float
    """From an order to its start: it reaches every side before."""


async def settle(
    sides: Sequence[Side], contest: Contest, url: str, names: list[str], patience: Patience, sleep: Sleep
) -> Settled:
    """Race one name until there is a verdict. ``names`` collects the names that may exist now.

    Raises: InvalidRequest (store_unfit), Unavailable (no verdict, or a side has failed).
    """
    cause = ""
    for attempt in range(1 + patience.again_max):
        if attempt:
            await sleep(patience.pause_seconds * 2 ** (attempt - 1))
        entered = replace(contest, name=f"{contest.name}.{attempt}")
        names.append(entered.name)
        settled = await _contend(sides, entered, time.monotonic() + patience.lead_seconds)
        verdict = judge(settled.answers, [settled.reads])
        match verdict:
            case Fit():
                return settled
            case UnfitStore(why=why):
                unfit(url, why)
            case Undecided(why=why):
                cause = _first_detail(settled.answers) or why
                if any(isinstance(answer, Unknown) and answer.final for answer in settled.answers):
                    unfit(url, f"it refuses an object for good: {cause}")
            case _:
                assert_never(verdict)
    raise Unavailable(
        "the object store did not answer whether it refuses a taken name",
        url=url,
        tries=1 + patience.again_max,
        cause=cause,
    )


async def _contend(sides: Sequence[Side], contest: Contest, start: float) -> Settled:
    """One name: the writers are dealt out to the sides, and every side reads it afterwards."""
    writers = range(len(contest.offsets_ms))
    shares = [writers[number :: len(sides)] for number in range(len(sides))]
    answered = await finish_all([side.create(contest, share, start) for side, share in zip(sides, shares, strict=True)])
    answers = [answered[writer % len(sides)][writer // len(sides)] for writer in writers]
    views = await finish_all([side.see([contest]) for side in sides])
    return Settled(contest, answers, [read for reads in views for read in reads])


async def finish_all(asked: Sequence[Awaitable[T]]) -> list[T]:
    """All results, after the last one, so that nothing is created any more. Raises: the first error."""
    results = await asyncio.gather(*asked, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _first_detail(answers: Sequence[CreateAnswer]) -> str:
    return next((detail for answer in answers if (detail := getattr(answer, "detail", ""))), "")


async def clean_up(store: ObjectStore, names: Sequence[str]) -> None:
    """Remove the names of a probe, within ``CLEAN_UP_SECONDS_MAX``. A failure is ignored: leftovers are harmless."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLEAN_UP_SECONDS_MAX):
            await asyncio.gather(*(store.delete(name) for name in names), return_exceptions=True)


def unfit(url: str, why: str) -> NoReturn:
    """Raise that the store broke a promise."""
    raise InvalidRequest(f"{UNFIT}{why}", code=Code.STORE_UNFIT, hint=UNFIT_HINT, url=url)
