"""From settings to open stores: the definitions file, the service, and the file's definition in force.

A definitions file that is wrong, changes what cannot change or would delete messages keeps the service from starting.
Every problem is named, and nothing was changed.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from holdfast.commit.leadership.log_remains import bind_stores, bound_log, require_bound
from holdfast.commit.service import CommitService
from holdfast.errors import AlreadyOpen, Code, Conflict, HoldfastError, InvalidRequest, Unavailable
from holdfast.files.documents import read_document
from holdfast.server.stores.commit_parts import StoresOfCommits
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.in_log import CheckpointSchedule, LocalCopy, open_in_log
from holdfast.settings import StoresSettings
from holdfast.stores.clock import StoreClock
from holdfast.stores.definitions.cluster import ClusterDefinition, StoreDefinition, definition_of
from holdfast.stores.definitions.parts import differences, keep_sections, parts_between, require_size
from holdfast.stores.service import StoreService
from holdfast.stores.values.commands import Redefine

DIFFERENCES_LOGGED_MAX: Final = 50
HELD_SECONDS: Final = 0.2
DISK_SECONDS: Final = 2.0

FIRST_DEFINITION: Final = ClusterDefinition(
    stores={
        "default": StoreDefinition(
            "default",
            description="made at the first start, so that publishing and subscribing need no definition",
            default_template="shared",
        )
    }
)

_log = structlog.get_logger("holdfast.stores")


def read_definitions(path: str) -> ClusterDefinition:
    """The definition in a file. Raises: InvalidRequest (bad_configuration) naming the file and every wrong value."""
    document = read_document(Path(path))
    return definition_of({} if document.value is None else document.value, document.line_of)


@dataclass
class Opening:
    """Opens the stores of one leadership.

    A deposed or paused leader may still have them open. They are served as soon as it closes them; until then requests
    are answered ``overloaded``. Stores that live in the log also wait while their disk is full: the log goes on.
    """

    host: StoreHost
    settings: StoresSettings
    definition: ClusterDefinition | None
    """The configured one."""
    log_id: str | None = None
    """The log of the stores, None for any."""
    leader: CommitService | None = None
    """The log that they live in, None where they are files here."""
    local_copy: LocalCopy | None = None
    """What this process has of them as a standby."""
    checkpoint_wanted: Callable[[], bool] = bool
    """Whether the log's retention waits for one."""
    force_new: bool = False

    def __post_init__(self) -> None:
        self.checkpoints: CheckpointSchedule | None = None
        """Of stores that live in the log, once they are open."""
        self._checkpointing: asyncio.Task[None] | None = None
        self._wanted = True
        self._waiting: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Return when they are open, or wait for another process or for space. Raises: what opening and defining
        raise.
        """
        try:
            await self._open()
        except HoldfastError as error:
            seconds = self._seconds_to_wait(error)
            if seconds is None:
                raise
            if isinstance(error, AlreadyOpen):
                _log.warning("stores_held", error=str(error))
            else:
                hint = "free some space: the stores are opened then, and commits without parts go on"
                _log.warning("stores_wait_for_disk", error=error.statement(), hint=hint)
            self._waiting = asyncio.create_task(self._open_when_free(seconds))

    def _seconds_to_wait(self, error: BaseException) -> float | None:
        """Until the next try to open them; None where another try would not help."""
        if isinstance(error, AlreadyOpen):
            return HELD_SECONDS
        is_full = isinstance(error, Unavailable) and error.code is Code.DISK_FULL
        return DISK_SECONDS if is_full and self.leader is not None else None

    async def _open_when_free(self, seconds: float) -> None:
        while self._wanted:
            await asyncio.sleep(seconds)
            try:
                await self._open()
                return
            except Exception as error:  # noqa: BLE001  # nobody waits for this task; the process ends with what it says
                again = self._seconds_to_wait(error)
                if again is None:
                    self.host.fail(error)
                    return
                seconds = again

    async def _open(self) -> None:
        host, settings, wanted, directory = self.host, self.settings, self.definition, self.settings.hosted
        assert directory is not None, "stores are opened where they are hosted"
        try:
            if self.leader is not None:
                service = await open_in_log(self._copy_of(self.leader), self.leader, settings)
            else:
                service = await StoreService.open(
                    directory,
                    page_bytes=settings.page_size_bytes,
                    memory_bytes=settings.memory_bytes,
                    clock=StoreClock(follows_wall=settings.clock == "wall"),
                )
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise Unavailable(
                f"the stores cannot be opened: {error.strerror or error}",
                code=Code.DISK_FULL if is_full else Code.STORE_UNFIT,
                hint="free some space"
                if is_full
                else "stores.directory is a directory on a local disk that this user may write",
                path=directory,
            ) from error
        try:
            if self.leader is None:
                await asyncio.to_thread(self._belong, directory)
            if wanted is not None:
                await _put_in_force(service, wanted, "stores.definitions")
            elif not service.state.revision:
                await _put_in_force(service, FIRST_DEFINITION, "holdfast.default")
            host.open(service)
        except BaseException:
            await service.close()
            raise
        if self.leader is not None:
            self.leader.serve_stores(StoresOfCommits(service))
            self.checkpoints = CheckpointSchedule(service, self.leader, settings, wanted=self.checkpoint_wanted)
            self._checkpointing = asyncio.create_task(self.checkpoints.run())
        host.tell_statistics(settings.statistics_seconds)
        state = service.state
        _log.info(
            "stores_open",
            directory=service.directory,
            durability="disk" if self.leader is None else "log",
            revision=state.revision,
            stores=len(state.definition.stores),
            persistence=str(state.definition.persistence),
        )

    def _copy_of(self, leader: CommitService) -> LocalCopy:
        if self.local_copy is None:
            self.local_copy = LocalCopy(leader.store, self.settings, leader.log_id, leader.address)
        return self.local_copy

    def _belong(self, directory: str) -> None:
        """Check or note that the stores in ``directory`` belong to this log. Raises: InvalidRequest, Unavailable."""
        if self.log_id is None:
            return
        if not self.force_new:
            require_bound(directory, self.log_id)
        try:
            if bound_log(directory) != self.log_id:
                bind_stores(directory, self.log_id)
        except OSError as error:
            raise Unavailable(
                f"the log of the stores cannot be noted: {error.strerror or error}",
                code=Code.STORE_UNFIT,
                path=directory,
            ) from error

    async def end(self) -> None:
        """Wait for nobody any more. What is open then is the host's to close."""
        self._wanted = False
        self.checkpoints = None
        if self._checkpointing is not None:
            self._checkpointing.cancel()
            await asyncio.wait({self._checkpointing})
        if self._waiting is not None:
            await asyncio.wait({self._waiting})


async def _put_in_force(service: StoreService, wanted: ClusterDefinition, author: str) -> None:
    """Apply a definition. Raises: LimitExceeded, InvalidRequest (``deletes_messages``) if it would delete messages."""
    state = service.state
    wanted = keep_sections(state.definition, wanted)
    changes = differences(state.definition, wanted)
    if not changes:
        return
    revision = state.revision + 1
    parts = parts_between(state.definition, wanted)
    require_size(parts)
    try:
        await service.submit(Redefine(0, parts, revision, author))
    except Conflict as error:
        if error.code is not Code.DELETES_MESSAGES:
            raise
        raise InvalidRequest(
            f"the definitions file is not applied: {error.message}",
            code=Code.DELETES_MESSAGES,
            hint="write the limits and times that are in force now into the file; or start without stores.definitions, "
            "then make the change with holdfast stores edit PLACE PARAMETER=VALUE --delete",
            facts=error.fields,
        ) from error
    for change in changes[:DIFFERENCES_LOGGED_MAX]:
        _log.info("definition_changed", revision=revision, change=str(change))
    if len(changes) > DIFFERENCES_LOGGED_MAX:
        _log.info("definition_changed", revision=revision, more=len(changes) - DIFFERENCES_LOGGED_MAX)
