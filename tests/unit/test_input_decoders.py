"""The law of input: what a user or a client wrote is decoded by what refuses a name that is given twice."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import holdfast
from holdfast.cli.stores import named_once, parse_value
from holdfast.console.reading.service import document_of
from holdfast.errors import InvalidRequest
from holdfast.files.document_process import DocumentReader
from holdfast.objects.open import open_store
from holdfast.retention.policies import decode_policy
from holdfast.segments.table_location import table_location
from holdfast.stores.definitions.cluster import ClusterDefinition, parse_definition
from holdfast.stores.definitions.parts import with_parts
from holdfast.stores.matching import Matcher
from holdfast.stores.values.commands import DefinitionPart

ROOT: Final = Path(holdfast.__file__).parent
DECODERS: Final = re.compile(
    r"(msgspec\.)?(json|msgpack)\.(decode|Decoder)|json\.loads?|.*\b(unpackb|Unpacker|safe_load|parse_qsl?)"
)
SAFE: Final = ("pairs_once", "each_once")
"""In the call, or around it."""

NOT_INPUT: Final = {
    # What a service answers.
    "client/protocol/gathered_commits.py": "answers of the service",
    "client/protocol/gathered_reads.py": "answers of the service, and what it has encoded itself",
    "client/protocol/lookout.py": "the liveness of a service",
    "client/protocol/messages.py": "answers of the service",
    "client/protocol/stores/committing.py": "answers of the service",
    "client/protocol/stores/messages.py": "answers and frames of the service",
    "client/protocol/stream.py": "events of the service",
    "console/reading/service.py": "answers of the service",
    "commit/leadership/leader_question.py": "the liveness of another service",
    "spark/bulk/leadership.py": "the liveness of a service",
    "spark/source/table.py": "rows that the service answers",
    # What Holdfast itself has written.
    "commit/leadership/accepted_clocks.py": "its own object",
    "commit/leadership/log_remains.py": "its own file",
    "commit/leadership/signs.py": "its own object",
    "console/pages/pipelines.py": "the description that a pipeline gave its table",
    "objects/etcd/trial.py": "its own file, and answers of its own processes",
    "objects/probe/results.py": "its own object",
    "queue/repair/survey.py": "its own file",
    "sealed.py": "its own file",
    "segments/index.py": "the description that the sink gave its table",
    "spark/bulk/fixed_rows.py": "its own objects",
    "spark/log/delta_output.py": "the description that the sink gave its table",
    "spark/runtime/table_files.py": "the log of a Delta table",
    "spark/sink/record.py": "its own value in the log",
    "spark/tables/newest.py": "its own rows",
    "stores/clock.py": "its own file",
    "stores/machine/snapshots.py": "its own file",
    "stores/repair/backup.py": "its own file",
    "stores/storage/frames.py": "its own records",
    "stores/storage/index.py": "its own file",
    # What one of its processes says to another.
    "objects/probe/racer.py": "its own parent",
    "server/children/log_job.py": "its own child",
    "server/view/child.py": "its own child",
    "server/view/process.py": "its own parent",
    "spark/ingest/ingest.py": "requests that the driver has packed",
    "testing/fault_proxy_process.py": "the test that started it",
    # What was checked before, or is checked in another way.
    "cli/transactions.py": "parts of a request that was decoded as a whole",
    "commit/format/json_request.py": "its own proof",
    "console/application.py": "the address of a page after a login; forms are checked",
    "objects/endpoint.py": "the URL that was opened, which was checked then",
    "console/units.py": "bytes that are shown and not taken",
    "server/commit/item_readers.py": "only where an item ends",
    "server/http/requests.py": "its own proof",
    "server/http/responses.py": "results that the stores wrote",
    "server/http/routes.py": "counts a parameter when it reads it",
    "server/openapi.py": "its own schema",
    "server/stores/commit_parts.py": "parts of a request that was decoded as a whole",
    "server/stores/operations.py": "counts its parameters",
    "spark/ingest/numbered_source.py": "fields of a message, which the store has checked",
    "wire/formats.py": "the proof",
    # What belongs to the application: its formats decide.
    "spark/sink/stage.py": "its own objects",
    "spark/typed/exact.py": "it looks for what is given twice",
    "spark/source/frames.py": "the values of an application, by the rules of Spark",
    "spark/typed/decode.py": "the values of an application; the check costs as much as decoding them",
}


def decoders_in(path: Path) -> list[int]:
    """The lines with a decoder that keeps the last of several values in silence."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and DECODERS.fullmatch(ast.unparse(node.func))
        and not _is_safe(node, lines[node.lineno - 1])
    ]


def _is_safe(call: ast.Call, line: str) -> bool:
    return any(name in line or name in ast.unparse(call) for name in SAFE)


def test_every_decoder_of_input_refuses_a_name_that_is_given_twice() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in sorted(ROOT.rglob("*.py"))
        if "client/sync" not in path.as_posix() and (lines := decoders_in(path))
    }
    new = {name: lines for name, lines in found.items() if name not in NOT_INPUT}
    assert not new, "decode input by decode_each_once, or say here why it is none"
    assert all((ROOT / name).exists() for name in NOT_INPUT), "a file of the table has gone"


TWICE: Final = '{"a": 1, "a": 2}'


@pytest.mark.parametrize(
    "take",
    [
        lambda: parse_value(TWICE),
        lambda: named_once([("prefetch", 1), ("prefetch", 2)], "parameter"),
        lambda: asyncio.run(document_of(TWICE, "the definition", DocumentReader())),
        lambda: asyncio.run(document_of("a: 1\nb: {c: 1,\n  c: 2}\n", "the definition", DocumentReader())),
        lambda: Matcher.parse(TWICE.encode()),
        lambda: parse_definition(b'{"stores": {"a": {"bytelimit": "1g", "bytelimit": "2g"}}}'),
        lambda: with_parts(
            ClusterDefinition(), [DefinitionPart(("stores", "a"), b'{"bytelimit": "1g", "bytelimit": "2g"}')]
        ),
        lambda: decode_policy(b'{"max_bytes": 1000000, "max_bytes": 2000000}'),
        lambda: open_store("s3://bucket/log?endpoint=http://a&endpoint=http://b"),
        lambda: table_location("s3://bucket/table?region=a&region=b"),
    ],
)
def test_what_is_given_twice_is_named(take: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequest, match="is given twice"):
        take()


def test_the_search_finds_a_decoder(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "import json\n\nvalue = json.loads('{}')\nother = json.loads('{}', object_pairs_hook=pairs_once)\n"
    )
    assert decoders_in(module) == [3]
