"""Runs the console until SIGINT, SIGTERM or, for a service that started it, the end of standard input."""

from __future__ import annotations

import os
import socket
import sys
import threading

from holdfast.console.options import ConsoleOptions
from holdfast.extras import needs

with needs("console"):
    import uvicorn

    from holdfast.console.application import application


class _Server(uvicorn.Server):
    """Says its address once it listens."""

    def __init__(self, config: uvicorn.Config, said: str) -> None:
        super().__init__(config)
        self._said = said

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See ``uvicorn.Server``."""
        await super().startup(sockets)
        if self.started:
            sys.stdout.write(self._said + "\n")
            sys.stdout.flush()

    def end_with_input(self) -> None:
        """Wait for the end of standard input, which the process that started this one holds open, and end."""
        while os.read(0, 4_096):
            pass
        self.should_exit = True


def run(options: ConsoleOptions, *, until_input_ends: bool = False) -> None:
    """Serve pages. Prints the address to open; the exit code of a port that is taken is 1, by uvicorn.

    ``until_input_ends``: also end when standard input ends.
    """
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
    acts = "acts" if options.acts else "only reads"
    server = _Server(config, f"console of {', '.join(options.services)} {acts}: open {options.address}")
    if until_input_ends:
        threading.Thread(target=server.end_with_input, daemon=True).start()
    server.run()
