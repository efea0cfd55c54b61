"""A job of the leader has one end, however its process ends, and leaves none."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from holdfast.errors import Unavailable
from holdfast.server.children import background_process
from holdfast.server.children.background_process import BackgroundProcess
from holdfast.server.children.log_job import LogJob
from holdfast.wire.log import LogJobState


def job_of(script: str) -> LogJob:
    return LogJob("test", lambda _: (script,), lambda: 1, lambda _: None, program=("/bin/sh", "-c"))


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def ended(job: LogJob) -> LogJobState:
    job.begin({})
    try:
        return await job.wait()
    except Unavailable:
        assert not job.is_running
        return job.state


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it may end between the open and the read
        return False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0.01)


def test_progress_and_the_result_are_the_lines_of_the_output() -> None:
    """A count begins at its first line: versions of a log do not begin at 0."""
    lines = ({"done": 3, "total": 8}, {"done": 5, "total": 8}, {"objects": 8, "ok": True})
    job = job_of("; ".join(f"echo '{json.dumps(line)}'" for line in lines))
    state = run(ended(job))
    assert (state.state, state.done, state.total, state.result) == ("done", 2, 5, {"objects": 8, "ok": True})


@pytest.mark.parametrize(
    ("script", "code", "error"),
    [
        ("""head -c 2000000 /dev/zero | tr '\\0' x; echo; sleep 60""", "internal", ""),
        ("""head -c 200000 /dev/zero | tr '\\0' x; echo""", "internal", "exit code 0"),
        ("""echo '{"error": {"code": "corrupt_log", "message": "a hole"}}' >&2; exit 6""", "corrupt_log", "a hole"),
        ("kill -9 $$", "internal", "exit code -9"),
    ],
)
def test_a_job_that_ends_badly_has_failed_and_does_not_run_any_more(script: str, code: str, error: str) -> None:
    job = job_of(script)
    state = run(ended(job))
    assert (state.state, state.code, state.ended_ms) == ("failed", code, 1)
    assert state.error == error or (not error and state.error)


def test_a_program_that_is_missing_is_a_failed_job() -> None:
    job = LogJob("test", lambda _: (), lambda: 1, lambda _: None, program=("/no/such/program",))
    assert run(ended(job)).state == "failed"


def test_a_job_that_is_cancelled_before_its_first_step_is_cancelled() -> None:
    async def main() -> None:
        job = job_of("sleep 60")
        job.begin({})
        await job.cancel()
        assert (job.state.state, job.is_running) == ("cancelled", False)

    run(main())


def test_a_cancelled_job_leaves_no_process_and_a_closed_one_begins_none(tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "pid"
        job = job_of(f"echo $$ > {file}.new; mv {file}.new {file}; exec sleep 60")
        job.begin({})
        await until(file.exists)
        pid = int(file.read_text())
        assert is_alive(pid)
        await job.close()
        assert job.state.state == "cancelled"
        await until(lambda: not is_alive(pid))
        with pytest.raises(Unavailable, match="leadership has ended"):
            job.begin({})
        assert not job.is_running

    run(main())


def test_a_start_that_is_cancelled_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    spawn = background_process._spawn

    def spawn_slowly(*arguments: Any, **options: Any) -> Any:
        process = spawn(*arguments, **options)
        started.append(process.pid)
        return process

    async def main() -> None:
        monkeypatch.setattr(background_process, "_spawn", spawn_slowly)
        starting = asyncio.ensure_future(BackgroundProcess.start(("/bin/sleep", "60"), nice=1))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled()
        await until(lambda: bool(started) and not is_alive(started[0]))

    run(main())


def test_a_process_has_a_lower_priority_and_its_input_ends() -> None:
    async def main() -> bytes:
        process = await BackgroundProcess.start(("/bin/sh", "-c", "read line; nice"), nice=3, has_input=True)
        process.end_input()
        printed = await process.output.read()
        assert await process.exit_code() == 0
        return printed

    wanted = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)
    assert int(run(main())) == wanted


def test_a_start_does_not_copy_the_memory_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's own ways fork, and so does ``Popen`` with ``preexec_fn``: the start has to be a vfork."""
    asked: list[bool] = []
    fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]

    def observed(*arguments: Any) -> Any:
        preexec_fn, may_vfork = arguments[-2:]
        asked.append(preexec_fn is None and may_vfork)
        return fork_exec(*arguments)

    monkeypatch.setattr(subprocess, "_fork_exec", observed)
    assert run(ended(job_of("true"))).state == "failed"
    assert asked == [True]
