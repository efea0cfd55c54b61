"""The endpoint behind the URL of an object store: the place whose promises the log relies on.

| scheme | endpoint |
|---|---|
| ``s3`` | ``?endpoint=``, else the first of ``S3_VARIABLES`` that is set, else Amazon's of the region |
| ``az`` | ``?endpoint=``, else the first of ``AZURE_VARIABLES`` that is set, else that of the account |
| ``gs`` | Google's |
| ``file``, ``memory`` | the URL itself: no gateway is between |
| ``etcd`` | its members, without the prefix |
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

GOOGLE: Final = "https://storage.googleapis.com"
S3_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
AZURE_VARIABLES: Final = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
REGION: Final = "us-east-1"


def endpoint_of(url: str, environment: Mapping[str, str]) -> str:
    """The endpoint of a store, without secrets.

    >>> endpoint_of("s3://bucket/log?region=eu-west-1", {})
    'https://s3.eu-west-1.amazonaws.com'
    >>> endpoint_of("s3://bucket/log", {"AWS_ENDPOINT_URL": "http://rgw.example:8000/"})
    'http://rgw.example:8000'
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    match parts.scheme.lower():
        case "s3":
            endpoint = options.get("endpoint") or s3_endpoint(environment)
            region = options.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
            return _plain(endpoint or f"https://s3.{region or REGION}.amazonaws.com")
        case "az":
            endpoint = options.get("endpoint") or _first(environment, AZURE_VARIABLES)
            account = options.get("account") or environment.get("AZURE_STORAGE_ACCOUNT_NAME", "")
            return _plain(endpoint or f"https://{account}.blob.core.windows.net")
        case "gs":
            return GOOGLE
        case "file":
            return f"file://{os.path.abspath(unquote(parts.path))}"
        case "etcd":
            return f"etcd://{parts.netloc.lower()}"
        case _:
            return url


def is_shared(url: str) -> bool:
    """Whether gateways may be between this process and the store: not for a directory, etcd, or this process's memory.

    >>> is_shared("s3://bucket/log"), is_shared("file:///var/lib/log")
    (True, False)
    """
    return urlsplit(url).scheme.lower() in ("s3", "az", "gs")


def s3_endpoint(environment: Mapping[str, str]) -> str | None:
    """The endpoint that the environment names for S3; None without one."""
    return _first(environment, S3_VARIABLES)


def addresses_of(endpoint: str) -> int:
    """How many addresses the host of an endpoint has now: 1 for an address, 0 where it does not resolve or there is no
    host. Blocks while it asks the resolver."""
    parts = urlsplit(endpoint)
    if not parts.hostname or parts.scheme not in ("http", "https"):
        return 0
    try:
        ipaddress.ip_address(parts.hostname)
    except ValueError:
        pass
    else:
        return 1
    try:
        rows = socket.getaddrinfo(parts.hostname, parts.port or parts.scheme, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return 0
    return len({row[4][0] for row in rows})


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := environment.get(name))), None)


def _plain(endpoint: str) -> str:
    """Without a user, a query and a final slash."""
    parts = urlsplit(endpoint)
    return f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}{parts.path.rstrip('/')}"
