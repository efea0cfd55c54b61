"""The path that a ``file:`` URL names: one rule for every log, table and checkpoint in a directory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from holdfast.errors import Code, InvalidRequest


def path_of(url: str) -> Path:
    """The absolute path of a ``file:`` URL.

    A path that is not UTF-8 is refused, also where it comes from the working directory: messages between processes,
    URLs and plans are text, and would name another directory.

    Raises: InvalidRequest (``bad_configuration``).

    >>> path_of("file:///a%20log")
    PosixPath('/a log')
    """
    with suppress(UnicodeError):
        path = Path(unquote_to_bytes(urlsplit(url).path).decode()).absolute()
        if b"\0" not in str(path).encode():
            return path
    raise InvalidRequest(
        "the path of this directory is not text in UTF-8",
        code=Code.BAD_CONFIGURATION,
        hint="rename the directory, or reach it by a link whose whole path is UTF-8",
        url=url.encode(errors="backslashreplace").decode(),
    )
