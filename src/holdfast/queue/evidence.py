"""What the small files of a queue prove (``log.judgement``): write position, cursors, logs of work queues."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.errors import CorruptData
from holdfast.queue.files.cursors import committed_seqs
from holdfast.queue.files.meta_files import read_write_position
from holdfast.queue.files.pages import PageDirectory, cached_header, other_owner
from holdfast.queue.format.commands import STATE_KIND, CommandKind, decode_command, decode_state
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.page import PageHeader
from holdfast.queue.log.judgement import Proof, proof_of
from holdfast.queue.log.reader import LogReader
from holdfast.queue.log.restoration import restored_header

_WORK = ".work"


class FileEvidence:
    """Reads the files at each call. ``headers`` may be shared with readers."""

    __slots__ = ("_headers", "_pages")

    def __init__(self, pages: PageDirectory, headers: dict[int, PageHeader] | None = None) -> None:
        self._pages = pages
        self._headers = {} if headers is None else headers

    def proof(self) -> Proof:
        """By the write position that is recorded now. Cost: a small read, and at first a header or two."""
        pages = self._pages
        record = read_write_position(pages)
        return proof_of(
            record,
            pages.port.boot_id(),
            lambda number: cached_header(pages, number, self._headers),
            all_lost=record is None and not pages.numbers() and not is_new(pages),
        )

    def used_seq(self) -> int:
        """A consumer has committed, or a work queue has taken, numbers below this.

        Cost: a small read for each consumer, the last commands of each work queue.
        """
        pages = self._pages
        committed = (seq + 1 for seq in committed_seqs(pages).values())
        return max([1, *committed, *(_taken_seq(pages, name) for name in _work_queues(pages))])


def is_new(pages: PageDirectory) -> bool:
    """Whether no file shows that there was a queue. The lock and the write position are made before it is one."""
    names = pages.names
    of_queue = (
        name in (names.identity, f"{names.prefix}-damage.jsonl")
        or names.page_number(name) is not None
        or names.index_number(name) is not None
        or names.is_set_aside(name)
        for name in pages.files()
    )
    return not any(of_queue) and not committed_seqs(pages)


def _work_queues(pages: PageDirectory) -> Iterator[str]:
    """The names of the work queues whose logs are here."""
    start, files = f"{pages.names.prefix}-", frozenset(pages.files())
    names = {name[len(start) :].partition(f"{_WORK}-")[0] for name in files if f"{_WORK}-" in name[len(start) :]}
    for name in sorted(names):
        if name and f"{start}{name}{_WORK}-allMeta" in files and other_owner(pages.names.prefix, name, files) is None:
            yield name


def _taken_seq(pages: PageDirectory, name: str) -> int:
    """Numbers below this were taken by workers, as far as the log of commands can be read."""
    log = PageDirectory(pages.port, pages.directory, FileNames(f"{pages.names.prefix}-{name}{_WORK}"), restored_header)
    newest, has_state = 1, False
    for number in reversed(log.numbers()):
        header = log.header_of(number)
        if header is None or header.prepared:
            continue
        reader = LogReader(log, FileEvidence(log), damage="skip")
        try:
            reader.seek_seq(header.base_seq)
            # Later pages were read before.
            while (messages := reader.read_messages()) is not None and reader.page is not None:
                if reader.page.number != number:
                    break
                for message in messages:
                    has_state = has_state or message.payload[:1] == STATE_KIND
                    newest = max(newest, _next_seq(message.payload))
        except CorruptData:  # written by a later version; its work queue refuses it
            continue
        finally:
            reader.close()
        if has_state:
            break
    return newest


def _next_seq(payload: bytes) -> int:
    """The number after the highest one that a command hands out or passes; 1 for other commands."""
    if payload[:1] == STATE_KIND:
        return decode_state(payload).next_seq
    kind, _, numbers = decode_command(payload)
    return max(numbers) + 1 if kind in (CommandKind.TAKE, CommandKind.SKIP) else 1
