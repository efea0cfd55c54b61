"""Whether the place of a log can be one at all, asked before anything is opened.

Owns: refusing a ``file:`` URL under which no leader could ever write. Does not own: opening it (``objects.open``), nor
stores that have to be asked over a network, which the start-up probe tries.

Failure model: what is refused here would not change by waiting, so it is named at once and not tried again and again.
What passes may still fail later: a directory can lose its rights at any time, and then commits wait as for any store.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.errors import Code, InvalidRequest

__all__ = ["require_writable_place"]


def require_writable_place(log_url: str) -> None:
    """Return when a leader may be able to write under ``log_url``.

    Raises: InvalidRequest naming the path: ``bad_configuration`` when it is no directory or this user may not write it,
    ``store_unfit`` when its file system is mounted read-only.
    Cost: a few system calls; nothing is made or changed.
    """
    parts = urlsplit(log_url)
    if parts.scheme != "file":
        return
    root = Path(unquote(parts.path)).absolute()
    place = root
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise InvalidRequest(
            "the log cannot be there: this is not a directory",
            code=Code.BAD_CONFIGURATION,
            hint="give --log the directory of the log, for example file:///var/lib/holdfast",
            path=str(place),
        )
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        raise InvalidRequest(
            "the log cannot be written: its file system is mounted read-only",
            code=Code.STORE_UNFIT,
            hint="mount the file system for writing, or give --log another directory",
            path=str(place),
        )
    # The objects have a directory of their own, and one that was made by another user is the usual mishap.
    for needed in (place, root / "batches"):
        if needed.is_dir() and not os.access(needed, os.R_OK | os.W_OK | os.X_OK):
            raise InvalidRequest(
                "the log cannot be written: this user has not the right to",
                code=Code.BAD_CONFIGURATION,
                hint="give the directory to the user of the service, or start the service as its owner",
                path=str(needed),
                user_id=os.geteuid(),
            )
