"""Signs of life: small objects next to the log that say which leader is alive, also while it writes nothing.

| object | content |
|---|---|
| ``meta/alive/{2^64-1 - epoch:020d}-{2^64-1 - number:020d}-{leader id}`` | ``Sign`` as JSON |

The names count down, so a LIST begins with the newest sign of the newest leadership. The leader creates the next one,
then deletes the one before: one object stays. A leader that is killed leaves two at most, and the next leader removes
them. Signs are not part of the log: no reader follows them, no copy has them, and a lost one only costs time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import msgspec
import structlog

from holdfast.commit.format.batch import FIRST_SLOT, UNKNOWN_SCOPE, Header
from holdfast.commit.leadership.evidence import ProcessPlace, Sign
from holdfast.errors import HoldfastError, NotFound, Unavailable, statement_of
from holdfast.objects.port import ObjectStore, Unknown
from holdfast.values import LeaderId

log = structlog.get_logger("holdfast.commit.leadership.signs")

PREFIX: Final = "meta/alive/"
LOOKS_MAX: Final = 3
PAGE: Final = 1_000
UNREMOVED_MAX: Final = 1_000
"""Names of signs whose removal failed. Beyond it the oldest is forgotten, and left to the next leader."""
REQUEST_MS_MAX: Final = 5_000.0
WARN_EVERY_SECONDS: Final = 60.0


def name_of(epoch: int, number: int, leader_id: str) -> str:
    """The name of a sign.

    >>> name_of(3, 1, "0" * 32)
    'meta/alive/18446744073709551612-18446744073709551614-00000000000000000000000000000000'
    """
    return f"{PREFIX}{FIRST_SLOT - epoch:020d}-{FIRST_SLOT - number:020d}-{leader_id}"


def number_in(name: str, epoch: int, leader_id: str) -> int | None:
    """The number of a sign of this leadership; None for any other name."""
    head, tail = f"{PREFIX}{FIRST_SLOT - epoch:020d}-", f"-{leader_id}"
    digits = name[len(head) : -len(tail)]
    if not (name.startswith(head) and name.endswith(tail)) or len(digits) != 20 or not digits.isdecimal():
        return None
    return FIRST_SLOT - int(digits)


class SignReader:
    """Reads the newest sign of a leadership. It remembers one, so that of each leadership one body is read."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._last: Sign | None = None

    async def newest(self, epoch: int, leader_id: LeaderId) -> Sign | None:
        """The newest sign of this leadership, None without one. Cost: a LIST; a GET at the first one.

        Raises: Unavailable.
        """
        leader = leader_id.hex()
        for _ in range(LOOKS_MAX):
            rows = await self._store.list(PREFIX, limit=8)
            numbers = ((row.key, number_in(row.key, epoch, leader)) for row in rows)
            name, number = next(((name, number) for name, number in numbers if number is not None), ("", None))
            if number is None:
                return None
            last = self._last
            if last is None or (last.leader_id, last.epoch) != (leader, epoch):
                try:
                    last = msgspec.json.decode(await self._store.read(name), type=Sign)
                except NotFound:  # it was replaced since the listing
                    continue
                except (msgspec.DecodeError, UnicodeDecodeError):
                    return None
            self._last = msgspec.structs.replace(last, number=number)
            return self._last
        raise Unavailable("the newest sign of life was replaced at each look", key=PREFIX)


class Signs:
    """The signs of one leader: the next is created, then the one before is deleted. Not for concurrent use.

    Cost: a create and a delete for each sign, and one listing for all of them.
    """

    def __init__(self, store: ObjectStore, claim: Header, here: ProcessPlace, interval_ms: float) -> None:
        self._store = store
        # Two attempts fit between two signs, so that a lost request costs less than one interval.
        self._request_s = min(REQUEST_MS_MAX, interval_ms / 2.0) / 1000.0
        address, scope = (here.bound[0], here.scopes[0]) if here.bound and here.scopes else ("", UNKNOWN_SCOPE)
        self.newest = Sign(
            leader_id=claim.leader_id.hex(),
            epoch=claim.epoch,
            number=0,
            interval_ms=interval_ms,
            address=address,
            boot_id=scope.boot_id.hex(),
            namespace=scope.namespace,
        )
        self._unremoved: deque[str] = deque(maxlen=UNREMOVED_MAX)
        self._looked = False
        self._warned_s = -WARN_EVERY_SECONDS

    async def show(self) -> bool:
        """Create the next sign and delete what came before. Returns whether the sign is there. Raises nothing.

        After a crash: the sign may or may not exist, and two may exist.
        """
        sign = msgspec.structs.replace(self.newest, number=self.newest.number + 1)
        name = name_of(sign.epoch, sign.number, sign.leader_id)
        try:
            async with asyncio.timeout(self._request_s):
                answer = await self._store.create(name, msgspec.json.encode(sign))
        except (HoldfastError, OSError, TimeoutError) as error:
            answer = Unknown(_why(error))
        if isinstance(answer, Unknown):
            self._warn("sign_not_shown", error=answer.detail)
            return False
        # A refusal means that an earlier attempt at this very name was created: names are unique to a leader.
        if self.newest.number:
            self._unremoved.append(name_of(sign.epoch, sign.number - 1, sign.leader_id))
        self.newest = sign
        await self._remove(name)
        return True

    async def _remove(self, newest: str) -> None:
        try:
            async with asyncio.timeout(self._request_s):
                if not self._looked:
                    rows = await self._store.list(PREFIX, after=newest, limit=PAGE)
                    self._unremoved.extend(row.key for row in rows)
                    self._looked = len(rows) < PAGE
                if self._unremoved:
                    await self._store.delete(*dict.fromkeys(self._unremoved))
                    self._unremoved.clear()
        except (HoldfastError, OSError, TimeoutError) as error:
            self._warn("signs_not_removed", signs=len(self._unremoved), error=_why(error))

    def _warn(self, event: str, **facts: object) -> None:
        """Write one line, however often it is tried again."""
        seconds = asyncio.get_running_loop().time()
        if seconds >= self._warned_s + WARN_EVERY_SECONDS:
            self._warned_s = seconds
            log.warning(event, **facts)


def _why(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else statement_of(error)
