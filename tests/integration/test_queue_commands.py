"""``holdfast queue``: what each command prints, how it ends, what it changes on disk and what it leaves alone."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.matrix import matrix

from holdfast import Queue
from holdfast.cli.main import main
from holdfast.cli.queue import paths_like
from holdfast.queue import Gap
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.format.frame import HEAD_BYTES
from holdfast.queue.format.page import HEADER_BYTES, PageHeader, encode_header
from holdfast.queue.queue import core_of
from holdfast.queue.repair.files import open_files
from holdfast.queue.repair.survey import QueueSurvey

PAGE = 8192
STEP = 4 if os.environ.get("HOLDFAST_SMALL") == "1" else 1
"""From one change at which a repair is stopped to the next."""
ANSWERED = 0
NO, BAD_REQUEST, DAMAGED, UNAVAILABLE = 1, 2, 6, 7


class Clock:
    """A second later at each look."""

    def __init__(self) -> None:
        self.now = 1_767_225_600_000_000_000

    def __call__(self) -> int:
        self.now += 1_000_000_000
        return self.now


def text(number: int) -> bytes:
    return b"message %04d " % number + b"." * 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Messages 1 to 300 in several pages, one at a time, then 100 in one batch; ``billing`` is done with 120."""
    with Queue(tmp_path / "orders", page_size=PAGE, clock=Clock(), background=False) as queue:
        for number in range(1, 301):
            queue.append(text(number))
        queue.append_many([b"batch %d" % number for number in range(301, 401)])
        with queue.consumer("billing") as consumer:
            for message in consumer:
                if message.seq == 120:
                    consumer.commit(message)
                    break
    return tmp_path / "orders"


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir() if file.suffix != ".lock"}


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, list[str], str]:
    code = main(["queue", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code, lines, _ = run(capsys, *words, "--json")
    assert len(lines) == 1
    return code, json.loads(lines[0])


def damage(path: Path, wanted: bytes) -> tuple[int, int]:
    """Turn one bit of the only page that holds these bytes. Returns its number and the position of the bytes."""
    for page in path.parent.glob(f"{path.name}-*.page"):
        data = bytearray(page.read_bytes())
        position = data.find(wanted)
        if position >= 0:
            data[position] ^= 4
            page.write_bytes(data)
            return int(page.stem.rpartition("-")[2]), position
    raise AssertionError(wanted)


def readable(path: Path) -> tuple[list[int], list[tuple[int, int]]]:
    """Sequence numbers that can be read, and the gaps that are reported."""
    gaps: list[tuple[int, int]] = []

    def told(report: object) -> None:
        assert isinstance(report, Gap)
        gaps.append((report.first, report.last))

    with Queue(path, read_only=True) as queue:
        return [message.seq for message in queue.read(damage=told)], gaps


# ---- reading --------------------------------------------------------------------------------------------------------


def test_info_draws_pages_fill_and_cursors(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, err = run(capsys, "info", path)
    assert (code, err) == (ANSWERED, "")
    assert lines[1] == "messages  400  (1..400)"
    assert lines[2] == "durable   up to 400"
    assert lines[5] == "writer    none; closed cleanly"
    bars = [line for line in lines if line.startswith("page ")]
    assert bars[0].startswith("page 1  [################################]  1..")
    assert "#" in bars[-1] and " ]" in bars[-1] and "..400" in bars[-1]
    mark = next(place for place, line in enumerate(lines) if "^ billing: 280 to read" in line)
    first, last = map(int, lines[mark - 1].partition("]")[2].split()[0].split(".."))
    assert first <= 121 <= last


def test_info_shows_a_page_that_was_made_ahead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Queue(tmp_path / "q", page_size=4096, background=False) as queue:
        queue.append(b"x" * 3000)
        core_of(queue).run_background_work()
    _, lines, _ = run(capsys, "info", tmp_path / "q")
    assert lines[-1] == f"page 2  [{' ' * 32}]  made ahead, empty"


def test_info_tells_programs_the_same(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run_json(capsys, "info", path)
    assert code == ANSWERED
    assert (found["first_seq"], found["last_seq"], found["durable_seq"], found["messages"]) == (1, 400, 400, 400)
    assert found["first_time"] == "2026-01-01T00:00:01.000000000Z"
    assert found["cursors"] == [{"name": "billing", "committed_seq": 120, "lag": 280}]
    assert found["closed_cleanly"] and found["writer_pid"] is None and found["set_aside"] == []
    begun = [page for page in found["pages"] if "first_seq" in page]
    assert all(before["last_seq"] + 1 == after["first_seq"] for before, after in pairwise(begun))


def test_info_names_the_process_that_writes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Queue(path) as queue:
        queue.append(b"more")
        code, found = run_json(capsys, "info", path)
        assert (code, found["last_seq"], found["closed_cleanly"]) == (ANSWERED, 401, False)
        if Path("/proc/locks").exists():
            assert found["writer_pid"] == os.getpid()


def test_many_pages_are_drawn_in_short_unless_all_are_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Queue(tmp_path / "q", page_size=4096) as queue:
        for _ in range(100):
            queue.append(b"x" * 1000)
    _, short, _ = run(capsys, "info", tmp_path / "q")
    _, every, _ = run(capsys, "info", tmp_path / "q", "--all")
    assert sum("full pages" in line for line in short) == 1
    pages = [line for line in every if line.startswith("page ")]
    assert len(pages) > 30 > len([line for line in short if line.startswith("page ")])


def test_commands_that_read_change_no_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_of(path)
    listing = sorted(os.listdir(path.parent))
    for words in (
        ["info"],
        ["tail"],
        ["dump"],
        ["verify"],
        ["repair", "--dry-run"],
        ["trim", "--before-seq", "200", "--dry-run"],
    ):
        assert run(capsys, words[0], path, *words[1:])[0] == ANSWERED
    assert files_of(path) == before
    assert sorted(os.listdir(path.parent)) == listing


def test_commands_that_read_work_where_nothing_may_be_written(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("make_directory", "create", "write", "allocate", "truncate", "map", "rename", "unlink", "lock"):
        monkeypatch.setattr(LocalFiles, name, refuse)
    for command in ("info", "tail", "dump", "verify"):
        assert run(capsys, command, path)[0] == ANSWERED
    for words in (("repair", path), ("trim", path, "--before-seq", 9)):
        code, _, err = run(capsys, *words)
        assert code == BAD_REQUEST and "Read-only file system" in err


def test_tail_prints_the_last_messages(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = run(capsys, "tail", path, "-n", 3)
    assert code == ANSWERED
    assert [line.split("  ")[0] for line in lines] == ["398", "399", "400"]
    assert lines[-1].endswith("Z  batch 400")
    assert len(run(capsys, "tail", path)[1]) == 10
    assert run(capsys, "tail", path, "-n", 0)[1] == []
    assert run(capsys, "tail", path, "--seq", 300, "--limit", 2)[1][0].startswith("300  ")


def test_tail_follows_a_writer_in_another_process(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli.main", "queue", "tail", path, "-n", "1", "-f", "--limit", "101", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout is not None
        assert json.loads(reader.stdout.readline())["seq"] == 400
        with Queue(path, page_size=PAGE) as queue:
            for number in range(100):
                queue.append(text(number))
                found = json.loads(reader.stdout.readline())
                assert (found["seq"], base64.b64decode(found["payload"])) == (401 + number, text(number))
        assert reader.wait(60) == ANSWERED


def test_dump_writes_every_message_as_a_line_of_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = run(capsys, "dump", path)
    found = [json.loads(line) for line in lines]
    assert code == ANSWERED
    assert [message["seq"] for message in found] == list(range(1, 401))
    assert base64.b64decode(found[6]["payload"]) == text(7)
    assert found[6]["time"] == "2026-01-01T00:00:07.000000000Z"
    some = [json.loads(line) for line in run(capsys, "dump", path, "--encoding", "text", "--seq", 399)[1]]
    assert [message["payload"] for message in some] == ["batch 399", "batch 400"]


def test_dump_keeps_to_its_bounds(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def seqs(*words: object) -> list[int]:
        return [json.loads(line)["seq"] for line in run(capsys, "dump", path, *words)[1]]

    assert seqs("--since", "2026-01-01T00:04:58Z", "--until", "2026-01-01T00:05:00Z") == [298, 299]
    assert seqs("--seq", 10, "--limit", 3) == [10, 11, 12]
    assert seqs("--since", "1s") == []
    assert seqs("--since", "20000w")[:1] == [] or seqs("--since", "2000w")[:1] == [1]


@pytest.mark.parametrize("command", ["dump", "tail"])
def test_a_limit_above_all_numbers_is_none(command: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = run(capsys, command, path, "--seq", 1, "--limit", 2**64)
    assert (code, len(lines)) == (ANSWERED, 400)


@pytest.mark.parametrize(("separator", "behind"), [("newline", b"\n"), ("nul", b"\0"), ("none", b"")])
def test_a_raw_dump_is_the_payloads_and_nothing_else(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], separator: str, behind: bytes
) -> None:
    output = tmp_path / "raw"
    words = ("dump", path, "--raw", "--separator", separator, "--limit", 300, "--output", output)
    assert run(capsys, *words)[:2] == (ANSWERED, [])
    assert output.read_bytes() == b"".join(text(number) + behind for number in range(1, 301))
    code, _, err = run(capsys, *words)
    assert code == BAD_REQUEST and "exists" in err


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["info", "{parent}/order"], NO, "there is: orders"),
        (["info", "{parent}"], NO, "for example {parent}/orders"),
        (["info", "{parent}/nowhere/orders"], NO, "no such directory"),
        (["info", "{parent}/orders-1.page"], BAD_REQUEST, "try {parent}/orders"),
        (["tail", "{path}", "--since", "yesterday"], BAD_REQUEST, "--since is not a time given=yesterday"),
        (["tail", "{path}", "--since", "2026-01-01T00:00:00"], BAD_REQUEST, "--since needs a time zone"),
        (["tail", "{path}", "--since", "1h", "--seq", "3"], BAD_REQUEST, "exclude each other"),
        (["tail", "{path}", "--seq", "0"], BAD_REQUEST, "--seq"),
        (["dump", "{path}", "--raw", "--json"], BAD_REQUEST, "exclude each other"),
        (["dump", "{path}", "--until", "9999999999999w"], BAD_REQUEST, "--until is not a time"),
        (["trim", "{path}"], BAD_REQUEST, "one of --before"),
        (["trim", "{path}", "--before", "1h", "--before-seq", "2"], BAD_REQUEST, "one of --before"),
        (["trim", "{path}", "--max-bytes", "lots"], BAD_REQUEST, "--max-bytes is not a size given=lots"),
    ],
)
def test_bad_input_is_refused_and_named(
    path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    places = {"path": str(path), "parent": str(path.parent)}
    found, lines, err = run(capsys, *(word.format(**places) for word in words))
    assert (found, lines) == (code, [])
    assert said.format(**places) in err


def test_a_payload_that_is_no_text_is_refused_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append(b"\xff")
    code, _, err = run(capsys, "dump", tmp_path / "q", "--encoding", "text")
    assert code == BAD_REQUEST and "seq=1" in err
    assert run(capsys, "dump", tmp_path / "q", "--encoding", "hex")[1][0].endswith('"payload":"ff"}')


def test_a_shell_completes_queues_and_directories(path: Path) -> None:
    (path.parent / "other").mkdir()
    assert paths_like(f"{path.parent}/o") == [f"{path.parent}/orders", f"{path.parent}/other/"]
    assert paths_like(f"{path.parent}/nowhere/x") == []


def test_an_empty_queue_is_shown_as_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Queue(tmp_path / "q").close()
    for command in ("info", "tail", "dump", "verify", "repair"):
        assert run(capsys, command, tmp_path / "q")[0] == ANSWERED
    assert run_json(capsys, "info", tmp_path / "q")[1]["messages"] == 0


# ---- verify and repair ----------------------------------------------------------------------------------------------


def test_a_whole_queue_verifies(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run_json(capsys, "verify", path)
    assert (code, found["ok"], found["messages"], found["gaps"], found["indexes"]) == (ANSWERED, True, 400, [], [])
    assert run(capsys, "verify", path)[1][-1] == "every message is intact"


def test_a_queue_that_is_written_to_verifies(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Queue(path, page_size=PAGE) as queue:
        for _ in range(200):
            queue.append(b"y" * 90)
        code, found = run_json(capsys, "verify", path)
        assert (code, found["messages"], found["tail_bytes"], found["pages_outside"]) == (ANSWERED, 600, 0, [])


@pytest.mark.parametrize("until", [200, 400])
def test_what_retention_removes_while_it_is_verified_is_not_lost(path: Path, until: int) -> None:
    removed: list[int] = []

    def trims(*_: object) -> None:
        if not removed:
            removed.append(queue.trim(before_seq=until))

    with Queue(path, page_size=PAGE, background=False) as queue, open_files(str(path)) as pages:
        found = QueueSurvey(pages, trims)
    assert removed[0] > 1
    assert found.gaps == []


def survey_while_gone(path: Path, *names: str) -> QueueSurvey:
    """What a walk finds while these pages go by other hands than retention's."""

    def goes(*_: object) -> None:
        for name in names:
            path.with_name(name).unlink(missing_ok=True)

    with open_files(str(path)) as pages:
        return QueueSurvey(pages, goes)


def test_a_page_that_goes_while_older_ones_stay_is_lost(path: Path) -> None:
    found = survey_while_gone(path, "orders-3.page")
    assert [(gap.page, gap.rule) for gap in found.gaps] == [(3, "the page is absent")]
    assert found.messages + sum(gap.messages for gap in found.gaps) == 400


def test_an_unreadable_page_stays_so_when_another_goes(path: Path) -> None:
    page = path.with_name("orders-2.page")
    page.write_bytes(b"\xff" * HEADER_BYTES + page.read_bytes()[HEADER_BYTES:])
    found = survey_while_gone(path, "orders-4.page")
    assert found.unreadable == [2]
    assert [(gap.page, gap.rule) for gap in found.gaps] == [
        (2, "the header of the page is damaged"),
        (4, "the page is absent"),
    ]


@pytest.mark.parametrize("older", [True, False])
def test_what_was_owed_is_missed_also_when_a_page_made_ahead_goes(
    path: Path, older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a starting writer removes it."""
    *others, last = sorted(path.parent.glob("orders-*.page"))
    for lost in [last] if older else [*others, last]:
        lost.unlink()
    number = len(others) + 2
    ahead = PageHeader(number=number, page_bytes=PAGE, salt=1, checksum_id=1, prepared=True)
    last.with_name(f"orders-{number}.page").write_bytes(encode_header(ahead).ljust(PAGE, b"\0"))
    real = LocalFiles.size_of

    def then_goes(files: LocalFiles, directory: int, name: str) -> int:
        size = real(files, directory, name)
        if name == f"orders-{number}.page":
            last.with_name(name).unlink()
        return size

    monkeypatch.setattr(LocalFiles, "size_of", then_goes)
    found = survey_while_gone(path)
    assert [gap.last for gap in found.gaps] == [400]
    assert found.messages + sum(gap.messages for gap in found.gaps) == 400


def test_a_queue_whose_writer_was_killed_verifies(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import os, sys; from holdfast import Queue\n"
        "queue = Queue(sys.argv[1], page_size=8192)\n"
        "for _ in range(500): queue.append(b'z' * 50)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, path], check=False)
    code, found = run_json(capsys, "verify", path)
    assert (code, found["messages"]) == (ANSWERED, 900)


@pytest.mark.parametrize("number", [1, 2, 150, 299, 300])
def test_a_turned_bit_is_found_by_page_position_and_number(
    path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    page, position = damage(path, text(number))
    code, lines, err = run(capsys, "verify", path)
    assert code == DAMAGED and "messages are lost" in err and "repair" in err
    frame = position - HEAD_BYTES
    size = HEAD_BYTES + len(text(number))
    assert lines[4] == f"page {page} position {frame}: message {number} lost (1 in {size} bytes): no frame verifies"
    code, found = run_json(capsys, "verify", path)
    assert (code, found["ok"], found["messages"], found["lost"]) == (DAMAGED, False, 399, 1)


def test_a_damaged_batch_loses_its_own_messages_only(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Queue(path) as queue:
        queue.append(b"behind")
    damage(path, b"batch 350")
    _, found = run_json(capsys, "verify", path)
    assert [(gap["first"], gap["last"]) for gap in found["gaps"]] == [(301, 400)]
    assert found["messages"] == 301


def test_what_lies_behind_a_damaged_head_is_found_without_an_index(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in path.parent.glob("*.idx"):
        index.unlink()
    page = path.parent / "orders-2.page"
    data = bytearray(page.read_bytes())
    start = data.index(text(100)) - HEAD_BYTES
    data[start : start + 4] = b"\xff\xff\xff\x7f"
    page.write_bytes(data)
    assert readable(path)[1] == [(100, 100)]
    _, found = run_json(capsys, "verify", path)
    assert [(gap["page"], gap["position"], gap["first"], gap["last"]) for gap in found["gaps"]] == [
        (2, start, 100, 100)
    ]
    assert {entry["state"] for entry in found["indexes"]} == {"absent"}

    assert run(capsys, "repair", path)[0] == ANSWERED
    seqs, gaps = readable(path)
    assert gaps == [(100, 100)]
    assert seqs == [seq for seq in range(1, 401) if seq != 100]
    for index in path.parent.glob("*.idx"):
        index.unlink()
    assert readable(path) == (seqs, gaps), "the way over the gap does not need the index"


def test_repair_keeps_every_damaged_byte_and_says_where(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = files_of(path)
    places = [damage(path, text(number)) for number in (5, 6, 200)]
    broken = files_of(path)
    code, found = run_json(capsys, "repair", path)
    assert (code, found["lost"], found["messages"]) == (ANSWERED, 3, 397)
    assert [(gap["first"], gap["last"]) for gap in found["gaps"]] == [(5, 6), (200, 200)]
    for gap, (page, position) in zip(found["gaps"], [places[0], places[2]], strict=True):
        assert (gap["page"], gap["position"]) == (page, position - HEAD_BYTES)
        kept = (path.parent / gap["file"]).read_bytes()
        assert kept == broken[f"orders-{page}.page"][gap["position"] : gap["position"] + gap["bytes"]]
    # Outside the damaged places no byte of a page has changed.
    for name, data in original.items():
        if name.endswith(".page"):
            now = bytearray((path.parent / name).read_bytes())
            for gap in found["gaps"]:
                if name == f"orders-{gap['page']}.page":
                    now[gap["position"] : gap["position"] + gap["bytes"]] = data[
                        gap["position"] : gap["position"] + gap["bytes"]
                    ]
            assert now == data[: len(now)], name


def test_after_a_repair_the_queue_verifies_and_its_gaps_are_known(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(path, text(200))
    assert run(capsys, "repair", path)[0] == ANSWERED
    code, found = run_json(capsys, "verify", path)
    assert (code, found["ok"], found["lost"]) == (ANSWERED, True, 1)
    assert [gap["known"] for gap in found["gaps"]] == [True]
    again = files_of(path)
    assert "there was nothing to repair" in run(capsys, "repair", path)[1]
    del again["orders-writeMeta"]
    assert {name: data for name, data in files_of(path).items() if name in again} == again
    damage(path, text(100))
    code, found = run_json(capsys, "verify", path)
    assert (code, [gap["known"] for gap in found["gaps"]]) == (DAMAGED, [False, True])


def test_writing_goes_on_after_a_repair(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(path, text(200))
    assert run(capsys, "repair", path)[0] == ANSWERED
    with Queue(path, page_size=PAGE) as queue:
        assert queue.append(b"on") == 401
    assert readable(path) == ([seq for seq in range(1, 402) if seq != 200], [(200, 200)])


@pytest.mark.parametrize("place", matrix([0, 16, 40, 8, 12, 24, 32, 48, 55, 60], 3))
def test_a_flipped_bit_in_a_page_header_loses_nothing(
    path: Path, capsys: pytest.CaptureFixture[str], place: int
) -> None:
    for number in (1, 3, last_page(path)):
        page = path.parent / f"orders-{number}.page"
        data = bytearray(page.read_bytes())
        data[place] ^= 16
        page.write_bytes(data)
    assert readable(path) == (list(range(1, 401)), [])
    code, found = run_json(capsys, "verify", path)
    assert (code, found["restorable_pages"], found["lost"]) == (ANSWERED, [1, 3, last_page(path)], 0)
    assert any("follows from the rest" in line for line in run(capsys, "info", path)[1])
    code, found = run_json(capsys, "repair", path)
    assert (code, found["lost"], found["messages"]) == (ANSWERED, 0, 400)
    assert readable(path) == (list(range(1, 401)), [])
    assert run_json(capsys, "verify", path)[1]["indexes"] == []


def last_page(path: Path) -> int:
    with Queue(path, read_only=True) as queue:
        begun = [
            int(page.stem.rpartition("-")[2])
            for page in path.parent.glob("orders-*.page")
            if any(page.read_bytes()[HEADER_BYTES:])
        ]
        assert queue.last_seq
    return max(begun)


def test_a_page_without_a_header_is_kept_whole_and_its_messages_are_named(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = path.parent / "orders-3.page"
    data = bytes(512) + page.read_bytes()[512:]
    page.write_bytes(data)
    _, found = run_json(capsys, "verify", path)
    (gap,) = found["gaps"]
    assert (gap["page"], gap["position"], gap["bytes"]) == (3, 0, PAGE)
    _, done = run_json(capsys, "repair", path)
    assert done["kept"] == ["orders-3.page.damaged"]
    assert (path.parent / "orders-3.page.damaged").read_bytes() == data
    missing = range(gap["first"], gap["last"] + 1)
    assert readable(path) == ([seq for seq in range(1, 401) if seq not in missing], [(gap["first"], gap["last"])])
    assert run(capsys, "verify", path)[0] == ANSWERED


def test_an_absent_page_is_a_gap(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path.parent / "orders-2.page").unlink()
    code, found = run_json(capsys, "verify", path)
    (gap,) = found["gaps"]
    assert (code, gap["page"], gap["bytes"], gap["rule"]) == (DAMAGED, 2, 0, "the page is absent")
    assert run(capsys, "repair", path)[0] == ANSWERED
    assert readable(path)[1] == [(gap["first"], gap["last"])]
    assert run(capsys, "verify", path)[0] == ANSWERED


def test_damage_at_the_very_end_is_a_gap_when_it_was_durable(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(path, b"batch 350")
    code, found = run_json(capsys, "verify", path)
    assert (code, [(gap["first"], gap["last"]) for gap in found["gaps"]]) == (DAMAGED, [(301, 400)])
    assert run(capsys, "repair", path)[0] == ANSWERED
    with Queue(path, page_size=PAGE) as queue:
        assert queue.append(b"on") == 401
    assert readable(path) == ([*range(1, 301), 401], [(301, 400)])
    assert run(capsys, "verify", path)[0] == ANSWERED


def test_files_that_are_only_derived_are_made_anew(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = path.parent / "orders-2.idx"
    index.write_bytes(b"\x55" * len(index.read_bytes()))
    (path.parent / "orders-3.idx").unlink()
    (path.parent / "orders-allMeta").unlink()
    (path.parent / "orders-writeMeta").unlink()
    code, found = run_json(capsys, "verify", path)
    assert (code, found["ok"]) == (ANSWERED, True)
    assert found["indexes"] == [{"page": 2, "state": "damaged"}, {"page": 3, "state": "absent"}]
    code, done = run_json(capsys, "repair", path)
    # The last page's index, too: a start that finds no mark trusts nothing that may name what was cut.
    assert code == ANSWERED and len(done["mended"]) == 4
    assert run_json(capsys, "verify", path)[1]["indexes"] == []
    assert readable(path) == (list(range(1, 401)), [])


def test_a_repair_changes_no_page_of_a_newer_format(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from zlib import crc32

    page = path.parent / "orders-2.page"
    data = bytearray(page.read_bytes())
    data[8] = 2
    data[60:64] = crc32(data[:60]).to_bytes(4, "little")
    page.write_bytes(data)
    before = files_of(path)
    code, _, err = run(capsys, "repair", path)
    assert code == DAMAGED and "format_version=2" in err
    assert files_of(path) == before


def test_a_dump_stops_at_damage_unless_told_to_go_on(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(path, text(200))
    code, lines, err = run(capsys, "dump", path)
    assert code == DAMAGED and "first=200 last=200" in err and len(lines) <= 199
    code, lines, err = run(capsys, "dump", path, "--skip-damage")
    assert code == ANSWERED and "first=200 last=200" in err and len(lines) == 399


def test_repair_and_trim_leave_a_living_writer_alone(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Queue(path) as queue:
        before = files_of(path)
        for words in (("repair", path), ("trim", path, "--before-seq", 100)):
            code, _, err = run(capsys, *words)
            assert code == UNAVAILABLE and f"pid={os.getpid()}" in err
        assert files_of(path) == before
        queue.append(b"still writing")


@pytest.mark.parametrize("seed", matrix(range(6)))
def test_whatever_is_damaged_a_repair_leaves_what_verifies_and_nothing_invented(
    path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    import random

    draw = random.Random(seed)
    for file in sorted(path.parent.iterdir()):
        if file.suffix == ".lock" or draw.random() < 0.4:
            continue
        data = bytearray(file.read_bytes())
        for _ in range(draw.randrange(1, 4)):
            start = draw.randrange(len(data)) if data else 0
            length = draw.choice([1, 1, 30, 700])
            data[start : start + length] = draw.choice([bytes, draw.randbytes])(len(data[start : start + length]))
        file.write_bytes(data)
    for words in (["info"], ["tail"], ["dump", "--skip-damage"], ["repair", "--dry-run"]):
        assert run(capsys, words[0], path, *words[1:])[0] == ANSWERED
    first = run_json(capsys, "verify", path)[1]
    code, done = run_json(capsys, "repair", path)
    assert code == ANSWERED
    assert done["messages"] >= first["messages"]
    code, found = run_json(capsys, "verify", path)
    assert (code, found["ok"], found["indexes"]) == (ANSWERED, True, [])
    seqs, _ = readable(path)
    assert len(seqs) == found["messages"]
    with Queue(path, read_only=True) as queue:
        for message in queue.read(damage="skip"):
            seq = message.seq
            assert message.payload == (text(seq) if seq <= 300 else b"batch %d" % seq)


def test_a_repair_that_is_stopped_at_any_change_is_finished_by_the_next(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(path, text(200))
    header = bytearray((path.parent / "orders-2.page").read_bytes())
    header[40] ^= 1
    (path.parent / "orders-2.page").write_bytes(header)
    (path.parent / "orders-3.idx").unlink()
    broken = {file.name: file.read_bytes() for file in path.parent.glob("*.page")}
    wanted = ([seq for seq in range(1, 401) if seq != 200], [(200, 200)])
    stopped_at = 1 - STEP
    while True:
        stopped_at += STEP
        copy = tmp_path / f"stopped-{stopped_at}"
        copy.mkdir()
        for file in path.parent.glob("orders*"):
            shutil.copy(file, copy)
        with monkeypatch.context() as patch:
            calls = stop_at(patch, stopped_at)
            code, _, _ = run(capsys, "repair", copy / "orders")
        if calls() < stopped_at:
            break
        assert code == UNAVAILABLE
        assert run(capsys, "repair", copy / "orders")[0] == ANSWERED
        assert readable(copy / "orders") == wanted
        code, found = run_json(capsys, "verify", copy / "orders")
        assert (code, found["indexes"]) == (ANSWERED, [])
        kept = b"".join(file.read_bytes() for file in copy.glob("*.damaged*"))
        assert bytes(header[:HEADER_BYTES]) in kept
        assert any(text(200)[1:] in data for data in broken.values()) == (text(200)[1:] in kept)
    assert code == ANSWERED
    assert stopped_at > 20


def stop_at(patch: pytest.MonkeyPatch, number: int) -> Callable[[], int]:
    """From the change of that number on, every change fails. Returns how many were tried."""
    tried = 0

    def guard(name: str) -> None:
        real = getattr(LocalFiles, name)

        def guarded(*arguments: object, **named: object) -> object:
            nonlocal tried
            tried += 1
            if tried >= number:
                raise OSError(errno.EIO, "stopped here")
            return real(*arguments, **named)

        patch.setattr(LocalFiles, name, guarded)

    for name in ("create", "write", "truncate", "rename", "unlink", "sync_data", "sync_directory"):
        guard(name)
    return lambda: tried


# ---- trim -----------------------------------------------------------------------------------------------------------


def test_trim_removes_whole_old_pages_and_stops_at_a_consumer(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, dry = run_json(capsys, "trim", path, "--before-seq", 250, "--dry-run")
    _, done = run_json(capsys, "trim", path, "--before-seq", 250)
    assert done["removed_pages"] == dry["removed_pages"] > 0
    assert done["first_seq"] <= 121
    assert done["held_by"] == ["billing"]
    _, done = run_json(capsys, "trim", path, "--before-seq", 250, "--ignore-cursors")
    assert 121 < done["first_seq"] <= 250
    assert readable(path)[0] == list(range(done["first_seq"], 401))
    assert run(capsys, "verify", path)[0] == ANSWERED


@pytest.mark.parametrize("bound", [("--before-seq", 260), ("--max-bytes", "20K")])
def test_a_dry_run_of_trim_counts_the_pages_that_go(
    path: Path, bound: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    page = path.with_name("orders-2.page")
    page.write_bytes(b"\xff" * HEADER_BYTES + page.read_bytes()[HEADER_BYTES:])
    _, said = run_json(capsys, "trim", path, *bound, "--ignore-cursors", "--dry-run")
    _, done = run_json(capsys, "trim", path, *bound, "--ignore-cursors")
    assert done["removed_pages"] > 2
    assert said["removed_pages"] == done["removed_pages"]


def test_trim_by_time_keeps_everything_that_arrived_since(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=180)
    with Queue(path, read_only=True) as queue:
        wanted = [message.seq for message in queue.read(since=moment)]
    code, done = run_json(capsys, "trim", path, "--before", moment.isoformat(), "--ignore-cursors")
    assert code == ANSWERED and done["removed_pages"] > 0
    with Queue(path, read_only=True) as queue:
        assert [message.seq for message in queue.read(since=moment)] == wanted
        assert queue.first_seq > 1


def test_trim_by_time_keeps_what_is_damaged_and_may_have_arrived_since(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {message.seq: message.time for message in Queue(path, read_only=True).read(since="earliest")}
    page = path.with_name("orders-2.page")
    data = bytearray(page.read_bytes())
    data[:HEADER_BYTES] = b"\xff" * HEADER_BYTES
    page.write_bytes(data)
    read = set(readable(path)[0])
    missing = [seq for seq in times if seq not in read]
    moment = times[missing[len(missing) // 2]].isoformat()
    run_json(capsys, "trim", path, "--before", moment, "--ignore-cursors")
    assert page.exists()
    assert readable(path)[1] == [(missing[0], missing[-1])]


@pytest.mark.parametrize("behind", [1, 62])
def test_trim_by_time_passes_an_old_damaged_page(path: Path, behind: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What lies behind it is older than the moment, and so is all that it held."""
    times = {message.seq: message.time for message in Queue(path, read_only=True).read(since="earliest")}
    pages = sorted(path.parent.glob("orders-*.page"))
    page = pages[len(pages) // 2]  # where a search by halves looks first, and goes no further
    data = bytearray(page.read_bytes())
    data[:HEADER_BYTES] = b"\xff" * HEADER_BYTES
    page.write_bytes(data)
    next_base = 1 + max(times.keys() - readable(path)[0])
    damage(path, text(next_base))  # its time is that of its page's header, which is whole
    wanted = next_base + behind
    with Queue(path, read_only=True) as queue:
        later = [message.seq for message in queue.read(since=times[wanted], damage="skip")]
    assert later[0] == wanted
    _, done = run_json(capsys, "trim", path, "--before", times[wanted].isoformat(), "--ignore-cursors")
    assert next_base <= done["first_seq"] <= wanted < done["first_seq"] + 60
    with Queue(path, read_only=True) as queue:
        assert [message.seq for message in queue.read(since=times[wanted], damage="skip")] == later
    assert not page.exists()


def test_trim_by_size_takes_the_oldest_until_the_rest_fits(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, done = run_json(capsys, "trim", path, "--max-bytes", "24K", "--ignore-cursors")
    pages = list(path.parent.glob("orders-*.page"))
    assert sum(page.stat().st_size for page in pages) <= 24 << 10
    assert done["last_seq"] == 400
    assert readable(path)[0] == list(range(done["first_seq"], 401))


def test_trim_never_takes_the_page_that_is_written_to(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, done = run_json(capsys, "trim", path, "--before-seq", 10_000, "--ignore-cursors")
    assert 1 < done["first_seq"] <= 400 == done["last_seq"]
    with Queue(path) as queue:
        assert queue.append(b"on") == 401


def test_a_copied_queue_is_read_where_it_is(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(path.parent, tmp_path / "copy", ignore=shutil.ignore_patterns("*.lock"))
    assert run_json(capsys, "verify", tmp_path / "copy" / "orders")[1]["messages"] == 400


@pytest.mark.parametrize("place", ["absent/x", "file/x", "x" * 300, "."])
def test_an_output_file_that_cannot_be_made_is_a_bad_request(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (tmp_path / "file").touch()
    code, lines, told = run(capsys, "dump", path, "--output", tmp_path / place)
    assert (code, lines) == (BAD_REQUEST, [])
    assert "output file" in told
    assert str(tmp_path / place) in told


@pytest.mark.parametrize(
    "words", matrix([["dump"], ["dump", "--raw"], ["tail", "-n", "1"], ["tail", "-n", "400", "--json"]])
)
def test_an_output_that_fails_is_not_told_as_the_queues_failure(path: Path, words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        found = subprocess.run(
            [sys.executable, "-m", "holdfast.cli.main", "queue", words[0], str(path), *words[1:]],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert found.returncode == UNAVAILABLE
    assert len(found.stderr.splitlines()) == 1
    assert "output could not be written output=stdout cause=No space left on device" in found.stderr


def test_the_help_of_tail_tells_what_none_means(capsys: pytest.CaptureFixture[str]) -> None:
    _, lines, _ = run(capsys, "tail", "--help")
    assert "0 with -f prints new messages only" in " ".join(" ".join(lines).split())


def test_what_is_set_aside_is_told_of_its_own_queue_only(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("orders-9.page.torn", "orders-eu-9.page.torn", "orders-eu-9.page.64.damaged"):
        (path.parent / name).touch()
    assert run_json(capsys, "info", path)[1]["set_aside"] == ["orders-9.page.torn"]
