"""Page files: made ahead, found, opened.

Owns: the order in which a page comes to be, and which pages there are as far as a writer's process knows. Does not own:
what is written into it (``writer``), which pages may go (``retention``).

Failure model: ``OSError`` from the port. A page is made as a temporary file, given its room on disk, its *prepared*
header and a sync, and only then its name, and the directory a sync:

1. create, allocate: a crash leaves a temporary file, removed at the next start. A full disk is found here, before any
   message is promised a place.
2. header, sync, rename: a crash leaves the name or not; under the name there is always a whole page.
3. sync of the directory: from here on the name survives. Only now is the page used.
"""

from __future__ import annotations

from holdfast.queue.page_header import HEADER_BYTES, PageHeader, decode_header, encode_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.queue.file_names import FileNames
    from holdfast.queue.file_port import FilePort

__all__ = ["PageDirectory"]


class PageDirectory:
    """The pages of one queue in an open directory."""

    __slots__ = ("_changes", "_files", "_known", "_sole", "directory", "names", "port")

    def __init__(self, port: FilePort, directory: int, names: FileNames) -> None:
        self.port = port
        self.directory = directory
        self.names = names
        self._sole = False
        self._changes = 0
        self._known: tuple[int, list[int]] = (-1, [])
        self._files: list[str] | None = None
        """The files of the listing that ``_known`` is of, until they were asked for."""

    def files(self) -> list[str]:
        """Every file in the directory, of this queue and of others. Cost: one listing."""
        return self._list()[0]

    def numbers(self) -> list[int]:
        """The numbers of the pages that have a name, rising. Cost: one listing."""
        return self._list()[1].copy()

    def _list(self) -> tuple[list[str], list[int]]:
        changes = self._changes  # before the listing: what changes meanwhile makes it old
        files = self.port.names(self.directory)
        found = [self.names.page_number(name) for name in files]
        numbers = sorted(number for number in found if number is not None)
        self._known, self._files = (changes, numbers), files
        return files, numbers

    def known_files(self) -> list[str]:
        """As ``files``, once without a listing where no page has changed since the last one."""
        files, self._files = self._files, None
        return files if files is not None and self._sole and self._changes == self._known[0] else self.files()

    def known_numbers(self) -> list[int]:
        """As ``numbers``, without a listing where nothing has changed since the last one. Not to be changed.

        A page that somebody removes by hand under a writer may still be among them: it cannot be opened.
        """
        changes, numbers = self._known
        return numbers if self._sole and changes == self._changes else self.numbers()

    def be_sole(self, *, sole: bool = True) -> None:
        """From here on pages are made and removed through this object alone: it is the writer's. Or no longer."""
        self._sole = sole

    def create(self, header: PageHeader) -> int:
        """A prepared page of zeros under its name, durable. Returns the open file."""
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
            self._remove_quietly(temporary)
            self._remove_quietly(name)
            raise
        return file

    def open_index(self, number: int, *, write: bool) -> int | None:
        """The index of a page; None when it is absent and not to be written."""
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
        """The header of an open page, or None where it is not readable."""
        return decode_header(self.port.read(file, 0, HEADER_BYTES), number)

    def header_of(self, number: int) -> PageHeader | None:
        """The header of a page by number, or None where it is absent or not readable."""
        return self._with_file(number, lambda file: self.header(file, number))

    def _with_file(self, number: int, action: Callable[[int], PageHeader | None]) -> PageHeader | None:
        file = self.open(number)
        if file is None:
            return None
        try:
            return action(file)
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
        """Call a file otherwise; False when there was none."""
        try:
            self.port.rename(self.directory, old, new)
        except FileNotFoundError:
            return False
        finally:
            self._changes += 1
        return True

    def _remove_quietly(self, name: str) -> None:
        try:
            self.remove(name)
        except OSError:
            # The error that led here is the one to tell; the file goes at the next start.
            return
