"""A strict object store, and a network that loses, delays, repeats and reorders the requests of nodes.

A PUT's request or response is lost; it lands long after its sender gave up; the store's client sends it twice and
reports the second response; the network copies it; the store is busy (409), throttles (503), or fails after it
committed (500). A GET fails. A LIST fails, or its pages are of different moments. The store is strict: a slot is
created once and its bytes never change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable
from random import Random

from tests.worlds.log.agenda import Agenda, Owner

from holdfast.commit.format.batch import HEADER_BYTES, object_name
from holdfast.objects.port import CREATED, CreateAnswer, Refused, Unknown

__all__ = ["Network", "StrictStore"]

REQUEST_TIMEOUT_MS = 300.0

Rows = list[tuple[str, int]]


class StrictStore:
    """Slots and their bytes. ``landed`` is called after every creation, ``deleting`` before a node's deletion.

    ``archive``: removed objects as well. ``others``: objects under other prefixes.
    """

    __slots__ = ("archive", "deleting", "landed", "objects", "others", "slots")

    def __init__(self, landed: Callable[[int], None], deleting: Callable[[int], None]) -> None:
        self.deleting = deleting
        self.objects: dict[int, bytes] = {}
        self.archive: dict[int, bytes] = {}
        self.others: dict[str, bytes] = {}
        self.slots: list[int] = []
        self.landed = landed

    def create(self, slot: int, data: bytes) -> bool:
        """Create the object if the slot is free; False when it is taken."""
        if slot in self.objects:
            return False
        self.objects[slot] = data
        # A late PUT may land where retention has removed an object: readers of history saw the first one.
        self.archive.setdefault(slot, data)
        insort(self.slots, slot)
        self.landed(slot)
        return True

    def page(self, limit: int, after: int = -1) -> Rows:
        """The newest ``limit`` objects whose slot is above ``after``, in listing order."""
        first = bisect_right(self.slots, after)
        return [(object_name(slot), len(self.objects[slot])) for slot in self.slots[first : first + limit]]

    def delete(self, slot: int) -> None:
        """Remove an object."""
        if self.objects.pop(slot, None) is not None:
            del self.slots[bisect_left(self.slots, slot)]


class Network:
    """Carries requests between nodes and the store. Every request gets one answer, unless its sender crashes."""

    def __init__(
        self,
        agenda: Agenda,
        random: Random,
        store: StrictStore,
        rates: dict[str, float],
        latency_ms: float,
        seen: Counter[str],
    ) -> None:
        self._agenda = agenda
        self._random = random
        self._store = store
        self._rates = rates
        self._latency_ms = latency_ms
        self._seen = seen
        self.partitioned: set[int] = set()
        self.healed = False

    def strikes(self, fault: str, chance: float) -> bool:
        """Whether a fault strikes now, and count it."""
        rate = self._rates[fault]
        if not rate or self.healed or self._random.random() >= rate * chance:
            return False
        self._seen[fault] += 1
        return True

    def delay_ms(self) -> float:
        """One way through the network: mostly near the latency, sometimes many times it."""
        draw = self._random.random()
        slow = draw > 0.97
        return self._latency_ms * (0.3 + draw) * (10.0 if slow else 0.5)

    def _cut_off(self, owner: Owner) -> bool:
        return id(owner) in self.partitioned and not self.healed

    # -- PUT --------------------------------------------------------------------------------------------------------

    def create(self, owner: Owner, slot: int, data: bytes, done: Callable[[CreateAnswer], None]) -> None:
        """Send one conditional PUT; ``done`` gets its answer."""
        after = self._agenda.after
        if self._cut_off(owner) or self.strikes("put_request_lost", 0.02):
            after(REQUEST_TIMEOUT_MS, owner, done, Unknown("no answer in time"))
            return
        if self.strikes("put_late", 0.02):
            late = REQUEST_TIMEOUT_MS * self._random.choice((0.5, 2.0, 10.0, 100.0)) * self._random.random()
            after(late, None, self._lands_unheard, slot, data)
            after(REQUEST_TIMEOUT_MS, owner, done, Unknown("no answer in time"))
            return
        if self.strikes("put_throttled_503", 0.04):
            after(self.delay_ms(), owner, done, Unknown("503", retry_after_ms=self._random.choice((None, 5))))
            return
        if self.strikes("put_busy_409", 0.02):
            after(self.delay_ms(), owner, done, Refused(certain=False))
            return
        if self.strikes("put_copied", 0.03):
            after(self.delay_ms() * self._random.choice((1, 20, 200)), None, self._lands_unheard, slot, data)
        mode = "heard"
        if self.strikes("put_answer_lost", 0.03):
            mode = "lost"
        elif self.strikes("put_500_after_commit", 0.02):
            mode = "500"
        elif self.strikes("put_sent_twice_by_the_store_client", 0.03):
            mode = "twice"
        after(self.delay_ms(), None, self._lands, owner, owner.incarnation, slot, data, done, mode)

    def _lands(
        self, owner: Owner, incarnation: int, slot: int, data: bytes, done: Callable[[CreateAnswer], None], mode: str
    ) -> None:
        created = self._store.create(slot, data)
        if owner.incarnation != incarnation:
            return
        delay = self.delay_ms()
        answer: CreateAnswer
        if mode == "lost" or self._cut_off(owner):
            delay, answer = REQUEST_TIMEOUT_MS, Unknown("no answer in time")
        elif mode == "500":
            answer = Unknown("500")
        elif created and mode == "heard":
            answer = CREATED
        else:
            # The store cannot know that its client repeats itself; some stores say "taken" and "busy" alike.
            answer = Refused(certain=self._random.random() < 0.8)
            self._seen["put_refused_412"] += 1
        self._agenda.after(delay, owner, done, answer)

    def _lands_unheard(self, slot: int, data: bytes) -> None:
        created = self._store.create(slot, data)
        self._seen["late_put_landed" if created else "late_put_refused"] += 1

    # -- GET and LIST -------------------------------------------------------------------------------------------------

    def read(self, owner: Owner, slot: int, done: Callable[[bytes | Unknown | None], None]) -> None:
        """Read the first bytes of a slot; ``done`` gets them, None for an empty slot, or Unknown."""
        if self._cut_off(owner) or self.strikes("read_failed", 0.05):
            self._agenda.after(REQUEST_TIMEOUT_MS, owner, done, Unknown("no answer in time"))
        else:
            self._agenda.after(self.delay_ms(), None, self._reads, owner, owner.incarnation, slot, done)

    def _reads(self, owner: Owner, incarnation: int, slot: int, done: Callable[[bytes | Unknown | None], None]) -> None:
        if owner.incarnation == incarnation:
            data = self._store.objects.get(slot)
            self._agenda.after(self.delay_ms(), owner, done, data[:HEADER_BYTES] if data is not None else None)

    def delete(self, owner: Owner, slot: int, done: Callable[[Unknown | None], None]) -> None:
        """Remove a slot; ``done`` gets None or Unknown. A request whose answer is lost may take effect much later."""
        if self._cut_off(owner) or self.strikes("delete_lost", 0.05):
            self._agenda.after(REQUEST_TIMEOUT_MS, owner, done, Unknown("no answer in time"))
            return
        late = self.strikes("delete_late", 0.1)
        delay = self.delay_ms() * self._random.choice((20, 200)) if late else self.delay_ms()
        self._agenda.after(delay, None, self._deletes, owner, owner.incarnation, slot, None if late else done)
        if late:
            self._agenda.after(REQUEST_TIMEOUT_MS, owner, done, Unknown("no answer in time"))

    def _deletes(
        self, owner: Owner, incarnation: int, slot: int, done: Callable[[Unknown | None], None] | None
    ) -> None:
        if slot in self._store.objects:
            self._store.deleting(slot)
            self._store.delete(slot)
        if done is not None and owner.incarnation == incarnation:
            self._agenda.after(self.delay_ms(), owner, done, None)

    def list(self, owner: Owner, limit: int, done: Callable[[Rows | Unknown], None], beyond: int = -1) -> None:
        """List the newest objects whose slot is above ``beyond``; ``done`` gets the rows or Unknown."""
        if self._cut_off(owner) or self.strikes("list_failed", 0.05):
            self._agenda.after(REQUEST_TIMEOUT_MS, owner, done, Unknown("no answer in time"))
        else:
            self._agenda.after(self.delay_ms(), None, self._lists, owner, owner.incarnation, limit, done, [], beyond)

    def _lists(
        self,
        owner: Owner,
        incarnation: int,
        limit: int,
        done: Callable[[Rows | Unknown], None],
        earlier: Rows,
        beyond: int,
    ) -> None:
        if owner.incarnation != incarnation:
            return
        after = int(earlier[-1][0][-20:]) if earlier else beyond
        rows = earlier + self._store.page(limit - len(earlier), after)
        if not earlier and len(rows) > 1 and self.strikes("list_torn", 0.3):
            cut = rows[: self._random.randrange(1, len(rows))]
            self._agenda.after(self.delay_ms() * 3, None, self._lists, owner, incarnation, limit, done, cut, beyond)
        else:
            self._agenda.after(self.delay_ms(), owner, done, rows)
