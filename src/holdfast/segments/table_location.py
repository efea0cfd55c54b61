"""From the URL of a table to deltalake's address of it, and to the object store that holds its files.

A table may be where a log may be: ``file:///path``, ``s3://bucket/prefix?region=..&endpoint=..``, ``gs://..``,
``az://..``. The result contains no secret: plans and job descriptions may show it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from holdfast.errors import Code, CorruptData, InvalidRequest, Unavailable
from holdfast.files.file_urls import path_of
from holdfast.objects.directory.store import DirectoryStore, DurableDirectory
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectReader, ObjectStore, require_key
from holdfast.values import GivenTwice, pairs_once

UPLOAD_TIMEOUT_MS: Final = 120_000
"""A table's file is up to a few hundred megabytes, in one request, so that only whole files are visible."""
CONNECTIONS_MAX: Final = 8

_S3_OPTIONS: Final[Mapping[str, str]] = {
    "region": "AWS_REGION",
    "endpoint": "AWS_ENDPOINT_URL",
    "virtual_hosted_style": "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
}

_NOT_IN_DELTA: Final = re.compile(r"%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f\\\[\]^|]")
"""What deltalake cannot have in a path: it decodes a percent sequence once more and takes a backslash for a slash when
it reads its log, ends on the other marks, and refuses control characters."""

_MISSING: Final = re.compile(r"\bnot found\b|no such file|found gap|\bNoSuchKey\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableLocation:
    """The location of a table: our ``url``, and deltalake's ``uri`` and ``options``."""

    url: str
    uri: str
    options: Mapping[str, str]


def table_location(url: str) -> TableLocation:
    """The location that ``url`` names, which deltalake and our store find alike. Raises: InvalidRequest.

    >>> table_location("s3://lake/latest?region=eu-central-1").uri
    's3://lake/latest'
    """
    parts = urlsplit(url)
    try:
        settings = pairs_once(parse_qsl(parts.query, keep_blank_values=True))
    except GivenTwice as error:
        raise InvalidRequest(f"the URL of a table cannot be read: {error}", code=Code.BAD_CONFIGURATION) from None
    if parts.password is not None:
        raise InvalidRequest(
            "the URL of a table carries a password", code=Code.BAD_CONFIGURATION, hint="credentials: the environment"
        )
    match parts.scheme.lower():
        case "file":
            return TableLocation(url, _directory(path_of(url)), {})
        case "s3" | "gs" | "az" if parts.netloc:
            _require_prefix(parts.path.strip("/"))
            return _in_cloud(url, parts, settings)
        case _:
            raise InvalidRequest(
                "not the URL of a table",
                code=Code.BAD_CONFIGURATION,
                hint="use file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix",
                url=url.partition("?")[0],
            )


def _in_cloud(url: str, parts: SplitResult, settings: Mapping[str, str]) -> TableLocation:
    uri = f"{parts.scheme.lower()}://{parts.netloc}{parts.path}".rstrip("/")
    match parts.scheme.lower():
        case "s3":
            options = {_S3_OPTIONS[name]: value for name, value in settings.items() if name in _S3_OPTIONS}
            endpoint = settings.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
            if endpoint is not None and endpoint.startswith("http://"):
                options["AWS_ALLOW_HTTP"] = "true"
            # The store itself refuses the second of two commits with one number.
            options["AWS_CONDITIONAL_PUT"] = "etag"
            return TableLocation(url, uri, options)
        case "az" if "account" in settings:
            return TableLocation(url, uri, {"AZURE_STORAGE_ACCOUNT_NAME": settings["account"]})
        case _:
            return TableLocation(url, uri, {})


def _directory(path: Path) -> str:
    """The directory as deltalake takes it, which resolves links. Raises: InvalidRequest."""
    place = os.path.normpath(path)
    if (wrong := _NOT_IN_DELTA.search(os.path.realpath(place))) is not None:
        raise _unfit(wrong[0], os.path.realpath(place))
    return place


def _require_prefix(prefix: str) -> None:
    """Raise InvalidRequest unless our store and deltalake read the prefix alike."""
    if prefix:
        require_key(prefix)
    if (wrong := _NOT_IN_DELTA.search(prefix)) is not None:
        raise _unfit(wrong[0], prefix)


def _unfit(part: str, path: str) -> InvalidRequest:
    return InvalidRequest(
        "a table cannot be here: the library for Delta tables would look for its log in another place",
        code=Code.BAD_CONFIGURATION,
        hint="choose a path without % before two hexadecimal digits, without \\ [ ] ^ | and control characters",
        found=part,
        path=path,
    )


def table_failure(error: Exception, uri: str, what: str) -> CorruptData | Unavailable:
    """What deltalake's ``error`` means: a file of the table's log is missing, which no retry changes, or anything else.

    deltalake reports both by one class, so its text decides.
    """
    cause = " ".join(str(error).split())[:300]
    if isinstance(error, FileNotFoundError) or _MISSING.search(cause) is not None:
        return CorruptData(
            "a file of the table is missing",
            hint="restore the file, or make the table again in another place",
            url=uri,
            cause=cause,
        )
    return Unavailable(what, url=uri, cause=cause)


def open_table_store(url: str) -> ObjectStore:
    """The object store of the table at ``url``, ready on the running event loop; an absent directory is made. Raises:
    InvalidRequest, Unavailable."""
    if url.partition(":")[0].lower() == "file":
        root = Path(table_location(url).uri)
        DirectoryStore.open(root, create_missing=True)
        # A task moves one file at a time.
        return DirectoryStore(root, writers=1, readers=1)
    return open_store(url, request_timeout_ms=UPLOAD_TIMEOUT_MS, connections_max=CONNECTIONS_MAX)


def open_table_reader(url: str) -> ObjectReader:
    """The same for reads alone: a directory is read in this process, and not made. Raises: as ``open_table_store``."""
    if url.partition(":")[0].lower() == "file":
        return DurableDirectory(Path(table_location(url).uri))
    return open_table_store(url)
