"""Every route of the message stores.

Owns: the complete list. Does not own: the rows, which stand with their handlers.
"""

from __future__ import annotations

from holdfast.server.http.routes import Route
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.routes_cluster import cluster_routes
from holdfast.server.stores.routes_definitions import definition_routes
from holdfast.server.stores.routes_maps import map_routes
from holdfast.server.stores.routes_messages import message_routes
from holdfast.server.stores.routes_subscribe import subscribe_routes

__all__ = ["store_routes"]


def store_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    return (
        *definition_routes(host),
        *message_routes(host),
        *subscribe_routes(host),
        *map_routes(host),
        *cluster_routes(host),
    )
