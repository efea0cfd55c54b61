"""The HTTP front of the commit log: a fast lane for the hot routes, a framework for the rest, on one port.

Owns: bytes on connections, routes and their description, streams, metrics, rights, starting and stopping a process.
Does not own: any decision about a commit (``holdfast.commit``), storage (``holdfast.objects``), the view
(``holdfast.view``).

    run             one process: start, lead or stand by, drain, exit code
    http_server     listeners and the end of connections
    fast_lane       every connection at first: commit, version, livez
    framework_lane  the other requests, by uvicorn's protocol and the application in app
    front           admission, one list of commits per turn of the loop
    requests        bytes -> transaction, or the code of what is wrong (pure)
    responses       outcome -> bytes, and the status of every code (pure)
    routes, routes_log, commit_stream, sse, routes_view, routes_health, openapi
"""
