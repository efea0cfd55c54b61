"""Repairs a queue: intact messages become readable, damaged bytes are kept in separate files.

Nothing is deleted, and nothing is changed before a copy of it is durable. A repair may be stopped at any time and run
again. It holds the writer's lock. First it writes headers that follow by rule, and opens and closes the queue as a
writer, which repairs its end. Then each gap inside a page becomes a *bridge*: a head that never verifies, whose length
leads to the next intact frame, and zeros. So readers find the messages after the gap without an index. They still
report it, because these messages did exist; ``verify_queue`` knows it from the list of damage.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Final

from holdfast.errors import AlreadyOpen
from holdfast.queue import Queue
from holdfast.queue.files.meta_files import read_identity
from holdfast.queue.files.pages import PageDirectory, open_page, replace_file
from holdfast.queue.format.checksum import checksum_for_reading
from holdfast.queue.format.frame import HEAD, HEAD_BYTES, encode_seal, page_seed
from holdfast.queue.format.page import HEADER_BYTES, encode_header
from holdfast.queue.repair.files import open_files
from holdfast.queue.repair.survey import (
    KnownGap,
    LostMessages,
    OnProgress,
    PageSurvey,
    QueueSurvey,
    damage_list_name,
    known_gaps,
)

PAGE_BYTES: Final = 1 << 20
COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class QueueRepair:
    """The result of ``repair_queue``.

    ``gaps`` are the gaps that this repair handled, ``kept`` the files with damaged bytes, ``rebuilt`` a line for each
    page or file that was restored or built again, ``messages`` the number of messages that can be read now.
    """

    path: str
    gaps: tuple[KnownGap, ...]
    kept: tuple[str, ...]
    rebuilt: tuple[str, ...]
    messages: int

    @property
    def lost(self) -> int:
        """Messages in the gaps of this repair."""
        return sum(gap.last - gap.first + 1 for gap in self.gaps)


def repair_queue(path: str, on_progress: OnProgress | None = None) -> QueueRepair:
    """Repair the queue at ``path``. A lost message stays lost: its number is listed as a ``KnownGap``.

    Raises: ``AlreadyOpen`` while a writer runs; ``CorruptData`` for a page of a newer format version; ``NotFound``;
    ``PermissionDenied`` or ``Unavailable`` from the file system. Cost: two readings of all pages.
    After a crash: run it again.
    """
    with open_files(path) as pages:
        return _Repair(path, pages).run(on_progress)


class _Repair:
    def __init__(self, path: str, pages: PageDirectory) -> None:
        self._path = path
        self._pages = pages
        self._gaps: list[KnownGap] = []
        self._kept: list[str] = []
        self._rebuilt: list[str] = []

    def run(self, on_progress: OnProgress | None) -> QueueRepair:
        pages = self._pages
        lock = pages.port.lock(pages.directory, pages.names.lock)
        try:
            self._restore_headers()
        finally:
            pages.port.close(lock)
        before = set(pages.port.names(pages.directory))
        identity = read_identity(pages)
        page_bytes = PAGE_BYTES if identity is None else identity.page_bytes
        Queue(self._path, page_size=page_bytes, background=False).close()
        self._kept += sorted(name for name in set(pages.port.names(pages.directory)) - before if name.endswith(".torn"))
        if pages.names.identity not in before:
            self._rebuilt.append(f"{pages.names.identity} was rebuilt")
        lock = pages.port.lock(pages.directory, pages.names.lock)
        try:
            self._repair_pages(QueueSurvey(pages, on_progress))
        finally:
            pages.port.close(lock)
        messages = QueueSurvey(pages, on_progress).messages
        return QueueRepair(self._path, tuple(self._gaps), tuple(self._kept), tuple(self._rebuilt), messages)

    def _restore_headers(self) -> None:
        pages = self._pages
        for number in pages.numbers():
            header = pages.header_of(number)
            if header is None or not header.restored:
                continue
            with open_page(pages, number, write=True) as file:
                if file is None:
                    continue
                self._kept.append(self._keep(file, number, 0, HEADER_BYTES))
                pages.port.write(file, 0, (encode_header(header),))
                pages.port.sync_data(file)
                self._rebuilt.append(f"page {number}: its header was restored")

    def _repair_pages(self, survey: QueueSurvey) -> None:
        pages = self._pages
        known = known_gaps(pages)
        for gap in survey.gaps:
            if gap.is_listed(known):
                continue
            name = ""
            if gap.position and gap.bytes:
                name = self._bridge(gap)
            elif gap.page in survey.unreadable:
                name = f"{pages.names.page(gap.page)}.damaged"
            self._list(gap, name)
        for number in survey.unreadable:
            name = pages.names.page(number)
            kept = self._free_name(f"{name}.damaged")
            pages.port.rename(pages.directory, name, kept)
            pages.port.sync_directory(pages.directory)
            self._kept.append(kept)
        for page in survey.doubtful_indexes:
            self._rebuild_index(page)
            self._rebuilt.append(f"page {page.number}: its index was rebuilt")

    def _list(self, gap: LostMessages, name: str) -> None:
        known = KnownGap(
            page=gap.page,
            position=gap.position,
            bytes=gap.bytes,
            first=gap.first,
            last=gap.last,
            file=name,
            time_ms=time.time_ns() // 1_000_000,
        )
        pages, port = self._pages, self._pages.port
        list_name = damage_list_name(pages)
        try:
            file = port.open(pages.directory, list_name, write=True)
        except FileNotFoundError:
            file = port.create(pages.directory, list_name)
        try:
            end = port.size(file)
            # A line that a crash has torn is ended first.
            start = b"" if end == 0 or port.read(file, end - 1, 1) == b"\n" else b"\n"
            port.write(file, end, (start + json.dumps(asdict(known)).encode() + b"\n",))
            port.sync_data(file)
            port.sync_directory(pages.directory)
        finally:
            port.close(file)
        self._gaps.append(known)

    def _bridge(self, gap: LostMessages) -> str:
        """Keep the damaged bytes of a gap, then write the bridge over them. Returns the file that keeps them."""
        pages = self._pages
        with open_page(pages, gap.page, write=True) as file:
            if file is None:
                raise AlreadyOpen(
                    "a page was removed during its repair",
                    page=gap.page,
                    hint="another program changes the files; stop it",
                )
            name = self._keep(file, gap.page, gap.position, gap.bytes)
            self._kept.append(name)
            end = gap.position + gap.bytes
            # The bridge is also needed at the end: after a clean close the writer continues there.
            bridge = HEAD.pack(gap.bytes - HEAD_BYTES, 0, 0, 0) if gap.bytes >= HEAD_BYTES else b""
            pages.port.write(file, gap.position, (bridge + bytes(min(gap.bytes, COPY_BYTES) - len(bridge)),))
            for start in range(gap.position + COPY_BYTES, end, COPY_BYTES):
                pages.port.write(file, start, (bytes(min(COPY_BYTES, end - start)),))
            pages.port.sync_data(file)
        return name

    def _keep(self, file: int, number: int, position: int, length: int) -> str:
        port, directory = self._pages.port, self._pages.directory
        name = self._free_name(f"{self._pages.names.page(number)}.{position}.damaged")
        kept = port.create(directory, name)
        try:
            for start in range(0, length, COPY_BYTES):
                port.write(kept, start, (port.read(file, position + start, min(COPY_BYTES, length - start)),))
            port.sync_data(kept)
            port.sync_directory(directory)
        finally:
            port.close(kept)
        return name

    def _free_name(self, name: str) -> str:
        """The name, or the name with a number if it is taken, so that earlier copies stay."""
        names = set(self._pages.port.names(self._pages.directory))
        free, number = name, 1
        while free in names:
            number += 1
            free = f"{name}.{number}"
        return free

    def _rebuild_index(self, page: PageSurvey) -> None:
        """Replace the index by one built from the page, then write its checksum into the page's SEAL."""
        pages, port = self._pages, self._pages.port
        name = pages.names.index(page.number)
        data = bytes(page.records.pending)
        replace_file(pages, name, data)
        port.sync_directory(pages.directory)
        if not page.sealed:
            return
        header = page.header
        checksum = checksum_for_reading(header.checksum_id)
        seal = encode_seal(
            checksum,
            page_seed(checksum, header.salt, header.number),
            page.next_seq,
            page.seal_frames,
            page.last_time_ns,
            checksum(data, 0),
        )
        with open_page(pages, page.number, write=True) as page_file:
            if page_file is None:
                return
            port.write(page_file, page.seal_position, (seal,))
            port.sync_data(page_file)
