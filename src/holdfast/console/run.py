"""Runs the console until SIGINT or SIGTERM."""

from __future__ import annotations

import sys

from holdfast.console.options import ConsoleOptions
from holdfast.extras import needs

with needs("console"):
    import uvicorn

    from holdfast.console.application import application


def run(options: ConsoleOptions) -> None:
    """Serve pages. Prints the address to open; the exit code of a port that is taken is 1, by uvicorn."""
    config = uvicorn.Config(
        application(options),
        host=options.listen_host,
        port=options.listen_port,
        ssl_certfile=None if options.tls_certificate is None else str(options.tls_certificate),
        ssl_keyfile=None if options.tls_key is None else str(options.tls_key),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=5,
        limit_concurrency=200,
        proxy_headers=False,
    )
    sys.stdout.write(
        f"console of {', '.join(options.services)} {'acts' if options.acts else 'only reads'}: open {options.address}\n"
    )
    sys.stdout.flush()
    uvicorn.Server(config).run()
