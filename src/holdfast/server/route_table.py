"""Every route of the service, in one place. The rows stand with their handlers."""

from __future__ import annotations

from holdfast.server.commit.commit_stream import stream_route
from holdfast.server.commit.inspection_routes import inspection_routes
from holdfast.server.commit.log_job_routes import LogJobs, log_job_routes
from holdfast.server.commit.retention_routes import RetentionHost, retention_routes
from holdfast.server.commit.routes import log_routes
from holdfast.server.commit.snapshot_route import SnapshotSender, snapshot_route
from holdfast.server.commit.sse import Subscriptions, subscribe_route
from holdfast.server.commit.staged_routes import staged_routes
from holdfast.server.commit.storage_route import storage_route
from holdfast.server.gateway import Gateway
from holdfast.server.health import StoreWatch, description_routes, health_routes
from holdfast.server.http.routes import Route
from holdfast.server.metrics import ServerMetrics
from holdfast.server.openapi import describe
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.routes import store_routes
from holdfast.server.view.embedded_view import EmbeddedView
from holdfast.server.view.routes import job_routes, view_routes
from holdfast.wire.log import ConfigurationAnswer


def route_table(
    gateway: Gateway,
    *,
    metrics: ServerMetrics,
    watch: StoreWatch,
    subscriptions: Subscriptions,
    view: EmbeddedView,
    retention: RetentionHost,
    jobs: LogJobs,
    version: str,
    stores: StoreHost | None = None,
    configuration: ConfigurationAnswer = ConfigurationAnswer(),  # noqa: B008  # it is frozen
) -> list[Route]:
    """The rows. ``version`` is what the description says of this package; without ``stores`` theirs are not there.

    ``configuration``: the settings in force.
    """
    rows: list[Route] = [
        *log_routes(gateway),
        *retention_routes(retention),
        stream_route(gateway),
        subscribe_route(subscriptions),
        snapshot_route(SnapshotSender(gateway, retention)),
        *inspection_routes(gateway, configuration),
        storage_route(gateway),
        *staged_routes(
            gateway, max(gateway.limits.request_bytes_max, 0 if stores is None else stores.request_bytes_max)
        ),
        *log_job_routes(jobs),
        *view_routes(gateway, view),
        *job_routes(gateway, view),
        *(store_routes(stores) if stores is not None else ()),
        *health_routes(gateway, watch, stores=stores, scrape=metrics.text),
        *description_routes(lambda: described),
    ]
    described = describe(rows, version=version, with_tokens=gateway.authenticator.required)
    return rows
