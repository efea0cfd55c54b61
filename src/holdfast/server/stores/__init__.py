"""The message stores over HTTP and WebSocket.

Read in this order:

1. ``hosting``: ``StoreHost`` has the stores that are open in this process, as ``OpenStores``; ``opening`` opens them.
2. ``operations``: publish, acknowledge, poll and browse, from a decoded request to the bytes of its response.
3. ``subscribers``: a connected ``Subscriber``, a ``Poller``; ``deliveries``: all of them and the turn among them.
4. ``hot_routes``: the fast requests, one handler for both kinds of connection.
5. ``routes``: every other route.
6. ``socket``: one WebSocket for each subscriber; ``map_watch`` is the watch of a map on it.

``access`` says who may do what in which store. ``figures`` has counts as documents, ``store_metrics`` as metrics.
"""
