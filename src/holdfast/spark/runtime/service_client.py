"""The client of a service for sources and sinks: it reports a service that does not answer, and then gives up.

Its bearer token is the machine's, and so are further addresses that may get it: query plans print options.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

import structlog

from holdfast.client import Client, ClientOptions
from holdfast.client.protocol.effects import Effect, Procedure, Reply
from holdfast.errors import Unavailable

log = structlog.get_logger("holdfast.spark")

Result = TypeVar("Result")

TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"
TRUSTED_VARIABLE: Final = "HOLDFAST_TRUSTED_HOSTS"
SILENCE_SECONDS: Final = 5.0
"""After this time without an answer a person may want to look."""


def service_token() -> str | None:
    """The bearer token for services, from the environment of this process."""
    return os.environ.get(TOKEN_VARIABLE) or None


def trusted_hosts() -> tuple[str, ...]:
    """Addresses that may get the token besides the given ones: patterns of the environment, with commas."""
    return tuple(part.strip() for part in os.environ.get(TRUSTED_VARIABLE, "").split(",") if part.strip())


def with_trusted_hosts(bounds: ClientOptions) -> ClientOptions:
    """The options of a client with the token of this machine. Raises: InvalidRequest."""
    return replace(bounds, trusted_hosts=trusted_hosts())


class ServiceClient(Client):
    """A client that logs a warning when the service has not answered for ``SILENCE_SECONDS``.

    Its Unavailable names the service and how long it was tried.
    """

    def __init__(self, url: str, bounds: ClientOptions) -> None:
        super().__init__(url, token=service_token(), options=with_trusted_hosts(bounds))
        self._url = url
        self._seconds_max = bounds.give_up_after_ms / 1000.0

    def run(
        self,
        procedure: Procedure[Result],
        carry_out: Callable[[Effect], Reply] | None = None,
    ) -> Result:
        """Drive a procedure to its end. Raises: as the procedure."""
        timer = threading.Timer(SILENCE_SECONDS, self._report)
        timer.daemon = True
        timer.start()
        try:
            return super().run(procedure, carry_out)
        except Unavailable as error:
            if "endpoint" not in error.fields:  # the service has answered
                raise
            hint = "start the service, or correct the option url; run it again: it continues where it was"
            raise Unavailable(
                "the service does not answer",
                code=error.code,
                hint=f"{hint}; {error.hint}" if error.hint else hint,
                url=self._url,
                tried_seconds=self._seconds_max,
                last=error.statement(),
            ) from error
        finally:
            timer.cancel()

    def _report(self) -> None:
        log.warning(
            "service_does_not_answer",
            url=self._url,
            seconds=SILENCE_SECONDS,
            gives_up_after_seconds=self._seconds_max,
        )
