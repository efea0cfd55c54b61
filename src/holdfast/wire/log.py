"""Responses, events and errors of the log's routes, and the error body that all routes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.commit.format.transaction import (
    FailedPrecondition,
    Operation,
    Precondition,
    RejectedBecause,
    StoreRefusal,
)
from holdfast.errors import Closed, Code, Conflict
from holdfast.values import LogPosition
from holdfast.wire.parts import Origin, StoresReceipt

Consistency = Literal["local", "linearizable"]


class CommitReceipt(msgspec.Struct, frozen=True, tag_field="status", tag="committed"):
    """The transaction is durable at ``version``."""

    version: int
    leader_id: str
    request_id: str | None = None
    stores_receipt: StoresReceipt | UnsetType = msgspec.field(default=UNSET, name="stores")

    @property
    def stores(self) -> StoresReceipt | None:
        """What the message stores did for the parts of the commit; None where it had none."""
        return None if self.stores_receipt is UNSET else self.stores_receipt


_WHY: Final = {
    "conflict": "something that it read has changed since (conflict)",
    "too_old": "it read at a version from which the leader cannot judge conflicts any more (too_old)",
    "banned": "its outcome was asked for before it was committed (banned)",
}


class NotCommitted(msgspec.Struct, frozen=True, tag_field="status", tag="not_committed"):
    """This attempt is not committed and never will be. ``version`` is durable and worth retrying from.

    ``reason`` is ``banned`` when its outcome was asked for before it could commit: asking closes an attempt for good;
    ``store_refused`` when the stores refused one of its parts, which ``refused`` names.
    """

    reason: RejectedBecause = "banned"
    conflicts: tuple[FailedPrecondition, ...] = ()
    version: int = 0
    leader_id: str = ""
    request_id: str | None = None
    refused: StoreRefusal | UnsetType = UNSET

    def error(self) -> Conflict | Closed:
        """The same as an exception; ``fields`` carry ``version``, ``conflicts`` and ``request_id``."""
        if self.refused is not UNSET:
            return self._refused(self.refused)
        return Conflict(
            f"the transaction was not committed: {_WHY.get(self.reason, self.reason)}",
            code=Code(self.reason),
            hint="read again from this version, decide again, commit again",
            version=self.version,
            conflicts=tuple((item.precondition, item.version) for item in self.conflicts),
            request_id=self.request_id,
        )

    def _refused(self, refused: StoreRefusal) -> Conflict | Closed:
        facts = {"part": refused.part, "index": refused.index, "store_code": refused.code}
        if refused.code == Code.LEASE_LOST:
            return Closed(
                "a message is not held any more: it was, or will be, delivered again",
                code=Code.LEASE_LOST,
                hint="nothing is to be done for it here",
                facts=facts,
            )
        if refused.code == Code.STORE_REPLACED:
            return Closed(
                "a part is of a store or durable that was deleted and made again, or restored",
                code=Code.STORE_REPLACED,
                hint="its numbers mean other messages now: forget them",
                facts=facts,
            )
        return Conflict(f"the stores refused: {refused.message}", code=Code.STORE_REFUSED, facts=facts)


class StatusAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The final outcome of an attempt; ``version`` is set when it committed."""

    status: Literal["committed", "not_committed", "log_truncated"]
    version: int | None = None
    stores: Any = None
    """What the stores did for its parts, as a ``StoresReceipt``; inside the service in the stores' own bytes."""


class VersionAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A version, the leader that vouches for it, and the log it belongs to (None from a service before log ids).

    Everything known to be committed when the request arrived can be read at this version. ``id_tag``: what the request
    ids of the caller begin with; only for a token with prefixes.
    """

    version: int
    leader_id: str
    log_id: str | None = None
    id_tag: str | None = None

    @property
    def position(self) -> LogPosition:
        """The version together with its log: what ``subscribe(after=...)`` takes."""
        return LogPosition(self.version, self.log_id)


class Found(msgspec.Struct, frozen=True):
    """A key's value and the version that wrote it."""

    key: bytes
    value: bytes
    version: int


SNAPSHOT_VERSION: Final = "Holdfast-Snapshot-Version"
"""The headers of ``GET /v1/snapshot``, all of whose lines are a ``Found``. ``ROWS``: of the whole snapshot."""
SNAPSHOT_LOG_ID: Final = "Holdfast-Snapshot-Log-Id"
SNAPSHOT_LAST_TRANSACTION: Final = "Holdfast-Snapshot-Last-Transaction"
SNAPSHOT_ROWS: Final = "Holdfast-Snapshot-Rows"


class FoundRange(msgspec.Struct, frozen=True):
    """Keys in byte order as of ``version``; ``more`` when the limit cut the range short."""

    items: tuple[Found, ...]
    version: int
    more: bool = False


class JobRecord(msgspec.Struct, frozen=True):
    """The record of a job and the version that wrote it."""

    name: str
    value: bytes
    version: int


class JobRecords(msgspec.Struct, frozen=True):
    """Records of jobs by name as of ``version``; ``more`` when the limit cut them short."""

    items: tuple[JobRecord, ...]
    version: int
    more: bool = False


class ValueResponse(Found, frozen=True, omit_defaults=True):
    """``Found`` as the service sends it. ``at``: it is the state at this version, where the answer has one key alone.
    The texts are set on request, where the bytes are UTF-8."""

    at: int | None = None
    key_text: str | None = None
    value_text: str | None = None


class ValueRange(msgspec.Struct, frozen=True):
    """``FoundRange`` as the service sends it."""

    items: tuple[ValueResponse, ...]
    version: int
    more: bool


class ReadKey(msgspec.Struct, frozen=True, tag_field="type", tag="key"):
    """Read what is stored at ``key``."""

    key: bytes


class ReadRange(msgspec.Struct, frozen=True, tag_field="type", tag="range", omit_defaults=True):
    """Read at most ``limit`` keys of ``[begin, end)``; without ``end`` to the last key."""

    begin: bytes = b""
    end: bytes | None = None
    limit: int = 1_000


class ReadRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Read ``items``, all at one version that is ``at`` (``VERSION`` or ``VERSION@LOGID``) or later.

    ``consistency``: ``linearizable`` for a version at least as new as every commit known anywhere when this came.
    """

    items: Sequence[ReadKey | ReadRange]
    at: str | None = None
    consistency: Consistency = "local"


class ReadResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of item ``index`` (from 0) of a read.

    Of a key ``value`` and the ``version`` that wrote it, or neither where nothing is stored; of a range ``rows`` in
    byte order, and ``more`` where the limit or the bytes cut them short; or ``error``.
    """

    index: int
    value: bytes | None = None
    version: int | None = None
    value_text: str | None = None
    rows: tuple[ValueResponse, ...] | None = None
    more: bool = False
    error: ErrorBody | None = None


class ReadAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state at exactly ``version``, for the first items. ``more``: those that have no result did not fit."""

    version: int
    items: tuple[ReadResult, ...]
    more: bool = False


class Liveness(msgspec.Struct, frozen=True):
    """This process is alive. ``leading``: whether it owns the log.

    ``slot``: the newest durable one of its leadership, in 20 digits. ``sign``: how many signs of life it has shown.
    """

    leader_id: str
    leading: bool
    address: str
    slot: str = ""
    sign: int = 0


class FoundationReading(msgspec.Struct, frozen=True):
    """The newest result of reading the log's snapshots and checkpoints again.

    ``name``: the newest snapshot, or a damaged one; None where none was read. ``age_seconds``: since it was read.
    ``problem``: what is damaged, or why the log cannot produce its state; None for nothing.
    """

    name: str | None
    age_seconds: float | None
    problem: str | None


class Readiness(msgspec.Struct, frozen=True):
    """This process leads and accepts commits. ``stores``: none, open, held (by another process) or suspended.

    ``damage``: the newest damage that anything met in the log since this process leads. Commits go on all the same.
    ``foundation``: None where nothing is known of a snapshot.
    """

    ready: bool
    leader_id: str
    version: int
    stores: str
    damage: str | None = None
    foundation: FoundationReading | None = None


class PipelineResponse(msgspec.Struct, frozen=True):
    """A no-op has been through all four stages."""

    ok: bool
    leader_id: str


class SteppedDown(msgspec.Struct, frozen=True):
    """Everything accepted is durable and its response sent, and this process leads no more."""

    stepped_down: bool
    leader_id: str


class RetentionPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What must stay of a log. Exactly one field is set.

    ``keep_from_version``: this version and all later ones. ``max_age_seconds``: what is younger. ``max_bytes``: the
    newest objects that have this many bytes together. ``keep``: everything.
    """

    keep_from_version: int | None = None
    max_age_seconds: float | None = None
    max_bytes: int | None = None
    keep: Literal["everything"] | None = None


class PolicyState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A policy, and what it keeps: the log from ``from_version`` on, its bytes, and the age of its oldest object.

    The last three are missing until the leader has looked.
    """

    keep_from_version: int | None = None
    max_age_seconds: float | None = None
    max_bytes: int | None = None
    keep: Literal["everything"] | None = None
    from_version: int | None = None
    held_seconds: float | None = None
    held_bytes: int | None = None

    @property
    def text(self) -> str:
        """What it keeps, for people."""
        if self.keep_from_version is not None:
            return f"versions from {self.keep_from_version}"
        if self.max_age_seconds is not None:
            days = self.max_age_seconds / 86_400
            return f"the last {days:g} days" if days >= 2 else f"the last {self.max_age_seconds:g} s"
        return "everything" if self.max_bytes is None else f"the last {self.max_bytes} bytes"


class HoldState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reader that needs the log from a version on, and perhaps a snapshot, until ``expires_ms`` (the log's time)."""

    from_version: int
    expires_ms: int
    snapshot: int | None = None


class RetentionAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The policies and holds of ``generation`` (0: none yet), and how far the log is truncated.

    ``truncate_through``: no policy may need this version or an older one. ``truncated_through``: the log may have lost
    these. ``warning`` says why nothing is truncated although there are policies.
    """

    generation: int
    policies: dict[str, PolicyState]
    holds: dict[str, HoldState]
    truncate_through: int
    truncated_through: int
    warning: str | None = None


class RetentionPlanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A change of the policies to be planned: ``policy_id`` is set to ``policy``, or removed without one."""

    policy_id: str
    policy: RetentionPolicy | None = None


class RetentionPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a change of the policies would remove now, with all other policies, readers and snapshots.

    ``remove_through``: the log would be truncated through this version; 0: nothing would go. ``objects`` and ``bytes``
    would be deleted; without ``is_whole`` more than these. ``warning`` says what else keeps the log.
    """

    remove_through: int
    objects: int
    bytes: int
    truncated_through: int
    is_whole: bool = True
    warning: str | None = None


class LogObject(msgspec.Struct, frozen=True):
    """One object of the log's chain, by its header. ``kind``: claim or data. ``time_ms``: Unix time of its leader."""

    slot: str
    kind: str
    bytes: int
    first_version: int
    last_version: int
    transactions: int
    epoch: int
    leader_id: str
    address: str
    time_ms: int


class LogObjects(msgspec.Struct, frozen=True):
    """Objects of the chain, newest first. ``next``: the slot to go on with; None where the log begins."""

    objects: tuple[LogObject, ...]
    next: str | None


class TransactionInLog(msgspec.Struct, frozen=True):
    """One transaction as the log keeps it, with the preconditions that it passed, and the object that it is in."""

    object: LogObject
    version: int
    request_id: str | None
    read_version: int | None
    preconditions: tuple[Precondition, ...]
    operations: tuple[Operation, ...]


class LeadershipPeriod(msgspec.Struct, frozen=True):
    """One leadership, by its claim. ``version``: what the claim commits; its transactions are above that."""

    leader_id: str
    address: str
    epoch: int
    slot: str
    time_ms: int
    version: int


class Leaderships(msgspec.Struct, frozen=True):
    """The leaders of a log, newest first."""

    leaderships: tuple[LeadershipPeriod, ...]


class ConflictingPlace(msgspec.Struct, frozen=True):
    """A key, or the range ``[begin, end)`` (None: to the last key), and how many preconditions on it were broken."""

    begin: bytes
    end: bytes | None
    is_range: bool
    conflicts: int


class Conflicts(msgspec.Struct, frozen=True):
    """What broke preconditions in the last ``seconds``, most first. Each count is at most ``lost`` too low; ``total``
    counts every broken precondition of that time."""

    seconds: float
    total: int
    lost: int
    places: tuple[ConflictingPlace, ...]


class StagedObject(msgspec.Struct, frozen=True):
    """An object of a bulk write. ``name``: in a listing, the write, a slash and the object's name."""

    name: str
    bytes: int
    modified_ms: int | None = None
    """When it was created, by the clock of the log's store; None where that has none."""


class StagedObjects(msgspec.Struct, frozen=True):
    """A page of the objects of an application. ``next_after``: continue above this name; None at the end."""

    objects: list[StagedObject]
    next_after: str | None = None


class StagedRemoved(msgspec.Struct, frozen=True):
    """How many objects of a bulk write were removed."""

    removed: int


class SnapshotOfLog(msgspec.Struct, frozen=True):
    """A snapshot: the value of every key at ``version``, up to the object ``slot``."""

    version: int
    rows: int
    bytes: int
    parts: int
    slot: str


class CheckpointOfStores(msgspec.Struct, frozen=True):
    """A checkpoint of stores that live in the log: all of them after ``version``."""

    version: int
    bytes: int


class AgeOfLog(msgspec.Struct, frozen=True):
    """The objects of the log that are at most ``seconds_max`` old and older than the row before; None: all others."""

    seconds_max: float | None
    objects: int
    bytes: int


class LogStorage(msgspec.Struct, frozen=True):
    """What the store keeps of a log. Snapshots and checkpoints newest first, at most 20 of each.

    The ages were counted at ``at_ms``. Without ``is_whole`` the log has more objects than were counted, and the oldest
    are not in ``ages``.
    """

    at_ms: int
    snapshots: tuple[SnapshotOfLog, ...]
    checkpoints: tuple[CheckpointOfStores, ...]
    ages: tuple[AgeOfLog, ...]
    is_whole: bool


class SettingInForce(msgspec.Struct, frozen=True):
    """A setting, and where its value came from. A token is not shown."""

    key: str
    value: str
    source: str
    why: str


class ConfigurationAnswer(msgspec.Struct, frozen=True):
    """Every setting of the process that answers. ``file``: its configuration file, None without one."""

    settings: tuple[SettingInForce, ...] = ()
    warnings: tuple[str, ...] = ()
    file: str | None = None


class NewLogLevel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The level of the process log from now on."""

    level: Literal["debug", "info", "warning", "error"]


class LogLevelInForce(msgspec.Struct, frozen=True):
    """The level of the log of the process that answers. ``configured``: the one that it starts with."""

    level: Literal["debug", "info", "warning", "error"]
    configured: Literal["debug", "info", "warning", "error"]


class LogJobState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Work on the log that the leader has another process do, since the leader began to lead.

    ``done`` and ``total`` count versions since the job first reported. ``result``: of a job that is done, as the
    command prints it. ``code`` and ``error``: of one that failed. Times are Unix milliseconds.
    """

    state: Literal["idle", "running", "done", "failed", "cancelled"]
    parameters: dict[str, int] = {}
    began_ms: int = 0
    ended_ms: int = 0
    done: int = 0
    total: int | None = None
    result: dict[str, int | str | bool | None] = {}
    code: str = ""
    error: str = ""


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong. ``code`` is stable; the fields with a default are there where they apply."""

    code: str
    message: str
    leader_id: str | None = None
    leader_address: str | None = None
    retry_after_ms: int | None = None
    roll_back_to: int | None = None
    hint: str = ""
    log_id: str | None = None
    holder: str | None = None
    """The subscriber that has the standard durable (``durable_busy``), since ``since_ms`` after 1970."""
    since_ms: int | None = None
    at: int | None = None
    """The version at which there is no such key (``not_found``)."""
    tag: str | None = None
    """What the ids of this caller begin with (``id_needs_tag``)."""


class ErrorResponse(msgspec.Struct, frozen=True):
    """Every error of every route."""

    error: ErrorBody


class ItemError(msgspec.Struct, frozen=True):
    """The result of item ``index`` (from 0) of a stream of commits that was wrong as it stood.

    ``ends``: it ended the stream. The service took neither this item nor any after it, so none of them has happened.
    """

    error: ErrorBody
    index: int = -1
    ends: bool | UnsetType = UNSET


class StreamMessage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A message that was published in a store of the log, or the change of a map's key (``body`` None: removed)."""

    store: str
    seq: int
    published_ms: int
    body: bytes | None = b""
    fields: dict[str, str | int | bool] = {}  # msgspec copies it for each message
    key: str | None = None
    publisher_seq: int = 0
    ttl_ms: int = 0
    deliver_at_ms: int = 0
    origin: Origin | None = None
    """Of a dead letter."""


class TransactionData(msgspec.Struct, frozen=True, gc=False):
    """The data of ``event: transaction``. ``timestamp`` is ISO 8601 in UTC.

    ``published``: what it published in the stores that the stream shows.
    """

    version: int
    prev_version: int
    request_id: str | None
    leader_id: str
    timestamp: str
    operations: Sequence[Operation]
    published: Sequence[StreamMessage] | UnsetType = UNSET


class PublishedData(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The data of ``event: published``: what was published without a transaction, together and at one version.

    ``more``: the next event has further messages of this version.
    """

    version: int
    leader_id: str
    timestamp: str
    published: Sequence[StreamMessage]
    more: bool = False


class CheckpointData(msgspec.Struct, frozen=True, gc=False):
    """The data of ``event: checkpoint``: everything at or below the version is durable."""

    committed_version: int
    leader_id: str


class LeaderChangeData(msgspec.Struct, frozen=True, gc=False):
    """The data of ``event: leader_change``: forget every transaction after the version."""

    roll_back_to: int
    leader_id: str = ""


class LogData(msgspec.Struct, frozen=True, gc=False):
    """The data of ``event: log``: which log this is."""

    log_id: str


class LaggingData(msgspec.Struct, frozen=True):
    """The data of ``event: lagging``: the reader had this many unsent bytes; the stream ends here."""

    unsent_bytes: int
