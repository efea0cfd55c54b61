"""What a commit request must be, in the service and on Spark: the rules that need nothing but the request. Pure.

Rules, in the order they are checked:

    no_operations          the list of operations is empty
    too_large              more operations or preconditions than a commit may have, or a request id whose bytes, times
                           the operations and preconditions, exceed 16 MiB
    bad_request_id         not between the configured minimum and 255 printable characters
    read_version_required  a request id without a read version, or a precondition with neither version
    bad_range              ``begin >= end``
    malformed              a job whose name has not 1 to 512 bytes of printable characters, or one that comes twice
    too_large              the record of a job has more than 8 MiB
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from holdfast.commit.format.batch import REPEATED_BYTES_MAX, repeated_bytes
from holdfast.commit.format.transaction import RangeDelete, RangeRead, Transaction
from holdfast.errors import Code, HoldfastError, InvalidRequest, LimitExceeded

REQUEST_ID_LENGTH_MIN: Final = 20
REQUEST_ID_LENGTH_MAX: Final = 255
ITEMS_MAX: Final = 10_000
JOB_NAME_BYTES_MAX: Final = 512
JOB_RECORD_BYTES_MAX: Final = 8 << 20
REPEATED_ROWS_MIN: Final = REPEATED_BYTES_MAX // (4 * REQUEST_ID_LENGTH_MAX)
"""As many rows cannot exceed the bound: a character has at most four bytes."""


def problem_with_request(
    txn: Transaction,
    *,
    request_id_length_min: int = REQUEST_ID_LENGTH_MIN,
    operations_max: int = ITEMS_MAX,
    preconditions_max: int = ITEMS_MAX,
) -> HoldfastError | None:
    """The first broken rule of a decoded transaction, or None.

    Returned and not raised, because a block of requests has a result for each.
    """
    if not txn.operations and not txn.has_parts:
        return InvalidRequest("a commit needs at least one operation", code=Code.NO_OPERATIONS)
    if len(txn.operations) + len(txn.jobs) > operations_max or len(txn.preconditions) > preconditions_max:
        return LimitExceeded(
            "the commit has too many operations or preconditions",
            hint="commit in parts, or raise commit.max_operations or commit.max_preconditions",
            operations=len(txn.operations) + len(txn.jobs),
            operations_max=operations_max,
            preconditions=len(txn.preconditions),
            preconditions_max=preconditions_max,
        )
    if txn.request_id is not None:
        wrong = problem_with_request_id(txn.request_id, length_min=request_id_length_min)
        if wrong is not None:
            return wrong
        rows = len(txn.operations) + len(txn.preconditions) + len(txn.jobs) + 1
        if rows > REPEATED_ROWS_MIN and (repeated := repeated_bytes(txn)) > REPEATED_BYTES_MAX:
            return LimitExceeded(
                "the request id is too long: it is stored once for each operation and each precondition",
                hint="commit in parts, or use a shorter request id",
                bytes=repeated,
                bytes_max=REPEATED_BYTES_MAX,
            )
        if txn.read_version is None:
            return InvalidRequest(
                "a request id names an attempt only together with its read version", code=Code.READ_VERSION_REQUIRED
            )
    for read in txn.preconditions:
        if read.version is None and txn.read_version is None:
            return InvalidRequest(
                "a precondition needs its own version or the read version of the commit",
                code=Code.READ_VERSION_REQUIRED,
                precondition=txn.preconditions.index(read),
            )
        if type(read) is RangeRead and _is_empty_range(read.begin, read.end):
            return InvalidRequest(
                "begin must be below end", code=Code.BAD_RANGE, precondition=txn.preconditions.index(read)
            )
    for operation in txn.operations:
        if type(operation) is RangeDelete and _is_empty_range(operation.begin, operation.end):
            return InvalidRequest(
                "begin must be below end", code=Code.BAD_RANGE, operation=txn.operations.index(operation)
            )
    return _problem_with_jobs(txn) if txn.jobs else None


def _problem_with_jobs(txn: Transaction) -> HoldfastError | None:
    names: set[str] = set()
    if not txn.operations and not txn.has_store_parts and all(change.value is UNSET for change in txn.jobs):
        return InvalidRequest("a commit needs at least one operation", code=Code.NO_OPERATIONS)
    for index, change in enumerate(txn.jobs):
        if change.name in names or not _is_job_name(change.name):
            return InvalidRequest(
                f"a job has a name of 1 to {JOB_NAME_BYTES_MAX} bytes of printable characters, once in a commit",
                code=Code.MALFORMED,
                job=index,
            )
        names.add(change.name)
        if change.size > JOB_RECORD_BYTES_MAX:
            return LimitExceeded(
                "the record of a job is too large", job=index, bytes=change.size, bytes_max=JOB_RECORD_BYTES_MAX
            )
        if change.version is None and txn.read_version is None:
            return InvalidRequest(
                "the record of a job needs its own version or the read version of the commit",
                code=Code.READ_VERSION_REQUIRED,
                job=index,
            )
    return None


def _is_job_name(name: str) -> bool:
    return name.isprintable() and 1 <= len(name.encode("utf-8", "replace")) <= JOB_NAME_BYTES_MAX


def problem_with_request_id(request_id: str, *, length_min: int) -> InvalidRequest | None:
    """What is wrong with a request id, or None. A short id is easily drawn twice, hence the minimum."""
    if length_min <= len(request_id) <= REQUEST_ID_LENGTH_MAX and request_id.isprintable():
        return None
    return InvalidRequest(
        f"a request id has {length_min} to {REQUEST_ID_LENGTH_MAX} printable characters",
        code=Code.BAD_REQUEST_ID,
        length=len(request_id),
    )


def _is_empty_range(begin: bytes, end: bytes | None) -> bool:
    return end is not None and begin >= end
