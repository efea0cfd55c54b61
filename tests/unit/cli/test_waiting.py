"""What a command does while nobody answers: it says so, and it ends in time."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
from tests.unit.client.scripted_server import Reply, ScriptedServer, Silence, coded

from holdfast.cli import service
from holdfast.cli.main import main
from holdfast.cli.output import Exit
from holdfast.cli.service import TELL_AFTER_SECONDS, WaitNotice

VERSION = {"version": 7, "leader_id": "cd" * 16}
COMMANDS = [
    ["commit", "a=b"],
    ["get", "a"],
    ["status", "r" * 20, "--min-version", "1"],
    ["version"],
    ["subscribe"],
]


class Late(Reply):
    """An answer that takes its time."""

    def encoded(self) -> bytes:
        time.sleep(0.6)
        return super().encoded()


@pytest.fixture
def nowhere() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_where_nothing_listens_a_command_fails_in_seconds_and_says_so(
    command: list[str], nowhere: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "REFUSED_SECONDS", 0.01)
    assert main([*command, "--url", nowhere]) == Exit.UNAVAILABLE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"nothing listens at {nowhere}: connection refused" in captured.err
    assert "holdfast serve" in captured.err


def test_an_absent_unix_socket_is_told_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--url", f"unix:{tmp_path}/socket", "--timeout", "0.01"]) == Exit.UNAVAILABLE
    assert f"nothing listens at unix:{tmp_path}/socket: no such file" in capsys.readouterr().err


def test_refusal_ends_within_a_few_seconds_by_default() -> None:
    assert TELL_AFTER_SECONDS < service.REFUSED_SECONDS <= 5


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_service_without_a_leader_is_waited_for_as_long_as_asked(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "TELL_AFTER_SECONDS", 0.0)
    with ScriptedServer(*[coded(503, "not_leader") for _ in range(200)]) as server:
        began = time.monotonic()
        code = main([*command, "--url", server.url, "--timeout", "0.3"])
        assert time.monotonic() - began >= 0.3
    assert code in (Exit.UNAVAILABLE, Exit.OUTCOME_UNKNOWN)
    told = [line for line in capsys.readouterr().err.splitlines() if "waiting for" in line]
    assert len(told) == 1
    assert told[0].startswith(f"holdfast: waiting for {server.url} (")
    assert told[0].endswith("for at most 0.3 s")


def test_a_service_without_a_leader_is_asked_again_until_it_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(*[coded(503, "not_leader") for _ in range(2)], Reply(200, VERSION)) as server:
        assert main(["version", "--url", server.url]) == Exit.DONE
        assert len(server.asked) == 3
    assert capsys.readouterr().out == "7\n"


def test_a_service_that_is_silent_is_told_of_while_the_request_waits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "TELL_AFTER_SECONDS", 0.0)
    with ScriptedServer(Silence()) as server:
        assert main(["version", "--json", "--url", server.url, "--timeout", "0.3"]) == Exit.UNAVAILABLE
    first, *_ = capsys.readouterr().err.splitlines()
    assert json.loads(first)["waiting"] == {"for": server.url, "reason": "no answer yet", "seconds_max": 0.3}


@pytest.mark.parametrize("words", [["backup", "name"], ["compact"]])
def test_long_work_is_waited_for_beyond_the_time_of_a_request(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "REQUEST_SECONDS_MAX", 0.2)
    answer = {"path": "/backups/name", "allocated_before": 2, "allocated": 1, "in_use": 1}
    with ScriptedServer(Late(200, answer)) as server:
        assert main(["stores", *words, "--url", server.url]) == Exit.DONE
        assert len(server.asked) == 1


def test_who_is_answered_at_once_is_told_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(Reply(200, VERSION)) as server:
        assert main(["version", "--url", server.url]) == Exit.DONE
    assert capsys.readouterr() == ("7\n", "")


def test_a_spell_of_waiting_is_told_once_after_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    notice = WaitNotice("http://here", 60, as_json=False, clock=lambda: now)
    notice.waits("overloaded")
    now += TELL_AFTER_SECONDS / 2
    notice.waits("overloaded")
    assert capsys.readouterr().err == ""
    now += TELL_AFTER_SECONDS
    notice.waits("not_leader")
    now += TELL_AFTER_SECONDS
    notice.waits("not_leader")
    assert capsys.readouterr().err == "holdfast: waiting for http://here (not_leader), for at most 60 s\n"
    notice.got_through()
    notice.waits("connection refused", 5)
    now += 1
    notice.waits("connection refused", 5)
    assert capsys.readouterr().err == "holdfast: waiting for http://here (connection refused), for at most 5 s\n"
    notice.got_through()
    notice.waits("overloaded")
    assert capsys.readouterr().err == ""
    now += 2 * TELL_AFTER_SECONDS
    notice.waits("overloaded")
    assert "overloaded" in capsys.readouterr().err
