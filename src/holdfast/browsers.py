"""Which requests of browsers a service without tokens, or a console, takes: ``Host``, ``Origin``, ``Sec-Fetch-Site``.

A browser sends the requests of every page that it shows, from its own machine. Without a token a service cannot tell
them from those of its users, except by these header fields, which a page cannot choose.

| field | rule | against |
|---|---|---|
| ``Host`` | names this service, or is an address: another name that leads here was pointed here | DNS rebinding |
| ``Origin`` | is the page's: it equals ``Host``, or is listed | a form or a script of another site |
| ``Sec-Fetch-Site`` | ``same-origin`` or ``none`` (an address bar, a bookmark) | an image or a frame of another site |

Other programs send no ``Origin`` and no ``Sec-Fetch-Site``, so the last two rules do not concern them. Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from holdfast.errors import Code, HoldfastError, InvalidRequest, PermissionDenied

OWN_SITES: Final = frozenset({"same-origin", "none"})
_USUAL_PORT: Final = {"http": ":80", "https": ":443"}
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""The last label of a host that browsers read as an IPv4 address in one of its old forms. No name ends in one."""
_ENTRY: Final = re.compile(
    r"(?:[a-z0-9_](?:[a-z0-9._-]{0,251}[a-z0-9_])?|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class BrowserGuard:
    """The rules of one service or console.

    ``hosts``: what ``Host`` may name, in small letters. ``with_ports``: they have ports, nothing else passes, and a
    page's scheme has to be ``scheme``; otherwise ports are not compared, and every address passes, because only a name
    can be pointed elsewhere. ``origins``: pages of other places that may send requests, as ``HOST`` or ``HOST:PORT``.
    """

    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()
    with_ports: bool = False
    scheme: str = ""

    def serves(self, host: str) -> bool:
        """Whether a request with this ``Host`` is for this place. The empty text is a request without one.

        >>> guard = BrowserGuard(frozenset({"localhost", "log.example"}))
        >>> [guard.serves(host) for host in ("", "LOG.example:81", "10.0.0.7:8080", "[::1]", "127.1", "a.example")]
        [True, True, True, True, True, False]
        """
        host = host.strip().lower()
        if self.with_ports:
            return host in self.hosts
        name = name_of(host)
        return not name or name in self.hosts or is_address(name)

    def is_own_page(self, host: str, origin: str | None, site: str | None) -> bool:
        """Whether a page of this place, or no page, sends a request. Each argument is a header field, None without it.

        >>> guard = BrowserGuard(frozenset({"localhost"}), origins=frozenset({"app.example:3000"}))
        >>> guard.is_own_page("localhost:8080", "https://localhost:8080", "same-origin")
        True
        >>> guard.is_own_page("localhost:8080", "http://app.example:3000", "cross-site")
        True
        >>> guard.is_own_page("localhost:8080", "http://localhost:9000", None)
        False
        """
        if origin is not None:
            scheme, _, page = origin.strip().lower().partition("://")
            usual = _USUAL_PORT.get(scheme)
            if usual is None or not page:
                return False
            page = page.removesuffix(usual)
            if page in self.origins:
                return True
            if page != host.strip().lower().removesuffix(usual) or self.scheme not in ("", scheme):
                return False
        return site is None or site.strip().lower() in OWN_SITES


def name_of(host: str) -> str:
    """The host without its port, without brackets, and without the dot of the root.

    >>> name_of("[::1]:8080"), name_of("log.example.:80"), name_of("localhost")
    ('::1', 'log.example', 'localhost')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


@lru_cache(maxsize=1024)
def is_address(name: str) -> bool:
    """Whether a host without its port is an IP address, in any form that browsers take for one."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return _NUMBER.fullmatch(name.rpartition(".")[2]) is not None
    return True


def listed_hosts(texts: Iterable[str]) -> tuple[str, ...]:
    """Entries of a list of hosts, ``NAME``, ``NAME:PORT`` or an address, in small letters. Raises: ValueError.

    >>> listed_hosts(["Log.Example", "app.example:3000"])
    ('log.example', 'app.example:3000')
    """
    entries = tuple(dict.fromkeys(text.strip().lower() for text in texts))
    for entry in entries:
        if not _ENTRY.fullmatch(entry):
            raise ValueError('names such as "log.example" or "app.example:3000", without a scheme and a path')
    return entries


def guard_of(names: Iterable[str], listed: Iterable[str]) -> BrowserGuard:
    """The guard of a service. ``names``: hosts with or without ports, that are its own; ``listed``: entries of
    ``listed_hosts``, whose names are its own, too, and whose pages may send requests.
    """
    origins = frozenset(listed)
    own = {name_of(host.strip().lower()) for host in (*names, *origins)} - {""}
    return BrowserGuard(frozenset({"localhost", *own}), origins)


def is_browser(user_agent: str | None) -> bool:
    """Whether a program says that it is a browser. Every browser does; programs that are not rarely do."""
    return user_agent is not None and user_agent.startswith("Mozilla/")


Browsers = Literal["own", "links", "any"]
"""Who may ask for a route in a browser: pages of the service itself, also who follows a link, or every page."""

NAME_HINT: Final = "add the name to server.hosts if it is one of this service's, or give the service tokens"
PAGE_HINT: Final = "add the page's host and port to server.hosts if it may, or give the service tokens"

Fields = Callable[[str], str | None]
"""A header field by its name in small letters; None where the request has none."""


def problem_with_name(guard: BrowserGuard, host: str) -> InvalidRequest | None:
    """Why a request for this host is not served, or None."""
    if guard.serves(host):
        return None
    return InvalidRequest(
        "the Host field names another host than this service, which has no tokens",
        code=Code.MISDIRECTED,
        hint=NAME_HINT,
        host=host[:256],
    )


def problem_with_browser(
    guard: BrowserGuard, fields: Fields, *, browsers: Browsers = "own", changes_by_get: bool = False
) -> HoldfastError | None:
    """The first broken rule of a request, or None. ``changes_by_get``: it is a GET that changes something."""
    if browsers == "any":
        return None
    host, origin, site = fields("host") or "", fields("origin"), fields("sec-fetch-site")
    problem = problem_with_name(guard, host)
    if problem is not None:
        return problem
    is_link = fields("sec-fetch-mode") == "navigate" and fields("sec-fetch-dest") == "document" and origin is None
    if not guard.is_own_page(host, origin, site) and not (browsers == "links" and is_link):
        page = None if origin is None else origin[:256]
        return PermissionDenied(
            "the request comes from a page of another site, and this service has no tokens", hint=PAGE_HINT, origin=page
        )
    if changes_by_get and site is None and is_browser(fields("user-agent")):
        return PermissionDenied(
            "a browser may follow a link of another site to here, and this GET changes something",
            hint="send the same request with POST",
        )
    return None
