"""Commands that ask a service, against one that follows a script."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.client.scripted_server import Reply, ScriptedServer

from holdfast.cli import transactions
from holdfast.cli.main import main
from holdfast.cli.output import Exit
from holdfast.client.protocol.effects import PublishedEvent
from holdfast.wire.log import StreamMessage


def test_a_request_from_a_file_is_sent_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    request = {
        "request_id": "r" * 20,
        "leader_id": "cd" * 16,
        "read_version": 40,
        "preconditions": [{"type": "point_read", "key": "aw==", "version": 40}],
        "operations": [{"type": "write", "key": "aw==", "value": "dg=="}],
    }
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request))
    verdict = {"status": "committed", "version": 41, "leader_id": "cd" * 16, "request_id": "r" * 20}
    with ScriptedServer(Reply(200, verdict)) as server:
        assert main(["commit", "--file", str(file), "--url", server.url]) == Exit.DONE
        assert server.asked[0].json() == request
    assert capsys.readouterr().out == "committed 41\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_commit_whose_answer_cannot_be_written_is_not_told_as_refused(unbuffered: str) -> None:
    verdict = {"status": "committed", "version": 41, "leader_id": "cd" * 16, "request_id": "r" * 20}
    with ScriptedServer(Reply(200, verdict), Reply(200, verdict)) as server, open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "holdfast.cli.main", "commit", "k=v", "--read-version", "1", "--url", server.url],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == Exit.OUTCOME_UNKNOWN
    assert ended.stderr.startswith("holdfast: committed 41, but the result could not be written")


def test_a_range_that_is_cut_short_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"items": [{"key": "aw==", "value": "dg==", "version": 7}], "version": 9, "more": True}
    with ScriptedServer(Reply(200, found), Reply(200, found), Reply(200, found | {"more": False})) as server:
        words = ["get", "a", "--end", "z", "--limit", "1", "--url", server.url]
        assert main(words) == Exit.DONE
        printed = capsys.readouterr()
        assert printed.out == "k = v  @7\n"
        assert "there are more keys" in printed.err
        assert "--encoding hex 6b00" in printed.err
        assert main([*words, "--json"]) == Exit.DONE
        assert json.loads(capsys.readouterr().err) == {"more": {"begin": "awA=", "end": "eg=="}}
        assert main(words) == Exit.DONE
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("data", [b'{"operations":"\xff"}', b"[" * 100_000, b'{"request_id":"\xff"}'])
def test_a_file_that_holds_no_request_is_bad_usage(
    data: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "request.json"
    file.write_bytes(data)
    assert main(["commit", "--file", str(file)]) == Exit.BAD_REQUEST
    assert "is not a commit request" in capsys.readouterr().err


def test_a_long_bench_reads_at_what_it_has_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = [
        {"status": "committed", "version": 60 + n, "leader_id": "cd" * 16, "request_id": None} for n in range(3)
    ]
    start = Reply(200, {"version": 50, "leader_id": "cd" * 16})
    with ScriptedServer(start, *(Reply(200, verdict) for verdict in verdicts)) as server:
        monkeypatch.setattr(transactions, "time", SimpleNamespace(perf_counter=lambda: float(len(server.asked))))
        assert main(["bench", "-c", "1", "-s", "3", "--json", "--url", server.url]) == Exit.DONE
        assert [asked.json()["read_version"] for asked in server.asked[1:]] == [50, 60, 61]


LOG_ID = "1" * 32


def test_versions_on_the_command_line_take_the_log_id(capsys: pytest.CaptureFixture[str]) -> None:
    version = Reply(200, {"version": 50, "leader_id": "cd" * 16, "log_id": LOG_ID})
    found = Reply(200, {"key": "aw==", "value": "dg==", "version": 7})
    verdict = Reply(200, {"status": "committed", "version": 51, "leader_id": "cd" * 16, "request_id": "r" * 20})
    status = Reply(200, {"status": "committed", "version": 51})
    mismatch = Reply(409, {"error": {"code": "log_mismatch", "message": "another log", "log_id": LOG_ID}})
    with ScriptedServer(version, version, found, verdict, status, mismatch) as server:
        url = ("--url", server.url)
        assert main(["version", "--position", *url]) == Exit.DONE
        position = capsys.readouterr().out.strip()
        assert position == f"50@{LOG_ID}"
        assert main(["version", "--json", *url]) == Exit.DONE
        assert json.loads(capsys.readouterr().out)["log_id"] == LOG_ID
        assert main(["get", "k", "--at", position, *url]) == Exit.DONE
        assert main(["commit", "k=v", "--read-version", position, *url]) == Exit.DONE
        assert main(["status", "r" * 20, "--min-version", position, *url]) == Exit.DONE
        assert main(["subscribe", "--after", f"50@{'2' * 32}", *url]) == Exit.BAD_REQUEST
        printed = capsys.readouterr().err
        assert "another log" in printed
        assert "hint: the log was replaced" in printed
        asked = [one.target for one in server.asked]
        assert asked[2].endswith(f"?at={position}")
        assert server.asked[3].json()["log_id"] == LOG_ID
        assert asked[4].endswith(f"?min_version={position}")
        assert f"after=50@{'2' * 32}" in asked[5]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"k@50@{LOG_ID}", b"k"),
        (f"a@b@50@{LOG_ID}", b"a@b"),
        (f"{LOG_ID}@50@{LOG_ID}", LOG_ID.encode()),
        (f"@50@{LOG_ID}", b""),
    ],
)
def test_a_precondition_on_the_command_line_takes_the_log_id(text: str, key: bytes) -> None:
    verdict = {"status": "committed", "version": 51, "leader_id": "cd" * 16, "request_id": "r" * 20}
    newest = Reply(200, {"version": 60, "leader_id": "cd" * 16, "log_id": "2" * 32})
    with ScriptedServer(newest, Reply(200, verdict)) as server:
        assert main(["commit", "k=v", "--if-unchanged", text, "--url", server.url]) == Exit.DONE
        sent = server.asked[1].json()
    assert sent["log_id"] == LOG_ID
    assert sent["preconditions"] == [{"type": "point_read", "key": base64.b64encode(key).decode(), "version": 50}]


def test_a_range_on_the_command_line_takes_the_log_id() -> None:
    verdict = {"status": "committed", "version": 51, "leader_id": "cd" * 16, "request_id": "r" * 20}
    words = ["commit", "k=v", "--if-unchanged", f"a..b@50@{LOG_ID}", "--read-version", f"50@{LOG_ID}"]
    with ScriptedServer(Reply(200, verdict)) as server:
        assert main([*words, "--url", server.url]) == Exit.DONE
        sent = server.asked[0].json()
    assert sent["log_id"] == LOG_ID
    assert sent["preconditions"] == [{"type": "range_read", "begin": "YQ==", "end": "Yg==", "version": 50}]


def test_a_precondition_of_another_log_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    newest = Reply(200, {"version": 60, "leader_id": "cd" * 16, "log_id": "2" * 32})
    mismatch = Reply(409, {"error": {"code": "log_mismatch", "message": "another log", "log_id": "2" * 32}})
    with ScriptedServer(newest, mismatch) as server:
        words = ["commit", "k=v", "--if-unchanged", f"k@50@{LOG_ID}", "--url", server.url]
        assert main(words) == Exit.BAD_REQUEST
        assert len(server.asked) == 2
    assert "another log" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--if-unchanged", f"a@5@{LOG_ID}", "--if-unchanged", f"b@5@{'2' * 32}"],
        ["--if-unchanged", f"a@5@{LOG_ID}", "--read-version", f"5@{'2' * 32}"],
    ],
)
def test_versions_of_two_logs_in_one_commit_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["commit", "k=v", *words, "--url", "http://127.0.0.1:1", "--json"]) == Exit.BAD_REQUEST
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "log_mismatch"
    assert "belong to one log" in error["message"]


def test_a_file_and_a_read_version_of_two_logs_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"operations": [{"type": "delete", "key_text": "k"}], "log_id": LOG_ID}))
    words = ["commit", "--file", str(file), "--read-version", f"5@{'2' * 32}", "--url", "http://127.0.0.1:1"]
    assert main(words) == Exit.BAD_REQUEST
    assert "belong to one log" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["k@soon", "k@-5", f"k@5~{'3' * 32}@{LOG_ID}", f"k@@{LOG_ID}", f"k@x@{LOG_ID}"])
def test_a_precondition_without_a_valid_version_is_bad_usage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["commit", "k=v", "--if-unchanged", text, "--url", "http://127.0.0.1:1"]) == Exit.BAD_REQUEST
    assert "--if-unchanged must be KEY, KEY@VERSION or KEY@VERSION@LOGID" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["soon", "5@", f"5@{LOG_ID[1:]}", "-1"])
def test_a_position_that_is_none_is_bad_usage_and_asks_nobody(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["subscribe", f"--after={text}", "--url", "http://127.0.0.1:1"]) == Exit.BAD_REQUEST
    assert "--after is VERSION or VERSION@LOGID" in capsys.readouterr().err


def test_what_the_stores_refused_is_said_instead_of_a_version_to_read_at(capsys: pytest.CaptureFixture[str]) -> None:
    refused = {"part": "publish", "index": 0, "code": "not_found", "message": "there is no such store store=nowhere"}
    verdict = {"status": "not_committed", "reason": "store_refused", "version": 7, "leader_id": "cd" * 16}
    with ScriptedServer(Reply(200, {**verdict, "refused": refused})) as server:
        words = ["commit", "k=v", "--publish", "nowhere=body", "--read-version", "1", "--url", server.url]
        assert main(words) == Exit.NO
    printed = capsys.readouterr().out
    assert "no such store" in printed and "None" not in printed


def test_a_part_of_a_version_says_that_more_of_it_follows() -> None:
    message = StreamMessage("orders", 1, 7, b"x")
    part = PublishedEvent(8, "ab" * 16, 0, (message,), "cd" * 16, more=True)
    last = PublishedEvent(8, "ab" * 16, 0, (message,), "cd" * 16)
    assert transactions.event_fields(part)["more"] is True
    assert "more" not in transactions.event_fields(last)
    assert transactions.event_text(part).splitlines()[0] == "8 (more of it follows)"
    assert transactions.event_text(last).splitlines()[0] == "8"
