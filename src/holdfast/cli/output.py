"""What commands print, and the codes they exit with.

Results go to stdout, everything else to stderr. Bytes are printed as text or as ``0x...``; in JSON as base64, as in the
HTTP API. Exit codes are append-only. An output that cannot be written raises ``Unavailable``, so that no command
succeeds without it; if the reader has left, ``BrokenPipeError`` is raised once, and later output is dropped.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol

from holdfast import errors
from holdfast.errors import Code, HoldfastError

LINE_SECONDS: Final = 0.5


class Exit(IntEnum):
    """How a command ended."""

    DONE = 0
    NO = 1
    """The result is negative: not committed, no such key, no longer decidable."""
    BAD_REQUEST = 2
    """Bad usage or configuration, an invalid request, or no permission."""
    LEADER_ALIVE = 3
    DEPOSED = 4
    LOG_EMPTY = 5
    DAMAGED = 6
    """The store, the log or a queue is damaged or unfit."""
    UNAVAILABLE = 7
    """No response, the service is full, or another process has it open: the same command may work later."""
    OUTCOME_UNKNOWN = 8
    """The commit may have happened: run ``holdfast status``."""
    INTERNAL = 70
    INTERRUPTED = 130


def exit_of(error: HoldfastError) -> Exit:
    """The exit code of a command that ends with this error.

    >>> exit_of(errors.NotFound("log is empty", code=Code.LOG_EMPTY)).value
    5
    """
    by_code = {Code.LEADER_ALIVE: Exit.LEADER_ALIVE, Code.LOG_EMPTY: Exit.LOG_EMPTY, Code.STORE_UNFIT: Exit.DAMAGED}
    if error.code in by_code:
        return by_code[error.code]
    match error:
        case errors.Conflict() | errors.NotFound():
            return Exit.NO
        case errors.InvalidRequest() | errors.LimitExceeded() | errors.PermissionDenied():
            return Exit.BAD_REQUEST
        case errors.Closed():
            return Exit.DEPOSED
        case errors.CorruptData():
            return Exit.DAMAGED
        case errors.Unavailable() | errors.Backpressure():
            return Exit.UNAVAILABLE
        case errors.OutcomeUnknown():
            return Exit.OUTCOME_UNKNOWN
        case _:
            return Exit.INTERNAL


def print_json(value: object) -> None:
    """One JSON value on one line of stdout."""
    is_utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    print_line(json.dumps(value, ensure_ascii=not is_utf8, separators=(",", ":")))


def print_line(text: str) -> None:
    """One line on stdout. Characters that its encoding lacks are escaped."""
    with output_errors():
        sys.stdout.write(text + "\n")


def write_bytes(data: bytes) -> None:
    """Raw bytes on stdout; a terminal also gets a line end."""
    with output_errors():
        sys.stdout.flush()
        sys.stdout.buffer.write(data + b"\n" if sys.stdout.isatty() else data)
        sys.stdout.buffer.flush()


def flush_output() -> None:
    """Flush stdout."""
    with output_errors():
        sys.stdout.flush()


@contextmanager
def output_errors(path: Path | None = None) -> Generator[None]:
    """Turn an ``OSError`` into the error for an output, which is stdout without a ``path``."""
    try:
        yield
    except OSError as error:
        if path is None:
            with suppress(OSError):
                sys.stdout.close()  # else the interpreter would write its buffer again at exit
        if isinstance(error, BrokenPipeError):
            if path is None:
                # The command may have more work to do and may print again.
                sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
            raise
        raise output_failed(error, path) from error
    except ValueError as error:
        if path is None and sys.stdout.closed:
            raise output_failed(OSError(errno.EBADF, "closed after a failure"), path) from error
        raise


def output_failed(error: OSError, path: Path | None) -> errors.Unavailable:
    """The error for an output that cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return errors.Unavailable(
        "output could not be written",
        code=Code.DISK_FULL if full else Code.STORE_UNAVAILABLE,
        output=str(path or "stdout"),
        cause=error.strerror,
    )


@contextmanager
def answering() -> Generator[None]:
    """Print a result that the exit code repeats, so that a reader who has left does not change the exit code."""
    with suppress(BrokenPipeError):
        yield


def print_fields(fields: Mapping[str, object]) -> None:
    """Names and values in two columns on stdout."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        print_line(f"{name:{width}}  {value}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset()) -> None:
    """Aligned columns on stdout, the same on a terminal and in a pipe. ``right`` names those aligned to the right."""
    widths = [max(len(name), *(len(row[i]) for row in rows)) if rows else len(name) for i, name in enumerate(columns)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(cells, widths, columns, strict=True)
        )
        return "  ".join(padded).rstrip()

    print_line(line([name.upper() for name in columns]))
    for row in rows:
        print_line(line(row))


def print_error(error: HoldfastError, *, as_json: bool) -> None:
    """An error on stderr: one line and the hint, or the error object of the HTTP API."""
    if as_json:
        body: dict[str, object] = {"code": error.code.value, "message": error.statement()}
        if error.hint:
            body["hint"] = error.hint
        if error.retry_after_ms is not None:
            body["retry_after_ms"] = error.retry_after_ms
        sys.stderr.write(json.dumps({"error": body}) + "\n")
        return
    sys.stderr.write(f"holdfast: {printable(error.statement())}\n")
    if error.hint:
        sys.stderr.write(f"  hint: {printable(error.hint)}\n")


def utc_text(time_ms: int, *, timespec: str = "milliseconds") -> str:
    """A time in UTC.

    >>> utc_text(1_767_225_600_007)
    '2026-01-01T00:00:00.007Z'
    """
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def base64_text(data: bytes) -> str:
    """Bytes as JSON carries them.

    >>> base64_text(b"key")
    'a2V5'
    """
    return base64.b64encode(data).decode("ascii")


def printable(text: str) -> str:
    """A text on one line: control characters are escaped, so that a terminal does not obey them.

    >>> print(printable("a\\n\\x1b[31m"))
    a\\n\\x1b[31m
    """
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def readable(data: bytes, *, characters_max: int = 0) -> str:
    """Bytes for people, cut to ``characters_max`` unless that is 0.

    >>> readable(b"account/7"), readable(bytes([0, 255]))
    ('account/7', '0x00ff')
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or (data and not text):
        text = "0x" + data.hex()
    return text if not characters_max or len(text) <= characters_max else text[: characters_max - 1] + "…"


class ProgressBar(Protocol):
    """A progress bar."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """``done`` of ``total`` steps are complete; without a total only the count is shown."""
        ...


def _progress_lines() -> ProgressBar:
    next_line = 0.0

    def moved(done: int, total: int | None = None) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + LINE_SECONDS
            print_json({"done": done, "total": total})
            sys.stdout.flush()

    return moved


@contextmanager
def progress(what: str, *, shown: bool = True, as_lines: bool = False) -> Generator[ProgressBar]:
    """A progress bar on stderr while the block runs, when stderr is a terminal and ``shown``.

    ``as_lines``: instead, JSON lines on stdout, one each ``LINE_SECONDS`` at most, for a program that started this one.
    """
    if as_lines:
        yield _progress_lines()
        return
    if not shown or not sys.stderr.isatty():
        yield lambda done, total=None: None  # noqa: ARG005 - nothing is shown
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)
