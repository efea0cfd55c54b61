"""A command that the fork server starts is a process like any other."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.fork_server import ForkedCommand


def test_a_forked_command_has_its_own_words_environment_folder_and_files(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[server]\nmax_connections = 77\n")
    environment = {"PATH": os.environ["PATH"], "HOLDFAST_LOG__URL": "memory:"}
    with (tmp_path / "out").open("wb") as out, (tmp_path / "errors").open("wb") as errors:
        words = ["check-config", "--config", "holdfast.toml"]
        done = ForkedCommand(words, stdout=out, stderr=errors, cwd=tmp_path, env=environment)
        refused = ForkedCommand(["check-config", "--none"], stdout=out, stderr=errors, cwd=tmp_path, env=environment)
        assert (done.wait(60), refused.wait(60)) == (0, 2)
        assert done.poll() == 0
    shown = (tmp_path / "out").read_text()
    assert "77" in shown and "memory:" in shown
    assert "--none" in (tmp_path / "errors").read_text()


def test_a_forked_command_is_waited_for_and_killed(tmp_path: Path) -> None:
    words = ["serve", "--init", "--log", "memory:", "--listen", f"unix:{tmp_path / 'socket'}"]
    serving = ForkedCommand(words, cwd=tmp_path, env={"PATH": os.environ["PATH"], "HOLDFAST_VIEW__ENABLED": "false"})
    assert serving.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        serving.wait(0)
    serving.kill()
    assert serving.wait(60) == -signal.SIGKILL
    serving.send_signal(signal.SIGTERM)  # harmless: it has ended
    with pytest.raises(ProcessLookupError):
        os.kill(serving.pid, 0)
