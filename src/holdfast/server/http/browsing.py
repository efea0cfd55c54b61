"""Which requests a service without tokens takes from browsers: the rules of ``holdfast.browsers`` for a route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from holdfast.browsers import BrowserGuard, is_browser
from holdfast.errors import Code, HoldfastError, InvalidRequest, PermissionDenied

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
