"""``holdfast`` commands in one process of their own: what starting Java costs is paid once, not by each command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import TracebackType
from typing import Self

from tests.rgw import ACCESS_KEY, REGION, SECRET_KEY

STOP_SECONDS_MAX = 60
LOOP = """
import json, sys
from holdfast.cli.main import main
for line in sys.stdin:
    print(json.dumps({"exit_code": main(json.loads(line))}), flush=True)
"""


class CommandProcess:
    """Runs one command line after the other, as a shell would: the exit code and what was printed. Made for --json."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                "AWS_REGION": REGION,
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise

    def run(self, *words: str) -> tuple[int, list[dict[str, object]]]:
        """The exit code of ``holdfast WORDS``, and its JSON lines."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        lines: list[dict[str, object]] = []
        for line in self._process.stdout:
            found: dict[str, object] = json.loads(line)
            if "exit_code" in found:
                code = found["exit_code"]
                assert isinstance(code, int)
                return code, lines
            lines.append(found)
        raise AssertionError("the process has ended; its last words are on the standard error")
