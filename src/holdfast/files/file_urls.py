"""The path that a ``file:`` URL names: one rule for every log, table and checkpoint in a directory."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from holdfast.errors import Code, InvalidRequest

_LEFT_OUT: Final = re.compile(r"[?#\x00-\x1f\x7f]")
"""A parser of URLs takes these for a query, for a fragment, or for nothing: the rest would name another directory."""


def path_of(url: str) -> Path:
    """The absolute path of a ``file:`` URL, in which percent sequences are decoded once.

    A path that is not UTF-8 is refused, also where it comes from the working directory: messages between processes,
    URLs and plans are text, and would name another directory.

    Raises: InvalidRequest (``bad_configuration``).

    >>> path_of("file:///a%20log"), path_of("file:///a%2520log")
    (PosixPath('/a log'), PosixPath('/a%20log'))
    """
    parts = _parts(url)
    if parts is None or parts.netloc not in ("", "localhost") or not parts.path:
        raise _refused(
            url, "not a directory URL", "use file:///absolute/path or file:relative, with ? as %3F and # as %23"
        )
    with suppress(UnicodeError):
        path = Path(unquote_to_bytes(parts.path).decode()).absolute()
        if b"\0" not in str(path).encode():
            return path
    raise _refused(
        url,
        "the path of this directory is not text in UTF-8",
        "rename the directory, or reach it by a link whose whole path is UTF-8",
    )


def _parts(url: str) -> SplitResult | None:
    """The parts of the URL; None where it is not one, or has parts that a path lacks."""
    with suppress(ValueError):
        return None if _LEFT_OUT.search(url) else urlsplit(url)
    return None


def _refused(url: str, reason: str, hint: str) -> InvalidRequest:
    shown = url.encode(errors="backslashreplace").decode()
    return InvalidRequest(reason, code=Code.BAD_CONFIGURATION, hint=hint, url=shown)
