"""A directory on a real file system, and what a power cut may take from it: names and files that no sync covered.

``ForgetfulDisk.recorded`` patches the functions of ``os`` that make, move, remove and sync, in this process. A
directory's names are durable as of its last ``fsync``. A name that was changed since is *pending*: a power cut may
remove it with all below it, and a replaced or removed file may have its old content. A file that was never synced may
be empty. What SQLite makes is left out: it syncs its files and their names by itself, with functions of its own.

``before`` is called before each such operation, so a test can take an ``image``, which is what a kill leaves there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any
from unittest.mock import patch

MAKING = ("mkdir", "link")
REMOVING = ("unlink", "rmdir")
MOVING = ("rename", "replace")
SYNCING = ("fsync", "fdatasync")
OF_SQLITE = ("index.sqlite", "scratch.sqlite")


def _nothing() -> None:
    return


class ForgetfulDisk:
    """``root`` itself is durable. Paths are relative to it; "" is the root."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.root.mkdir(parents=True, exist_ok=True)
        self.operations = 0
        self._names: dict[str, dict[str, int]] = {}
        """The inodes under the names of each directory, as of its last sync."""
        self._replaced: dict[str, bytes] = {}
        """What durable names had before they were replaced or removed."""
        self._synced: set[int] = set()
        self._lock = RLock()

    # ---- recording --------------------------------------------------------------------------------------------------

    @contextmanager
    def recorded(self, before: Callable[[], None] = _nothing, after: Callable[[], None] = _nothing) -> Generator[None]:
        """Record the block. ``before`` and ``after`` are called at each operation."""
        real = {name: getattr(os, name) for name in (*MAKING, *REMOVING, *MOVING, *SYNCING)}

        def patched(name: str) -> Callable[..., Any]:
            def operation(*arguments: Any, **named: Any) -> Any:
                with self._lock:
                    places = self._places(name, *arguments, **named)
                    if not places:
                        return real[name](*arguments, **named)
                    before()
                    self.operations += 1
                    old = self._content(places[-1]) if name in (*MOVING, "unlink") else None
                    result = real[name](*arguments, **named)
                    if name in SYNCING:
                        self._note_sync(arguments[0], places[0])
                    elif name in MOVING:
                        self._note_loss(places[1], old)
                        self._note_move(places[0], places[1])
                    elif name == "unlink":
                        self._note_loss(places[0], old)
                    elif name == "rmdir":
                        self._forget(places[0])
                    after()
                    return result

            return operation

        with patch.multiple(os, **{name: patched(name) for name in real}):
            yield

    def _places(self, name: str, *arguments: Any, **named: Any) -> list[str]:
        """The places on this disk that an operation is about; none of another's."""
        if name in SYNCING:
            paths = [os.readlink(f"/proc/self/fd/{arguments[0]}")]
        elif name in ("mkdir", *REMOVING):
            paths = [_absolute(arguments[0], named.get("dir_fd"))]
        else:
            sources = named.get("src_dir_fd"), named.get("dst_dir_fd")
            paths = [_absolute(path, directory) for path, directory in zip(arguments[:2], sources, strict=True)]
        return [str(path.relative_to(self.root)) for path in map(Path, paths) if path.is_relative_to(self.root)]

    def _content(self, place: str) -> bytes | None:
        path = self.root / place
        return path.read_bytes() if path.is_file() else None

    def _note_sync(self, handle: int, place: str) -> None:
        status = os.fstat(handle)
        self._synced.add(status.st_ino)
        path = self.root / place
        if path.is_dir():
            self._names[_key(place)] = {entry.name: entry.inode() for entry in os.scandir(path)}
            self._replaced = {each: old for each, old in self._replaced.items() if _parent(each) != _key(place)}

    def _note_loss(self, place: str, old: bytes | None) -> None:
        if old is not None and os.path.basename(place) in self._names.get(_parent(place), {}):
            self._replaced.setdefault(place, old)

    def _note_move(self, source: str, target: str) -> None:
        for each in [each for each in self._names if each == source or each.startswith(f"{source}/")]:
            self._names[target + each.removeprefix(source)] = self._names.pop(each)

    def _forget(self, folder: str) -> None:
        """The directory is gone: what was in it comes back in no other."""
        self._names.pop(folder, None)
        self._replaced = {each: old for each, old in self._replaced.items() if _parent(each) != folder}

    # ---- another process --------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write what is known, for ``resume`` in another process. A kill leaves the old file or the new one."""
        replaced = {place: old.hex() for place, old in self._replaced.items()}
        state = {"names": self._names, "replaced": replaced, "synced": sorted(self._synced)}
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(state))
        unfinished.replace(path)

    def resume(self, path: Path) -> None:
        """Go on with what another process has saved."""
        state = json.loads(path.read_text())
        self._names = state["names"]
        self._replaced = {place: bytes.fromhex(old) for place, old in state["replaced"].items()}
        self._synced = {*state["synced"]}

    # ---- what a crash leaves ----------------------------------------------------------------------------------------

    def _walk(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        folders = [""]
        while folders:
            folder = folders.pop()
            for entry in sorted(os.scandir(self.root / folder), key=lambda entry: entry.name):
                place = f"{folder}/{entry.name}" if folder else entry.name
                yield place, entry
                if entry.is_dir(follow_symlinks=False):
                    folders.append(place)

    def pending(self) -> list[str]:
        """The names that a power cut may take or bring back, those above first."""
        found = {
            place: None
            for place, entry in self._walk()
            if self._names.get(_parent(place), {}).get(entry.name) != entry.inode()
        }
        return [
            place
            for place in found | dict.fromkeys(self._replaced)
            if not os.path.basename(place).startswith(OF_SQLITE)
        ]

    def unsynced(self) -> list[str]:
        """The files that a power cut may empty."""
        return [
            place
            for place, entry in self._walk()
            if entry.is_file() and entry.inode() not in self._synced and not entry.name.startswith(OF_SQLITE)
        ]

    def image(self, root: Path) -> ForgetfulDisk:
        """What a kill of the process leaves now, at another place: everything, and the same is pending."""
        with self._lock:
            pending, unsynced = {*self.pending()}, {*self.unsynced()}
            _copy(self.root, root)
            after = ForgetfulDisk(root)
            after._replaced = dict(self._replaced)
            for place, entry in after._walk():
                if place not in pending:
                    after._names.setdefault(_parent(place), {})[entry.name] = entry.inode()
                if place not in unsynced:
                    after._synced.add(entry.inode())
            return after

    def power_cut(self, root: Path, lost: Collection[str], *, empties: bool) -> Path:
        """What a power cut leaves now, at another place: without ``lost``, of the pending names. ``empties``: files
        that were never synced are empty."""
        with self._lock:
            _copy(self.root, root)
            emptied = self.unsynced() if empties else []
            replaced = dict(self._replaced)
        for place in emptied:
            os.truncate(root / place, 0)
        for place in lost:
            path = root / place
            if place in replaced and path.parent.is_dir():
                path.write_bytes(replaced[place])
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        return root


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for entry in os.scandir(source):
        if entry.is_dir(follow_symlinks=False):
            _copy(Path(entry.path), target / entry.name)
        else:
            with suppress(FileNotFoundError):  # a thread has removed it meanwhile
                shutil.copyfile(entry.path, target / entry.name)


def _absolute(path: object, directory: int | None) -> str:
    text = os.fsdecode(path)  # type: ignore[arg-type]
    if text.startswith("/proc/self/fd/"):
        return text
    return text if directory is None else os.path.join(os.readlink(f"/proc/self/fd/{directory}"), text)


def _key(place: str) -> str:
    return "" if place == "." else place


def _parent(place: str) -> str:
    return os.path.dirname(place)
