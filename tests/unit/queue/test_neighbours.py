"""Queues in one directory: independent, or refused by name before a file is made."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from holdfast.errors import InvalidRequest
from holdfast.queue import Queue
from holdfast.queue.files.cursors import committed_seqs
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.queue import core_of

NAMES = [
    "a",
    "a-b",
    "a-b-c",
    "a-1",
    "a-1.page",
    "a-b.lock",
    "a.lock",
    "a-dead",
    "a-damage",
    "a-allMeta",
    "a-writer",
    "a-",
]


def seqs(queue: Queue) -> list[bytes]:
    return [message.payload for message in queue.read()]


def test_a_consumer_and_a_queue_that_is_called_like_both_are_independent(tmp_path: Path) -> None:
    with (
        Queue(tmp_path / "a", page_size=4096) as queue,
        queue.consumer("eu") as consumer,
        Queue(tmp_path / "a-eu", page_size=4096) as other,
        other.consumer("eu") as others,
    ):
        queue.append(b"one")
        other.append_many([b"two", b"three"])
        consumer.poll()
        consumer.commit()
        others.poll()
        others.commit()
        assert (committed_seqs(core_of(queue).pages), committed_seqs(core_of(other).pages)) == ({"eu": 1}, {"eu": 2})
    with Queue(tmp_path / "a-eu") as other, Queue(tmp_path / "a") as queue, queue.work_queue("w-eu") as work:
        assert work.get(timeout=0) is not None
        assert (seqs(queue), seqs(other)) == ([b"one"], [b"two", b"three"])


def test_no_file_of_a_queue_is_called_like_one_of_another() -> None:
    """But for cursors and queues of work queues, which the other tests are about."""
    owner: dict[str, str] = {}
    for prefix in NAMES:
        names = FileNames(prefix)
        page = names.page(1)
        made = [names.identity, names.write_meta, names.read_meta, names.lock, page, names.index(1)]
        made += [names.temporary(name) for name in made]
        made += [f"{page}.torn", f"{page}.2.torn", f"{page}.64.damaged", f"{page}.damaged.2", f"{prefix}-damage.jsonl"]
        made += [
            name for other in ("eu", "1", "1.page", "b.c") for name in (names.named_lock(other), names.cursor(other))
        ]
        for name in made:
            assert owner.setdefault(name, prefix) == prefix, name
    for one, other in permutations(NAMES, 2):
        assert FileNames(one).page_number(FileNames(other).page(1)) is None
        assert not FileNames(one).is_set_aside(FileNames(other).page(1) + ".torn")
        assert not FileNames(one).is_temporary(FileNames(other).page(1) + ".tmp")


def test_many_queues_with_names_within_names_are_open_at_once_and_keep_their_own(tmp_path: Path) -> None:
    queues = [Queue(tmp_path / name, page_size=4096, background=False) for name in NAMES]
    for queue, name in zip(queues, NAMES, strict=True):
        for number in range(20):
            queue.append(b"%s %d" % (name.encode(), number) + b"." * 500)
        queue.consumer("x").close()
    for queue in queues:
        queue.close()
    for name in NAMES:
        with Queue(tmp_path / name) as queue:
            assert {payload.rpartition(b" ")[0] for payload in seqs(queue)} == {name.encode()}
            assert len(seqs(queue)) == 20


def test_a_name_that_would_be_a_consumers_lock_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot end in \.cursor"):
        Queue(tmp_path / "a-eu.cursor")
    assert list(tmp_path.iterdir()) == []


def test_a_queue_whose_consumers_would_be_anothers_is_refused(tmp_path: Path) -> None:
    with Queue(tmp_path / "a") as queue:
        queue.append(b"one")
        with queue.consumer("eu-billing") as consumer:
            consumer.poll()
            consumer.commit()
        with pytest.raises(InvalidRequest, match=r"queue=a-eu owner=a file=a-eu-billing\.cursor"):
            Queue(tmp_path / "a-eu")
        assert committed_seqs(core_of(queue).pages) == {"eu-billing": 1}
    Queue(tmp_path / "b-eu").close()
    with Queue(tmp_path / "b-eu") as other, other.consumer("billing"):
        Queue(tmp_path / "b").close()  # the shorter name comes second: whose the cursor is has been settled


def test_the_queues_of_a_work_queue_are_made_by_it_alone(tmp_path: Path) -> None:
    with Queue(tmp_path / "a") as queue:
        with pytest.raises(InvalidRequest, match=r"queue=a-w\.work"):
            Queue(tmp_path / "a-w.work")
        Queue(tmp_path / "a-v-dead").close()
        with pytest.raises(InvalidRequest, match="queue=a-v-dead"):
            queue.work_queue("v")
        assert not (tmp_path / "a-v.cursor").exists()
        queue.append(b"one")
        with queue.work_queue("w") as work:
            with pytest.raises(InvalidRequest, match="dead letters queue=a-w-dead"):
                Queue(tmp_path / "a-w-dead")
            job = work.get(timeout=0)
            assert job is not None
            work.dead_letter(job)
        with Queue(tmp_path / "a-w-dead") as dead, Queue(tmp_path / "a-w.work") as log:
            assert (dead.last_seq, log.last_seq > 0) == (1, True)  # what is there may be opened by all
        with queue.work_queue("w") as work:
            assert [letter.payload for letter in work.dead_letters()] == [b"one"]


@pytest.mark.parametrize("name", ["", "a/b", "a\0b", "x" * 101, "\ud800", 5, None])
def test_a_refused_name_of_a_consumer_tells_which_characters_there_may_be(tmp_path: Path, name: str) -> None:
    with Queue(tmp_path / "q") as queue:
        for make in (queue.consumer, queue.work_queue):
            with pytest.raises(InvalidRequest) as refused:
                make(name)
            assert refused.value.hint == "1 to 100 bytes in UTF-8, of any characters but / and NUL"
