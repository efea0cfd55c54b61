"""Mending: the files are made to say where the log ends, before anything is written.

Owns: closing a torn page, syncing what was not, setting pages aside, removing what is left over. Does not own: where
the end is (``opening``).

Failure model: safe to be stopped anywhere and run again. A page that was never durable and whose predecessors are lost
is renamed, not removed; of such pages the newest ``SET_ASIDE_PAGES_MAX`` stay. Where a sync of the directory fails, the
names that were to go are there again (``moves``), so that the next start takes them away anew and syncs that. Were they
gone from the cache alone, it would find nothing to do, and lost power bring back a history that was cut.
"""

from __future__ import annotations

from holdfast.queue.checksum import checksum_for_reading
from holdfast.queue.frame import SEAL_BYTES, encode_seal, page_seed
from holdfast.queue.moves import Moves
from holdfast.queue.opening import UNSYNCED_PAGES_MAX
from holdfast.queue.page_header import encode_header
from holdfast.queue.page_scan import WINDOW_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.opening import LogEnd
    from holdfast.queue.page_files import PageDirectory

__all__ = ["SET_ASIDE_PAGES_MAX", "mend"]

SET_ASIDE_PAGES_MAX = UNSYNCED_PAGES_MAX + 1
"""Of pages that starts after crashes set aside, so many stay: as many as one crash can leave behind. They hold what was
never durable, or stood behind it under a damaged header; ``holdfast queue info`` lists them."""


def mend(pages: PageDirectory, end: LogEnd) -> None:
    """Make the files say what ``find_end`` found, durably, so that the next walk finds the same.

    1. A page that is not written on loses its index, durably, and gets its SEAL and a sync. A crash before leaves the
       same torn tail, and readers do without an index.
    2. Pages behind the end: prepared ones are removed, begun ones set aside, then the directory is synced. A crash
       between leaves some of them, still behind the end. Of those set aside by earlier starts the oldest go.
    """
    port = pages.port
    if end.page and not end.resume:
        for number in end.unsynced:
            _sync_page(pages, number, rewrite=end.rewrite)
        # Before its SEAL: the index may name frames behind it, which the cut took from the log and the disk still has.
        going = Moves(pages)
        if going.remove(pages.names.index(end.page)):
            going.sync()
        _close_page(pages, end)
    going = Moves(pages)
    changed = False if end.resume else _forget_set_aside(pages, len(end.doubtful))
    files = pages.known_files()
    living = {*pages.known_numbers()}
    for name in files:
        if pages.names.is_temporary(name):
            pages.remove(name)  # one that lost power brings back goes at the next start
        elif (index := pages.names.index_number(name)) is not None and index not in living:
            changed |= going.remove(name)
    for number in [] if end.resume else end.doubtful:
        name = pages.names.page(number)
        header = pages.header_of(number)
        if header is not None and header.prepared:
            going.remove(name)
        else:
            # Also one whose header is damaged: under its name a page was whole once, and repair may read it.
            going.move(name, pages.names.set_aside(name, port.names(pages.directory)))
        going.remove(pages.names.index(number))
        changed = True
    # Also what a start that was killed has changed: a sync that fails later would be another's, and drop that.
    if changed or (end.page and not end.resume):
        going.sync()


def _forget_set_aside(pages: PageDirectory, coming: int) -> bool:
    """Remove what earlier starts set aside, oldest first, where with the ``coming`` there would be more than
    ``SET_ASIDE_PAGES_MAX``. What one start sets aside is never removed by it."""
    port, directory = pages.port, pages.directory
    kept = [name for name in port.names(directory) if pages.names.is_set_aside(name)]
    excess = len(kept) + coming - SET_ASIDE_PAGES_MAX
    if not coming or excess <= 0:
        return False
    for name in sorted(kept, key=lambda name: (port.modified_ns(directory, name), name))[:excess]:
        pages.remove(name)
    return True


def _sync_page(pages: PageDirectory, number: int, *, rewrite: bool) -> None:
    file = pages.open(number, write=True)
    if file is not None:
        try:
            if rewrite:
                _rewrite(pages, file, pages.port.size(file))
            pages.port.sync_data(file)
        finally:
            pages.port.close(file)


def _rewrite(pages: PageDirectory, file: int, end: int) -> None:
    """Write what is there once more. After a failed sync the cache counts as clean what the disk does not have."""
    for offset in range(0, end, WINDOW_BYTES):
        pages.port.write(file, offset, (pages.port.read(file, offset, min(WINDOW_BYTES, end - offset)),))


def _close_page(pages: PageDirectory, end: LogEnd) -> None:
    """Write what the torn page lacks: its header where that was lost, and its SEAL."""
    port = pages.port
    file = pages.open(end.page, write=True)
    if file is None or end.header is None:
        return
    try:
        header = end.header
        if end.rewrite:
            _rewrite(pages, file, end.position)
        port.write(file, 0, (encode_header(header),))
        if not end.sealed and end.position + SEAL_BYTES <= header.page_bytes:
            checksum = checksum_for_reading(header.checksum_id)
            seed = page_seed(checksum, header.salt, header.number)
            seal = encode_seal(checksum, seed, end.next_seq, end.frames, end.last_time_ns, 0)
            port.write(file, end.position, (seal,))
        port.sync_data(file)
        if end.position + SEAL_BYTES < port.size(file) and not end.gaps:
            # Room that was allocated and never used. Frames behind a SEAL are not part of the log.
            port.truncate(file, end.position + SEAL_BYTES)
    finally:
        port.close(file)
