"""A file system in memory that forgets what was not synced.

A crash keeps, of every change that no sync covered, an arbitrary part: a name may be there or not, in any combination;
a file whose data were not synced may be empty, cut short or zeroed. Names and data are kept apart, as file systems do.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from random import Random
from typing import cast

from holdfast.objects.directory.identity import Inode


class Crash(Exception):
    """The machine stopped before the operation."""


class _File:
    def __init__(self) -> None:
        self.data = b""
        self.synced: bytes | None = None


class _Directory:
    def __init__(self) -> None:
        self.entries: dict[str, _File | _Directory] = {}
        self.synced: dict[str, _File | _Directory] = {}
        self.locked_by: object = None


class ForgetfulFiles:
    """One mount of the file system. ``crash_at`` stops before the operation with that number, from 1.

    ``unnamed``: whether it has files without names.
    """

    def __init__(self, root: _Directory | None = None, crash_at: int = 0, *, unnamed: bool = True) -> None:
        self.root = _Directory() if root is None else root
        self.crash_at = crash_at
        self.unnamed = unnamed
        self.count = 0
        self._handles: dict[int, _File | _Directory] = {}

    def crashed(self, random: Random) -> ForgetfulFiles:
        """The file system as the next mount finds it."""
        survivors: dict[int, _File] = {}

        def file_after(file: _File) -> _File:
            if id(file) not in survivors:
                after = _File()
                if file.synced == file.data:
                    after.data = file.data
                else:
                    length = random.randint(0, len(file.data))
                    torn = (b"", file.data[:length], bytes(len(file.data)))
                    after.data = random.choice([*torn, file.data])
                after.synced = after.data
                survivors[id(file)] = after
            return survivors[id(file)]

        def directory_after(directory: _Directory) -> _Directory:
            after = _Directory()
            for name in sorted({*directory.entries, *directory.synced}):
                choices = [directory.entries.get(name), directory.synced.get(name)]
                entry = random.choice(choices)
                if isinstance(entry, _File):
                    after.entries[name] = file_after(entry)
                elif isinstance(entry, _Directory):
                    after.entries[name] = directory_after(entry)
            after.synced = dict(after.entries)
            return after

        return ForgetfulFiles(directory_after(self.root))

    def objects_under(self, folder: str) -> dict[str, bytes]:
        """Every file by name in a top folder, for the test to look at."""
        directory = self.root.entries.get(folder)
        if not isinstance(directory, _Directory):
            return {}
        return {name: entry.data for name, entry in directory.entries.items() if isinstance(entry, _File)}

    # ---- the port

    def make_directory(self, path: str) -> None:
        self._step()
        parent, _, name = path.strip("/").rpartition("/")
        above = self._walk(parent)
        if name in above.entries:
            raise FileExistsError(errno.EEXIST, path)
        above.entries[name] = _Directory()

    def open_directory(self, path: str) -> int:
        self._step()
        return self._handle(self._walk(path.strip("/")))

    def identity(self, directory: int) -> Inode:
        return Inode(1, id(self._directory(directory)))

    def identity_at(self, path: str) -> Inode:
        self._step()
        return Inode(1, id(self._walk(path.strip("/"))))

    def create(self, directory: int, name: str) -> int:
        self._step()
        entries = self._directory(directory).entries
        if name in entries:
            raise FileExistsError(errno.EEXIST, name)
        file = entries[name] = _File()
        return self._handle(file)

    def create_unnamed(self, directory: int) -> int:
        self._step()
        if not self.unnamed:
            raise OSError(errno.ENOTSUP, "no files without names")
        return self._handle(_File())

    def open(self, directory: int, name: str) -> int:
        self._step()
        return self._handle(self._entry(directory, name))

    def open_note(self, directory: int, name: str) -> int:
        self._step()
        entry = self._directory(directory).entries.setdefault(name, _File())
        return self._handle(entry)

    def write(self, file: int, data: bytes | memoryview) -> None:
        self._step()
        one = self._file(file)
        one.data = bytes(data) + one.data[len(data) :]

    def read(self, file: int, start: int, length: int | None) -> bytes:
        self._step()
        return self._file(file).data[start : None if length is None else start + length]

    def sync_data(self, file: int) -> None:
        self._step()
        one = self._file(file)
        one.synced = one.data

    def sync_directory(self, directory: int) -> None:
        self._step()
        one = self._directory(directory)
        one.synced = dict(one.entries)

    def link(self, source: int, source_name: str, target: int, target_name: str) -> None:
        self._step()
        entry = self._entry(source, source_name)
        entries = self._directory(target).entries
        if target_name in entries:
            raise FileExistsError(errno.EEXIST, target_name)
        entries[target_name] = entry

    def give_name(self, file: int, target: int, target_name: str) -> None:
        self._step()
        entries = self._directory(target).entries
        if target_name in entries:
            raise FileExistsError(errno.EEXIST, target_name)
        entries[target_name] = self._file(file)

    def rename(self, source: int, source_name: str, target: int, target_name: str) -> None:
        self.link(source, source_name, target, target_name)
        del self._directory(source).entries[source_name]

    def unlink(self, directory: int, name: str) -> None:
        self._step()
        self._entry(directory, name)
        del self._directory(directory).entries[name]

    def remove_directory(self, directory: int, name: str) -> None:
        self._step()
        entry = self._entry(directory, name)
        assert isinstance(entry, _Directory)
        if entry.entries:
            raise OSError(errno.ENOTEMPTY, name)
        del self._directory(directory).entries[name]

    def size(self, directory: int, name: str) -> int | None:
        self._step()
        entry = self._directory(directory).entries.get(name)
        return len(entry.data) if isinstance(entry, _File) else None

    def names(self, directory: int) -> Iterator[tuple[str, bool]]:
        self._step()
        for name, entry in list(self._directory(directory).entries.items()):
            yield name, isinstance(entry, _Directory)

    def lock(self, directory: int) -> bool:
        self._step()
        one = self._directory(directory)
        if one.locked_by not in (None, self):
            return False
        one.locked_by = self
        return True

    def is_read_only(self, directory: int) -> bool:
        return False

    def is_removed(self, directory: int) -> bool:
        return False

    def close(self, handle: int) -> None:
        del self._handles[handle]

    # ---- inside

    def _step(self) -> None:
        self.count += 1
        if self.count == self.crash_at:
            raise Crash

    def _handle(self, entry: _File | _Directory) -> int:
        handle = max(self._handles, default=2) + 1
        self._handles[handle] = entry
        return handle

    def _walk(self, path: str) -> _Directory:
        directory = self.root
        for name in path.split("/") if path else ():
            entry = directory.entries.get(name)
            if not isinstance(entry, _Directory):
                raise FileNotFoundError(errno.ENOENT, path)
            directory = entry
        return directory

    def _entry(self, directory: int, name: str) -> _File | _Directory:
        entry = self._directory(directory).entries.get(name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, name)
        return entry

    def _directory(self, handle: int) -> _Directory:
        return cast(_Directory, self._handles[handle])

    def _file(self, handle: int) -> _File:
        return cast(_File, self._handles[handle])
