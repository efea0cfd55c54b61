"""The page files of a queue: made, listed, renamed durably; and which names of queues and consumers exclude each other.

A page is made as a temporary file, which the next opening removes after a crash; a full disk is found here. Under its
name there is always a whole page, and the page is used once the directory is synced.

``orders-eu-billing.cursor`` is the consumer ``eu-billing`` of ``orders`` or ``billing`` of ``orders-eu``: the first
one there has it, the other is refused. ``orders-eu.work`` and ``orders-eu-dead`` belong to the work queue ``eu``. Names
are checked and not locked, so two processes in the same millisecond may both succeed.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress

from holdfast.errors import InvalidRequest
from holdfast.queue.format.page import HEADER_BYTES, PageHeader, decode_header, encode_header, nearest_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.queue.files.port import FilePort
    from holdfast.queue.format.file_names import FileNames

    Restore = Callable[["PageDirectory", int, int, bytes], PageHeader | None]


class PageDirectory:
    """The pages of one queue in an open directory. ``restore`` finds the header of a page that has more than one
    damaged byte in it (``log.restoration``).
    """

    __slots__ = ("_changes", "_damaged", "_known", "_restore", "directory", "is_sole", "names", "port")

    def __init__(self, port: FilePort, directory: int, names: FileNames, restore: Restore | None = None) -> None:
        self._restore = restore
        self._damaged: dict[int, tuple[bytes, PageHeader | None]] = {}  # by page: damaged bytes, and what they were
        self.port = port
        self.directory = directory
        self.names = names
        self.is_sole = False  # only this object makes and removes pages
        self._changes = 0
        self._known: tuple[int, list[int]] = (-1, [])

    def files(self) -> list[str]:
        """Every file in the directory, of this queue and of others. Cost: one listing."""
        return self.port.names(self.directory)

    def numbers(self) -> list[int]:
        """The numbers of the pages that have a name, rising. Cost: one listing."""
        changes = self._changes  # before the listing: what changes meanwhile makes it old
        numbers = sorted(number for number in map(self.names.page_number, self.files()) if number is not None)
        self._known = changes, numbers
        return numbers.copy()

    def known_numbers(self) -> list[int]:
        """As ``numbers``, without a listing if nothing has changed. Do not modify the list."""
        changes, numbers = self._known
        return numbers if self.is_sole and changes == self._changes else self.numbers()

    def create(self, header: PageHeader) -> int:
        """A durable prepared page of zeros. Returns the open file."""
        port, directory = self.port, self.directory
        name = self.names.page(header.number)
        temporary = self.names.temporary(name)
        self.remove(temporary)
        file = port.create(directory, temporary)
        try:
            port.allocate(file, header.page_bytes)
            port.write(file, 0, (encode_header(header),))
            port.sync_data(file)
            port.rename(directory, temporary, name)
            self._changes += 1
            port.sync_directory(directory)
        except BaseException:
            port.close(file)
            # Also under its name: a page whose name may not be durable must not be found and used later.
            for left in (temporary, name):
                with suppress(OSError):  # the first error is raised; the next opening removes the file
                    self.remove(left)
            raise
        return file

    def open_index(self, number: int, *, write: bool) -> int | None:
        """The index of a page; None if it is absent and not to be written."""
        name = self.names.index(number)
        try:
            return self.port.open(self.directory, name, write=write)
        except FileNotFoundError:
            return self.port.create(self.directory, name) if write else None

    def open(self, number: int, *, write: bool = False) -> int | None:
        """The file of a page, or None when there is none."""
        try:
            return self.port.open(self.directory, self.names.page(number), write=write)
        except FileNotFoundError:
            return None

    def header(self, file: int, number: int) -> PageHeader | None:
        """The header of an open page, ``restored`` if it is damaged and follows by rule; else None."""
        try:
            raw = self.port.read(file, 0, HEADER_BYTES)
        except IsADirectoryError:
            raw = b""
        header = decode_header(raw, number)
        if header is not None:
            return header
        known = self._damaged.get(number)
        if known is None or known[0] != raw:
            header = nearest_header(raw, number)
            if header is None and self._restore is not None:
                header = self._restore(self, file, number, raw)
            known = self._damaged[number] = raw, header
        return known[1]

    def header_of(self, number: int) -> PageHeader | None:
        """As ``header``, of a page by number; also None if it is absent."""
        file = self.open(number)
        if file is None:
            return None
        try:
            return self.header(file, number)
        finally:
            self.port.close(file)

    def remove(self, name: str) -> bool:
        """Remove a file; False when there was none."""
        try:
            self.port.unlink(self.directory, name)
        except FileNotFoundError:
            return False
        finally:
            self._changes += 1
        return True

    def rename(self, old: str, new: str) -> bool:
        """Rename a file; False if there was none."""
        try:
            self.port.rename(self.directory, old, new)
        except FileNotFoundError:
            return False
        finally:
            self._changes += 1
        return True


@contextmanager
def open_page(pages: PageDirectory, number: int, *, write: bool = False) -> Generator[int | None]:
    """A block with the file of a page, or None when there is none."""
    file = pages.open(number, write=write)
    try:
        yield file
    finally:
        if file is not None:
            pages.port.close(file)


def cached_header(pages: PageDirectory, number: int, begun: dict[int, PageHeader]) -> PageHeader | None:
    """As ``header_of``; ``begun`` keeps the headers of begun pages, which never change again."""
    header = begun.get(number)
    if header is None:
        header = pages.header_of(number)
        if header is not None and not header.prepared:
            begun[number] = header
    return header


def read_file(pages: PageDirectory, name: str, length: int | None = None) -> bytes | None:
    """The first ``length`` bytes of a file, or all of it; None without the file."""
    port = pages.port
    try:
        file = port.open(pages.directory, name, write=False)
    except FileNotFoundError:
        return None
    try:
        return port.read(file, 0, port.size(file) if length is None else length)
    except IsADirectoryError:
        return None
    finally:
        port.close(file)


def replace_file(pages: PageDirectory, name: str, data: bytes) -> None:
    """Write a file under a temporary name, sync it and rename it. The caller syncs the directory."""
    port = pages.port
    temporary = pages.names.temporary(name)
    pages.remove(temporary)
    file = port.create(pages.directory, temporary)
    try:
        port.write(file, 0, (data,))
        port.sync_data(file)
    finally:
        port.close(file)
    port.rename(pages.directory, temporary, name)


class DurableRename:
    """The names that one step removes or renames, with one sync of the directory. Not thread-safe; used once.

    A failed sync may have dropped the change, and the next one would succeed without it. So a file keeps a temporary
    name until the sync has succeeded, and gets its own name back after a failure. A crash leaves either name or both.
    """

    def __init__(self, pages: PageDirectory) -> None:
        self._pages = pages
        self._moved: list[tuple[str, str]] = []

    def move(self, old: str, new: str) -> bool:
        """Rename a file; False if there was none. A file with a temporary name is removed once that is durable."""
        moved = self._pages.rename(old, new)
        if moved:
            self._moved.append((old, new))
        return moved

    def remove(self, name: str) -> bool:
        """Remove a page or an index; False if there was none."""
        return self.move(name, self._pages.names.temporary(name))

    def sync(self) -> None:
        """Make the changes durable. Raises: ``OSError``, and then the names are back."""
        pages = self._pages
        try:
            pages.port.sync_directory(pages.directory)
        except BaseException:
            for old, new in reversed(self._moved):
                with suppress(OSError):
                    pages.rename(new, old)
            raise
        for _, new in self._moved:
            if pages.names.is_temporary(new):
                pages.remove(new)


NAME_BYTES_MAX = 100
_IDENTITY = "-allMeta"
_CURSOR = ".cursor"
_WORK = ".work"
_DEAD = "-dead"


def check_name(pages: PageDirectory, name: object, *, of_work_queue: bool) -> str:
    """Refuse an impossible name, or one whose files belong to another queue here. Raises: ``InvalidRequest``."""
    hint = f"1 to {NAME_BYTES_MAX} bytes in UTF-8, of any characters but / and NUL"
    try:
        fits = isinstance(name, str) and 0 < len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        fits = False
    if not isinstance(name, str) or not fits or "/" in name or "\0" in name:
        raise InvalidRequest("this cannot be the name of a consumer or work queue", hint=hint, facts={"name": name})
    files = frozenset(pages.port.names(pages.directory))
    prefix = pages.names.prefix
    owner = other_owner(prefix, name, files)
    if owner is None and of_work_queue:
        mine = f"{prefix}-{name}"
        # The work queue's own dead letters are made after the other two.
        if f"{mine}{_DEAD}{_IDENTITY}" in files and not {f"{mine}{_CURSOR}", f"{mine}{_WORK}{_IDENTITY}"} & files:
            owner = mine + _DEAD
    if owner is not None:
        raise InvalidRequest("this name belongs to another queue here", name=name, queue=owner)
    return name


def other_owner(prefix: str, name: str, files: Collection[str]) -> str | None:
    """The queue, other than ``prefix``, that owns the cursor ``name``.

    >>> other_owner("orders", "eu-billing", ["orders-eu-allMeta"])
    'orders-eu'
    >>> other_owner("orders", "eu", ["orders-eu-allMeta"])
    """
    parts = name.split("-")
    for count in range(1, len(parts)):
        other = "-".join((prefix, *parts[:count]))
        if other + _IDENTITY in files:
            return other
    return None


def check_new_queue(pages: PageDirectory) -> None:
    """Refuse to make a queue whose name belongs to a consumer or work queue of another. Raises: ``InvalidRequest``."""
    name, files = pages.names.prefix, frozenset(pages.files())
    if name + _IDENTITY in files or pages.known_numbers():
        return
    work = name.removesuffix(_WORK)
    if work != name and "-" in work:
        raise InvalidRequest("names that end like this are those of work queues", queue=name, ending=_WORK)
    if name.endswith(_DEAD) and f"{name.removesuffix(_DEAD)}{_WORK}{_IDENTITY}" in files:
        raise InvalidRequest("this name is that of a work queue's dead letters", queue=name)
    cursors = [file for file in files if file.startswith(f"{name}-") and file.endswith(_CURSOR)]
    parts = name.split("-")
    owners = ["-".join(parts[:count]) for count in range(1, len(parts))]
    owner = next((other for other in owners if other + _IDENTITY in files), None)
    if cursors and owner is not None:
        raise InvalidRequest("consumers of another queue have this name", queue=name, owner=owner, file=min(cursors))
