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
from random import Random
from typing import Final

from holdfast.errors import Unavailable
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import CreateAnswer, Listed, Pages, Refused, Unknown, require_key

SLOW_DOWN_MS: Final = 50


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


@dataclass(frozen=True, slots=True)
class LateCreate:
    """A create in flight: it lands before the request with the number ``due``, if the name is still free then."""

    due: int
    key: str
    data: bytes


class FaultyStore(MemoryStore):
    """Several of these may share one ``MemoryObjects``, each with its own faults. ``faults`` counts what happened, by
    the name of its rate, and ``requests`` what arrived. No call waits for anything."""

    def __init__(self, objects: MemoryObjects, random: Random, rates: FaultRates = NO_FAULTS) -> None:
        super().__init__(objects, url="memory:faulty")
        self.rates = rates
        self.faults: Counter[str] = Counter()
        self.late: list[LateCreate] = []
        self.requests = 0
        self._random = random

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """One create, and the result that its sender gets."""
        require_key(key)
        self._arrive()
        match self._draw("lost_request", "lost_answer", "late", "sent_twice", "busy_409", "slow_down_503"):
            case None:
                return await super().create(key, data)
            case "lost_request":
                return Unknown("the request was lost")
            case "lost_answer":
                self.objects.create(key, data)
                return Unknown("the answer was lost")
            case "late":
                due = self.requests + self._random.randint(1, self.rates.late_requests_max)
                self.late.append(LateCreate(due, key, bytes(data)))
                return Unknown("no answer in time")
            case "sent_twice":
                self.objects.create(key, data)
                return await super().create(key, data)
            case "busy_409":
                return Refused(certain=False)
            case _:
                return Unknown("503 slow down", retry_after_ms=SLOW_DOWN_MS)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Raises: NotFound, Unavailable."""
        self._arrive()
        if self._draw("failed_read") is not None:
            raise Unavailable("the read failed", key=key)
        return await super().read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """Raises: Unavailable, also when a later page fails: never a part of the answer."""
        self._arrive()
        rows: builtins.list[Listed] = []
        while True:
            if self._draw("torn_listing") is not None:
                raise Unavailable("the listing broke off", prefix=prefix, listed=len(rows))
            page_size = min(Pages.size, limit - len(rows))
            page = await super().list(prefix, after=after, limit=page_size)
            rows += page
            if len(page) < page_size or len(rows) == limit:
                return rows
            after = page[-1].key

    async def delete(self, *keys: str) -> None:
        """Each key by itself. Raises: Unavailable; the object may be gone all the same."""
        for key in keys:
            self._arrive()
            fails = self._draw("failed_delete") is not None
            if not fails or self._random.random() < 0.5:
                self.objects.delete(key)
            if fails:
                raise Unavailable("the delete failed", key=key)

    def land_all(self) -> None:
        """Let every create in flight land."""
        self._land(self.late)

    def _arrive(self) -> None:
        """A request arrives, after the late creates that are due."""
        self.requests += 1
        self._land([late for late in self.late if late.due <= self.requests])

    def _land(self, due: builtins.list[LateCreate]) -> None:
        for late in [*due]:
            self.late.remove(late)
            self.objects.create(late.key, late.data)

    def _draw(self, *candidates: str) -> str | None:
        """At most one of the faults. One number is drawn whatever the rates are, so changing one keeps the others."""
        number = self._random.random()
        for fault in candidates:
            rate: float = getattr(self.rates, fault)
            if number < rate:
                self.faults[fault] += 1
                return fault
            number -= rate
        return None
