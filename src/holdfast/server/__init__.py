"""The HTTP server of a log, its message stores and its view: ``holdfast serve``.

Read in this order:

1. ``run``: one process from its start to its exit code. It builds all parts below and passes each to those that use it.
   ``upkeep`` is the background work while it leads; ``children`` are processes that it starts.
2. ``gateway``: ``Gateway`` stands before the commit service: admission and rates.
3. ``http``: connections, requests and responses. It serves every route, but names none: the routes are passed in.
4. ``route_table``: every route, from ``commit``, ``stores``, ``view`` and ``health``, each a ``Route``.
5. ``openapi`` and ``metrics``: the description of the routes, and the counts of all parts.

Upper layers import lower ones. From the top: ``run``, ``upkeep``, ``route_table``, ``metrics | health | openapi``,
``stores | view``, ``commit``, ``gateway``, ``http``, ``logs`` (the contract ``server-layers`` in pyproject.toml).

Building a server, without its process::

    gateway = Gateway(limits=limits, authenticator=authenticator)
    server = HttpServer(gateway, route_table(gateway, ...), matcher=HotStores(host))
    await server.listen(["127.0.0.1:8080"])
    gateway.lead(service)
"""
