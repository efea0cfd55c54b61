"""The broken versions of the rules of ``persist`` that ``mutants`` puts in the place of the real ones.

Owns: each broken rule, as close to the real code as its rule allows. Does not own: which rule is replaced where.

Failure model: these lose data by intent. Never import them but for mutants.
"""

# They stand in for private methods of the real code, and know its fields.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.queue.consumers.cursor_file import first_held_seq, first_unconsumed_seq, sync_holds
from holdfast.queue.persist import PersistRun, Stored
from holdfast.queue.persist_flow import Flow, Step, Work

if TYPE_CHECKING:
    from holdfast.queue.consumers.consumer import Consumer
    from holdfast.queue.log.messages import Message
    from holdfast.queue.persist import PersistSettings, _Since

_next_item = PersistRun.next_item
_subscribe = PersistRun._subscribe
_stored = PersistRun.stored


def acknowledge_when_given(self: PersistRun) -> tuple[Message, object]:
    """An item is committed when it is given."""
    message, item = _next_item(self)
    self._place.commit(message.seq, durable=False)
    return message, item


def drop_what_is_left(self: PersistRun, settings: PersistSettings) -> Consumer | _Since:
    """A new run begins after what the last one has left."""
    if settings.consumer is not None:
        with self.queue.consumer(settings.consumer, hold=True) as consumer:
            if consumer.committed_seq < self.queue.last_seq:
                consumer.reset(since="latest")
    return _subscribe(self, settings)


def end_before_the_last_items(self: Flow) -> Step:
    """The end is given as soon as the source has ended."""
    if self.stopped:
        return Step.CLOSED
    if self.ending is not None:
        return Step.END
    return Step.GIVE if self.consumed_seq < self.stored_seq else Step.WAIT


def consume_in_memory(self: PersistRun, *, durable: bool = False) -> None:
    """An item counts as consumed, and the cursor is not written."""
    if self.given is not None:
        self.flow.consumed(self.given.seq, len(self.given.payload))
        self.given = None


def never_wait(self: Flow) -> Work:
    """The source runs ahead without a bound."""
    if self.stopped or self.ending is not None:
        return Work.NOTHING if self.source_closed else Work.CLOSE_SOURCE
    return Work.MEASURE if self.measured_seq < self.left_seq else Work.PULL


def nothing_left_to_measure(self: PersistRun) -> None:
    """What earlier runs have left does not count against the bound."""
    self.flow.measured_seq = self.flow.left_seq


def forget_what_is_stored(self: PersistRun) -> Stored[object]:
    """The source learns of the items that were consumed, and not of all that are stored."""
    found = _stored(self)
    return Stored(self.flow.consumed_seq, found.last)


def free_for_this_consumer(self: PersistRun) -> None:
    """Space is freed as soon as this consumer needs it no more, whatever others need."""
    queue = self.queue
    if not self._keeps_consumed:
        sync_holds(queue.pages, self._sync_failed, every=True)
        queue.trim(before_seq=self.flow.consumed_seq + 1)


def free_for_consumers_that_hold(self: PersistRun) -> None:
    """Space is freed although a consumer that does not hold has yet to consume it."""
    queue = self.queue
    held = first_held_seq(queue.pages, lambda: queue.last_seq)
    if held is not None and not self._keeps_consumed:
        sync_holds(queue.pages, self._sync_failed, every=True)
        queue.trim(before_seq=held)


def free_before_the_cursors_are_durable(self: PersistRun) -> None:
    """Space is freed while lost power may take the cursors back before it."""
    queue = self.queue
    unconsumed = first_unconsumed_seq(queue.pages, lambda: queue.last_seq)
    if unconsumed is not None and not self._keeps_consumed:
        queue.trim(before_seq=unconsumed)
