"""What one request costs on the HTTP front alone: both lanes, in front of a pipeline that answers at once.

The service behind the front commits everything in the next turn of the loop and keeps nothing, so what is measured is
the kernel's part, parsing, decoding, checking, answering. The load generator (wrk, one thread) shares the cores.

    python benchmarks/http_lanes.py [--connections 64] [--seconds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import uvloop

from holdfast.commit.format.transaction import Committed
from holdfast.commit.service import ServiceEnd
from holdfast.commit.stages.events import CommitEntry
from holdfast.errors import HoldfastError
from holdfast.server.commit.routes import log_routes
from holdfast.server.gateway import Gateway, GatewayLimits
from holdfast.server.http.auth import Authenticator
from holdfast.server.http.http_server import HttpServer
from holdfast.wire.log import StatusAnswer

SCRIPT = """
local n = 0
local value = string.rep('dmFs', 33) .. 'dg=='
request = function()
  n = n + 1
  local key = string.format('k%015d', n)
  local body = '{"preconditions":[{"type":"point_read","key":"' .. key .. '","version":1}],'
    .. '"operations":[{"type":"write","key":"' .. key .. '","value":"' .. value .. '"}]}'
  return 'POST /v1/commit HTTP/1.1\\r\\nHost: localhost\\r\\n' .. UNUSUAL .. 'Content-Type: application/json\\r\\n'
    .. 'Content-Length: ' .. #body .. '\\r\\n\\r\\n' .. body
end
"""


class AnswersAtOnce:
    """Commits everything in the next turn of the loop."""

    leader_id = "0" * 32
    log_id = "0" * 32
    address = "nowhere"
    lineage = None

    def __init__(self) -> None:
        self._version = 1
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[ServiceEnd] = self._loop.create_future()

    def submit(self, entries: list[CommitEntry]) -> None:
        self._loop.call_soon(self._answer, entries)

    def _answer(self, entries: list[CommitEntry]) -> None:
        for entry in entries:
            self._version += 1
            entry.outcome = Committed(self._version)
            entry.reply(entry)

    @property
    def ended(self) -> asyncio.Future[ServiceEnd]:
        return self._ended

    def admission(self) -> HoldfastError | None:
        return None

    async def version(self) -> int:
        return self._version

    def local_version(self) -> int:
        return self._version

    async def status(self, request_id: str, min_version: int) -> StatusAnswer:
        raise NotImplementedError

    async def noop(self) -> None:
        return None

    async def step_down(self) -> None:
        return None

    def standby_seen(self, standby: str = "", proof: str = "") -> None:
        return None


async def measure(unusual: str, connections: int, seconds: int) -> dict[str, float]:
    """Requests a second, latencies and the server's CPU time per request."""
    front = Gateway(limits=GatewayLimits(), authenticator=Authenticator({}))
    server = HttpServer(front, log_routes(front))
    (address,) = await server.listen(["127.0.0.1:0"])
    front.lead(AnswersAtOnce())  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "commit.lua"
        script.write_text(SCRIPT.replace("UNUSUAL", f"'{unusual}'"))
        before = os.times()
        wrk = await asyncio.create_subprocess_exec(
            *("wrk", "-t1", f"-c{connections}", f"-d{seconds}", "--latency", "-s", str(script), f"http://{address}"),
            stdout=subprocess.PIPE,
        )
        output = (await wrk.communicate())[0].decode()
        after = os.times()
    await server.finish(1.0)
    total = int(re.search(r"(\d+) requests in", output)[1])  # type: ignore[index]
    cpu = after.user + after.system - before.user - before.system

    def latency_ms(percentile: str) -> float:
        number, unit = re.search(rf"{percentile}%\s+([\d.]+)(us|ms|s)", output).groups()  # type: ignore[union-attr]
        return float(number) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit]

    assert "Non-2xx" not in output, output
    return {
        "requests_per_second": total / seconds,
        "p50_ms": latency_ms("50"),
        "p99_ms": latency_ms("99"),
        "cpu_us_per_request": cpu / total * 1e6,
    }


def main() -> None:
    """Measure both lanes in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    # A header of browsers makes the same request unusual, so the framework serves it.
    of_browsers = "Sec-Fetch-Site: none\\r\\n"
    for lane, unusual in (("fast lane", ""), ("framework lane", of_browsers)):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found[lane] = runner.run(measure(unusual, options.connections, options.seconds))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))
    for lane, figures in found.items():
        print(
            f"{lane:<15} {figures['requests_per_second']:>9,.0f}/s  p50 {figures['p50_ms']:.2f} ms"
            f"  p99 {figures['p99_ms']:.2f} ms  CPU {figures['cpu_us_per_request']:.1f} us a request"
        )


if __name__ == "__main__":
    main()
