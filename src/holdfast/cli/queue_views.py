"""What ``holdfast queue info``, ``tail`` and ``dump`` print.

Owns: these three, as functions of plain arguments. Does not own: their options (``queue``), the picture
(``queue_picture``), checking and changing (``queue_checks``).

Failure model: reads only, takes no lock. Raises what reading a queue raises; what the file system says becomes an error
with an exit code.
"""

from __future__ import annotations

import base64
import errno
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from holdfast.cli.options import Encoding
from holdfast.cli.output import (
    flush_output,
    output_errors,
    output_failed,
    print_fields,
    print_json,
    print_line,
    progress,
    readable,
)
from holdfast.cli.queue import Separator
from holdfast.cli.queue_files import moment_ns, opened_files, parse_time, writer_of
from holdfast.cli.queue_picture import DrawnPage, draw
from holdfast.errors import InvalidRequest
from holdfast.queue import Gap, Message, Queue, Trimmed
from holdfast.queue.consumers.cursor_file import committed_seqs
from holdfast.queue.files.meta_files import read_identity
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.page import HEADER_BYTES
from holdfast.queue.log.opening import LogEnd, find_end
from holdfast.queue.log.reader import read_write_position

__all__ = ["counted", "dump", "info", "size_text", "tail"]

CHARACTERS_MAX = 100
PROGRESS_MESSAGES = 10_000


def size_text(count: int) -> str:
    """Bytes for people.

    >>> size_text(512), size_text(64 << 20)
    ('512 B', '64.0 MiB')
    """
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def counted(count: int, word: str) -> str:
    """A number and its word.

    >>> counted(1, "page"), counted(1200, "page")
    ('1 page', '1,200 pages')
    """
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


# ---- info -----------------------------------------------------------------------------------------------------------


def info(path: str, *, every_page: bool, as_json: bool) -> None:
    """Totals, a picture of the pages, and where each cursor stands."""
    with opened_files(path) as pages:
        facts = _Facts(path, pages, find_end(pages, read_write_position(pages), pages.port.boot_id()))
    if as_json:
        print_json(facts.fields())
        return
    facts.print(every_page=every_page)


class _Facts:
    """What ``info`` knows: from headers, marks and cursors, without reading messages."""

    def __init__(self, path: str, pages: PageDirectory, end: LogEnd) -> None:
        identity = read_identity(pages)
        mark = read_write_position(pages)
        self.path = path
        self.queue_id = identity.queue_id.hex() if identity is not None else None
        self.page_bytes = identity.page_bytes if identity is not None else None
        self.clean = mark is not None and mark.clean
        self.last_seq = end.next_seq - 1
        self.last_time_ns = end.last_time_ns
        self.durable_seq = min(mark.durable.next_seq - 1, self.last_seq) if mark is not None else 0
        self.writer = writer_of(pages)
        self.cursors = committed_seqs(pages, self.last_seq)
        names = pages.port.names(pages.directory)
        prefix = f"{pages.names.prefix}-"
        self.set_aside = sorted(
            name
            for name in names
            # Behind the last hyphen: what is before it may be the name of another queue.
            if name.startswith(prefix)
            and "-" not in name[len(prefix) :]
            and (name.endswith(".torn") or ".damaged" in name)
        )
        self.pages: list[dict[str, object]] = []
        self.drawn: list[DrawnPage] = []
        self.bytes = 0
        self.first_seq = self.last_seq + 1
        self.first_time_ns = 0
        self._look_at_pages(pages, end)

    def _look_at_pages(self, pages: PageDirectory, end: LogEnd) -> None:
        found = [(number, pages.header_of(number)) for number in pages.numbers()]
        bases = [header.base_seq for _, header in found if header is not None and not header.prepared]
        begun = 0
        for number, header in found:
            try:
                size = pages.port.size_of(pages.directory, pages.names.page(number))
            except FileNotFoundError:
                continue  # retention was faster
            self.bytes += size
            if header is None:
                self._add(number, size, "damaged header", 0, -1, 0.0, "its header is damaged")
                continue
            if header.prepared and number != end.page:
                self._add(number, size, "made ahead", 0, -1, 0.0, "made ahead, empty")
                continue
            base_seq = header.base_seq if not header.prepared else (end.header.base_seq if end.header else 1)
            begun += not header.prepared
            last_seq = bases[begun] - 1 if begun < len(bases) else self.last_seq
            written = end.position if number == end.page else size
            if base_seq < self.first_seq:
                self.first_seq, self.first_time_ns = base_seq, header.base_time_ns
            state = "written to" if number == end.page and not end.sealed else "full"
            words = f"{base_seq}..{last_seq}" if last_seq >= base_seq else "empty"
            self._add(
                number,
                size,
                state,
                base_seq,
                last_seq,
                (written - HEADER_BYTES) / max(1, size - HEADER_BYTES),
                f"{words}  {size_text(size)}"
                + ("" if header.prepared else f"  since {moment_ns(header.base_time_ns)[:19]}Z"),
            )

    def _add(
        self, number: int, size: int, state: str, first_seq: int, last_seq: int, filled: float, words: str
    ) -> None:
        fields: dict[str, object] = {"page": number, "state": state, "bytes": size, "filled": round(filled, 4)}
        if last_seq >= first_seq:
            fields |= {"first_seq": first_seq, "last_seq": last_seq}
        self.pages.append(fields)
        marks = [(seq + 1, self._standing(name, seq)) for name, seq in self.cursors.items()]
        newest = bool(self.last_seq) and last_seq == self.last_seq
        here = [(seq, text) for seq, text in marks if first_seq <= seq <= last_seq or (newest and seq == last_seq + 1)]
        self.drawn.append(DrawnPage(number, first_seq, last_seq, filled, words, here))

    def _standing(self, name: str, seq: int) -> str:
        behind = self.last_seq - max(seq, self.first_seq - 1)
        return f"{name}: " + (f"{behind:,} to read" if behind else "has read all")

    def fields(self) -> dict[str, object]:
        """For programs."""
        return {
            "path": self.path,
            "queue_id": self.queue_id,
            "page_size": self.page_bytes,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "durable_seq": self.durable_seq,
            "messages": self.last_seq - self.first_seq + 1,
            "first_time": moment_ns(self.first_time_ns) if self.last_seq >= self.first_seq else None,
            "last_time": moment_ns(self.last_time_ns) if self.last_seq >= self.first_seq else None,
            "bytes": self.bytes,
            "writer_pid": self.writer or None,
            "closed_cleanly": self.clean,
            "pages": self.pages,
            "cursors": [
                {"name": name, "committed_seq": seq, "lag": self.last_seq - max(seq, self.first_seq - 1)}
                for name, seq in self.cursors.items()
            ],
            "set_aside": self.set_aside,
        }

    def print(self, *, every_page: bool) -> None:
        """For people."""
        messages = self.last_seq - self.first_seq + 1
        fields = {
            "queue": self.path,
            "messages": f"{messages:,}" + (f"  ({self.first_seq}..{self.last_seq})" if messages else ""),
            "durable": f"up to {self.durable_seq}" if self.durable_seq else "nothing yet",
            "newest": moment_ns(self.last_time_ns) if messages else "-",
            "on disk": f"{size_text(self.bytes)} in {counted(len(self.pages), 'page')}",
            "writer": _writer_text(self.writer, clean=self.clean),
        }
        if self.set_aside:
            fields["set aside"] = ", ".join(self.set_aside)
        print_fields(fields)
        print_line("")
        for line in draw(self.drawn, every_page=every_page):
            print_line(line)
        started = {name for page in self.drawn for _, text in page.marks for name in [text.partition(":")[0]]}
        for name, seq in self.cursors.items():
            if name not in started:
                print_line(f"{self._standing(name, seq)}, from the first page on")


def _writer_text(pid: int | None, *, clean: bool) -> str:
    if pid is None:
        return "not known on this system"
    if pid:
        return f"process {pid}"
    return "none; closed cleanly" if clean else "none; it was not closed, the next start mends the end"


# ---- tail and dump --------------------------------------------------------------------------------------------------


def payload_text(message: Message, encoding: Encoding) -> str:
    """A payload as JSON carries it. Raises: ``InvalidRequest`` for bytes that are not text."""
    match encoding:
        case Encoding.BASE64:
            return base64.b64encode(message.payload).decode("ascii")
        case Encoding.HEX:
            return message.payload.hex()
        case Encoding.TEXT:
            try:
                return message.payload.decode()
            except UnicodeDecodeError as error:
                raise InvalidRequest(
                    "a payload is not UTF-8", seq=message.seq, hint="--encoding base64, or hex"
                ) from error


def message_fields(message: Message, encoding: Encoding) -> dict[str, object]:
    """A message for programs. The time is text, because its nanoseconds are more than a JSON reader keeps."""
    return {
        "seq": message.seq,
        "time": moment_ns(message.time_ns),
        "payload": payload_text(message, encoding),
    }


def message_line(message: Message) -> str:
    """A message for people."""
    return f"{message.seq}  {moment_ns(message.time_ns)}  {readable(message.payload, characters_max=CHARACTERS_MAX)}"


def tail(
    path: str,
    *,
    count: int,
    follow: bool,
    limit: int,
    since: str | None,
    seq: int | None,
    encoding: Encoding,
    as_json: bool,
) -> None:
    """The last messages, then each that arrives."""
    with opened_files(path), Queue(path, read_only=True) as queue:
        moment = _starting_point(since, seq)
        if moment is None and seq is None:
            seq = max(1, queue.first_seq, queue.last_seq + 1 - count)
        messages = queue.read(since=moment, seq=seq, follow=follow, damage=_tell)
        for message in islice(messages, _at_most(limit)):
            print_json(message_fields(message, encoding)) if as_json else print_line(message_line(message))
            if follow:
                flush_output()


def _at_most(limit: int) -> int:
    return min(limit or sys.maxsize, sys.maxsize)


def _starting_point(since: str | None, seq: int | None) -> datetime | None:
    if since is not None and seq is not None:
        raise InvalidRequest("--since and --seq exclude each other")
    return None if since is None else parse_time(since, "--since")


def _tell(report: Gap | Trimmed) -> None:
    """A gap, for people, beside the messages."""
    sys.stderr.write(f"holdfast: {report}\n")


def dump(
    path: str,
    *,
    since: str | None,
    seq: int | None,
    until: str | None,
    limit: int,
    separator: Separator | None,
    output: Path | None,
    skip_damage: bool,
    encoding: Encoding,
    as_json: bool,
) -> None:
    """Every message from a starting point on."""
    if separator is not None and as_json:
        raise InvalidRequest("--raw and --json exclude each other")
    moment = _starting_point(since, seq)
    end_ns = None if until is None else _nanoseconds(until)
    encode = _raw_encoder(separator) if separator is not None else _json_encoder(encoding)
    with opened_files(path), Queue(path, read_only=True) as queue:
        first = max(1, queue.first_seq, seq or 1)
        total = min(queue.last_seq + 1 - first, _at_most(limit))
        messages = queue.read(since=moment, seq=seq, damage=_tell if skip_damage else "raise")
        shown = output is not None or not sys.stdout.isatty()
        with _output(output) as write, progress("dumping", shown=shown) as moved:
            for done, message in enumerate(islice(messages, _at_most(limit)), 1):
                if end_ns is not None and message.time_ns >= end_ns:
                    break
                write(encode(message))
                if done % PROGRESS_MESSAGES == 0:
                    moved(done, total if moment is None else None)


def _nanoseconds(text: str) -> int:
    moment = parse_time(text, "--until")
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


def _json_encoder(encoding: Encoding) -> Callable[[Message], bytes]:
    """As ``message_fields`` says, put together by hand: a dump may be of many millions."""
    import json

    quoted = json.JSONEncoder(ensure_ascii=False).encode if encoding is Encoding.TEXT else '"{}"'.format
    last_ns, last_time = -1, ""

    def encode(message: Message) -> bytes:
        nonlocal last_ns, last_time
        seq, time_ns, _ = message
        if time_ns != last_ns:
            last_ns, last_time = time_ns, moment_ns(time_ns)
        payload = quoted(payload_text(message, encoding))
        return f'{{"seq":{seq},"time":"{last_time}","payload":{payload}}}\n'.encode()

    return encode


def _raw_encoder(separator: Separator) -> Callable[[Message], bytes]:
    behind = {Separator.NEWLINE: b"\n", Separator.NUL: b"\0", Separator.NONE: b""}[separator]
    return lambda message: message.payload + behind


@contextmanager
def _output(path: Path | None) -> Generator[Callable[[bytes], None]]:
    """Writes to where a dump goes. A file that exists is not written over."""
    if path is None:
        sys.stdout.flush()
        file: BinaryIO = sys.stdout.buffer
    else:
        file = _new_file(path)

    def write(data: bytes) -> None:
        try:
            file.write(data)
        except OSError:
            with output_errors(path):
                raise

    try:
        yield write
    finally:
        with output_errors(path):
            if path is not None:
                file.close()
            elif not file.closed:
                file.flush()


def _new_file(path: Path) -> BinaryIO:
    try:
        return path.open("xb")
    except FileExistsError as error:
        raise InvalidRequest("the output file exists", path=str(path), hint="name another, or move it away") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise output_failed(error, path) from error
        raise InvalidRequest("the output file cannot be made", path=str(path), cause=error.strerror) from error
