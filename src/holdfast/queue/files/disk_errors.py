"""What an error of the file system becomes: for an append, an opening, or any other call. Pure."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType

from holdfast.errors import Code, HoldfastError, InvalidRequest, PermissionDenied, Unavailable

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
NO_SUCH_PLACE = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.EILSEQ)


def _unavailable(error: OSError, again: str, **facts: object) -> Unavailable:
    """The error for a refused step; ``again`` is what may be done once there is room."""
    full = error.errno in FULL
    return Unavailable(
        "the disk is full" if full else "the file system refused a call",
        code=Code.DISK_FULL if full else Code.STORE_UNAVAILABLE,
        hint=f"free some space and {again}" if full else "",
        facts={**facts, "cause": error.strerror},
    )


def refusal(error: OSError, appended: int) -> Unavailable:
    """The error of an append after ``error``; ``appended`` messages of the batch are in the log.

    >>> refusal(OSError(errno.ENOSPC, "no space"), 2).code, refusal(OSError(errno.EIO, "broken"), 0).code
    (<Code.DISK_FULL: 'disk_full'>, <Code.STORE_UNAVAILABLE: 'store_unavailable'>)
    """
    return _unavailable(error, "append again", appended=appended)


class Refusal(Unavailable, OSError):
    """The file system refused a step that may be tried again. Also an ``OSError`` with the same ``errno``.

    >>> error = Refusal(OSError(errno.EIO, "input/output error"))
    >>> error.code, error.errno, str(error)
    (<Code.STORE_UNAVAILABLE: 'store_unavailable'>, 5, 'the file system refused a call cause=input/output error')
    """

    def __init__(self, error: OSError) -> None:
        model = _unavailable(error, "try again")
        super().__init__(model.message, code=model.code, hint=model.hint, facts=model.fields)
        self.errno, self.strerror = error.errno, error.strerror

    def __reduce__(self) -> tuple[type[Refusal], tuple[object, ...], dict[str, object]]:
        return type(self), (OSError(self.errno, self.strerror),), self.__dict__


class Refusals:
    """A block whose errors of the file system become ``Refusal``."""

    __slots__ = ()

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, HoldfastError):
            raise Refusal(error) from error


refusals = Refusals()
"""The only instance: it has no state."""


def opening_error(error: OSError, path: str) -> HoldfastError:
    """The error to raise from ``error``, which ended an opening or a command. It names the file.

    >>> opening_error(OSError(errno.EROFS, "read-only"), "d/q").code, opening_error(OSError(errno.ENOSPC, ""), "").code
    (<Code.PERMISSION_DENIED: 'permission_denied'>, <Code.DISK_FULL: 'disk_full'>)
    """
    path = error.filename or path
    if error.errno in FORBIDDEN:
        return PermissionDenied("the file system denies access", path=path, cause=error.strerror)
    if error.errno in NO_SUCH_PLACE:
        return InvalidRequest("there can be no such file", path=path, cause=error.strerror)
    return _unavailable(error, "open it again", path=path)


@contextmanager
def opening(path: str) -> Generator[None]:
    """A block over the files at ``path``: errors of the file system become ``opening_error``."""
    try:
        yield
    except OSError as error:
        if isinstance(error, HoldfastError | BrokenPipeError):  # the pipe is the output of a command
            raise
        raise opening_error(error, path) from error
