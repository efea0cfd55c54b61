"""The pipeline against a plain model: a dictionary of newest changes, a list of objects, and who was answered.

Hypothesis draws requests and, for every PUT, what becomes of it. The store is a dictionary; the model knows no slots in
flight, no batches and no window.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.commit.builders import BASE, genesis, identity

from holdfast.commit.format.batch import Header, decode_body, decode_header
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.format.transaction import Committed, PointRead, Rejected, Transaction, Unanswered, Write
from holdfast.commit.stages.events import (
    Answer,
    Arrived,
    CheckOwnership,
    CommitEntry,
    Drain,
    Durable,
    Effect,
    Ended,
    Event,
    HeaderFound,
    LookUp,
    OwnershipSeen,
    Put,
    PutAnswered,
    ReadBack,
    StatusAsked,
    StatusQuestion,
    StatusReady,
    Tick,
    VersionAsked,
    VersionIs,
)
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import Pipeline, PipelineRules
from holdfast.objects.port import CREATED, Refused, Unknown
from holdfast.values import Instant, Slot

KEYS = (b"a", b"b", b"c")


class PipelineMachine(RuleBasedStateMachine):
    """One reign without rivals: whatever the store does, what is answered is what the log says."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.claim = genesis()
        self.store: dict[int, bytes] = {}
        self.sent: dict[int, bytes] = {}
        self.puts: list[Put] = []
        self.read_backs: list[ReadBack] = []
        self.checks = 0
        self.waiting: set[CommitEntry] = set()
        self.submitted: list[CommitEntry] = []
        self.shown: Header = self.claim
        self.known = BASE
        self.asked: list[int] = []
        self.newest: dict[bytes, int] = {}
        self.verdicts: dict[CommitEntry, bool] = {}
        self.statuses: dict[str, int | None] = {}

    @initialize(
        window=st.integers(1, 4),
        batch_bytes=st.sampled_from([40, 1 << 20]),
        timeout=st.sampled_from([0.0, 5.0]),
        work=st.sampled_from([1, 3, 5_000]),
    )
    def begin(self, window: int, batch_bytes: int, timeout: float, work: int) -> None:
        rules = PersistRules(window=window, batch_bytes=batch_bytes, batch_timeout_ms=timeout, give_up_after_ms=1e12)
        rules_of_all = PipelineRules(persist=rules, resolve_work_max=work)
        self.reign = Pipeline(self.claim, identity().nonce_seed, rules_of_all, self.instant())

    def instant(self) -> Instant:
        return Instant(self.now, int(self.now))

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(
        key=st.sampled_from(KEYS),
        read=st.sampled_from(KEYS),
        behind=st.integers(0, 6),
        request=st.none() | st.sampled_from(["x", "y", "z"]),
    )
    def commit(self, key: bytes, read: bytes, behind: int, request: str | None) -> None:
        read_version = max(BASE, self.reign.release.durable_version - behind)
        txn = Transaction([Write(key, b"")], [PointRead(read)], request, None, read_version)
        item = CommitEntry(txn, lambda _: None)
        self.waiting.add(item)
        self.submitted.append(item)
        before = self.reign.sequence.assigned
        effects = self.reign.step(Arrived(self.instant(), [item]))
        if item.version > before:
            # The plain verdict: nothing that was accepted changed the key after the read version.
            holds = self.newest.get(read, 0) <= read_version
            self.verdicts[item] = holds
            if holds:
                self.newest[key] = item.version
            assert item.accepted == holds or self.reign.undecided
        self.carry_out(effects)

    @rule(ms=st.sampled_from([0.1, 4.0, 300.0]))
    def time_passes(self, ms: float) -> None:
        self.now += ms
        self.step(Tick(self.instant()))

    @precondition(lambda self: self.puts)
    @rule(data=st.data(), fate=st.sampled_from(["created", "answer lost", "request lost", "busy", "twice"]))
    def put_ends(self, data: st.DataObject, fate: str) -> None:
        put = self.puts.pop(data.draw(st.integers(0, len(self.puts) - 1)))
        taken = put.slot in self.store
        if fate in ("created", "answer lost", "twice"):
            self.store.setdefault(put.slot, put.data)
        answer: object = CREATED
        if fate in ("answer lost", "request lost"):
            answer = Unknown("no answer in time")
        elif fate == "busy":
            answer = Refused(certain=False)
        elif taken or fate == "twice":
            answer = Refused()
        self.step(PutAnswered(self.instant(), put.slot, answer))  # type: ignore[arg-type]

    @precondition(lambda self: self.read_backs)
    @rule(data=st.data(), fails=st.booleans())
    def read_back_ends(self, data: st.DataObject, fails: bool) -> None:
        effect = self.read_backs.pop(data.draw(st.integers(0, len(self.read_backs) - 1)))
        found = self.store.get(effect.slot)
        header = Unknown("no answer") if fails else found and decode_header(found, slot=effect.slot)
        self.step(HeaderFound(self.instant(), effect.slot, header or None, effect.certain))

    @precondition(lambda self: self.checks)
    @rule(fails=st.booleans())
    def check_ends(self, fails: bool) -> None:
        self.checks -= 1
        newest = Unknown("no answer") if fails else Slot(min(self.store, default=self.claim.slot))
        self.step(OwnershipSeen(self.instant(), newest))

    @rule()
    def ask_version(self) -> None:
        self.asked.append(self.known)
        self.step(VersionAsked(self.instant(), self.known))

    @rule(request=st.sampled_from(["x", "y", "z"]))
    def ask_status(self, request: str) -> None:
        self.step(StatusAsked(self.instant(), StatusQuestion(request, BASE, request)))

    # -- what must follow ----------------------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        self.carry_out(self.reign.step(event))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Put():
                    assert self.sent.setdefault(effect.slot, effect.data) == effect.data, (
                        "bytes are frozen at first send"
                    )
                    self.puts.append(effect)
                case ReadBack():
                    self.read_backs.append(effect)
                case CheckOwnership():
                    self.checks += 1
                case Durable(batches=batches):
                    for batch in batches:
                        assert self.store[batch.header.slot] == batch.payload
                        assert batch.header.prev == self.shown.slot
                        self.shown = batch.header
                case Answer(entries=entries):
                    for entry in entries:
                        self.answered(entry)
                case VersionIs(tickets=tickets, version=version):
                    for ticket in tickets:
                        assert isinstance(ticket, int)
                        self.asked.remove(ticket)
                        assert version >= ticket
                        self.known = max(self.known, version)
                case StatusReady(question=question, version=version):
                    self.statuses[question.request_id] = version
                    assert version is None or version in self.logged()
                case LookUp() | Ended():
                    raise AssertionError(f"nothing in this world leads to {effect}")

    def answered(self, entry: CommitEntry) -> None:
        self.waiting.remove(entry)
        assert entry.outcome is not None
        assert not isinstance(entry.outcome, Unanswered)
        if entry in self.verdicts:
            assert isinstance(entry.outcome, Committed) == self.verdicts[entry]
        if isinstance(entry.outcome, Committed):
            logged = self.logged()[entry.outcome.version]
            assert logged == (entry.txn.request_id, entry.txn.operations)
            self.known = max(self.known, entry.outcome.version)
        elif isinstance(entry.outcome, Rejected):
            for conflict in entry.outcome.conflicts:
                assert conflict.version in self.logged()
                assert conflict.version <= entry.durable_version

    def logged(self) -> dict[int, tuple[str | None, object]]:
        """The log as a stranger reads it."""
        walker = ChainWalker()
        walker.accept(self.claim)
        found: dict[int, tuple[str | None, object]] = {}
        attempts: set[tuple[str, int | None]] = set()
        while (data := self.store.get(walker.next_slot)) is not None:
            header = decode_header(data, slot=walker.next_slot)
            walker.accept(header)
            for txn in decode_body(data, header):
                found[txn.version] = txn.request_id, txn.operations
                if txn.request_id is not None:
                    assert (txn.request_id, txn.read_version) not in attempts, "an attempt commits at most once"
                    attempts.add((txn.request_id, txn.read_version))
        return found

    @invariant()
    def every_machine_keeps_its_invariants(self) -> None:
        if hasattr(self, "reign"):
            self.reign.check()

    def teardown(self) -> None:
        """A store that works again settles everything; then the leader resigns."""
        if not hasattr(self, "reign"):
            return
        self.step(Drain(self.instant()))
        for _ in range(10_000):
            if self.reign.ended is not None:
                break
            if self.puts:
                put = self.puts.pop(0)
                answer = Refused() if put.slot in self.store else CREATED
                self.store.setdefault(put.slot, put.data)
                self.finish(PutAnswered(self.instant(), put.slot, answer))
            elif self.read_backs:
                effect = self.read_backs.pop(0)
                data = self.store.get(effect.slot)
                header = decode_header(data, slot=effect.slot) if data is not None else None
                self.finish(HeaderFound(self.instant(), effect.slot, header, effect.certain))
            elif self.checks:
                self.checks -= 1
                newest = Slot(min(self.store, default=self.claim.slot))
                self.finish(OwnershipSeen(self.instant(), newest))
            else:
                deadline = self.reign.next_deadline_ms()
                assert deadline is not None, "a leader that drains always has something to wait for"
                self.now = max(self.now, deadline)
                self.finish(Tick(self.instant()))
        assert self.reign.ended is not None, "a working store lets a leader resign"
        assert self.reign.ended.kind == "resigned"
        assert not self.waiting, "every commit is answered exactly once"
        accepted = {entry.version for entry, holds in self.verdicts.items() if holds}
        assert set(self.logged()) == accepted

    def finish(self, event: Event) -> None:
        effects = self.reign.step(event)
        self.carry_out([effect for effect in effects if not isinstance(effect, Ended)])


PipelineMachine.TestCase.settings = settings(stateful_step_count=40)
TestPipelineMachine = PipelineMachine.TestCase
