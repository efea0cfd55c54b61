"""Views against a plain dictionary: memory and SQLite, whole and after crashes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.client import Checkpoint, TransactionEvent
from holdfast.commit.format.transaction import Delete, Operation, RangeDelete, Write
from holdfast.errors import Closed, CorruptData, InvalidRequest, Unavailable
from holdfast.view import View
from holdfast.view.sqlite import SqliteStorage
from holdfast.view.storage import Layer, OrderedKeys

KEYS = st.binary(max_size=2).map(lambda key: bytes(byte % 4 * 85 for byte in key))
ENDS = st.none() | KEYS
OPERATIONS = st.one_of(
    st.builds(Write, KEYS, st.binary(max_size=3)),
    st.builds(Delete, KEYS),
    st.builds(RangeDelete, KEYS, ENDS),
)
SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
TRANSACTIONS = st.lists(OPERATIONS, min_size=1, max_size=5)

Model = dict[bytes, tuple[bytes, int]]


def event(version: int, prev: int, operations: list[Operation], *, durable: bool = True) -> TransactionEvent:
    return TransactionEvent(version, prev, None, "", 0, tuple(operations), durable)


def apply_plainly(model: Model, version: int, operations: list[Operation]) -> None:
    for operation in operations:
        match operation:
            case Write(key=key, value=value):
                model[key] = (value, version)
            case Delete(key=key):
                model.pop(key, None)
            case RangeDelete(begin=begin, end=end):
                for key in [key for key in model if key >= begin and (end is None or key < end)]:
                    del model[key]


def plain_range(model: Model, begin: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes, int]]:
    rows = [(key, *stored) for key, stored in sorted(model.items()) if key >= begin and (end is None or key < end)]
    return rows[:limit]


class ViewMachine(RuleBasedStateMachine):
    """Any interleaving of applying, reading, flushing and crashing shows what a plain dictionary shows."""

    kind = "memory"

    @initialize()
    def start(self) -> None:
        self.folder = Path(os.environ["HOLDFAST_VIEW_TEST"]) / str(id(self))
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.copies = 0
        self.path = self.folder / "view"
        self.view = View.memory() if self.kind == "memory" else View.sqlite(self.path)
        self.model: Model = {}
        self.events: list[TransactionEvent] = []
        self.version = 0
        self.last = 0

    @rule(batch=st.lists(TRANSACTIONS, min_size=1, max_size=4), step=st.integers(1, 3))
    def apply(self, batch, step) -> None:
        events = []
        for operations in batch:
            version = self.version + step
            events.append(event(version, self.last, operations))
            self.last = self.version = version
            apply_plainly(self.model, version, operations)
        self.events += events
        self.view.apply(events)

    @rule(step=st.integers(0, 5))
    def checkpoint(self, step) -> None:
        self.version += step
        self.view.apply([Checkpoint(self.version, "")])

    @rule()
    def flush(self) -> None:
        self.view.flush()

    @rule()
    def crash(self) -> None:
        """What the files hold at this moment is all that is left; the stream brings the rest again."""
        if self.kind == "memory":
            return
        self.copies += 1
        path = self.folder / f"copy-{self.copies}"
        for suffix in ("", "-wal"):
            source = Path(f"{self.path}{suffix}")
            if source.exists():
                shutil.copy(source, f"{path}{suffix}")
        self.view.close()
        self.path = path
        self.view = View.sqlite(path)
        at = self.view.version
        assert at <= self.version
        left: Model = {}
        for item in self.events:
            if item.version <= at:
                apply_plainly(left, item.version, list(item.operations))
        assert self.view.range(limit=10_000) == plain_range(left, b"", None, 10_000)
        self.view.apply([*self.events, Checkpoint(self.version, "")])

    @rule(begin=KEYS, end=ENDS, limit=st.integers(0, 5))
    def read_range(self, begin, end, limit) -> None:
        assert self.view.range(begin, end, limit) == plain_range(self.model, begin, end, limit)

    @rule(key=KEYS)
    def read(self, key) -> None:
        assert self.view.get(key) == self.model.get(key)

    @invariant()
    def shows_what_the_model_shows(self) -> None:
        if hasattr(self, "view"):
            assert self.view.version == self.version
            assert self.view.range(limit=10_000) == plain_range(self.model, b"", None, 10_000)

    def teardown(self) -> None:
        if hasattr(self, "view"):
            self.view.close()
            shutil.rmtree(self.folder)


class SqliteViewMachine(ViewMachine):
    kind = "sqlite"


@pytest.mark.parametrize(("machine", "examples"), [(ViewMachine, 60), (SqliteViewMachine, 40)])
def test_a_view_is_the_plain_dictionary_of_its_stream(machine, examples, tmp_path, monkeypatch):
    from hypothesis.stateful import run_state_machine_as_test

    monkeypatch.setenv("HOLDFAST_VIEW_TEST", str(tmp_path))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples // 4 if SMALL else examples, stateful_step_count=20, deadline=None, database=None
        ),
    )


@given(st.lists(TRANSACTIONS, max_size=20), st.integers(0, 20), st.booleans())
def test_a_layer_over_a_state_shows_what_applying_to_the_state_shows(batch, split, is_ground):
    below: Model = {}
    for version, operations in enumerate(batch[:split], 1):
        apply_plainly(below, version, operations)
    whole = dict(below) if not is_ground else {}
    layer = Layer(is_ground=is_ground)
    for version, operations in enumerate(batch[split:], split + 1):
        layer.apply(version, operations)
        apply_plainly(whole, version, operations)
        layer.check()
    shown = {} if is_ground else {key: stored for key, stored in below.items() if not layer.hides(key)}
    for key, stored in layer.changes.items():
        if stored is None:
            shown.pop(key, None)
        else:
            shown[key] = stored
    assert shown == whole


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6000)), max_size=200), st.integers(0, 5000))
def test_ordered_keys_are_a_sorted_set(steps, start_size):
    keys = OrderedKeys()
    model = {b"%05d" % number for number in range(0, start_size * 2, 2)}
    keys.rebuild(model)
    for adding, number in steps:
        key = b"%05d" % number
        if adding:
            keys.add(key)
            model.add(key)
        else:
            keys.discard(key)
            model.discard(key)
        assert list(keys.walk(key, key + b"\0")) == ([key] if key in model else [])
    keys.check()
    assert list(keys.walk(b"01000", b"03000")) == sorted(key for key in model if b"01000" <= key < b"03000")
    assert len(keys) == len(model)


@pytest.fixture(params=["memory", "sqlite"])
def view(request, tmp_path):
    with View.memory() if request.param == "memory" else View.sqlite(tmp_path / "view") as made:
        yield made


def test_a_missing_transaction_is_refused_and_nothing_of_its_batch_is_applied(view):
    view.apply([event(5, 0, [Write(b"a", b"1")])])
    with pytest.raises(CorruptData) as caught:
        view.apply([event(7, 5, [Write(b"b", b"2")]), event(9, 8, [Write(b"c", b"3")])])
    assert caught.value.fields["prev_version"] == 8
    assert caught.value.fields["last_applied"] == 7
    assert (view.version, view.range()) == (5, [(b"a", b"1", 5)])


def test_a_view_that_starts_late_is_refused(view):
    with pytest.raises(CorruptData):
        view.apply([event(9, 8, [Write(b"c", b"3")])])


def test_a_transaction_behind_a_checkpoint_is_refused(view):
    view.apply([event(5, 0, [Write(b"a", b"1")]), Checkpoint(10, "")])
    with pytest.raises(CorruptData):
        view.apply([event(7, 5, [Write(b"b", b"2")])])


def test_what_may_be_rolled_back_is_not_taken(view):
    with pytest.raises(InvalidRequest):
        view.apply([event(5, 0, [Write(b"a", b"1")], durable=False)])
    with pytest.raises(InvalidRequest):
        view.apply([object()])


def test_a_repeated_transaction_changes_nothing(view):
    events = [event(5, 0, [Write(b"a", b"1")]), event(6, 5, [Write(b"a", b"2")])]
    view.apply(events)
    view.apply(events)
    assert view.get(b"a") == (b"2", 6)


def test_waiting_ends_when_the_version_is_applied_and_not_before(view):
    assert view.wait_for(0, 0)
    assert not view.wait_for(5, 0)
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(view.wait_for(5, 30)))
    waiter.start()
    view.apply([Checkpoint(4, "")])
    assert not answers
    view.apply([Checkpoint(6, "")])
    waiter.join(30)
    assert answers == [True]


def test_a_loop_is_woken_from_another_thread_and_forgets_who_gave_up(view):
    async def main() -> None:
        async with asyncio.timeout(30):
            waiting = asyncio.ensure_future(view.reached(5))
            gave_up = asyncio.ensure_future(view.reached(9))
            await asyncio.sleep(0)
            gave_up.cancel()
            await asyncio.gather(gave_up, return_exceptions=True)
            await asyncio.to_thread(view.apply, [Checkpoint(7, "")])
            await waiting

    asyncio.run(main())
    assert view._waiters == []


def test_readers_in_other_threads_see_whole_batches(view):
    stop = threading.Event()
    torn: list[object] = []

    def read() -> None:
        while not stop.is_set():
            rows = view.range()
            if len({version for _, _, version in rows}) > 1:
                torn.append(rows)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for version in range(1, 400):
        view.apply([event(version, version - 1, [Write(b"%d" % number, b"v") for number in range(10)])])
        if version % 50 == 0:
            view.flush()
    stop.set()
    for reader in readers:
        reader.join(30)
    assert torn == []


def test_a_closed_view_says_so(view):
    view.close()
    with pytest.raises(Closed):
        view.get(b"a")
    with pytest.raises(Closed):
        view.range()


def test_a_file_view_resumes_exactly_where_it_was_closed(tmp_path):
    with View.sqlite(tmp_path / "view") as view:
        view.apply([event(5, 0, [Write(b"a", b"1"), Write(b"b", b"2")]), Checkpoint(8, "")])
    with View.sqlite(tmp_path / "view") as view:
        assert (view.version, view.range()) == (8, [(b"a", b"1", 5), (b"b", b"2", 5)])
        with pytest.raises(CorruptData):
            view.apply([event(9, 6, [])])
        view.apply([event(9, 5, [RangeDelete(b"a", None)])])
        assert view.range() == []


KILLED = """
import os, sys
from holdfast.client import TransactionEvent
from holdfast.view import View
from holdfast.commit.format.transaction import Write, RangeDelete
view = View.sqlite(sys.argv[1])
version = view.version
while True:
    version += 1
    number = version % 97
    value = b"%d" % version
    operations = (RangeDelete(b"x"), Write(b"x%d" % number, value), Write(b"n", value))
    view.apply([TransactionEvent(version, version - 1, None, "", 0, operations)])
    if version % 500 == 0:
        view.flush()
        print(version, flush=True)
"""


def test_killed_at_any_moment_a_file_is_exactly_the_state_of_its_position(tmp_path):
    path = tmp_path / "view"
    reached = 0
    for rounds in range(3):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(2 + rounds):
            reached = int(process.stdout.readline())
        process.kill()
        process.wait()
        process.stdout.close()
        with View.sqlite(path) as view:
            at = view.version
            assert at >= reached
            assert view.range() == [(b"n", b"%d" % at, at), (b"x%d" % (at % 97), b"%d" % at, at)]


def test_a_file_that_is_no_view_is_refused_and_left_alone(tmp_path):
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE precious(a)")
    other.commit()
    other.close()
    (tmp_path / "text").write_bytes(b"precious" * 1000)
    for name in ("other", "text"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(CorruptData):
            View.sqlite(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


def test_a_file_that_can_no_longer_be_written_stops_the_view_loudly(tmp_path):
    view = View.sqlite(tmp_path / "view")
    view.apply([event(5, 0, [Write(b"a", b"1")])])
    view.flush()
    other = sqlite3.connect(tmp_path / "view")
    other.execute("DROP TABLE latest")
    other.close()
    view.apply([event(6, 5, [Write(b"a", b"2")])])
    with pytest.raises(Unavailable):
        view.flush()
    with pytest.raises(Unavailable):
        view.apply([event(7, 6, [Write(b"a", b"3")])])
    with pytest.raises(Unavailable):
        view.close()


def test_a_crash_before_any_statement_of_a_flush_leaves_one_of_the_two_whole_states(tmp_path):
    storage = SqliteStorage(tmp_path / "view")
    view = View(storage)
    view.apply([event(5, 0, [Write(b"a", b"1"), Write(b"b", b"1"), Write(b"c", b"1")])])
    view.flush()
    view.apply([event(9, 5, [RangeDelete(b"a", b"b"), Delete(b"b"), Write(b"d", b"2")])])
    copies: list[Path] = []

    def crash(_: str) -> None:
        path = tmp_path / f"copy-{len(copies)}"
        for suffix in ("", "-wal"):
            shutil.copy(f"{tmp_path / 'view'}{suffix}", f"{path}{suffix}")
        copies.append(path)

    storage._writer.set_trace_callback(crash)
    view.flush()
    crash("after the last")
    storage._writer.set_trace_callback(None)
    view.close()
    states = []
    for path in copies:
        with View.sqlite(path) as left:
            states.append((left.version, [key for key, _, _ in left.range()]))
    assert set(map(str, states)) == {str((5, [b"a", b"b", b"c"])), str((9, [b"c", b"d"]))}
    assert states == sorted(states)
    assert len(states) >= 6


@pytest.mark.parametrize(
    "ranges", [[(b"a", b"b"), (b"b", b"c")], [(b"b", b"c"), (b"a", b"b")], [(b"a", None), (b"b", b"c")]]
)
def test_cleared_ranges_that_touch_become_one(ranges):
    layer = Layer(is_ground=False)
    for begin, end in ranges:
        layer.apply(1, [RangeDelete(begin, end)])
    layer.check()
    assert len(layer.cleared) == 1
