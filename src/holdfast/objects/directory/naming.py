"""How a complete file gets its name in a file system, found out by trying.

Owns: the ways there are, and the search for the first that works in a directory and refuses to replace what is there.
Does not own: the file operations (``directory_files``), what they are used for (``directory_objects``).

Failure model: a search that fails raises the ``OSError`` of the operation and can be made again in the same directory,
whatever it left there.
"""

from __future__ import annotations

import errno
from enum import Enum, auto
from typing import Final

from holdfast.objects.directory.files import NOT_HERE, Files

__all__ = ["Naming", "Unfit", "find_naming"]

FILE: Final = "fit"
TAKEN: Final = "fit-taken"


class Unfit(OSError):
    """This file system cannot create a name only if it is absent."""


class Naming(Enum):
    """How a complete file gets its object's name, the cheapest first."""

    UNNAMED = auto()
    LINK = auto()
    RENAME = auto()


def find_naming(files: Files, own: int, root: str) -> Naming:
    """The first way that works in the open directory ``own``, which nobody else uses. Raises: OSError, Unfit."""
    try:
        for name in (FILE, TAKEN):
            try:
                files.close(files.create(own, name))
            except FileExistsError:
                continue  # what an earlier search could not remove serves as well
        for naming in Naming:
            try:
                _try(files, naming, own)
            except FileExistsError:
                return naming
            except OSError as error:
                if error.errno not in NOT_HERE:
                    raise
            else:
                break  # it replaced what was there
    finally:
        for name in (FILE, TAKEN):
            if files.size(own, name) is not None:
                files.unlink(own, name)
    raise Unfit(errno.ENOTSUP, "the file system has neither hard links nor a rename that refuses to replace", root)


def _try(files: Files, naming: Naming, own: int) -> None:
    match naming:
        case Naming.UNNAMED:
            file = files.create_unnamed(own)
            try:
                files.give_name(file, own, TAKEN)
            finally:
                files.close(file)
        case Naming.LINK:
            files.link(own, FILE, own, TAKEN)
        case Naming.RENAME:
            files.rename(own, FILE, own, TAKEN)
