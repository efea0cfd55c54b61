"""Endpoints of a service, and which one is believed to lead.

The address of another leader is a hint: it changes where the next request goes, never what a response means. Between
two waits an operation asks each endpoint once (``retry_budget.Turns``), so two servers that name each other cause no
loop without a pause.

A leader's address comes from the log's store, and a writer there can name any address. So a client with a token follows
a hint only to an address that it was given, or that a pattern of ``TrustedHosts`` allows.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import Closed, Code, HoldfastError, InvalidRequest, OutcomeUnknown, Unavailable

_BETWEEN: Final = re.compile(r",\s*(?=https?://|unix:)")
"""A comma in the path of a socket is none between two addresses."""


_NAME: Final = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9._-]{0,251}[a-z0-9_])?", re.ASCII)
_FORMS: Final = "write NAME:PORT, *.SUFFIX:PORT or NETWORK/BITS:PORT"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Endpoint(msgspec.Struct, frozen=True, cache_hash=True):
    """One listening address. ``unix_path`` is set for a Unix socket; otherwise ``host`` and ``port`` count."""

    host: str
    port: int
    secure: bool = False
    unix_path: str | None = None

    @property
    def authority(self) -> str:
        """The Host header."""
        if self.unix_path is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        if self.unix_path is not None:
            return f"unix:{self.unix_path}"
        return f"{'https' if self.secure else 'http'}://{self.authority}"


def parse_endpoint(text: str, *, secure: bool = False) -> Endpoint:
    """The endpoint of a URL, or of ``host:port`` as leaders advertise it, which means TLS when ``secure``.

    Raises: InvalidRequest.

    >>> str(parse_endpoint("127.0.0.1:8080")), str(parse_endpoint("unix:/run/holdfast.sock"))
    ('http://127.0.0.1:8080', 'unix:/run/holdfast.sock')
    >>> str(parse_endpoint("https://log.example/"))
    'https://log.example:443'
    >>> str(parse_endpoint("bücher.example:8080"))
    'http://xn--bcher-kva.example:8080'
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path:
            raise InvalidRequest("a unix address needs a path", address=text)
        return Endpoint("localhost", 0, secure=False, unix_path=path)
    scheme = "https" if secure else "http"
    try:
        parts = urlsplit(text if "://" in text else f"{scheme}://{text}")
        port = parts.port
        # IDNA refuses what is not a host name: an empty label, one that is too long.
        host = (parts.hostname or "").encode("idna").decode("ascii")
    except ValueError as error:
        raise InvalidRequest("this is not an address", address=text) from error
    unusable = not host or not host.isprintable()
    if parts.scheme not in ("http", "https") or unusable or parts.path not in ("", "/") or parts.query:
        raise InvalidRequest(
            "this is not an address", address=text, hint="use http://host:port, https://host:port or unix:/path"
        )
    if parts.username is not None:
        raise InvalidRequest("an address must not contain credentials", hint="give the token as token=...")
    is_secure = parts.scheme == "https"
    return Endpoint(host, port if port is not None else 443 if is_secure else 80, secure=is_secure)


class TrustedHosts:
    """Patterns of addresses that may get a client's token. Without any it allows none.

    | pattern | allows |
    |---|---|
    | ``log-2.example:8080`` | this name or address with this port |
    | ``*.log.example:8080`` | each name below this one with this port |
    | ``10.0.0.0/24:8080``, ``fd00::/64:8080`` | each address of this network with this port |

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


def anywhere(_: Endpoint) -> bool:
    """What a client without a token trusts: it gives nothing away."""
    return True


def nowhere(_: Endpoint) -> bool:
    """What a client with a token trusts besides the addresses that it was given, unless its options say more."""
    return False


def _named(address: object, *, secure: bool) -> Endpoint | None:
    """What a response names as the leader's address; None where that cannot be asked."""
    if not isinstance(address, str) or not address:
        return None
    try:
        return parse_endpoint(address, secure=secure)
    except InvalidRequest:
        return None


def _advice(named: Endpoint) -> str:
    return (
        f"a response named {named} as the leader; it was not followed, because it may not get the token: give all "
        "addresses of the service, or allow this one by trusted_hosts"
    )


class ClientRoute:
    """The configured endpoints in turn, and the leader that one of them named. Every operation of a client shares it.
    Threads may share it: each method changes what others read in one assignment."""

    def __init__(self, configured: tuple[Endpoint, ...], trusts: Callable[[Endpoint], bool] = nowhere) -> None:
        """``trusts``: whether an address that was not given, and that a response names, may be asked."""
        if not configured:
            raise InvalidRequest("at least one address is needed")
        self.configured = configured
        self._trusts = trusts
        self.not_followed: Endpoint | None = None
        """A leader that was named since the last success, and that may not get the token."""
        self._turn = 0
        self.current = configured[0]
        self.silent: frozenset[Endpoint] = frozenset()
        """Endpoints that gave no sign of life when they were asked, as ``lookout.Lookout`` found. No hint to one of
        them is followed, and they come last in the turn."""

    def failed(self, endpoint: Endpoint) -> None:
        """``endpoint`` gave no usable response: the next operation asks another configured endpoint. Where all others
        are silent it is asked again, unless it is silent too."""
        if endpoint != self.current:
            return
        count = len(self.configured)
        turns = [(self._turn + step) % count for step in range(1, count + 1)]
        others = [turn for turn in turns if self.configured[turn] != endpoint]
        audible = [turn for turn in (*others, *turns) if self.configured[turn] not in self.silent]
        self._turn = (audible or others or turns)[0]
        self.current = self.configured[self._turn]

    def follow(self, by: Endpoint, address: str | None) -> bool:
        """Follow the leader's address in a response. False when it is missing, unusable, silent, ``by`` itself, or
        may not get the token. An endpoint with TLS cannot redirect to one without."""
        leader = _named(address, secure=by.secure)
        if leader is None or leader == by or leader in self.silent or (by.secure and not leader.secure):
            return False
        if not self._allows(leader):
            self.not_followed = leader
            return False
        self.current = leader
        return True

    def _allows(self, named: Endpoint) -> bool:
        return named in self.configured or self._trusts(named)

    def succeeded(self) -> None:
        """An operation succeeded: what a response named before is of no interest any more."""
        self.not_followed = None

    @property
    def advice(self) -> str:
        """The setting to change where a leader was named and not followed; else empty."""
        return "" if self.not_followed is None else _advice(self.not_followed)

    def explain(self, error: HoldfastError) -> None:
        """Add to the hint of an error, which ends an operation, that a leader was named and not followed."""
        if not isinstance(error, Unavailable | OutcomeUnknown | Closed):
            return
        leader = self.not_followed
        if leader is None:  # another operation, which any process answers, may have succeeded since
            leader = _named(error.fields.get("leader_address"), secure=self.current.secure)
            if leader is None or self._allows(leader):
                return
        if str(leader) not in error.hint:
            error.hint = f"{error.hint}; {_advice(leader)}" if error.hint else _advice(leader)


class UnusableEndpoints:
    """Endpoints that one operation found unusable until a configuration is changed."""

    def __init__(self, route: ClientRoute) -> None:
        self._route = route
        self._problems: dict[Endpoint, HoldfastError] = {}

    def met(self, problem: HoldfastError, *endpoints: Endpoint | None) -> bool:
        """These endpoints are unusable. True when no configured endpoint is left."""
        self._problems |= {endpoint: problem for endpoint in endpoints if endpoint is not None}
        return self._problems.keys() >= set(self._route.configured)

    def heard(self, endpoint: Endpoint) -> None:
        """It has responded, so it is usable."""
        self._problems.pop(endpoint, None)

    def forget(self) -> None:
        """Forget every problem."""
        self._problems.clear()

    def elsewhere(self, asked: Endpoint) -> str | None:
        """The problem of another endpoint than ``asked``, if any, for people."""
        return next((problem.statement() for endpoint, problem in self._problems.items() if endpoint != asked), None)


def addresses_of(url: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses of a service: a sequence of them, or one text with commas.

    >>> addresses_of("http://a:1, https://b:2"), addresses_of("unix:/run/a,b"), addresses_of(["http://a:1"])
    (('http://a:1', 'https://b:2'), ('unix:/run/a,b',), ('http://a:1',))
    """
    return tuple(_BETWEEN.split(url.strip())) if isinstance(url, str) else tuple(url)


def routes_of(url: str | Sequence[str], trusts: Callable[[Endpoint], bool] = nowhere) -> ClientRoute:
    """The endpoints of a client's configuration. Raises: InvalidRequest."""
    return ClientRoute(tuple(map(parse_endpoint, addresses_of(url))), trusts)
