"""Options: each has one meaning, and what has none is an error that says what is valid."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.commit.format.batch import ItemKind
from holdfast.errors import Code, InvalidRequest
from holdfast.spark.columns import RowShape
from holdfast.spark.options import ReadOptions, parse_read_options
from holdfast.spark.sink.store_task import messages_of

URL = "file:///log"


def parsed(**given: str) -> ReadOptions:
    return parse_read_options({"url": URL, **given})


def test_the_defaults_read_the_whole_log_as_operations() -> None:
    options = parsed()
    assert options.shape is RowShape.OPERATIONS
    assert options.columns == ("version", "seq", "request_id", "kind", "key", "end", "value", "timestamp")
    assert (options.starting_version, options.from_latest, options.ending_version) == (None, False, None)
    assert options.kinds == (ItemKind.WRITE, ItemKind.DELETE, ItemKind.RANGE_DELETE)
    assert (options.key_begin, options.key_end) == (b"", None)
    assert options.fail_on_data_loss


def test_names_are_compared_without_case_as_spark_does() -> None:
    assert parsed(STARTINGversion="7", targetpartitionbytes="2000000") == parsed(
        startingVersion="7", targetPartitionBytes="2000000"
    )


def test_values_become_what_they_say() -> None:
    options = parsed(
        startingVersion="3", asOfVersion="9", columns="key, value", kinds="delete,write", failOnDataLoss="FALSE"
    )
    assert (options.starting_version, options.ending_version, options.fail_on_data_loss) == (3, 9, False)
    assert options.columns == ("key", "value")
    assert options.kinds == (ItemKind.WRITE, ItemKind.DELETE)
    assert parsed(versionAsOf="9") == parsed(asOfVersion="9") == parsed(endingVersion="9")
    assert parsed(timestampAsOf="1970-01-01T01:00:00.0015+01:00").as_of_ms == 1
    assert parsed(minPartitions="3").partitions_min == 3
    assert parsed(includePreconditions="true", shape="transactions").columns[-1] == "preconditions"
    assert "preconditions" not in parsed(shape="transactions").columns
    assert parsed(requestIds=" a, b,a ").request_ids == ("a", "b")
    assert parsed(requestIds='["a,b", " c"]').request_ids == ("a,b", " c")
    assert parsed(startingVersion="latest").from_latest
    assert parsed(startingVersion="earliest", endingVersion="latest") == parsed()


@pytest.mark.parametrize(
    ("given", "begin", "end"),
    [
        ({"keyPrefix": "seat/"}, b"seat/", b"seat0"),
        ({"keyPrefix": "61ffff", "keyEncoding": "hex"}, b"a\xff\xff", b"b"),
        ({"keyPrefix": "ffff", "keyEncoding": "hex"}, b"\xff\xff", None),
        ({"keyPrefix": ""}, b"", None),
        ({"keyBegin": "YQ==", "keyEncoding": "base64"}, b"a", None),
        ({"keyEnd": "\u00fc"}, b"", "\u00fc".encode()),
    ],
)
def test_key_options_are_a_half_open_range_of_bytes(given: dict[str, str], begin: bytes, end: bytes | None) -> None:
    options = parsed(**given)
    assert (options.key_begin, options.key_end) == (begin, end)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startVersion": "1"}, r"startVersion is unknown; did you mean startingVersion\? valid options: url, shape"),
        ({"zzz": "1"}, r"zzz is unknown; valid options: url"),
        ({"shape": "rows"}, "option shape is 'rows'; valid: operations, transactions, batches"),
        ({"columns": "version,valeu"}, "unknown columns valeu; shape=operations has version, seq"),
        ({"columns": " , "}, "names no column"),
        ({"columns": "key,key"}, "names a column twice"),
        ({"startingVersion": "-1"}, "valid: earliest, latest, a version number"),
        ({"startingVersion": str(2**53)}, "valid: earliest, latest, a version number"),
        ({"startingVersion": "9", "endingVersion": "8"}, "above the ending version, 9 > 8"),
        ({"endingVersion": "earliest"}, "valid: latest, a version number"),
        ({"asOfVersion": "latest"}, "valid: a version number"),
        ({"asOfVersion": "1", "endingVersion": "1"}, "both say where to stop"),
        ({"versionAsOf": "1", "asOfVersion": "1"}, "asOfVersion and versionAsOf both say where to stop; give one"),
        ({"timestampAsOf": "2026-01-31T12:00:00Z", "endingOffsets": "latest"}, "both say where to stop"),
        ({"startingVersion": "1", "startingOffsets": "earliest"}, "both say where to start; give one"),
        ({"versionAsOf": "latest"}, "valid: a version number"),
        ({"endingTimestamp": "2026-01-31"}, "valid: an ISO time with its zone"),
        (
            {"startingTimestamp": "2026-01-31T12:00:01Z", "endingTimestamp": "2026-01-31T12:00:00Z"},
            "is after the ending time",
        ),
        ({"endingOffsets": "earliest"}, 'valid: latest, {"version": 17}'),
        ({"endingOffsets": "17"}, 'valid: .*{"version": 17}'),
        ({"minPartitions": "0"}, "valid: a number, 1 to 100000"),
        ({"minPartitions": "1000000"}, "valid: a number, 1 to 100000"),
        ({"includePreconditions": "true"}, "has no effect on shape=operations; it applies to transactions"),
        (
            {"includePreconditions": "true", "columns": "version", "shape": "transactions"},
            "name preconditions in columns",
        ),
        ({"failOnDataLoss": "no"}, "valid: true, false"),
        ({"targetPartitionBytes": "10"}, "valid: a number of bytes"),
        ({"kinds": "writes"}, "valid: any of write, delete, range_delete"),
        ({"requestIds": '["a", 1]'}, "valid: ids with commas, or a JSON array"),
        ({"requestIds": "a", "shape": "batches"}, "has no effect on shape=batches"),
        ({"kinds": "write", "shape": "transactions"}, "has no effect on shape=transactions; it applies to operations"),
        ({"keyPrefix": "a", "keyEnd": "b"}, "cannot be combined"),
        ({"keyBegin": "b", "keyEnd": "a"}, "not below keyEnd"),
        ({"keyEncoding": "hex"}, "no effect without keyPrefix"),
        ({"keyPrefix": "xyz", "keyEncoding": "hex"}, "keyPrefix is not hex"),
        ({"keyPrefix": "a", "keyEncoding": "base64"}, "keyPrefix is not base64"),
        ({"keyPrefix": "a", "keyEncoding": "rot13"}, "valid: utf8, hex, base64"),
        ({"path": "file:///other"}, "given twice with different values"),
        ({"url": ""}, "is required"),
        ({"url": "s3://id:secret@bucket/log"}, "credentials come from the environment"),
    ],
)
def test_what_means_nothing_is_an_error_that_says_what_is_valid(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        parse_read_options({"url": URL, **given})
    assert caught.value.code is Code.BAD_CONFIGURATION


def test_a_refused_secret_is_not_repeated_in_the_error() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_read_options({"url": "s3://id:hunter2@bucket/log"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ['{"version": 17, "version": 3}', '{"version": 17, "\\u0076ersion": 3}', "[" * 100_000]
)
def test_an_offset_that_names_a_version_twice_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="valid: "):
        parsed(startingOffsets=text)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.string(), '{"a": 1, "a": 2}'),
        (pa.map_(pa.string(), pa.int64()), [("a", 1), ("a", 2)]),
    ],
)
def test_a_row_that_gives_a_field_twice_is_no_message(kind: pa.DataType, value: object) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"body"]), pa.array([value], kind)], names=["body", "fields"])
    with pytest.raises(InvalidRequest, match="field"):
        list(messages_of([batch]))
