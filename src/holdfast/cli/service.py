"""The service that a command asks: the options that name it, its clients, and how long they wait.

    nothing listens            tried for ``REFUSED_SECONDS``: the address is wrong, or the service was not started
    no response for a second   one line on stderr: the address, the reason, and the longest wait
    no leader, or overloaded   tried again as the client does, for a minute or for ``--timeout``
    long work of the service   the one response is awaited for an hour or for ``--timeout``

With ``--timeout`` a service that has not started yet is awaited for that time, too. Exit code 7 when the time is over.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, getdoc, signature
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from holdfast.cli.options import JsonOption, TokenOption, TrustedOption, UrlOption, add_command, patterns_of
from holdfast.cli.output import print_fields, print_json, print_line, print_table, printable
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from holdfast.client import Client, ClientOptions
    from holdfast.client.protocol.endpoint import Endpoint
    from holdfast.client.stores import StoreClient

LOCAL: Final = "http://127.0.0.1:8080"
TEXT_COLUMNS: Final = {"author", "name", "time", "type"}
"""Columns of tables that are aligned to the left."""
TIMEOUT_HELP: Final = "How long to try; 60 by default, 5 when nothing listens. The same again for an unknown outcome."
TELL_AFTER_SECONDS: Final = 1.0
REFUSED_SECONDS: Final = 5.0
LOOK_EVERY_SECONDS: Final = 0.1
TIMEOUT_SECONDS: Final = 60.0
WORK_SECONDS: Final = 3600.0
STREAM_SECONDS: Final = 300.0
"""How long a broken stream is reconnected."""
REQUEST_SECONDS_MAX: Final = 15.0
NEW_SPELL_SECONDS: Final = 10.0
"""Waits that are further apart have different causes, so each is reported."""


def on_service(
    group: typer.Typer, name: str | None = None, *, timeout: str = TIMEOUT_HELP
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command to a group: --url, --token, --timeout and --json become its parameter ``service``.

    ``timeout`` is the help of --timeout.
    """
    wait = typer.Option("--timeout", min=0.001, max=86_400, metavar="SECONDS", help=timeout)
    options: list[tuple[str, object, object]] = [
        ("url", UrlOption, LOCAL),
        ("token", TokenOption, None),
        ("trusted_hosts", TrustedOption, ""),
        ("timeout", Annotated[float | None, wait], None),
        ("as_json", JsonOption, False),
    ]

    def add(command: Callable[..., None]) -> Callable[..., None]:
        def run(
            *, url: str, token: str | None, trusted_hosts: str, timeout: float | None, as_json: bool, **given: Any
        ) -> None:
            command(Service(url, token, timeout, as_json, patterns_of(trusted_hosts)), **given)

        types = get_type_hints(command, include_extras=True)
        _, *own = signature(command).parameters.values()
        parameters = [each.replace(annotation=types[each.name], kind=Parameter.KEYWORD_ONLY) for each in own]
        parameters += [
            Parameter(option, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for option, kind, default in options
        ]
        add_command(group, name or command.__name__, run, parameters, getdoc(command) or "")
        return command

    return add


@dataclass(frozen=True, slots=True)
class Service:
    """The service that a command asks, and how the command prints the results."""

    url: str
    token: str | None
    timeout: float | None
    as_json: bool
    trusted_hosts: tuple[str, ...] = ()

    def seconds(self, default: float = TIMEOUT_SECONDS) -> float:
        """``--timeout``, or the default of the command."""
        return default if self.timeout is None else self.timeout

    def notice(self, seconds: float = TIMEOUT_SECONDS) -> WaitNotice:
        """A notice for a wait of ``--timeout``, or of at most ``seconds``."""
        return WaitNotice(self.url, self.seconds(seconds), as_json=self.as_json)

    def show(self, value: object, text: str) -> None:
        """Print a result: its value as a line of JSON, or its text."""
        print_json(value) if self.as_json else print_line(text)

    def show_fields(self, fields: Mapping[str, object]) -> None:
        """Print names and values: as a line of JSON, or in two columns with values on one line each."""
        print_json(fields) if self.as_json else print_fields({name: one_line(value) for name, value in fields.items()})

    def show_rows(self, rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
        """Print rows: each as a line of JSON, or some columns of all in a table."""
        if self.as_json:
            for row in rows:
                print_json(row)
            return
        cells = [[one_line(row.get(column)) for column in columns] for row in rows]
        print_table(columns, cells, right=frozenset(columns) - TEXT_COLUMNS)

    @contextmanager
    def client(self) -> Generator[Client]:
        """The client of a command with one request. Raises: Unavailable when nothing listens."""
        with _reporting(self.notice()) as notice, self.stream_client(notice) as client:
            yield client

    @contextmanager
    def stream_client(self, notice: WaitNotice) -> Generator[Client]:
        """The client of a command that follows a stream, whose silence is not a wait. Raises: as ``client``."""
        from holdfast.client import Client
        from holdfast.client.protocol.effects import Wait, Woken

        class ReportingClient(Client):
            """A client that reports when it waits before a retry."""

            def sleep(self, wait: Wait) -> Woken:
                """As the client does."""
                notice.waits(wait.reason)
                return super().sleep(wait)

        options = self._options(self.seconds(), REQUEST_SECONDS_MAX)
        with ReportingClient(self.url, token=self.token, options=options) as client:
            self._wait_for_listener(notice)
            yield client

    @contextmanager
    def store_client(self) -> Generator[StoreClient]:
        """The message stores' client of a command with short requests. Raises: as ``client``."""
        with _reporting(self.notice()) as notice, self.store_stream_client(notice) as client:
            yield client

    @contextmanager
    def store_work_client(self) -> Generator[StoreClient]:
        """As ``store_client``, for a request whose response comes after long work."""
        seconds = self.seconds(WORK_SECONDS)
        with (
            _reporting(self.notice(WORK_SECONDS)) as notice,
            self.store_stream_client(notice, seconds, seconds) as client,
        ):
            yield client

    @contextmanager
    def store_stream_client(
        self, notice: WaitNotice, seconds: float | None = None, request_seconds: float = REQUEST_SECONDS_MAX
    ) -> Generator[StoreClient]:
        """The message stores' client of a command that subscribes. Raises: as ``client``."""
        from holdfast.client.stores import StoreClient

        options = self._options(self.seconds() if seconds is None else seconds, request_seconds)
        with StoreClient(self.url, token=self.token, options=options) as client:
            self._wait_for_listener(notice)
            yield client

    def _options(self, seconds: float, request_seconds: float) -> ClientOptions:
        from holdfast.client import ClientOptions

        ms = seconds * 1000
        return ClientOptions(
            give_up_after_ms=ms,
            resolve_within_ms=ms,
            request_timeout_ms=min(ms, request_seconds * 1000),
            stream_give_up_after_ms=STREAM_SECONDS * 1000 if self.timeout is None else ms,
            trusted_hosts=self.trusted_hosts,
        )

    def _wait_for_listener(self, notice: WaitNotice) -> None:
        """Return as soon as an address accepts connections, or does not refuse them. Raises: Unavailable."""
        from holdfast.client.protocol.endpoint import addresses_of, parse_endpoint

        endpoints = [parse_endpoint(address) for address in addresses_of(self.url)]
        end = time.monotonic() + self.seconds(REFUSED_SECONDS)
        while True:
            endpoint, refused = endpoints[-1], ""
            for endpoint in endpoints:
                reason = _refusal(endpoint, max(end - time.monotonic(), LOOK_EVERY_SECONDS))
                if reason is None:
                    return
                refused = reason
            left = end - time.monotonic()
            if left <= 0:
                raise Unavailable(
                    f"nothing listens at {endpoint}: {refused}",
                    hint="start a service with `holdfast serve`, or name its address with --url (HOLDFAST_URL)",
                )
            notice.waits(refused, self.seconds(REFUSED_SECONDS))
            time.sleep(min(LOOK_EVERY_SECONDS, left))


def _refusal(endpoint: Endpoint, seconds_max: float) -> str | None:
    """Why nothing can listen there; None when something may. All other failures are left to the client."""
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


class WaitNotice:
    """Reports each spell of waiting once, on stderr. Threads may share it: at worst a spell is reported twice."""

    def __init__(
        self, place: str, seconds_max: float, *, as_json: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place = place
        self._seconds = self._seconds_max = seconds_max
        self._as_json = as_json
        self._clock = clock
        self._since: float | None = None
        self._last = 0.0
        self._reported = False
        self._reason = "no answer yet"

    def waits(self, reason: str, seconds_max: float | None = None) -> None:
        """The next try comes after a pause. ``seconds_max``: of this wait, where it is another one."""
        now = self._clock()
        self._seconds = self._seconds_max if seconds_max is None else seconds_max
        if self._since is not None and now - self._last > NEW_SPELL_SECONDS:
            self.got_through()
        if self._since is None:
            self._since = now
        self._last = now
        self._reason = reason or self._reason
        if now - self._since >= TELL_AFTER_SECONDS:
            self.report()

    def got_through(self) -> None:
        """The service has responded."""
        self._since = None
        self._reported = False

    def report(self) -> None:
        """Write the line, unless it was written in this spell."""
        if self._reported:
            return
        self._reported = True
        facts = {"for": self._place, "reason": self._reason, "seconds_max": self._seconds}
        text = f"holdfast: waiting for {self._place} ({self._reason}), for at most {self._seconds:g} s"
        sys.stderr.write((json.dumps({"waiting": facts}) if self._as_json else text) + "\n")
        sys.stderr.flush()


def one_line(value: object) -> str:
    """A value of a response as printable text; ``-`` for None, JSON for lists and maps.

    >>> one_line(None), one_line("text"), one_line(["a", 1])
    ('-', 'text', '["a", 1]')
    """
    if value is None:
        return "-"
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


@contextmanager
def _reporting(notice: WaitNotice) -> Generator[WaitNotice]:
    """Report after a second that there is no response, also while one request is under way."""
    timer = threading.Timer(TELL_AFTER_SECONDS, notice.report)
    timer.daemon = True
    timer.start()
    try:
        yield notice
    finally:
        timer.cancel()
