"""The errors of Holdfast, named by what the caller should do, with an append-only list of codes.

HoldfastError
├── Conflict           retry the whole transaction from a newer version
├── OutcomeUnknown     ask by request id; never repeat it blindly
├── Unavailable        wait, then repeat the call
│   └── AlreadyOpen    another process has it open; close it there
├── Closed             this object is finished; open another
│   └── Fenced         a newer leader owns the log, or a newer subscriber the durable; open again to follow it
├── InvalidRequest     (also ValueError) correct the call
│   └── MissingExtra   (also ImportError) install the extra that it names (``holdfast.extras``)
├── NotFound           (also KeyError) it does not exist
├── CorruptData        stop and repair; nothing was changed
├── Backpressure       slow down, then repeat the call
├── LimitExceeded      the request is larger than a stated bound
├── PermissionDenied   ask for the right
└── InternalError      a bug of ours: report it
"""

from __future__ import annotations

from enum import StrEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import ClassVar

__all__ = [
    "AlreadyOpen", "Backpressure", "Closed", "Code", "Conflict", "CorruptData", "Fenced", "HoldfastError",
    "InternalError", "InvalidRequest", "LimitExceeded", "NotFound", "OutcomeUnknown", "PermissionDenied", "Unavailable",
    "statement_of",
]  # fmt: skip


class Code(StrEnum):
    """The stable name of one kind of failure. Append only: a code never changes its meaning."""

    # invalid requests
    MALFORMED = "malformed"
    NO_OPERATIONS = "no_operations"
    FUTURE_VERSION = "future_version"
    BAD_BASE64 = "bad_base64"
    BAD_RANGE = "bad_range"
    BAD_REQUEST_ID = "bad_request_id"
    READ_VERSION_REQUIRED = "read_version_required"
    BAD_CONFIGURATION = "bad_configuration"
    TOO_LARGE = "too_large"
    REQUEST_ID_REUSED = "request_id_reused"
    ID_NEEDS_TAG = "id_needs_tag"
    # outcomes
    CONFLICT = "conflict"
    TOO_OLD = "too_old"
    BANNED = "banned"
    OUTCOME_UNKNOWN = "outcome_unknown"
    # leadership
    NOT_LEADER = "not_leader"
    LEADER_CHANGED = "leader_changed"
    LEADER_ALIVE = "leader_alive"
    DEPOSED = "deposed"
    # the log
    NOT_FOUND = "not_found"
    LOG_EMPTY = "log_empty"
    LOG_TRUNCATED = "log_truncated"
    STAGE_LOST = "stage_lost"
    ROLLED_BACK = "rolled_back"
    CORRUPT_LOG = "corrupt_log"
    CORRUPT_BATCH = "corrupt_batch"
    # the store
    STORE_UNAVAILABLE = "store_unavailable"
    STORE_UNFIT = "store_unfit"
    DIRECTORY_REPLACED = "directory_replaced"
    # the embedded queue
    CORRUPT_QUEUE = "corrupt_queue"
    QUEUE_TRIMMED = "queue_trimmed"
    QUEUE_FULL = "queue_full"
    ALREADY_OPEN = "already_open"
    DISK_FULL = "disk_full"
    SYNC_FAILED = "sync_failed"
    FORKED = "forked"
    LEASE_LOST = "lease_lost"
    # the service
    OVERLOADED = "overloaded"
    RATE_LIMITED = "rate_limited"
    TOO_SLOW = "too_slow"
    LAGGING = "lagging"
    VIEW_DISABLED = "view_disabled"
    VIEW_BEHIND = "view_behind"
    CLOSED = "closed"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    MISDIRECTED = "misdirected"
    INTERNAL = "internal"
    # the message stores
    STORE_FULL = "store_full"
    CLUSTER_FULL = "cluster_full"
    MESSAGE_TOO_LARGE = "message_too_large"
    DISK_LIMIT = "disk_limit"
    NO_QUORUM = "no_quorum"
    DURABLE_COLLISION = "durable_collision"
    DURABLE_BUSY = "durable_busy"
    MATCHER_MISMATCH = "matcher_mismatch"
    TYPE_MISMATCH = "type_mismatch"
    TOO_MANY_DURABLES = "too_many_durables"
    TOO_MANY_SUBSCRIBERS = "too_many_subscribers"
    SEQUENCE_GAP = "sequence_gap"
    UNKNOWN_PUBLISHER = "unknown_publisher"
    REVISION_MISMATCH = "revision_mismatch"
    STORE_REPLACED = "store_replaced"
    DELETES_MESSAGES = "deletes_messages"
    LOCK_HELD = "lock_held"
    NOT_HOLDER = "not_holder"
    NO_SUCH_KEY = "no_such_key"
    STORES_NOT_IN_LOG = "stores_not_in_log"
    STORE_REFUSED = "store_refused"
    DUPLICATE_PART = "duplicate_part"
    DUPLICATE = "duplicate"
    # positions
    LOG_MISMATCH = "log_mismatch"
    # copies of a log
    NOT_PROMOTED = "not_promoted"
    LOG_RETIRED = "log_retired"
    SUSPENDED = "suspended"
    CLUSTER_RESTORED = "cluster_restored"
    READ_ONLY = "read_only"


class HoldfastError(Exception):
    """The root. Every error has a stable ``code``, ``fields`` with the facts and a ``hint`` with the next step.

    The text is a lowercase message, the facts as ``key=value`` in the order they were given, and the hint after a
    semicolon. A renderer that shows the hint in a place of its own uses ``statement``.

    >>> str(Unavailable("store did not answer", slot=7, hint="wait, then send it again"))
    'store did not answer slot=7; wait, then send it again'
    """

    default_code: ClassVar[Code] = Code.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        code: Code | None = None,
        hint: str = "",
        retry_after_ms: int | None = None,
        facts: Mapping[str, object] | None = None,
        **fields: object,
    ) -> None:
        self.message = message
        self.code = code if code is not None else self.default_code
        self.hint = hint
        self.retry_after_ms = retry_after_ms
        self.fields: Mapping[str, object] = {**(facts or {}), **fields}
        super().__init__(message)

    def __str__(self) -> str:
        statement = self.statement()
        return f"{statement}; {self.hint}" if self.hint else statement

    def statement(self, without: Collection[str] = ()) -> str:
        """The text without the hint, and without the facts that are named in ``without``.

        >>> error = Unavailable("store did not answer", slot=7, cause="refused", hint="wait")
        >>> error.statement(), error.statement(without=["slot"])
        ('store did not answer slot=7 cause=refused', 'store did not answer cause=refused')
        """
        shown = {name: value for name, value in self.fields.items() if value is not None and name not in without}
        facts = " ".join(f"{name}={_shown(value)}" for name, value in shown.items())
        return f"{self.message} {facts}" if facts else self.message


class Conflict(HoldfastError):
    """The transaction was not committed and never will be: read again, decide again, commit again."""

    default_code = Code.CONFLICT


class OutcomeUnknown(HoldfastError):
    """Whether it was done is not known here. Of a transaction ask ``status`` with its request id; of messages, look."""

    default_code = Code.OUTCOME_UNKNOWN


class Unavailable(HoldfastError):
    """Nothing happened, or something that is harmless to repeat. Wait ``retry_after_ms`` and repeat the call."""

    default_code = Code.STORE_UNAVAILABLE


class AlreadyOpen(Unavailable):
    """Another process, or another object of this one, has it open. It is free when that one closes or ends."""

    default_code = Code.ALREADY_OPEN


class Closed(HoldfastError):
    """This object is finished."""

    default_code = Code.CLOSED


class Fenced(Closed):
    """A newer owner has taken over what this object wrote to."""

    default_code = Code.DEPOSED


class InvalidRequest(HoldfastError, ValueError):
    """The call is wrong as it stands. Nothing was changed."""

    default_code = Code.MALFORMED


class NotFound(HoldfastError, KeyError):
    """It does not exist."""

    default_code = Code.NOT_FOUND

    __str__ = HoldfastError.__str__


class CorruptData(HoldfastError):
    """Bytes from outside violate their format. Stop; nothing was changed."""

    default_code = Code.CORRUPT_LOG


class Backpressure(HoldfastError):
    """A bound is reached. Nothing was changed; send it again later."""

    default_code = Code.OVERLOADED


class LimitExceeded(HoldfastError):
    """The request is larger than a stated bound and will never fit."""

    default_code = Code.TOO_LARGE


class PermissionDenied(HoldfastError):
    """The caller may not do this."""

    default_code = Code.PERMISSION_DENIED


class InternalError(HoldfastError):
    """A violated invariant of Holdfast itself. Report it."""

    default_code = Code.INTERNAL


def _shown(value: object) -> object:
    return value.statement() if isinstance(value, HoldfastError) else value


def statement_of(error: BaseException) -> str:
    """The text of any exception as the cause of another error: a hint belongs to the outermost error only.

    >>> statement_of(Unavailable("the disk is full", hint="free some space")), statement_of(OSError("no space"))
    ('the disk is full', 'no space')
    """
    return error.statement() if isinstance(error, HoldfastError) else str(error)
