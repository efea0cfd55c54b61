"""A world of the log: nodes, a store, a network, clients, faults, and the promises that must hold throughout.

First there is chaos, then every fault stops and every outcome must be found, then ``settle`` compares the whole log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from tests.worlds.harness import PromiseBroken, SeededWorld, WorldReport
from tests.worlds.log.agenda import Agenda
from tests.worlds.log.clients import Client
from tests.worlds.log.followers import Follower
from tests.worlds.log.journal import Journal
from tests.worlds.log.network import Network, StrictStore
from tests.worlds.log.node import Node
from tests.worlds.log.promises import Attempt, Promises
from tests.worlds.log.retention import Operator
from tests.worlds.log.settle import check_outcomes
from tests.worlds.log.shape import OFTEN_MS, WorldShape, draw_shape, protocol_width, silent

from holdfast.commit.format.batch import CLAIM_BYTES, Header, Kind, LoggedTransaction
from holdfast.commit.leadership import signs
from holdfast.commit.leadership.evidence import LeaderAnswer, Reply
from holdfast.commit.stages.pipeline import Pipeline
from holdfast.commit.stages.release import PROOF_MS_MAX
from holdfast.values import Slot

__all__ = ["EVENTS_MIN", "World", "run_world"]

EVENTS_MIN: Final = 2_000
ANSWER_TIMEOUT_MS: Final = 100.0
"""How long a node waits for another one to say who it is."""
HEAL_MS: Final = 120_000.0
"""Once faults have stopped, every outcome must be known within this virtual time."""


class _Timeout:
    """The timeout of a question, unless its answer came before."""

    over = False

    def cancelled(self) -> bool:
        """Whether it will not come."""
        return self.over


class World(SeededWorld):
    """One seed's world. ``check_every``: how many steps of a pipeline pass between two checks of all its invariants.

    ``abrupt``: old data are not truncated by the leaders; the world removes them, at once and up to the bound itself.
    ``stores``: the log has stores.
    """

    node_kind: type[Node] = Node
    operator_kind: type[Operator] = Operator
    min_age_seconds = 0.0
    """What retention keeps at least."""

    def __init__(
        self,
        seed: int,
        *,
        check_every: int = 1,
        events: int = EVENTS_MIN,
        shape: WorldShape | None = None,
        abrupt: bool = False,
        stores: bool = False,
    ) -> None:
        super().__init__(seed, Random(seed))
        self.shape: WorldShape = draw_shape(self.random) if shape is None else shape
        self.truncates = self.shape.retention and not abrupt
        self.suspends = False
        """Whether its leaders look for suspensions: a look is an event, and worlds end after so many."""
        # A look takes many requests, so the store is quick where retention matters.
        latency_ms = 2.0 if self.truncates and self.shape.look_ms == OFTEN_MS else self.shape.latency_ms
        self.agenda = Agenda()
        self.operator = self.operator_kind(self)
        self.store = StrictStore(self._landed, self.operator.deleted)
        self.promises = Promises(self.store, self.shape.hot_keys, self.seen)
        self.network = Network(self.agenda, self.random, self.store, self.shape.rates, latency_ms, self.seen)
        self.strikes = self.network.strikes
        self.journal = Journal(self) if stores else None
        self.promises.journal = self.journal
        self.nodes = [self.node_kind(self, number) for number in range(self.shape.nodes)]
        self.clients = [Client(self, f"c{number}") for number in range(self.shape.clients)]
        self._by_name = {client.name: client for client in self.clients}
        self.followers = [Follower(self, durable=True), Follower(self, durable=False)]
        self.answer_timeout_ms = ANSWER_TIMEOUT_MS
        self.cut: set[frozenset[int]] = set()
        self._claims_landed: dict[int, float] = {}
        self.closing = False
        self._events = events
        self._check_every = check_every
        self._steps = 0
        self._latest: Node | None = None
        self._mischief_ms = self.random.choice((50.0, 200.0, 600.0))

    # -- what nodes and clients ask of their world --------------------------------------------------------------------

    def believed_leader(self) -> Node | None:
        """Whom a client sends to: mostly the latest leader it heard of, sometimes one that was deposed long ago."""
        loyal = 0.85 if self.shape.proof_ms >= PROOF_MS_MAX else 0.3
        if self._latest is not None and self._latest.leading and self.random.random() < loyal:
            return self._latest
        believers = [node for node in self.nodes if node.leading]
        return self.random.choice(believers) if believers else None

    def node_at(self, address: str) -> Node:
        """The node with this address."""
        return self.nodes[int(address.removeprefix("node-").partition(":")[0])]

    def ask(self, asker: Node, address: str, ms_max: float, reply: Callable[[LeaderAnswer], None]) -> None:
        """A node asks the process at an address who it is; ``reply`` gets the answer, or that none came."""
        node = self.node_at(address)
        lost = frozenset((asker.number, node.number)) in self.cut or self.strikes("question_lost", 0.05)

        timeout = _Timeout()

        def answered(answer: LeaderAnswer) -> None:
            after(self.network.delay_ms(), asker, arrives, answer)

        def arrives(answer: LeaderAnswer) -> None:
            timeout.over = True
            reply(answer)

        after = self.agenda.after
        silent = LeaderAnswer(Reply.SILENT)
        after(min(ms_max, self.answer_timeout_ms), asker, reply, silent, handle=timeout)
        if lost:
            return
        if not node.up:
            answered(LeaderAnswer(Reply.REFUSES))
        else:
            after(self.network.delay_ms(), node, node.asked_who, answered)

    def takes_signs(self, node: Node, key: str) -> bool:
        """Whether the store answers this node about signs of life; everything else is answered always."""
        return not key.startswith(signs.PREFIX) or id(node) not in self.network.partitioned

    def sign_delay_ms(self, key: str) -> float:
        """How much later than other objects a sign of life becomes visible."""
        return 0.0

    def sends(self, slot: Slot, data: bytes) -> None:
        """A node sends an object of the log."""

    def made(self, key: str) -> None:
        """An object beside the log was created."""

    def modified_ms(self, key: str) -> int | None:
        """When an object beside the log was created, by the store's clock; this store has none."""
        return None

    def owner_of(self, attempt: Attempt) -> Client:
        """The client that made an attempt."""
        name = attempt.identity[0].removeprefix("m/").partition("-")[0]
        return self._by_name[name]

    def respond(self, hear: Callable[..., None], *facts: object) -> None:
        """An answer travels to a client, and may be lost."""
        if not self.strikes("client_answer_lost", 0.03):
            self.agenda.after(self.network.delay_ms(), None, hear, *facts)

    def began_to_lead(self, node: Node) -> None:
        """A node's claim stands and was checked."""
        self._latest = node
        if node.frozen_when_it_leads_ms:
            self._freeze(node, node.frozen_when_it_leads_ms)
            node.frozen_when_it_leads_ms = 0.0

    def ended(self, node: Node) -> None:
        """A node leads no more, or crashed."""
        for follower in self.followers:
            follower.lost(node)

    def shown(self, node: Node, header: Header, transactions: Sequence[LoggedTransaction]) -> None:
        """A node shows a durable batch."""
        for follower in self.followers:
            follower.heard(node, header, transactions)

    def stepped(self, pipeline: Pipeline) -> None:
        """A pipeline made a step."""
        self._steps += 1
        if self._steps % self._check_every == 0:
            try:
                pipeline.check()
            except AssertionError as error:
                self.promises.trouble(error)
                raise

    def _landed(self, slot: int) -> None:
        self.agenda.note(b"%d" % (slot & 0xFFFFFF))
        if len(self.store.objects[slot]) == CLAIM_BYTES:
            self._claims_landed[slot] = self.agenda.now
        self.promises.landed(slot)

    # -- faults -------------------------------------------------------------------------------------------------------

    def _mischief(self) -> None:
        """Once in a while something happens to a node."""
        random = self.random
        node = random.choice(self.nodes)
        if self.strikes("crash", 0.12):
            self.seen["crash_in_recovery"] += node.recovering
            self.seen["crash_of_a_leader"] += node.leading
            node.crash()
            self.agenda.after(20.0 + 800.0 * random.random(), node, node.start)
        elif self.strikes("pause", 0.1):
            node.paused_until = max(node.paused_until, self.agenda.now + 20.0 + 600.0 * random.random())
        elif self.strikes("long_pause", 0.03):
            node.paused_until = max(node.paused_until, self.agenda.now + random.choice((3_000.0, 12_000.0, 40_000.0)))
        elif self.strikes("clock_jump", 0.1):
            jump = random.choice((-86_400_000.0, -5_000.0, -50.0, 50.0, 5_000.0, 86_400_000.0))
            node.wall_skew_ms += jump
            self.seen["clock_back" if jump < 0 else "clock_forward"] += 1
        elif self.strikes("partition", 0.08):
            self.network.partitioned.add(id(node))
            self.agenda.after(random.choice((200.0, 1_500.0, 8_000.0)), None, self._reunite, node)
        elif self.strikes("nodes_cut", 0.06):
            pair = frozenset((node.number, random.choice(self.nodes).number))
            self.cut.add(pair)
            self.agenda.after(random.choice((200.0, 1_500.0, 8_000.0)), None, self._join, pair)
        elif self.strikes("rude_takeover", 0.08):
            node.crash()
            self.agenda.after(0.0, node, node.start_to_take_over)
        elif self.strikes("step_down", 0.03):
            self.agenda.after(0.0, node, node.asked_to_step_down)
        if not self.network.healed:
            self.agenda.after(self._mischief_ms * (0.1 + random.random()), None, self._mischief)

    def _reunite(self, node: Node) -> None:
        self.network.partitioned.discard(id(node))

    def _join(self, pair: frozenset[int]) -> None:
        self.cut.discard(pair)

    def _questions(self) -> None:
        """Version questions and no-ops, to a node that believes it leads."""
        node = self.random.choice(self.nodes)
        if node.leading:
            ask = node.asked_version if self.random.random() < 0.8 else node.asked_noop
            self.agenda.after(0.0, node, ask)
        if not self.closing:
            self.agenda.after(10.0 + 50.0 * self.random.random(), None, self._questions)

    def _freeze_twice(self) -> None:
        """A leader is frozen twice with a short while between, and two others come to lead meanwhile.

        The first time it has sent something, so that it reads an old answer; the second time a claim grows old enough
        to be removed, and what the leader sends next is created.
        """
        random, after, proof_ms = self.random, self.agenda.after, self.shape.proof_ms
        if self.network.healed:
            return
        leader = self._latest
        if leader is None or leader.pipeline is None or not leader.pipeline.persist.in_flight:
            after(1.0, None, self._freeze_twice)
            return
        self.seen["frozen_twice"] += 1
        first_ms = proof_ms * (0.4 + 0.5 * random.random())
        gap_ms = random.choice((3.0, 10.0, 60.0)) * (0.3 + random.random())
        second_ms = proof_ms * (0.5 + 0.45 * random.random())
        others = [node for node in self.nodes if node is not leader]
        random.shuffle(others)
        others[0].frozen_when_it_leads_ms = random.choice((0.0, proof_ms * 2.0))
        self._freeze(leader, first_ms)
        after(first_ms + gap_ms, None, self._freeze, leader, second_ms)
        claimed_ms = first_ms * 0.4 * random.random()
        after(claimed_ms, None, self._take_over, others[0])
        after(claimed_ms + 50.0 + (first_ms + gap_ms) * random.random(), None, self._take_over, others[1])
        after(first_ms + gap_ms + second_ms + 200.0, None, self._freeze_twice)

    def _freeze(self, node: Node, ms: float) -> None:
        if not self.network.healed:
            node.paused_until = max(node.paused_until, self.agenda.now + ms)

    def _take_over(self, node: Node) -> None:
        if not self.network.healed:
            node.crash()
            node.start_to_take_over()

    def _lose_claims(self) -> None:
        """Claims are removed against the rules, once no leader can still believe a proof that is older than they.

        Not during a take-over: it reads from slot to slot after a refused claim, and relies on claims that stay.
        """
        claim = self.promises.walker.claim
        if any(node.recovering for node in self.nodes):
            claim = None
        for slot, landed_ms in [*self._claims_landed.items()]:
            newest = claim is None or slot <= claim.slot
            if self.agenda.now - landed_ms > self.shape.proof_ms and not newest:
                del self._claims_landed[slot]
                self.seen["claims_removed"] += 1
                self.store.delete(slot)
        self.agenda.after(20.0, None, self._lose_claims)

    def _retain(self) -> None:
        """Old data are removed at least W above the true leader's watermark, claims never."""
        claim = self.promises.walker.claim
        for node in self.nodes:
            if claim is not None and node.leading and node.claim == claim and node.pipeline is not None:
                watermark = node.pipeline.persist.durable_slot
                for slot in [slot for slot in self.store.slots if slot >= watermark + self.shape.span]:
                    header = self.promises.headers.get(slot)
                    if header is not None and header.kind is not Kind.CLAIM:
                        self.seen["retention_removed"] += 1
                        self.store.delete(slot)
        self.agenda.after(200.0, None, self._retain)

    # -- a world's life -----------------------------------------------------------------------------------------------

    def run(self) -> WorldReport:
        """Chaos, healing, the last check. Raises: PromiseBroken."""
        with protocol_width(self.shape.span, self.shape.version_jump, self.shape.proof_ms), silent():
            try:
                self._begin()
                while self.agenda.happened < self._events * (3 if self.truncates else 1):
                    self._step()
                self._heal()
                check_outcomes(self)
            finally:
                for node in self.nodes:
                    node.stop()
        self.seen["small_version_jump"] += self.shape.version_jump < 1_000
        self.seen["narrow_world" if self.shape.span < 1000 else "wide_world"] += 1
        return self.report()

    def report(self) -> WorldReport:
        """The log's worlds count events, and their digest is of each event and its time."""
        return WorldReport(self.seed, self.agenda.happened, self.seen, self.agenda.digest())

    def _begin(self) -> None:
        for node in self.nodes:
            self.agenda.after(self.random.random() * 40.0, node, node.start)
        for client in self.clients:
            self.agenda.after(self.random.random() * 80.0, None, client.begin)
        self.agenda.after(10.0, None, self._mischief)
        if self.shape.proof_ms >= PROOF_MS_MAX or self.random.random() < 0.5:
            # Each of these questions may refresh a leader's proof of ownership, or be taken for one too early.
            self.agenda.after(10.0, None, self._questions)
        if self.truncates:
            self.operator.begin()
        elif self.shape.retention:
            self.agenda.after(200.0, None, self._retain)
        if self.shape.proof_ms < PROOF_MS_MAX:
            self.agenda.after(20.0, None, self._lose_claims)
            self.agenda.after(300.0, None, self._freeze_twice)

    def _heal(self) -> None:
        """No more faults: a leader must lead, and every outcome must be found."""
        self.network.healed = True
        self.network.partitioned.clear()
        self.cut.clear()
        for node in self.nodes:
            self.agenda.resume(node)
        until = self.agenda.now + HEAL_MS
        commits = self.seen["answered_committed"]
        while self.seen["answered_committed"] < commits + 3:
            self._live(until, "a leader commits once faults have stopped")
        confirmed = self.seen["stores_confirmed"]
        while self.journal is not None and self.seen["stores_confirmed"] < confirmed + 3:
            self._live(until, "stores confirm once faults have stopped")
        self._healed()
        self.closing = True
        while any(client.attempt is not None for client in self.clients):
            self._live(until, "every outcome is found once faults have stopped")

    def _healed(self) -> None:
        """Faults have stopped, and a leader leads."""

    def _live(self, until: float, promise: str) -> None:
        if not self._step() or self.agenda.now > until:
            raise PromiseBroken(f"{promise}: not by {self.agenda.now:.0f} ms")

    def _step(self) -> bool:
        happened = self.agenda.step()
        if self.promises.broken is not None:
            raise self.promises.broken
        return happened


def run_world(seed: int, *, check_every: int = 1, abrupt: bool = False) -> WorldReport:
    """Run the world of one seed. Raises: PromiseBroken (or AssertionError, when a machine's own invariant breaks)."""
    return World(seed, check_every=check_every, abrupt=abrupt).run()
