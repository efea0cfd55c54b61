"""What is wrong with the stores' log, in words for who runs the stores.

Owns: the message and the hint of each kind of error. Does not own: finding out (``holdfast.queue``).

The log is an embedded queue, but nobody opened one: what its errors advise, an option of a queue or another number to
read from, cannot be done here. The code, the class and the facts stay, the directory is added.

Failure model: pure.
"""

from __future__ import annotations

from holdfast.errors import AlreadyOpen, Closed, Code, CorruptData, HoldfastError, NotFound, Unavailable

__all__ = ["of_the_stores"]


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
        hint = "start the service again: it finds what the log holds"
        return Closed(message, code=error.code, hint=hint, facts=facts)
    if isinstance(error, AlreadyOpen):
        return AlreadyOpen(message, code=error.code, hint=error.hint, facts=facts)
    if isinstance(error, Unavailable):
        full = error.code is Code.DISK_FULL
        hint = "free some space, then start the service again: it finds what the log holds" if full else ""
        return Unavailable(message, code=error.code, hint=hint, retry_after_ms=error.retry_after_ms, facts=facts)
    if isinstance(error, NotFound):
        return NotFound(message, code=error.code, facts=facts)
    return error


def _repair(directory: str) -> str:
    return (
        f"holdfast stores repair {directory} tells what is lost; "
        "holdfast stores restore BACKUP NEW makes stores of a backup"
    )
