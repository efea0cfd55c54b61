"""The clients of a write."""

from __future__ import annotations

from holdfast.client import ClientOptions
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.service_client import ServiceClient
from holdfast.spark.sink.task import CHUNK_BYTES, CHUNK_TRANSACTIONS


def open_client(options: WriteOptions) -> ServiceClient:
    """A client of the service; its bearer token is this machine's environment's. Raises: InvalidRequest."""
    bounds = ClientOptions(commits_per_request_max=CHUNK_TRANSACTIONS, commits_bytes_max=CHUNK_BYTES)
    return ServiceClient(options.url, bounds)
