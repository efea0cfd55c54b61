"""Giving back the space of what is no longer kept, while clients work.

Owns: when it is worth it, which messages move, how much at a time. Does not own: what is kept (``index``), where it
lies (``locations``), removing pages (``storage``).

Failure model: a move is a frame like any other, and the old place is let go only by the checkpoint after it; so a crash
at any point loses no more than the moving. Stopping in the middle leaves what was moved moved.

Pages go from the front of the log. What nobody keeps there costs nothing to remove; one message that somebody keeps
holds all pages behind it. When less than ``min_disk_inuse_ratio`` of the log is kept, the messages that are still kept
at its front are written again at its end, until the ratio is above. Each byte so written frees at least as many at the
default of a half. Moving happens in steps of about ``STEP_BYTES``, each a group of its own, so that a client waits no
longer than for one more step.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from dataclasses import dataclass
from typing import Final

from holdfast.errors import CorruptData, HoldfastError
from holdfast.stores.storage.frames import MessageRun, Relocated, encode_relocated
from holdfast.stores.values.ports import BLOCK_MESSAGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.stores.group_commit import GroupCommit
    from holdfast.stores.storage.checkpoints import Checkpoints
    from holdfast.stores.storage.locations import Extent
    from holdfast.stores.storage.storage import Storage
    from holdfast.stores.values.ports import Block

__all__ = ["Compaction", "SpaceUse"]

STEP_BYTES: Final = 1 << 20
PASS_EXTENTS: Final = 1_024
"""Extents moved before a checkpoint lets pages go: about 64 MiB of messages."""
MESSAGE_LOG_BYTES: Final = 48
"""What a message takes in the log beside its bytes, about: its share of a frame, names of its fields."""
PAGES_MIN: Final = 4
"""Logs shorter than this are left alone."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpaceUse:
    """Bytes of the log: of all pages, and about what kept messages take of them. ``pages`` counts them."""

    allocated: int
    in_use: int
    pages: int

    @property
    def ratio(self) -> float:
        """The part that is kept, 1 for an empty log."""
        return min(1.0, self.in_use / self.allocated) if self.allocated else 1.0


class Compaction:
    """Moves kept messages from the front of the log to its end. Every method belongs on the event loop."""

    def __init__(self, storage: Storage, groups: GroupCommit, checkpoints: Checkpoints) -> None:
        self._storage = storage
        self._groups = groups
        self._checkpoints = checkpoints
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.automatic = True
        self.ratio_min = 0.5
        self.moved_bytes = 0
        self.runs = 0
        self._told = ""  # which damage was told last: it is met again with each run

    @property
    def running(self) -> bool:
        """Whether it is at work."""
        return self._task is not None

    def space(self) -> SpaceUse:
        """How much the log takes, and how much of it is kept. *Cost*: the size of each page."""
        pages = self._storage.log.page_bytes()
        return SpaceUse(sum(pages), self._storage.kept_bytes(MESSAGE_LOG_BYTES), len(pages))

    def consider(self) -> None:
        """Called after a checkpoint: begin if it is worth it."""
        if self.automatic and self._task is None and not self._closed and self._is_worth_it():
            self._task = asyncio.get_running_loop().create_task(self._run(all_of_it=False))

    def _is_worth_it(self) -> bool:
        use = self.space()
        return use.pages >= PAGES_MIN and use.ratio < self.ratio_min

    async def now(self) -> SpaceUse:
        """Write all that is kept once more, at the end, and let the pages before it go; returns what is used then.

        *Raises*: what a checkpoint raises; the failure of the log.
        """
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(all_of_it=True))
        await asyncio.shield(self._task)
        return self.space()

    async def _run(self, *, all_of_it: bool) -> None:
        self.runs += 1
        try:
            await self._checkpoints.now()
            end = self._storage.messages.next_frame
            while not self._closed and self._groups.failure is None and (all_of_it or self._is_worth_it()):
                extents = [
                    extent for extent in self._storage.index.oldest_extents(PASS_EXTENTS) if extent.first_frame < end
                ]
                if not extents:
                    break
                await self._move_all(extents)
                await self._checkpoints.now()
        except (HoldfastError, OSError, sqlite3.Error) as error:
            if all_of_it:
                raise  # somebody waits for it; else the log's failure is told to everyone, and a full disk is retried
            if isinstance(error, CorruptData) and str(error) != self._told:
                # Nothing behind it gives its space back, and nobody waits to be told.
                self._told = str(error)
                _logger.error(
                    "messages that cannot be read cannot be moved error=%s hint=%s", error.statement(), error.hint
                )
        finally:
            self._task = None

    async def _move_all(self, extents: list[Extent]) -> None:
        step = 0
        for extent in extents:
            if self._closed or self._groups.failure is not None:
                return
            # As it is now: while this waited it may have grown, moved, or gone.
            current = self._storage.locations.current(extent)
            if current is not None:
                step += self._move(current)
            if step >= STEP_BYTES:
                step = 0
                await self._groups.turn()

    def _move(self, extent: Extent) -> int:
        """Write what is kept of an extent again. Returns its bytes."""
        storage = self._storage
        runs = [
            kept
            for run in storage.messages.runs(extent.store, extent.first_seq, extent.last_seq)
            for kept in self._kept(run, extent)
        ]
        if not runs:
            return 0  # the next checkpoint finds that nothing is kept
        relocated = Relocated(extent.store, extent.first_seq, extent.last_seq, runs)
        frame = encode_relocated(relocated)
        try:
            storage.messages.relocate(relocated, storage.messages.next_frame)
        except BaseException as error:
            self._groups.poison(error)  # where messages lie may be half changed, and the log does not tell of it
            raise
        storage.note_frame(len(frame))
        storage.messages.next_frame += 1
        self._groups.add(frame, _told_elsewhere)
        self.moved_bytes += len(frame)
        return len(frame)

    def _kept(self, run: MessageRun, extent: Extent) -> list[MessageRun]:
        """The parts of a run that are kept, in runs without holes."""
        found: list[MessageRun] = []
        block: Block | None = None
        number = first = -1
        for seq in range(max(run.first_seq, extent.first_seq), min(run.last_seq, extent.last_seq) + 2):
            kept = False
            if seq <= run.last_seq and seq <= extent.last_seq:
                if seq // BLOCK_MESSAGES != number:
                    number = seq // BLOCK_MESSAGES
                    block = self._storage.index.blocks.get(run.store, number)
                kept = block is not None and block.references[seq % BLOCK_MESSAGES] > 0
            if kept and first < 0:
                first = seq
            elif not kept and first >= 0:
                part = run.messages[first - run.first_seq : seq - run.first_seq]
                found.append(MessageRun(run.store, first, run.published_ms, part))
                first = -1
        return found

    async def close(self) -> None:
        """Stop after the step that is being done."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task])


def _told_elsewhere(_error: BaseException | None) -> None:
    """The failure of a group is told to everyone at once."""
