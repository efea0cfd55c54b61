"""Every place that shows an error shows its message, each of its facts and its hint once."""

from __future__ import annotations

import ast
import json
import logging
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from structlog.testing import capture_logs

from holdfast import errors
from holdfast.cli.output import print_error
from holdfast.client.protocol.messages import error_of
from holdfast.client.protocol.stores import messages as wire
from holdfast.errors import (
    Closed,
    Code,
    CorruptData,
    HoldfastError,
    InvalidRequest,
    NotFound,
    Unavailable,
    statement_of,
)
from holdfast.server.http.responses import LeaderHint, error_body, error_response, not_leading
from holdfast.server.stores import hosting
from holdfast.server.view.messages import ViewDamage
from holdfast.stores import service
from holdfast.stores.storage.log import not_done
from holdfast.wire.log import ErrorBody
from holdfast.wire.stores import ErrorFrame

SOURCES: Final = Path(errors.__file__).parent
PARTS: Final = ("it failed", "slot=7", "cause=refused", "wait, then look")
KINDS: Final = [
    kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, HoldfastError)
]


def failure(kind: type[HoldfastError] = Unavailable, **more: object) -> HoldfastError:
    return kind("it failed", hint="wait, then look", slot=7, cause="refused", **more)  # type: ignore[arg-type]


def assert_once(text: str, parts: tuple[str, ...] = PARTS) -> None:
    assert {part: text.count(part) for part in parts} == dict.fromkeys(parts, 1), text


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_the_message_the_facts_and_the_hint(kind: type[HoldfastError]) -> None:
    assert str(failure(kind)) == "it failed slot=7 cause=refused; wait, then look"
    assert str(kind("it failed")) == "it failed"
    assert str(kind("it failed", hint="look")) == "it failed; look"
    assert failure(kind).statement() == "it failed slot=7 cause=refused"


def test_a_hint_that_is_set_later_is_shown() -> None:
    error = Unavailable("it failed")
    error.hint = "look"
    assert str(error) == "it failed; look"


def test_an_error_inside_another_shows_no_hint_of_its_own() -> None:
    inner = failure()
    assert str(not_done(inner)).count(";") == 1
    assert_once(str(not_done(inner)), ("it failed", "slot=7", "cause=refused"))
    assert str(Closed("ended", cause=inner, hint="open it again")) == (
        "ended cause=it failed slot=7 cause=refused; open it again"
    )
    assert statement_of(inner) == inner.statement()
    assert statement_of(OSError("no space")) == "no space"


def test_the_command_line_shows_each_part_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(failure(), as_json=False)
    assert capsys.readouterr().err == "holdfast: it failed slot=7 cause=refused\n  hint: wait, then look\n"
    print_error(failure(), as_json=True)
    shown = capsys.readouterr().err
    assert_once(shown)
    assert json.loads(shown)["error"] == {
        "code": "store_unavailable",
        "message": "it failed slot=7 cause=refused",
        "hint": "wait, then look",
    }


ANSWERED: Final = {
    "plain": failure(),
    "not leading": not_leading(LeaderHint("ab" * 16, "10.0.0.7:8080")),
    "rolled back": InvalidRequest("rolled back", code=Code.ROLLED_BACK, roll_back_to=70, hint="start there"),
    "not found": failure(NotFound),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_an_http_answer_and_the_clients_error_of_it_show_each_part_once(name: str) -> None:
    error = ANSWERED[name]
    leader = LeaderHint("ab" * 16, "10.0.0.7:8080")
    _, _, body = error_response(error, leader)
    facts = tuple(str(value) for value in error.fields.values())
    hint = (error.hint,) if error.hint else ()
    assert_once(body.decode(), (error.message, *facts, *hint))
    there = error_of(msgspec.convert(json.loads(body)["error"], ErrorBody), 500)
    assert_once(str(there), (error.message, *facts, *hint))
    assert there.hint == error.hint
    stores = wire.coded_error(500, {}, body)
    assert stores is not None
    assert (str(stores), stores.hint) == (str(there), error.hint)


def test_an_answer_without_a_hint_has_no_such_field() -> None:
    _, _, body = error_response(Unavailable("it failed"), LeaderHint())
    assert json.loads(body) == {"error": {"code": "store_unavailable", "message": "it failed"}}


def test_a_fact_with_no_field_of_its_own_stays_in_the_message() -> None:
    body = error_body(Unavailable("it failed", leader_address="10.0.0.7:8080"), LeaderHint("ab", "10.0.0.9:80"))
    assert (body.message, body.leader_address) == ("it failed leader_address=10.0.0.7:8080", None)


def test_an_error_of_a_service_of_the_version_before_is_read() -> None:
    there = error_of(msgspec.json.decode(b'{"code":"not_found","message":"no such key"}', type=ErrorBody), 404)
    assert (str(there), there.hint) == ("no such key", "")


def test_a_code_that_the_client_does_not_know_keeps_its_hint() -> None:
    there = wire.named_error(ErrorBody("of_tomorrow", "it failed", hint="look"), 500)
    assert str(there) == "it failed service_code=of_tomorrow; look"


@pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.msgpack.encode])
def test_a_frame_of_a_subscription_shows_each_part_once(encode: type[object]) -> None:
    error = failure()
    frame = ErrorFrame(3, str(error.code), error.statement(), error.hint)
    assert_once(msgspec.json.encode(frame).decode())
    assert b"hint" not in msgspec.json.encode(ErrorFrame(3, "c", "m")), "additive: only where it is"
    found = wire.decode_frame(msgspec.msgpack.encode(frame))
    assert isinstance(found, ErrorFrame)
    assert_once(f"{found.message} {found.hint}")


def test_the_damage_that_a_view_process_reports_is_the_servers_error() -> None:
    error = failure(CorruptData)
    damage = msgspec.json.decode(msgspec.json.encode(ViewDamage.of(error)), type=ViewDamage)  # type: ignore[arg-type]
    assert (str(damage.error()), damage.error().hint) == (str(error), error.hint)
    before = msgspec.json.decode(b'{"code":"corrupt_log","rule":"it failed","fields":{}}', type=ViewDamage)
    assert str(before.error()) == "it failed"


def test_a_log_line_of_a_service_shows_each_part_once() -> None:
    with capture_logs() as lines:
        host = hosting.StoreHost.__new__(hosting.StoreHost)
        host.failed = types.SimpleNamespace(done=lambda: True)  # type: ignore[assignment]
        host.fail(failure())
        host.fail(Unavailable("no hint"))
    assert_once(str(lines[0]))
    assert (lines[0]["error"], lines[0]["hint"]) == ("it failed slot=7 cause=refused", "wait, then look")
    assert lines[1]["hint"] is None


def test_a_log_line_of_the_stores_shows_each_part_once(caplog: pytest.LogCaptureFixture) -> None:
    dying = types.SimpleNamespace(store="s", durable="d", seq=1)
    teller = types.SimpleNamespace(_reported="")
    with caplog.at_level(logging.ERROR):
        service.StoreService._report_unreadable(teller, dying, failure(CorruptData))  # type: ignore[arg-type]
        service.StoreService._report_unreadable(teller, dying, failure(CorruptData))  # type: ignore[arg-type]
    assert len(caplog.records) == 1
    assert_once(caplog.text)


# The law for every renderer, also those that need a whole service to be reached


def uses(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The expressions within a call whose text or hint is shown, as (expression, "text" | "hint")."""
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and child.attr == "hint":
            yield ast.unparse(child.value), "hint"
        elif isinstance(child, ast.FormattedValue):
            yield ast.unparse(child.value), "text"
        elif isinstance(child, ast.Call):
            if isinstance(child.func, ast.Name) and child.func.id == "str" and child.args:
                yield ast.unparse(child.args[0]), "text"
            for argument in child.args:
                if isinstance(argument, ast.Name):
                    yield argument.id, "text"


def shown_twice(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            seen = set(uses(node))
            found += [name for name, kind in seen if kind == "hint" and (name, "text") in seen]
    return found


def test_no_call_shows_the_text_of_an_error_beside_its_hint() -> None:
    broken = {
        str(path.relative_to(SOURCES)): names
        for path in sorted(SOURCES.rglob("*.py"))
        if (names := shown_twice(path.read_text()))
    }
    assert broken == {}


@pytest.mark.parametrize(
    "source",
    [
        "log.error('failed', error=str(error), hint=error.hint)",
        "log.error('failed %s %s', error, error.hint)",
        "print(f'{error} {error.hint}')",
    ],
)
def test_the_law_finds_a_hint_that_is_shown_twice(source: str) -> None:
    assert shown_twice(source) == ["error"]
