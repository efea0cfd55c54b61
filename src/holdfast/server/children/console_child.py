"""``holdfast serve --console``: the web console as a child process.

The child is a client of this service like any other. It ends when its standard input does, so it never outlives the
service, however that ended. Its own end never ends the service: it is logged, and the console is started again after a
pause.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from holdfast.server.children.background_process import BackgroundProcess

NICE: Final = 5
AGAIN_SECONDS: Final = 30.0
STOP_SECONDS: Final = 2.0
BAD_OPTIONS: Final = 2
"""The exit code of a console whose options are wrong: they stay wrong, so it is not started again."""
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]", "": "127.0.0.1"}

log = structlog.get_logger("holdfast.server")


def url_for_console(bound: str, advertised: str, *, with_tls: bool) -> str:
    """Where a process on this machine reaches the service. ``bound``: the first address, with its port.

    With TLS it is the advertised address, because the certificate names it.

    >>> url_for_console("0.0.0.0:8080", "", with_tls=False), url_for_console("unix:/run/holdfast", "", with_tls=False)
    ('http://127.0.0.1:8080', 'unix:/run/holdfast')
    """
    if bound.startswith("unix:"):
        return bound
    host, _, port = (advertised if with_tls else bound).rpartition(":")
    return f"{'https' if with_tls else 'http'}://{_ANY.get(host, host)}:{port}"


class ConsoleChild:
    """Keeps one console running until it is closed. ``say`` gets each line of its standard output."""

    def __init__(self, options: Sequence[str], url: str, say: Callable[[str], None]) -> None:
        """``options``: those of ``holdfast console`` in addition to ``--service``."""
        self._command = (
            *(sys.executable, "-m", "holdfast.cli.main", "console", "--service", url, "--until-input-ends"),
            *options,
        )
        self._say = say
        self._process: BackgroundProcess | None = None
        self._is_closing = False
        self._keeping = asyncio.ensure_future(self._keep())

    async def close(self) -> None:
        """End the console; one that does not end within ``STOP_SECONDS`` is killed."""
        self._is_closing = True
        if self._process is not None:
            self._process.end_input()
            await asyncio.wait({self._keeping}, timeout=STOP_SECONDS)
        self._keeping.cancel()
        await asyncio.wait({self._keeping})

    async def _keep(self) -> None:
        while True:
            try:
                exit_code = await self._run()
            except (OSError, ValueError) as error:  # ValueError: a line that is too long
                log.warning("console_not_started", error=str(error), again_seconds=AGAIN_SECONDS)
            else:
                if self._is_closing:
                    return
                if exit_code == BAD_OPTIONS:
                    log.error(
                        "console_refused", exit_code=exit_code, hint="`holdfast console` with its options says why"
                    )
                    return
                log.warning("console_ended", exit_code=exit_code, again_seconds=AGAIN_SECONDS)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _run(self) -> int | None:
        """One console from its start to its exit code. A signal of the terminal does not reach it."""
        process = self._process = await BackgroundProcess.start(self._command, nice=NICE, has_input=True)
        try:
            async for line in process.output:
                self._say(line.decode(errors="replace").rstrip())
            return await process.exit_code()
        finally:
            self._process = None
            process.kill()
            await process.exit_code()
