"""Whether the process at an address leads the log: one ``GET /livez``, with a bound on its time and its bytes."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

import msgspec

from holdfast.commit.leadership.addresses import host_of
from holdfast.commit.leadership.evidence import LeaderAnswer, Reply, Shown
from holdfast.commit.leadership.peer_tls import PeerTls, problem_in
from holdfast.errors import InvalidRequest
from holdfast.values import UNIX, parse_slot
from holdfast.wire.log import Liveness

ANSWER_BYTES_MAX: Final = 65_536
_LIVENESS: Final = msgspec.json.Decoder(Liveness)


async def ask_leader(address: str, ms_max: float, host: str = "", *, tls: PeerTls) -> LeaderAnswer:
    """Whether the process at ``address`` leads, and what it has shown of itself. It has ``ms_max`` to answer.

    Where it speaks TLS, ``tls`` verifies it as a leader that advertises ``host``; empty: the host of ``address``.
    """
    try:
        async with asyncio.timeout(ms_max / 1000.0):
            answer = await _get_livez(address, host or host_of(address), tls)
    except ConnectionRefusedError:
        return LeaderAnswer(Reply.REFUSES)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # it has ended, or its network has
        return LeaderAnswer(Reply.SILENT)
    except ssl.SSLError as error:
        return LeaderAnswer(Reply.UNVERIFIED, problem=problem_in(error))
    except InvalidRequest as error:
        return LeaderAnswer(Reply.UNVERIFIED, problem=error.statement())
    except (OSError, TimeoutError, ValueError, EOFError):
        return LeaderAnswer(Reply.SILENT)
    return answer_in(answer)


def answer_in(response: bytes) -> LeaderAnswer:
    """What a response to ``GET /livez`` says. A process that answers anything else is not known to be another one."""
    head, _, body = response.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        return LeaderAnswer(Reply.SILENT)
    try:
        liveness = _LIVENESS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return LeaderAnswer(Reply.SILENT)
    if not liveness.leading:
        return LeaderAnswer(Reply.LEADS_NOT)
    slot = parse_slot(liveness.slot)
    signs = None if slot is None else Shown(slot, liveness.sign)
    return LeaderAnswer(Reply.LEADS, liveness.leader_id, signs)


async def _get_livez(address: str, advertised: str, tls: PeerTls) -> bytes:
    if address.startswith(UNIX):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix(UNIX))
        host = "localhost"
    else:
        name, _, port = address.removeprefix("http://").removeprefix("https://").rstrip("/").rpartition(":")
        name = name.strip("[]").encode("idna").decode("ascii")
        host = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        context = tls.context_for(address)
        certificate_name = None if context is None else tls.name_for(advertised)
        reader, writer = await asyncio.open_connection(name, int(port), ssl=context, server_hostname=certificate_name)
    try:
        writer.write(f"GET /livez HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return await _read_to_end(reader)
    finally:
        writer.close()


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    whole = bytearray()
    while len(whole) < ANSWER_BYTES_MAX:
        part = await reader.read(ANSWER_BYTES_MAX)
        if not part:
            break
        whole += part
    return bytes(whole)
