"""``holdfast queue``: inspect an embedded queue, check it, repair it, free its space.

info, tail, dump and verify only read, take no lock, and run next to a writer and on a read-only mount. repair and trim
end with exit code 7 while a writer has the queue open. Lost messages end verify with exit code 6 after its report.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, pairwise
from pathlib import Path
from typing import Annotated, BinaryIO, Final, TypeAlias

import typer

from holdfast.cli.options import JsonOption, TextForm, items_max
from holdfast.cli.output import (
    answering,
    base64_text,
    flush_output,
    output_errors,
    output_failed,
    print_fields,
    print_json,
    print_line,
    progress,
    readable,
)
from holdfast.console.units import counted, size
from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.queue import Gap, Message, Queue, Trimmed
from holdfast.queue.evidence import FileEvidence
from holdfast.queue.files.cursors import committed_seqs
from holdfast.queue.files.meta_files import read_identity, read_write_position
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.page import HEADER_BYTES
from holdfast.queue.log.opening import LogEnd, find_end, first_seq
from holdfast.queue.repair import LostMessages, QueueCheck, QueueRepair, repair_queue, trim_queue, verify_queue
from holdfast.queue.repair.files import open_files, queues_in, writer_pid

CHARACTERS_MAX: Final = 100
PROGRESS_MESSAGES: Final = 10_000
WIDTH: Final = 32
EDGE_PAGES: Final = 6
_SIZE: Final = re.compile(r"([0-9]+)(?:([KMGT])i?)?B?", re.IGNORECASE)
_AGE: Final = re.compile(r"([0-9]+)(ms|s|m|h|d|w)")
_AGE_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

commands = typer.Typer()


def paths_like(start: str) -> list[str]:
    """Queues whose path begins like this, and the directories on the way to them: for completion in a shell."""
    folder, name = os.path.split(start)
    queues = [os.path.join(folder, queue) for queue in queues_in(folder) if queue.startswith(name)]
    try:
        with os.scandir(folder or ".") as entries:
            folders = [os.path.join(folder, entry.name, "") for entry in entries if entry.is_dir()]
    except OSError:
        folders = []
    return queues + sorted(path for path in folders if path.startswith(start))


class Separator(StrEnum):
    """The bytes after each message of a raw dump."""

    NEWLINE = "newline"
    NUL = "nul"
    NONE = "none"


PathArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="The queue: directory/name, for example data/orders.", autocompletion=paths_like
    ),
]
SinceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--since", help="Start at this arrival time: 2026-01-31T12:00:00Z, or an age such as 90s, 15m, 2h, 7d."
    ),
]  # fmt: skip
SeqOption: TypeAlias = Annotated[int | None, typer.Option("--seq", min=1, help="Start at this sequence number.")]
PayloadOption: TypeAlias = Annotated[
    TextForm, typer.Option("--encoding", help="How payloads are written in JSON; text must be UTF-8.")
]


# ---- arguments and text ---------------------------------------------------------------------------------------------


def time_text(time_ns: int) -> str:
    """A time of the queue for people and programs, in UTC, exact.

    >>> time_text(1_767_225_600_000_000_007)
    '2026-01-01T00:00:00.000000007Z'
    """
    seconds, rest = divmod(time_ns, 1_000_000_000)
    whole = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def parse_time(text: str, option: str) -> datetime:
    """A moment: ISO 8601 with a time zone, or an age such as 90s, 15m, 2h, 7d before now.

    Raises: ``InvalidRequest`` naming the option.

    >>> parse_time("2026-01-01T00:00:00Z", "--since").isoformat()
    '2026-01-01T00:00:00+00:00'
    """
    age = _AGE.fullmatch(text)
    try:
        if age is not None:
            now = datetime.fromtimestamp(time.time(), UTC)
            return now - timedelta(**{_AGE_UNITS[age[2]]: int(age[1])})
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"{option} is not a time",
            given=text,
            hint="give a time such as 2026-01-31T12:00:00Z, or an age such as 90s, 15m, 2h, 7d",
        ) from error
    if moment.tzinfo is None:
        raise InvalidRequest(f"{option} needs a time zone", given=text, hint=f"{text}Z is UTC")
    return moment


def parse_size(text: str, option: str) -> int:
    """Bytes: a number with K, M, G or T, which are powers of 1024.

    >>> parse_size("512M", "--max-bytes"), parse_size("4096", "--max-bytes"), parse_size("1GiB", "--max-bytes")
    (536870912, 4096, 1073741824)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(f"{option} is not a size", given=text, hint="4096, 512M, 10G")
    return int(match[1]) << 10 * (" KMGT".index(match[2].upper()) if match[2] else 0)


# ---- info -----------------------------------------------------------------------------------------------------------


@commands.command()
def info(
    path: PathArgument,
    every_page: Annotated[bool, typer.Option("--all", "-a", help="Draw every page.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the pages of a queue, its cursors, what is durable, and the writer. Reads headers only."""
    with open_files(path) as pages:
        facts = _Facts(path, pages, find_end(pages, FileEvidence(pages)))
    print_json(facts.fields()) if as_json else facts.print(every_page=every_page)


class _Facts:
    """The facts of ``info``, from headers, marks and cursors, without reading messages."""

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
        self.writer = writer_pid(pages)
        self.cursors = committed_seqs(pages)
        names = pages.port.names(pages.directory)
        prefix = f"{pages.names.prefix}-"
        self.set_aside = sorted(
            name
            for name in names
            # Only names without another hyphen: the part before it may be the name of another queue.
            if name.startswith(prefix)
            and "-" not in name[len(prefix) :]
            and (name.endswith(".torn") or ".damaged" in name)
        )
        self.pages: list[dict[str, object]] = []
        self.drawn: list[DrawnPage] = []
        self.bytes = 0
        self.first_seq = first_seq(pages, FileEvidence(pages))
        self.first_time_ns = 0
        self.losses: list[str] = []
        self._add_pages(pages, end)
        self._add_losses(pages, end)

    def _add_pages(self, pages: PageDirectory, end: LogEnd) -> None:
        headers = [(number, pages.header_of(number)) for number in pages.numbers()]
        bases = [header.base_seq for _, header in headers if header is not None and not header.prepared]
        begun = 0
        for number, header in headers:
            try:
                bytes_of_page = pages.port.size_of(pages.directory, pages.names.page(number))
            except FileNotFoundError:
                continue  # retention removed it meanwhile
            self.bytes += bytes_of_page
            if header is None:
                self._add(number, bytes_of_page, "damaged header", 0, -1, 0.0, "its header is damaged")
                self.losses.append(f"page {number}: its header is damaged")
                continue
            if header.restored:
                self.losses.append(f"page {number}: its header is damaged and follows from the rest")
            if header.skipped:
                self.losses.append(
                    f"messages {header.after_seq}..{header.base_seq - 1} were lost in a power failure"
                    " before they were durable"
                )
            if header.prepared and number != end.page:
                self._add(number, bytes_of_page, "made ahead", 0, -1, 0.0, "made ahead, empty")
                continue
            base_seq = header.base_seq if not header.prepared else (end.header.base_seq if end.header else 1)
            begun += not header.prepared
            last_seq = bases[begun] - 1 if begun < len(bases) else self.last_seq
            position = end.position if number == end.page else bytes_of_page
            filled = (position - HEADER_BYTES) / max(1, bytes_of_page - HEADER_BYTES)
            self.first_time_ns = self.first_time_ns or header.base_time_ns
            state = "written to" if number == end.page and not end.sealed else "full"
            seqs = f"{base_seq}..{last_seq}" if last_seq >= base_seq else "empty"
            since = "" if header.prepared else f"  since {time_text(header.base_time_ns)[:19]}Z"
            self._add(number, bytes_of_page, state, base_seq, last_seq, filled, f"{seqs}  {size(bytes_of_page)}{since}")

    def _add_losses(self, pages: PageDirectory, end: LogEnd) -> None:
        """What the numbers of the pages and the end of the log show."""
        there = pages.numbers()
        for before, number in pairwise([end.first[0] - 1, *there]):
            if number > before + 1:
                last = "" if number == before + 2 else f"..{number - 1}"
                self.losses.append(f"page {before + 1}{last}: no file")
        if end.next_seq > end.expected_seq:
            self.losses.append(
                f"messages {end.expected_seq}..{end.next_seq - 1}, at most, are lost after the last page"
            )

    def _add(
        self, number: int, bytes_of_page: int, state: str, first_seq: int, last_seq: int, filled: float, words: str
    ) -> None:
        fields: dict[str, object] = {"page": number, "state": state, "bytes": bytes_of_page}
        fields["filled"] = round(filled, 4)
        if last_seq >= first_seq:
            fields |= {"first_seq": first_seq, "last_seq": last_seq}
        self.pages.append(fields)
        marks = [(seq + 1, self._position(name, seq)) for name, seq in self.cursors.items()]
        newest = bool(self.last_seq) and last_seq == self.last_seq
        here = [(seq, text) for seq, text in marks if first_seq <= seq <= last_seq or (newest and seq == last_seq + 1)]
        self.drawn.append(DrawnPage(number, first_seq, last_seq, filled, words, here))

    def _position(self, name: str, seq: int) -> str:
        lag = self._lag(seq)
        return f"{name}: " + (f"{lag:,} to read" if lag else "has read all")

    def _lag(self, seq: int) -> int:
        return self.last_seq - max(seq, self.first_seq - 1)

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
            "first_time": time_text(self.first_time_ns) if self.last_seq >= self.first_seq else None,
            "last_time": time_text(self.last_time_ns) if self.last_seq >= self.first_seq else None,
            "bytes": self.bytes,
            "writer_pid": self.writer or None,
            "closed_cleanly": self.clean,
            "pages": self.pages,
            "cursors": [
                {"name": name, "committed_seq": seq, "lag": self._lag(seq)} for name, seq in self.cursors.items()
            ],
            "set_aside": self.set_aside,
            "losses": self.losses,
        }

    def print(self, *, every_page: bool) -> None:
        """For people."""
        messages = self.last_seq - self.first_seq + 1
        fields = {
            "queue": self.path,
            "messages": f"{messages:,}" + (f"  ({self.first_seq}..{self.last_seq})" if messages else ""),
            "durable": f"up to {self.durable_seq}" if self.durable_seq else "nothing yet",
            "newest": time_text(self.last_time_ns) if messages else "-",
            "on disk": f"{size(self.bytes)} in {counted(len(self.pages), 'page')}",
            "writer": _writer_text(self.writer, clean=self.clean),
        }
        if self.set_aside:
            fields["set aside"] = ", ".join(self.set_aside)
        for number, line in enumerate(self.losses):
            fields["losses" if number == 0 else " " * number] = line
        print_fields(fields)
        print_line("")
        for line in draw(self.drawn, every_page=every_page):
            print_line(line)
        started = {name for page in self.drawn for _, text in page.marks for name in [text.partition(":")[0]]}
        for name, seq in self.cursors.items():
            if name not in started:
                print_line(f"{self._position(name, seq)}, from the first page on")


def _writer_text(pid: int | None, *, clean: bool) -> str:
    if pid is None:
        return "not known on this system"
    if pid:
        return f"process {pid}"
    return "none; closed cleanly" if clean else "none; it was not closed, the next start repairs the end"


@dataclass(frozen=True, slots=True)
class DrawnPage:
    """A page: its messages (``last_seq`` below ``first_seq`` for none), its filled share, and the text after it.

    ``filled`` is from 0 to 1. ``marks`` are (sequence number, text) of the cursors in this page.
    """

    number: int
    first_seq: int
    last_seq: int
    filled: float
    words: str
    marks: Sequence[tuple[int, str]] = field(default_factory=tuple[tuple[int, str], ...])


def draw(pages: Sequence[DrawnPage], *, every_page: bool = False) -> list[str]:
    """A picture of the pages in plain text. Of many pages, only the first and last few and those with a mark.

    >>> for line in draw([DrawnPage(1, 1, 8, 1.0, "1..8"), DrawnPage(2, 9, 12, 0.5, "9..12", [(11, "billing")])]):
    ...     print(line)
    page 1  [################################]  1..8
    page 2  [################                ]  9..12
                     ^ billing
    """
    lines: list[str] = []
    digits = len(str(pages[-1].number)) if pages else 1
    left_out = 0
    for index, page in enumerate(pages):
        if not every_page and EDGE_PAGES <= index < len(pages) - EDGE_PAGES and not page.marks:
            left_out += 1
            continue
        if left_out:
            lines.append(f"{'':{digits + 6}} ... {left_out} full pages ...")
            left_out = 0
        full = round(WIDTH * max(0.0, min(1.0, page.filled)))
        if page.last_seq >= page.first_seq:
            full = max(1, full)
        lines.append(f"page {page.number:{digits}}  [{'#' * full:{WIDTH}}]  {page.words}".rstrip())
        lines += [_mark(page, full, digits, seq, text) for seq, text in sorted(page.marks)]
    return lines


def _mark(page: DrawnPage, full: int, digits: int, seq: int, text: str) -> str:
    """An arrow under the position of a message in its page's bar."""
    messages = max(1, page.last_seq - page.first_seq + 1)
    column = min(full, (seq - page.first_seq) * full // messages)
    return f"{'':{digits + 8 + column}}^ {text}"


# ---- tail and dump --------------------------------------------------------------------------------------------------


def payload_text(message: Message, encoding: TextForm) -> str:
    """A payload as JSON carries it. Raises: ``InvalidRequest`` for bytes that are not text."""
    match encoding:
        case TextForm.BASE64:
            return base64_text(message.payload)
        case TextForm.HEX:
            return message.payload.hex()
        case TextForm.TEXT:
            try:
                return message.payload.decode()
            except UnicodeDecodeError as error:
                raise InvalidRequest(
                    "a payload is not UTF-8", seq=message.seq, hint="--encoding base64, or hex"
                ) from error


@commands.command()
def tail(
    path: PathArgument,
    count: Annotated[
        int,
        typer.Option(
            "--count", "-n", min=0, help="Start with this many last messages; 0 with -f prints new messages only."
        ),
    ] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new messages.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Stop after this many messages; 0 means no limit.")] = 0,
    since: SinceOption = None,
    seq: SeqOption = None,
    encoding: PayloadOption = TextForm.BASE64,
    as_json: JsonOption = False,
) -> None:
    """Print the last messages, and follow a queue while another process writes to it."""
    with open_files(path), Queue(path, read_only=True) as queue:
        moment = _starting_point(since, seq)
        if moment is None and seq is None:
            seq = max(1, queue.first_seq, queue.last_seq + 1 - count)
        messages = queue.read(since=moment, seq=seq, follow=follow, damage=_report_loss)
        for message in islice(messages, items_max(limit)):
            time = time_text(message.time_ns)  # in JSON too: its nanoseconds exceed the precision of JSON readers
            if as_json:
                print_json({"seq": message.seq, "time": time, "payload": payload_text(message, encoding)})
            else:
                print_line(f"{message.seq}  {time}  {readable(message.payload, characters_max=CHARACTERS_MAX)}")
            if follow:
                flush_output()


def _starting_point(since: str | None, seq: int | None) -> datetime | None:
    if since is not None and seq is not None:
        raise InvalidRequest("--since and --seq exclude each other")
    return None if since is None else parse_time(since, "--since")


def _report_loss(report: Gap | Trimmed) -> None:
    """Report lost messages on stderr."""
    sys.stderr.write(f"holdfast: {report}\n")


@commands.command()
def dump(
    path: PathArgument,
    since: SinceOption = None,
    seq: SeqOption = None,
    until: Annotated[str | None, typer.Option("--until", help="Stop before this arrival time.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most this many messages; 0 means all.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Write payloads only, unchanged.")] = False,
    separator: Annotated[
        Separator, typer.Option("--separator", help="With --raw: what follows each payload.")
    ] = Separator.NEWLINE,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new file; stdout by default.")] = None,
    skip_damage: Annotated[
        bool, typer.Option("--skip-damage", help="Continue after damage, and report lost messages on stderr.")
    ] = False,
    encoding: PayloadOption = TextForm.BASE64,
    as_json: JsonOption = False,
) -> None:
    """Write messages as lines of JSON, or raw. Stops at damage with exit code 6, unless --skip-damage is given."""
    if raw and as_json:
        raise InvalidRequest("--raw and --json exclude each other")
    moment = _starting_point(since, seq)
    end_ns = None
    if until is not None:
        end = parse_time(until, "--until")
        end_ns = int(end.timestamp()) * 1_000_000_000 + end.microsecond * 1000
    ending = {Separator.NEWLINE: b"\n", Separator.NUL: b"\0", Separator.NONE: b""}[separator]
    encode: Callable[[Message], bytes] = (lambda message: message.payload + ending) if raw else _json_encoder(encoding)
    with open_files(path), Queue(path, read_only=True) as queue:
        first = max(1, queue.first_seq, seq or 1)
        total = min(queue.last_seq + 1 - first, items_max(limit))
        messages = queue.read(since=moment, seq=seq, damage=_report_loss if skip_damage else "raise")
        shown = output is not None or not sys.stdout.isatty()
        with _output(output) as write, progress("dumping", shown=shown) as moved:
            for done, message in enumerate(islice(messages, items_max(limit)), 1):
                if end_ns is not None and message.time_ns >= end_ns:
                    break
                write(encode(message))
                if done % PROGRESS_MESSAGES == 0:
                    moved(done, total if moment is None else None)


def _json_encoder(encoding: TextForm) -> Callable[[Message], bytes]:
    """The JSON of ``tail``, written by hand: a dump may have many millions of messages."""
    quoted = json.JSONEncoder(ensure_ascii=False).encode if encoding is TextForm.TEXT else '"{}"'.format
    last_ns, last_time = -1, ""

    def encode(message: Message) -> bytes:
        nonlocal last_ns, last_time
        seq, time_ns, _ = message
        if time_ns != last_ns:
            last_ns, last_time = time_ns, time_text(time_ns)
        payload = quoted(payload_text(message, encoding))
        return f'{{"seq":{seq},"time":"{last_time}","payload":{payload}}}\n'.encode()

    return encode


@contextmanager
def _output(path: Path | None) -> Generator[Callable[[bytes], None]]:
    """A function that writes to the output. An existing file is not overwritten."""
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
        raise InvalidRequest(
            "the output file exists", path=str(path), hint="choose another name, or move the file away"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise output_failed(error, path) from error
        raise InvalidRequest("the output file cannot be created", path=str(path), cause=error.strerror) from error


# ---- verify, repair and trim ----------------------------------------------------------------------------------------


@commands.command()
def verify(path: PathArgument, as_json: JsonOption = False) -> None:
    """Read every page and check every message. Lists every gap; exit code 6 if messages are lost."""
    with progress("verifying, MiB", shown=not as_json) as moved:
        check = verify_queue(path, moved)
    with answering():
        print_json(_check_fields(check)) if as_json else _print_check(check)
    if not check.ok:
        raise CorruptData(
            "messages are lost",
            code=Code.CORRUPT_QUEUE,
            path=path,
            gaps=len(check.new_gaps),
            messages=sum(gap.messages for gap in check.new_gaps),
            hint=f"`holdfast queue repair {path}` keeps the damaged bytes and makes the other messages readable",
        )


def _check_fields(check: QueueCheck) -> dict[str, object]:
    return {
        "path": check.path,
        "ok": check.ok,
        "messages": check.messages,
        "lost": check.lost,
        "bytes": check.bytes,
        "pages": check.pages,
        "gaps": [{**asdict(gap), "messages": gap.messages, "known": gap.known} for gap in check.gaps],
        "indexes": [{"page": page, "state": state} for page, state in check.indexes],
        "never_durable": [{"first": first, "last": last} for first, last in check.never_durable],
        "unreadable_pages": check.unreadable_pages,
        "restorable_pages": check.restorable_pages,
        "pages_outside": check.pages_outside,
        "tail_bytes": check.tail_bytes,
    }


def _print_check(check: QueueCheck) -> None:
    print_fields(
        {
            "queue": check.path,
            "messages": f"{check.messages:,}",
            "lost": f"{check.lost:,}",
            "pages": f"{check.pages} ({size(check.bytes)})",
        }
    )
    for gap in check.gaps:
        print_line(_gap_line(gap))
    for page, state in check.indexes:
        print_line(f"page {page}: its index is {state}; no message is lost, a repair builds it again")
    for page in check.restorable_pages:
        print_line(f"page {page}: its header is damaged and follows from the rest; the next start writes it again")
    for first, last in check.never_durable:
        print_line(
            f"messages {first}..{last} were lost in a power failure before they were durable; this is not damage"
        )
    for page in check.pages_outside:
        print_line(f"page {page}: after the end of the log; never durable, the next start sets it aside")
    if check.tail_bytes:
        print_line(
            f"{check.tail_bytes:,} bytes after the end belong to an interrupted write; the next start repairs it"
        )
    if not check.gaps:
        print_line("every message is intact")


def _gap_line(gap: LostMessages) -> str:
    numbers = f"message {gap.first}" if gap.messages == 1 else f"messages {gap.first}..{gap.last}"
    known = ", accepted by a repair" if gap.known else ""
    return (
        f"page {gap.page} position {gap.position}: {numbers} lost "
        f"({gap.messages:,} in {gap.bytes:,} bytes): {gap.rule}{known}"
    )


@commands.command()
def repair(
    path: PathArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what a repair would do, and change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make every intact message readable. Damaged bytes are kept in separate files; nothing is deleted."""
    if dry_run:
        with progress("reading, MiB", shown=not as_json) as moved:
            check = verify_queue(path, moved)
        if as_json:
            print_json({"dry_run": True} | _check_fields(check))
            return
        _print_check(check)
        print_line(f"a repair would set aside {counted(len(check.new_gaps), 'damaged range')}; nothing was changed")
        return
    with progress("repairing, MiB", shown=not as_json) as moved:
        done = repair_queue(path, moved)
    if not as_json:
        _print_repair(done)
        return
    print_json(
        {
            "path": path,
            "lost": done.lost,
            "gaps": [asdict(gap) for gap in done.gaps],
            "kept": done.kept,
            "mended": done.rebuilt,
            "messages": done.messages,
        }
    )


def _print_repair(done: QueueRepair) -> None:
    for line in done.rebuilt:
        print_line(line)
    for gap in done.gaps:
        rule = "no frame verifies" if gap.position else "the page is damaged or absent"
        lost = LostMessages(gap.page, gap.position, gap.bytes, gap.first, gap.last, rule)
        print_line(_gap_line(lost) + (f"; kept in {gap.file}" if gap.file else ""))
    for name in done.kept:
        if all(name != gap.file for gap in done.gaps):
            print_line(f"kept: {name}")
    if not (done.gaps or done.rebuilt or done.kept):
        print_line("there was nothing to repair")
    print_line(f"{counted(done.messages, 'message')} can be read")


@commands.command()
def trim(
    path: PathArgument,
    before: Annotated[
        str | None, typer.Option("--before", help="Remove messages that arrived before this time or age.")
    ] = None,
    before_seq: Annotated[
        int | None, typer.Option("--before-seq", min=1, help="Remove messages below this number.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", help="Remove the oldest until the pages take at most this: 512M, 10G.")
    ] = None,
    ignore_cursors: Annotated[
        bool, typer.Option("--ignore-cursors", help="Also remove messages that a named consumer has not committed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would be removed, and change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the oldest pages, whole pages only. Keeps the page being written and messages that consumers need."""
    report = trim_queue(
        path,
        before=None if before is None else parse_time(before, "--before"),
        before_seq=before_seq,
        max_bytes=None if max_bytes is None else parse_size(max_bytes, "--max-bytes"),
        ignore_cursors=ignore_cursors,
        dry_run=dry_run,
    )
    if as_json:
        print_json(asdict(report))
        return
    verb = "would be removed" if dry_run else "removed"
    print_line(f"{counted(report.removed_pages, 'page')} {verb}; messages {report.first_seq}..{report.last_seq} remain")
    if report.held_by:
        print_line(f"kept for {', '.join(report.held_by)}")
