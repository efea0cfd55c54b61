"""The fault proxy as a process of its own, steered over a control port.

Control protocol, on TCP at 127.0.0.1: one JSON object a line in each direction, a ``Command`` and its response. ``is``
names the response: a ``ProxyState``, or a ``Complaint`` about a line that is not a command. It ends at SIGTERM
and at the end of its standard input, so it cannot outlive the process that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.errors import InvalidRequest, Unavailable
from holdfast.testing.fault_proxy import Fault, FaultProxy, Latency, Rule

__all__ = ["FaultProxyProcess", "ProxyState"]

_CONTROL_SECONDS_MAX: Final = 30.0
_LINE_BYTES_MAX: Final = 1024 * 1024


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to change; an empty one asks for the state. ``latency``: of requests that meet no other fault, null for
    none. ``partitioned``: cut every connection, or heal. ``release``: deliver what is held."""

    rules: list[Rule] | UnsetType = UNSET
    latency: Latency | UnsetType | None = UNSET
    partitioned: bool | UnsetType = UNSET
    release: bool = False


class ProxyState(msgspec.Struct, tag_field="is", tag="state", frozen=True):
    """The proxy after a command. ``faults`` counts what was done since the start, by fault."""

    port: int
    control_port: int
    requests: int = 0
    held: int = 0
    partitioned: bool = False
    faults: dict[str, int] = {}


class Complaint(msgspec.Struct, tag_field="is", tag="complaint", frozen=True):
    """The answer to a line that is no command."""

    error: str


async def _obey(proxy: FaultProxy, command: Command) -> None:
    if command.rules is not UNSET:
        proxy.set_rules(command.rules)
    if command.latency is not UNSET:
        proxy.latency = command.latency
    if command.partitioned is not UNSET:
        proxy.partition(command.partitioned)
    if command.release:
        await proxy.release()


async def _serve(proxy: FaultProxy, control_port: int, follow_stdin: bool) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if follow_stdin:
        loop.add_reader(sys.stdin.fileno(), ended.set)

    def state() -> ProxyState:
        return ProxyState(
            port=proxy.port,
            control_port=control.sockets[0].getsockname()[1],
            requests=proxy.requests,
            held=proxy.held,
            partitioned=proxy.partitioned,
            faults={fault.value: count for fault, count in sorted(proxy.faults_done.items())},
        )

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while line := await reader.readline():
                response: ProxyState | Complaint
                try:
                    await _obey(proxy, msgspec.json.decode(line, type=Command))
                    response = state()
                except (msgspec.ValidationError, msgspec.DecodeError, InvalidRequest) as error:
                    response = Complaint(str(error))
                writer.write(msgspec.json.encode(response) + b"\n")
                await writer.drain()
        writer.close()

    async with proxy:
        control = await asyncio.start_server(converse, "127.0.0.1", control_port, limit=_LINE_BYTES_MAX)
        print(msgspec.json.encode(state()).decode(), flush=True)
        await ended.wait()
        control.close()


class FaultProxyProcess:
    """Starts the proxy in its own process and steers it. Methods block; used as a context manager."""

    def __init__(self, server_host: str, server_port: int, *, seed: int = 0, port: int = 0) -> None:
        self._command = [sys.executable, "-m", "holdfast.testing.fault_proxy_process"]
        self._command += ["--server", f"{server_host}:{server_port}", "--seed", str(seed), "--port", str(port)]
        self._command += ["--follow-stdin"]
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._state: ProxyState | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """The address to give to clients instead of the server's."""
        assert self._state is not None, "the proxy was started"
        return f"http://127.0.0.1:{self._state.port}"

    def start(self) -> None:
        """Start, and wait until it listens. Raises: Unavailable."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=True)
        assert self._process.stdout is not None, "the output is a pipe"
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable("fault proxy did not start", exit_code=self._process.wait())
        self._state = msgspec.json.decode(line, type=ProxyState)
        self._control = socket.create_connection(("127.0.0.1", self._state.control_port), timeout=_CONTROL_SECONDS_MAX)

    def stop(self) -> None:
        """End the process. Stopping twice is harmless."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def set_rules(self, rules: Sequence[Rule]) -> ProxyState:
        """Replace the rules."""
        return self._tell(Command(rules=list(rules)))

    def set_latency(self, latency: Latency | None) -> ProxyState:
        """Replace the latency."""
        return self._tell(Command(latency=latency))

    def partition(self, partitioned: bool = True) -> ProxyState:
        """Cut every connection, or heal."""
        return self._tell(Command(partitioned=partitioned))

    def release(self) -> ProxyState:
        """Deliver what is held; returns when the server has answered all of it."""
        return self._tell(Command(release=True))

    def report(self) -> ProxyState:
        """What was done so far."""
        return self._tell(Command())

    def _tell(self, command: Command) -> ProxyState:
        assert self._control is not None, "the proxy was started"
        self._control.sendall(msgspec.json.encode(command) + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            more = self._control.recv(65536)
            if not more:
                raise Unavailable("fault proxy has gone")
            line += more
        response = msgspec.json.decode(line, type=ProxyState | Complaint)
        if isinstance(response, Complaint):
            raise InvalidRequest(response.error)
        return response


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proxy: ``python -m holdfast.testing.fault_proxy_process --server HOST:PORT``."""
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.testing.fault_proxy_process", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="the object store behind the proxy")
    parser.add_argument("--port", type=int, default=0, help="to listen on at 127.0.0.1 (default: a free one)")
    parser.add_argument("--control-port", type=int, default=0, help="for commands (default: a free one)")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice")
    parser.add_argument("--fault", choices=[fault.value for fault in Fault], help="one rule for all requests")
    parser.add_argument("--probability", type=float, default=0.1, help="of --fault")
    parser.add_argument("--latency", metavar="MEDIAN,P99", help="milliseconds, log-normal")
    parser.add_argument("--follow-stdin", action="store_true", help="end when standard input ends")
    chosen = parser.parse_args(arguments)
    host, _, port = chosen.server.rpartition(":")
    latency = None
    if chosen.latency:
        median_ms, _, p99_ms = chosen.latency.partition(",")
        latency = Latency(median_ms=float(median_ms), p99_ms=float(p99_ms))
    rules = [Rule(fault=Fault(chosen.fault), probability=chosen.probability)] if chosen.fault else []
    proxy = FaultProxy(host, int(port), rules=rules, latency=latency, seed=chosen.seed, port=chosen.port)
    asyncio.run(_serve(proxy, chosen.control_port, chosen.follow_stdin))
    return 0


if __name__ == "__main__":
    sys.exit(main())
