"""Which log the stores and the view next to a log belong to, and what an earlier log left there.

The stores' directory has a file ``log.json``: ``{"format": 1, "log_id": "32 hexadecimal digits"}``. It is replaced
atomically. Stores without the file belong to the log that opens them first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import Code, CorruptData, InvalidRequest, Unavailable
from holdfast.files.durable_directory import replace_durably
from holdfast.files.file_urls import path_of
from holdfast.objects.port import ObjectStore
from holdfast.objects.probe.results import list_meta

BINDING_NAME: Final = "log.json"
BINDING_BYTES_MAX: Final = 4_096
SHOWN_MAX: Final = 5


class _Binding(msgspec.Struct, frozen=True):
    log_id: str
    format: Literal[1] = 1


def bound_log(directory: str) -> str | None:
    """The log that the stores in ``directory`` belong to; None without the file. Raises: CorruptData, Unavailable."""
    path = os.path.join(directory, BINDING_NAME)
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(BINDING_BYTES_MAX), type=_Binding).log_id
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Unavailable(
            f"the file that names the log of the stores cannot be read: {error.strerror or error}",
            code=Code.STORE_UNFIT,
            path=path,
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(
            "the file does not say which log the stores belong to",
            path=path,
            hint="remove it: the stores then belong to the log that opens them next",
        ) from error


def bind_stores(directory: str, log_id: str) -> None:
    """From now on, also after a power cut, the stores in ``directory`` belong to this log. Raises: OSError."""
    replace_durably(os.path.join(directory, BINDING_NAME), msgspec.json.encode(_Binding(log_id)))


def require_bound(directory: str, log_id: str) -> None:
    """Return unless the stores in ``directory`` belong to another log. Raises: InvalidRequest (log_mismatch), as
    ``bound_log``."""
    bound = bound_log(directory)
    if bound not in (None, log_id):
        raise InvalidRequest(
            "the stores belong to another log",
            code=Code.LOG_MISMATCH,
            hint="the log was replaced: set stores.directory to another directory; or start once with --init "
            "--force-new, which keeps these stores and binds them to the present log",
            directory=directory,
            stores_log_id=bound,
            log_id=log_id,
        )


def view_directory(log_url: str) -> Path | None:
    """Where the service of a ``file:`` log keeps its view; None for other logs."""
    return path_of(log_url) / "view" if urlsplit(log_url).scheme == "file" else None


async def remains_around(store: ObjectStore, log_url: str, stores_directory: str | None) -> list[str]:
    """What an earlier log left in the places of an empty one, for people. Raises: as ``bound_log``, and Unavailable."""
    remains: list[str] = []
    if stores_directory is not None and (bound := bound_log(stores_directory)) is not None:
        remains.append(f"stores of log {bound} in {stores_directory}")
    views = view_directory(log_url)
    if views is not None and views.is_dir():
        names = sorted(path.stem for path in views.glob("*.sqlite"))
        remains += [f"the view of log {name} in {views}" for name in names[:SHOWN_MAX]]
    remains += [f"the object {row.key}" for row in await list_meta(store, limit=SHOWN_MAX)]
    return remains


def refuse_remains(remains: list[str]) -> None:
    """Return when nothing was found. Raises: InvalidRequest (log_mismatch) naming it all."""
    if remains:
        raise InvalidRequest(
            f"a new log cannot begin here, because another log left something: {'; '.join(remains)}",
            code=Code.LOG_MISMATCH,
            hint="if that log should be here, find out where its objects under batches/ went; otherwise remove "
            "what is left of it, or give --force-new: then the stores are kept and belong to the new log",
        )
