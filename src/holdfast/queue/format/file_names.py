"""The names of a queue's files. Pure; the name of a foreign file is None."""

from __future__ import annotations

from collections.abc import Container

from holdfast.errors import InvalidRequest

DIGITS_MAX = 15
"""Of a page number. A longer one is not the name of a page."""
PREFIX_BYTES_MAX = 220
"""Of the 255 that file systems take: the names of damaged places (``-N.page.POSITION.damaged``) need the others."""


class FileNames:
    """Every file of the queue ``prefix``, in one directory.

    >>> names = FileNames("orders")
    >>> names.page(7), names.page_number("orders-7.page"), names.page_number("orders-dead-7.page")
    ('orders-7.page', 7, None)

    Raises: ``InvalidRequest`` for what cannot be a queue's name.
    """

    __slots__ = ("identity", "lock", "prefix", "read_meta", "write_meta")

    def __init__(self, prefix: str) -> None:
        if not prefix or "/" in prefix or "\0" in prefix:
            raise InvalidRequest("a queue needs a name", path=prefix, hint="directory/name")
        try:
            size = len(prefix.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError as error:
            raise InvalidRequest("this cannot be the name of a file", queue=ascii(prefix)) from error
        if size > PREFIX_BYTES_MAX:
            raise InvalidRequest("the name of a queue is too long", bytes=size, max=PREFIX_BYTES_MAX)
        if prefix.endswith(".cursor"):
            # Its lock would be that of a consumer: see `named_lock`.
            raise InvalidRequest("the name of a queue cannot end in .cursor", queue=prefix)
        self.prefix = prefix
        self.identity = f"{prefix}-allMeta"
        self.write_meta = f"{prefix}-writeMeta"
        self.read_meta = f"{prefix}-readMeta"
        self.lock = f"{prefix}.lock"

    def page(self, number: int) -> str:
        """A page of the log."""
        return f"{self.prefix}-{number}.page"

    def index(self, number: int) -> str:
        """The index of a page."""
        return f"{self.prefix}-{number}.idx"

    def cursor(self, name: str) -> str:
        """The committed position of a named consumer."""
        return f"{self.prefix}-{name}.cursor"

    def named_lock(self, name: str) -> str:
        """The lock of a consumer or work queue. No queue has it: no queue's name ends in ``.cursor``."""
        return f"{self.prefix}-{name}.cursor.lock"

    def temporary(self, name: str) -> str:
        """The name of a file until it is whole, or while it is removed; the next opening removes leftovers."""
        return f"{name}.tmp"

    def set_aside(self, name: str, taken: Container[str]) -> str:
        """The new name of a page that was never durable and whose predecessors are lost. A free name, because page
        numbers are used again.

        >>> names = FileNames("orders")
        >>> names.set_aside("orders-7.page", ()), names.set_aside("orders-7.page", ["orders-7.page.torn"])
        ('orders-7.page.torn', 'orders-7.page.2.torn')
        """
        free, count = f"{name}.torn", 1
        while free in taken:
            count += 1
            free = f"{name}.{count}.torn"
        return free

    def is_set_aside(self, name: str) -> bool:
        """Whether an opening set this page aside.

        >>> names = FileNames("orders")
        >>> names.is_set_aside("orders-7.page.2.torn"), names.is_set_aside("orders-dead-7.page.torn")
        (True, False)
        """
        stem, _, ending = name.removesuffix(".torn").partition(".page")
        return (
            name.endswith(".torn")
            and self.page_number(f"{stem}.page") is not None
            and (not ending or (ending[:1] == "." and ending[1:].isdecimal()))
        )

    def page_number(self, name: str) -> int | None:
        """The number of a page of this queue, or None for any other file."""
        return self._number(name, ".page")

    def index_number(self, name: str) -> int | None:
        """The number of an index of this queue, or None for any other file."""
        return self._number(name, ".idx")

    def is_temporary(self, name: str) -> bool:
        """Whether this is an unfinished or half-removed file of this queue."""
        stem = name.removesuffix(".tmp")
        return stem != name and (
            stem in (self.identity, self.write_meta, self.read_meta)
            or self.page_number(stem) is not None
            or self.index_number(stem) is not None
        )

    def _number(self, name: str, suffix: str) -> int | None:
        # Compare the ending first: a seek lists the directory, and most files have another ending.
        if not name.endswith(suffix) or not name.startswith(f"{self.prefix}-"):
            return None
        middle = name[len(self.prefix) + 1 : -len(suffix)]
        if len(middle) > DIGITS_MAX or not middle.isascii() or not middle.isdigit() or middle.startswith("0"):
            return None
        return int(middle)
