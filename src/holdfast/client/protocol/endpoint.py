"""Where a service listens, and which of several places is believed to lead.

Text forms: ``http://host:port``, ``https://host:port``, ``unix:/path``, and ``host:port`` as leaders advertise it
(plain or TLS as the configured places are). Failure model: a leader's word about another leader is a hint. It changes
where the next request goes, never what an answer means; one operation follows such hints once, so two servers that
name each other cannot send a client round for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import HoldfastError, InvalidRequest


class Endpoint(msgspec.Struct, frozen=True, cache_hash=True):
    """One listening address. ``unix_path`` is set for a Unix socket; otherwise ``host`` and ``port`` count."""

    host: str
    port: int
    secure: bool = False
    unix_path: str | None = None

    @property
    def authority(self) -> str:
        """What the Host header says."""
        if self.unix_path is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        if self.unix_path is not None:
            return f"unix:{self.unix_path}"
        return f"{'https' if self.secure else 'http'}://{self.authority}"


def parse_endpoint(text: str, *, secure: bool = False) -> Endpoint:
    """The endpoint a text names. ``secure`` is what an address without a scheme means.

    Raises: InvalidRequest.

    >>> str(parse_endpoint("127.0.0.1:8080")), str(parse_endpoint("unix:/run/holdfast.sock"))
    ('http://127.0.0.1:8080', 'unix:/run/holdfast.sock')
    >>> str(parse_endpoint("https://log.example/"))
    'https://log.example:443'
    >>> str(parse_endpoint("bücher.example:8080"))
    'http://xn--bcher-kva.example:8080'
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = path.removeprefix("//")
        if not path:
            raise InvalidRequest("a unix address needs a path", address=text)
        return Endpoint("localhost", 0, secure=False, unix_path=path)
    scheme = "https" if secure else "http"
    try:
        parts = urlsplit(text if "://" in text else f"{scheme}://{text}")
        port = parts.port
        # As the look-up of names writes it: what it refuses (an empty label, one that is too long) is no address.
        host = (parts.hostname or "").encode("idna").decode("ascii")
    except ValueError as error:
        raise InvalidRequest("this is not an address", address=text) from error
    unusable = not host or not host.isprintable()
    if parts.scheme not in ("http", "https") or unusable or parts.path not in ("", "/") or parts.query:
        raise InvalidRequest(
            "this is not an address", address=text, hint="use http://host:port, https://host:port or unix:/path"
        )
    if parts.username is not None:
        raise InvalidRequest("an address carries no credentials", hint="give the token as token=...")
    is_secure = parts.scheme == "https"
    default_port = 443 if is_secure else 80
    return Endpoint(host, port if port is not None else default_port, secure=is_secure)


class Route:
    """The configured places in turn, and the leader that one of them named.

    Shared by every operation of a client; each method is one assignment of consequence, so threads may share it.
    """

    def __init__(self, configured: tuple[Endpoint, ...]) -> None:
        if not configured:
            raise InvalidRequest("at least one address is needed")
        self._configured = configured
        self.configured = frozenset(configured)
        """The same without their order."""
        self._turn = 0
        self.current = configured[0]

    def failed(self, endpoint: Endpoint) -> None:
        """``endpoint`` gave no usable answer: the next operation asks the next configured place."""
        if endpoint == self.current:
            self._turn = (self._turn + 1) % len(self._configured)
            self.current = self._configured[self._turn]

    def follow(self, asked: Endpoint, address: str | None) -> bool:
        """Go where ``asked`` says the leader is. False when it names nobody, itself, or something unusable.

        A place reached over TLS may not send us (and our token) to one without.
        """
        if not address:
            return False
        try:
            named = parse_endpoint(address, secure=asked.secure)
        except InvalidRequest:
            return False
        if named == asked or (asked.secure and not named.secure):
            return False
        self.current = named
        return True


class UnusableEndpoints:
    """Places that cannot be talked to before somebody mends a configuration, as one operation has met them."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._problems: dict[Endpoint, HoldfastError] = {}

    def met(self, problem: HoldfastError, *places: Endpoint | None) -> bool:
        """Of no use for this reason. True when no configured place is left."""
        self._problems |= {place: problem for place in places if place is not None}
        return self._route.configured <= self._problems.keys()

    def heard(self, place: Endpoint) -> None:
        """It has answered, so it is of use."""
        self._problems.pop(place, None)

    def forget(self) -> None:
        """Begin anew."""
        self._problems.clear()

    def elsewhere(self, asked: Endpoint) -> str | None:
        """The problem of another place than ``asked``, if there is one, for people."""
        return next((problem.statement() for place, problem in self._problems.items() if place != asked), None)


def routes_of(url: str | Sequence[str]) -> Route:
    """The places a client was configured with. Raises: InvalidRequest."""
    texts = [url] if isinstance(url, str) else list(url)
    return Route(tuple(parse_endpoint(text) for text in texts))
