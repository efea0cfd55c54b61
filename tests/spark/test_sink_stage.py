"""Laws of a write whose rows are fixed before the first is sent: whatever Spark computes again, it is in the log once.

Against a real service, without Spark: each run deals other rows to other partitions in another order, as a run after a
shuffle does.
"""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest
from tests.matrix import matrix
from tests.spark.mortal import Fate, Killed
from tests.spark.service_process import ServiceProcess
from tests.spark.test_sink_protocol import STEP, notes_left, record_of, wanted, written, written_under

from holdfast.client import ClientOptions
from holdfast.client.protocol.effects import Procedure
from holdfast.commit.format.transaction import Transaction
from holdfast.errors import Code, Fenced, HoldfastError, InvalidRequest, LimitExceeded, NotFound
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.retention.job_holds import FOLDER
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.service_client import ServiceClient
from holdfast.spark.sink import stage, writer
from holdfast.spark.sink import task as sink_task
from holdfast.spark.sink.identity import SentPartition
from holdfast.spark.sink.progress import Note, PartitionNotes
from holdfast.spark.sink.record import WriteId, begin, job_of
from holdfast.spark.sink.stage import (
    MANIFEST,
    ServiceStage,
    Stage,
    StagedPartition,
    WriteManifest,
    find_manifest,
    fix_manifest,
    open_stage,
    rows_of,
)
from holdfast.spark.sink.task import send_partition
from holdfast.spark.sink.writer import send_staged, stage_partition

ROWS = 23
_applications = itertools.count()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path_factory.mktemp("log")) as started:
        yield started


@pytest.fixture(autouse=True)
def fate(monkeypatch: pytest.MonkeyPatch) -> Fate:
    """Small chunks and parts, one connection, and a fate that every request shares."""
    monkeypatch.setattr(sink_task, "CHUNK_TRANSACTIONS", 4)
    monkeypatch.setattr(stage, "PART_BYTES", 600)
    monkeypatch.setattr(writer, "CONNECTIONS", 1)
    shared = Fate()
    run = ServiceClient.run

    def mortal(self: ServiceClient, procedure: Procedure[object], *more: object) -> object:
        try:
            return shared.run(lambda: run(self, procedure, *more))  # type: ignore[arg-type]
        except Killed:
            procedure.close()
            raise

    monkeypatch.setattr(ServiceClient, "run", mortal)
    return shared


def new_options(service: ServiceProcess, folder: Path | None = None) -> WriteOptions:
    staging_location = None if folder is None else folder.as_uri()
    return WriteOptions(service.url, f"staged-{next(_applications)}", staging_location=staging_location)


def dealt(name: str, seed: int) -> dict[int, list[pa.RecordBatch]]:
    """The same rows, dealt to other partitions and in another order for each seed; values are new each time."""
    chance = random.Random(seed)
    keys = [b"%s/%03d" % (name.encode(), index) for index in range(ROWS)]
    chance.shuffle(keys)
    count = chance.choice((1, 2, 3, 5))
    parts = {partition: keys[partition::count] for partition in range(count)}
    return {
        partition: [pa.record_batch({"key": part, "value": [chance.randbytes(40) for _ in part]})]
        for partition, part in parts.items()
    }


def open_client(options: WriteOptions) -> ServiceClient:
    return ServiceClient(options.url, ClientOptions(commits_per_request_max=3))


def run(options: WriteOptions, what: WriteId, rows: dict[int, list[pa.RecordBatch]]) -> None:
    """One run of a job: what Spark's driver and its tasks do, one after the other."""
    with open_client(options) as client, open_stage(options, client) as opened:
        intent = begin(client, options, what)
        if intent.version is None:
            return
        if not intent.is_new and find_manifest(opened, what.token) is not None:
            staged = None
        else:
            staged = [stage_partition(opened, options, what.token, each, rows[each])[0] for each in rows]
        send_staged(client, options, what, intent, staged)


def expected(name: str) -> list[bytes]:
    return [b"%s/%03d" % (name.encode(), index) for index in range(ROWS)]


def objects_left(options: WriteOptions) -> list[str]:
    with open_client(options) as client, open_stage(options, client) as opened:
        return [write for write, _ in opened.listed()]


def is_held(options: WriteOptions) -> bool:
    """Whether the log is held for a write of this application."""
    with open_client(options) as client:
        return bool(client.jobs(FOLDER + job_of(options.application), at=client.version().version).items)


def kill_everywhere(
    service: ServiceProcess, fate: Fate, name: str, folder: Path | None, after: bool, step: int
) -> None:
    """A write is killed at each request and run again twice, its rows dealt again each time: each key is there once.

    Raises: AssertionError, and what a run raises that should have come to its end.
    """
    deaths = 0
    for dies_at in itertools.count(1, step):
        options = new_options(service, folder)
        one = f"{name}-{dies_at}"
        fate.left, fate.after = dies_at, after
        try:
            run(options, wanted(one), dealt(one, 2 * dies_at))
        except Killed:
            deaths += 1
        fate.left = 0
        if deaths * step < dies_at:
            break
        run(options, wanted(one), dealt(one, 2 * dies_at + 1))
        run(options, wanted(one), dealt(one, 2 * dies_at + 2))
        with open_client(options) as client:
            assert notes_left(client, options, one) == 0
            assert record_of(client, options).state == "done"
    assert deaths > 15 // step
    found = written_under(service, f"{name}-")
    for dies_at in range(1, deaths * step, step):
        keys = expected(f"{name}-{dies_at}")
        assert [found.pop(key) for key in keys] == [1] * len(keys), f"killed at request {dies_at}"


@pytest.mark.parametrize("place", matrix(["service", "directory"]))
@pytest.mark.parametrize("after", matrix([True, False]))
def test_killed_at_every_request_and_run_again_with_other_rows_it_writes_each_key_once(
    service: ServiceProcess, fate: Fate, tmp_path: Path, place: str, after: bool
) -> None:
    folder = tmp_path if place == "directory" else None
    kill_everywhere(service, fate, f"dealt-{place}-{after}", folder, after, 3 * STEP if place == "service" else 1)


def send_late(service: ServiceProcess, name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """A driver stops before its first row until another one has ended the write. How many rows it sends then."""
    options, what = new_options(service), wanted(name)
    sent = 0
    commit = ServiceClient.commits_many

    def counted(self: ServiceClient, txns: Iterable[Transaction], *more: object) -> object:
        nonlocal sent
        given = list(txns)
        sent += len(given)
        return commit(self, given, *more)  # type: ignore[arg-type]

    with open_client(options) as client, open_stage(options, client) as opened:
        intent = begin(client, options, what)
        rows = dealt(name, 1)
        own = [stage_partition(opened, options, what.token, each, rows[each])[0] for each in rows]
        manifest = fix_manifest(opened, what.token, own)
        late = [(each, list(rows_of(opened, what.token, each))) for each in manifest.partitions]
        run(options, what, dealt(name, 2))
        assert record_of(client, options).state == "done"  # its view knows that
        monkeypatch.setattr(ServiceClient, "commits_many", counted)
        for each, batches in late:
            send_partition(client, options, intent, each.partition, batches, each.digest)
        monkeypatch.undo()
    assert written(service, name) == expected(name)
    return sent


def test_a_sender_that_comes_late_sends_nothing_after_done(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send_late(service, "zombie", monkeypatch) == 0


def sent_before_the_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are sent that no manifest names."""
    monkeypatch.setattr(writer, "fix_manifest", lambda _, __, staged: WriteManifest(tuple(staged)))
    monkeypatch.setattr(writer, "has_notes", lambda *_: False)


def sent_from_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run does not look for a manifest."""

    def own(stage: Stage, write: str, staged: Sequence[StagedPartition]) -> WriteManifest:
        fix_manifest(stage, write, staged)
        return WriteManifest(tuple(staged))

    monkeypatch.setattr(writer, "fix_manifest", own)
    monkeypatch.setattr(writer, "has_notes", lambda *_: False)
    monkeypatch.setitem(globals(), "find_manifest", lambda *_: None)


def staged_objects_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second try has the names of the first, and its bytes stay."""

    async def replaced(store: ObjectStore, key: str, data: bytes) -> bool:
        if not key.endswith(MANIFEST):
            await store.delete(key)
        return await create_exactly(store, key, data)

    monkeypatch.setattr(stage, "create_exactly", replaced)
    monkeypatch.setattr(secrets, "token_hex", lambda count: "0" * 2 * count)
    monkeypatch.setitem(globals(), "find_manifest", lambda *_: None)


def removed_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The staged rows are removed before the record says done."""
    end = writer.finish

    def early(client: ServiceClient, options: WriteOptions, what: WriteId, sent: Sequence[SentPartition]) -> None:
        with open_stage(options, client) as opened:
            opened.remove(what.token)
        end(client, options, what, sent)

    monkeypatch.setattr(writer, "finish", early)


@pytest.mark.parametrize(
    "mutant",
    matrix([sent_before_the_manifest, sent_from_own_rows, staged_objects_are_overwritten, removed_too_early]),
    ids=lambda mutant: mutant.__name__,
)
def test_each_rule_is_needed(
    service: ServiceProcess,
    fate: Fate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, HoldfastError)):
        kill_everywhere(service, fate, mutant.__name__, tmp_path, True, 1)


def test_without_a_look_at_the_record_a_late_sender_sends(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            PartitionNotes, "agree", lambda self, progress: Note(progress, self._intent_version, is_new=True)
        )
        assert send_late(service, "careless", patched) > 0


def test_a_write_that_is_done_leaves_nothing_staged(service: ServiceProcess) -> None:
    options = new_options(service)
    run(options, wanted("clean"), dealt("clean", 1))
    assert written(service, "clean") == expected("clean")
    assert objects_left(options) == []


def test_the_first_manifest_stays_and_both_drivers_send_its_rows(service: ServiceProcess) -> None:
    options, what = new_options(service), wanted("two-drivers")
    with open_client(options) as client, open_stage(options, client) as opened:
        intents, staged = [], []
        for seed in (1, 2):
            intents.append(begin(client, options, what))
            rows = dealt("two-drivers", seed)
            staged.append([stage_partition(opened, options, what.token, each, rows[each])[0] for each in rows])
        first = fix_manifest(opened, what.token, staged[0])
        assert fix_manifest(opened, what.token, staged[1]) == first
        for intent, own in zip(intents, staged, strict=True):
            send_staged(client, options, what, intent, own)
    assert written(service, "two-drivers") == expected("two-drivers")


def test_only_what_the_driver_heard_of_is_sent(service: ServiceProcess) -> None:
    """A task that was tried twice, or speculatively, has staged its rows twice."""
    options, what = new_options(service), wanted("twice")
    rows = dealt("twice", 1)
    with open_client(options) as client, open_stage(options, client) as opened:
        intent = begin(client, options, what)
        for each in rows:
            stage_partition(opened, options, what.token, each, rows[each])
        staged = [stage_partition(opened, options, what.token, each, rows[each])[0] for each in rows]
        send_staged(client, options, what, intent, staged)
    assert written(service, "twice") == expected("twice")
    assert objects_left(options) == []


def test_a_driver_that_comes_late_sends_nothing_after_done(service: ServiceProcess) -> None:
    options, what = new_options(service), wanted("late")
    with open_client(options) as client, open_stage(options, client) as opened:
        intent = begin(client, options, what)
        rows = dealt("late", 1)
        own = [stage_partition(opened, options, what.token, each, rows[each])[0] for each in rows]
        run(options, what, dealt("late", 2))
        send_staged(client, options, what, intent, own)  # it makes a manifest again, whose rows nobody sends
        run(options, wanted("next"), dealt("next", 3))
        send_staged(client, options, what, intent, own)
        assert written(service, "late") == expected("late")
        superseding = replace(options, supersede=True)
        given_up = begin(client, superseding, wanted("given-up"))
        rows = dealt("given-up", 4)
        own = [stage_partition(opened, options, given_up.token, each, rows[each])[0] for each in rows]
        run(superseding, wanted("after"), dealt("after", 5))
        with pytest.raises(Fenced):
            send_staged(client, options, wanted("given-up"), given_up, own)
    assert written(service, "given-up") == []


class Missing(Stage):
    """A stage that has lost its objects."""

    def put(self, write: str, name: str, data: bytes) -> bool:
        raise AssertionError("nothing is staged here")

    def get(self, write: str, name: str) -> bytes | None:
        return None

    def listed(self) -> Iterator[tuple[str, int | None]]:
        return iter(())

    def remove(self, write: str) -> None:
        """There is nothing."""


@pytest.mark.parametrize("lost", ["manifest", "part", "folder"])
def test_a_write_whose_staged_rows_are_gone_is_refused_by_name(
    service: ServiceProcess, fate: Fate, tmp_path: Path, lost: str
) -> None:
    """Some of its rows may be committed, and which ones only the log knows."""
    options, what = new_options(service, tmp_path), wanted(f"lost-{lost}")
    fate.left = 12
    with pytest.raises(Killed):
        run(options, what, dealt(f"lost-{lost}", 1))
    fate.left = 0
    with open_client(options) as client:
        assert notes_left(client, options, f"lost-{lost}") > 0, "it was killed while it sent"
    for path in tmp_path.rglob("*"):
        if path.is_file() and (lost == "folder" or (path.name.startswith(MANIFEST) == (lost == "manifest"))):
            path.unlink()
    before = written(service, f"lost-{lost}")
    for seed in (2, 3):
        with pytest.raises(NotFound) as refused:
            run(options, what, dealt(f"lost-{lost}", seed))
        assert refused.value.code is Code.STAGE_LOST
    assert set(written(service, f"lost-{lost}")) >= set(before)
    assert len(written(service, f"lost-{lost}")) == len(set(written(service, f"lost-{lost}")))


def test_a_row_that_cannot_be_sent_fails_before_any_is(service: ServiceProcess) -> None:
    options, what = new_options(service), wanted("bad")
    rows = dealt("bad", 1)
    rows[max(rows)].append(pa.record_batch({"key": pa.array([None], pa.binary()), "value": [b"v"]}))
    with pytest.raises(InvalidRequest):
        run(options, what, rows)
    assert written(service, "bad") == []
    run(options, what, dealt("bad", 2))
    assert written(service, "bad") == expected("bad")


def test_a_write_goes_on_in_the_way_in_which_it_began(service: ServiceProcess, fate: Fate) -> None:
    options, what = new_options(service), wanted("way")
    fate.left, fate.after = 10, True
    with pytest.raises(Killed):
        run(options, what, dealt("way", 1))
    fate.left = 0
    direct = WriteOptions(options.url, options.application, direct=True)
    with open_client(direct) as client, pytest.raises(InvalidRequest, match="direct=false"):
        begin(client, direct, what)


class Aged(Missing):
    """Writes with the times at which their objects were made."""

    def __init__(self, **created: int | None) -> None:
        self.created = created

    def listed(self) -> Iterator[tuple[str, int | None]]:
        return iter(list(self.created.items()))

    def remove(self, write: str) -> None:
        self.created.pop(write, None)


def test_what_no_manifest_names_stays_for_a_day_by_the_clock_of_the_store() -> None:
    now, day = 1_000_000_000, stage.KEPT_MS
    kept = Aged(done=now, young=now - day, old=now - day - 1, timeless=None)
    kept.remove_abandoned("done")
    assert set(kept.created) == {"young", "timeless"}


def test_large_batches_are_cut_into_parts_and_come_back_in_order(service: ServiceProcess) -> None:
    options = new_options(service)
    rows = [pa.record_batch({"key": [b"k%04d" % index for index in range(300)], "value": [b"v" * 30] * 300})]
    with open_client(options) as client, open_stage(options, client) as opened:
        staged, sent = stage_partition(opened, options, "cut", 7, rows)
        assert len(staged.parts) > 5
        assert sum(part.rows for part in staged.parts) == sent.transactions == 300
        manifest = fix_manifest(opened, "cut", [staged, StagedPartition(8)])
        assert [each.partition for each in manifest.partitions] == [7]
        found = [key for batch in rows_of(opened, "cut", staged) for key in batch["key"].to_pylist()]
    assert found == rows[0]["key"].to_pylist()


class Slow(Missing):
    """A stage that keeps an object when the test says so, and refuses one."""

    def __init__(self, refused: int = -1) -> None:
        self.kept: list[str] = []
        self.begun: list[str] = []
        self.may_keep = Event()
        self._refused = refused

    def put(self, write: str, name: str, data: bytes) -> bool:
        self.begun.append(name)
        assert self.may_keep.wait(60), "the test lets it go on"
        if len(self.kept) == self._refused:
            raise LimitExceeded("the request is too large")
        self.kept.append(name)
        return True


def batches_of(count: int) -> Iterator[pa.RecordBatch]:
    """Each fills a part."""
    for index in range(count):
        yield pa.record_batch({"key": [b"k%04d" % index], "value": [b"v" * 1000]})


def test_a_task_reads_on_while_a_part_is_kept() -> None:
    kept = Slow()

    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches_of(3)):
            if number == 1:
                assert kept.kept == []
                kept.may_keep.set()
            yield batch

    partition, _ = stage_partition(kept, WriteOptions("http://h", "slow"), "slow", 0, batches())
    assert [part.name for part in partition.parts] == kept.kept == kept.begun
    assert len(kept.kept) == 3


class Lazy(Executor):
    """Does its work when somebody waits for it."""

    def __init__(self, *_: object) -> None:
        """As the executor that it stands for."""

    def submit(self, function: Callable[..., object], /, *given: object, **named: object) -> Future[object]:
        future: Future[object] = Future()
        waits = future.result

        def result(timeout: float | None = None) -> object:
            if not future.done():
                future.set_result(function(*given, **named))
            return waits(timeout)

        future.result = result  # type: ignore[method-assign]
        return future


def test_one_part_waits_at_most_so_that_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "ThreadPoolExecutor", Lazy)
    kept = Slow()
    kept.may_keep.set()

    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches_of(5)):
            assert len(kept.kept) == max(0, number - 1)
            yield batch

    partition, _ = stage_partition(kept, WriteOptions("http://h", "slow"), "slow", 0, batches())
    assert [part.name for part in partition.parts] == kept.kept
    assert len(kept.kept) == 5


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_part_that_is_refused_fails_its_task(refused: int) -> None:
    kept = Slow(refused)
    kept.may_keep.set()
    with pytest.raises(LimitExceeded):
        stage_partition(kept, WriteOptions("http://h", "slow"), "slow", 0, batches_of(3))
    assert len(kept.kept) == refused


def test_other_rows_than_those_that_a_note_names_are_refused(service: ServiceProcess, fate: Fate) -> None:
    """Such as those of another manifest: rows of two of them would mix."""
    options, what = new_options(service), wanted("named")
    with open_client(options) as client, open_stage(options, client) as opened:
        intent = begin(client, options, what)
        batches = dealt("named", 1)[0]
        one, other = (stage_partition(opened, options, what.token, 0, batches[:])[0] for _ in range(2))
        assert one.digest == other.digest, "the same rows in the same order"
        changed, _ = stage_partition(opened, options, what.token, 0, [batches[0].slice(1), batches[0].slice(0, 1)])
        assert changed.digest != one.digest
        fate.left, fate.after = 4, True
        with pytest.raises(Killed):
            send_partition(client, options, intent, 0, batches, one.digest)
        fate.left = 0
        with pytest.raises(InvalidRequest) as caught:
            send_partition(client, options, intent, 0, batches, changed.digest)
        assert caught.value.code is Code.REQUEST_ID_REUSED
        sent = send_partition(client, options, intent, 0, batches, one.digest)
        assert sent.chunks == -(-batches[0].num_rows // 4)


def test_the_largest_row_that_the_service_takes_can_be_staged(tmp_path: Path) -> None:
    """A message of a store may have 10 MiB."""
    with ServiceProcess(tmp_path, f"stores.directory={tmp_path / 'stores'}") as large:
        options = replace(new_options(large), store="default", application="large@default")
        rows = pa.record_batch({"body": [b"1", bytes(10 << 20), b"3"]})
        with open_client(options) as client, open_stage(options, client) as opened:
            partition, sent = stage_partition(opened, options, "large", 0, [rows])
            assert sent.transactions == 3
            back = pa.Table.from_batches(rows_of(opened, "large", partition))
        assert back.equals(pa.Table.from_batches([rows]))


def test_two_logs_that_share_a_staging_location_have_their_own_rows(
    service: ServiceProcess, fate: Fate, tmp_path: Path
) -> None:
    """The same job writes under one token into both. The first is killed when its rows are fixed."""
    for name in ("other", "staging"):
        (tmp_path / name).mkdir()
    with ServiceProcess(tmp_path / "other") as other:
        first = new_options(service, tmp_path / "staging")
        second = replace(first, url=other.url)
        what = wanted("shared")
        fate.left, fate.after = 12, True
        with pytest.raises(Killed):
            run(first, what, dealt("shared", 1))
        fate.left = 0
        with open_client(first) as client, open_stage(first, client) as opened:
            assert find_manifest(opened, what.token) is not None, "it was killed after its manifest"
        run(second, what, dealt("others", 2))
        assert [written(other, name) for name in ("shared", "others")] == [[], expected("others")]
        run(first, what, dealt("shared", 3))
        assert [written(service, name) for name in ("shared", "others")] == [expected("shared"), []]


def test_a_log_that_was_begun_again_finds_nothing_of_the_one_before(service: ServiceProcess) -> None:
    """Its store still has what was staged, perhaps under the same application and token."""
    options = new_options(service)
    with open_client(options) as client, open_stage(options, client) as opened:
        fix_manifest(opened, "write", [])
        before = ServiceStage(client, secrets.token_hex(16), options.application)
        assert find_manifest(opened, "write") is not None
        assert find_manifest(before, "write") is None


def test_the_log_is_held_from_the_intent_until_done(service: ServiceProcess) -> None:
    options, what = new_options(service), wanted("held")
    assert not is_held(options)
    with open_client(options) as client:
        begin(client, options, what)
    assert is_held(options)
    run(options, what, dealt("held", 1))
    assert not is_held(options)
