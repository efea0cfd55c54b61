"""The process that writes and reads the directory, so that syncs do not block the leader's interpreter.

A worker runs this module by ``python -S`` without the package's dependencies: 40 ms and 11 MB. It serves one stream
socket and stops only at its end, so the workers of a killed leader end too; a create in flight may still land, which
the log's protocol allows. It ignores terminal and service-manager signals: the leader drains through its workers.

Frames, little-endian. Request: uint32 bytes that follow, uint8 operation, uint16 bytes of the key, the key, the
argument: the object's bytes (create); uint64 start, uint64 length or 2^64-1 (read); uint32 limit and the key after
which to begin (list, whose key is the prefix); all keys, one a line (delete). Answer: uint32 bytes that follow, uint8
status, then the object, the rows (one line each: key, space, bytes) or the reason; of a created batch, the identity of
its folder.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence

from holdfast.objects.directory.files import PosixFiles
from holdfast.objects.directory.identity import Inode, Replaced, decode_identity, encode_identity
from holdfast.objects.directory.objects import COUNTDOWN_DIRECTORY, DirectoryObjects, Poisoned, UnfitPlace
from holdfast.objects.directory.time_slice import WAITING_NS, ask_for_time_slice

CREATE, READ, LIST, DELETE = range(4)
DONE, REFUSED, ABSENT, FAILED, POISONED, UNFIT, REPLACED = range(7)
WHOLE = 2**64 - 1

_REQUEST = struct.Struct("<IBH")
_ANSWER = struct.Struct("<IB")
_READ = struct.Struct("<QQ")
_LIST = struct.Struct("<I")
_LENGTH_BYTES = 4
_BATCHES = f"{COUNTDOWN_DIRECTORY}/"
RECEIVE_BYTES = 64 * 1024
"""The bytes of one read. For twice as much the allocator calls the system each time."""

_START = """
import sys, types
for name in ("", ".objects", ".objects.directory"):
    sys.modules["holdfast" + name] = package = types.ModuleType("holdfast" + name)
    package.__path__ = [sys.argv[1] + name.replace(".", "/")]
from holdfast.objects.directory.worker import main
main(int(sys.argv[2]), *sys.argv[3:])
"""


def worker_command(root: str, token: str, descriptor: int, known: Mapping[str, Inode]) -> list[str]:
    """The command of a worker on an inherited socket. It imports its modules without running the packages' own code.

    ``known``: see ``DirectoryObjects``.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    identities = [f"{folder}={encode_identity(identity)}" for folder, identity in known.items()]
    return [sys.executable, "-S", "-E", "-s", "-c", _START, package, str(descriptor), root, token, *identities]


def encode_request_head(operation: int, key: str, argument_bytes: int) -> bytes:
    """Everything of a request before its argument."""
    name = key.encode()
    return _REQUEST.pack(_REQUEST.size - _LENGTH_BYTES + len(name) + argument_bytes, operation, len(name)) + name


def encode_read(start: int, length: int | None) -> bytes:
    """The argument of a read."""
    return _READ.pack(start, WHOLE if length is None else length)


def encode_list(after: str, limit: int) -> bytes:
    """The argument of a listing."""
    return _LIST.pack(limit) + after.encode()


def encode_delete(keys: Sequence[str]) -> bytes:
    """The argument of a removal."""
    return "\n".join(keys).encode()


def read_answer_head(data: bytearray) -> tuple[int, int] | None:
    """The size of the whole answer at the start of ``data`` and its status, None while that is not there yet."""
    if len(data) < _ANSWER.size:
        return None
    length, status = _ANSWER.unpack_from(data)
    return _LENGTH_BYTES + length, status


ANSWER_HEAD_BYTES = _ANSWER.size


def answer(objects: DirectoryObjects, operation: int, key: str, argument: memoryview) -> tuple[int, bytes]:
    """Carry out one request: its status and the bytes that go with it."""
    try:
        if operation == CREATE:
            if not objects.create(key, argument):
                return REFUSED, b""
            identity = objects.identity_of(COUNTDOWN_DIRECTORY) if key.startswith(_BATCHES) else None
            return DONE, b"" if identity is None else encode_identity(identity).encode()
        if operation == READ:
            start, length = _READ.unpack(argument)
            data = objects.read(key, start, None if length == WHOLE else length)
            return (ABSENT, b"") if data is None else (DONE, data)
        if operation == LIST:
            (limit,) = _LIST.unpack_from(argument)
            rows = objects.page(key, str(argument[_LIST.size :], "ascii"), limit)
            return DONE, "".join(f"{name} {size}\n" for name, size in rows).encode()
        objects.delete(*str(argument, "ascii").split("\n"))
    except Poisoned as error:
        return POISONED, _reason(error)
    except UnfitPlace as error:
        return UNFIT, _reason(error)
    except Replaced as error:
        return REPLACED, _reason(error)
    except OSError as error:
        return FAILED, _reason(error)
    return DONE, b""


def _reason(error: OSError) -> bytes:
    return (error.strerror or str(error)).encode()


def main(descriptor: int, root: str, token: str, *identities: str) -> None:
    """Run a worker process on its inherited socket. ``identities``: the known ones, each after its folder and ``=``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ask_for_time_slice(WAITING_NS)
    pairs = (each.partition("=") for each in identities)
    serve(socket.socket(fileno=descriptor), root, token, {folder: decode_identity(text) for folder, _, text in pairs})


def serve(stream: socket.socket, root: str, token: str, known: Mapping[str, Inode] = {}) -> None:
    """Serve one socket until it ends, and close it."""
    with stream:
        objects, refusal = _opened(root, token, known)
        try:
            while (request := _receive(stream)) is not None:
                operation, key, argument = request
                if objects is None:
                    objects, refusal = _opened(root, token, known)
                status, data = refusal if objects is None else answer(objects, operation, key, argument)
                stream.sendall(_ANSWER.pack(_ANSWER.size - _LENGTH_BYTES + len(data), status) + data)
                if operation == CREATE and objects is not None:
                    objects.tidy()
        except ConnectionError:
            pass  # the leader is gone, like the end of the stream
        finally:
            if objects is not None:
                objects.close()


def _opened(root: str, token: str, known: Mapping[str, Inode]) -> tuple[DirectoryObjects | None, tuple[int, bytes]]:
    """The objects, or None and the answer that says why not."""
    try:
        return DirectoryObjects(PosixFiles(), root, token, known), (DONE, b"")
    except Replaced as error:
        return None, (REPLACED, _reason(error))
    except OSError as error:
        return None, (FAILED, _reason(error))


def _receive(stream: socket.socket) -> tuple[int, str, memoryview] | None:
    """The next request, None at the end of the stream, also for an incomplete request."""
    data = stream.recv(RECEIVE_BYTES)
    while len(data) < _REQUEST.size:
        more = stream.recv(RECEIVE_BYTES)
        if not more:
            return None
        data += more
    length, operation, name_bytes = _REQUEST.unpack_from(data)
    total = _LENGTH_BYTES + length
    if len(data) < total:
        whole = bytearray(total)
        whole[: len(data)] = data
        rest = memoryview(whole)[len(data) :]
        while rest:
            received = stream.recv_into(rest)
            if received == 0:
                return None
            rest = rest[received:]
        view = memoryview(whole)
    else:
        view = memoryview(data)
    at = _REQUEST.size + name_bytes
    return operation, str(view[_REQUEST.size : at], "ascii"), view[at:total]
