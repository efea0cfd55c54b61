"""The command line without a service: exit codes, errors as text and JSON, what starts and what refuses to."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.matrix import matrix

from holdfast import Queue
from holdfast.cli import processes
from holdfast.cli.main import main
from holdfast.cli.output import Exit, exit_of, flush_output, print_json
from holdfast.commit.format.batch import object_name
from holdfast.commit.format.transaction import Transaction, Write
from holdfast.commit.service import CommitEntry, CommitService, ServiceOptions
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import PipelineRules
from holdfast.errors import (
    Backpressure,
    Closed,
    Code,
    Conflict,
    CorruptData,
    Fenced,
    HoldfastError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    Unavailable,
)
from holdfast.objects.open import open_store

EXITS: list[tuple[HoldfastError, int]] = [
    (Conflict("c"), 1),
    (NotFound("n"), 1),
    (InvalidRequest("i"), 2),
    (LimitExceeded("l"), 2),
    (PermissionDenied("p"), 2),
    (Fenced("f", code=Code.LEADER_ALIVE), 3),
    (Fenced("f"), 4),
    (Closed("c"), 4),
    (NotFound("n", code=Code.LOG_EMPTY), 5),
    (CorruptData("c"), 6),
    (InvalidRequest("i", code=Code.STORE_UNFIT), 6),
    (Unavailable("u"), 7),
    (Backpressure("b"), 7),
    (OutcomeUnknown("o"), 8),
    (InternalError("i"), 70),
]


@pytest.mark.parametrize(("error", "code"), EXITS)
def test_each_kind_of_error_has_its_exit_code(error: HoldfastError, code: int) -> None:
    assert exit_of(error) == code


def test_an_unknown_command_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frobnicate"]) == Exit.BAD_REQUEST
    assert "frobnicate" in capsys.readouterr().err


def test_an_error_is_one_line_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", "--set", "log.uri=memory:"]) == Exit.BAD_REQUEST
    first, hint = capsys.readouterr().err.splitlines()
    assert first.startswith("holdfast: ")
    assert "did you mean log.url?" in first
    assert hint.startswith("  hint: ")


def test_with_json_an_error_is_the_error_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", "--json", "--set", "leader.sign_interval_ms=1"]) == Exit.BAD_REQUEST
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["error"]["code"] == "bad_configuration"


@pytest.mark.parametrize("text", [b"\xff", b"a = " + b"[" * 100_000, b"a ="])
def test_a_configuration_that_cannot_be_read_is_bad_usage(
    text: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "h.toml").write_bytes(text)
    assert main(["check-config", "--config", str(tmp_path / "h.toml")]) == Exit.BAD_REQUEST
    assert "h.toml cannot be read" in capsys.readouterr().err


def test_check_config_names_the_source_of_every_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_VIEW__ENABLED", "off")
    assert main(["check-config", "--json", "--set", "leader.sign_interval_ms=3000"]) == Exit.DONE
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)["settings"]}
    assert rows["leader.sign_interval_ms"]["source"] == "flag"
    assert rows["view.enabled"]["source"] == "env"
    assert rows["commit.min_request_id_length"]["source"] == "default"


def test_check_config_says_how_a_cluster_is_reached(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETCDCTL_USER", "holdfast:secret")
    assert main(["check-config", "--set", "log.url=etcd://a,b:2379,c/orders"]) == Exit.DONE
    shown = capsys.readouterr().out
    assert "etcd: 3 endpoints, without TLS, as the user holdfast; prefix orders/" in shown
    assert "secret" not in shown
    assert main(["check-config", "--set", "log.url=etcd://a,a/orders"]) == Exit.BAD_REQUEST
    monkeypatch.setenv("ETCDCTL_CACERT", "/absent")
    assert main(["check-config", "--set", "log.url=etcd://a/orders"]) == Exit.BAD_REQUEST


@pytest.mark.parametrize(
    ("days", "said"),
    [("off", "scrub: off"), ("10", "3.00 GET requests per object"), ("1", "at most 165,888,000 per month")],
)
def test_check_config_says_what_a_scrub_costs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check-config", "--set", f"log.scrub_days={days}"]) == Exit.DONE
    assert said in capsys.readouterr().out


def test_init_begins_a_log_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    assert main(["log", "init", url, "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["created"] is True
    before = (tmp_path / "log" / object_name(2**64 - 1)).read_bytes()
    assert main(["log", "init", url, "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["created"] is False
    assert (tmp_path / "log" / object_name(2**64 - 1)).read_bytes() == before


def test_init_of_a_log_whose_stores_live_elsewhere_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = (tmp_path / "log").as_uri()
    assert main(["log", "init", url, "--no-race", "--stores", "log"]) == Exit.DONE
    assert (
        main(["log", "init", url, "--no-race", "--stores", "log"])
        == main(["log", "init", url, "--no-race"])
        == Exit.DONE
    )
    assert main(["log", "init", url, "--no-race", "--stores", "disk"]) == Exit.BAD_REQUEST
    assert "holdfast stores move --to disk" in capsys.readouterr().err


def test_a_new_log_is_whole_and_has_one_live_claim(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    main(["log", "init", url, "--no-race"])
    capsys.readouterr()
    assert main(["log", "verify", url, "--json"]) == Exit.DONE
    verified = json.loads(capsys.readouterr().out)
    assert (verified["objects"], verified["leaders"], verified["transactions"]) == (1, 1, 0)
    assert main(["log", "ls", url, "--long", "--json"]) == Exit.DONE
    row = json.loads(capsys.readouterr().out)
    assert (row["slot"], row["live"], row["kind"], row["epoch"]) == ("18446744073709551615", True, "claim", 1)


def test_a_snapshot_is_made_once_and_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    (tmp_path / "log").mkdir()
    assert main(["log", "snapshot", url]) == Exit.LOG_EMPTY
    main(["log", "init", url, "--no-race"])
    capsys.readouterr()
    assert main(["log", "snapshot", url, "--json"]) == Exit.DONE
    made = json.loads(capsys.readouterr().out)
    assert (made["rows"], made["parts"], made["slot"]) == (0, 0, "18446744073709551615")
    assert main(["log", "snapshot", url, "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out) == made
    assert main(["log", "snapshots", url, "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out) == made
    assert main(["log", "snapshot", url, "--at", str(made["version"] + 1)]) == Exit.BAD_REQUEST
    assert "has not reached this version" in capsys.readouterr().err


def test_damage_ends_with_6_and_names_the_slot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    main(["log", "init", url, "--no-race"])
    genesis = tmp_path / "log" / object_name(2**64 - 1)
    data = bytearray(genesis.read_bytes())
    data[200] ^= 1
    genesis.chmod(0o644)
    genesis.write_bytes(bytes(data))
    capsys.readouterr()
    assert main(["log", "verify", url]) == Exit.DAMAGED
    assert "18446744073709551615" in capsys.readouterr().err


def test_a_hole_in_the_log_is_never_taken_for_its_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    main(["log", "init", url, "--no-race"])
    batches = tmp_path / "log" / "batches"
    for _ in range(2):
        asyncio.run(a_reign(url))
    assert [main(["log", command, url]) for command in ("cat", "verify")] == [Exit.DONE] * 2
    second_claim = sorted(batches.iterdir(), reverse=True)[1]
    second_claim.unlink()
    for command in ("cat", "verify"):
        capsys.readouterr()
        assert main(["log", command, url]) == Exit.DAMAGED, command
        assert second_claim.name in capsys.readouterr().err, command


def test_a_log_that_lost_its_beginning_is_damaged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    main(["log", "init", url, "--no-race"])
    batches = tmp_path / "log" / "batches"
    asyncio.run(a_reign(url, commits=1))
    lost = sorted(batches.iterdir(), reverse=True)[1:3]  # the leader's claim and its commit; what resigned is left
    for each in lost:
        each.unlink()
    for command in ("cat", "ls", "stat", "verify"):
        capsys.readouterr()
        assert main(["log", command, url]) == Exit.DAMAGED, command
        message = capsys.readouterr().err
        assert any(each.name in message for each in lost), command


async def a_reign(url: str, *, commits: int = 0) -> None:
    store = open_store(url)
    try:
        options = ServiceOptions(address="", rules=PipelineRules(persist=PersistRules(batch_timeout_ms=1)))
        service = await CommitService.lead(store, options)
        for _ in range(commits):
            committed: asyncio.Future[CommitEntry] = asyncio.get_running_loop().create_future()
            service.submit([CommitEntry(Transaction([Write(b"key", b"value")]), committed.set_result)])
            await committed
        await service.step_down()
        await service.close()
    finally:
        await store.close()


@pytest.mark.parametrize("unbuffered", matrix(["", "1"]))
def test_a_reader_that_leaves_early_is_no_failure(unbuffered: str, tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    main(["log", "init", url, "--no-race"])
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = ends(["log", "ls", url], stdout=writer, unbuffered=unbuffered)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (Exit.DONE, "")


@pytest.mark.parametrize("unbuffered", matrix(["", "1"]))
def test_who_reads_no_answer_does_not_change_it(unbuffered: str, tmp_path: Path) -> None:
    """`holdfast queue verify | head` must not say that a damaged queue is good."""
    with Queue(tmp_path / "q", page_size=8192, background=False) as queue:
        queue.append_many([b"message"] * 10)
    page = tmp_path / "q-1.page"
    page.write_bytes(page.read_bytes()[:64] + b"\xff" * 8 + page.read_bytes()[72:])
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = ends(["queue", "verify", str(tmp_path / "q")], stdout=writer, unbuffered=unbuffered)
    finally:
        os.close(writer)
    assert ended.returncode == Exit.DAMAGED


WORK_WITH_STEPS = """
import sys
from holdfast.cli import main
from holdfast.spark import commands

def run_job(name, log, to, target, schedule, options, stopping, report, rows):
    for version in (1, 2, 3):
        report({"version": version})
        sys.stderr.write(f"did {version}\\n")
    return commands.JobResult({"version": 3}, [{"rule": "r"}], is_good=False)

commands.run_job = run_job
sys.exit(main.main(["spark", "verify", "--log", "file:///l", "--to", "file:///t", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("words", matrix([["--json"], []]))
@pytest.mark.parametrize("unbuffered", matrix(["", "1"]))
def test_work_whose_steps_nobody_reads_goes_on_and_ends_as_it_would(unbuffered: str, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = ends(words, stdout=writer, unbuffered=unbuffered, script=WORK_WITH_STEPS)
    finally:
        os.close(writer)
    assert ended.returncode == Exit.DAMAGED
    assert [line for line in ended.stderr.splitlines() if "=" not in line] == ["did 1", "did 2", "did 3"]


@pytest.mark.parametrize("unbuffered", matrix(["", "1"]))
def test_a_result_that_cannot_be_written_is_told(unbuffered: str, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        ended = ends(
            ["log", "init", "--no-race", (tmp_path / "log").as_uri()], stdout=full.fileno(), unbuffered=unbuffered
        )
    assert ended.returncode == Exit.UNAVAILABLE
    assert ended.stderr == ("holdfast: output could not be written output=stdout cause=No space left on device\n")


def test_an_output_that_has_failed_fails_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed by then, which is no bug of who prints next."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        print_json({"step": 1})
        with pytest.raises(Unavailable, match="output could not be written"):
            flush_output()
        with pytest.raises(Unavailable, match="output could not be written"):
            print_json({"step": 2})


def test_a_bug_is_no_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "configuration", lambda *_: 1 // 0)
    assert main(["check-config"]) == Exit.INTERNAL
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert "report it" in told


class SparkRaised(Exception):
    """Stands for PySpark's own, which is known by its module: the command line does not load Spark to ask."""

    __module__ = "pyspark.errors.exceptions.captured"


class AnalysisException(SparkRaised):
    __module__ = SparkRaised.__module__


class TempTableAlreadyExistsException(AnalysisException):
    __module__ = SparkRaised.__module__


class ParseException(AnalysisException):
    __module__ = SparkRaised.__module__


class IllegalArgumentException(SparkRaised):
    __module__ = SparkRaised.__module__


class StreamingQueryException(SparkRaised):
    __module__ = SparkRaised.__module__


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (AnalysisException, Exit.BAD_REQUEST),
        (TempTableAlreadyExistsException, Exit.BAD_REQUEST),
        (ParseException, Exit.BAD_REQUEST),
        (IllegalArgumentException, Exit.BAD_REQUEST),
        (StreamingQueryException, Exit.UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_what_spark_raises_is_no_bug_of_ours(
    kind: type[Exception],
    code: Exit,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> None:
        raise kind("[PATH_NOT_FOUND] Path does not exist: /nowhere.\n\tat org.apache.spark.Some$.frame(Some.scala:1)\n")

    monkeypatch.setattr(processes, "configuration", refused)
    assert main(["check-config", *words]) == code
    told = capsys.readouterr().err
    message = json.loads(told)["error"]["message"] if words else told.rstrip()
    assert message.endswith(": [PATH_NOT_FOUND] Path does not exist: /nowhere.")
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("words", matrix([["queue", "info", "q", "--json"], ["queue", "info", "q"]]))
@pytest.mark.parametrize("encoding", matrix(["ascii:strict", "utf-8:strict", "utf-8:surrogateescape"]))
def test_a_path_that_is_no_text_is_printed_all_the_same(encoding: str, words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode("ä\U0001f600".encode() + b"\xff")
    folder.mkdir()
    Queue(folder / "q", page_size=8192, background=False).close()
    words[2] = str(folder / "q")
    ended = ends(words, PYTHONIOENCODING=encoding)
    assert (ended.returncode, ended.stderr) == (Exit.DONE, "")
    if "--json" in words:
        assert json.loads(ended.stdout)["path"] == words[2]


def test_words_that_are_no_text_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        words = ["status", "a" * 20 + "\udcff", "--min-version", "0", "--url", f"unix:{tmp_path / 's'}"]
        assert main(words) == Exit.BAD_REQUEST
    assert "is not text" in capsys.readouterr().err


def ends(
    words: list[str], *, stdout: int = subprocess.PIPE, unbuffered: str = "", script: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *(["-c", script] if script else ["-m", "holdfast.cli.main"]), *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered, **environment},
        timeout=60,
        check=False,
    )


def test_a_log_that_is_not_there_ends_with_5(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["log", "stat", (tmp_path / "absent").as_uri()]) == Exit.LOG_EMPTY
    assert "absent" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["ls"], ["show", "newest"], ["cat"], ["verify"], ["stat"]])
def test_a_directory_without_a_log_ends_with_5(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["log", *words, tmp_path.as_uri()]) == Exit.LOG_EMPTY
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "log is empty" in printed.err


def test_programs_do_not_start_under_python_optimised() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "holdfast.cli.main", "check-config"], capture_output=True, text=True, check=False
    )
    assert done.returncode == Exit.BAD_REQUEST
    assert "python -O" in done.stderr


def test_the_library_may_be_imported_under_python_optimised() -> None:
    subprocess.run([sys.executable, "-O", "-c", "import holdfast; holdfast.Conflict"], check=True)


def test_importing_the_package_loads_no_third_party_package() -> None:
    script = (
        "import sys\n"
        "before = set(sys.modules)  # what the environment itself loads at start\n"
        "import holdfast, holdfast.cli.main, holdfast.settings\n"
        "new = {m: v for m, v in sys.modules.items() if m not in before}\n"
        "homes = {m.partition('.')[0]: getattr(v, '__file__', '') or '' for m, v in new.items()}\n"
        "print([m for m, home in homes.items() if 'site-packages' in home])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_command_that_needs_no_arrow_starts_without_it() -> None:
    script = (
        "import sys\n"
        "from holdfast.cli.main import application\n"
        "application()\n"
        "print([name for name in ('numpy', 'pyarrow', 'pyspark', 'structlog') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_exists() -> None:
    import holdfast

    missing = [name for name in holdfast.__all__ if getattr(holdfast, name, None) is None]
    assert missing == []
    assert dir(holdfast) == sorted(holdfast.__all__)
