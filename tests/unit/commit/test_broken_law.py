"""A law that is broken anywhere in a step ends the reign, and nobody who waits is forgotten or told twice."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from tests.unit.commit.builders import BASE, at, entry, pipeline, txn

from holdfast.commit.format.transaction import PointRead
from holdfast.commit.stages.events import (
    Answer,
    Arrived,
    CommitEntry,
    Drain,
    Effect,
    Ended,
    Event,
    LookUp,
    NoopAsked,
    OwnershipSeen,
    Put,
    PutAnswered,
    Reached,
    StatusAsked,
    StatusQuestion,
    StatusReady,
    Tick,
    VersionAsked,
    VersionIs,
)
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import Pipeline
from holdfast.commit.stages.release import PROOF_MS_MAX
from holdfast.commit.stages.sequence import HOLD_BACK
from holdfast.objects.port import CREATED
from holdfast.values import Slot

STAGES = ("sequence", "resolve", "persist", "release")


class LawBroken(Exception):
    """The planted failure."""


class Breaking:
    """A stage of which the call that ``plan`` names raises, before it has done anything."""

    def __init__(self, stage: object, plan: Plan) -> None:
        object.__setattr__(self, "stage", stage)
        object.__setattr__(self, "plan", plan)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.stage, name)
        if not callable(found):
            return found

        def called(*given: Any, **named: Any) -> Any:
            self.plan.called(name)
            return found(*given, **named)

        return called

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.stage, name, value)


class Plan:
    """Raises at the ``number``-th call of a stage, and never again."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.broken = ""

    def called(self, name: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.broken = name
            raise LawBroken(name)


class Driver:
    """Steps a reign as the service does, and keeps who was told what."""

    def __init__(self, number: int) -> None:
        self.reign: Pipeline = pipeline(persist=PersistRules(batch_timeout_ms=0.0, window=8))
        self.plan = Plan(number)
        for name in STAGES:
            setattr(self.reign, name, Breaking(getattr(self.reign, name), self.plan))
        self.came: list[CommitEntry] = []
        self.asked: list[str] = []
        self.answered: Counter[int] = Counter()
        self.told: set[object] = set()
        self.sent: deque[Slot] = deque()
        self.broke_in: Event | None = None

    def step(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self.came += event.entries
        try:
            effects = self.reign.step(event)
        except LawBroken:
            self.broke_in = event
            effects = self.reign.break_off("planted", event)
        for effect in effects:
            self.carry_out(effect)
        if self.broke_in is event:
            self.nobody_waits()

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Answer(entries=entries) | LookUp(entries=entries):
                self.answered.update(id(item) for item in entries)
            case VersionIs(tickets=tickets) | Reached(tickets=tickets) | Ended(tickets=tickets):
                self.told.update(one.ticket if isinstance(one, StatusQuestion) else one for one in tickets)
            case StatusReady(question=question):
                self.told.add(question.ticket)
            case Put(slot=slot):
                self.sent.append(slot)
            case _:
                pass

    def created(self, ms: float) -> None:
        if self.sent:
            self.step(PutAnswered(at(ms), self.sent.popleft(), CREATED))

    def ask(self, kind: type[VersionAsked | NoopAsked | StatusAsked], ms: float) -> None:
        ticket = f"{kind.__name__}-{len(self.asked)}"
        self.asked.append(ticket)
        self.step(kind(at(ms), StatusQuestion("x", BASE, ticket) if kind is StatusAsked else ticket))  # type: ignore[arg-type]

    def nobody_waits(self) -> None:
        where = f"{self.plan.broken} in {self.broke_in}"
        assert [self.answered[id(item)] for item in self.came] == [1] * len(self.came), where
        assert self.told == set(self.asked), where

    def run(self) -> None:
        """A reign with everything that can wait: each kind of commit and of question in each place."""
        twice = [entry(txn(b"a", request_id="x", at=BASE)) for _ in range(2)]
        self.step(Arrived(at(0), [*twice, entry(txn(b"b", at=BASE + 1000)), entry(txn(request_id="old", at=BASE - 1))]))
        self.ask(VersionAsked, 1)
        self.ask(NoopAsked, 1)
        self.ask(StatusAsked, 1)
        self.step(OwnershipSeen(at(2), self.reign.persist.head.slot))
        self.step(Arrived(at(3), [entry(txn(b"c")), entry(txn(at=BASE, reads=[PointRead(b"a")]))]))
        self.ask(VersionAsked, 3)
        self.created(4)
        self.created(4)
        self.ask(NoopAsked, 5)
        self.ask(StatusAsked, 5)
        # Versions are held back.
        self.reign.sequence.assigned = self.reign.release.durable_version + HOLD_BACK - 1
        self.step(Arrived(at(6), [entry(txn(b"d")), entry(txn(b"e")), entry(txn(b"f"))]))
        self.created(7)
        self.created(8)
        # Durable batches are held until the leader knows that it leads.
        late = PROOF_MS_MAX + 100
        self.step(Arrived(at(late), [entry(txn(b"g"))]))
        self.ask(VersionAsked, late)
        self.created(late)
        self.step(Arrived(at(late), [entry(txn(at=BASE, reads=[PointRead(b"g")]))]))
        self.ask(StatusAsked, late)
        self.step(OwnershipSeen(at(late + 1), self.reign.persist.head.slot))
        self.step(OwnershipSeen(at(late + 2), None))
        self.step(Tick(at(late + 150)))
        self.step(OwnershipSeen(at(late + 151), self.reign.persist.head.slot))
        self.step(Tick(at(late + 152)))
        self.step(Arrived(at(late + 152), [entry(txn(b"h"))]))
        self.step(Drain(at(late + 153)))
        while self.sent:
            self.created(late + 154)
        # The check that was asked at 3 ms proves nothing any more: it is asked again.
        self.step(OwnershipSeen(at(late + 155), self.reign.persist.head.slot))
        while self.sent:
            self.created(late + 156)


def calls_of_a_whole_reign() -> int:
    driver = Driver(0)
    driver.run()
    assert driver.reign.ended is not None
    assert driver.reign.ended.kind == "resigned"
    driver.nobody_waits()
    return -driver.plan.left


def test_a_law_broken_at_any_call_of_a_stage_leaves_nobody_waiting_and_tells_nobody_twice() -> None:
    calls = calls_of_a_whole_reign()
    assert calls > 100
    events: set[type] = set()
    for number in range(1, calls + 1):
        driver = Driver(number)
        driver.run()
        assert driver.reign.ended is not None
        assert driver.reign.ended.kind in ("damaged", "resigned")
        driver.nobody_waits()
        events.add(type(driver.broke_in))
    assert events >= {Arrived, PutAnswered, OwnershipSeen, StatusAsked, NoopAsked, VersionAsked, Tick, Drain}
