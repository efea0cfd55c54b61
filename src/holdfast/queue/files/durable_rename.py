"""Names that go durably, or are there again.

Owns: moving names out of the way of the log, one sync of the directory for them all, putting them back where that
fails. Does not own: which names go (``space``, ``mending``).

Failure model: ``OSError`` from the port. A sync of the directory that failed may have dropped what it was to write; the
next one has nothing to do then, and succeeds. A name that is gone from the cache alone comes back with lost power,
however much later, and without its neighbours. So the file of a name that goes keeps another one until the sync has
succeeded, and where it fails gets its own again, as far as the disk lets it: whoever comes next takes it away anew,
which is a change that a sync writes. A crash before the sync leaves either name, or both, and what has the other one is
removed or set aside at the next start.
"""

from __future__ import annotations

from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.files.pages import PageDirectory

__all__ = ["Moves"]


class Moves:
    """The names that one step takes away. Not thread-safe; used once."""

    __slots__ = ("_moved", "_pages")

    def __init__(self, pages: PageDirectory) -> None:
        self._pages = pages
        self._moved: list[tuple[str, str]] = []

    def move(self, old: str, new: str) -> bool:
        """Call a file otherwise; False when there was none. A temporary name goes, with the file, once that is
        durable."""
        moved = self._pages.rename(old, new)
        if moved:
            self._moved.append((old, new))
        return moved

    def remove(self, name: str) -> bool:
        """Let a page or an index go; False when there was none."""
        return self.move(name, self._pages.names.temporary(name))

    def sync(self) -> None:
        """The names are gone durably on return. Raises: ``OSError``, and then they are back."""
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
