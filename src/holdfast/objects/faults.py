"""An object store that fails as S3 can, a little more often and later, from one seed.

The same seed and the same calls give the same results:

- a create is lost; or carried out and its response lost; or lands several requests later; or is carried out by a first
  try and refused in a second one, whose response is the only one that arrives
- 409 is a refusal that proves nothing; 503 refuses service and names a time to wait
- a listing breaks off between pages; a read or delete fails; a failed delete may have happened
- a created object is visible immediately, in every listing: S3 is strongly consistent
"""

from __future__ import annotations

import builtins
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from holdfast.errors import Unavailable
from holdfast.objects.memory import MemoryObjects
from holdfast.objects.port import CREATED, CreateAnswer, Listed, Refused, Unknown, require_key

SLOW_DOWN_MS: Final = 50
PAGE: Final = 1000


class StoreFault(StrEnum):
    """What can happen to a request."""

    LOST_REQUEST = "lost_request"
    LOST_ANSWER = "lost_answer"
    LATE = "late"
    SENT_TWICE = "sent_twice"
    BUSY_409 = "busy_409"
    SLOW_DOWN_503 = "slow_down_503"
    TORN_LISTING = "torn_listing"
    FAILED_READ = "failed_read"
    FAILED_DELETE = "failed_delete"


@dataclass(frozen=True, slots=True)
class FaultRates:
    """The probability of each fault, per request of its kind. Those of one kind add up to at most 1. Units:
    probabilities 0..1; a late create lands at most ``late_requests_max`` requests later."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0
    sent_twice: float = 0.0
    busy_409: float = 0.0
    slow_down_503: float = 0.0
    torn_listing: float = 0.0
    failed_read: float = 0.0
    failed_delete: float = 0.0
    late_requests_max: int = 50

    @classmethod
    def all_at(cls, probability: float) -> FaultRates:
        """Every fault at one probability."""
        one = probability
        return cls(one, one, one, one, one, one, one, one, one)


NO_FAULTS: Final = FaultRates()

_CREATE_FAULTS: Final = (
    StoreFault.LOST_REQUEST,
    StoreFault.LOST_ANSWER,
    StoreFault.LATE,
    StoreFault.SENT_TWICE,
    StoreFault.BUSY_409,
    StoreFault.SLOW_DOWN_503,
)


@dataclass(frozen=True, slots=True)
class LateCreate:
    """A create in flight: it lands before the request with the number ``due``, if the name is still free then."""

    due: int
    key: str
    data: bytes


class FaultyObjects:
    """The synchronous core: like ``MemoryObjects``, but a create answers as the port does, and anything may fail.
    ``faults`` counts what happened. Several of these may share one ``MemoryObjects``, each with its own faults."""

    def __init__(self, objects: MemoryObjects, random: Random, rates: FaultRates = NO_FAULTS) -> None:
        self.objects = objects
        self.rates = rates
        self.faults: Counter[StoreFault] = Counter()
        self.late: list[LateCreate] = []
        self._random = random
        self._requests = 0

    def create(self, key: str, data: bytes) -> CreateAnswer:
        """One create, and the result that its sender gets."""
        require_key(key)
        self._arrive()
        fault = self._draw(*_CREATE_FAULTS)
        match fault:
            case None:
                return self._answer(self.objects.create(key, data))
            case StoreFault.LOST_REQUEST:
                return Unknown("the request was lost")
            case StoreFault.LOST_ANSWER:
                self.objects.create(key, data)
                return Unknown("the answer was lost")
            case StoreFault.LATE:
                due = self._requests + self._random.randint(1, self.rates.late_requests_max)
                self.late.append(LateCreate(due, key, bytes(data)))
                return Unknown("no answer in time")
            case StoreFault.SENT_TWICE:
                self.objects.create(key, data)
                return self._answer(self.objects.create(key, data))
            case StoreFault.BUSY_409:
                return Refused(certain=False)
            case _:
                return Unknown("503 slow down", retry_after_ms=SLOW_DOWN_MS)

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Raises: NotFound, Unavailable."""
        self._arrive()
        if self._draw(StoreFault.FAILED_READ) is not None:
            raise Unavailable("the read failed", key=key)
        return self.objects.read(key, start=start, length=length)

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """Raises: Unavailable, also when a later page fails: never a part of the answer."""
        self._arrive()
        rows: builtins.list[Listed] = []
        while True:
            if self._draw(StoreFault.TORN_LISTING) is not None:
                raise Unavailable("the listing broke off", prefix=prefix, listed=len(rows))
            wanted = min(PAGE, limit - len(rows))
            page = self.objects.list(prefix, after=after, limit=wanted)
            rows += page
            if len(page) < wanted or len(rows) == limit:
                return rows
            after = page[-1].key

    def delete(self, key: str) -> None:
        """Raises: Unavailable; the object may be gone all the same."""
        self._arrive()
        if self._draw(StoreFault.FAILED_DELETE) is not None:
            if self._random.random() < 0.5:
                self.objects.delete(key)
            raise Unavailable("the delete failed", key=key)
        self.objects.delete(key)

    def land(self, late: LateCreate) -> bool:
        """Let one late create land now; False when the name is taken."""
        self.late.remove(late)
        return self.objects.create(late.key, late.data)

    def land_all(self) -> None:
        """Let every create in flight land."""
        while self.late:
            self.land(self.late[0])

    def _arrive(self) -> None:
        """A request arrives, after the late creates that are due."""
        self._requests += 1
        for late in [late for late in self.late if late.due <= self._requests]:
            self.land(late)

    def _draw(self, *candidates: StoreFault) -> StoreFault | None:
        """At most one of the faults. One number is drawn whatever the rates are, so changing one keeps the others."""
        number = self._random.random()
        for fault in candidates:
            rate: float = getattr(self.rates, fault.value)
            if number < rate:
                self.faults[fault] += 1
                return fault
            number -= rate
        return None

    @staticmethod
    def _answer(created: bool) -> CreateAnswer:
        return CREATED if created else Refused()


class FaultyStore:
    """The port on ``FaultyObjects``."""

    def __init__(self, objects: FaultyObjects, *, url: str = "memory:faulty") -> None:
        self.objects = objects
        self.url = url

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """As the port says."""
        return self.objects.create(key, data)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says."""
        return self.objects.read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """As the port says."""
        return self.objects.list(prefix, after=after, limit=limit)

    async def delete(self, *keys: str) -> None:
        """As the port says; each key by itself."""
        for key in keys:
            self.objects.delete(key)

    async def close(self) -> None:
        """As the port says."""
