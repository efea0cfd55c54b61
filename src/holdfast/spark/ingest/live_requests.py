"""Where ``holdfast spark ingest`` finds requests and puts verdicts: messages and stores, besides files and tables."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from holdfast.client import Client, ClientOptions
from holdfast.client.protocol.effects import Request
from holdfast.client.protocol.stores.administration import ask, browse_target
from holdfast.client.protocol.stores.messages import durable_path, request_of, store_path
from holdfast.client.stores import StoreClient, define_spark_stores
from holdfast.client.transport.clock import now_ms
from holdfast.errors import InvalidRequest, NotFound, PermissionDenied
from holdfast.spark.ingest.numbered_source import (
    ANSWER_MS_MAX,
    INGEST_SUBSCRIBER,
    DurableSource,
    NumberedSource,
    QueueSource,
    log_id_of,
)
from holdfast.spark.ingest.verdict_output import RETRY_SECONDS, VerdictStore
from holdfast.spark.messages.durable_client import DurableClient
from holdfast.spark.options import PARTITION_BYTES_MIN
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.service_client import TOKEN_VARIABLE, service_token, with_trusted_hosts
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.source.chain import log_head


def message_source(text: str) -> dict[str, str] | None:
    """The options of ``format("holdfast")`` for ``store:URL/STORE/DURABLE`` or ``queue:PATH``; None for other texts.

    >>> message_source("queue:/var/orders")
    {'shape': 'messages', 'queue': '/var/orders'}
    >>> message_source("store:http://127.0.0.1:8080/requests/spark")["store"]
    'requests'

    Raises: InvalidRequest.
    """
    if text.startswith(_SERVICES):
        raise bad_configuration(
            "files cannot be read from the address of a service",
            hint=f"did you mean store:{text}? The whole form is store:URL/STORE/DURABLE",
            given=text,
        )
    kind, _, rest = text.partition(":")
    if kind == "queue":
        return {"shape": "messages", "queue": rest}
    if kind != "store":
        return None
    url, store, durable = store_of(rest, 2)
    return {"shape": "messages", "url": url, "store": store, "durable": durable}


_SERVICES: Final = ("http://", "https://", "unix:")


def store_of(text: str, names: int) -> tuple[str, ...]:
    """The address of a service, and the ``names`` after it. Raises: InvalidRequest.

    >>> store_of("unix:/run/holdfast/verdicts", 1)
    ('unix:/run/holdfast', 'verdicts')
    """
    parts = text.rsplit("/", names)
    address = parts[0].partition("//")[2] if parts[0].startswith("http") else parts[0].partition(":")[2]
    if len(parts) <= names or not all(parts) or not address or not parts[0].startswith(_SERVICES):
        raise bad_configuration(
            "not the address of a store",
            hint=f"for example store:http://127.0.0.1:8080/requests{'/spark' if names == 2 else ''}",
            given=text,
        )
    if names == 1 and parts[0].startswith("http") and "/" in address:
        raise bad_configuration(
            "verdicts go to a store, and this names more than one",
            hint=f"give the store without a durable: store:{parts[0]}",
            given=text,
        )
    return tuple(parts)


REQUESTS_AT_ONCE: Final = 100_000
BYTES_AT_ONCE: Final = 64 << 20
"""A micro-batch is in the driver's memory, and keeps its size when Spark repeats it."""
PARTITION_BYTES: Final = PARTITION_BYTES_MIN
"""Requests are small: this is some thousands of them for a task."""


@dataclass(frozen=True, slots=True)
class LiveRequests:
    """Texts of the command line: ``source`` as ``message_source`` takes it, or else the path of files.

    ``verdicts_table``: a URL; or ``verdicts_store``: ``store:URL/STORE``, or the name of a store at the service with
    the requests. ``at_once``: the most files, or requests, in a micro-batch; ``bytes_at_once``: about how many
    bytes of messages. ``retry_seconds``: how long the services of both stores may be away.
    ``source_moved``: the record of the name has this very queue under an earlier identity.
    """

    source: str
    verdicts_table: str | None = None
    verdicts_store: str | None = None
    at_once: int | None = None
    bytes_at_once: int | None = None
    retry_seconds: float = RETRY_SECONDS
    source_moved: bool = False

    @property
    def options(self) -> dict[str, str] | None:
        """The options of the source of messages, None for files. Raises: InvalidRequest."""
        texts = message_source(self.source)
        if texts is None:
            if self.bytes_at_once is not None:
                raise bad_configuration("a bound in bytes is for requests that are messages")
            return None
        bounds = {
            "maxRowsPerTrigger": self.at_once or REQUESTS_AT_ONCE,
            "maxBytesPerTrigger": self.bytes_at_once or BYTES_AT_ONCE,
            "targetPartitionBytes": PARTITION_BYTES,
        }
        bounded = texts | {name: str(bound) for name, bound in bounds.items()}
        # The ingest acknowledges: it knows when the verdicts are durable.
        served = {"acknowledge": "false", "retryDuration": f"{round(self.retry_seconds * 1000)}ms"}
        return bounded | served if "durable" in texts else bounded

    def numbered(self) -> NumberedSource | None:
        """The source of messages as the ingest uses it, None for files. Raises: InvalidRequest."""
        options = self.options
        if options is None:
            return None
        if "queue" in options:
            return QueueSource(options["queue"], is_moved=self.source_moved)
        if self.source_moved:
            raise bad_configuration(
                "a durable is recognised wherever it is: only the messages of a queue can have another identity",
                hint="leave out --source-moved",
            )
        return DurableSource(options["url"], options["store"], options["durable"], round(self.retry_seconds * 1000))

    def stream(self, spark: SparkSession) -> DataFrame | None:
        """The messages, None where files have the requests. Raises: InvalidRequest."""
        options = self.options
        if options is None:
            return None
        with task_errors():
            return spark.readStream.format("holdfast").options(**options).load()

    def verdicts(self) -> str | VerdictStore:
        """Where the verdicts go. Raises: InvalidRequest."""
        if (self.verdicts_table is None) == (self.verdicts_store is None):
            raise bad_configuration(
                "verdicts go to a table or to a store",
                hint="give either --to, the URL of a table, or --verdicts-to, a store",
            )
        if self.verdicts_table is not None:
            return self.verdicts_table
        url, store = self._store_of_verdicts()
        options = self.options or {}
        if (options.get("url"), options.get("store")) == (url, store):
            raise bad_configuration(
                "the verdicts would go into the store of the requests, where each becomes a request",
                hint="give --verdicts-to another store",
                store=store,
            )
        return VerdictStore(url, store, token=service_token(), retry_seconds=self.retry_seconds)

    def require_another_log(self, log: str) -> None:
        """Raise InvalidRequest if a service that has the stores leads ``log`` itself; as the client."""
        services = self._services()
        if not services:
            return
        try:
            own = log_head(log).log_id
        except NotFound:
            return  # the job makes it
        for url in services:
            if log_id_of(url) == own:
                raise bad_configuration(
                    "the requests come from a service that leads this very log: it serves no stores while Spark leads",
                    hint="keep requests and verdicts in the stores of a service with another log",
                    service=url,
                    log=log,
                )

    def prepare(self, log: str) -> None:
        """Make the stores that are missing, and look at the source.

        Raises: InvalidRequest (the stores live in ``log`` itself), Conflict (a durable of another type, or one that is
        in use), NotFound (no such queue), PermissionDenied; as the client.
        """
        self.require_another_log(log)
        options = self.options or {}
        if "queue" in options:
            assert QueueSource(options["queue"]).identity, "a queue that can be opened has one"
        durable = options.get("durable", "")
        for url, (requests, verdicts) in self._services().items():
            # A token may do without the right to make stores where they exist; what is missing shows when it is used.
            with suppress(PermissionDenied), StoreClient(url, token=service_token(), options=_options()) as client:
                define_spark_stores(client, requests, verdicts, durable)
            if requests is not None:
                path = durable_path(requests, durable)
                _require_right(url, requests, "browse", Request("GET", browse_target(path, 0, 1, None, False)))
                _require_right(url, requests, "subscribe", request_of("POST", f"{path}/acks", {}))
                with DurableClient(url, requests, durable, ANSWER_MS_MAX) as own:
                    own.require_free(INGEST_SUBSCRIBER)
            if verdicts is not None:
                publish = request_of("POST", f"{store_path(verdicts)}/messages", {})
                _require_right(url, verdicts, "publish", publish)

    def _services(self) -> dict[str, tuple[str | None, str | None]]:
        """By the address of a service, its store of requests and its store of verdicts. Raises: InvalidRequest."""
        options = self.options or {}
        services: dict[str, tuple[str | None, str | None]] = {}
        if "url" in options:
            services[options["url"]] = options["store"], None
        if self.verdicts_store is not None:
            url, store = self._store_of_verdicts()
            services[url] = services.get(url, (None, None))[0], store
        return services

    def _store_of_verdicts(self) -> tuple[str, str]:
        text = self.verdicts_store or ""
        if text.startswith("store:"):
            url, store = store_of(text.removeprefix("store:"), 1)
            return url, store
        options = self.options or {}
        if "url" not in options:
            raise bad_configuration(
                "which service has the store of verdicts?",
                hint="give --verdicts-to store:http://127.0.0.1:8080/verdicts",
                given=text,
            )
        return options["url"], text


def _require_right(url: str, store: str, right: str, request: Request) -> None:
    """Send a request that needs this right and, where it changes something, has no content: it is then refused later.

    Raises: PermissionDenied, which names service, store and right; NotFound, Unavailable.
    """
    with Client(url, token=service_token(), options=_options()) as client:
        try:
            client.run(ask(client.session, request, now_ms(), ANSWER_MS_MAX))
        except PermissionDenied as error:
            raise PermissionDenied(
                f"the token of this job lacks the right to {right} in a store",
                code=error.code,
                hint=f"set {TOKEN_VARIABLE} to a token whose user has the right {right!r} for this store; a token with "
                "prefix= has none",
                service=url,
                store=store,
            ) from error
        except NotFound as error:
            raise PermissionDenied(
                "a store, or its durable, does not exist, and the token of this job may not make it",
                code=error.code,
                hint="make it with define_spark_stores, or give the job a token with the right administer",
                service=url,
                store=store,
            ) from error
        except InvalidRequest:
            pass  # the right was checked before the body


def _options() -> ClientOptions:
    return with_trusted_hosts(ClientOptions(give_up_after_ms=ANSWER_MS_MAX))
