"""Connections, requests and responses, for every route.

An ``HttpConnection`` parses every request. It serves plain requests of the hot routes itself, each by a
``FastRequest``. All others go to the framework (``http_server.Application``), one at a time (``Exchange``). Both call
the same handlers, so a response does not depend on the way.

1. ``state``: what the layers above pass in: ``HttpState``, ``FastRequest`` and its ``PendingResponse``.
2. ``routes``: ``Route``, a row of the table; ``Call``, a request in hand; ``RouteEndpoint``: rights and errors.
3. ``connection``: one connection; ``exchange``: one request of the framework on it.
4. ``http_server``: listeners, and the end of all connections.
5. ``requests``, ``responses``, ``auth``: pure checks of requests, the status of each code, tokens and roles.
"""
