"""What is wrong with the stores' log, in words for who runs the stores, and for who waited for it.

Owns: the message and the hint of each kind of error. Does not own: finding out (``holdfast.queue``), which command is
answered with which (``service``).

The log is an embedded queue, but nobody opened one: what its errors advise, an option of a queue or another number to
read from, cannot be done here. The code, the class and the facts stay, the directory is added.

Failure model: pure.
"""

from __future__ import annotations

from holdfast.errors import (
    AlreadyOpen,
    Closed,
    Code,
    CorruptData,
    HoldfastError,
    InternalError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    statement_of,
)

__all__ = ["not_done", "of_the_stores", "own_failure", "perhaps_done"]

_START_AGAIN = "start the service again: it finds what the log holds"


def of_the_stores(error: HoldfastError, directory: str) -> HoldfastError:
    """The error to raise from ``error``, which the queue in ``directory`` raised.

    >>> of_the_stores(CorruptData("messages are damaged", first=5), "d").hint
    'holdfast stores repair d tells what is lost; holdfast stores restore BACKUP NEW makes stores of a backup'
    """
    facts = {**error.fields, "directory": directory}
    message = f"the stores' log: {error.message}"
    if isinstance(error, CorruptData):
        # A later version is no damage, and there the queue's own advice holds.
        hint = error.hint if "format_version" in error.fields else _repair(directory)
        return CorruptData(message, code=error.code, hint=hint, facts=facts)
    if isinstance(error, Closed):
        return Closed(message, code=error.code, hint=_START_AGAIN, facts=facts)
    if isinstance(error, AlreadyOpen):
        return AlreadyOpen(message, code=error.code, hint=error.hint, facts=facts)
    if isinstance(error, Unavailable):
        full = error.code is Code.DISK_FULL
        hint = "free some space, then start the service again: it finds what the log holds" if full else ""
        return Unavailable(message, code=error.code, hint=hint, retry_after_ms=error.retry_after_ms, facts=facts)
    if isinstance(error, NotFound):
        return NotFound(message, code=error.code, facts=facts)
    return error


def not_done(failure: BaseException) -> HoldfastError:
    """The answer to a command that changed nothing, because of the failure of the log: it can be sent again.

    >>> not_done(Unavailable("the disk is full", code=Code.DISK_FULL)).code
    <Code.CLOSED: 'closed'>
    """
    return Closed("the stores have failed, and this was not done", hint=_START_AGAIN, facts=_cause(failure))


def perhaps_done(failure: BaseException) -> HoldfastError:
    """The answer to a command that was applied when the log failed: what it wrote, or rests on, may be there or not.

    >>> perhaps_done(Unavailable("the disk is full", code=Code.DISK_FULL)).statement()
    'the stores have failed, and whether this was done is not known cause=the disk is full cause_code=disk_full'
    """
    return OutcomeUnknown(
        "the stores have failed, and whether this was done is not known",
        hint="start the service again, and look; what a publisher numbered can be sent again under its numbers",
        facts=_cause(failure),
    )


def own_failure(error: BaseException) -> HoldfastError:
    """The answer to the command that met the failure itself: nothing of it was written."""
    if isinstance(error, HoldfastError):
        return error
    return InternalError("the stores have failed", cause=str(error))


def _cause(failure: BaseException) -> dict[str, object]:
    return {
        "cause": statement_of(failure),
        "cause_code": str(failure.code) if isinstance(failure, HoldfastError) else None,
    }


def _repair(directory: str) -> str:
    return (
        f"holdfast stores repair {directory} tells what is lost; "
        "holdfast stores restore BACKUP NEW makes stores of a backup"
    )
