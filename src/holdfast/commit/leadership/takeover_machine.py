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
    claim        created, or refused because it is already there     check
                 refused by another object                           find (walk on with ``take_over``)
    check        the newest key is not past the claim                leads

A prefix that holds a copy of a log (``role``) is refused until the copy is promoted; then the first claim forks.

When a leader counts as gone is one table (``evidence``). It serves liveness only; safety never depends on it. The
probe (can the store hold a log?) runs during the first states and must pass before the claim is sent. A failed request
is repeated, with capped exponential backoff and full jitter, until ``retry_budget_ms`` is exhausted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Final

from msgspec import Struct

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
from holdfast.commit.leadership.role import Copied, RoleRecords
from holdfast.errors import Closed, Code, CorruptData, HoldfastError, NotFound, Unavailable
from holdfast.objects.port import CreateAnswer, Created, Unknown
from holdfast.values import Instant, LeaderId, LogId, Slot, slot_text


@dataclass(slots=True)
class Takeover:
    """What a takeover did: for the leadership, the log line and the metrics.

    ``proved_ms``: when the ownership check that passed was sent. ``waits``: sequential waits on the store.
    """

    claim: Header
    proved_ms: float
    waits: int = 0
    took_ms: float = 0.0
    restarts: int = 0
    deposed_leader_id: str | None = None
    steps_ms: dict[str, float] = field(default_factory=dict)


# -- effects: each but the last four is answered by exactly one event ------------------------------------------------


class Probe(Struct, frozen=True):
    """Ask whether the store can hold a log. Answered by Probed, while other requests are under way."""


class ListPage(Struct, frozen=True):
    """List the newest ``limit`` keys. Answered by PageListed or Failed."""

    limit: int


class ReadHeaders(Struct, frozen=True):
    """Read the headers of these slots, all of which were listed, and the records of ``role``. Answered by HeadersRead
    or Failed. It is sent after the listing: an object of a copy is listed only after the copy's record exists.
    """

    slots: tuple[Slot, ...]


class ListNewest(Struct, frozen=True):
    """List the newest key. Answered by NewestListed or Failed."""


class ReadHeader(Struct, frozen=True):
    """Read the header of a slot that may be empty. Answered by HeaderRead or Failed."""

    slot: Slot


class Look(Struct, frozen=True):
    """List the newest key, and read the newest sign of this leadership. Answered by Looked or Failed."""

    epoch: int
    leader_id: LeaderId


class AskLeader(Struct, frozen=True):
    """Ask the process at this address whether it leads, for at most ``ms_max``. Answered by LeaderAnswered.

    ``host``: what its certificate has to name.
    """

    address: str
    ms_max: float
    host: str = ""


class SendClaim(Struct, frozen=True):
    """Create the claim, conditionally. Answered by ClaimAnswered."""

    slot: Slot
    data: bytes


class ReadClaim(Struct, frozen=True):
    """Read the header that stands in the claim's slot. Answered by ClaimRead or Failed."""

    slot: Slot


class TakeoverWait(Struct, frozen=True):
    """Answer with ``TakeoverWoken`` after this many milliseconds. ``reason``: empty, or a line for the log."""

    ms: float
    reason: str = ""
    facts: Mapping[str, object] = {}


class CleanUp(Struct, frozen=True):
    """Remove what the probe left. Not answered."""


class StandBy(Struct, frozen=True):
    """This leader is alive and is followed. Not answered."""

    leader_id: str
    address: str


class Led(Struct, frozen=True):
    """The claim stands and no leader is past it. The end."""

    takeover: Takeover


class Fail(Struct, frozen=True):
    """The lead is not taken. The end."""

    error: HoldfastError


Request = ListPage | ReadHeaders | ListNewest | Look | ReadHeader | AskLeader | SendClaim | ReadClaim
Effect = Probe | Request | TakeoverWait | CleanUp | StandBy | Led | Fail


# -- events -----------------------------------------------------------------------------------------------------------


class _Timed(Struct, frozen=True):
    now: Instant


class Probed(_Timed, frozen=True):
    """The answer to Probe: None when the store can hold a log.

    ``booted_ms``: the wall clock less the boot clock, as the store's clock has it; None where it has none of its own.
    """

    error: HoldfastError | None
    booted_ms: int | None = None


class PageListed(_Timed, frozen=True):
    """The answer to ListPage: names and sizes in listing order."""

    rows: list[tuple[str, int]]


class HeadersRead(_Timed, frozen=True):
    """The answer to ReadHeaders: the first 512 bytes of each, and what says whether this is a copy."""

    objects: dict[Slot, bytes]
    records: RoleRecords = RoleRecords()


class NewestListed(_Timed, frozen=True):
    """The answer to ListNewest: None for an empty log."""

    newest: Slot | None


class HeaderRead(_Timed, frozen=True):
    """The answer to ReadHeader: the first 512 bytes, None for an empty slot."""

    data: bytes | None


class Looked(_Timed, frozen=True):
    """The answer to Look: the newest slot, and the newest sign of the leadership; None for none."""

    newest: Slot | None
    sign: Sign | None


class LeaderAnswered(_Timed, frozen=True):
    """The answer to AskLeader."""

    answer: LeaderAnswer


class ClaimAnswered(_Timed, frozen=True):
    """The answer to SendClaim."""

    answer: CreateAnswer


class ClaimRead(_Timed, frozen=True):
    """The answer to ReadClaim: the first 512 bytes, None for an empty slot."""

    data: bytes | None


class Failed(_Timed, frozen=True):
    """A request to the store had no usable answer."""

    error: HoldfastError


class TakeoverWoken(_Timed, frozen=True):
    """The answer to ``TakeoverWait``."""


Answer = PageListed | HeadersRead | NewestListed | Looked | HeaderRead | LeaderAnswered | ClaimAnswered | ClaimRead
Event = Probed | Answer | Failed | TakeoverWoken


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
    ``question_ms``: a standby asks its leader after one to two times this.
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


_ANSWERS: Final[Mapping[type[Request], type[Answer]]] = {
    ListPage: PageListed,
    ReadHeaders: HeadersRead,
    ListNewest: NewestListed,
    Look: Looked,
    ReadHeader: HeaderRead,
    AskLeader: LeaderAnswered,
    SendClaim: ClaimAnswered,
    ReadClaim: ClaimRead,
}

Then = Callable[[Instant], list[Effect]]


class TakeoverMachine:
    """One attempt to lead. Step it with the answer to each effect; it ends with Led or Fail.

    Apart from the probe, at most one request or wait is under way. An answer that belongs to none raises and changes
    nothing. After a crash: the claim may or may not stand; the next takeover decides by what it lists.
    """

    def __init__(self, identity: Identity, log_id: LogId, rules: TakeoverRules) -> None:
        self._identity = identity
        self._log_id = log_id
        self._rules = rules
        self.ended = False
        self._request: Request | None = None
        self._answered: Callable[[Instant, Answer], list[Effect]] = self._page_listed
        self._waking: Then | None = None
        self._since_ms = 0.0
        self._round_ms = 0.0
        self._missing_since_ms: float | None = None
        self._tries = 0
        self._draws = 0
        self._probing = False
        self._booted_ms: int | None = None
        self._until_probed: Then | None = None
        self._found: Then = self._consider
        self._page = NewestKeys((), frozenset())
        self._objects: dict[Slot, bytes] = {}
        self._copied: Copied | None = None
        self._waits = 0
        self._damages: set[object] = set()
        self._frontier = Frontier(FIRST_SLOT, None, 1)
        self._head: Header | None = None
        self._steps_left = 0
        self._chased: Callable[[Instant, Frontier | None], list[Effect]] = self._chased_for_a_claim
        self._started_ms = 0.0
        self._found_ms = 0.0
        self._considered_ms = 0.0
        self._waited_ms = 0.0
        self._restarts = 0
        self._changes = 0
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
        self._reply_since_ms = 0.0
        self._unanswered_since_ms = 0.0
        self._another_leads = False
        self._problem = ""
        self._questioned_ms = self._asked_ms = 0.0
        self._claim: Header | None = None
        self._checked_ms = 0.0

    # -- steps --------------------------------------------------------------------------------------------------------

    def begin(self, now: Instant) -> list[Effect]:
        """The first effects."""
        self._started_ms = now.boot_ms
        self._probing = self._rules.probe
        probe: list[Effect] = [Probe()] if self._rules.probe else []
        return probe + self._find(now, self._first_found)

    def step(self, event: Event) -> list[Effect]:
        """Take one event and return what is to be done about it."""
        if self.ended:
            return []
        try:
            return self._take(event)
        except HoldfastError as error:
            self.ended = True
            return [Fail(error)]

    def _take(self, event: Event) -> list[Effect]:
        now = event.now
        match event:
            case Probed(error=error, booted_ms=booted_ms):
                assert self._probing, "only a probe is answered by Probed"
                if isinstance(error, Unavailable) and now.boot_ms - self._started_ms < self._rules.retry_budget_ms:
                    return self._probe_again(error)
                self._probing = False
                if error is not None:
                    raise error
                # Kept as what is right: a standby claims long after it has asked.
                self._booted_ms = booted_ms
                then, self._until_probed = self._until_probed, None
                return then(now) if then is not None else []
            case TakeoverWoken():
                waking, self._waking = self._waking, None
                assert waking is not None, "only a wait is answered by TakeoverWoken"
                return waking(now)
            case Failed(error=error):
                assert self._request is not None, "only a request fails"
                return self._failed(now, error)
            case _:
                request = self._request
                assert request is not None and isinstance(event, _ANSWERS[type(request)]), "an answer fits its request"
                self._request = None
                return self._answered(now, event)

    def _probe_again(self, error: Unavailable) -> list[Effect]:
        assert self._until_probed is not None, "the driver takes the probe's answer when the machine waits for it"
        self._until_probed = lambda now: self._find(now, self._first_found)
        ms = self._backoff_ms()
        return self._wait(ms, lambda _: [Probe()], "store_unavailable", error=str(error), tries=self._tries)

    def _send(
        self, now: Instant, request: Request, answered: Callable[[Instant, Answer], list[Effect]]
    ) -> list[Effect]:
        """Send a request for the first time; its retry budget begins now."""
        self._since_ms = self._round_ms = now.boot_ms
        self._missing_since_ms, self._tries = None, 0
        self._request, self._answered = request, answered
        return [request]

    def _go_on_with(self, request: Request, answered: Callable[[Instant, Answer], list[Effect]]) -> list[Effect]:
        """Send the next request of a round, within that round's retry budget."""
        self._request, self._answered = request, answered
        return [request]

    def _wait(self, ms: float, waking: Then, reason: str = "", **facts: object) -> list[Effect]:
        self._waking = waking
        return [TakeoverWait(ms, reason, facts)]

    def _failed(self, now: Instant, error: HoldfastError) -> list[Effect]:
        """A failed request is sent again, a round from its start, until the retry budget is exhausted."""
        request, self._request = self._request, None
        assert request is not None, "only a request fails"
        if isinstance(request, ReadClaim):
            if isinstance(error, Unavailable):
                return self._claim_again(now, str(error))
            return self._lost(now)
        waited_ms = now.boot_ms - self._since_ms
        if isinstance(error, NotFound) and error.code is Code.NOT_FOUND:
            # Removed by retention since it was listed: list again. What is still needed then was lost.
            if self._is_lost(now):
                raise has_gone(error) from error
        elif not isinstance(error, Unavailable):
            raise error
        elif waited_ms >= self._rules.retry_budget_ms:
            retry_budget_s = self._rules.retry_budget_ms / 1000.0
            raise Unavailable("the store does not answer", patience_s=retry_budget_s, last=str(error)) from error
        again = ListPage(SPAN_MAX) if isinstance(request, ListPage | ReadHeaders) else request
        answered = self._page_listed if isinstance(again, ListPage) else self._answered

        def send_again(now: Instant) -> list[Effect]:
            self._round_ms = now.boot_ms
            if isinstance(again, ListNewest):
                self._checked_ms = now.boot_ms
            return self._go_on_with(again, answered)

        return self._wait(self._backoff_ms(), send_again, "store_unavailable", error=str(error), tries=self._tries)

    def _is_lost(self, now: Instant) -> bool:
        """Whether an object has been missing for long, in a recent round: retention removes objects, too."""
        if self._missing_since_ms is None:
            self._missing_since_ms = now.boot_ms
        missing_ms = now.boot_ms - self._missing_since_ms
        is_fresh = now.boot_ms - self._round_ms < MISSING_MS_MAX or self._tries >= RESTARTS_MAX
        return is_fresh and missing_ms >= min(self._rules.retry_budget_ms, MISSING_MS_MAX)

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

    def _find(self, now: Instant, found: Then) -> list[Effect]:
        self._found = found
        return self._send(now, ListPage(SPAN_MAX), self._page_listed)

    def _page_listed(self, now: Instant, answer: Answer) -> list[Effect]:
        assert isinstance(answer, PageListed), "a page was asked for"
        self._page = read_page(answer.rows)
        self._see(now, Shown(self._page.slots[0] if self._page.slots else None, self._shown.sign))
        self._objects = {}
        self._waits = 1
        return self._read(first_headers(self._page))

    def _read(self, slots: tuple[Slot, ...]) -> list[Effect]:
        self._waits += 1
        return self._go_on_with(ReadHeaders(slots), self._headers_read)

    def _headers_read(self, now: Instant, answer: Answer) -> list[Effect]:
        assert isinstance(answer, HeadersRead), "headers were asked for"
        self._objects.update(answer.objects)
        self._copied = answer.records.copied()
        return self._decide(now)

    def _decide(self, now: Instant) -> list[Effect]:
        try:
            allow_new, copy_from = self._rules.allow_new, self._copy_from()
            plan = plan_recovery(self._page, self._objects, allow_new=allow_new, copy_from=copy_from)
        except CorruptData as damage:
            return self._damaged(damage)
        if not isinstance(plan, Frontier):
            return self._read(plan.slots)
        self._damages.clear()
        plan.require_not_retired()
        self._frontier = plan
        return self._found(now)

    def _copy_from(self) -> Slot | None:
        """Where a promoted copy begins while the newest claim is the parent's: it has none of its own yet."""
        if self._copied is None or not self._objects:
            return None
        # Without a claim in the page the newest object is its leader's own.
        slot = min(self._page.claims & self._objects.keys(), default=min(self._objects))
        own = decode_header(self._objects[slot], slot=slot).log_id == self._copied.log_id
        return None if own else self._copied.first_slot

    def _damaged(self, damage: CorruptData) -> list[Effect]:
        """Damage counts when a second listing shows it at the same slot. A listing is not a snapshot: after the store
        has read the newer keys, the leader may write more, and retention may remove an older object.
        """
        slot = damage.fields.get("slot")
        if slot in self._damages or len(self._damages) >= RESTARTS_MAX:
            raise damage
        self._damages.add(slot)
        return self._go_on_with(ListPage(SPAN_MAX), self._page_listed)

    def _first_found(self, now: Instant) -> list[Effect]:
        """The first frontier: wait for the probe, because nobody is asked and nothing is written before it passes."""
        if self._probing:
            self._until_probed = self._first_found
            return []
        if self._rules.only_new and self._frontier.predecessor is not None:
            raise _alive("the log exists", self._frontier.predecessor)
        self._found_ms = now.boot_ms
        self._changes = 0
        return self._consider(now)

    # -- consider and ask: is it polite to claim now? -----------------------------------------------------------------

    def _consider(self, now: Instant) -> list[Effect]:
        self._considered_ms = now.boot_ms
        self._following, self._watched_since_ms, self._shown_at_peace = False, None, None
        self._reply = None
        newest = self._frontier.predecessor
        watched_id = None if newest is None else newest.leader_id
        if watched_id != self._watched_id:
            self._watched_id, self._sign = watched_id, None
            self._shown = Shown(self._shown.slot)
        if newest is None or self._rules.take_over or self._forks or _may_be_followed_at_once(newest):
            return self._at_peace(now)
        return self._look(now)

    @property
    def _forks(self) -> bool:
        """Whether the log is a promoted copy that has no claim of its own yet: the last leader leads another log."""
        before = self._frontier.predecessor
        return self._copied is not None and before is not None and before.log_id != self._copied.log_id

    def _watched_leader(self) -> Header:
        newest = self._frontier.predecessor
        assert newest is not None, "only a leader is asked and watched"
        return newest

    def _ask(self, now: Instant) -> list[Effect]:
        newest, sign = self._watched_leader(), self._sign
        self._asked_ms = now.boot_ms
        bound = None if sign is None else Address(sign.address, sign.scope)
        self._contact = contact(Address(newest.address, newest.scope), bound, self._identity.here)
        if self._contact.known is not None or not self._rules.asks:
            return self._replied(now, LeaderAnswer(self._contact.known or Reply.UNREACHABLE))
        ms_max = min(ANSWER_MS_MAX, max(ANSWER_MS_MIN, self._interval_ms / LOOKS_OF_AN_INTERVAL))
        return self._send(now, AskLeader(self._contact.address, ms_max, self._contact.host), self._leader_answered)

    def _leader_answered(self, now: Instant, answer: Answer) -> list[Effect]:
        assert isinstance(answer, LeaderAnswered), "a leader was asked"
        return self._replied(now, answer.answer)

    def _hear(self, now: Instant, answer: LeaderAnswer) -> None:
        """Note the reply, and what the leader says that it has shown."""
        reply, newest = answer.reply, self._watched_leader()
        if reply is Reply.LEADS and answer.leader_id != newest.leader_id.hex():
            reply = Reply.LEADS_NOT
        if self._reply in (None, Reply.LEADS):
            self._unanswered_since_ms = now.boot_ms
        if reply is not self._reply:
            self._reply, self._reply_since_ms = reply, now.boot_ms
        self._another_leads, self._problem = bool(answer.leader_id), answer.problem
        self._questioned_ms = now.boot_ms
        if reply is Reply.LEADS and answer.shown is not None:
            self._see(now, answer.shown)

    def _replied(self, now: Instant, answer: LeaderAnswer) -> list[Effect]:
        """The leader lives; or resigned, or another has come; or it is watched for signs of life."""
        self._hear(now, answer)
        newest = self._watched_leader()
        if self._reply is Reply.LEADS:
            return self._alive(newest)
        if self._following:
            # It may have resigned, or another has come to lead since it was followed.
            self._following = False
            return self._find(now, self._followed_found)
        if self._reply is Reply.LEADS_NOT and not self._another_leads and self._watched_since_ms is None:
            # It may have been asked to step down by the very question.
            return self._chase(now, self._chased_for_a_resign)
        verdict = self._verdict(now)
        # Only a proof does without a look: a sign may have appeared since the last one.
        return self._weigh(now) if verdict.is_proof and verdict.gone_in_ms <= 0.0 else self._look(now)

    def _alive(self, newest: Header) -> list[Effect]:
        if not self._rules.standby:
            raise _alive("another leader is alive", newest)
        self._following, self._watched_since_ms = True, None
        # Drawn, so that several standbys do not claim together.
        ms = self._rules.question_ms * (1.0 + self._draw())
        return [StandBy(newest.leader_id.hex(), newest.address), *self._wait(ms, self._ask)]

    def _followed_found(self, now: Instant) -> list[Effect]:
        """The end of the log after a leader that was followed gave another reply."""
        newest = self._frontier.predecessor
        if newest is None or _may_be_followed_at_once(newest) or newest.leader_id != self._watched_id:
            return self._consider(now)
        return self._look(now)

    def _chased_for_a_resign(self, now: Instant, end: Frontier | None) -> list[Effect]:
        if end is not None and end.predecessor is not None and end.predecessor.kind is Kind.RESIGN:
            return self._at_peace(now)
        return self._look(now)

    # -- watch: does the leader show signs of life? -------------------------------------------------------------------

    def _look(self, now: Instant) -> list[Effect]:
        """Look for new keys and signs. The times in them do not count: they are another machine's clock."""
        newest = self._watched_leader()
        return self._send(now, Look(newest.epoch, newest.leader_id), self._looked)

    def _see(self, now: Instant, shown: Shown) -> bool:
        """Note what the leader has shown. Returns whether it changed."""
        if shown == self._shown:
            return False
        self._shown, self._shown_ms = shown, now.boot_ms
        return True

    @property
    def _interval_ms(self) -> float:
        interval_ms = self._rules.sign_interval_ms if self._sign is None else self._sign.interval_ms
        return min(INTERVAL_MS_MAX, max(INTERVAL_MS_MIN, interval_ms))

    def _verdict(self, now: Instant) -> LeaderVerdict:
        newest = self._watched_leader()
        assert self._reply is not None, "a leader is asked before it is judged"
        return judge(
            Evidence(
                self._reply,
                is_same_place=self._contact.is_same_place,
                may_come_to_lead=newest.kind is Kind.CLAIM and not self._shown.sign and not self._another_leads,
                reply_ms=now.boot_ms - self._reply_since_ms,
                unanswered_ms=now.boot_ms - self._unanswered_since_ms,
                unchanged_ms=now.boot_ms - self._shown_ms,
                interval_ms=self._interval_ms,
            )
        )

    def _looked(self, now: Instant, answer: Answer) -> list[Effect]:
        assert isinstance(answer, Looked), "signs were looked for"
        self._sign = answer.sign if answer.sign is not None else self._sign
        number = self._shown.sign if answer.sign is None else answer.sign.number
        newest_before, changed = self._shown.slot, self._see(now, Shown(answer.newest, number))
        looked_ms, self._looked_ms = self._looked_ms, now.boot_ms
        if self._reply is None:
            return self._ask(now)
        if self._watched_since_ms is None:
            self._watched_since_ms = now.boot_ms
            return self._begin_to_watch(now)
        if changed and not self._verdict(now).is_proof:
            if self._rules.standby and answer.newest != newest_before:
                return self._find(now, self._followed_found)
            if not self._rules.standby and looked_ms >= self._watched_since_ms + IN_FLIGHT_MS:
                raise _alive("another leader shows signs of life", self._watched_leader())
        return self._weigh(now)

    def _begin_to_watch(self, now: Instant) -> list[Effect]:
        newest, verdict = self._watched_leader(), self._verdict(now)
        if verdict.gone_in_ms <= 0.0:
            return self._weigh(now)
        if self._reply is Reply.UNVERIFIED:
            return self._wait_to_look(
                verdict,
                "leader_not_verified",
                leader_address=self._contact.address,
                problem=self._problem,
                hint="its signs of life decide; server.peer_ca_file (of a job SSL_CERT_FILE) names whom to trust, and "
                "server.peer_name the name in its certificate where its address is an IP address",
            )
        return self._wait_to_look(
            verdict,
            "waiting_for_signs_of_life",
            reply=None if self._reply is None else self._reply.value,
            wait_ms=round(verdict.gone_in_ms),
            leader_id=newest.leader_id.hex(),
            leader_address=newest.address or None,
        )

    def _wait_to_look(self, verdict: LeaderVerdict, reason: str = "", **facts: object) -> list[Effect]:
        """Ask and look again: the last time so that both end right when the leader counts as gone."""
        period_ms = PROOF_LOOK_MS if verdict.is_proof else self._interval_ms / LOOKS_OF_AN_INTERVAL
        question_ms = self._questioned_ms - self._asked_ms
        if not verdict.is_proof and verdict.gone_in_ms <= question_ms:
            return self._wait(verdict.gone_in_ms, self._look, reason, **facts)
        left_ms = verdict.gone_in_ms if verdict.is_proof else verdict.gone_in_ms - question_ms
        return self._wait(max(1.0, min(period_ms, left_ms)), self._ask, reason, **facts)

    def _weigh(self, now: Instant) -> list[Effect]:
        verdict = self._verdict(now)
        assert verdict.gone_in_ms < inf, "a leader that answers is not watched"
        if verdict.gone_in_ms > 0.0:
            return self._wait_to_look(verdict)
        self._shown_at_peace = None if verdict.is_proof else self._shown
        return self._at_peace(now)

    def _at_peace(self, now: Instant) -> list[Effect]:
        """A claim is allowed. The frontier is found again when it is too old."""
        if now.boot_ms - self._considered_ms <= STALE_MS:
            return self._stake(now)
        return self._find(now, self._found_again)

    def _found_again(self, now: Instant) -> list[Effect]:
        newest = self._frontier.predecessor
        if newest is None or _may_be_followed_at_once(newest):
            return self._stake(now)
        if newest.leader_id == self._watched_id:
            return self._found_silent(now, newest)
        # Another leader has claimed meanwhile, and has not been asked yet.
        self._changes += 1
        if self._changes >= RESTARTS_MAX and not self._rules.standby:
            raise _changing_hands()
        return self._consider(now)

    def _found_silent(self, now: Instant, newest: Header) -> list[Effect]:
        """A leader that was watched may have written since the last look, or answer again after a pause."""
        if self._shown_at_peace is None:
            return self._stake(now)
        if self._shown != self._shown_at_peace:
            if self._rules.standby:
                return self._look(now)
            raise _alive("another leader is writing", newest)
        asks = self._rules.asks and self._contact.known is None
        if now.boot_ms - self._questioned_ms <= QUESTION_MS_MAX or not asks:
            return self._stake(now)
        question = AskLeader(self._contact.address, ANSWER_MS_MAX, self._contact.host)
        return self._send(now, question, self._last_answered)

    def _last_answered(self, now: Instant, answer: Answer) -> list[Effect]:
        assert isinstance(answer, LeaderAnswered), "a leader was asked"
        self._hear(now, answer.answer)
        return self._alive(self._watched_leader()) if self._reply is Reply.LEADS else self._stake(now)

    # -- claim and check ----------------------------------------------------------------------------------------------

    def _stake(self, now: Instant) -> list[Effect]:
        """R2: send the claim alone until it is created or refused."""
        identity, move = self._identity, self._rules.moves_stores
        if move is not None:
            _require_nothing_between(self._frontier, move)
        counted = self._restarts.to_bytes(4, "little") + b"claim"
        self._waited_ms = now.boot_ms - self._found_ms
        self._claim = claim = claim_header(
            self._frontier,
            identity,
            nonce=blake2b(counted, key=identity.nonce_seed, digest_size=16).digest(),
            log_id=self._log_id,
            now=now,
            believed=self._agrees_with_store(now),
            fork=self._copied if self._forks else None,
            retires=self._rules.retires,
            stores_mode=self._rules.stores_mode if move is None else move.mode,
            moves=move is not None,
        )
        return self._send(now, SendClaim(claim.slot, encode_claim(claim)), self._claim_answered)

    def _agrees_with_store(self, now: Instant) -> bool:
        """Whether the store's clock, where it has one, does not contradict the wall clock."""
        booted_ms = now.wall_ms - int(now.boot_ms)
        return self._booted_ms is None or abs(booted_ms - self._booted_ms) <= STORE_AGREES_MS

    def _claim_answered(self, now: Instant, answer: Answer) -> list[Effect]:
        assert isinstance(answer, ClaimAnswered) and self._claim is not None, "a claim was sent"
        match answer.answer:
            case Created():
                return self._check(now)
            case Unknown(final=True, detail=detail):
                slot = slot_text(self._claim.slot)
                raise Unavailable("the store takes nothing any more", slot=slot, cause=detail)
            case Unknown(detail=detail):
                return self._claim_again(now, detail)
            case _:
                return self._go_on_with(ReadClaim(self._claim.slot), self._claim_read)

    def _claim_read(self, now: Instant, answer: Answer) -> list[Effect]:
        """The object that refused the claim: this very claim, another object, or none."""
        assert isinstance(answer, ClaimRead) and self._claim is not None, "a claim was sent"
        if answer.data is None:
            return self._claim_again(now, "refused, but nothing there")
        try:
            own = decode_header(answer.data, slot=self._claim.slot).nonce == self._claim.nonce
        except HoldfastError:
            own = False
        return self._check(now) if own else self._lost(now)

    def _claim_again(self, now: Instant, detail: str) -> list[Effect]:
        claim = self._claim
        assert claim is not None, "a claim was sent"
        if now.boot_ms - self._since_ms >= self._rules.retry_budget_ms:
            raise Unavailable("the store did not take the claim", slot=slot_text(claim.slot), answer=detail)

        def send_again(_: Instant) -> list[Effect]:
            return self._go_on_with(SendClaim(claim.slot, encode_claim(claim)), self._claim_answered)

        ms = self._backoff_ms()
        slot = slot_text(claim.slot)
        return self._wait(ms, send_again, "claim_sent_again", slot=slot, tries=self._tries, answer=detail)

    def _check(self, now: Instant) -> list[Effect]:
        """Check for a later leader. The listing proves ownership from the time it was sent."""
        self._checked_ms = now.boot_ms
        return [CleanUp(), *self._send(now, ListNewest(), self._checked)]

    def _checked(self, now: Instant, answer: Answer) -> list[Effect]:
        assert isinstance(answer, NewestListed) and self._claim is not None, "the newest key was asked for"
        if has_successor(answer.newest, oldest_free=jump(self._claim.slot)):
            return self._lost(now)
        return self._lead(now)

    def _lead(self, now: Instant) -> list[Effect]:
        assert self._claim is not None, "a claim stands"
        self.ended = True
        before = self._frontier.predecessor
        takeover = Takeover(
            self._claim,
            self._checked_ms,
            waits=self._waits + 2,
            took_ms=now.boot_ms - self._started_ms,
            restarts=self._restarts,
            deposed_leader_id=before.leader_id.hex() if before is not None and before.kind is not Kind.RESIGN else None,
            steps_ms={"polite_wait": self._waited_ms},
        )
        return [Led(takeover)]

    def _lost(self, now: Instant) -> list[Effect]:
        assert self._claim is not None, "a claim was sent"
        self._restarts += 1
        if self._restarts >= RESTARTS_MAX:
            raise _changing_hands()
        if self._rules.take_over:
            return self._chase(now, self._chased_for_a_claim)
        return self._find(now, self._first_found)

    # -- walking on after a leader that writes faster than a listing answers ------------------------------------------

    def _chase(self, now: Instant, chased: Callable[[Instant, Frontier | None], list[Effect]]) -> list[Effect]:
        """Walk from the old end of the log to its present end; None when a listing is needed."""
        self._chased, self._steps_left, self._head = chased, SPAN_MAX, self._frontier.predecessor
        if self._head is None:
            return chased(now, None)
        return self._send(now, ReadHeader(next_slot(self._head)), self._walked)

    def _walked(self, now: Instant, answer: Answer) -> list[Effect]:
        assert isinstance(answer, HeaderRead) and self._head is not None, "a header was asked for"
        slot = next_slot(self._head)
        step = walk_on(self._head, None if answer.data is None else decode_header(answer.data, slot=slot))
        self._steps_left -= 1
        if not isinstance(step, Header):
            return self._chased(now, step)
        if not self._steps_left:
            return self._chased(now, None)
        self._head = step
        return self._go_on_with(ReadHeader(next_slot(step)), self._walked)

    def _chased_for_a_claim(self, now: Instant, end: Frontier | None) -> list[Effect]:
        if end is None:
            return self._find(now, self._first_found)
        self._frontier = end
        return self._stake(now)


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
