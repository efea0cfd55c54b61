"""Every route of the service, in one place.

Owns: the complete list. Does not own: the rows, which stand with their handlers.
"""

from __future__ import annotations

from holdfast.server.commit.commit_stream import ROUTES as STREAM_ROUTES
from holdfast.server.commit.routes import ROUTES as LOG_ROUTES
from holdfast.server.commit.sse import Subscriptions, subscribe_route
from holdfast.server.gateway import Gateway
from holdfast.server.health import StoreWatch, health_routes
from holdfast.server.http.routes import Route
from holdfast.server.metrics import ServerMetrics
from holdfast.server.openapi import describe
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.routes_administration import store_routes
from holdfast.server.view.embedded_view import EmbeddedView
from holdfast.server.view.routes import view_routes

__all__ = ["route_table"]


def route_table(
    front: Gateway,
    *,
    metrics: ServerMetrics,
    watch: StoreWatch,
    subscriptions: Subscriptions,
    view: EmbeddedView,
    version: str,
    stores: StoreHost | None = None,
) -> list[Route]:
    """The rows. ``version`` is what the description says of this package; without ``stores`` theirs are not there."""
    rows: list[Route] = [
        *LOG_ROUTES,
        *STREAM_ROUTES,
        subscribe_route(subscriptions),
        *view_routes(view),
        *(store_routes(stores) if stores is not None else ()),
        *health_routes(
            unready=watch.problem,
            damage=watch.damage,
            stores=stores,
            scrape=metrics.text,
            description=lambda: described,
        ),
    ]
    described = describe(rows, version=version, with_tokens=front.authenticator.required)
    return rows
