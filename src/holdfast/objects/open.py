"""From a URL to an object store. A wrong URL raises ``InvalidRequest`` before anything is opened.

Forms::

    file:///absolute/path        file:relative/path           a local directory
    memory:                      memory:name                  this process's memory; one name, one store
    s3://bucket/prefix?region=..&endpoint=..                  S3 and compatible services
    az://container/prefix                                     Azure Blob Storage
    gs://bucket/prefix                                        Google Cloud Storage: opens, and is not tested
    etcd://host:port,host:port,host:port/prefix               etcd, on its members' disks
"""

from __future__ import annotations

from holdfast.errors import Code, InvalidRequest
from holdfast.files.file_urls import path_of
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import ObjectReader, ObjectStore
from holdfast.objects.retrying import READING, RetryingReader, RetryingStore, RetryPolicy

_memory: dict[str, MemoryObjects] = {}


def open_store(
    url: str,
    *,
    create_missing: bool = False,
    request_timeout_ms: int = 10_000,
    connections_max: int = 64,
    retry: RetryPolicy | None = READING,
) -> ObjectStore:
    """The store that ``url`` names, ready for use on the running event loop.

    ``create_missing`` makes an absent directory; otherwise an absent one is an empty, unmounted-looking store and
    raises. ``request_timeout_ms`` and ``connections_max`` bound the requests to a cloud store; with ``connections_max``
    0 each of its requests has a connection of its own, and each to etcd begins at another member. ``retry``: how reads,
    listings and deletes are repeated; None leaves that to the caller.

    Raises: InvalidRequest, NotFound, Unavailable.
    """
    scheme, _, rest = url.partition(":")
    store: ObjectStore
    match scheme.lower():
        case "memory":
            name = rest.strip("/")
            return MemoryStore(_memory.setdefault(name, MemoryObjects()), url=f"memory:{name}")
        case "file":
            from holdfast.objects.directory.store import DirectoryStore

            store = DirectoryStore.open(path_of(url), create_missing=create_missing)
        case "s3" | "gs" | "az":
            from holdfast.objects.cloud import CloudStore

            store = CloudStore.open(url, request_timeout_ms=request_timeout_ms, connections_max=connections_max)
        case "etcd":
            from holdfast.objects.etcd.store import EtcdStore

            store = EtcdStore.open(url, spread=connections_max == 0)
        case _:
            raise InvalidRequest(
                "not the URL of an object store",
                code=Code.BAD_CONFIGURATION,
                hint="use file:///path, s3://bucket/prefix, az://container/prefix, etcd://host:port/log, memory:name",
                url=url,
            )
    return store if retry is None else RetryingStore(store, retry)


def open_durable_reader(
    url: str, *, request_timeout_ms: int = 10_000, retry: RetryPolicy | None = READING
) -> ObjectReader:
    """A reader for objects that another process made durable; it makes nothing durable itself. ``retry``: as for
    ``open_store``. Raises: InvalidRequest, also for ``memory:``, which no other process can read."""
    if url.partition(":")[0].lower() == "file":
        from holdfast.objects.directory.store import DurableDirectory

        reader = DurableDirectory(path_of(url))
        return reader if retry is None else RetryingReader(reader, retry)
    if url.partition(":")[0].lower() == "memory":
        raise InvalidRequest("the memory of a process has no other reader", code=Code.BAD_CONFIGURATION, url=url)
    return open_store(url, request_timeout_ms=request_timeout_ms, connections_max=8, retry=retry)
