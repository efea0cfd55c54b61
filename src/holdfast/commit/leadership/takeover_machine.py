"""The takeover as a step machine: from the first listing to a claim that is created and checked.

    state        leaves when                                         to
    find         page and headers decide the frontier                consider
    consider     the last record allows a claim, or is the parent's  claim; otherwise look, then ask its leader
    ask          the leader answers                                  failed, or follow as a standby
                 it does not                                         watch
    follow       a question gets another reply                       find, then watch
    watch        the evidence says that the leader has gone          claim (if the frontier is old: first find, then a
                                                                     last question to its leader)
                 a new sign or batch appears                         watch, or failed where the leader surely lives
    claim        the log is suspended                                find, later, or failed where it does not stand by
                 created, or refused because it is already there     check
                 refused by another object                           find (walk on with ``take_over``)
    check        the newest key is not past the claim                leads

A prefix that holds a copy of a log (``role``) is refused until the copy is promoted; then the first claim forks.

When a leader counts as gone is one table (``evidence``). It serves liveness only; safety never depends on it. The
probe (can the store hold a log?) runs during the first states and must pass before the claim is sent. A failed request
is repeated, with capped exponential backoff and full jitter, until ``retry_budget_ms`` is exhausted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import Final, TypeAlias, TypeVar

from holdfast.commit.format.batch import FIRST_SLOT, SPAN_MAX, Header, Kind, StoresMode, decode_header, jump
from holdfast.commit.format.chain import has_gone, next_slot
from holdfast.commit.leadership.claims import (
    Frontier,
    Identity,
    NewestKeys,
    claim_header,
    encode_claim,
    first_headers,
    has_successor,
    plan_recovery,
    read_page,
    walk_on,
)
from holdfast.commit.leadership.evidence import (
    INTERVAL_MS_MAX,
    INTERVAL_MS_MIN,
    Address,
    Contact,
    Evidence,
    LeaderAnswer,
    LeaderVerdict,
    Reply,
    Shown,
    Sign,
    contact,
    judge,
)
from holdfast.commit.leadership.role import Copied
from holdfast.commit.leadership.suspension import Suspension
from holdfast.commit.leadership.takeover_events import (
    NO_FACTS,
    AskLeader,
    ClaimAnswered,
    CleanUp,
    Effect,
    Event,
    Fail,
    HeaderRead,
    HeadersRead,
    LeaderAnswered,
    Led,
    ListPage,
    Look,
    Looked,
    NoAnswer,
    PageListed,
    Probe,
    Probed,
    ReadHeader,
    ReadHeaders,
    Request,
    SendClaim,
    StandBy,
    StayOut,
    Takeover,
    TakeoverWait,
    TakeoverWoken,
)
from holdfast.errors import Closed, Code, CorruptData, HoldfastError, NotFound, Unavailable
from holdfast.objects.port import Created, Unknown
from holdfast.values import Instant, LeaderId, LogId, Slot, slot_text

# -- the machine -----------------------------------------------------------------------------------------------------

STALE_MS: Final = 50.0
"""A frontier older than this is found again before it is claimed, and its leader asked when that is another one."""
MISSING_MS_MAX: Final = 5_000.0
"""How long a needed object may be missing: retention may remove one between listing and reading."""
RETRY_BASE_MS: Final = 50.0
RETRY_MAX_MS: Final = 2_000.0
DOUBLINGS_MAX: Final = 30
RESTARTS_MAX: Final = 100
IN_FLIGHT_MS: Final = 2_000.0
"""What appears later than this after the first look was not on its way when a leader was killed: it lives."""
LOOKS_OF_AN_INTERVAL: Final = 4.0
PROOF_LOOK_MS: Final = 250.0
"""How often an address is asked whose refusal is a proof."""
STORE_AGREES_MS: Final = 60_000
"""A wall clock that differs by more from the store's is not believed."""
QUESTION_MS_MAX: Final = 500.0
"""A question that is older than this is repeated before the claim."""
ANSWER_MS_MIN: Final = 250.0
ANSWER_MS_MAX: Final = 2_000.0
"""A leader has a quarter of an interval to answer a question, within these bounds."""


@dataclass(frozen=True, slots=True)
class StoresMove:
    """The claim says that the stores live in ``mode`` from now on: what was copied is their state after the object
    ``after``, so nothing may come between."""

    mode: StoresMode
    after: Header


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverRules:
    """The bounds of a takeover.

    ``stores_mode``: that of a new log. ``moves_stores``: the claim moves the stores of a log. ``only_new``: lead a new
    log or none. ``retires``: claim so that nobody leads afterwards. ``asks``: there is a way to ask a leader who it is.
    ``sign_interval_ms``: of a leader without a sign, and of this one when it leads; 0: by its store.
    ``question_ms``: a standby asks its leader after one to two times this. ``delay_ms``: how much later than others a
    standby claims.
    """

    allow_new: bool = False
    stores_mode: StoresMode = StoresMode.DISK
    moves_stores: StoresMove | None = None
    only_new: bool = False
    retires: bool = False
    take_over: bool = False
    standby: bool = False
    probe: bool = True
    asks: bool = False
    retry_budget_ms: float = 60_000.0
    sign_interval_ms: float = 0.0
    question_ms: float = 62.5
    delay_ms: float = 0.0


_ANSWERS: Final[Mapping[type[Effect], tuple[type[Event], ...]]] = {
    ListPage: (PageListed, NoAnswer),
    ReadHeaders: (HeadersRead, NoAnswer),
    Look: (Looked, NoAnswer),
    ReadHeader: (HeaderRead, NoAnswer),
    AskLeader: (LeaderAnswered,),
    SendClaim: (ClaimAnswered,),
    TakeoverWait: (TakeoverWoken,),
    Probe: (Probed,),
}

T = TypeVar("T")
A = TypeVar("A", bound=Event)
Flow: TypeAlias = Generator[list[Effect], Event, T]
"""Yields effects, and gets the event that answers the last of them."""
State: TypeAlias = "Callable[[], Flow[State | Takeover]]"
"""A state of the table: it makes its requests and returns the next state."""


class TakeoverMachine:
    """One attempt to lead. Step it with the answer to each effect; it ends with Led or Fail.

    Apart from the probe, at most one request or wait is under way. The probe's answer is for a machine that waits for
    nothing else. An answer that belongs to none raises and changes nothing.
    After a crash: the claim may or may not stand; the next takeover decides by what it lists.
    """

    def __init__(self, identity: Identity, log_id: LogId, rules: TakeoverRules) -> None:
        self._identity = identity
        self._log_id = log_id
        self._rules = rules
        self.ended = False
        self._flow = self._run()
        self._awaited: tuple[type[Event], ...] = ()
        self._now = Instant(0.0, 0)
        # The requests: when the first of a round was sent and the last one, and what failed since.
        self._since_ms = self._round_ms = self._sent_ms = 0.0
        self._missing_since_ms: float | None = None
        self._tries = self._draws = 0
        self._waits = 0
        self._booted_ms: int | None = None
        # The end of the log.
        self._frontier = Frontier(FIRST_SLOT, None, 1)
        self._copied: Copied | None = None
        self._suspension: Suspension | None = None
        self._is_delayed = False
        self._damages: set[object] = set()
        self._started_ms = self._found_ms = self._considered_ms = 0.0
        self._restarts = self._changes = 0
        # The leader that is watched: what it has shown, and what its address replied.
        self._watched_id: LeaderId | None = None
        self._following = False
        self._sign: Sign | None = None
        self._shown = Shown()
        self._shown_ms = 0.0
        self._shown_at_peace: Shown | None = None
        self._watched_since_ms: float | None = None
        self._looked_ms = 0.0
        self._contact = Contact("", False)
        self._reply: Reply | None = None
        self._reply_since_ms = self._unanswered_since_ms = 0.0
        self._another_leads = False
        self._problem = ""
        self._questioned_ms = self._asked_ms = 0.0

    # -- steps --------------------------------------------------------------------------------------------------------

    def begin(self, now: Instant) -> list[Effect]:
        """The first effects."""
        self._now = now
        return self._resume(lambda: next(self._flow))

    def step(self, event: Event) -> list[Effect]:
        """Take one event and return what is to be done about it."""
        if self.ended:
            return []
        assert isinstance(event, self._awaited), "an answer fits its request"
        self._now = event.now
        return self._resume(lambda: self._flow.send(event))

    def _resume(self, flow: Callable[[], list[Effect]]) -> list[Effect]:
        try:
            effects = flow()
        except StopIteration as end:
            self.ended = True
            return [Led(end.value)]
        except HoldfastError as error:
            self.ended = True
            return [Fail(error)]
        self._awaited = _ANSWERS[type(effects[-1]) if effects else Probe]
        return effects

    def _run(self) -> Flow[Takeover]:
        state: State | Takeover = self._start
        while not isinstance(state, Takeover):
            state = yield from state()
        return state

    def _send(self, request: Request, kind: type[A], *effects: Effect) -> Flow[A | NoAnswer]:
        """Send a request once, after other effects."""
        self._sent_ms = self._now.boot_ms
        event = yield [*effects, request]
        assert isinstance(event, (kind, NoAnswer)), "an answer fits its request"
        return event

    def _request(self, request: Request, kind: type[A], *effects: Effect) -> Flow[A]:
        """The answer to a request that is sent again while it fails, within a retry budget that begins now."""
        self._begin_tries()
        while True:
            answer = yield from self._send(request, kind, *effects)
            if not isinstance(answer, NoAnswer):
                return answer
            yield from self._wait_after(answer.error)
            effects = ()

    def _begin_tries(self) -> None:
        self._since_ms = self._round_ms = self._now.boot_ms
        self._missing_since_ms, self._tries = None, 0

    def _wait_after(self, error: HoldfastError) -> Flow[None]:
        """Wait before a failed request is sent again. Raises its error when the retry budget is exhausted."""
        if isinstance(error, NotFound) and error.code is Code.NOT_FOUND:
            # Removed by retention since it was listed: list again. What is still needed then was lost.
            if self._is_lost():
                raise has_gone(error) from error
        elif not isinstance(error, Unavailable):
            raise error
        elif self._now.boot_ms - self._since_ms >= self._rules.retry_budget_ms:
            retry_budget_s = self._rules.retry_budget_ms / 1000.0
            raise Unavailable("the store does not answer", patience_s=retry_budget_s, last=str(error)) from error
        yield self._wait(self._backoff_ms(), "store_unavailable", error=str(error), tries=self._tries)
        self._round_ms = self._now.boot_ms

    def _wait(self, ms: float, reason: str = "", **facts: object) -> list[Effect]:
        return [TakeoverWait(ms, reason, facts)]

    def _is_lost(self) -> bool:
        """Whether an object has been missing for long, in a recent round: retention removes objects, too."""
        now_ms = self._now.boot_ms
        if self._missing_since_ms is None:
            self._missing_since_ms = now_ms
        is_fresh = now_ms - self._round_ms < MISSING_MS_MAX or self._tries >= RESTARTS_MAX
        return is_fresh and now_ms - self._missing_since_ms >= min(self._rules.retry_budget_ms, MISSING_MS_MAX)

    def _backoff_ms(self) -> float:
        self._tries += 1
        return self._draw() * min(RETRY_MAX_MS, RETRY_BASE_MS * 2.0 ** min(self._tries, DOUBLINGS_MAX))

    def _draw(self) -> float:
        """A deterministic fraction in [0, 1), drawn from the identity."""
        self._draws += 1
        key = self._identity.nonce_seed
        digest = blake2b(self._draws.to_bytes(8, "little") + b"wait", key=key, digest_size=8).digest()
        return int.from_bytes(digest, "little") / 2**64

    # -- find: where the log ends -------------------------------------------------------------------------------------

    def _start(self) -> Flow[State | Takeover]:
        """The first frontier, and the probe: nobody is asked and nothing is written before it passes."""
        self._started_ms = self._now.boot_ms
        yield from self._find(*([Probe()] if self._rules.probe else []))
        if self._rules.probe:
            yield from self._pass_probe()
        return self._first_found()

    def _pass_probe(self) -> Flow[None]:
        """Wait for the probe, which is repeated while the store does not answer; then the log is found again."""
        effects: list[Effect] = []
        while True:
            probed = yield effects
            assert isinstance(probed, Probed), "an answer fits its request"
            error = probed.error
            if error is None:
                break
            if (
                not isinstance(error, Unavailable)
                or self._now.boot_ms - self._started_ms >= self._rules.retry_budget_ms
            ):
                raise error
            yield self._wait(self._backoff_ms(), "store_unavailable", error=str(error), tries=self._tries)
            effects = [Probe()]
        # Kept as what is right: a standby claims long after it has asked.
        self._booted_ms = probed.booted_ms
        if effects:
            yield from self._find()

    def _find(self, *effects: Effect) -> Flow[None]:
        """Set the frontier. A round that failed begins again with a listing."""
        self._begin_tries()
        self._damages.clear()
        while True:
            end = yield from self._read_end(*effects)
            match end:
                case NoAnswer(error=error):
                    yield from self._wait_after(error)
                case CorruptData():
                    self._damaged(end)
                case Frontier():
                    end.require_not_retired()
                    self._frontier = end
                    return
            effects = ()

    def _read_end(self, *effects: Effect) -> Flow[Frontier | CorruptData | NoAnswer]:
        """One listing, and the headers that decide where the log ends."""
        listed = yield from self._send(ListPage(SPAN_MAX), PageListed, *effects)
        if isinstance(listed, NoAnswer):
            return listed
        page = read_page(listed.rows)
        self._see(Shown(page.slots[0] if page.slots else None, self._shown.sign))
        objects: dict[Slot, bytes] = {}
        self._waits, needs = 1, first_headers(page)
        while True:
            self._waits += 1
            answer = yield from self._send(ReadHeaders(needs), HeadersRead)
            if isinstance(answer, NoAnswer):
                return answer
            objects.update(answer.objects)
            self._copied, self._suspension = answer.records.copied(), answer.suspension
            try:
                copy_from = self._copy_from(page, objects)
                plan = plan_recovery(page, objects, allow_new=self._rules.allow_new, copy_from=copy_from)
            except CorruptData as damage:
                return damage
            if isinstance(plan, Frontier):
                return plan
            needs = (plan,)

    def _copy_from(self, page: NewestKeys, objects: Mapping[Slot, bytes]) -> Slot | None:
        """Where a promoted copy begins while the newest claim is the parent's: it has none of its own yet."""
        if self._copied is None or not objects:
            return None
        # Without a claim in the page the newest object is its leader's own.
        slot = min(page.claims & objects.keys(), default=min(objects))
        own = decode_header(objects[slot], slot=slot).log_id == self._copied.log_id
        return None if own else self._copied.first_slot

    def _damaged(self, damage: CorruptData) -> None:
        """Damage counts when a second listing shows it at the same slot. A listing is not a snapshot: after the store
        has read the newer keys, the leader may write more, and retention may remove an older object.
        """
        slot = damage.fields.get("slot")
        if slot in self._damages or len(self._damages) >= RESTARTS_MAX:
            raise damage
        self._damages.add(slot)

    def _first_found(self) -> State:
        """A frontier of a new attempt."""
        if self._rules.only_new and self._frontier.predecessor is not None:
            raise _alive("the log exists", self._frontier.predecessor)
        self._found_ms = self._now.boot_ms
        self._changes = 0
        return self._consider()

    # -- consider and ask: is it polite to claim now? -----------------------------------------------------------------

    def _consider(self) -> State:
        self._considered_ms = self._now.boot_ms
        self._following, self._watched_since_ms, self._shown_at_peace = False, None, None
        self._reply, self._is_delayed = None, False
        newest = self._frontier.predecessor
        watched_id = None if newest is None else newest.leader_id
        if watched_id != self._watched_id:
            self._watched_id, self._sign = watched_id, None
            self._shown = Shown(self._shown.slot)
        if newest is None or self._rules.take_over or self._forks or _may_be_followed_at_once(newest):
            return self._at_peace
        return self._look

    @property
    def _forks(self) -> bool:
        """Whether the log is a promoted copy that has no claim of its own yet: the last leader leads another log."""
        before = self._frontier.predecessor
        return self._copied is not None and before is not None and before.log_id != self._copied.log_id

    def _watched_leader(self) -> Header:
        newest = self._frontier.predecessor
        assert newest is not None, "only a leader is asked and watched"
        return newest

    def _ask(self) -> Flow[State | Takeover]:
        newest, sign = self._watched_leader(), self._sign
        self._asked_ms = self._now.boot_ms
        bound = None if sign is None else Address(sign.address, sign.scope)
        self._contact = contact(Address(newest.address, newest.scope), bound, self._identity.here)
        if self._contact.known is not None or not self._rules.asks:
            self._hear(LeaderAnswer(self._contact.known or Reply.UNREACHABLE))
        else:
            ms_max = min(ANSWER_MS_MAX, max(ANSWER_MS_MIN, self._interval_ms / LOOKS_OF_AN_INTERVAL))
            yield from self._question(ms_max)
        if self._reply is Reply.LEADS:
            return (yield from self._alive())
        if self._following:
            # It may have resigned, or another has come to lead since it was followed.
            self._following = False
            return self._find_followed
        if self._reply is Reply.LEADS_NOT and not self._another_leads and self._watched_since_ms is None:
            # It may have been asked to step down by the very question.
            end = yield from self._chase()
            is_resigned = end is not None and end.predecessor is not None and end.predecessor.kind is Kind.RESIGN
            return self._at_peace if is_resigned else self._look
        verdict = self._verdict()
        # Only a proof does without a look: a sign may have appeared since the last one.
        return (yield from self._weigh(verdict)) if verdict.is_proof and verdict.gone_in_ms <= 0.0 else self._look

    def _question(self, ms_max: float) -> Flow[None]:
        event = yield [AskLeader(self._contact.address, ms_max, self._contact.host)]
        assert isinstance(event, LeaderAnswered), "an answer fits its request"
        self._hear(event.answer)

    def _hear(self, answer: LeaderAnswer) -> None:
        """Note the reply, and what the leader says that it has shown."""
        now_ms, reply = self._now.boot_ms, answer.reply
        if reply is Reply.LEADS and answer.leader_id != self._watched_leader().leader_id.hex():
            reply = Reply.LEADS_NOT
        if self._reply in (None, Reply.LEADS):
            self._unanswered_since_ms = now_ms
        if reply is not self._reply:
            self._reply, self._reply_since_ms = reply, now_ms
        self._another_leads, self._problem = bool(answer.leader_id), answer.problem
        self._questioned_ms = now_ms
        if reply is Reply.LEADS and answer.shown is not None:
            self._see(answer.shown)

    def _alive(self) -> Flow[State | Takeover]:
        """The leader lives: a standby follows it, and asks again."""
        newest = self._watched_leader()
        if not self._rules.standby:
            raise _alive("another leader is alive", newest)
        self._following, self._watched_since_ms = True, None
        # Drawn, so that several standbys do not claim together.
        ms = self._rules.question_ms * (1.0 + self._draw())
        yield [StandBy(newest.leader_id.hex(), newest.address), *self._wait(ms)]
        return self._ask

    def _find_followed(self) -> Flow[State | Takeover]:
        """The end of the log after a leader that was followed gave another reply, or has written."""
        yield from self._find()
        newest = self._frontier.predecessor
        if newest is None or _may_be_followed_at_once(newest) or newest.leader_id != self._watched_id:
            return self._consider()
        return self._look

    # -- watch: does the leader show signs of life? -------------------------------------------------------------------

    def _look(self) -> Flow[State | Takeover]:
        """Look for new keys and signs. The times in them do not count: they are another machine's clock."""
        newest = self._watched_leader()
        return (yield from self._looked((yield from self._request(Look(newest.epoch, newest.leader_id), Looked))))

    def _see(self, shown: Shown) -> bool:
        """Note what the leader has shown. Returns whether it changed."""
        if shown == self._shown:
            return False
        self._shown, self._shown_ms = shown, self._now.boot_ms
        return True

    @property
    def _interval_ms(self) -> float:
        interval_ms = self._rules.sign_interval_ms if self._sign is None else self._sign.interval_ms
        return min(INTERVAL_MS_MAX, max(INTERVAL_MS_MIN, interval_ms))

    def _verdict(self) -> LeaderVerdict:
        newest, now_ms = self._watched_leader(), self._now.boot_ms
        assert self._reply is not None, "a leader is asked before it is judged"
        return judge(
            Evidence(
                self._reply,
                is_same_place=self._contact.is_same_place,
                may_come_to_lead=newest.kind is Kind.CLAIM and not self._shown.sign and not self._another_leads,
                reply_ms=now_ms - self._reply_since_ms,
                unanswered_ms=now_ms - self._unanswered_since_ms,
                unchanged_ms=now_ms - self._shown_ms,
                interval_ms=self._interval_ms,
            )
        )

    def _looked(self, answer: Looked) -> Flow[State | Takeover]:
        self._sign = answer.sign if answer.sign is not None else self._sign
        number = self._shown.sign if answer.sign is None else answer.sign.number
        newest_before, changed = self._shown.slot, self._see(Shown(answer.newest, number))
        looked_ms, self._looked_ms = self._looked_ms, self._now.boot_ms
        if self._reply is None:
            return self._ask
        verdict = self._verdict()
        if self._watched_since_ms is None:
            self._watched_since_ms = self._now.boot_ms
            return (yield from self._weigh(verdict, *self._why_it_waits(verdict)))
        if changed and not verdict.is_proof:
            if self._rules.standby and answer.newest != newest_before:
                return self._find_followed
            if not self._rules.standby and looked_ms >= self._watched_since_ms + IN_FLIGHT_MS:
                raise _alive("another leader shows signs of life", self._watched_leader())
        return (yield from self._weigh(verdict))

    def _why_it_waits(self, verdict: LeaderVerdict) -> tuple[str, Mapping[str, object]]:
        """A line for the log."""
        if self._reply is Reply.UNVERIFIED:
            hint = (
                "its signs of life decide; server.peer_ca_file (of a job SSL_CERT_FILE) names whom to trust, and "
                "server.peer_name the name in its certificate where its address is an IP address"
            )
            facts = {"leader_address": self._contact.address, "problem": self._problem, "hint": hint}
            return "leader_not_verified", facts
        newest = self._watched_leader()
        return "waiting_for_signs_of_life", {
            "reply": None if self._reply is None else self._reply.value,
            "wait_ms": round(verdict.gone_in_ms),
            "leader_id": newest.leader_id.hex(),
            "leader_address": newest.address or None,
        }

    def _weigh(
        self, verdict: LeaderVerdict, reason: str = "", facts: Mapping[str, object] = NO_FACTS
    ) -> Flow[State | Takeover]:
        """A leader that counts as gone is left. Otherwise ask and look again: the last time so that both end right when
        it does."""
        assert verdict.gone_in_ms < inf, "a leader that answers is not watched"
        if verdict.gone_in_ms <= 0.0:
            self._shown_at_peace = None if verdict.is_proof else self._shown
            return self._at_peace
        period_ms = PROOF_LOOK_MS if verdict.is_proof else self._interval_ms / LOOKS_OF_AN_INTERVAL
        question_ms = self._questioned_ms - self._asked_ms
        if not verdict.is_proof and verdict.gone_in_ms <= question_ms:
            yield self._wait(verdict.gone_in_ms, reason, **facts)
            return self._look
        left_ms = verdict.gone_in_ms if verdict.is_proof else verdict.gone_in_ms - question_ms
        yield self._wait(max(1.0, min(period_ms, left_ms)), reason, **facts)
        return self._ask

    def _at_peace(self) -> Flow[State | Takeover]:
        """A claim is allowed. The frontier is found again when it is too old."""
        if self._rules.standby and self._rules.delay_ms and not self._is_delayed:
            self._is_delayed = True
            yield self._wait(self._rules.delay_ms)
        if self._now.boot_ms - self._considered_ms <= STALE_MS:
            return self._stake
        yield from self._find()
        newest = self._frontier.predecessor
        if newest is None or _may_be_followed_at_once(newest):
            return self._stake
        if newest.leader_id != self._watched_id:
            # Another leader has claimed meanwhile, and has not been asked yet.
            self._changes += 1
            if self._changes >= RESTARTS_MAX and not self._rules.standby:
                raise _changing_hands()
            return self._consider()
        # A leader that was watched may have written since the last look, or answer again after a pause.
        if self._shown_at_peace is None:
            return self._stake
        if self._shown != self._shown_at_peace:
            if self._rules.standby:
                return self._look
            raise _alive("another leader is writing", newest)
        asks = self._rules.asks and self._contact.known is None
        if self._now.boot_ms - self._questioned_ms <= QUESTION_MS_MAX or not asks:
            return self._stake
        yield from self._question(ANSWER_MS_MAX)
        return (yield from self._alive()) if self._reply is Reply.LEADS else self._stake

    # -- claim and check ----------------------------------------------------------------------------------------------

    def _stake(self) -> Flow[State | Takeover]:
        if self._suspension is not None:
            return (yield from self._stay_out(self._suspension))
        waited_ms = self._now.boot_ms - self._found_ms
        claim = self._claim_here()
        if (yield from self._claim(claim)) and (yield from self._check(claim)):
            before = self._frontier.predecessor
            was_deposed = before is not None and before.kind is not Kind.RESIGN
            return Takeover(
                claim,
                self._sent_ms,
                waits=self._waits + 2,
                took_ms=self._now.boot_ms - self._started_ms,
                restarts=self._restarts,
                deposed_leader_id=before.leader_id.hex() if before is not None and was_deposed else None,
                steps_ms={"polite_wait": waited_ms},
            )
        self._restarts += 1
        if self._restarts >= RESTARTS_MAX:
            raise _changing_hands()
        end = (yield from self._chase()) if self._rules.take_over else None
        if end is None:
            yield from self._find()
            return self._first_found()
        self._frontier = end
        return self._stake

    def _stay_out(self, suspension: Suspension) -> Flow[State | Takeover]:
        """Nobody may claim: a standby looks again until the log goes on."""
        if not self._rules.standby:
            raise suspension.error()
        yield [StayOut(suspension), *self._wait(self._interval_ms / LOOKS_OF_AN_INTERVAL)]
        yield from self._find()
        return self._first_found()

    def _claim_here(self) -> Header:
        """The claim at the frontier."""
        identity, move = self._identity, self._rules.moves_stores
        if move is not None:
            _require_nothing_between(self._frontier, move)
        counted = self._restarts.to_bytes(4, "little") + b"claim"
        return claim_header(
            self._frontier,
            identity,
            nonce=blake2b(counted, key=identity.nonce_seed, digest_size=16).digest(),
            log_id=self._log_id,
            now=self._now,
            believed=self._agrees_with_store(),
            fork=self._copied if self._forks else None,
            retires=self._rules.retires,
            stores_mode=self._rules.stores_mode if move is None else move.mode,
            moves=move is not None,
        )

    def _agrees_with_store(self) -> bool:
        """Whether the store's clock, where it has one, does not contradict the wall clock."""
        booted_ms = self._now.wall_ms - int(self._now.boot_ms)
        return self._booted_ms is None or abs(booted_ms - self._booted_ms) <= STORE_AGREES_MS

    def _claim(self, claim: Header) -> Flow[bool]:
        """R2: send the claim alone until it is created or refused. Returns whether it stands."""
        self._begin_tries()
        slot, data = slot_text(claim.slot), encode_claim(claim)
        while True:
            event = yield [SendClaim(claim.slot, data)]
            assert isinstance(event, ClaimAnswered), "an answer fits its request"
            match event.answer:
                case Created():
                    return True
                case Unknown(final=True, detail=detail):
                    raise Unavailable("the store takes nothing any more", slot=slot, cause=detail)
                case Unknown(detail=detail):
                    pass
                case _:
                    standing = yield from self._standing_in(claim)
                    if isinstance(standing, bool):
                        return standing
                    detail = standing
            if self._now.boot_ms - self._since_ms >= self._rules.retry_budget_ms:
                raise Unavailable("the store did not take the claim", slot=slot, answer=detail)
            yield self._wait(self._backoff_ms(), "claim_sent_again", slot=slot, tries=self._tries, answer=detail)

    def _standing_in(self, claim: Header) -> Flow[bool | str]:
        """Whether the object that refused the claim is this very claim; why that is not known."""
        match (yield from self._send(ReadHeader(claim.slot), HeaderRead)):
            case HeaderRead(data=None):
                return "refused, but nothing there"
            case HeaderRead(data=bytes(data)):
                try:
                    return decode_header(data, slot=claim.slot).nonce == claim.nonce
                except HoldfastError:
                    return False
            case NoAnswer(error=Unavailable() as error):
                return str(error)
            case _:
                return False

    def _check(self, claim: Header) -> Flow[bool]:
        """Whether no later leader is past the claim. The listing proves ownership from the time it was sent."""
        listed = yield from self._request(ListPage(1), PageListed, CleanUp())
        newest = read_page(listed.rows).slots
        return not has_successor(newest[0] if newest else None, oldest_free=jump(claim.slot))

    # -- walking on after a leader that writes faster than a listing answers ------------------------------------------

    def _chase(self) -> Flow[Frontier | None]:
        """Walk from the old end of the log to its present end; None when a listing is needed."""
        head = self._frontier.predecessor
        if head is None:
            return None
        self._begin_tries()
        for _ in range(SPAN_MAX):
            slot = next_slot(head)
            answer = yield from self._send(ReadHeader(slot), HeaderRead)
            while isinstance(answer, NoAnswer):
                yield from self._wait_after(answer.error)
                answer = yield from self._send(ReadHeader(slot), HeaderRead)
            step = walk_on(head, None if answer.data is None else decode_header(answer.data, slot=slot))
            if not isinstance(step, Header):
                return step
            head = step
        return None


def _may_be_followed_at_once(newest: Header) -> bool:
    """Whether the last record says that no process leads."""
    initialised = (newest.epoch == 1 or newest.is_fork) and newest.kind is Kind.CLAIM and not newest.address
    return newest.kind is Kind.RESIGN or initialised


def _require_nothing_between(frontier: Frontier, move: StoresMove) -> None:
    if frontier.predecessor != move.after:
        raise Closed(
            "the log went on while its stores were copied",
            code=Code.LEADER_ALIVE,
            hint="stop every service of the log, standbys too, and move the stores again",
        )


def _alive(trouble: str, newest: Header) -> Closed:
    return Closed(
        trouble,
        code=Code.LEADER_ALIVE,
        leader_id=newest.leader_id.hex(),
        leader_address=newest.address,
        hint="stop that leader, or start with --take-over to replace it, or with --standby to wait for its end",
    )


def _changing_hands() -> Unavailable:
    return Unavailable("other leaders claimed the log again and again", code=Code.LEADER_CHANGED)
