"""The log of a work queue's commands: written before they are applied, replayed at a start, kept short.

Owns: replay, the state that is written now and then, which old pages of the log go. Does not own: commands
(``work_command``), what they do (``work_machine``), the log itself: a queue in the same directory, with the same pages,
frames and recovery.

Failure model: a command that could not be written was not done. One that an interrupt left between its writing and its
application stays ``in_step``: nothing more is written behind it, and the next start replays what is there. A log that
was lost begins anew behind the cursor of the work queue (``work_queue``). Damage in front of the last state costs
nothing; behind it commands are missing, and the policy for damage says whether that is an error or doubt
(``work_machine``).

How the log is kept short, and what a crash leaves:

1. when enough commands have been written, the whole state is appended as one message: a frame, there or not;
2. when it is durable, the pages before it are removed, oldest first. A crash between leaves some of them; a start
   applies nothing that comes before the last state.
"""

from __future__ import annotations

from contextlib import contextmanager

from holdfast.errors import Closed, Code, CorruptData, HoldfastError
from holdfast.queue.log.messages import Gap
from holdfast.queue.work.command import decode_command, decode_state, encode_state, is_state
from holdfast.queue.work.machine import WorkMachine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.queue.log.messages import Message, Trimmed
    from holdfast.queue.log.reader import DamagePolicy
    from holdfast.queue.queue import Queue

__all__ = ["LOG_PAGE_BYTES", "WorkLog"]

LOG_PAGE_BYTES = 512 << 10
COMMAND_BYTES_MAX = 128 << 10
"""Commands between two states: what a start replays at most, unless the state itself is large."""
FRAME_BYTES = 24
STATES = 4
"""Commands take at least this many times the space of a state before the next one is written."""


class WorkLog:
    """Commands in order. Not thread-safe, but for ``wait``."""

    __slots__ = ("_append", "_log", "_state_seq", "in_step", "left", "mark", "synced")

    def __init__(self, log: Queue, *, synced: bool) -> None:
        self._log = log
        self._append = log.append
        self._state_seq = 0
        self.synced = synced
        # From before a command is written until it is applied. Where an interrupt left it so, memory and the log may
        # differ, and only a replay tells what was done.
        self.in_step = False
        self.mark = 0  # the last command, for ``wait``
        self.left = COMMAND_BYTES_MAX  # bytes until the next state is due

    def replay(self, damage: DamagePolicy) -> tuple[WorkMachine | None, int]:
        """The state after every command that is there, None where there is none; and the time of the last command.

        Raises: ``Gap`` by the policy; ``CorruptData``.
        Cost: reads the log, applies what follows the last state: about 128 KiB of commands.
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
                if is_state(message.payload):
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
                machine.doubt()
            machine.apply(*decode_command(message.payload))
        machine.doubtful = False
        return machine, time_ns

    def _page_starts(self) -> list[int]:
        """The first message of each page, from the last page back: mostly the last one holds a state."""
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
            machine.doubt()
        return machine

    def record(self, command: bytes) -> None:
        """Append a command. Raises what appending raises; then nothing was done.

        Begins a step, which whoever applies the command ends. An interrupt (Ctrl-C) leaves the step begun.
        """
        self.in_step = True
        try:
            self.mark = self._append(command)
        except HoldfastError:
            self.in_step = False
            raise
        self.left -= FRAME_BYTES + len(command)

    @contextmanager
    def step(self) -> Generator[None]:
        """A block that belongs to the step whose command comes next. What refuses ends it; an interrupt does not."""
        self.in_step = True
        try:
            yield
        except HoldfastError:
            self.in_step = False
            raise

    def wait(self, mark: int) -> None:
        """Return when this command is as safe as the sync level promises. Thread-safe; one sync for all who wait."""
        if self.synced:
            self._log.wait_durable(mark)

    def flush(self) -> None:
        """Return when every command so far is durable, at every level. Thread-safe."""
        self._log.flush()

    def compact(self, machine: WorkMachine, *, now: bool = False) -> None:
        """Append the state, and remove what lies before the last state that is durable.

        With ``now`` the new one is made durable first, which takes a sync.
        """
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
        """``compact``. Where that fails the commands stand, and it is tried again after as many more."""
        try:
            self.compact(machine)
        except (OSError, HoldfastError) as error:
            if isinstance(error, Closed):
                raise
            self.left = COMMAND_BYTES_MAX

    @property
    def is_compact(self) -> bool:
        """Whether the last message is a state: a start need not write another."""
        return self._state_seq > 0 and self._state_seq == self._log.last_seq

    def close(self) -> None:
        """Make everything durable and close the log."""
        self._log.close()
