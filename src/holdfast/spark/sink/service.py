"""The client of a write: it reports a service that does not answer, before it gives up and after."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from holdfast.client import Client, ClientOptions
from holdfast.client.protocol.effects import Procedure
from holdfast.errors import Unavailable
from holdfast.spark.options import WriteOptions
from holdfast.spark.sink.task import CHUNK_BYTES, CHUNK_TRANSACTIONS

if TYPE_CHECKING:
    from holdfast.view import View

log = structlog.get_logger("holdfast.spark")

Result = TypeVar("Result")

TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"
SILENCE_SECONDS: Final = 5.0
"""After this time without an answer a person may want to look."""


class ServiceClient(Client):
    """A client that writes a warning to the log when the service has not answered for ``SILENCE_SECONDS``.

    Its Unavailable names the service and how long it was tried.
    """

    def __init__(self, options: WriteOptions, bounds: ClientOptions | None = None) -> None:
        bounds = bounds or ClientOptions(commits_per_request_max=CHUNK_TRANSACTIONS, commits_bytes_max=CHUNK_BYTES)
        super().__init__(options.url, token=os.environ.get(TOKEN_VARIABLE) or None, options=bounds)
        self._url = options.url
        self._seconds_max = bounds.give_up_after_ms / 1000.0

    def run(
        self,
        procedure: Procedure[Result],
        decide: Callable[[], None] | None = None,
        view: View | None = None,
    ) -> Result:
        """Drive a procedure to its end. Raises: as the procedure."""
        timer = threading.Timer(SILENCE_SECONDS, self._report)
        timer.daemon = True
        timer.start()
        try:
            return super().run(procedure, decide, view)
        except Unavailable as error:
            if "endpoint" not in error.fields:  # the service has answered
                raise
            raise Unavailable(
                "the service does not answer",
                code=error.code,
                hint="start the service, or correct the option url; run the write again, and it sends what is missing",
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


def open_client(options: WriteOptions) -> ServiceClient:
    """A client of the service; its bearer token is this machine's environment's. Raises: InvalidRequest."""
    return ServiceClient(options)
