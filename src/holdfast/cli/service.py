"""The client of a command that asks a service: how long it waits, and what is said to people meanwhile.

Owns: ``--timeout``, the answer when nothing listens at all, and the line on stderr for whoever would otherwise look at
a silent terminal. Does not own: when something is sent again (``holdfast.Client``).

    nothing listens            tried for ``REFUSED_SECONDS``, then an error that says so: it is a wrong address or a
                               service that was not started, and a minute would not change that
    no answer for a second     one line on stderr: what is waited for, why, and for how long at most
    nobody leads, or full      waited for as the client does, a minute unless ``--timeout`` says otherwise
    a service at long work     its one answer is waited for, an hour unless ``--timeout`` says otherwise

Failure model: as the client's; exit code 7 when the time is over. With an explicit ``--timeout`` a service that is only
about to be started is waited for just as long.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from holdfast.client import Client, ClientOptions
    from holdfast.client.protocol.endpoint import Endpoint
    from holdfast.client.stores import StoreClient

__all__ = [
    "STREAM_SECONDS",
    "TIMEOUT_SECONDS",
    "WaitNotice",
    "asking",
    "following",
    "store_asking",
    "store_following",
    "store_working",
]

TELL_AFTER_SECONDS: Final = 1.0
REFUSED_SECONDS: Final = 5.0
LOOK_EVERY_SECONDS: Final = 0.1
TIMEOUT_SECONDS: Final = 60.0
WORK_SECONDS: Final = 3600.0
STREAM_SECONDS: Final = 300.0
"""How long a stream that was heard is looked for again."""
REQUEST_SECONDS_MAX: Final = 15.0
NEW_SPELL_SECONDS: Final = 10.0
"""Waits further apart than this have nothing to do with one another."""


class WaitNotice:
    """Says once in each spell of waiting what is waited for. Threads may share it: at worst it says so twice."""

    def __init__(
        self, place: str, seconds_max: float, *, as_json: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place = place
        self._seconds_max = seconds_max
        self._as_json = as_json
        self._clock = clock
        self._since: float | None = None
        self._last = 0.0
        self._told = False
        self._reason = "no answer yet"

    def waits(self, reason: str) -> None:
        """The next try comes after a pause."""
        now = self._clock()
        if self._since is not None and now - self._last > NEW_SPELL_SECONDS:
            self.got_through()
        if self._since is None:
            self._since = now
        self._last = now
        self._reason = reason or self._reason
        if now - self._since >= TELL_AFTER_SECONDS:
            self.tell()

    def got_through(self) -> None:
        """What was waited for has come."""
        self._since = None
        self._told = False

    def tell(self) -> None:
        """Write the line, unless it was written in this spell."""
        if self._told:
            return
        self._told = True
        facts = {"for": self._place, "reason": self._reason, "seconds_max": self._seconds_max}
        text = f"holdfast: waiting for {self._place} ({self._reason}), for at most {self._seconds_max:g} s"
        sys.stderr.write((json.dumps({"waiting": facts}) if self._as_json else text) + "\n")
        sys.stderr.flush()


@contextmanager
def asking(url: str, token: str | None, timeout: float | None, *, as_json: bool) -> Generator[Client]:
    """The client of a command with one question. Raises: Unavailable when nothing listens at ``url``."""
    seconds = TIMEOUT_SECONDS if timeout is None else timeout
    notice = WaitNotice(url, seconds, as_json=as_json)
    telling = threading.Timer(TELL_AFTER_SECONDS, notice.tell)
    telling.daemon = True
    telling.start()
    try:
        yield from _client(url, token, timeout, seconds, notice)
    finally:
        telling.cancel()


@contextmanager
def following(url: str, token: str | None, timeout: float | None, notice: WaitNotice) -> Generator[Client]:
    """The client of a command that follows a stream, whose silence is no waiting. Raises: as ``asking``."""
    yield from _client(url, token, timeout, TIMEOUT_SECONDS if timeout is None else timeout, notice)


@contextmanager
def store_asking(url: str, token: str | None, timeout: float | None, *, as_json: bool) -> Generator[StoreClient]:
    """The message stores' client of a command with one question. Raises: as ``asking``."""
    seconds = TIMEOUT_SECONDS if timeout is None else timeout
    yield from _store_asking(url, token, timeout, seconds, REQUEST_SECONDS_MAX, as_json=as_json)


@contextmanager
def store_working(url: str, token: str | None, timeout: float | None, *, as_json: bool) -> Generator[StoreClient]:
    """As ``store_asking``, for a question whose answer comes at the end of long work."""
    seconds = WORK_SECONDS if timeout is None else timeout
    yield from _store_asking(url, token, timeout, seconds, seconds, as_json=as_json)


def _store_asking(
    url: str, token: str | None, timeout: float | None, seconds: float, request_seconds: float, *, as_json: bool
) -> Generator[StoreClient]:
    notice = WaitNotice(url, seconds, as_json=as_json)
    telling = threading.Timer(TELL_AFTER_SECONDS, notice.tell)
    telling.daemon = True
    telling.start()
    try:
        yield from _store_client(url, token, timeout, seconds, notice, request_seconds)
    finally:
        telling.cancel()


@contextmanager
def store_following(url: str, token: str | None, timeout: float | None, notice: WaitNotice) -> Generator[StoreClient]:
    """The message stores' client of a command that subscribes. Raises: as ``asking``."""
    seconds = TIMEOUT_SECONDS if timeout is None else timeout
    yield from _store_client(url, token, timeout, seconds, notice, REQUEST_SECONDS_MAX)


def _store_client(
    url: str, token: str | None, timeout: float | None, seconds: float, notice: WaitNotice, request_seconds: float
) -> Generator[StoreClient]:
    from holdfast.client.protocol.endpoint import parse_endpoint
    from holdfast.client.stores import StoreClient

    with StoreClient(url, token=token, options=_options(timeout, seconds, request_seconds)) as client:
        _wait_for_listener(parse_endpoint(url), REFUSED_SECONDS if timeout is None else timeout, notice)
        yield client


def _options(timeout: float | None, seconds: float, request_seconds: float) -> ClientOptions:
    from holdfast.client import ClientOptions

    ms = seconds * 1000
    return ClientOptions(
        give_up_after_ms=ms,
        resolve_within_ms=ms,
        request_timeout_ms=min(ms, request_seconds * 1000),
        stream_give_up_after_ms=STREAM_SECONDS * 1000 if timeout is None else ms,
    )


def _client(
    url: str, token: str | None, timeout: float | None, seconds: float, notice: WaitNotice
) -> Generator[Client]:
    from holdfast.client import Client
    from holdfast.client.protocol.effects import Wait, Woken
    from holdfast.client.protocol.endpoint import parse_endpoint

    class TellingClient(Client):
        """A client that says when it waits before it tries again."""

        def sleep(self, wait: Wait) -> Woken:
            """As the client does."""
            notice.waits(wait.reason)
            return super().sleep(wait)

    with TellingClient(url, token=token, options=_options(timeout, seconds, REQUEST_SECONDS_MAX)) as client:
        _wait_for_listener(parse_endpoint(url), REFUSED_SECONDS if timeout is None else timeout, notice)
        yield client


def _wait_for_listener(endpoint: Endpoint, seconds_max: float, notice: WaitNotice) -> None:
    """Return as soon as something accepts connections, or cannot be told to refuse them. Raises: Unavailable."""
    end = time.monotonic() + seconds_max
    while (refused := _refusal(endpoint, max(end - time.monotonic(), LOOK_EVERY_SECONDS))) is not None:
        left = end - time.monotonic()
        if left <= 0:
            raise Unavailable(
                f"nothing listens at {endpoint}: {refused}",
                hint="start a service with `holdfast serve`, or name its address with --url (HOLDFAST_URL)",
            )
        notice.waits(refused)
        time.sleep(min(LOOK_EVERY_SECONDS, left))


def _refusal(endpoint: Endpoint, seconds_max: float) -> str | None:
    """Why nobody can be there, None when somebody may be: all other trouble is the client's to tell."""
    try:
        if endpoint.unix_path is None:
            socket.create_connection((endpoint.host, endpoint.port), seconds_max).close()
        else:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(seconds_max)
                probe.connect(endpoint.unix_path)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        return (error.strerror or str(error)).lower()
    except OSError:
        return None
    return None
