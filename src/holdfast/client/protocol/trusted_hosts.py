"""Which addresses may get a client's token, besides those that the client was given.

An address that a service names as its leader comes from the log's store, and a writer there can name any address.
So a client with a token follows such an address only if it was given it, or a pattern allows it.

| pattern | allows |
|---|---|
| ``log-2.example:8080`` | this name or address with this port |
| ``*.log.example:8080`` | each name below this one with this port |
| ``10.0.0.0/24:8080``, ``fd00::/64:8080`` | each address of this network with this port |
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from holdfast.client.protocol.endpoint import Endpoint
from holdfast.errors import Code, InvalidRequest

_NAME: Final = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9._-]{0,251}[a-z0-9_])?", re.ASCII)
_FORMS: Final = "write NAME:PORT, *.SUFFIX:PORT or NETWORK/BITS:PORT"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedHosts:
    """Patterns of addresses. Without any it allows none.

    >>> trusted = TrustedHosts(["*.log.example:8080", "10.0.0.0/24:8080", "[::1]:9000"])
    >>> [trusted.allows(Endpoint(host, 8080)) for host in ("a.log.example", "log.example", "10.0.0.7", "10.0.1.7")]
    [True, False, True, False]
    >>> trusted.allows(Endpoint("::1", 9000)), trusted.allows(Endpoint("10.0.0.7", 8081))
    (True, False)
    """

    __slots__ = ("_names", "_networks", "_suffixes")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """Raises: InvalidRequest (``bad_configuration``) naming the pattern."""
        self._names: set[tuple[str, int]] = set()
        self._suffixes: list[tuple[str, int]] = []
        self._networks: list[tuple[Network, int]] = []
        for pattern in patterns:
            self._add(pattern)

    def _add(self, pattern: str) -> None:
        host, _, digits = pattern.strip().lower().rpartition(":")
        if not (digits.isascii() and digits.isdigit() and 0 < int(digits) < 65_536):
            raise _refused(pattern)
        port, bare = int(digits), host.replace("[", "").replace("]", "")
        network = _network(bare)
        if network is not None:
            self._networks.append((network, port))
        elif not _NAME.fullmatch(bare):
            raise _refused(pattern)
        elif bare.startswith("*."):
            self._suffixes.append((bare[1:], port))
        else:
            self._names.add((bare, port))

    def allows(self, endpoint: Endpoint) -> bool:
        """Whether a pattern allows this address. A Unix socket is never named by another process."""
        if endpoint.unix_path is not None:
            return False
        host, port = endpoint.host.lower(), endpoint.port
        if (host, port) in self._names or any(host.endswith(end) and port == own for end, own in self._suffixes):
            return True
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        return any(address in network and port == own for network, own in self._networks)


def _network(text: str) -> Network | None:
    """A network, or one address; None for a name. Raises: nothing."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def _refused(pattern: str) -> InvalidRequest:
    problem = "this is not a pattern of trusted hosts"
    return InvalidRequest(problem, code=Code.BAD_CONFIGURATION, hint=_FORMS, pattern=pattern)
