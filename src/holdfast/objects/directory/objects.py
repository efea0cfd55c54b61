"""Objects in a directory, synchronously: the order of writes and syncs that makes ``Created`` true.

Creating an object, and what a crash leaves at each step:

1. the bytes go into a new file without a name                     nothing
2. ``fdatasync`` of that file                                      nothing
3. the file gets the object's name, which fails when it is taken   the object, complete, or nothing yet
4. ``fsync`` of the object's directory                             the object, complete
5. the directory's path names the directory that was written to    the object, at its URL; only now it is "created"

Where files without names are impossible, step 1 makes a file in this writer's own folder under ``.holdfast/writing``;
a later start removes what a crash leaves there. Between 3 and 4 readers may see a name that a power cut can undo, so
``read`` and ``page`` sync the directory before they return a name that this process has not synced (impossible on a
read-only mount). A failed sync other than out of space poisons this object permanently, because the system may have
dropped the pages and report success next time. Everything raised is an ``OSError``.

A page of the log is listed without reading the whole directory. Its names are 20-digit slots that count down; the next
newer object is at most ``GAP_MAX`` slots below (a jump of 1000 after a claim and a span of at most 1000), and data are
removed oldest first, claims never. So probing from a hint that names data is exact; a wrong hint costs time only.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

from holdfast.objects.directory.files import NOT_HERE, PosixFiles
from holdfast.objects.directory.identity import Inode, replaced, unstable

SLOT_MAX = 2**64 - 1
GAP_MAX = 2_000
CLAIM_BYTES = 512

SlotSize = Callable[[int], "int | None"]
"""The bytes of the object in a slot, None when there is none."""


def slot_of_name(name: str) -> int | None:
    """The slot of a file name, None when it is not exactly one.

    >>> slot_of_name("18446744073709551615") == SLOT_MAX, slot_of_name("7")
    (True, None)
    """
    if len(name) != 20 or not name.isascii() or not name.isdigit():
        return None
    slot = int(name)
    return slot if slot <= SLOT_MAX else None


def is_data(size: int | None) -> bool:
    """Whether a slot of this size is a place to begin: neither removed, nor a claim, which may stand alone."""
    return size is not None and size > CLAIM_BYTES


def slots_newest_first(size_of: SlotSize, hint: int | None, limit: int) -> list[tuple[int, int]] | None:
    """The ``limit`` newest slots with sizes, newest (lowest) first; None when probing from ``hint`` cannot decide.
    Cost: the distance from the hint to the newest, GAP_MAX absent slots, and the page."""
    if hint is None or not is_data(size_of(hint)):
        return None
    newest = slot = hint
    while slot > 0 and newest - slot < GAP_MAX:
        slot -= 1
        if size_of(slot) is not None:
            newest = slot
    return slots_from(size_of, newest, limit)


def slots_from(size_of: SlotSize, first: int, limit: int) -> list[tuple[int, int]] | None:
    """The first ``limit`` slots at or above ``first`` with their sizes; None when a gap or the end comes before."""
    rows: list[tuple[int, int]] = []
    absent = 0
    slot = first
    while len(rows) < limit:
        if slot > SLOT_MAX or absent > GAP_MAX:
            return None
        size = size_of(slot)
        if size is None:
            absent += 1
        else:
            absent = 0
            rows.append((slot, size))
        slot += 1
    return rows


FILE: Final = "fit"
TAKEN: Final = "fit-taken"


class UnfitPlace(OSError):
    """This file system cannot create a name only if it is absent."""


class Naming(Enum):
    """How a complete file gets its object's name, the cheapest first."""

    UNNAMED = auto()
    LINK = auto()
    RENAME = auto()


def find_naming(files: PosixFiles, own: int, root: str) -> Naming:
    """The first way that works in the open directory ``own``, which no other process uses. Raises: OSError, Unfit."""
    try:
        for name in (FILE, TAKEN):
            try:
                files.close(files.create(own, name))
            except FileExistsError:
                continue  # left by an earlier search
        for naming in Naming:
            try:
                file = files.create_unnamed(own) if naming is Naming.UNNAMED else files.open(own, FILE)
                try:
                    _give_name(files, naming, file, own, FILE, own, TAKEN)
                finally:
                    files.close(file)
            except FileExistsError:
                return naming
            except OSError as error:
                if error.errno not in NOT_HERE:
                    raise
            else:
                break  # it replaced the existing name
    finally:
        for name in (FILE, TAKEN):
            if files.size(own, name) is not None:
                files.unlink(own, name)
    raise UnfitPlace(errno.ENOTSUP, "the file system has neither hard links nor a rename that refuses to replace", root)


def _give_name(files: PosixFiles, naming: Naming, file: int, own: int, temporary: str, target: int, name: str) -> None:
    match naming:
        case Naming.UNNAMED:
            files.give_name(file, target, name)
        case Naming.LINK:
            files.link(own, temporary, target, name)
        case Naming.RENAME:
            files.rename(own, temporary, target, name)


COUNTDOWN_DIRECTORY = "batches"
"""The one directory whose names are slots."""
LOG_FOLDERS = ("", COUNTDOWN_DIRECTORY)
"""The root and the folder of batches: without them there is no log to write to."""
PRIVATE = ".holdfast"
WRITING = "writing"
HINT = "newest"
HINT_EVERY_SLOTS = 64
SYNCED_NAMES_MAX = 16_384
MAKE_FOLDER_ATTEMPTS_MAX = 100
"""How often a writer makes its own folder while other starting writers take it for a dead writer's."""
TRIES_MAX = 3
"""How often an object is written again because its folder was moved away meanwhile."""
OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class Poisoned(OSError):
    """A sync failed, so what is durable is no longer known."""


class DirectoryObjects:
    """One process's view of the directory at ``root``, which exists. Not safe for concurrent use. ``token`` names this
    writer's own folder; it is drawn at random by the caller.

    An object counts only in the directory that its path names. Where that is another one than was opened, the root and
    the folder of batches raise ``Replaced``, as the log itself is elsewhere; any other folder is opened again.
    ``known``: the identities that another process of this store has seen of these two, by folder.
    """

    def __init__(self, files: PosixFiles, root: str, token: str, known: Mapping[str, Inode] = {}) -> None:
        self._files = files
        self._root = root
        self._token = token
        self._root_handle = files.open_directory(root)
        self._known = known
        self._identities: dict[str, Inode] = {}
        try:
            self._read_only = files.is_read_only(self._root_handle)
            self._identify("", self._root_handle)
        except OSError:
            files.close(self._root_handle)  # the caller may try again
            raise
        self._directories: dict[str, int] = {"": self._root_handle}
        self._durable_directories = {""}
        # Not a dict: to find the oldest key of one, Python passes over every key that was deleted before it.
        self._synced: OrderedDict[str, None] = OrderedDict()
        self._writing: int | None = None
        self._naming = Naming.UNNAMED
        self._count = 0
        self._spare: tuple[str, int] | None = None
        self._finished: str | None = None
        self._hint: int | None = None
        self._hinted = 0
        self._poison: str | None = None

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create ``key`` durably; False when the name is taken. Raises: OSError, Poisoned, Unfit."""
        if self._poison is not None:
            raise Poisoned(errno.EIO, self._poison)
        if self._writing is None:
            self._is_in_place("")
            self._prepare_writing()
        folder, name = _split(key)
        for _ in range(TRIES_MAX):
            target = self._directory_for_writing(folder)
            try:
                temporary = self._write_and_name(data, target, name)
            except Poisoned:
                raise
            except OSError:  # the error number differs between systems
                if not self._is_in_place(folder):
                    continue
                if not self._files.is_removed(self._own_folder()):
                    raise
                # This writer's own folder was removed: make it again.
                self._leave_own_folder()
                self._prepare_writing()
                temporary = self._write_and_name(data, target, name)
            if temporary is not None:
                self._sync_directory(target)
            if self._is_in_place(folder):
                break
        else:
            raise OSError(errno.ESTALE, f"{self._path(folder)} was moved or removed again and again")
        if temporary is None:
            return False
        self._remember(key)
        if self._naming is Naming.LINK:
            self._finished = temporary
        if folder == COUNTDOWN_DIRECTORY and len(data) > CLAIM_BYTES:
            slot = slot_of_name(name)
            self._hint = self._hint if slot is None else slot
        return True

    def _write_and_name(self, data: bytes | memoryview, target: int, name: str) -> str | None:
        """The temporary name of the file that got its object's name, None when the name was taken."""
        temporary, file = self._write_temporary(data)
        own = self._writing
        assert own is not None, "the temporary file is in this writer's own folder"
        try:
            _give_name(self._files, self._naming, file, own, temporary, target, name)
        except FileExistsError:
            self._discard(temporary)
            return None
        except OSError:
            self._discard(temporary)
            raise
        finally:
            self._files.close(file)
        return temporary

    def tidy(self) -> None:
        """Work after the reply: remove the finished temporary name, prepare the next one, move the hint. Raises:
        nothing. A failure that matters shows in the next create."""
        try:
            if self._finished is not None:
                finished, self._finished = self._finished, None
                self._files.unlink(self._own_folder(), finished)
            if self._writing is not None and self._spare is None and self._poison is None:
                self._spare = self._new_temporary()
            if self._hint is not None and abs(self._hint - self._hinted) >= HINT_EVERY_SLOTS:
                self._write_hint(self._hint)
        except OSError:
            return

    def _write_temporary(self, data: bytes | memoryview) -> tuple[str, int]:
        """The name in this writer's own folder, if any, and the open file, complete and synced."""
        name, file = self._spare or self._new_temporary()
        self._spare = None
        try:
            self._files.write(file, data)
            try:
                self._files.sync_data(file)
            except OSError as error:
                if error.errno not in OUT_OF_SPACE:
                    self._poisoned("the sync of a file failed", error)
                raise
        except OSError:
            self._files.close(file)
            self._discard(name)
            raise
        return name, file

    def _new_temporary(self) -> tuple[str, int]:
        if self._naming is Naming.UNNAMED:
            return "", self._files.create_unnamed(self._own_folder())
        self._count += 1
        name = str(self._count)
        return name, self._files.create(self._own_folder(), name)

    def _discard(self, temporary: str) -> None:
        """Remove an unused temporary file; the next start removes it if this fails."""
        if not temporary:
            return
        try:
            self._files.unlink(self._own_folder(), temporary)
        except OSError:
            return

    def _own_folder(self) -> int:
        assert self._writing is not None, "only a prepared writer has its own folder"
        return self._writing

    def _prepare_writing(self) -> None:
        """Make and lock this writer's own folder, remove those of dead writers, and choose the naming."""
        folder = f"{self._root}/{PRIVATE}/{WRITING}"
        for _ in range(MAKE_FOLDER_ATTEMPTS_MAX):
            own = self._make_own_folder(folder)
            if own is not None:
                break
        else:
            raise OSError(errno.EAGAIN, "the folder for temporary files was being cleaned")
        try:
            self._clean_dead_writers(folder)
            self._naming = find_naming(self._files, own, self._root)
        except OSError:
            self._files.close(own)  # and release its lock for the next try
            raise
        self._writing = own

    def _make_own_folder(self, folder: str) -> int | None:
        """This writer's own folder, open and locked; None when another starting writer removed it before our lock."""
        for path in (f"{self._root}/{PRIVATE}", folder, f"{folder}/{self._token}"):
            try:
                self._files.make_directory(path)
            except FileExistsError:
                continue
        try:
            own = self._files.open_directory(f"{folder}/{self._token}")
        except FileNotFoundError:
            return None
        try:
            if self._files.lock(own) and not self._files.is_removed(own):
                return own
        except OSError:
            self._files.close(own)
            raise
        self._files.close(own)
        return None

    def _clean_dead_writers(self, folder: str) -> None:
        parent = self._files.open_directory(folder)
        try:
            for name, is_directory in list(self._files.names(parent)):
                if is_directory and name != self._token:
                    self._clean_dead_writer(parent, f"{folder}/{name}", name)
        finally:
            self._files.close(parent)

    def _clean_dead_writer(self, parent: int, path: str, name: str) -> None:
        """Remove a folder whose lock is free: its owner is dead, and its files were never reported or are linked."""
        try:
            folder = self._files.open_directory(path)
        except FileNotFoundError:
            return
        try:
            if not self._files.lock(folder):
                return
            for leftover, _ in list(self._files.names(folder)):
                self._files.unlink(folder, leftover)
            self._files.remove_directory(parent, name)
        except FileNotFoundError:
            return  # another cleaner was faster
        finally:
            self._files.close(folder)

    def _leave_own_folder(self) -> None:
        """Remove this writer's own folder with its files, unless it is gone. Raises: OSError."""
        own, self._writing = self._own_folder(), None
        spare, self._spare = self._spare, None
        self._finished = None
        try:
            if spare is not None:
                self._files.close(spare[1])
            for name, _ in list(self._files.names(own)):
                self._files.unlink(own, name)
            parent = self._files.open_directory(f"{self._root}/{PRIVATE}/{WRITING}")
            try:
                self._files.remove_directory(parent, self._token)
            finally:
                self._files.close(parent)
        except FileNotFoundError:
            pass  # another process was faster
        finally:
            self._files.close(own)

    def _directory_for_writing(self, folder: str) -> int:
        """An open directory, made with its parents if absent; a made one is durable in its parent on return."""
        if folder in self._durable_directories:
            return self._directories[folder]
        parent, _ = _split(folder)
        if parent in self._directories:
            self._is_in_place(parent)
        above = self._directory_for_writing(parent)
        try:
            self._files.make_directory(f"{self._root}/{folder}")
        except FileExistsError:
            pass
        # Also an existing one: its creator may have stopped before the sync.
        self._sync_directory(above)
        if folder not in self._directories:
            self._open_folder(folder)
        self._durable_directories.add(folder)
        return self._directories[folder]

    def _directory_for_reading(self, folder: str) -> int | None:
        if folder not in self._directories or not self._is_in_place(folder):
            try:
                self._open_folder(folder)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return self._directories[folder]

    def _open_folder(self, folder: str) -> None:
        handle = self._files.open_directory(self._path(folder))
        try:
            self._is_in_place("")
            self._identify(folder, handle)
        except OSError:
            self._files.close(handle)
            raise
        self._directories[folder] = handle

    def _identify(self, folder: str, handle: int) -> None:
        identity = self._files.identity(handle)
        if self._known.get(folder, identity) != identity:
            raise replaced(self._path(folder), identity)
        self._identities[folder] = identity

    def identity_of(self, folder: str) -> Inode | None:
        """That of a folder that is open."""
        return self._identities.get(folder)

    def _path(self, folder: str) -> str:
        return f"{self._root}/{folder}" if folder else self._root

    def _is_in_place(self, folder: str) -> bool:
        """Whether the path of an open folder names that folder. If it does not, the folder is open no more.

        Raises: Replaced (the log is elsewhere), Unstable, OSError (the path cannot be looked at). Cost: one stat.
        """
        path = self._path(folder)
        try:
            now = self._files.identity_at(path)
        except (FileNotFoundError, NotADirectoryError):
            now = None
        if now == self._identities[folder]:
            return True
        if self._files.identity(self._directories[folder]) != self._identities[folder]:
            raise unstable(path)
        if folder in LOG_FOLDERS:
            if folder:
                self._is_in_place("")  # the larger of the two names what happened
            raise replaced(path, now)
        self._is_in_place("")
        self._forget_folder(folder)
        return False

    def _forget_folder(self, folder: str) -> None:
        self._files.close(self._directories.pop(folder))
        del self._identities[folder]
        self._durable_directories.discard(folder)
        for key in [key for key in self._synced if _split(key)[0] == folder]:
            del self._synced[key]

    def _sync_directory(self, directory: int) -> None:
        try:
            self._files.sync_directory(directory)
        except OSError as error:
            self._poisoned("the sync of a directory failed", error)

    def _sync_names(self, directory: int, keys: list[str]) -> None:
        """Make names durable before they are reported, unless this process has done so."""
        if self._read_only or all(key in self._synced for key in keys):
            return
        self._sync_directory(directory)
        for key in keys:
            self._remember(key)

    def _remember(self, key: str) -> None:
        self._synced[key] = None
        if len(self._synced) > SYNCED_NAMES_MAX:
            self._synced.popitem(last=False)

    def _poisoned(self, what: str, error: OSError) -> None:
        self._poison = f"{what}, so what is durable is unknown until a restart: {error}"
        raise Poisoned(error.errno or errno.EIO, self._poison) from error

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """The bytes of an object or a part of them, None when there is no such object. Raises: OSError, Poisoned."""
        if self._poison is not None:
            raise Poisoned(errno.EIO, self._poison)
        folder, name = _split(key)
        directory = self._directory_for_reading(folder)
        if directory is None:
            return None
        try:
            file = self._files.open(directory, name)
        except FileNotFoundError:
            return None
        try:
            self._sync_names(directory, [key])
            return self._files.read(file, start, length)
        except IsADirectoryError:
            return None
        finally:
            self._files.close(file)

    def page(self, prefix: str, after: str, limit: int) -> list[tuple[str, int]]:
        """The first ``limit`` keys under ``prefix`` above ``after`` with their sizes. Raises: OSError, Poisoned."""
        if self._poison is not None:
            raise Poisoned(errno.EIO, self._poison)
        rows = self._probe(prefix, after, limit)
        if rows is None:
            rows = self._scan(prefix, after, limit)
        by_folder: dict[str, list[str]] = {}
        for key, _ in rows:
            by_folder.setdefault(_split(key)[0], []).append(key)
        for folder, keys in by_folder.items():
            self._sync_names(self._directories[folder], keys)
        return rows

    def _probe(self, prefix: str, after: str, limit: int) -> list[tuple[str, int]] | None:
        """The page by probing, None when that is not possible."""
        if prefix != f"{COUNTDOWN_DIRECTORY}/":
            return None
        directory = self._directory_for_reading(COUNTDOWN_DIRECTORY)
        if directory is None:
            return []

        def size_of(slot: int) -> int | None:
            return self._files.size(directory, f"{slot:020d}")

        if after < prefix:
            slots = slots_newest_first(size_of, self._read_hint(), limit)
        else:
            last = slot_of_name(after.removeprefix(prefix))
            slots = None if last is None else slots_from(size_of, last + 1, limit)
        return None if slots is None else [(f"{prefix}{slot:020d}", size) for slot, size in slots]

    def _scan(self, prefix: str, after: str, limit: int) -> list[tuple[str, int]]:
        """The page by reading every directory that can hold it. Cost: every name below the prefix's folder."""
        folder = prefix.rpartition("/")[0]
        keys: list[str] = []
        folders = [folder]
        while folders:
            folder = folders.pop()
            directory = self._directory_for_reading(folder)
            if directory is None:
                continue
            inside = f"{folder}/" if folder else ""
            for name, is_directory in self._files.names(directory):
                key = inside + name
                if name.startswith("."):
                    continue
                if is_directory:
                    if key.startswith(prefix) or prefix.startswith(f"{key}/"):
                        folders.append(key)
                elif key > after and key.startswith(prefix):
                    keys.append(key)
        keys.sort()
        rows: list[tuple[str, int]] = []
        for key in keys:
            if len(rows) == limit:
                break
            folder, name = _split(key)
            size = self._files.size(self._directories[folder], name)
            if size is not None:  # else removed since the scan
                rows.append((key, size))
        return rows

    def delete(self, *keys: str) -> None:
        """Remove objects in this order, durably. Raises: OSError, Poisoned; then any of them may be removed.

        Each directory is synced once. A crash before may keep some of them and lose later ones, so keys of one request
        are near each other: a listing by probing crosses gaps of ``GAP_MAX``.
        """
        if self._poison is not None:
            raise Poisoned(errno.EIO, self._poison)
        directories = {folder: self._directory_for_reading(folder) for folder in {_split(key)[0]: None for key in keys}}
        changed: dict[int, None] = {}
        for key in keys:
            folder, name = _split(key)
            directory = directories[folder]
            if directory is None:
                continue
            try:
                self._files.unlink(directory, name)
            except FileNotFoundError:
                continue
            self._synced.pop(key, None)
            changed[directory] = None
        for directory in changed:
            self._sync_directory(directory)

    def _write_hint(self, slot: int) -> None:
        if PRIVATE in self._directories:
            self._is_in_place(PRIVATE)
        private = self._directory_for_writing(PRIVATE)
        file = self._files.open_note(private, HINT)
        try:
            self._files.write(file, f"{slot:020d}".encode())
        finally:
            self._files.close(file)
        self._hinted = slot

    def _read_hint(self) -> int | None:
        private = self._directory_for_reading(PRIVATE)
        if private is None:
            return None
        try:
            file = self._files.open(private, HINT)
        except FileNotFoundError:
            return None
        try:
            return slot_of_name(self._files.read(file, 0, 20).decode("ascii", "replace"))
        finally:
            self._files.close(file)

    def close(self) -> None:
        """Close every handle and remove this writer's own folder. Raises: OSError."""
        if self._writing is not None:
            self._leave_own_folder()
        for handle in self._directories.values():
            self._files.close(handle)
        self._directories.clear()


def _split(key: str) -> tuple[str, str]:
    folder, _, name = key.rpartition("/")
    return folder, name
