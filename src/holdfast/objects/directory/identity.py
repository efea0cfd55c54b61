"""Which directory a path names: its device and inode, and whether that is the directory that was opened.

A process writes through open directories, which follow a move. So an object is reported as created only after its path
was looked at again: a directory that was moved, removed or replaced, or a mount that came or went, shows there. The
open handle keeps the inode from being given to another directory meanwhile.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Inode(NamedTuple):
    """The device and the inode of a directory."""

    device: int
    inode: int


class Replaced(OSError):
    """A path does not name the directory that was opened. What is written there is not in the log at its URL."""


class Unstable(Replaced):
    """The file system changes the inode of a directory, so that one that was replaced cannot be recognised."""


def replaced(path: str, now: Inode | None) -> Replaced:
    """The error that says what happened to the directory at ``path``; ``now`` is what stands there, if anything."""
    what = (
        "was moved or removed"
        if now is None
        else "was replaced by another directory, or a file system was mounted or unmounted over it"
    )
    return Replaced(errno.ESTALE, f"{path} {what} while it was open")


def unstable(path: str) -> Unstable:
    """The error for a path whose file system has no lasting inodes."""
    kind, _ = file_system_of(path)
    return Unstable(
        errno.ENOTSUP,
        f"the file system at {path} ({kind or 'type unknown'}) gives a directory another inode at each look, so a "
        "directory that was replaced cannot be recognised",
    )


def file_system_of(path: str | Path) -> tuple[str, str]:
    """The kind and the mount point of the file system that ``path`` is on, as the system names them; the kind is empty
    where it does not."""
    place = os.path.realpath(path)
    kind, mount = "", "/"
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                _, point, of_line, *_ = line.split(" ")
                point = point.replace("\\040", " ")
                inside = place == point or place.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(mount):  # a later line is mounted over an earlier one
                    kind, mount = of_line, point
    except OSError:
        pass
    return kind, mount


def encode_identity(identity: Inode) -> str:
    """``device:inode``.

    >>> decode_identity(encode_identity(Inode(1, 2)))
    Inode(device=1, inode=2)
    """
    return f"{identity.device}:{identity.inode}"


def decode_identity(text: str) -> Inode:
    """The opposite of ``encode_identity``."""
    device, _, inode = text.partition(":")
    return Inode(int(device), int(inode))
