"""Runs the console until SIGINT, SIGTERM or, for a service that started it, the end of standard input."""

from __future__ import annotations

import errno
import os
import resource
import socket
import sys
import threading

from holdfast.console.options import ConsoleOptions
from holdfast.errors import Code, InvalidRequest, Unavailable, statement_of
from holdfast.extras import needs

with needs("console"):
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    from holdfast.console.application import application
    from holdfast.console.connections import Connections


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
    """Serve pages. Prints the address to open. Raises: InvalidRequest where it cannot listen on its address.

    ``until_input_ends``: also end when standard input ends; and an address on which it cannot listen is Unavailable,
    because the service that started this console tries again.
    """
    try:
        listening = _listening(options.listen_host, options.listen_port)
    except OSError as error:
        host = f"[{options.listen_host}]" if ":" in options.listen_host else options.listen_host
        reason, _, _ = (error.strerror or statement_of(error)).partition(" (")  # what Python adds
        problem = f"cannot listen on {host}:{options.listen_port}: {reason}"
        if until_input_ends:
            raise Unavailable(problem) from error
        raise InvalidRequest(problem, code=Code.BAD_CONFIGURATION) from error
    _raise_file_limit()
    config = uvicorn.Config(
        application(options),
        http=Connections().protocol(AutoHTTPProtocol),
        ssl_certfile=None if options.tls_certificate is None else str(options.tls_certificate),
        ssl_keyfile=None if options.tls_key is None else str(options.tls_key),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=5,
        proxy_headers=False,
    )
    acts = "acts" if options.acts else "only reads"
    server = _Server(config, f"console of {', '.join(options.services)} {acts}: open {options.address}")
    if until_input_ends:
        threading.Thread(target=server.end_with_input, daemon=True).start()
    server.run(listening)


def _raise_file_limit() -> None:
    """Connections that do not finish their TLS handshake count for the system alone, so there is room for many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _listening(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of ``host``; one that this machine does not have is left out. Raises: OSError."""
    opened: list[socket.socket] = []
    missing: OSError | None = None
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, address in dict.fromkeys((family, address) for family, _, _, _, address in addresses):
        try:
            opened.append(socket.create_server(address, family=family))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                for each in opened:
                    each.close()
                raise
            missing = error
    if missing is not None and not opened:
        raise missing
    return opened
