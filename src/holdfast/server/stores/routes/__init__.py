"""The routes of the message stores that need no fast path, and the rows of all.

``messages`` publishes, delivers and acknowledges, and has the maps. ``parts`` are the stores, durables and templates,
``definition`` is the whole of them and says how a request changes it. ``cluster`` has the operations on all stores.
``store_call`` is a request in the hands of each of these handlers.
"""

from __future__ import annotations

from holdfast.server.http.routes import Route
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.routes.cluster import cluster_routes
from holdfast.server.stores.routes.definition import definition_routes
from holdfast.server.stores.routes.messages import map_routes, message_routes, subscribe_routes
from holdfast.server.stores.routes.parts import part_routes


def store_routes(host: StoreHost) -> tuple[Route, ...]:
    """The rows."""
    return (
        *part_routes(host),
        *definition_routes(host),
        *message_routes(host),
        *subscribe_routes(host),
        *map_routes(host),
        *cluster_routes(host),
    )
