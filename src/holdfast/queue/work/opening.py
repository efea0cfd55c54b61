"""Starting a work queue: from the files that are there to the state that work goes on from.

Owns: replaying the commands, and comparing the result with the log and the dead letters as they are now. Does not own:
the commands (``work_log``), the state (``work_machine``), what is left of a log after a crash (``cursor``).

Failure model: safe to be stopped anywhere and run again: nothing is removed before the state that was found is durable,
and until then a start finds the same. The order matters: what the log has lost is dropped first, so that a dead letter
about a lost message is not taken for one about the message that has its number now.
"""

from __future__ import annotations

from holdfast.errors import NotFound
from holdfast.queue.consumers.cursor_file import history_at, kept_in, seq_since
from holdfast.queue.format.cursor import Cursor
from holdfast.queue.work.command import Kind, WorkState
from holdfast.queue.work.dead_letter import DeadLetter
from holdfast.queue.work.machine import WorkMachine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.queue.log.reader import DamagePolicy
    from holdfast.queue.queue import Queue
    from holdfast.queue.work.clock import WorkClock
    from holdfast.queue.work.log import WorkLog

__all__ = ["DEAD_PAGE_BYTES", "find_state"]

DEAD_PAGE_BYTES = 512 << 10


def find_state(
    queue: Queue,
    name: str,
    log: WorkLog,
    clock: WorkClock,
    cursor: Cursor | None,
    *,
    since: datetime | str | None,
    damage: DamagePolicy,
    hold: bool,
) -> WorkMachine:
    """The state to go on from, written down durably where it is not what the commands say. Sets the clock.

    Raises: ``Gap`` and ``CorruptData`` for a damaged log of commands, as the policy says.
    """
    machine, last_ns = log.replay(damage)
    clock.not_before(last_ns)
    if machine is None and cursor is not None:
        # The log of commands is lost. Behind the cursor everything is handed out again.
        machine = WorkMachine(WorkState(cursor.committed_seq + 1, 0, list(cursor.pages), {}))
    elif machine is None:
        first = seq_since(queue, since)
        machine = WorkMachine(WorkState(first, 0, history_at(queue.pages, first), {}))
    before = (machine.next_seq, len(machine.started), machine.dead_seq)
    if cursor is not None:
        # Lost power can take commands and spare the cursor: what it says is done is done, and may be gone already.
        if cursor.committed_seq >= machine.next_seq:
            machine.pages = list(cursor.pages)
        machine.apply(Kind.SKIP, 0, (1, cursor.committed_seq))
    known = Cursor(machine.next_seq - 1, machine.pages, of_work_queue=True, holds=hold)
    kept = kept_in(queue.pages, known, queue.last_seq)
    if kept < machine.next_seq - 1:
        machine.cut(kept, history_at(queue.pages, kept))
    find_buried(queue, name, machine)
    if not log.is_compact or before != (machine.next_seq, len(machine.started), machine.dead_seq):
        log.compact(machine, now=True)
    return machine


def find_buried(queue: Queue, name: str, machine: WorkMachine) -> None:
    """Apply the dead letters whose BURY was lost: those behind the last that one told."""
    try:
        with queue.beside(f"{name}-dead", read_only=True) as dead:
            last_seq = dead.last_seq
    except NotFound:
        return
    if last_seq <= machine.dead_seq:
        return
    with queue.beside(f"{name}-dead", page_size=DEAD_PAGE_BYTES) as dead:
        # A process that was killed may have written them and not synced them: they must not be lost after this.
        dead.flush()
        for message in dead.read(seq=machine.dead_seq + 1, damage="skip"):
            seq = DeadLetter.decode(message.payload).seq
            if seq in machine.started:
                machine.finish(seq)
        machine.dead_seq = dead.last_seq
