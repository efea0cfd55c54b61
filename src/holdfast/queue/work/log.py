"""The log of a work queue's commands: replay, compaction, and the state at an opening.

A command that could not be written was not done. An interrupt between writing and applying one leaves ``in_step`` set:
nothing more is written, and the next opening replays the log. A lost log begins again after the cursor. Damage before
the last state costs nothing; after it commands are missing, and the damage policy raises or doubts (``machine``).

After enough commands the whole state is appended as one frame; when that is durable, the pages before it are removed.
"""

from __future__ import annotations

import time
from contextlib import contextmanager

from holdfast.errors import Closed, Code, CorruptData, HoldfastError, NotFound
from holdfast.queue.format.commands import (
    STATE_KIND,
    CommandKind,
    DeadLetter,
    WorkState,
    decode_command,
    decode_state,
    encode_state,
)
from holdfast.queue.format.meta import Cursor
from holdfast.queue.log.messages import Gap
from holdfast.queue.work.machine import WorkMachine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.queue.core import QueueCore
    from holdfast.queue.log.messages import DamagePolicy, Message, Trimmed
    from holdfast.queue.options import Since


class WorkClock:
    """Nanoseconds since 1970 that never fall, within a process or below the last time that was written. It follows the
    monotonic clock, so a jump of the system time ends no lease; an opening begins at the system time, because deadlines
    continue while no process runs. A custom clock is used as it is.
    """

    __slots__ = ("_ahead_ns", "_clock")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._ahead_ns = 0
        self._clock = clock
        if clock is time.time_ns:
            self._clock = time.monotonic_ns
            self._ahead_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> int:
        """Nanoseconds since 1970."""
        return self._clock() + self._ahead_ns

    def not_before(self, last_ns: int) -> None:
        """Continue from ``last_ns`` if this clock is behind it."""
        self._ahead_ns += max(0, last_ns - self())


LOG_PAGE_BYTES = 512 << 10
COMMAND_BYTES_MAX = 128 << 10
"""Commands between two states: what an opening replays at most, unless the state is larger."""
FRAME_BYTES = 24
STATES = 4
"""Commands take at least this many times the space of a state before the next state."""


class WorkLog:
    """Commands in order. Not thread-safe, except ``wait``."""

    __slots__ = ("_append", "_log", "_state_seq", "in_step", "left", "synced", "written")

    def __init__(self, log: QueueCore, *, synced: bool) -> None:
        self._log = log
        self._append = log.writer.tail.append
        self._state_seq = 0
        self.synced = synced
        # Set before a command is written, cleared when it is applied. If an interrupt leaves it set, memory and log may
        # differ, and only a replay decides.
        self.in_step = False
        self.written = 0  # the last command, for ``wait``
        self.left = COMMAND_BYTES_MAX  # bytes until the next state is due

    def replay(self, damage: DamagePolicy) -> tuple[WorkMachine | None, int]:
        """The state after every command, None without commands; and the time of the last command. Raises: ``Gap`` by
        the policy; ``CorruptData``. Cost: reads the log and applies about 128 KiB of commands.
        """
        gaps: list[Gap | Trimmed] = []
        machine: WorkMachine | None = None
        tail: list[Message] = []
        time_ns = 0
        for first in self._page_starts():
            gaps.clear()
            tail.clear()
            for message in self._log.read(seq=first, damage=gaps.append):
                time_ns = message.time_ns
                if message.payload[:1] == STATE_KIND:
                    machine = WorkMachine(decode_state(message.payload))
                    self._state_seq = message.seq
                    tail.clear()
                else:
                    tail.append(message)
            if machine is not None:
                break
        missing = [gap for gap in gaps if isinstance(gap, Gap) and gap.last > self._state_seq]
        for gap in missing:
            if callable(damage):
                damage(gap)
            elif damage == "raise":
                raise gap
        if machine is None and not tail:
            return None, time_ns
        if machine is None:
            machine = self._without_state(tail[0], damage)
        for message in tail:
            if missing and message.seq > missing[0].first:
                machine.doubtful = True
            machine.apply(*decode_command(message.payload))
        machine.doubtful = False
        return machine, time_ns

    def _page_starts(self) -> list[int]:
        """The first message of each page, from the last page back: usually the last one holds a state."""
        pages = self._log.pages
        headers = [pages.header_of(number) for number in reversed(pages.numbers())]
        return [header.base_seq for header in headers if header is not None and not header.prepared]

    def _without_state(self, first: Message, damage: DamagePolicy) -> WorkMachine:
        machine = WorkMachine()
        if first.seq > 1:
            if damage == "raise":
                raise CorruptData(
                    "the beginning of a work queue's log is missing", code=Code.CORRUPT_QUEUE, first_seq=first.seq
                )
            machine.doubtful = True
        return machine

    def record(self, command: bytes) -> None:
        """Append a command and begin its step, which the caller ends. After an error nothing was done."""
        self.in_step = True
        try:
            self.written = self._append(command)
        except HoldfastError:
            self.in_step = False
            raise
        self.left -= FRAME_BYTES + len(command)

    @contextmanager
    def step(self) -> Generator[None]:
        """A block that belongs to the step of the next command. An error ends the step; an interrupt does not."""
        self.in_step = True
        try:
            yield
        except HoldfastError:
            self.in_step = False
            raise

    def wait(self, written: int) -> None:
        """Return when this command is as durable as the sync level promises. Thread-safe; threads share a sync."""
        if self.synced:
            self._log.wait_durable(written)

    def flush(self) -> None:
        """Make every command so far durable, at every level. Thread-safe."""
        self._log.flush()

    def compact(self, machine: WorkMachine, *, now: bool = False) -> None:
        """Append the state, synced first if ``now``, and remove the pages before the last durable state."""
        before = self._state_seq
        state = encode_state(machine.state())
        self._state_seq = self._log.append_many([state], atomic=True)[1]
        self.left = max(COMMAND_BYTES_MAX, STATES * len(state))
        if now:
            self._log.flush()
            before = self._state_seq
        if before and self._log.durable_seq >= before:
            self._log.trim(before_seq=before)

    def keep_short(self, machine: WorkMachine) -> None:
        """``compact``. After an error the commands stay, and it is tried again after as many more."""
        try:
            self.compact(machine)
        except (OSError, HoldfastError) as error:
            if isinstance(error, Closed):
                raise
            self.left = COMMAND_BYTES_MAX

    @property
    def is_compact(self) -> bool:
        """Whether the last message is a state."""
        return self._state_seq > 0 and self._state_seq == self._log.last_seq

    def close(self) -> None:
        """Make everything durable and close the log."""
        self._log.close()


DEAD_PAGE_BYTES = 512 << 10


def find_state(
    core: QueueCore,
    name: str,
    log: WorkLog,
    clock: WorkClock,
    cursor: Cursor | None,
    *,
    since: Since,
    damage: DamagePolicy,
) -> WorkMachine:
    """The state to continue from, written durably if it differs from the commands. Sets the clock.

    It may be stopped anywhere and run again. Raises: ``Gap`` and ``CorruptData`` by the policy.
    """
    machine, last_ns = log.replay(damage)
    clock.not_before(last_ns)
    if machine is None and cursor is not None:
        # The log of commands is lost: hand out everything after the cursor again.
        machine = WorkMachine(WorkState(cursor.committed_seq + 1, 0, {}))
    elif machine is None:
        machine = WorkMachine(WorkState(core.seq_since(since), 0, {}))
    before = (machine.next_seq, len(machine.started), machine.dead_seq)
    if cursor is not None:
        # Lost power can take commands and spare the cursor: its messages are done, and may be removed.
        machine.apply(CommandKind.SKIP, 0, (1, cursor.committed_seq))
    find_buried(core, name, machine)
    if not log.is_compact or before != (machine.next_seq, len(machine.started), machine.dead_seq):
        log.compact(machine, now=True)
    return machine


def find_buried(core: QueueCore, name: str, machine: WorkMachine) -> None:
    """Apply the dead letters whose BURY was lost: those after the last one that a BURY names."""
    try:
        with core.sibling(f"{name}-dead", read_only=True) as dead:
            last_seq = dead.last_seq
    except NotFound:
        return
    if last_seq <= machine.dead_seq:
        return
    with core.sibling(f"{name}-dead", page_size=DEAD_PAGE_BYTES) as dead:
        # A killed process may have written them without a sync: they must be durable now.
        dead.flush()
        for message in dead.read(seq=machine.dead_seq + 1, damage="skip"):
            seq = DeadLetter.decode(message.payload).seq
            if seq in machine.started:
                machine.finish(seq)
        machine.dead_seq = dead.last_seq
