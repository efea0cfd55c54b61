"""TLS between the processes of a log: what a process trusts that asks another one whether it leads.

It trusts the authorities in ``server.peer_ca_file``, without it those of the system and the chain of its own
certificate. The certificate must name the host of the advertised address; where that is an IP address,
``server.peer_name`` if it is set.

The processes of a log have the same configuration, so a leader can also ask what its standbys will find: ``problem_of``
makes a handshake with its own certificate, in memory. Nothing secret is sent to a peer.
"""

from __future__ import annotations

import ipaddress
import ssl
from typing import Final

from holdfast.commit.leadership.addresses import host_of
from holdfast.errors import Code, InvalidRequest

ROUNDS_MAX: Final = 8
"""A handshake takes three."""
UNVERIFIED_FIX: Final = (
    "set server.advertised_address to a name in the certificate, or server.peer_name where that is an IP address; set "
    "server.peer_ca_file to the authority that signed it"
)


class PeerTls:
    """How one process verifies another. Without arguments it trusts the authorities of the system alone."""

    def __init__(self, certificate: str | None = None, ca_file: str | None = None, name: str | None = None) -> None:
        """``certificate``: this process's own; with one, an address without a scheme speaks TLS. Reads no file."""
        self.certificate = certificate
        self._ca_file = ca_file
        self._name = name
        self._context: ssl.SSLContext | None = None

    def read(self) -> ssl.SSLContext:
        """A new context, from the files as they are now. Raises: InvalidRequest (``bad_configuration``)."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # What is trusted need not be a root: an authority between, or a certificate that all processes share.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self._ca_file is None:
            context.load_default_certs()
        trusted = self._ca_file or self.certificate
        if trusted is not None:
            try:
                context.load_verify_locations(trusted)
            except (OSError, ssl.SSLError) as error:
                problem = f"the certificates that peers must have cannot be read: {error}"
                raise InvalidRequest(problem, code=Code.BAD_CONFIGURATION, file=trusted) from error
        return context

    def replace(self, context: ssl.SSLContext) -> None:
        """Verify by this context from now on."""
        self._context = context

    def context_for(self, address: str) -> ssl.SSLContext | None:
        """The context for a peer's address, None where it does not speak TLS.

        A job that leads has no certificate: its address begins with ``http://``. Raises: as ``read``, the first time.
        """
        if address.startswith("http://") or not (self.certificate or address.startswith("https://")):
            return None
        if self._context is None:
            self._context = self.read()
        return self._context

    def name_for(self, host: str) -> str:
        """The name that the certificate of a peer must have, which advertises ``host``.

        >>> PeerTls(name="log.example").name_for("10.0.0.7"), PeerTls(name="log.example").name_for("one.example")
        ('log.example', 'one.example')
        """
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host
        return self._name or host

    def problem_of(self, own: ssl.SSLContext, advertised: str) -> str | None:
        """Why peers would not verify a process with the certificate of ``own`` at this address; None if they do."""
        context, host = self.context_for(advertised), host_of(advertised)
        if context is None or not host:
            return None
        name = self.name_for(host)
        to_own, to_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        peer = context.wrap_bio(to_peer, to_own, server_hostname=name)
        server = own.wrap_bio(to_own, to_peer, server_side=True)
        for _ in range(ROUNDS_MAX):
            try:
                peer.do_handshake()
                return None
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                return problem_in(error)
            try:
                server.do_handshake()
            except ssl.SSLWantReadError:
                pass
        raise AssertionError("a handshake in memory ends")


def problem_in(error: ssl.SSLError) -> str:
    """What is wrong, without the words of the library around it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    return error.reason or str(error)
