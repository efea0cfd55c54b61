"""Object stores in the cloud through obstore: S3 and compatible services, and Azure Blob Storage.

A create without a clear success or refusal is ``Unknown``. The client's own retries are off, because one that repeats a
create turns its own successful write into a refusal. Credentials come from the environment and the provider's own
chain, never from the URL.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.objects.endpoint import s3_endpoint
from holdfast.objects.port import (
    CREATED,
    CreateAnswer,
    Listed,
    Refused,
    StoreDenies,
    Unknown,
    WithoutLeftovers,
    require_key,
)
from holdfast.values import GivenTwice, pairs_once

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, RetryConfig, S3Config

SETTINGS: Final[Mapping[str, frozenset[str]]] = {
    "s3": frozenset({"region", "endpoint", "virtual_hosted_style"}),
    "gs": frozenset(),
    "az": frozenset({"account", "endpoint"}),
}
EXPRESS_SUFFIX: Final = "--x-s3"
PAGE: Final = 1000
DELETES_AT_ONCE: Final = 16
BULK_TRIES: Final = 3
"""How often in a row a removal of many objects may fail until each object has a request of its own."""
CONNECT_TIMEOUT_MS_MAX: Final = 5_000.0
DETAIL_LENGTH_MAX: Final = 400
_STATUS: Final = re.compile(r"status code: (\d{3})|HTTP status (?:client|server) error \((\d{3})|status (\d{3})")

NO_RETRIES: Final[RetryConfig] = {"max_retries": 0, "retry_timeout": timedelta(seconds=0)}


def answer_of_failed_create(error: Exception, scheme: str) -> Refused | Unknown:
    """The result of a create that raised ``error``.

    obstore raises one class for 412 (taken) and 409 (busy, ask again, on S3); only its text distinguishes them. Azure
    says 409 for taken. A text without a status is an uncertain refusal: the caller reads back either way.
    """
    text = _detail(error)
    if not isinstance(error, AlreadyExistsError):
        return Unknown(text)
    match = _STATUS.search(str(error))
    status = None if match is None else int(next(group for group in match.groups() if group))
    return Refused(certain=status == 412 or (status == 409 and scheme == "az"))


def _detail(error: BaseException) -> str:
    """One line of bounded length about a failure: obstore's messages are long, and their debug part repeats them."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = " ".join(str(error).split("Debug source")[0].split())
    return (text or type(error).__name__)[:DETAIL_LENGTH_MAX]


class CloudStore(WithoutLeftovers):
    """The port on one bucket and prefix."""

    def __init__(
        self, store: S3Store | GCSStore | AzureStore, url: str, scheme: str, request_timeout_ms: float
    ) -> None:
        self._store = store
        self.url = url
        self._scheme = scheme
        # The client's own timeout fires first, with a better message; this one bounds what the client does not bound.
        self._timeout_seconds = request_timeout_ms / 1000 + 1.0
        self._refused_bulk_deletes = 0

    @classmethod
    def open(cls, url: str, *, request_timeout_ms: float, connections_max: int) -> CloudStore:
        """The store that ``url`` names. Nothing is sent yet. Each new connection goes to any address of the host.

        ``connections_max``: how many idle connections are kept; with 0 each request has one of its own.
        Raises: InvalidRequest.
        """
        parts = urlsplit(url)
        scheme, bucket, prefix = parts.scheme.lower(), parts.netloc, parts.path.strip("/")
        if not bucket or "@" in bucket or ":" in bucket or parts.fragment:
            raise _bad(url, f"use {scheme}://bucket/prefix, without credentials: those come from the environment")
        if prefix:
            require_key(prefix)
        options = _options(url, scheme, parts.query)
        if scheme == "s3" and bucket.endswith(EXPRESS_SUFFIX):
            raise InvalidRequest(
                "S3 Express directory buckets do not list in order, so a log in them cannot be recovered",
                code=Code.STORE_UNFIT,
                hint="use a general purpose bucket",
                url=f"{scheme}://{bucket}",
            )
        if scheme == "s3" and "endpoint" not in options and (default := s3_endpoint(os.environ)) is not None:
            options["endpoint"] = default
        endpoint = options.get("endpoint")
        client: ClientConfig = {
            "timeout": timedelta(milliseconds=request_timeout_ms),
            "connect_timeout": timedelta(milliseconds=min(request_timeout_ms, CONNECT_TIMEOUT_MS_MAX)),
            "pool_max_idle_per_host": str(connections_max),
            "randomize_addresses": True,
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
        }
        store = _backend(scheme, bucket, prefix, options, client)
        return cls(store, f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else ""), scheme, request_timeout_ms)

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """As the port says."""
        require_key(key)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await obstore.put_async(self._store, key, data, mode="create", use_multipart=False)
        except (BaseError, OSError) as error:
            return answer_of_failed_create(error, self._scheme)
        return CREATED

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says."""
        require_key(key)
        if length == 0:
            # HTTP has no empty range: read one byte to learn whether the object exists.
            await self.read(key, start=0, length=1)
            return b""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                if start == 0 and length is None:
                    response = await obstore.get_async(self._store, key)
                    return bytes(await response.bytes_async())
                return await self._read_part(key, start, length)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                raise self._unavailable("read", error, key) from error
            raise NotFound("there is no such object", key=key) from error
        except (BaseError, OSError) as error:
            raise self._unavailable("read", error, key) from error

    async def _read_part(self, key: str, start: int, length: int | None) -> bytes:
        """A range. The store refuses one that starts at or after the end, for which the port returns no bytes."""
        try:
            if length is None:
                response = await obstore.get_async(self._store, key, options={"range": {"offset": start}})
                return bytes(await response.bytes_async())
            return bytes(await obstore.get_range_async(self._store, key, start=start, length=length))
        except FileNotFoundError:
            raise
        except (BaseError, OSError):
            size = (await obstore.head_async(self._store, key))["size"]
            if start >= size:
                return b""
            raise

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """As the port says. Cost: a request per 1,000 keys; a prefix that ends inside a name reads its whole folder."""
        folder = prefix.rpartition("/")[0]
        rows: builtins.list[Listed] = []
        try:
            async with asyncio.timeout(self._timeout_seconds * (1 + limit // PAGE)):
                stream = obstore.list(
                    self._store, folder or None, offset=after or None, chunk_size=max(1, min(limit, PAGE))
                )
                async for page in stream:
                    for row in page:
                        key = row["path"]
                        if key.startswith(prefix) and key > after:
                            rows.append(Listed(key, row["size"], int(row["last_modified"].timestamp() * 1000)))
                    if len(rows) >= limit:
                        break
        except (BaseError, OSError) as error:
            raise self._unavailable("list", error, prefix) from error
        return rows[:limit]

    async def delete(self, *keys: str) -> None:
        """As the port says. Cost: a request per 1,000 keys; one for each key where the store has no such request."""
        for key in keys:
            require_key(key)
        if len(keys) > 1 and self._refused_bulk_deletes < BULK_TRIES:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    await obstore.delete_async(self._store, keys)
            except (BaseError, OSError):
                # Some stores have no such request, others fail it for an absent key. Then each key has its own request.
                self._refused_bulk_deletes += 1
            else:
                self._refused_bulk_deletes = 0
                return
        for first in range(0, len(keys), DELETES_AT_ONCE):
            await asyncio.gather(*(self._delete(key) for key in keys[first : first + DELETES_AT_ONCE]))

    async def _delete(self, key: str) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await obstore.delete_async(self._store, key)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._unavailable("delete", error, key) from error
        except (BaseError, OSError) as error:
            raise self._unavailable("delete", error, key) from error

    async def close(self) -> None:
        """As the port says. The client's connections end with it."""

    def _unavailable(self, what: str, error: Exception, key: str) -> Unavailable:
        denied = isinstance(error, PermissionDeniedError | UnauthenticatedError | FileNotFoundError)
        kind = StoreDenies if denied else Unavailable
        return kind(f"the object store did not {what}", url=self.url, key=key, cause=_detail(error))


def _bad(url: str, hint: str) -> InvalidRequest:
    # The URL may contain a secret, so it is not repeated whole.
    return InvalidRequest(
        "not the URL of an object store", code=Code.BAD_CONFIGURATION, hint=hint, scheme=url.partition(":")[0]
    )


def _options(url: str, scheme: str, query: str) -> dict[str, str]:
    try:
        options = pairs_once(parse_qsl(query, keep_blank_values=True))
    except GivenTwice as error:
        raise _bad(url, f"the setting {error}") from None
    for name in options:
        if name not in SETTINGS[scheme]:
            names = ", ".join(sorted(SETTINGS[scheme])) or "none"
            raise _bad(url, f"unknown setting {name}; known for {scheme}: {names}")
    return options


def _backend(
    scheme: str, bucket: str, prefix: str, options: Mapping[str, str], client: ClientConfig
) -> S3Store | GCSStore | AzureStore:
    within = prefix or None
    try:
        if scheme == "gs":
            return GCSStore(bucket, prefix=within, client_options=client, retry_config=NO_RETRIES)
        if scheme == "az":
            names = {"account": "account_name", "endpoint": "endpoint"}
            azure = cast("AzureConfig", {names[name]: value for name, value in options.items()})
            return AzureStore(bucket, prefix=within, config=azure, client_options=client, retry_config=NO_RETRIES)
        s3 = cast("S3Config", {name: options[name] for name in ("region", "endpoint") if name in options})
        if "virtual_hosted_style" in options:
            s3["virtual_hosted_style_request"] = options["virtual_hosted_style"].lower() in ("1", "true", "yes")
        return S3Store(bucket, prefix=within, config=s3, client_options=client, retry_config=NO_RETRIES)
    except BaseError as error:
        raise InvalidRequest(
            "the object store cannot be opened with these settings",
            code=Code.BAD_CONFIGURATION,
            bucket=bucket,
            cause=_detail(error),
        ) from error
