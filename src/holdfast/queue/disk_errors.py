"""What an error of the file system means to whoever appends.

Owns: that translation. Does not own: which operations are tried again (``writer``).

Failure model: pure.
"""

from __future__ import annotations

import errno

from holdfast.errors import Code, Unavailable

__all__ = ["refusal"]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def refusal(error: OSError, appended: int) -> Unavailable:
    """The error to raise from ``error``, after which so many messages of the batch are in the log.

    >>> refusal(OSError(errno.ENOSPC, "no space"), 2).code, refusal(OSError(errno.EIO, "broken"), 0).code
    (<Code.DISK_FULL: 'disk_full'>, <Code.STORE_UNAVAILABLE: 'store_unavailable'>)
    """
    full = error.errno in FULL
    return Unavailable(
        "the disk is full" if full else "the file system refused",
        code=Code.DISK_FULL if full else Code.STORE_UNAVAILABLE,
        hint="free some space and append again" if full else "",
        appended=appended,
        cause=error.strerror,
    )
