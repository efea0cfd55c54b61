"""Connections, requests and responses, for every route.

A connection begins as a ``Connection`` (``connection``), which serves the few fast routes itself. Its first other
request moves it, with its unread bytes, to an ``AsgiConnection`` (``asgi_connection``), which serves every route with
the framework. A fast route has one handler, a ``FastRequest``, which both kinds call; so the move costs time and never
changes a response.

1. ``state``: what the layers above pass in: ``HttpState``, ``FastRequest`` and its ``PendingResponse``.
2. ``routes``: ``Route``, a row of the table; ``Call``, a request in a handler's hands; ``Endpoint``, rights and errors.
3. ``connection``, ``asgi_connection``: the two kinds of connection.
4. ``http_server``: listeners, and the end of all connections.
5. ``requests``, ``responses``, ``auth``: pure checks of requests, the status of each code, tokens and roles.
"""
