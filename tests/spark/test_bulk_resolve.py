"""Bulk resolution gives the very verdicts of the leader's own stages, whatever the keys, skews, cuts and tasks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses
from tests.matrix import matrix
from tests.spark.bulk_requests import BASE, SCHEMA, Verdict, draw_requests, judge_plainly

from holdfast.commit.format.batch import REPEATED_BYTES_MAX
from holdfast.commit.format.transaction import PointRead, RangeDelete, RangeRead, Rejected, Transaction, Write
from holdfast.commit.stages.attempts import Attempts
from holdfast.commit.stages.events import CommitEntry
from holdfast.commit.stages.resolve import Resolve
from holdfast.errors import InvalidRequest, LimitExceeded
from holdfast.server.http.requests import problem_with
from holdfast.spark.bulk import requests as requests_module
from holdfast.spark.bulk import resolve as resolve_module
from holdfast.spark.bulk.requests import RequestFormat, pack, read_stream, stage
from holdfast.spark.bulk.resolve import Resolution, memory_needed, resolve_requests
from holdfast.spark.bulk.sequencing import Fate, Windows, sequence_requests
from holdfast.spark.bulk.sweep import COMMITTED, REJECTED, Problem, empty, judge, levels, newest, record
from holdfast.spark.bulk.verdicts import INVALID_CODES
from holdfast.spark.runtime.processes import free_memory

ROOT = Path(__file__).resolve().parents[2]
PROVE = bool(os.environ.get("HOLDFAST_PROVE"))
OPERATIONS = 10_000_000 if PROVE else 200_000
SKEWS = [(1_000_000, 0.0), (20_000, 0.0), (100_000, 0.9), (2_000, 0.5)]


def verdicts(resolution: Resolution) -> list[Verdict]:
    """The resolution as the reference tells it."""
    conflicts: dict[int, list[tuple[int, int]]] = {}
    rows = zip(
        resolution.conflict_places.tolist(),
        resolution.conflict_numbers.tolist(),
        resolution.conflict_ordinals.tolist(),
        strict=True,
    )
    for place, number, ordinal in rows:
        conflicts.setdefault(place, []).append((number, resolution.base + ordinal))
    found: list[Verdict] = []
    for place in range(len(resolution.fates)):
        subject = resolution.originals.get(place, place)
        fate = Fate(resolution.fates[subject])
        version = resolution.base + int(resolution.ordinals[subject]) if fate is Fate.COMMITTED else None
        found.append(Verdict(fate.name.lower(), version, tuple(conflicts.get(subject, ()))))
    return found


@pytest.mark.parametrize(
    ("seed", "keys", "skew", "window", "partitions"),
    [(1, 5, 0.0, None, 3), pytest.param(2, 40, 0.0, 40, 2, marks=pytest.mark.matrix)]
    + ([(3, 1000, 0.9, None, 2), (4, 300, 0.5, 60, 7)] if PROVE else []),
)
def test_the_verdicts_are_those_of_the_leaders_own_stages(
    spark: SparkSession, seed: int, keys: int, skew: float, window: int | None, partitions: int
) -> None:
    requests = draw_requests(seed, 600, keys=keys, skew=skew)
    rows = [request.row(10 * place) for place, request in enumerate(requests)]
    random.Random(seed).shuffle(rows)
    staged = stage(spark.createDataFrame(rows, SCHEMA), RequestFormat(), partitions=partitions)
    windows = Windows.trailing(len(requests), window)
    expected = judge_plainly(requests, BASE, windows)
    assert {each.outcome for each in expected} >= {
        "committed",
        "conflict",
        "too_old",
        "future_version",
        "no_operations",
    }
    assert verdicts(resolve_requests(staged, BASE, windows=windows)) == expected
    staged.release()


def test_requests_come_as_rows_text_and_json_and_the_input_has_one_digest(spark: SparkSession) -> None:
    flat = spark.createDataFrame(
        [(2, "b", "2", "#1"), (1, "a", None, None)], "n int, key string, value string, read_version string"
    )
    nested = flat.selectExpr(
        "n AS order",
        """concat('[{"key": "', key, '"', coalesce(concat(', "value": "', value, '"'), ''), '}]') AS operations""",
        "read_version",
    )  # fmt: skip
    one, other = stage(flat, RequestFormat("n"), partitions=2), stage(nested, RequestFormat(), partitions=1)
    assert (one.requests, one.digest) == (other.requests, other.digest)
    swapped = stage(flat.selectExpr("-n AS n", "key", "value", "read_version"), RequestFormat("n"), partitions=2)
    assert swapped.digest != one.digest
    assert verdicts(resolve_requests(one, 7)) == [Verdict("committed", 8), Verdict("committed", 9)]
    unread = stage(flat.drop("read_version"), RequestFormat("n"), partitions=2)
    assert unread.plain and not one.plain
    assert verdicts(resolve_requests(unread, 7)) == [Verdict("committed", 8), Verdict("committed", 9)]


def test_more_than_a_task_has_memory_for_is_refused_before_the_work(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = "order int, key string, value string, read_version string"
    frame = spark.createDataFrame([(n, f"k/{n}", "v", "#0") for n in range(20)], columns)
    staged = stage(frame, RequestFormat(), partitions=2)
    needed = memory_needed(staged)
    assert resolve_requests(staged, 7, judging_bytes_max=needed).count(Fate.COMMITTED) == 20
    with pytest.raises(LimitExceeded, match=f"bytes_needed={needed} bytes_max={needed - 1}"):
        resolve_requests(staged, 7, judging_bytes_max=needed - 1)
    monkeypatch.setattr(resolve_module, "memory_needed", lambda _: 2**60)
    with pytest.raises(LimitExceeded, match="more memory than one task may have"):
        resolve_requests(staged, 7)
    monkeypatch.setattr(requests_module, "REQUESTS_MAX", 19)
    with pytest.raises(LimitExceeded, match="more requests than one input may have"):
        stage(frame, RequestFormat(), partitions=2)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:      2 kB\n"}, 2048),
        (
            {
                "proc/meminfo": "MemAvailable: 9 kB\n",
                "sys/fs/cgroup/memory.max": "1000\n",
                "sys/fs/cgroup/memory.current": "900\n",
                "sys/fs/cgroup/memory.stat": "anon 500\ninactive_file 300\n",
            },
            400,
        ),
        ({"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "900\n"}, None),
        (
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1200\n",
                "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 100\n",
            },
            0,
        ),
    ],
)
def test_free_memory_is_what_the_machine_and_the_container_leave(
    tmp_path: Path, files: dict[str, str], expected: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory(tmp_path) == expected


LISTED = """[{"order": 1, "operations": [{"key": "a", "value": "1"}, {"type": "range_delete", "begin": "b", "end": "c"},
  {"kind": "delete", "type": "write", "key": "d", "value": "gone"}, {"begin": "e", "key": "f"}],
  "preconditions": [{"key": "a", "version": "4"}, {"begin": "b", "end": "c", "version": "#0"}]},
  {"order": 2, "read_version": "4", "operations": [{"type": "write", "begin": "g", "value": ""}]},
  {"order": 3, "operations": [], "preconditions": [{"type": "range_read", "key": "a", "end": null}]}]"""
OPERATION, READ = "kind, type, key, begin, end, value", "kind, type, key, begin, end, version"


@pytest.mark.matrix  # test_requests_come_as_rows_text_and_json_... has each form
def test_names_and_types_of_fields_make_no_difference(spark: SparkSession) -> None:
    def struct(names: str) -> str:
        return f"array<struct<{', '.join(f'{name} string' for name in names.split(', '))}>>"

    listed = f"order int, operations {struct(OPERATION)}, preconditions {struct(READ)}, read_version string"
    texts = spark.createDataFrame([(LISTED,)], "text string").selectExpr(
        f"inline(from_json(text, 'array<struct<{listed}>>'))"
    )
    data = ("key", "begin", "end", "value")

    def each(column: str, names: str, how: str) -> str:
        made = ", ".join(
            f"'{name}', {how.format(f'x.{name}') if name in data else f'x.{name}'}" for name in names.split(", ")
        )
        return f"transform({column}, x -> named_struct({made})) AS {column}"

    def formed(how: str) -> DataFrame:
        return texts.selectExpr(
            "order", each("operations", OPERATION, how), each("preconditions", READ, how), "read_version"
        )

    json = texts.selectExpr(
        "order", "to_json(operations) AS operations", "to_json(preconditions) AS preconditions", "read_version"
    )

    def numbered(version: str) -> DataFrame:
        read = f"named_struct('begin', coalesce(x.key, x.begin), 'end', x.end, 'version', {version})"
        return texts.withColumn("preconditions", F.expr(f"transform(preconditions, x -> {read})"))

    plainly = stage(texts, RequestFormat(), partitions=1)
    assert (plainly.requests, plainly.items) == (3, 8)
    others = [
        (formed("cast({} AS binary)"), RequestFormat()),
        (formed("base64(cast({} AS binary))"), RequestFormat(text="base64")),
        (json, RequestFormat()),
    ]
    assert [stage(frame, form, partitions=2).digest for frame, form in others] == [plainly.digest] * 3
    found = [verdict.outcome for verdict in verdicts(resolve_requests(plainly, 4))]
    assert found == ["committed", "committed", "no_operations"]
    digests = {stage(numbered(version), RequestFormat(), partitions=1).digest for version in ("4", "4L", "'4'")}
    assert len(digests) == 1 and plainly.digest not in digests


def test_the_digest_of_an_input_does_not_depend_on_which_requests_share_a_chunk() -> None:
    draw = random.Random(5)
    rows = [
        {
            "order": f"{place:03}",
            "kind": "write",
            "key": draw.randbytes(draw.randrange(9)),
            "end": None,
            "value": value,
            "request_id": draw.choice([None, f"a-request-with-an-id-{place}"]),
            "read_version": "#0",
        }
        for place, value in enumerate(draw.randbytes(draw.choice([0, 1, 100, 40_000])) for _ in range(60))
    ]
    texts = dict.fromkeys(("order", "kind", "request_id", "read_version"), pa.string())
    kinds = {**texts, **dict.fromkeys(("key", "end", "value"), pa.binary())}
    whole = pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(kinds.items())))

    def digest(batch: pa.RecordBatch, size: int) -> int:
        first = total = 0
        for chunk in pack(batch.slice(begin, size) for begin in range(0, batch.num_rows, size)):
            total += chunk.weighted + first * chunk.checksum
            first += chunk.requests
        return total % 2**64

    assert {digest(whole, size) for size in (1, 7, 59, 60)} == {digest(whole, 60)}
    swapped = rows[17] | {"value": rows[18]["value"]}, rows[18] | {"value": rows[17]["value"]}
    other = pa.RecordBatch.from_pylist([*rows[:17], *swapped, *rows[19:]], schema=whole.schema)
    assert rows[17]["value"] != rows[18]["value"] and digest(other, 60) != digest(whole, 60)


def test_the_digest_of_an_input_depends_on_every_part_of_every_request() -> None:
    def digest(**changes: object) -> tuple[int, int]:
        operation = {"kind": "range_delete", "key": b"a", "end": b"c", "value": None} | changes.get("operation", {})  # type: ignore[operator]
        read = {"kind": "range_read", "key": b"a", "end": b"b", "version": None} | changes.get("read", {})  # type: ignore[operator]
        plain = {"kind": "write", "key": b"k", "end": None, "value": b"v"}
        row = {"order": "1", "operations": [operation, plain], "preconditions": [read], "read_version": "#0"}
        row |= {"request_id": None, **changes}
        kinds = {
            "order": pa.string(),
            "operations": pa.list_(struct_of(end=pa.binary(), value=pa.binary())),
            "preconditions": pa.list_(struct_of(end=pa.binary(), version=pa.string())),
            "read_version": pa.string(),
            "request_id": pa.string(),
        }
        batch = pa.RecordBatch.from_pylist([row], schema=pa.schema(list(kinds.items())))
        (chunk,) = pack(iter([batch]))
        return chunk.checksum, chunk.weighted

    def struct_of(**others: pa.DataType) -> pa.DataType:
        return pa.struct({"kind": pa.string(), "key": pa.binary(), **others})

    changed: list[dict[str, object]] = [
        {},
        {"operation": {"kind": "write", "value": b"x", "end": None}},
        {"operation": {"kind": "write", "value": b"y", "end": None}},
        {"operation": {"key": b"b"}},
        {"operation": {"end": b"d"}},
        {"operation": {"end": None}},
        {"read": {"key": b"", "end": b"ab"}},
        {"read": {"kind": "point_read"}},
        {"read": {"version": "#0"}},
        {"read": {"version": "7"}},
        {"read_version": "7"},
        {"read_version": None, "read": {"version": "#0"}},
        {"request_id": "one-request-of-today"},
        {"request_id": "one-request-of-today", "read_version": "7"},
        {"request_id": "one-request-of-yesterday"},
    ]
    assert len({digest(**each) for each in changed}) == len(changed)


@pytest.mark.timeout(30)
def test_requests_that_come_twice_are_sequenced_in_time_that_grows_with_their_number() -> None:
    count = 100_000
    versions = pa.array([BASE] * count, pa.int64())
    asks = pa.table(
        {
            "refusal": pa.array([0] * count, pa.uint8()),
            "index_max": pa.array([-1] * count, pa.int64()),
            "version_max": versions,
            "read_index": pa.nulls(count, pa.int64()),
            "read_version": versions,
            "request_id": [f"request-number-{place // 2:06d}" for place in range(count)],
            "checksum": pa.array([1] * count, pa.uint64()),
        }
    )
    found = sequence_requests(asks, BASE, Windows())
    assert found.assigned[-1] == count // 2
    assert found.originals == {place: place - 1 for place in range(1, count, 2)}


def test_an_id_that_is_too_long_for_so_many_operations_is_refused_as_the_service_does() -> None:
    request_id = "i" * 255
    most = REPEATED_BYTES_MAX // len(request_id)
    operation = {"key": b"k", "value": b""}
    rows = [
        {"order": str(place), "operations": [operation] * count, "request_id": named, "read_version": "1"}
        for place, (count, named) in enumerate(
            [(most, request_id), (most + 1, request_id), (most + 1, request_id[:254])]
        )
    ]
    schema = pa.schema(
        {
            "order": pa.string(),
            "operations": pa.list_(pa.struct({"key": pa.binary(), "value": pa.binary()})),
            "request_id": pa.string(),
            "read_version": pa.string(),
        }
    )
    found: list[int] = []
    for chunk in pack(iter([pa.RecordBatch.from_pylist(rows, schema=schema)])):
        found += read_stream(chunk.asks)["refusal"].to_pylist()
    assert found == [0, Fate.TOO_LARGE, 0]
    wrong = problem_with(
        Transaction([Write(b"k", b"")] * (most + 1), [], request_id, None, 1),
        leader_id="",
        log_id="",
        request_id_length_min=20,
    )
    assert wrong is not None and wrong.code == Fate.TOO_LARGE.name.lower()
    assert wrong.code in INVALID_CODES


@pytest.mark.parametrize(
    ("columns", "values", "message"),
    [
        ("key string, value string", [("a", "b")], "no column order"),
        ("order int, key string, value string, color string", [(1, "a", "b", "c")], "color would be lost"),
        ("order int, key string, value string", [(1, "a", "b"), (1, "c", "d")], "same position in the order"),
        ("order int, key string, value string", [(None, "a", "b")], "no position in the order"),
        ("order int, key string, value string", [(1, None, "b")], "no key"),
        ("order int, key string, value string, kind string", [(1, "a", "b", "upsert")], "not a kind"),
        ("order int, key string, value string, kind string", [(1, "a", None, "write")], "no value"),
        ("order int, key string, value string, read_version string", [(1, "a", "b", "new")], "a version is a number"),
    ],
)
def test_rows_that_are_no_requests_are_refused_by_name(
    spark: SparkSession, columns: str, values: list[tuple[object, ...]], message: str
) -> None:
    with pytest.raises((InvalidRequest, PySparkException), match=message):
        stage(spark.createDataFrame(values, columns), RequestFormat(), partitions=1)


@pytest.mark.parametrize("key", matrix(["YQ-_", "Y", "YW*I="]))
def test_what_is_no_base64_is_an_error_and_no_other_key(spark: SparkSession, key: str) -> None:
    frame = spark.createDataFrame([(1, key, "Yg==")], "order int, key string, value string")
    with pytest.raises(InvalidRequest, match="not base64") as told:
        stage(frame, RequestFormat(text="base64"), partitions=1)
    assert key in str(told.value)


def test_an_error_of_the_callers_own_expressions_stays_what_it_is(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "YQ-_", "Yg==")], "order int, key string, value string")
    frame = frame.withColumn("key", F.to_binary("key", F.lit("base64")))
    with pytest.raises(PySparkException, match="CONVERSION_INVALID_INPUT"):
        stage(frame, RequestFormat(), partitions=1)


def random_problem(
    draw: np.random.Generator, requests: int, keys: int, *, skew: float = 0.0, lag: int = 2000, ranges: float = 0.1
) -> Problem:
    """Three reads and two writes a request, half of the writes on keys that were read."""

    def ranks(count: int) -> npt.NDArray[np.int64]:
        drawn = draw.random(count) ** (1 / (1 - skew)) if skew else draw.random(count)
        return (np.minimum((keys * drawn).astype(np.int64), keys - 1) * 2654435761) % keys

    def highs(lows: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.int64]:
        wide = np.where(draw.random(len(lows)) < share, draw.integers(1, max(2, min(keys, 60)), len(lows)), 1)
        return np.minimum(lows + wide, keys)

    read_lows = ranks(3 * requests)
    own = read_lows.reshape(requests, 3)[:, :2]
    write_lows = np.where(draw.random((requests, 2)) < 0.5, own, ranks(2 * requests).reshape(requests, 2)).ravel()
    ordinals = np.arange(1, requests + 1, dtype=np.int32)
    ats = np.maximum(ordinals - 1 - draw.integers(0, lag, requests), 0).astype(np.int32)
    return Problem(
        keys,
        ordinals,
        np.arange(0, 3 * requests + 1, 3),
        read_lows,
        highs(read_lows, ranges),
        np.repeat(ats, 3),
        np.arange(0, 2 * requests + 1, 2),
        write_lows,
        highs(write_lows, ranges / 10),
    )


def judge_by_the_stage(problem: Problem) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """The verdicts and conflicts of ``commit.resolve``, with ranks as keys."""
    attempts = Attempts(bytes_max=2**62)
    resolve = Resolve(0, attempts, window_ms=0.0, bytes_max=2**62)
    states = np.zeros(problem.requests, np.uint8)
    broken = np.zeros(len(problem.read_lows), np.int32)
    names = [rank.to_bytes(4, "big") for rank in range(problem.ranks + 1)]
    lists = [array.tolist() for array in (problem.read_begins, problem.read_lows, problem.read_highs, problem.read_ats)]
    read_begins, read_lows, read_highs, read_ats = lists
    writes = [array.tolist() for array in (problem.write_begins, problem.write_lows, problem.write_highs)]
    write_begins, write_lows, write_highs = writes
    for place in range(problem.requests):
        reads = [
            PointRead(names[low], at) if high == low + 1 else RangeRead(names[low], names[high], at)
            for low, high, at in zip(
                *(each[read_begins[place] : read_begins[place + 1]] for each in (read_lows, read_highs, read_ats)),
                strict=True,
            )
        ]
        span = slice(write_begins[place], write_begins[place + 1])
        operations = [
            Write(names[low], b"") if high == low + 1 else RangeDelete(names[low], names[high])
            for low, high in zip(write_lows[span], write_highs[span], strict=True)
        ]
        entry = CommitEntry(Transaction(operations, reads), lambda _: None)
        entry.version = place + 1
        resolve.decide([entry])
        states[place] = COMMITTED if entry.accepted else REJECTED
        if isinstance(entry.outcome, Rejected):
            for conflict in entry.outcome.conflicts:
                broken[read_begins[place] + conflict.precondition] = conflict.version
    return states, broken


@pytest.mark.parametrize("seed", range(40))
def test_the_kernel_decides_as_the_leaders_second_stage_bit_by_bit(seed: int) -> None:
    draw = np.random.default_rng(seed)
    keys = int(draw.choice([1, 3, 20, 300, 70_000]))
    problem = random_problem(
        draw, int(draw.integers(1, 1500)), keys, skew=float(draw.choice([0, 0.9])),
        lag=int(draw.choice([5, 300, 5000])),
        ranges=float(draw.choice([0, 0.1, 0.9])),
    )  # fmt: skip
    problem.check()
    expected, found = judge_by_the_stage(problem), judge(problem)
    assert np.array_equal(expected[0], found[0]) and np.array_equal(expected[1], found[1])


@pytest.mark.parametrize("ranks", [1, 255, 257, 70_000])
def test_the_newest_change_of_any_range_is_found_whatever_its_width(ranks: int) -> None:
    draw = np.random.default_rng(ranks)
    begins, plain = levels(ranks), np.zeros(ranks, np.int32)
    inside, covers = empty(begins), empty(begins)
    for ordinal in range(1, 200):
        begin, end = sorted(draw.integers(0, ranks + 1, 2).tolist())
        low, high = begin, end
        if begin == end or draw.random() < 0.7:
            low = min(begin, ranks - 1)
            high = low + 1
        record(begins, inside, covers, low, high, ordinal)
        plain[low:high] = ordinal
        for low in draw.integers(0, ranks, 5).tolist():
            high = min(low + int(draw.integers(1, draw.choice([2, 40, ranks + 1]) + 1)), ranks)
            assert newest(begins, inside, covers, low, high) == plain[low:high].max()


@pytest.mark.parametrize("ranks", [16, 17, 40, 256, 300])
def test_every_range_finds_every_other_that_it_meets(ranks: int) -> None:
    begins = levels(ranks)
    ends = sorted({0, 1, 2, 15, 16, 17, 31, 32, 33, 39, 255, 256, 257, 271, 272, 288, ranks - 1, ranks})
    some = [(low, high) for low in ends for high in ends if low < high <= ranks]
    for low, high in some:
        inside, covers = empty(begins), empty(begins)
        record(begins, inside, covers, low, high, 7)
        for begin, end in some:
            assert newest(begins, inside, covers, begin, end) == (7 if begin < high and low < end else 0)


@pytest.mark.matrix
def test_the_compiled_loops_stay_within_their_arrays(tmp_path: Path) -> None:
    script = """
import numpy as np
from tests.spark.test_bulk_resolve import random_problem
from holdfast.spark.bulk.sweep import judge
draw = np.random.default_rng(1)
for ranks in (2, 63, 64, 65, 300, 4097):
    for ranges in (0.0, 0.5):
        problem = random_problem(draw, 300, ranks, ranges=ranges)
        judge(problem)
"""
    checked = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=checked, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("keys", "skew"), SKEWS)
def test_operations_by_the_million_are_decided_bit_by_bit(
    keys: int, skew: float, record_property: Callable[[str, object], None]
) -> None:
    requests = OPERATIONS // 5 // len(SKEWS)
    problem = random_problem(np.random.default_rng(keys), requests, keys, skew=skew)
    began = time.perf_counter()
    found = judge(problem)
    record_property("operations", 5 * requests)
    record_property("requests_per_second", round(requests / (time.perf_counter() - began)))
    expected = judge_by_the_stage(problem)
    assert np.array_equal(expected[0], found[0]) and np.array_equal(expected[1], found[1])
