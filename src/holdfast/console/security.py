"""Who may ask the console for what: the Host and Origin of a request, its session, its CSRF token, a login.

Nothing here does I/O. ``Guard`` has the rules about one request; those about browsers are ``holdfast.browsers``'.

| a request | is refused |
|---|---|
| whose ``Host`` is not one of the console's own names | 421: another site's name leads here (DNS rebinding) |
| that is not GET or HEAD, with another ``Origin``, or from another site by ``Sec-Fetch-Site`` | 403 |
| that is not GET or HEAD, without the session's CSRF token | 403 |
| that is not GET or HEAD, where the console only reads | 403, except for logging in and out |
| without a login, where one is needed | sent to the login page |
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.browsers import BrowserGuard

SESSIONS_MAX: Final = 1_000
"""Then the session that was idle for longest goes, first those without a login."""
SESSION_SECONDS: Final = 8 * 3_600.0
"""Of a login without a request."""
FLASHES_MAX: Final = 10
LOGIN_FAILURES_MAX: Final = 10
LOGIN_FAILURES_SECONDS: Final = 60.0
LOGIN_PLACES_MAX: Final = 1_000
"""Addresses with failures that are remembered; then the one whose last failure is oldest goes."""
CSRF_FIELD: Final = "csrf"
OPEN_PATHS: Final = frozenset({"/login", "/logout"})
"""Posting here changes nothing of the service."""
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Of every response. Chromium sends ``Origin: null`` for forms under ``no-referrer``, therefore ``same-origin``."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request is not served."""

    status: int
    reason: str


@dataclass(slots=True)
class Session:
    """One browser. ``token``: that of its login, None before it. ``flashes``: what to say on its next page."""

    csrf: str
    used_at: float
    token: str | None = None
    flashes: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def flash(self, kind: str, text: str) -> None:
        """Say this on the next page; ``kind`` is ``good`` or ``bad``."""
        self.flashes = [*self.flashes, (kind, text)][-FLASHES_MAX:]

    def take_flashes(self) -> list[tuple[str, str]]:
        """What to say now."""
        taken, self.flashes = self.flashes, []
        return taken


class Sessions:
    """The sessions by the value of their cookie, in memory: a console that starts again has none."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def find(self, cookie: str | None, now: float) -> Session | None:
        """The session of a cookie, unless it was idle for too long."""
        session = None if cookie is None else self._sessions.pop(cookie, None)
        if session is None or cookie is None or now - session.used_at > SESSION_SECONDS:
            return None
        session.used_at = now
        self._sessions[cookie] = session  # the newest is last
        return session

    def begin(self, now: float, token: str | None = None) -> tuple[str, Session]:
        """A new session and its cookie, 256 random bits."""
        while len(self._sessions) >= SESSIONS_MAX:
            without_login = (known for known, session in self._sessions.items() if session.token is None)
            del self._sessions[next(without_login, next(iter(self._sessions)))]
        cookie = secrets.token_urlsafe(32)
        session = self._sessions[cookie] = Session(secrets.token_urlsafe(32), now, token)
        return cookie, session

    def end(self, cookie: str | None) -> None:
        """Forget a session."""
        if cookie is not None:
            self._sessions.pop(cookie, None)


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules of one console."""

    browsers: BrowserGuard
    read_only: bool

    def problem_with_host(self, host: str) -> Refused | None:
        """Why a request for this ``Host`` is not served."""
        if self.browsers.serves(host):
            return None
        return Refused(421, "This console does not serve that host name. Start it with --host NAME if it is its own.")

    def problem_with_change(
        self, path: str, headers: Mapping[str, str], session: Session | None, csrf: str
    ) -> Refused | None:
        """Why a request that is not GET or HEAD is not carried out."""
        if not self.browsers.is_own_page(headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site")):
            return Refused(403, "The request comes from a page of another site.")
        if session is None or not hmac.compare_digest(session.csrf.encode(), csrf.encode()):
            return Refused(
                403, "The form is of an older session of this console. Go back, load the page again and repeat."
            )
        if self.read_only and path not in OPEN_PATHS:
            return Refused(403, "This console only reads. Start it with --token-file and without --read-only to act.")
        return None


class Logins:
    """Recognises the tokens that may log in, and slows down guessing: each address has some failures a minute."""

    def __init__(self) -> None:
        self._failed_at: dict[str, list[float]] = {}
        """By address; the one that failed last is at the end."""

    def token_of(self, given: str, tokens: Sequence[str], address: str, now: float) -> str | Refused:
        """The token that was given, if it is one of ``tokens``. Each one is compared, in constant time."""
        place = place_of(address)
        failed_at = [at for at in self._failed_at.pop(place, []) if now - at < LOGIN_FAILURES_SECONDS]
        if failed_at:
            self._failed_at[place] = failed_at
        if len(failed_at) >= LOGIN_FAILURES_MAX:
            return Refused(429, "Too many failed logins from your address. Wait a minute.")
        found = [token for token in tokens if hmac.compare_digest(token.encode(), given.strip().encode())]
        if found:
            return found[0]
        self._failed_at[place] = [*failed_at, now]
        while len(self._failed_at) > LOGIN_PLACES_MAX:
            del self._failed_at[next(iter(self._failed_at))]
        return Refused(403, "This token may not log in here.")


def place_of(address: str) -> str:
    """Whose failures count together: an IPv4 address, or the 64 bits of a network of IPv6.

    >>> place_of("10.0.0.7"), place_of("2001:db8::1:2:3:4"), place_of("::ffff:10.0.0.7")
    ('10.0.0.7', '2001:db8::/64', '10.0.0.7')
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
