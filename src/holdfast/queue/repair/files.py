"""The files of a queue, opened without a lock and without writing, also on a read-only mount. ``OSError`` becomes
``PermissionDenied``, ``InvalidRequest`` or ``Unavailable`` with the name of the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.queue.evidence import is_new
from holdfast.queue.files.disk_errors import opening
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.log.restoration import restored_header

_FILE_OF_QUEUE: Final = re.compile(r"(.+?)(?:-allMeta|-writeMeta|-[1-9][0-9]*\.(?:page|idx))")
NAMED_MAX: Final = 5


@contextmanager
def open_files(path: str) -> Generator[PageDirectory]:
    """The directory and the file names of the queue at ``path``. Raises: ``NotFound`` with the names of nearby queues;
    ``InvalidRequest`` if the path names a file of one.
    """
    folder, name = os.path.split(path)
    with opening(path):
        names = FileNames(name)
        port = LocalFiles()
        try:
            directory = port.open_directory(folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound("there is no such directory", path=folder or ".") from error
        try:
            pages = PageDirectory(port, directory, names, restored_header)
            if is_new(pages) and names.write_meta not in pages.files():
                raise _no_queue(path, folder, name)
            yield pages
        finally:
            port.close(directory)


def _no_queue(path: str, folder: str, name: str) -> HoldfastError:
    """The path names a file of a queue, or a directory, or the queue has another name."""
    match = _FILE_OF_QUEUE.fullmatch(name)
    if match is not None and (Path(folder) / name).is_file():
        return InvalidRequest(
            "this is a file of a queue, not a queue", path=path, hint=f"try {os.path.join(folder, match[1])}"
        )
    nearby = queues_in(folder)
    hint = f"in {folder or '.'} there is: {', '.join(nearby[:NAMED_MAX])}" if nearby else ""
    if Path(path).is_dir():
        inside = queues_in(path)
        hint = "PATH is directory/name" + (
            f", for example {os.path.join(path, inside[0])}" if inside else "; the given path is only a directory"
        )
    return NotFound("there is no such queue", path=path, hint=hint)


def queues_in(folder: str) -> list[str]:
    """The names of the queues in a directory, sorted; empty if it cannot be read."""
    try:
        return sorted({match[1] for name in os.listdir(folder or ".") if (match := _FILE_OF_QUEUE.fullmatch(name))})
    except OSError:
        return []


def writer_pid(pages: PageDirectory) -> int | None:
    """The process that has the queue open for writing; 0 if there is none, None if the system does not show locks. Read
    from the system's list: taking the lock, even briefly, could refuse a writer that starts now.
    """
    port = pages.port
    try:
        file = port.open(pages.directory, pages.names.lock, write=False)
    except FileNotFoundError:
        return 0
    try:
        status = os.fstat(file)
    finally:
        port.close(file)
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    for line in locks.splitlines():
        words = line.split()
        if "FLOCK" in words and wanted in words:
            return int(words[words.index(wanted) - 1])
    return 0
