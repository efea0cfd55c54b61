"""Bodies, events and frames of the HTTP API, each defined once for the service and the clients.

Read ``log`` first: commits, versions, keys, the event stream, health, and the error body that every route shares. Then
``stores``: publishing, consuming, maps and the frames of a subscriber's WebSocket. ``formats`` names JSON and msgpack.

The service decodes requests with the bounds that stand in the types, and refuses unknown fields. A client ignores
unknown fields of a response. A response field with a default is one that an older service may not send; the service
always passes it. Field order is the order on the wire.

``openapi.json`` is generated from these types. It publishes some under names of its own (see ``server.openapi``).
"""
