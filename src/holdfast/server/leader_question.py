"""Whether the process at an address leads the log: one ``GET /livez``, with a bound on its time and its bytes."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

import msgspec

from holdfast.wire.log import STANDBY_HEADER, STANDBY_PROOF_HEADER, Liveness

ANSWER_SECONDS_MAX: Final = 2.0
ANSWER_BYTES_MAX: Final = 65_536
_LIVENESS: Final = msgspec.json.Decoder(Liveness)


async def ask_leader(address: str, *, tls: bool, standby: str | None, proof: str = "") -> str | None:
    """The leader id of the process at ``address`` while it leads, empty when it does not lead (yet), None without an
    answer.

    ``standby`` is the address of a standby that asks: once its questions stop, the leader writes heartbeats for it.
    ``proof`` shows that it can read the log; a leader with tokens ignores a question without it.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            answer = await _get_livez(address, tls=tls, standby=standby, proof=proof)
    except (OSError, TimeoutError, ValueError, EOFError):
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        return None
    try:
        liveness = _LIVENESS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return liveness.leader_id if liveness.leading else ""


async def _get_livez(address: str, *, tls: bool, standby: str | None, proof: str) -> bytes:
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        host = "localhost"
    else:
        name, _, port = address.removeprefix("http://").removeprefix("https://").rstrip("/").rpartition(":")
        name = name.strip("[]").encode("idna").decode("ascii")
        host = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        context: ssl.SSLContext | None = None
        # A job that leads has no certificate, and says so by the scheme of its address.
        if address.startswith("https://") or (tls and not address.startswith("http://")):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        reader, writer = await asyncio.open_connection(name, int(port), ssl=context)
    try:
        query, headers = "", ""
        if standby is not None:
            query, headers = "?standby=true", f"{STANDBY_HEADER}: {standby}\r\n"
            if proof:
                headers += f"{STANDBY_PROOF_HEADER}: {proof}\r\n"
        writer.write(f"GET /livez{query} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n".encode())
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
