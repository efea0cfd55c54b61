"""Who is alone on the log: one table over what a process sees of the leader that the newest object names.

    row  the leader's address                      where                         the leader counts as gone
    1    answers that it leads                     anywhere                      never: it lives
    2    is an address of the process that looks   same boot, same namespace     at once
    3    answers, and another leads there or none  same boot, same namespace     at once
    4    refuses                                   same boot, same namespace     after 1 s of refusals
    5    refuses, or another process answers       elsewhere                     after 2.5 intervals without a sign
    6    does not answer                           anywhere                      after 2.5 intervals without a sign
    7    cannot be reached: loopback or a socket   elsewhere                     after 2.5 intervals without a sign
         file of another place, or no address
    8    answers, and cannot be verified (TLS)     anywhere                      after 2.5 intervals without a sign

A sign is an object under ``meta/alive/`` (``signs``) or a batch. An interval is the one that the leader's signs name.
The age of a sign counts from when this process first saw it, by this process's own clock; rows 5 to 8 hold for at least
a second after the last answer of the leader. The exception to row 3 is a
claim without a sign whose address answers that no leader is there: it may come to lead in a moment, so row 5 holds.

Rows 2 to 4 are proofs: a leader listens before it claims and until it has resigned, and no other process of that boot
and namespace can have its address meanwhile. What a process says that cannot be verified is neither that the leader
lives nor that it has gone. All of it is liveness: safety never depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final, Literal

from msgspec import Struct

from holdfast.commit.format.batch import UNKNOWN_SCOPE, AddressScope
from holdfast.commit.leadership.addresses import host_of, is_wildcard, without_scheme
from holdfast.values import LOOPBACK, Slot

SIGNS_MISSED: Final = 2.5
"""How many intervals pass without a sign before a leader counts as gone."""
INTERVAL_MS_MIN: Final = 50.0
INTERVAL_MS_MAX: Final = 600_000.0
"""Between them is the interval of any leader, whatever its signs say."""
REPLY_MS_MIN: Final = 1_000.0
"""No single question decides: for so long an address refuses, or a leader that could be asked gives no answer."""


class Reply(Enum):
    """What became of a question to the leader's address."""

    LEADS = "it leads"
    LEADS_NOT = "another process answers"
    OWN = "the address is this process's own"
    REFUSES = "it refuses"
    SILENT = "no answer"
    UNVERIFIED = "the answer cannot be verified"
    UNREACHABLE = "it cannot be reached from here"


class Shown(Struct, frozen=True):
    """What a leader has shown of itself: the newest slot, and the number of its newest sign, 0 for none."""

    slot: Slot | None = None
    sign: int = 0


class Sign(Struct, frozen=True, kw_only=True):
    """One sign of life. ``number`` counts from 1 under one leader; ``interval_ms`` is the time to the next one.

    ``address``, ``boot_id`` and ``namespace``: where the leader listens, and where that address is valid. It need not
    be the advertised address: a process at the same place asks here, without names and gateways between.
    """

    format: Literal[1] = 1
    leader_id: str
    epoch: int
    number: int
    interval_ms: float
    address: str
    boot_id: str
    namespace: int

    @property
    def scope(self) -> AddressScope:
        """Where the address is valid."""
        try:
            scope = AddressScope(bytes.fromhex(self.boot_id), self.namespace)
        except ValueError:
            return UNKNOWN_SCOPE
        return scope if scope.is_known() else UNKNOWN_SCOPE


class LeaderAnswer(Struct, frozen=True):
    """The answer of the process at an address. ``leader_id`` is empty where no leader answers.

    ``shown``: what the leader says that it has shown; None where the answer does not say it. ``problem``: why an answer
    cannot be verified.
    """

    reply: Reply
    leader_id: str = ""
    shown: Shown | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """Where a process is: the addresses at which it listens, and the scopes of addresses that are valid for it."""

    bound: tuple[str, ...] = ()
    scopes: tuple[AddressScope, ...] = ()

    def has(self, scope: AddressScope) -> bool:
        """Whether an address of this scope is the same endpoint here."""
        return scope.is_known() and scope in self.scopes


NOWHERE: Final = ProcessPlace()


class Contact(Struct, frozen=True):
    """How to ask a leader. ``known``: the reply where a question is needless; else ``address`` is to be asked.

    ``host``: what the leader's certificate has to name, also where another address of it is asked.
    """

    address: str
    is_same_place: bool
    known: Reply | None = None
    host: str = ""


class Address(Struct, frozen=True):
    """An address, and where it is valid."""

    text: str
    scope: AddressScope = UNKNOWN_SCOPE


def contact(advertised: Address, bound: Address | None, here: ProcessPlace) -> Contact:
    """How to ask a leader from ``here``. ``bound``: where it listens, by its newest sign; None without a sign.

    Only in the same place a refusal is a proof, so there the address at which it listens is asked. Elsewhere its
    advertised address is, unless that leads nowhere but to the machine of the leader.
    """
    for address in (bound, advertised):
        if address is not None and address.text and here.has(address.scope):
            is_own = without_scheme(address.text) in map(without_scheme, here.bound)
            return Contact(address.text, True, Reply.OWN if is_own else None, host_of(advertised.text))
    text, scopes = advertised.text, [advertised.scope] + ([] if bound is None else [bound.scope])
    is_local = without_scheme(text).startswith(LOOPBACK) and any(scope.is_known() for scope in scopes)
    if not text or is_wildcard(text) or is_local:
        return Contact("", False, Reply.UNREACHABLE)
    return Contact(text, False, host=host_of(text))


class Evidence(Struct, frozen=True):
    """What is known of a leader now. ``may_come_to_lead``: it has claimed and shown nothing since, and no other leader
    has its address.

    ``reply_ms``: for how long the address has given this reply. ``unanswered_ms``: for how long it has not answered
    that it leads. ``unchanged_ms``: how long ago the newest sign or batch was first seen. ``interval_ms``: the time
    between its signs.
    """

    reply: Reply
    is_same_place: bool
    may_come_to_lead: bool
    reply_ms: float
    unanswered_ms: float
    unchanged_ms: float
    interval_ms: float


class LeaderVerdict(Struct, frozen=True):
    """In how many milliseconds the leader counts as gone if the evidence stays as it is: 0 or less now, inf never.

    ``is_proof``: the address itself says that the leader has gone, so signs that still appear were on their way.
    """

    gone_in_ms: float
    is_proof: bool = False


def judge(evidence: Evidence) -> LeaderVerdict:
    """The table of the module."""
    match evidence.reply:
        case Reply.LEADS:
            return LeaderVerdict(inf)
        case Reply.OWN:
            return LeaderVerdict(0.0, is_proof=True)
        case Reply.LEADS_NOT if evidence.is_same_place and not evidence.may_come_to_lead:
            return LeaderVerdict(0.0, is_proof=True)
        case Reply.REFUSES if evidence.is_same_place:
            return LeaderVerdict(REPLY_MS_MIN - evidence.reply_ms, is_proof=True)
        case _:
            patience_ms = SIGNS_MISSED * evidence.interval_ms
            answers_ms = min(REPLY_MS_MIN, patience_ms) - evidence.unanswered_ms
            return LeaderVerdict(max(patience_ms - evidence.unchanged_ms, answers_ms))
