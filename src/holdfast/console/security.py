"""Who may ask the console for what: the Host and Origin of a request, its session, its CSRF token, a login.

Nothing here does I/O. ``Guard`` has the rules about one request; those about browsers are ``holdfast.browsers``'.

| a request | is refused |
|---|---|
| whose ``Host`` is not one of the console's own names | 421: another site's name leads here (DNS rebinding) |
| that is not GET or HEAD, with another ``Origin``, or from another site by ``Sec-Fetch-Site`` | 403 |
| that is not GET or HEAD, without the CSRF token of its cookie | 403 |
| that is not GET or HEAD, where the console only reads | 403, except for logging in and out |
| without a login, where one is needed | sent to the login page |
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.browsers import BrowserGuard

SESSIONS_MAX: Final = 1_000
"""Of users who logged in; then the one that was idle for longest goes."""
SESSION_SECONDS: Final = 8 * 3_600.0
"""Of a login without a request, and of a form of a visitor without one."""
VISITORS_MAX: Final = 1_000
"""Without a login, for whom something is to be said on their next page; then the oldest goes."""
_COOKIE: Final = re.compile(r"[A-Za-z0-9_-]{43}")
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
class PageRefusal:
    """Why a request is not served."""

    status: int
    reason: str


@dataclass(slots=True)
class BrowserSession:
    """One browser. ``token``: that of its login, None without one. ``flashes``: what to say on its next page."""

    csrf: str
    used_at: float
    token: str | None = None
    flashes: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def flash(self, kind: str, text: str) -> None:
        """Say this on the next page; ``kind`` is ``good`` or ``bad``."""
        self.flashes = [*self.flashes, (kind, text)][-FLASHES_MAX:]

    def take_flashes(self) -> list[tuple[str, str]]:
        """What to say now."""
        flashes, self.flashes = self.flashes, []
        return flashes


class Sessions:
    """The sessions of logins, by the value of their cookie, in memory: a console that starts again has none.

    A visitor without a login has no session here, so visitors cannot end one another's. A visitor has a cookie of
    random bits, and forms carry a CSRF token that is signed for this cookie with a secret of this process.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, BrowserSession] = {}
        self._secret = secrets.token_bytes(32)
        self._said: dict[str, BrowserSession] = {}
        """Visitors for whom something is to be said."""

    def find(self, cookie: str | None, now: float) -> BrowserSession | None:
        """The session of a login, unless it was idle for too long."""
        session = None if cookie is None else self._sessions.pop(cookie, None)
        if session is None or cookie is None or now - session.used_at > SESSION_SECONDS:
            return None
        session.used_at = now
        self._sessions[cookie] = session  # the newest is last
        return session

    def visitor(self, cookie: str | None, now: float) -> tuple[str, BrowserSession]:
        """A visitor without a login, by its cookie; the cookie is a new one where the given one is none of ours."""
        if cookie is None or not _COOKIE.fullmatch(cookie):
            cookie = secrets.token_urlsafe(32)
        said = self._said.pop(cookie, None)
        flashes = [] if said is None or now - said.used_at > SESSION_SECONDS else said.flashes
        return cookie, BrowserSession(self._signed(cookie, f"{now:.0f}"), now, None, flashes)

    def keep(self, cookie: str, session: BrowserSession) -> None:
        """Remember a visitor until its next page, which says what its flashes are."""
        while len(self._said) >= VISITORS_MAX:
            del self._said[next(iter(self._said))]
        self._said[cookie] = session

    def accepts(self, cookie: str | None, csrf: str, now: float) -> bool:
        """Whether a form was made for this cookie: its session's, or a visitor's."""
        if cookie is None or not csrf.isascii():
            return False
        session = self.find(cookie, now)
        if session is not None:
            return hmac.compare_digest(session.csrf, csrf)
        made_at = csrf.partition(".")[0]
        if not made_at.isdigit() or len(made_at) > 12 or not 0 <= now - int(made_at) + 1 <= SESSION_SECONDS:
            return False
        return hmac.compare_digest(self._signed(cookie, made_at), csrf)

    def _signed(self, cookie: str, made_at: str) -> str:
        return f"{made_at}.{hmac.digest(self._secret, f'{made_at}.{cookie}'.encode(), 'sha256').hex()}"

    def begin(self, now: float, token: str) -> tuple[str, BrowserSession]:
        """The session of a login and its cookie, 256 random bits."""
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        cookie = secrets.token_urlsafe(32)
        session = self._sessions[cookie] = BrowserSession(secrets.token_urlsafe(32), now, token)
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

    def problem_with_host(self, host: str) -> PageRefusal | None:
        """Why a request for this ``Host`` is not served."""
        if self.browsers.serves(host):
            return None
        return PageRefusal(
            421, "This console does not serve that host name. Start it with --host NAME if it is its own."
        )

    def problem_with_page(self, headers: Mapping[str, str]) -> PageRefusal | None:
        """Why a request that is not GET or HEAD is refused before its body is read."""
        if not self.browsers.is_own_page(headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site")):
            return PageRefusal(403, "The request comes from a page of another site.")
        return None

    def problem_with_change(self, path: str, *, is_own_form: bool) -> PageRefusal | None:
        """Why what a form asks for is not carried out. ``is_own_form``: its CSRF token is that of its cookie."""
        if not is_own_form:
            return PageRefusal(
                403, "The form is of an older session of this console. Go back, load the page again and repeat."
            )
        if self.read_only and path not in OPEN_PATHS:
            return PageRefusal(
                403, "This console only reads. Start it with --token-file and without --read-only to act."
            )
        return None


class Logins:
    """Recognises the tokens that may log in, and slows down guessing: each address has some failures a minute."""

    def __init__(self) -> None:
        self._failed_at: dict[str, list[float]] = {}
        """By address; the one that failed last is at the end."""

    def token_of(self, given: str, tokens: Sequence[str], address: str, now: float) -> str | PageRefusal:
        """The token that was given, if it is one of ``tokens``. Each one is compared, in constant time."""
        place = place_of(address)
        failed_at = [at for at in self._failed_at.pop(place, []) if now - at < LOGIN_FAILURES_SECONDS]
        if failed_at:
            self._failed_at[place] = failed_at
        if len(failed_at) >= LOGIN_FAILURES_MAX:
            return PageRefusal(429, "Too many failed logins from your address. Wait a minute.")
        fitting = [token for token in tokens if hmac.compare_digest(token.encode(), given.strip().encode())]
        if fitting:
            return fitting[0]
        self._failed_at[place] = [*failed_at, now]
        while len(self._failed_at) > LOGIN_PLACES_MAX:
            del self._failed_at[next(iter(self._failed_at))]
        return PageRefusal(403, "This token may not log in here.")


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
