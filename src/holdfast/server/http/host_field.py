"""The Host field of a request, as RFC 9112, section 3.2, wants it: one, of a valid form, in every HTTP/1.1 request.

Owns: what is wrong with the fields of a request in this respect. Does not own: which host is ours; every name is, as
this service has no virtual hosts.

Failure model: pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from holdfast.errors import InvalidRequest

__all__ = ["problem_with_host"]

# RFC 3986, section 3.2.2: an address in brackets (with its zone, which careless clients leave there), or a registered
# name, which may be empty and of whose form an IPv4 address is.
_HOST: Final = re.compile(rb"(?:\[[0-9A-Za-z.:%_~-]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?")


def problem_with_host(hosts: Sequence[bytes]) -> InvalidRequest | None:
    """What is wrong with a request that has these Host fields, or None.

    >>> problem_with_host([b"log.example:8080"]), problem_with_host([b"[::1]"]), problem_with_host([b""])
    (None, None, None)
    >>> [str(problem_with_host(wrong)) for wrong in ([], [b"a", b"a"], [b"a/b"])]  # doctest: +NORMALIZE_WHITESPACE
    ['a request of HTTP/1.1 has a Host field', 'a request has one Host field', 'the Host field names no host']
    """
    if not hosts:
        return InvalidRequest("a request of HTTP/1.1 has a Host field")
    if len(hosts) > 1:
        return InvalidRequest("a request has one Host field")
    return None if _HOST.fullmatch(hosts[0].strip(b" \t")) else InvalidRequest("the Host field names no host")
