"""Ids of writers of some keys have a tag, and are theirs for as long as they may touch all keys of its prefix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.integration.http_harness import Serving, run, serving

from holdfast.aio import Client
from holdfast.commit.format.transaction import Write
from holdfast.errors import InvalidRequest
from holdfast.server.http.auth import Grant, Role
from holdfast.server.http.key_scope import PREFIX_BYTES_MAX, KeyScope, tag_of
from holdfast.server.reloading import read_token_file

SCOPED, WHOLE = "scoped-0123456789", "whole-0123456789abc"
NAME = "a-request-id-of-enough-characters"


def tokens(*prefixes: bytes) -> dict[str, Role | Grant]:
    return {SCOPED: Grant(Role.WRITE, None, KeyScope(prefixes)), WHOLE: Role.WRITE}


async def commit(here: Serving, token: str, key: str, request_id: str | None) -> tuple[int, dict[str, object]]:
    attempt = {} if request_id is None else {"request_id": request_id, "read_version": here.service.local_version()}
    body = {"operations": [{"type": "delete", "key_text": key}], **attempt}
    client = await here.connect()
    answer = await client.ask("POST", "/v1/commit", json.dumps(body).encode(), Authorization=f"Bearer {token}")
    return answer.status, answer.json


def test_an_id_without_a_fitting_tag_is_refused_before_acceptance_and_the_refusal_names_one() -> None:
    async def scenario() -> None:
        async with serving(tokens=tokens(b"seat/", b"row/")) as here:
            for name in (NAME, tag_of(b"sea") + NAME, tag_of(b"") + NAME, tag_of(b"x/") + NAME):
                status, answer = await commit(here, SCOPED, "seat/1", name)
                assert status == 400, answer
                assert (answer["error"]["code"], answer["error"]["tag"]) == ("id_needs_tag", tag_of(b"seat/"))  # type: ignore[index]
            before = here.service.local_version()
            for name in (tag_of(b"seat/") + NAME, tag_of(b"row/") + NAME, tag_of(b"row/9") + NAME, None):
                status, answer = await commit(here, SCOPED, "seat/1", name)
                assert (status, answer["status"]) == (200, "committed"), name
            assert here.service.local_version() == before + 4
            assert (await commit(here, WHOLE, "x", NAME))[1]["status"] == "committed"  # refused, it was not taken
            item = {"operations": [{"type": "delete", "key_text": "seat/1"}], "read_version": 9}
            names = NAME + "-2", tag_of(b"row/") + NAME
            lines = b"".join(json.dumps({**item, "request_id": name}).encode() + b"\n" for name in names)
            client = await here.connect()
            answer = await client.ask("POST", "/v1/commits", lines, Authorization=f"Bearer {SCOPED}")
            first, second = [json.loads(line) for line in answer.body.splitlines()]
            assert (first["error"]["code"], first["error"]["tag"]) == ("id_needs_tag", tag_of(b"seat/"))
            assert second.get("error", {}).get("code") != "id_needs_tag"

    run(scenario)


@pytest.mark.parametrize("query", ["", "?consistency=local"])
def test_version_answers_name_the_tag_of_the_token_that_asks(query: str) -> None:
    async def scenario() -> None:
        async with serving(tokens=tokens(b"seat/", b"row/")) as here:
            for token, tag in ((SCOPED, tag_of(b"seat/")), (WHOLE, None)):
                client = await here.connect()
                answer = await client.ask("GET", f"/v1/version{query}", Authorization=f"Bearer {token}")
                assert answer.json.get("id_tag") == tag

    run(scenario)


def test_a_wider_token_keeps_the_ids_of_a_narrower_one_and_a_narrower_one_does_not() -> None:
    async def scenario() -> None:
        async with serving(tokens=tokens(b"seat/1/")) as here:
            name = tag_of(b"seat/1/") + NAME
            version = here.service.local_version()
            assert (await commit(here, SCOPED, "seat/1/a", name))[0] == 200

            async def ask() -> tuple[int, str | None]:
                client = await here.connect()
                target = f"/v1/status/{name}?min_version={version}"
                answer = await client.ask("GET", target, Authorization=f"Bearer {SCOPED}")
                if answer.status == 403:
                    words = "the token may not ask for attempts of other writers"
                    assert answer.json["error"]["message"].startswith(words)
                return answer.status, answer.json.get("status")

            here.front.authenticator.replace(tokens(b"seat/"))
            assert await ask() == (200, "committed")
            here.front.authenticator.replace({SCOPED: Role.WRITE})
            assert await ask() == (200, "committed")
            here.front.authenticator.replace(tokens(b"seat/1/2"))
            assert await ask() == (403, None)

    run(scenario)


def test_the_client_of_a_token_for_some_keys_commits_with_tagged_ids_from_its_first_attempt_on() -> None:
    async def scenario() -> None:
        async with serving(tokens=tokens(b"seat/")) as here:
            client = Client(f"http://{here.host}:{here.port}", token=SCOPED)
            receipt = await client.commit([Write(b"seat/1", b"")], read_version=here.service.local_version())
            assert receipt.request_id is not None and receipt.request_id.startswith(tag_of(b"seat/"))
            status = await client.status(receipt.request_id, receipt.version - 1)
            assert (status.status, status.version) == ("committed", receipt.version)
            await client.aclose()

    run(scenario)


def test_a_prefix_that_an_id_cannot_begin_with_is_refused_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    for length, good in ((PREFIX_BYTES_MAX, True), (PREFIX_BYTES_MAX + 1, False)):
        file.write_text(f"write:{SCOPED} prefix={'p' * length}\n")
        if good:
            assert len(read_token_file(file)) == 1
        else:
            with pytest.raises(InvalidRequest, match="line=1") as raised:
                read_token_file(file)
            assert SCOPED not in str(raised.value)
