"""``holdfast stores`` against the real service: every command, its output and its exit code."""

from __future__ import annotations

import base64
import io
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.crash.server_process import NO_VIEW, ServerProcess
from tests.matrix import matrix
from tests.rgw import free_port

from holdfast.cli.main import main
from holdfast.cli.output import Exit
from holdfast.cli.service import TELL_AFTER_SECONDS
from holdfast.client.stores import StoreClient
from holdfast.errors import InvalidRequest
from holdfast.spark.messages.durable_client import DurableClient
from holdfast.stores.storage.storage import MANIFEST_NAME, Storage
from holdfast.wire.stores import StatisticsBody

pytestmark = pytest.mark.usefixtures("durability")


@pytest.fixture(scope="module")
def folder(durability: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(f"service-{durability}")


@pytest.fixture(scope="module")
def service(durability: str, folder: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(folder, (folder / "log").as_uri(), free_port(), flags=["--init"], environment=NO_VIEW)
    process.wait_until_leading()
    yield process
    process.kill()


class Shell:
    def __init__(self, port: int, output: pytest.CaptureFixture[str]) -> None:
        self.port = port
        self._output = output

    def run(self, *words: str, expected: int = Exit.DONE) -> str:
        code = main(["stores", *words])
        printed = self._output.readouterr()
        assert code == expected, printed.err
        return printed.out

    def read_error(self) -> str:
        return self._output.readouterr().err

    def rows(self, *words: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.run(*words, "--json").splitlines()]


@pytest.fixture
def shell(service: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("HOLDFAST_URL", f"http://127.0.0.1:{service.port}")
    return Shell(service.port, capsys)


def test_names_of_any_script_go_through_the_command_line_the_client_and_spark(shell: Shell) -> None:
    shell.run("define", "Bücher.東京")
    shell.run("define", "Bücher.東京/größe", "type=standard")
    shell.run("publish", "Bücher.東京", "a", "--field", "art=b")
    assert [row["seq"] for row in shell.rows("tail", "Bücher.東京/größe", "--wait", "0")] == [1]
    url = f"http://127.0.0.1:{shell.port}"
    with StoreClient(url) as client:
        with client.publisher("Bücher.東京", publisher_id="müller", next_seq=1) as publisher:
            assert publisher.publish(b"b").last_seq == 2
        with client.subscriber("Bücher.東京", "größe", subscriber="müller") as subscriber:
            received = subscriber.receive(10)
            assert received is not None and received.body == b"b"
    with DurableClient(url, "Bücher.東京", "größe") as durable:
        assert durable.last_seq() == 2
    shell.run("rm", "Bücher.東京", "--yes")


def test_the_monitoring_page_follows_the_statistics_of_the_service(shell: Shell) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/operate/monitoring.md").read_text(encoding="utf-8")
    shell.run("define", "watched")
    shell.run("define", "watched/work", "type=shared")
    (command,) = [line for line in page.splitlines() if line.startswith("holdfast stores tail")]
    (row,) = shell.rows(*shlex.split(command)[2:])
    body = msgspec.json.decode(base64.b64decode(str(row["body"])), type=StatisticsBody)
    assert "holdfast_leading" in {sample.name for sample in body.samples}
    (program,) = [part.partition("```")[0] for part in page.split("```python\n")[1:]]
    port = f"http://127.0.0.1:{shell.port}"
    ran = subprocess.run(
        [sys.executable, "-c", program.replace("http://127.0.0.1:8080", port)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "holdfast_durable_backlog" in ran.stdout
    shell.run("define", "_statistics", expected=Exit.BAD_REQUEST)


def test_a_store_is_defined_listed_shown_and_removed(shell: Shell) -> None:
    assert shell.rows("history")[0]["author"] == "holdfast.default"
    shell.run("define", "one", "bytelimit=1m", "description=first of all")
    shell.run("define", "one/work", "type=shared", "max_delivery=5", 'matcher={"kind": ["a", "b"]}')
    shell.run("define", "one/jobs", "type=shared", "--template")
    shown = shell.rows("show", "one")[0]
    assert (shown["bytelimit"], shown["description"]) == (1_048_576, "first of all")
    assert shell.rows("show", "one/work")[0]["max_delivery"] == 5
    assert "one" in shell.run("ls").split()
    assert shell.run("ls", "one").splitlines()[1].split() == ["work", "shared", "0", "0"]
    assert "max_delivery" in shell.run("show", "one/work")
    shell.run("rm", "one/work", expected=Exit.BAD_REQUEST)
    shell.run("rm", "one/w*", "--yes")
    assert shell.rows("ls", "one") == []
    shell.run("rm", "one", "--yes")
    shell.run("show", "one", expected=Exit.NO)


def test_a_wrong_parameter_is_named_with_its_path(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stores", "define", "two", "bytelimt=1m"]) == Exit.BAD_REQUEST
    assert "bytelimt" in capsys.readouterr().err
    shell.run("define", "two", "bytelimit", expected=Exit.BAD_REQUEST)
    shell.run("define", expected=Exit.BAD_REQUEST)


@pytest.mark.parametrize("words", [
    ["publish", "one", "x", "--field", f"n={2**64}"],
    ["publish", "one", "x", "--ttl-ms", f"{2**64}"],
    ["publish", "one", "x", "--deliver-at-ms", f"{2**64}"],
    ["publish", "one", "x", "--key", "\udcff"],
    ["rewind", "one/work", "--seq", f"{2**64}"],
    ["rewind", "one/work", "--time-ms", f"{2**64}"],
    ["define", "one/work", f"max_delivery={2**64}"],
    ["define", "one/work", f"max_delivery={'[' * 50_000}"],
    ["tail", "one/work", "--wait", "1e300"],
    ["watch", "one/work", "--wait", "1e300"],
])  # fmt: skip
def test_a_number_beyond_all_bounds_is_bad_usage(words: list[str], shell: Shell) -> None:
    shell.run("define", "one")
    shell.run("define", "one/work", "type=shared")
    shell.run(*words, expected=Exit.BAD_REQUEST)


@pytest.mark.parametrize("place", ["a/b/c", "a/", "/b", "", "/"])
@pytest.mark.parametrize("words", [["define"], ["show"], ["rm"]])
def test_a_place_that_is_none_is_refused_before_anything_is_asked(
    words: list[str], place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "http://127.0.0.1:9")
    assert main(["stores", *words, place]) == Exit.BAD_REQUEST
    said = capsys.readouterr().err
    assert "STORE/DURABLE" in said and "no slash" in said


def test_publishing_nothing_is_a_mistake(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run("define", "none")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert main(["stores", "publish", "none"]) == Exit.BAD_REQUEST
    said = capsys.readouterr().err
    assert "nothing was published" in said and "BODY" in said


def test_publishing_ends_with_the_first_that_is_refused(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run("define", "narrow", "max_message_size=5")
    shell.run("define", "narrow/work", "type=shared")
    assert main(["stores", "publish", "narrow", "one", "much too long", "three"]) == Exit.BAD_REQUEST
    said = capsys.readouterr().err
    assert "too large for the store" in said
    assert "kept_messages=1 kept_through_seq=1" in said
    assert "three" not in shell.run("browse", "narrow/work"), "what is behind a refused one was not kept"


@pytest.mark.parametrize("words", matrix([[], ["--json"]]))
def test_what_was_published_and_could_not_be_told_is_not_told_as_refused(shell: Shell, words: list[str]) -> None:
    """A script that repeats a command after code 7 would publish the message twice."""
    store = f"untold{len(words)}"
    shell.run("define", store)
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "holdfast.cli.main", "stores", "publish", store, "x", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == Exit.OUTCOME_UNKNOWN
    assert "published 1, numbers 1 to 1, which could not be written" in ended.stderr


def test_a_map_is_watched(shell: Shell) -> None:
    shell.run("define", "watched")
    shell.run("define", "watched/m", "type=map")
    with StoreClient(f"http://127.0.0.1:{shell.port}") as client:
        keys = client.map("watched", "m")
        revision = keys.set("eu.one", b"1")
        keys.set("us.one", b"2")
    assert shell.run("watch", "watched/m", "--prefix", "eu.", "--limit", "1") == f"{revision}  [eu.one]  1\n"
    (row,) = shell.rows("watch", "watched/m", "--key", "eu.one", "--limit", "1")
    assert row == {"key": "eu.one", "revision": revision, "cause": "present", "value": "MQ=="}
    assert len(shell.rows("watch", "watched/m", "--wait", "0")) == 2


def test_who_follows_a_map_is_told_to_watch_it(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run("define", "followed")
    shell.run("define", "followed/m", "type=map")
    assert main(["stores", "tail", "followed/m"]) == Exit.BAD_REQUEST
    assert "holdfast stores watch followed/m" in capsys.readouterr().err


def test_following_without_waiting_prints_what_is_there(shell: Shell) -> None:
    shell.run("define", "there")
    shell.run("define", "there/work", "type=shared")
    assert shell.run("tail", "there/work", "--wait", "0") == ""
    shell.run("publish", "there", "a", "b")
    assert [row["body"] for row in shell.rows("tail", "there/work", "--wait", "0")] == ["YQ==", "Yg=="]


def test_messages_are_published_browsed_consumed_purged_and_rewound(shell: Shell) -> None:
    shell.run("define", "three")
    shell.run("define", "three/work", "type=shared", "retention_time=1h")
    assert shell.run("publish", "three", "a", "b", "-f", "kind=x", "-f", "n=7", "--key", "k") == (
        "published 2, numbers 1 to 2\n"
    )
    assert shell.run("browse", "three/work") == "1  [k]  kind=x  n=7  a\n2  [k]  kind=x  n=7  b\n"
    assert shell.rows("browse", "three/work", "--match", '{"n": 7}', "--limit", "1")[0]["fields"] == {
        "kind": "x",
        "n": 7,
    }
    assert shell.rows("tail", "three/work", "--limit", "2")[1]["body"] == "Yg=="
    assert shell.run("browse", "three/work") == ""
    shell.run("rewind", "three/work")
    assert len(shell.run("tail", "three/work", "--wait", "0.5", "--no-ack").splitlines()) == 2
    assert shell.run("purge", "three/*", "--yes").startswith("purged 2 messages")
    shell.run("tail", "three", expected=Exit.BAD_REQUEST)


def test_no_message_writes_a_line_of_its_own_or_moves_the_cursor(shell: Shell) -> None:
    shell.run("define", "sly", "description=a\nb\x1b[2J")
    shell.run("define", "sly/work", "type=shared")
    shell.run("define", "sly/m", "type=map")
    shell.run("publish", "sly", "x", "--field", "a=b\n8  forged", "--key", "k\x1b[2J")
    with StoreClient(f"http://127.0.0.1:{shell.port}") as client:
        client.map("sly", "m").set("\x9b2J", b"v")
    assert shell.run("browse", "sly/work") == "1  [k\\x1b[2J]  a=b\\n8  forged  x\n"
    assert "[\\x9b2J]" in shell.run("watch", "sly/m", "--limit", "1")
    assert "a\\nb\\x1b[2J" in shell.run("show", "sly")


def test_lines_of_standard_input_are_messages(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    class Input:
        buffer = io.BytesIO(b"".join(b"%d\n" % number for number in range(2_500)))

    shell.run("define", "four")
    monkeypatch.setattr(sys, "stdin", Input())
    assert shell.rows("publish", "four") == [
        {"messages": 2_500, "first_seq": 1, "last_seq": 2_500, "unmatched": 2_500, "discarded": 0}
    ]


def test_who_types_messages_is_told_of_no_waiting_and_how_many_were_kept(shell: Shell) -> None:
    shell.run("define", "typed")
    shell.run("define", "typed/work", "type=shared")
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli.main", "stores", "publish", "typed"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as typing:
        assert typing.stdin is not None
        typing.stdin.write("a\nb\n")
        typing.stdin.flush()
        while len(shell.rows("browse", "typed/work")) < 2:
            time.sleep(0.1)
        time.sleep(TELL_AFTER_SECONDS)
        typing.send_signal(signal.SIGINT)
        typing.stdin.close()
        assert typing.stderr is not None
        assert typing.stderr.read() == "holdfast: interrupted, kept 2\n"
    assert typing.returncode == Exit.INTERRUPTED


def test_rejected_messages_are_found_among_the_dead_letters(shell: Shell) -> None:
    shell.run("define", "dead")
    shell.run("define", "dead/letters", "type=shared")
    shell.run("define", "five")
    shell.run("define", "five/work", "type=shared", "dead_letter_store=dead")
    shell.run("publish", "five", "poison")
    shell.run("tail", "five/work", "--reject", "--limit", "1")
    found = shell.rows("tail", "dead/letters", "--limit", "1")
    assert found[0]["origin"] == {
        "store": "five", "durable": "work", "seq": 1, "cause": "rejected", "delivery_count": 1
    }  # fmt: skip


def test_a_definition_that_is_nested_for_ever_is_none(shell: Shell, tmp_path: Path) -> None:
    for name, text in (("deep.json", "[" * 100_000), ("deep.toml", "a = " + "[" * 100_000)):
        (tmp_path / name).write_text(text)
        shell.run("diff", str(tmp_path / name), expected=Exit.BAD_REQUEST)


def test_a_whole_definition_is_compared_and_applied(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "stores.toml"
    file.write_text('[stores.six]\nbytelimit = "1g"\n[stores.six.durables.work]\ntype = "shared"\n')
    changes = {
        row["path"]: row for row in map(json.loads, shell.run("diff", str(file), "--json", expected=1).splitlines())
    }
    assert changes["stores.six"]["in_force"] is None
    shell.run("define", "--file", str(file), "--delete")
    assert shell.run("diff", str(file)) == ""
    assert [row["name"] for row in shell.rows("ls")] == ["six"]
    shell.run("diff", str(tmp_path / "absent.toml"), expected=Exit.BAD_REQUEST)


def test_figures_are_printed_for_the_cluster_and_for_each_durable(shell: Shell) -> None:
    shell.run("define", "seven")
    shell.run("define", "seven/work", "type=shared")
    shell.run("publish", "seven", "a")
    assert shell.rows("stats")[0]["messages"] == 1
    header, row = (line.split() for line in shell.run("stats", "seven").splitlines())
    assert dict(zip(header, row, strict=True))["BACKLOG"] == "1"


def test_a_backup_is_verified_and_restored(
    durability: str, shell: Shell, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run("define", "eight")
    shell.run("define", "eight/work", "type=shared")
    shell.run("publish", "eight", "a", "b", "c")
    shell.run("compact")
    if durability == "log":
        assert main(["stores", "backup", "first"]) == Exit.BAD_REQUEST
        assert "log mirror" in shell.read_error(), "a copy of the log is the backup"
        return
    path = str(shell.rows("backup", "first")[0]["path"])
    shell.run("backup", "first", expected=Exit.NO)
    assert "good" in shell.run("verify", path)
    shell.run("restore", path, str(tmp_path / "again"))
    before = shell.rows("verify", path)[0]
    assert shell.rows("verify", str(tmp_path / "again")) == [before]
    assert int(str(before["messages"])) >= 3
    shell.run("restore", path, str(tmp_path / "again"), expected=Exit.BAD_REQUEST)
    shell.run("verify", str(tmp_path / "absent"), expected=Exit.NO)
    for words in (["verify"], ["repair"], ["repair", "--lose"]):
        shell.run(*words, str(folder / "log-stores"), expected=Exit.UNAVAILABLE)
    shell.run("repair", path, "--lose", expected=Exit.BAD_REQUEST)
    with pytest.raises(InvalidRequest, match="the directory is a backup"):
        Storage.open(path)
    assert shell.rows("verify", path) == [before]
    with (tmp_path / "again" / "index.sqlite").open("r+b") as index:
        index.write(b"no database any more")
    assert main(["stores", "verify", str(tmp_path / "again")]) == Exit.DAMAGED
    said = capsys.readouterr().err
    assert "stores restore BACKUP NEW" in said
    assert "stores verify" not in said


@pytest.mark.parametrize("words", [["verify"], ["repair"], ["repair", "--lose"], ["restore"]])
def test_a_file_is_no_directory(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    make_backup(tmp_path / "backup")
    code = main(["stores", *words, *([str(tmp_path / "backup")] if words == ["restore"] else []), str(file)])
    assert code in (Exit.NO, Exit.BAD_REQUEST)
    assert str(file) in capsys.readouterr().err
    assert file.read_bytes() == b""


@pytest.mark.parametrize("lose", [[], ["--lose"]])
def test_a_repair_where_no_stores_are_makes_none(
    lose: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").touch()
    assert main(["stores", "repair", *lose, str(tmp_path)]) == Exit.NO
    assert "there are no stores here" in capsys.readouterr().err
    assert main(["stores", "repair", *lose, str(tmp_path / "absent")]) == Exit.NO
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def make_backup(directory: Path) -> None:
    """The smallest backup there can be: nothing but its manifest."""
    directory.mkdir()
    (directory / MANIFEST_NAME).write_text('{"format": 1, "frame": 0, "at_ms": 0, "files": {}}')


def test_keys_and_locks_of_a_map(shell: Shell) -> None:
    shell.run("define", "keyed")
    shell.run("define", "keyed/m", "type=map")
    shell.run("map", "get", "keyed/m", "k", expected=Exit.NO)
    (found,) = shell.rows("map", "set", "keyed/m", "k", "v", "--if-revision", "0")
    assert shell.run("map", "get", "keyed/m", "k") == "v\n"
    assert shell.run("map", "get", "keyed/m", "k", "--encoding", "hex") == "76\n"
    shell.run("map", "set", "keyed/m", "k", "w", "--if-revision", "9999", expected=Exit.NO)
    (held,) = shell.rows("map", "lock", "keyed/m", "k", "--owner", "ann")
    shell.run("map", "lock", "keyed/m", "k", "--owner", "bob", expected=Exit.NO)
    shell.run("map", "set", "keyed/m", "k", "w", "--fence", str(held["fence"]))
    shell.run("map", "unlock", "keyed/m", str(held["fence"]), "k", "--owner", "ann")
    shell.run("map", "rm", "keyed/m", "k")
    for words, named in (
        (["get", "keyed/m", "k"], "no such key map=keyed/m key=k"),
        (["rm", "keyed/m", "k"], "no such key map=keyed/m key=k"),
        (["get", "keyed/nope", "k"], "no such durable store=keyed durable=nope"),
        (["get", "nostore/m", "k"], "no such store store=nostore"),
        (["rm", "keyed/nope", "k"], "no such durable store=keyed durable=nope"),
    ):
        assert main(["stores", "map", *words]) == Exit.NO
        assert named in shell.read_error()
    assert found["key"] == "k"


def test_an_earlier_definition_is_listed_and_put_in_force_again(shell: Shell) -> None:
    shell.run("define", "turned", "description=first")
    before = shell.rows("history")[-1]["revision"]
    shell.run("edit", "turned", "description=second")
    assert shell.rows("history", str(before))[0]["stores"]["turned"]["description"] == "first"  # type: ignore[index]
    shell.run("rollback", str(before), expected=Exit.BAD_REQUEST)
    shell.run("rollback", str(before), "--yes")
    assert shell.rows("show", "turned")[0]["description"] == "first"
    assert "turned" in shell.run("ls") and shell.rows("status")[0]["name"] == "default"


def test_edit_changes_only_what_it_names(shell: Shell) -> None:
    shell.run("define", "edited", "description=kept")
    shell.run("define", "edited/work", "type=shared", "max_delivery=5", "prefetch=9")
    shell.run("define", "edited/jobs", "type=shared", "prefetch=9", "--template")
    shell.run("edit", "edited/work", "ack_wait=7")
    shell.run("edit", "edited/jobs", "ack_wait=7", "--template")
    shell.run("edit", "edited", "message_limit=8")
    (work,) = shell.rows("show", "edited/work")
    assert (work["max_delivery"], work["prefetch"], work["ack_wait"]) == (5, 9, 7)
    (store,) = shell.rows("show", "edited")
    assert (store["description"], store["message_limit"]) == ("kept", 8)
    shell.run("edit", "edited/none", "ack_wait=7", expected=Exit.NO)


def test_a_durable_before_its_store_says_to_define_the_store(shell: Shell) -> None:
    for words in (["define", "unmade/map1", "type=map"], ["define", "unmade/jobs", "type=shared", "--template"]):
        assert main(["stores", *words]) == Exit.NO
        assert "define the store first: holdfast stores define unmade" in shell.read_error()


def test_a_redelivery_of_what_is_not_parked_says_why_nothing_was_done(shell: Shell) -> None:
    shell.run("define", "unparked")
    shell.run("define", "unparked/work", "type=shared")
    shell.run("publish", "unparked", "a")
    said = shell.run("redeliver", "unparked/work", "1")
    assert "redelivered 0 messages" in said and "parked" in said and "browse unparked/work --parked" in said
    (found,) = shell.rows("redeliver", "unparked/work", "1")
    assert (found["redelivered"], "parked" in str(found["reason"])) == (0, True)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "[1, NaN]"])
def test_a_number_that_is_not_finite_is_no_value_of_a_parameter(shell: Shell, value: str) -> None:
    shell.run("define", "finite", "message_limit=7")
    assert main(["stores", "edit", "finite", f"message_limit={value}"]) == Exit.BAD_REQUEST
    assert "finite" in shell.read_error()
    assert shell.rows("show", "finite")[0]["message_limit"] == 7


def test_a_rewind_of_many_chooses_those_that_retain_and_names_the_others(shell: Shell) -> None:
    shell.run("define", "many")
    shell.run("define", "many/a", "type=shared", "retention_time=1h")
    shell.run("define", "many/b", "type=shared")
    shell.run("define", "many/m", "type=map")
    said = shell.run("rewind", "many/*", expected=Exit.NO).splitlines()
    assert said[0] == "rewound many/a"
    assert [line.partition(":")[0] for line in said[1:]] == ["not rewound many/b", "not rewound many/m"]
    assert shell.run("rewind", "many/a") == "rewound many/a\n"
    assert main(["stores", "rewind", "many/b", "many/m"]) == Exit.BAD_REQUEST
    assert "retention_time" in shell.read_error()


@pytest.mark.parametrize("words", matrix([["purge", "--yes"], ["rewind"], ["rm", "--yes"]]))
def test_every_name_is_checked_before_the_first_change(shell: Shell, words: list[str]) -> None:
    shell.run("define", "checked")
    shell.run("define", "checked/a", "type=shared", "retention_time=1h")
    shell.run("publish", "checked", "x", "y")
    shell.run("tail", "checked/a", "--limit", "1")
    assert main(["stores", words[0], "checked/a", "checked/absent", *words[1:]]) == Exit.NO
    assert "absent" in shell.read_error()
    assert shell.rows("show", "checked/a")[0]["counts"]["backlog"] == 1  # type: ignore[index]
    shell.run("rm", "checked", "--yes")


@pytest.mark.parametrize("words", matrix([
    ["define", "lower/work", "type=shared", "message_limit=1", "discard=old"],
    ["define", "lower/jobs", "type=shared", "message_limit=1", "discard=old", "--template"],
    ["edit", "lower/work", "message_limit=1", "discard=old"],
    ["edit", "lower/jobs", "message_limit=1", "discard=old", "--template"],
], 2))  # fmt: skip
def test_delete_allows_a_lower_limit_of_one_durable_or_template(shell: Shell, words: list[str]) -> None:
    shell.run("define", "lower")
    shell.run("define", "lower/jobs", "type=shared", "--template")
    shell.run("define", "lower/work", "type=shared")
    shell.run("tail", "lower/made", "--template", "jobs", "--wait", "0")
    shell.run("publish", "lower", "a", "b")
    assert main(["stores", *words]) == Exit.NO
    said = shell.read_error()
    assert "(1)" in said and "--delete allows it" in said and "delete=true" not in said
    shell.run(*words, "--delete")
    shell.run("rm", "lower", "--yes")


def test_a_rollback_that_would_delete_messages_names_its_option(shell: Shell) -> None:
    shell.run("define", "back")
    before = shell.rows("history")[-1]["revision"]
    shell.run("define", "back/work", "type=shared")
    shell.run("publish", "back", "a")
    assert main(["stores", "rollback", str(before), "--yes"]) == Exit.NO
    said = shell.read_error()
    assert "--delete allows it" in said and "edit" not in said
    shell.run("rollback", str(before), "--yes", "--delete")


def test_a_file_that_names_fewer_stores_deletes_messages_only_when_asked_to(shell: Shell, tmp_path: Path) -> None:
    shell.run("define", "full")
    shell.run("define", "full/work", "type=shared")
    shell.run("publish", "full", "a", "b")
    file = tmp_path / "stores.toml"
    file.write_text("[stores.other]\n")
    assert main(["stores", "define", "--file", str(file)]) == Exit.NO
    said = shell.read_error()
    assert "full (2)" in said and "--delete" in said
    assert len(shell.rows("browse", "full/work")) == 2
    shell.run("define", "--file", str(file), "--delete")
    assert [row["name"] for row in shell.rows("ls")] == ["other"]
