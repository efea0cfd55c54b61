"""Reads YAML that somebody else sent, without stopping the event loop of the process that got it.

A text of at most ``AT_ONCE`` is read at once, which takes some ten milliseconds. A larger one, up to ``FORM``, is read
by a process of its own, with bounds on its memory and time; at its time it is killed. A thread would not do: parsing
holds the interpreter's lock, and a thread cannot be ended. ``PROCESSES_MAX`` run, and ``WAITING_MAX`` texts wait.

The process (``python -m`` with this module) reads the text from its standard input, and writes one object in JSON:
``{"value": ...}`` or ``{"problem": "..."}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
from typing import Final, cast

from holdfast.files.documents import FORM, AboveBounds, Bounds, read_yaml
from holdfast.values import pairs_once

AT_ONCE: Final = Bounds(8 << 10, 2_000)
SECONDS_MAX: Final = 10.0
MEMORY_BYTES_MAX: Final = 512 << 20
PROCESSES_MAX: Final = 2
WAITING_MAX: Final = 20
_SLOW: Final = f"it takes more than {SECONDS_MAX:g} s, or more than {MEMORY_BYTES_MAX >> 20} MiB, to read"


class DocumentReader:
    """Reads the texts of one process. Make one in its event loop."""

    def __init__(self, *, seconds_max: float = SECONDS_MAX, command: tuple[str, ...] = ()) -> None:
        """``command`` is the process that reads a text, for tests."""
        self._seconds_max = seconds_max
        self._command = command or (sys.executable, "-P", "-m", "holdfast.files.document_process")
        self._running = asyncio.Semaphore(PROCESSES_MAX)
        self._waiting = 0

    async def read(self, text: str) -> object:
        """The value of a YAML document, None where it is empty. *Raises*: ``ValueError`` with the line, of which
        ``AboveBounds`` is one. *Cost*: of a text above ``AT_ONCE``, a process of about 0.2 s."""
        data = text.encode("utf-8", "replace")
        FORM.require_size(len(data))
        with contextlib.suppress(AboveBounds):
            return read_yaml(text, AT_ONCE)[0]
        if self._waiting >= WAITING_MAX:
            raise AboveBounds("too many documents are read now: try again")
        self._waiting += 1
        try:
            async with self._running:
                return await self._read_apart(data)
        finally:
            self._waiting -= 1

    async def _read_apart(self, data: bytes) -> object:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(self._seconds_max):
                output, _ = await process.communicate(data)
        except TimeoutError:
            raise AboveBounds(_SLOW) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise AboveBounds(_SLOW)
        answer = cast("dict[str, object]", json.loads(output, object_pairs_hook=pairs_once))
        if "problem" in answer:
            raise ValueError(str(answer["problem"]))
        return answer["value"]


def main() -> None:
    """The process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer: dict[str, object] = {"value": read_yaml(sys.stdin.buffer.read().decode("utf-8"), FORM)[0]}
    except ValueError as error:
        answer = {"problem": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
