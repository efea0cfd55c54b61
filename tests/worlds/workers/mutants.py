"""Mutants of the client and of the deliveries: the real code with one rule taken out, which a world must notice."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.worlds.harness import Mutants
from tests.worlds.workers.promises import (
    CREDIT,
    DONE,
    HELD,
    MARKED,
    ORDER,
    OWN_TIME,
    PENDING,
    SILENT,
    WINDOW,
    WORK_STAYS,
)
from tests.worlds.workers.world import run_world

from holdfast.client.protocol.stores.acknowledgements import AckBatcher, CreditWindow, InWork
from holdfast.client.protocol.stores.buffer import Inbox
from holdfast.client.protocol.stores.subscriber import SubscriberMachine
from holdfast.server.stores.deliveries import STOPPING, Deliveries
from holdfast.server.stores.socket import SubscribeSocket
from holdfast.server.stores.subscribers import ServedSubscriber
from holdfast.stores.durables import consumption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.wire.parts import Delivery

__all__ = ["MUTANTS"]

MUTANTS: Final = Mutants(run_world, seeds_max=150)

_take, _arrived = Inbox.take, Inbox.arrived
BUSY: Final = {"kind": "shared", "workers": 3, "prefetch": 16, "own_prefetch": None, "job_ms": 60.0}
SLOW: Final = {**BUSY, "ack_wait_ms": 300, "buffer_wait_ms": 100}
"""Jobs that last longer than their time."""
QUICK: Final = {"workers": 1, "handlers": 3, "prefetch": 64, "own_prefetch": 20, "job_ms": 2.0, "delay_ms": 0.5}
FAULTY: Final = {**BUSY, "kills": 3, "cuts": 5, "holds": 3, "sleeps": 3}


@MUTANTS.breaks(PENDING, "withdraw", Inbox, focus=SLOW)
def withdrawals_are_ignored(*_: object) -> list[int]:
    """What the service takes back is handed over."""
    return []


@MUTANTS.breaks(CREDIT, "withdrawn", SubscribeSocket, focus=SLOW)
def withdrawals_are_not_sent(*_: object) -> None:
    """The service takes back in silence."""


@MUTANTS.breaks(OWN_TIME, "take", Inbox, focus=SLOW)
def own_time_has_no_end(self: Inbox, now_ms: float) -> Delivery | None:
    """A message is handed over after its own time."""
    for frame in self._frames:
        frame.until_ms = now_ms + 1
    return _take(self, now_ms)


@MUTANTS.breaks(PENDING, "settled", Inbox, focus=FAULTY)
def settled_copies_stay(*_: object) -> int:
    """A message that the application has settled is handed over again, from the buffer."""
    return 0


@MUTANTS.breaks(PENDING, "is_settling", AckBatcher, focus=FAULTY)
def copies_of_pending_ones_stay(*_: object) -> bool:
    """A message whose acknowledgement is about to be sent is handed over again."""
    return False


@MUTANTS.breaks(ORDER, "_drop_late", Inbox, focus={**SLOW, "kind": "standard", "workers": 1}, first_seed=30)
def later_ones_stay(self: Inbox, now_ms: float) -> None:
    """A message that is late leaves alone."""
    late = self._remove(lambda _, until_ms: until_ms <= now_ms)
    self._late.update({message.seq: message.key for message in late})


@MUTANTS.breaks(CREDIT, "withdrawn", CreditWindow, focus=SLOW)
def withdrawn_credit_is_forgotten(*_: object) -> None:
    """The client does not count the credit that comes back with a withdrawal."""


@MUTANTS.breaks(DONE, "regain", ServedSubscriber, focus=SLOW)
def withdrawn_room_is_lost(*_: object) -> None:
    """The service does not give the credit of a withdrawal back."""


@MUTANTS.breaks(DONE, "settled", Deliveries, focus={**SLOW, "sync_ms": 40.0, "delay_ms": 40.0, "prefetch": 1})
def room_of_the_unsent_is_lost(*_: object) -> None:
    """A message that was settled before it was sent keeps its room."""


_give_credit = SubscriberMachine._give_credit


@MUTANTS.breaks(WINDOW, "_give_credit", SubscriberMachine, focus={**BUSY, **QUICK})
def credit_before_the_acknowledgement(self: SubscriberMachine) -> None:
    """Credit is given for what is acknowledged and not sent."""
    pending, self._acks.pending = self._acks.pending, 0
    _give_credit(self)
    self._acks.pending = pending


@MUTANTS.breaks(ORDER, "arrived", Inbox, focus={**SLOW, "kind": "standard", "workers": 1}, first_seed=95)
def what_comes_behind_a_late_one_stays(
    self: Inbox, messages: Sequence[Delivery], again: Sequence[int], until_ms: float
) -> None:
    """A message that comes after an older one was late is handed over."""
    late, self._late = self._late, {}
    _arrived(self, messages, again, until_ms)
    self._late = {seq: key for seq, key in late.items() if all(one.seq != seq for one in messages)}


@MUTANTS.breaks(WORK_STAYS, "parameter", InWork, focus={**BUSY, "kills": 6}, first_seed=30)
def work_is_not_named(*_: object) -> str:
    """A new connection does not say what the application works on."""
    return ""


@MUTANTS.breaks(WORK_STAYS, "done", InWork, focus={**BUSY, "kills": 6, "settles": (0, 0, 0, 0, 90, 0, 10)})
def extended_work_is_done(self: InWork, first: int, last: int) -> None:
    """Something that is not settled counts as done."""
    del first, last
    self.clear()


_leave = Deliveries.leave


@MUTANTS.breaks(WORK_STAYS, "leave", Deliveries, focus={**BUSY, "stops": 6})
def a_stop_gives_back(self: Deliveries, subscriber: ServedSubscriber, cause: str) -> None:
    """A service that stops gives to others what applications work on."""
    if cause == STOPPING:
        self._detach(subscriber, cause)
    else:
        _leave(self, subscriber, cause)


@MUTANTS.breaks(MARKED, "count_after", consumption, focus=FAULTY)
def seen_before_is_new(deliveries: int) -> int:
    """A message that a subscriber had before is delivered as a first one."""
    return max(deliveries, 0) + 1


@MUTANTS.breaks(HELD, "clear", Inbox, focus=FAULTY)
def a_buffer_outlives_its_connection(self: Inbox) -> None:
    """What came over a connection that is lost is handed over."""
    self._late.clear()


@MUTANTS.breaks(
    HELD,
    "withdraw",
    Inbox,
    focus={**BUSY, "removals": 6, "ack_wait_ms": 9_000, "settles": (0, 1, 0, 0, 0, 0, 0)},
)
def withdrawn_ones_stay(self: Inbox, ranges: Sequence[tuple[int, int]]) -> list[int]:
    """What the service takes back is counted as dropped, and handed over."""
    here = [message.seq for frame in self._frames for message in frame.messages]
    return [seq for seq in (*here, *self._late) if any(first <= seq <= last for first, last in ranges)]


_next_step = SubscriberMachine.next_step


@MUTANTS.breaks(
    SILENT,
    "next_step",
    SubscriberMachine,
    focus={**FAULTY, "holds": 12, "ack_wait_ms": 9_000, "buffer_wait_ms": 9_000, "job_ms": 900.0},
)
def a_silent_line_is_not_lost(self: SubscriberMachine, now_ms: float) -> object:
    """A connection over which nothing comes is kept."""
    self._bytes_ms = now_ms
    return _next_step(self, now_ms)
