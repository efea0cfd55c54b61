"""Addresses as text: ``HOST:PORT`` with or without ``http://`` or ``https://``, and ``unix:PATH``.

A wildcard host (``0.0.0.0``, ``[::]``) is where a process listens, and no address that another process can reach.
"""

from __future__ import annotations

from typing import Final

from holdfast.values import UNIX

WILDCARDS: Final = ("0.0.0.0", "[::]")
SCHEMES: Final = ("https://", "http://")


def without_scheme(address: str) -> str:
    """``HOST:PORT`` or ``unix:PATH``.

    >>> without_scheme("https://log.example:8443/"), without_scheme("unix:/run/h.sock")
    ('log.example:8443', 'unix:/run/h.sock')
    """
    for scheme in SCHEMES:
        address = address.removeprefix(scheme)
    return address.rstrip("/")


def host_of(address: str) -> str:
    """The host, an IPv6 address without brackets; empty for a Unix socket.

    >>> host_of("https://log.example:8443"), host_of("[::1]:80"), host_of("unix:/run/h.sock"), host_of("log.example")
    ('log.example', '::1', '', 'log.example')
    """
    if address.startswith(UNIX):
        return ""
    bare = without_scheme(address)
    host, _, port = bare.rpartition(":")
    return (host if host and port.isdigit() else bare).strip("[]")


def is_wildcard(address: str) -> bool:
    """Whether the host of an address stands for every interface.

    >>> is_wildcard("0.0.0.0:8080"), is_wildcard("https://[::]:8443"), is_wildcard("10.0.0.7:8080")
    (True, True, False)
    """
    return not address.startswith(UNIX) and without_scheme(address).rpartition(":")[0] in WILDCARDS


def on_host(address: str, host: str) -> str:
    """The address with ``host`` in the place of a wildcard; any other address as it is.

    >>> on_host("https://0.0.0.0:8443", "10.0.0.7"), on_host("10.0.0.9:80", "10.0.0.7")
    ('https://10.0.0.7:8443', '10.0.0.9:80')
    """
    if not is_wildcard(address):
        return address
    for wildcard in WILDCARDS:
        address = address.replace(wildcard, host)
    return address


def on_loopback(address: str) -> str:
    """How a process of the same machine reaches a listener: a wildcard by the loopback address.

    >>> on_loopback("[::]:80"), on_loopback("10.0.0.7:80")
    ('[::1]:80', '10.0.0.7:80')
    """
    return on_host(address, "[::1]" if WILDCARDS[1] in address else "127.0.0.1")
