"""The ``holdfast`` command in this process: starting Python and Arrow costs more than most commands do."""

from __future__ import annotations

import contextlib
import io
import subprocess

from holdfast.cli.main import main

__all__ = ["command"]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one command line; its exit code and what it printed, as ``subprocess.run`` says it."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess([*words], code, *texts)
