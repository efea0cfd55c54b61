"""Where a store on etcd is, and the credentials: the URL, the environment and files.

``etcd://host:port,host:port,host:port/prefix``. A port that is left out is 2379. The variables are those of
``etcdctl``, and one more for a password in a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast.errors import Code, InvalidRequest
from holdfast.objects.port import require_key

PORT: Final = 2379
FORM: Final = "etcd://host:port,host:port,host:port/prefix"
_ENDPOINT: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """The endpoints as HOST:PORT, in the order of the URL, and the prefix of all keys."""

    endpoints: tuple[str, ...]
    prefix: str

    @property
    def url(self) -> str:
        """The URL in its full form."""
        return f"etcd://{','.join(self.endpoints)}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class EtcdCredentials:
    """How a process proves who it is, and checks the members: PEM bytes, and a user. ``authority`` None: no TLS."""

    authority: bytes | None = None
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    user: str | None = None
    password: str = field(default="", repr=False)


def parse_url(url: str) -> EtcdAddress:
    """The address in a URL. Raises: InvalidRequest.

    >>> parse_url("etcd://a.example:2379,b.example/orders")
    EtcdAddress(endpoints=('a.example:2379', 'b.example:2379'), prefix='orders')
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _bad(f"use {FORM}") from None
    prefix = parts.path.removeprefix("/").removesuffix("/")
    if "@" in parts.netloc:
        raise _bad("a user and a password come from the environment, never from the URL")
    if parts.query or parts.fragment or not prefix:
        raise _bad(f"use {FORM}")
    endpoints: list[str] = []
    for text in parts.netloc.split(","):
        match = _ENDPOINT.fullmatch(text)
        if match is None or not 0 < int(match[2] or PORT) < 65_536:
            raise _bad(f"use {FORM}")
        endpoints.append(f"{match[1].lower()}:{int(match[2] or PORT)}")
    if len(set(endpoints)) != len(endpoints):
        raise _bad("name each endpoint once")
    return EtcdAddress(tuple(endpoints), require_key(prefix))


def read_credentials(environment: Mapping[str, str]) -> EtcdCredentials:
    """What the environment and its files say. Blocks while it reads the files. Raises: InvalidRequest."""
    user, colon, password = environment.get("ETCDCTL_USER", "").partition(":")
    if not colon:
        password = environment.get("ETCDCTL_PASSWORD", "")
    secret = _file(environment, "HOLDFAST_ETCD_PASSWORD_FILE")
    if secret is not None:
        password = secret.decode("utf-8", "replace").strip("\r\n")
    if user and not password:
        raise _bad("set ETCDCTL_PASSWORD or HOLDFAST_ETCD_PASSWORD_FILE for the user in ETCDCTL_USER")
    authority = _file(environment, "ETCDCTL_CACERT")
    certificate, key = _file(environment, "ETCDCTL_CERT"), _file(environment, "ETCDCTL_KEY")
    if (certificate is None) != (key is None):
        raise _bad("set ETCDCTL_CERT and ETCDCTL_KEY together")
    if certificate is not None and authority is None:
        raise _bad("set ETCDCTL_CACERT, too: without it the connections have no TLS")
    return EtcdCredentials(authority, certificate, key, user or None, password)


def _file(environment: Mapping[str, str], name: str) -> bytes | None:
    path = environment.get(name)
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"the file that {name} names cannot be read", code=Code.BAD_CONFIGURATION, path=path, cause=str(error)
        ) from error


def _bad(hint: str) -> InvalidRequest:
    # The URL may contain a secret, so it is not repeated.
    return InvalidRequest("not a store on etcd", code=Code.BAD_CONFIGURATION, hint=hint)
