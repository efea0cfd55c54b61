"""``StoreService``, the stores of one service: it takes commands, and replies when the log has their records.

A command is refused (``HoldfastError``) and changes nothing, or it is applied in memory at once. Then its reply is
given when its record is as safe as the cluster's ``persistence`` demands. Everything runs on one event loop, except
that a thread does most of the writing:

1. ``submit`` gives the command its time, which never goes back within one log, and applies it;
2. its record waits for the next group of records. Just before that group is taken, ``StoreObserver.ready`` is called
   for each durable that can serve a subscriber. A ``Deliver`` that is submitted in this call joins the same group. So
   one sync is enough from the publisher to the subscriber of a message;
3. the group is written and synced; then replies are given and effects carried out, in the order of the commands.

After a failed write or sync, a command that was applied and waits for its reply gets ``outcome_unknown``. Every other
command gets ``closed``, and the observer's ``fail`` is called. Commands of stores that are kept only in memory are not
logged.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec.structs import force_setattr, replace

from holdfast.commit.stages.events import WhenDurable
from holdfast.errors import Closed, CorruptData, HoldfastError, InvalidRequest, NotFound
from holdfast.stores.checkpoints import Checkpoints, Compaction
from holdfast.stores.clock import ClockKeeper, StoreClock, in_stores_time
from holdfast.stores.deadline_timer import OF_ANY_STORE, DeadlineTimer
from holdfast.stores.definitions.cluster import Persistence
from holdfast.stores.definitions.reader import STATISTICS
from holdfast.stores.group_commit import Confirm, GroupCommit
from holdfast.stores.log_commit import Journal, LogCommit
from holdfast.stores.machine import commit_parts
from holdfast.stores.machine.state import State
from holdfast.stores.repair.backup import BackupManifest, copy_stores
from holdfast.stores.storage.disk_limit import DiskLimit
from holdfast.stores.storage.frames import encode_record
from holdfast.stores.storage.log import not_done, own_failure, perhaps_done
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values import commands
from holdfast.stores.values.commands import RULES, Command, Record, Result
from holdfast.stores.values.effects import DeadLettering, Effect, Ready, dead_letter_of
from holdfast.stores.values.identity import PART_BYTES, history_part, is_same, replaced, token_of
from holdfast.stores.values.identity import is_continued as is_continued_by
from holdfast.stores.values.ports import ReadUnavailable
from holdfast.wire.parts import Delivery

_MAKING: Final = commands.Redefine, commands.Attach


def _draw() -> int:
    return secrets.randbits(63)


_logger = logging.getLogger(__name__)
_GROWING: Final = (commands.Publish, commands.MapChange)


Done = Callable[[Result | HoldfastError], None]
"""Gets the outcome of a command. Called once, on the loop; never raises."""


def _ignore(_outcome: Result | HoldfastError) -> None:
    """Nobody waits for this outcome: a refusal means that the command is not needed any more."""


class StoreObserver:
    """Who serves the stores to subscribers (``server.stores.hosting.StoreHost``): what a service calls, on its loop.
    This one does nothing."""

    def ready(self, store: str, durable: str) -> None:
        """The durable can serve a subscriber: submit ``Deliver`` at once, and nothing else.

        The group is about to be taken: what made the durable ready is not safe yet.
        """

    def before_lapse(self, now_ms: int) -> None:
        """Deadlines are about to be carried out: submit what must count first."""

    def contended(self, now_ms: int) -> list[tuple[str, str]]:
        """Which standard durables subscribers wait for, as ``Expire.contended``."""
        del now_ms
        return []

    def carry_out(self, effect: Effect) -> None:
        """An effect, whose command is safe."""

    def fail(self, error: BaseException) -> None:
        """The log has failed: nothing more is accepted, and the process should end. Called once."""

    def tell_disk(self) -> None:
        """``disk_is_full`` is another one now."""


class StoreService:
    """All stores of one service. Make it with ``open``; every method belongs on the event loop that did.

    ``state`` is for reading: definitions, counts, leases. It is ahead of the replies by what is not safe yet.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Callable[[], int],
        journal: Journal | None = None,
        history: str | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.directory = storage.log.directory
        self._storage = storage
        self._clock = clock
        self.state: State = storage.state
        self._volatile = storage.state.volatile_names
        self._history = storage.index.history if history is None else history
        self._volatile_history = f"opening {_draw()}"
        self._last_ms = storage.last_ms
        self._keeper: ClockKeeper | None = None
        self.lives_in_log = journal is not None
        self._groups = GroupCommit(storage.log, self) if journal is None else LogCommit(storage, journal, self)
        self._checkpoints = Checkpoints(storage, self._groups)
        self.compaction = Compaction(storage, self._groups, self._checkpoints)
        self._checkpoints.after = self.compaction.consider
        self.disk_limit = DiskLimit(storage.log.directory)
        self._ready: dict[Ready, None] = {}
        self.observer = StoreObserver()
        self._timer = DeadlineTimer(storage.state, now_ms=self.now_ms, on_timer=self._expire)
        self.written_bytes = 0  # bytes of the records written to the log since the service was opened
        self._unconfirmed: list[Confirm] = []
        self._closed = False
        self._reported = ""  # the damage that was reported last
        self._configure()

    @classmethod
    async def open(
        cls,
        directory: str,
        *,
        page_bytes: int = 64 << 20,
        memory_bytes: int = 128 << 20,
        clock: Callable[[], int] | None = None,
    ) -> StoreService:
        """Open the stores in ``directory``, which is made if it is missing.

        ``memory_bytes`` bounds what is held of messages and counts, whatever the backlog; the state itself (durables,
        leases, publishers) comes on top. A ``clock`` other than a ``StoreClock`` is for tests: it is used as it is, but
        never falls.

        *Raises*: ``AlreadyOpen``; ``CorruptData``; ``OSError``. *Cost*: applies the log after the last checkpoint.
        """
        clock = clock if clock is not None else StoreClock()
        storage = await asyncio.to_thread(Storage.open, directory, page_bytes=page_bytes, memory_bytes=memory_bytes)
        if isinstance(clock, StoreClock):
            keeper = ClockKeeper(clock, directory)
            await asyncio.to_thread(keeper.start, storage.last_ms)
            return cls.begin(storage, clock, keeper=keeper)
        return cls.begin(storage, clock)

    @classmethod
    def begin(
        cls,
        storage: Storage,
        clock: Callable[[], int],
        *,
        journal: Journal | None = None,
        keeper: ClockKeeper | None = None,
        history: str | None = None,
    ) -> StoreService:
        """Serve what is in ``storage``. With a ``journal`` the stores live there, and ``storage`` is its cache.
        ``history``: the id of the log that has the stores; None: the files say it."""
        service = cls(storage, clock=clock, journal=journal, history=history)
        service._keeper = keeper
        if keeper is not None:
            keeper.keep()
        if service.state.stores.keys() - service.state.volatile_names:
            service._inherit()
        if service.state.is_held():
            service.submit_nowait(commands.Restarted(0))
        for effect in storage.effects:
            service.carry_out(effect)
        service.after_group()
        return service

    def submit(self, command: Command) -> asyncio.Future[Result]:
        """Apply a command; the future completes when it is safe. Sets ``at_ms`` of the command.

        *Raises* (the future): the state machine's refusal; ``Closed``, and it was not done; ``OutcomeUnknown`` if the
        log failed meanwhile. *After a crash*: a command that was replied to is there; another may be.
        """
        completed: asyncio.Future[Result] = self._loop.create_future()

        def done(outcome: Result | HoldfastError) -> None:
            if completed.done():
                return  # the caller was cancelled
            if isinstance(outcome, HoldfastError):
                completed.set_exception(outcome)
            else:
                completed.set_result(outcome)

        self.submit_nowait(command, done)
        return completed

    def submit_nowait(self, command: Command, done: Done = _ignore) -> None:
        """As ``submit``; ``done`` is called with the result or the error, never before this returns."""
        failure = self._groups.failure
        if self._closed or failure is not None:
            error = self._refusal()
            self._loop.call_soon(done, error)
            return
        now_ms = self._clock()
        if now_ms > self._last_ms:
            self._last_ms = now_ms
        if type(command) is commands.Publish and self.clock_behind_ms:
            self._convert_times(command)
        if isinstance(command, _MAKING):
            self._draw_for(command)
        # The command is this call's: nobody has seen it, and copying it would copy its batch.
        force_setattr(command, "at_ms", self._last_ms)
        volatile = self.state.is_volatile(command)
        try:
            if not volatile and isinstance(command, _GROWING):
                self._check_disk(command, now_ms)
            applied = self.state.apply(command)
            self._storage.volatile.swap_arrived()
        except BaseException as error:  # noqa: BLE001 - reported to every waiting caller
            if not isinstance(error, HoldfastError) or isinstance(error, CorruptData | ReadUnavailable):
                self._give_up(error, done)
            else:
                self._commit(None, _Completion(done, error, (), self), volatile=volatile)
            return
        frame = None
        if applied.changed and not volatile:
            frame = encode_record(Record(command, applied.result, RULES))
            self._storage.note_frame(len(frame) + self._groups.frame_overhead)
            self.written_bytes += len(frame)
            self._storage.messages.next_frame += 1
        self._timer.touch(command)
        effects = applied.effects
        if effects:
            effects = self._note_ready(effects)
        if type(command) is commands.Redefine:
            self._configure()
        self._commit(
            frame, _Completion(done, applied.result, effects, self), volatile=volatile, store=_store_of(command)
        )

    def _draw_for(self, command: commands.Redefine | commands.Attach) -> None:
        """Give a command the random number for the ids of what it makes."""
        if isinstance(command, commands.Attach):
            store = self.state.stores.get(command.store)
            if store is None or command.durable in store.durables:
                return  # nothing is made; without a template the store's default one makes it
        else:
            self._inherit()
        force_setattr(command, "drawn", _draw())

    def _inherit(self) -> None:
        """Let the stores know in which history their numbers are given out, before the first one is."""
        history = history_part(self._history)
        if self.state.lineage.history != history:
            self.submit_nowait(commands.Inherit(0, history))

    def draw_id(self) -> int:
        """The id of a store that no command makes."""
        return _draw() >> (63 - 8 * PART_BYTES)

    def token(self, store: str, durable: str | None = None) -> str:
        """What names this store, or this durable, among all that ever had its name. *Raises*: ``NotFound``."""
        home = self.state.store(store)
        if durable is not None:
            home.durable(durable)
        history = self._volatile_history if store in self._volatile else self._history
        return token_of(history, home.id, None if durable is None else home.ids[durable])

    def token_if_there(self, store: str, durable: str) -> str:
        """As ``token``; empty if the durable does not exist."""
        known = self.state.stores.get(store)
        return self.token(store, durable) if known is not None and durable in known.ids else ""

    def require(
        self, token: str, store: str, durable: str | None = None, *, through: Callable[[], int | None] = lambda: None
    ) -> None:
        """Return if the token, where there is one, is that of the store or durable: for what a client remembers.

        ``through``: the highest number of the store that it remembers; None for anything else. With a token of an
        earlier history of the same store it counts if that number is of before the histories parted.

        *Raises*: ``Closed`` (store_replaced), also if the durable does not exist any more; ``InvalidRequest``;
        ``NotFound`` for the store.
        """
        if not token:
            return
        home = self.state.store(store)
        if durable is None or durable in home.ids:
            current = self.token(store, durable)
            if is_same(token, current):
                return
            number = through()
            if number is not None and store not in self._volatile and is_continued_by(token, current):
                if self.state.lineage.has(token.partition(".")[0], home.id, number):
                    return
        raise replaced(token, store=store, durable=durable or "")

    def require_publisher(self, token: str, store: str, publisher: str, first: int) -> None:
        """As ``require``, for a batch. A publisher remembers its numbers: of an earlier history the store must have all
        before ``first``. Without a publisher nothing but the store is remembered."""

        def through() -> int | None:
            has_all = not publisher or self.state.store(store).publishers.last_of(publisher) >= first - 1
            return 0 if has_all else None

        self.require(token, store, through=through)

    def require_continued(self, token: str, store: str, durable: str) -> bool:
        """Return if a subscriber that was attached to ``token`` may go on here: also after a restore, which keeps what
        the durable knows up to the cut, and in a store in memory. Returns whether its numbers still mean the same.
        *Raises*: as ``require``."""
        if not token or store == STATISTICS:  # made again for each audience
            return True
        home = self.state.store(store)
        if durable not in home.ids:
            is_continued = store in self._volatile
        else:
            current = self.token(store, durable)
            is_lost = store in self._volatile and not is_same(token.partition(".")[0], current)
            is_continued = is_lost or is_continued_by(token, current)
        if not is_continued:
            raise replaced(token, store=store, durable=durable)
        return is_same(token, self.token_if_there(store, durable))

    def carry_out_parts(
        self, command: commands.CommitParts
    ) -> tuple[bytes, commands.PartsCommitted, WhenDurable] | tuple[int, HoldfastError]:
        """Apply the parts of a commit at once, all of them or none: the commit log decides now.

        Returns the record, its result and what is called when the record is durable. Or the position of the part that
        was refused, and why. Only where the stores live in the log, after ``flush``.
        """
        groups = self._groups
        assert isinstance(groups, LogCommit), "the stores live in the log"
        if self._closed or groups.failure is not None:
            return 0, self._refusal()
        now_ms = self._clock()
        self._last_ms = max(self._last_ms, now_ms)
        for each in (command, *command.parts):
            force_setattr(each, "at_ms", self._last_ms)
        for position, (token, part) in enumerate(zip(command.tokens, command.parts, strict=False)):
            try:
                if isinstance(part, commands.Publish):
                    first = part.messages[0].publisher_seq if part.messages else 1
                    self.require_publisher(token, part.store, part.publisher, first)
                else:
                    durable = part.map if isinstance(part, commands.MapChange) else part.durable
                    self.require(token, part.store, durable, through=partial(commands.highest_of, part))
            except HoldfastError as error:
                return position, error
        force_setattr(command, "tokens", [])
        for position, part in enumerate(command.parts):
            if isinstance(part, commands.Publish) and self.clock_behind_ms:
                self._convert_times(part)
            if isinstance(part, _GROWING):
                try:
                    self._check_disk(part, now_ms)
                except HoldfastError as error:
                    return position, error
        try:
            refused = commit_parts.refusal(self.state, command)
            if refused is not None:
                return refused
            applied = self.state.apply(command)
        except BaseException as error:
            groups.poison(error)
            raise
        result = applied.result
        assert isinstance(result, commands.PartsCommitted), "each command has its result"
        frame = encode_record(Record(command, result, RULES))
        self._storage.note_frame(len(frame) + groups.frame_overhead)
        self.written_bytes += len(frame)
        self._storage.messages.next_frame += 1
        self._timer.touch(command)
        effects = self._note_ready(applied.effects)
        if self._ready:
            groups.wake()
        return frame, result, groups.add_part(frame, _Completion(_ignore, result, effects, self))

    def flush(self) -> None:
        """Hand over to the commit log what was applied before: what it takes next comes after it."""
        groups = self._groups
        assert isinstance(groups, LogCommit), "the stores live in the log"
        groups.flush()

    @property
    def clock_behind_ms(self) -> int:
        """The machine's time less the stores' time; 0 if they differ by a millisecond or less."""
        clock = self._clock
        return clock.noticed_ms if isinstance(clock, StoreClock) else 0

    def _convert_times(self, command: commands.Publish) -> None:
        behind_ms = self.clock_behind_ms
        messages = [
            replace(message, deliver_at_ms=in_stores_time(message.deliver_at_ms, behind_ms))
            if message.deliver_at_ms > 0
            else message
            for message in command.messages
        ]
        force_setattr(command, "messages", messages)

    async def rewind(self, command: commands.Rewind) -> Result:
        """``submit`` of a rewind whose messages were all read before it, a block at a time, so that damage refuses it.

        *Raises*: what ``submit`` raises; ``CorruptData`` if a retained message cannot be read, and nothing has changed.
        """
        if command.time_ms and self.clock_behind_ms > 0:
            # Perhaps the messages are older than the difference of the clocks: more is delivered again, never less.
            force_setattr(command, "time_ms", in_stores_time(command.time_ms, self.clock_behind_ms))
        with suppress(InvalidRequest, NotFound):  # as the command will be refused
            for first, last in self.state.rewind_reads(command):
                self._storage.messages_of(command.store).read(command.store, first, last)
                await asyncio.sleep(0)
                if self._closed:
                    break
        return await self.submit(command)

    def _give_up(self, error: BaseException, done: Done) -> None:
        """The machine may be half changed: nothing that it says from here on may reach the log or a client."""
        self._groups.poison(error)
        self._loop.call_soon(done, own_failure(error))

    def when_safe(self, store: str, done: Callable[[], None]) -> None:
        """Call back when everything applied to the store so far is safe and reported; never after a failure."""

        def confirm(error: BaseException | None) -> None:
            if error is None:
                done()

        self._commit(None, confirm, volatile=store in self._volatile)

    def _commit(self, frame: bytes | None, confirm: Confirm, *, volatile: bool, store: str = "") -> None:
        """Add the frame to the log; confirm when the log has it and all before it. A store in memory has no frames: it
        confirms in the next turn of the loop."""
        if not volatile:
            # At once only if no deliveries are requested first: the caller may be about to give credit.
            self._groups.add(frame, confirm, at_once=not self._ready, store=store)
            return
        self._unconfirmed.append(confirm)
        if len(self._unconfirmed) == 1:
            self._loop.call_soon(self._confirm_volatile)

    def _confirm_volatile(self) -> None:
        # An error here is reported to every waiting caller, as by the group, or the rest would wait forever.
        try:
            self._ask_for_deliveries()
        except Exception as error:  # noqa: BLE001
            self._groups.poison(error)
        confirms, self._unconfirmed = self._unconfirmed, []
        for confirm in confirms:
            try:
                confirm(self._groups.failure)
            except Exception as bug:  # noqa: BLE001
                self._groups.poison(bug)
        self.after_group()

    def _configure(self) -> None:
        definition = self.state.definition
        self._groups.syncs = definition.persistence is not Persistence.ASYNC
        self.disk_limit.fraction = definition.max_disk_fraction
        self.compaction.automatic = definition.disk_compact
        self.compaction.ratio_min = definition.min_disk_inuse_ratio

    def _check_disk(self, command: commands.Publish | commands.MapChange, now_ms: int) -> None:
        """Refuse what needs space while the disk is too full. Removing a key does not."""
        if isinstance(command, commands.Publish):
            size = sum([len(message.body) for message in command.messages])
        else:
            size = sum(len(body) for _, body, _ in command.changes if body is not None)
            if all(body is None for _, body, _ in command.changes):
                return
        self.disk_limit.check(now_ms, size, self._groups.waiting_bytes, is_full=self._groups.disk_is_full)

    def _note_ready(self, effects: list[Effect]) -> list[Effect]:
        """Return the effects that wait for the log; the others are for ``before_group``."""
        waiting: list[Effect] = []
        for effect in effects:
            if type(effect) is Ready:
                self._ready[effect] = None
            else:
                waiting.append(effect)
        return waiting

    def before_group(self) -> None:
        """See ``GroupOwner``. Request deliveries now, so that they are in the group with what made them possible."""
        self._ask_for_deliveries()
        self._checkpoints.consider()

    def _ask_for_deliveries(self) -> None:
        while self._ready:
            ready, self._ready = self._ready, {}
            for durable in ready:
                self.observer.ready(durable.store, durable.durable)

    @property
    def disk_is_full(self) -> bool:
        """Whether a full disk keeps durable frames out of the files: then publishes are refused."""
        return self._groups.disk_is_full

    @property
    def kept_back_bytes(self) -> int:
        """Bytes that the log has and the files of this machine lack: the disk is full, or the files are copied."""
        return self._groups.kept_back_bytes if isinstance(self._groups, LogCommit) else 0

    @property
    def failure(self) -> BaseException | None:
        """What ended this service, None while it works."""
        return self._groups.failure

    def group_failed(self, error: BaseException) -> None:
        """See ``GroupOwner``."""
        self._timer.stop()
        self.observer.fail(error)

    def disk_changed(self) -> None:
        """See ``GroupOwner``."""
        self._groups.wake()  # a checkpoint that was put off may begin, also without another command
        self.observer.tell_disk()

    def _refusal(self) -> HoldfastError:
        failure = self._groups.failure
        return Closed("the stores are closed") if failure is None else not_done(failure)

    def messages(self, store: str, runs: Iterable[tuple[int, int, int]]) -> list[Delivery]:
        """The messages of ``Delivered.runs``, without those that were deleted meanwhile.

        *Raises*: ``CorruptData``. *Cost*: under a microsecond a message while they are new, else their part of the log.
        """
        return self._storage.messages_of(store).deliveries(store, runs)

    def swapped(self, store: str) -> tuple[int, int]:
        """How many messages of a store in memory are swapped to disk, and their bytes."""
        return self._storage.volatile.swapped(store)

    def after_group(self) -> None:
        """See ``GroupOwner``."""
        if not self._closed and self._groups.failure is None:
            self._timer.arm()

    def now_ms(self) -> int:
        """The stores' time, which never goes back."""
        return max(self._clock(), self._last_ms)

    def _expire(self) -> None:
        now_ms = self.now_ms()
        for volatile in (False, True):
            due_ms = self.state.next_deadline_ms(volatile=volatile)
            if due_ms is not None and due_ms <= now_ms:
                self.observer.before_lapse(now_ms)
                contended = self.observer.contended(now_ms)
                self.submit_nowait(commands.Expire(at_ms=0, volatile=volatile, contended=contended))
        self.after_group()

    def carry_out(self, effect: Effect) -> None:
        """Carry out an effect whose command is safe."""
        if type(effect) is Ready:
            self._ready[effect] = None
            self._groups.wake()
            return
        if type(effect) is DeadLettering:
            self._bury(effect)
        self.observer.carry_out(effect)

    def _bury(self, dying: DeadLettering) -> None:
        try:
            stored = self._storage.messages_of(dying.store).message(dying.store, dying.seq)
        except CorruptData as error:
            # It stays with the dying messages and is reported again; the rest continues, and an operator decides.
            self._report_unreadable(dying, error)
            return
        if stored is None:
            return  # it was released meanwhile
        letter = dead_letter_of(stored[0], dying)
        to_store = dying.dead_letter_store
        if to_store in self.state.stores and (to_store in self._volatile) is not (dying.store in self._volatile):
            # One is in the log and the other is not, so it takes two commands: keep it there, then release it here.
            # If it is refused, or no durable wants it, the message stays with the dying ones and is reported again.
            def kept(outcome: Result | HoldfastError) -> None:
                if isinstance(outcome, commands.Published) and not outcome.unmatched:
                    self.submit_nowait(commands.DeadLetter(0, dying.store, dying.durable, dying.seq, letter, ""))

            self.submit_nowait(commands.Publish(0, to_store, "", [letter]), kept)
            return
        self.submit_nowait(commands.DeadLetter(0, dying.store, dying.durable, dying.seq, letter, to_store))

    def _report_unreadable(self, dying: DeadLettering, error: CorruptData) -> None:
        """Log each damage once: it may affect many messages, and each is retried."""
        if str(error) != self._reported:
            self._reported = str(error)
            _logger.error(
                "a dead letter cannot be read store=%s durable=%s seq=%d error=%s hint=%s",
                dying.store,
                dying.durable,
                dying.seq,
                error.statement(),
                error.hint,
            )

    async def wait_until_safe(self) -> None:
        """Return when all that was applied until now is safe: for readers of ``state``.

        *Raises*: ``Closed``, which names what ended the service.
        """
        await self._groups.turn()
        if self._groups.failure is not None:
            raise self._refusal()

    async def checkpoint(self) -> None:
        """Bring the index up to the commands applied so far, and remove pages that are not needed.

        *Raises*: ``Closed`` when the log has failed or during a backup; ``sqlite3.Error`` and ``OSError`` if the index
        could not be written (it is retried).
        """
        await self._checkpoints.now()

    async def copy_files(self, target: str) -> tuple[BackupManifest, int | None]:
        """Copy everything into an empty or new directory, from which ``backup.restore`` makes stores again.

        Also returns up to which version the copy has all, and no more, of stores that live in the log. *Raises*: as
        ``checkpoint``; ``InvalidRequest`` if there are files. *After a crash*: a copy without manifest, to be ignored.
        """

        # Its thread cannot be stopped: while it copies, no page may be removed, even if the caller was cancelled.
        async def copy() -> tuple[BackupManifest, int | None]:
            async with self._checkpoints.held():
                with self._groups.files_held():
                    version = self._storage.version
                    return await asyncio.to_thread(copy_stores, self._storage, target), version

        return await asyncio.shield(self._loop.create_task(copy()))

    async def close(self) -> None:
        """Give every reply, make everything durable, close the files. Doing it twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._timer.stop()
        while self._unconfirmed:
            self._confirm_volatile()
        await self.compaction.close()
        await self._groups.drain()
        await self._checkpoints.close()
        await self._groups.close()
        if self._keeper is not None:
            await self._keeper.stop()
            await asyncio.to_thread(self._keeper.close)
        await asyncio.to_thread(self._storage.close)


class _Completion:
    """Gives the outcome of a command when the log has it, then carries out the effects."""

    __slots__ = ("_done", "_effects", "_outcome", "_service")

    def __init__(
        self,
        done: Done,
        outcome: Result | HoldfastError,
        effects: Iterable[Effect],
        service: StoreService,
    ) -> None:
        self._done = done
        self._outcome = outcome
        self._effects = effects
        self._service = service

    def __call__(self, error: BaseException | None) -> None:
        if error is not None:
            self._done(not_done(error) if isinstance(self._outcome, HoldfastError) else perhaps_done(error))
            return
        self._done(self._outcome)
        for effect in self._effects:
            self._service.carry_out(effect)


def _store_of(command: Command) -> str:
    return "" if isinstance(command, OF_ANY_STORE) else command.store
