"""The files of a queue, opened to look at them: no lock, nothing written, also on a read-only mount.

Owns: finding a queue by its path, saying clearly why there is none, who writes to it now, times as arguments and as
text. Does not own: what is in the pages (``queue_survey``).

Failure model: ``NotFound`` with the queues that are there instead, ``InvalidRequest`` for a time that is none;
``OSError`` becomes ``PermissionDenied`` or ``Unavailable``, naming the file.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError, InvalidRequest, NotFound, PermissionDenied, Unavailable
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.file_names import FileNames

__all__ = ["moment_ns", "opened_files", "parse_time", "paths_like", "system_errors", "writer_of"]

_FILE_OF_QUEUE: Final = re.compile(r"(.+?)(?:-allMeta|-writeMeta|-[1-9][0-9]*\.(?:page|idx))")
_AGE: Final = re.compile(r"([0-9]+)(ms|s|m|h|d|w)")
_AGE_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
NAMED_MAX: Final = 5


@contextmanager
def opened_files(path: str) -> Generator[PageDirectory]:
    """The directory and the names of the queue at ``path``, for reading.

    Raises: ``NotFound`` where there is no queue; ``InvalidRequest`` where the path names a file of one.
    """
    folder, name = os.path.split(path)
    with system_errors(path):
        names = FileNames(name)
        port = LocalFiles()
        try:
            directory = port.open_directory(folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound("there is no such directory", path=folder or ".") from error
        try:
            pages = PageDirectory(port, directory, names)
            if names.identity not in port.names(directory) and not pages.numbers():
                raise _no_queue(path, folder, name)
            yield pages
        finally:
            port.close(directory)


def _no_queue(path: str, folder: str, name: str) -> HoldfastError:
    """Why there is no queue: a file of one was named, or a directory, or it is called something else."""
    found = _FILE_OF_QUEUE.fullmatch(name)
    if found is not None and (Path(folder) / name).is_file():
        return InvalidRequest(
            "this is a file of a queue, not a queue", path=path, hint=f"try {os.path.join(folder, found[1])}"
        )
    near = _queues_in(Path(folder or "."))
    hint = f"in {folder or '.'} there is: {', '.join(near[:NAMED_MAX])}" if near else ""
    if Path(path).is_dir():
        inside = _queues_in(Path(path))
        hint = "PATH is directory/name" + (
            f", for example {os.path.join(path, inside[0])}" if inside else ", and this is a directory"
        )
    return NotFound("there is no such queue", path=path, hint=hint)


def paths_like(start: str) -> list[str]:
    """Queues whose path begins like this, and the directories on the way to them: for completion in a shell."""
    folder, name = os.path.split(start)
    queues = [os.path.join(folder, queue) for queue in _queues_in(Path(folder or ".")) if queue.startswith(name)]
    try:
        with os.scandir(folder or ".") as entries:
            folders = [os.path.join(folder, entry.name, "") for entry in entries if entry.is_dir()]
    except OSError:
        folders = []
    return queues + sorted(found for found in folders if found.startswith(start))


def _queues_in(folder: Path) -> list[str]:
    try:
        found = {match[1] for name in os.listdir(folder) if (match := _FILE_OF_QUEUE.fullmatch(name))}
    except OSError:
        return []
    return sorted(found)


@contextmanager
def system_errors(path: str) -> Generator[None]:
    """Turn what the file system says into an error with an exit code."""
    try:
        yield
    except PermissionError as error:
        raise PermissionDenied("the file system refuses", path=error.filename or path, cause=error.strerror) from error
    except BrokenPipeError:
        raise
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidRequest("a file is where a directory must be", path=error.filename or path) from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise PermissionDenied("nothing may be written here", path=path, cause=error.strerror) from error
        raise Unavailable("the file system failed", path=error.filename or path, cause=error.strerror) from error


def writer_of(pages: PageDirectory) -> int | None:
    """The process that has the queue open for writing; 0 where nobody has, None where that cannot be told.

    Read from the list of the system's locks: taking the lock to find out could turn a writer away that starts now.
    """
    port = pages.port
    try:
        file = port.open(pages.directory, pages.names.lock, write=False)
    except FileNotFoundError:
        return 0
    try:
        inode = os.fstat(file).st_ino
        device = os.fstat(file).st_dev
    finally:
        port.close(file)
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    for line in locks.splitlines():
        words = line.split()
        if "FLOCK" in words and wanted in words:
            return int(words[words.index(wanted) - 1])
    return 0


def moment_ns(time_ns: int) -> str:
    """A time of the queue for people and programs, in UTC, exact.

    >>> moment_ns(1_767_225_600_000_000_007)
    '2026-01-01T00:00:00.000000007Z'
    """
    seconds, rest = divmod(time_ns, 1_000_000_000)
    whole = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def parse_time(text: str, option: str) -> datetime:
    """A moment: ISO 8601 with a time zone, or an age such as 90s, 15m, 2h, 7d before now.

    Raises: ``InvalidRequest`` naming the option.

    >>> parse_time("2026-01-01T00:00:00Z", "--since").isoformat()
    '2026-01-01T00:00:00+00:00'
    """
    age = _AGE.fullmatch(text)
    try:
        if age is not None:
            now = datetime.fromtimestamp(time.time(), UTC)
            return now - timedelta(**{_AGE_UNITS[age[2]]: int(age[1])})
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"{option} got {text!r}, which is no time", hint="2026-01-31T12:00:00Z, or an age such as 90s, 15m, 2h, 7d"
        ) from error
    if found.tzinfo is None:
        raise InvalidRequest(f"{option} needs a time zone", given=text, hint=f"{text}Z is UTC")
    return found
