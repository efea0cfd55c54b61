"""The options of the Spark sink, parsed once and checked together.

Owns: what ``write.format("holdfast")`` accepts. Does not own: what it does (``sink_driver``, ``sink_task``).

Failure model: an option that is unknown, malformed or missing raises InvalidRequest before anything is sent. The
service's bearer token is no option, because plans print options: it comes from ``HOLDFAST_TOKEN`` in the environment of
the driver and of the executors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.errors import Code, InvalidRequest
from holdfast.spark.source.options import Mode, recognised

__all__ = ["WriteOptions", "parse_write_options"]

APPLICATION_LENGTH_MAX: Final = 64
TOKEN_LENGTH_MAX: Final = 512
_APPLICATION: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NAMES: Final = ("url", "application", "token", "transactionKey", "supersede", "checkpointLocation")
_BATCH_NAMES: Final = ("url", "application", "token", "transactionKey", "supersede")
_STREAM_NAMES: Final = ("url", "application", "transactionKey", "supersede", "checkpointLocation")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write is asked for.

    Shape: ``url`` is the service's address, not the log's. ``application`` names the writer for ever: its progress is
    kept under the key ``spark/{application}``. ``token`` names what is being written, None for a batch that is written
    anew each time. ``transaction_key`` names the column whose equal values make one transaction, None for one
    transaction a row. ``supersede`` goes on although the record shows other progress. ``checkpoint`` is Spark's own
    checkpoint, for a stream.
    """

    url: str
    application: str
    token: str | None = None
    transaction_key: str | None = None
    supersede: bool = False
    checkpoint: str | None = None


def parse_write_options(given: Mapping[str, str], mode: Mode) -> WriteOptions:
    """The options of a write. Raises: InvalidRequest naming the option, the reason and what is valid.

    >>> parse_write_options({"url": "http://127.0.0.1:8080", "application": "orders"}, Mode.BATCH).application
    'orders'
    """
    options = recognised(given, _NAMES)
    valid = _BATCH_NAMES if mode is Mode.BATCH else _STREAM_NAMES
    for name in options:
        if name not in valid:
            raise _invalid(name, f"has no effect on a {mode} write; valid options: {', '.join(valid)}")
    url = options.get("url", "").strip()
    if not url.startswith(("http://", "https://", "unix:")):
        raise _invalid("url", "is the address of a service, for example http://127.0.0.1:8080 or unix:/run/holdfast")
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise _invalid("url", "carries credentials; the token comes from HOLDFAST_TOKEN, because plans print options")
    application = options.get("application", "").strip()
    if not _APPLICATION.fullmatch(application):
        raise _invalid("application", "is required: 1 to 64 letters, digits, '.', '_' or '-' that name this writer")
    token = options.get("token")
    if token is not None and not (0 < len(token) <= TOKEN_LENGTH_MAX and token.isprintable()):
        raise _invalid("token", f"has 1 to {TOKEN_LENGTH_MAX} printable characters and names what is written")
    supersede = options.get("supersede", "false").strip().lower()
    if supersede not in ("true", "false"):
        raise _invalid("supersede", f"is {supersede!r}; valid: true, false")
    checkpoint = options.get("checkpointLocation")
    if mode is Mode.STREAM and not checkpoint:
        raise _invalid("checkpointLocation", "is required on the stream itself: its offsets name what is written")
    return WriteOptions(url, application, token, options.get("transactionKey"), supersede == "true", checkpoint)


def _invalid(option: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"option {option} {reason}", code=Code.BAD_CONFIGURATION)
