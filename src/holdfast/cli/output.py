"""What commands print: tables and lines for people, JSON for programs, progress for those who wait.

Owns: the forms. Results go to stdout, everything else to stderr, so that a pipe carries results only. Bytes are printed
as text where they are text and as ``0x...`` where they are not; in JSON always as base64, as in the HTTP API.

Failure model: a stdout that cannot be written is ``Unavailable``, so that no command ends as if it had been read; a
reader who has left is ``BrokenPipeError``, once, and no failure: what is printed behind it goes nowhere.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from holdfast.errors import Code, HoldfastError, Unavailable

__all__ = [
    "Progress",
    "answering",
    "base64_text",
    "flush_output",
    "output_errors",
    "output_failed",
    "print_error",
    "print_fields",
    "print_json",
    "print_line",
    "print_table",
    "printable",
    "progress",
    "readable",
    "write_bytes",
]


def print_json(value: object) -> None:
    """One JSON value on one line of stdout."""
    is_utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    print_line(json.dumps(value, ensure_ascii=not is_utf8, separators=(",", ":")))


def print_line(text: str) -> None:
    """One line on stdout. What its encoding lacks is written as an escape."""
    with output_errors():
        sys.stdout.write(text + "\n")


def write_bytes(data: bytes) -> None:
    """Raw bytes on stdout; a terminal gets a line end behind them, a pipe exactly the bytes."""
    with output_errors():
        sys.stdout.flush()
        sys.stdout.buffer.write(data + b"\n" if sys.stdout.isatty() else data)
        sys.stdout.buffer.flush()


def flush_output() -> None:
    """What was printed is out on return."""
    with output_errors():
        sys.stdout.flush()


@contextmanager
def output_errors(path: Path | None = None) -> Generator[None]:
    """What fails in here is the output, stdout where there is no ``path``. A reader who has left is no failure."""
    try:
        yield
    except OSError as error:
        if path is None:
            with suppress(OSError):
                sys.stdout.close()  # it holds what could not be written, and the interpreter would try again at the end
        if isinstance(error, BrokenPipeError):
            if path is None:
                # A command that has more to do than to print goes on, and may print again.
                sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
            raise
        raise output_failed(error, path) from error
    except ValueError as error:
        if path is None and sys.stdout.closed:
            raise output_failed(OSError(errno.EBADF, "it is closed since it failed"), path) from error
        raise


def output_failed(error: OSError, path: Path | None) -> Unavailable:
    """The error for an output that cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return Unavailable(
        "the output could not be written",
        code=Code.DISK_FULL if full else Code.STORE_UNAVAILABLE,
        output=str(path or "stdout"),
        cause=error.strerror,
    )


@contextmanager
def answering() -> Generator[None]:
    """The exit code behind this tells what is printed in here, also to somebody who reads no further."""
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
    """An error on stderr: one clear line and the hint, or the error object of the HTTP API."""
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


def base64_text(data: bytes) -> str:
    """Bytes as JSON carries them.

    >>> base64_text(b"key")
    'a2V5'
    """
    return base64.b64encode(data).decode("ascii")


def printable(text: str) -> str:
    """A text for people, of one line: what a terminal would obey is written as an escape.

    >>> print(printable("a\\n\\x1b[31m"))
    a\\n\\x1b[31m
    """
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def readable(data: bytes, *, characters_max: int = 0) -> str:
    """Bytes for people, cut to ``characters_max`` where that is not 0.

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


class Progress(Protocol):
    """A bar that moves."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """``done`` of ``total`` steps are behind us; an unknown total shows the count only."""
        ...


@contextmanager
def progress(what: str, *, shown: bool = True) -> Generator[Progress]:
    """A progress bar on stderr while the block runs, when stderr is a terminal and ``shown``."""
    if not shown or not sys.stderr.isatty():
        yield _unseen
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)


def _unseen(done: int, total: int | None = None) -> None:
    """Progress that nobody watches."""
    del done, total
