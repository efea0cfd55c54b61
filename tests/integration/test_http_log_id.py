"""Laws of log ids in the HTTP API: every version that the service names says its log, and a foreign one is refused."""

from __future__ import annotations

import json

import pytest
from tests.integration.http_harness import Answered, Client, Serving, commit, request, run, serving, write
from tests.integration.test_http_subscribe import Stream

FOREIGN = "f" * 32


async def chunked(client: Client, target: str, body: bytes) -> Answered:
    """The same request on the framework's lane, where chunked bodies are read."""
    client.send(f"POST {target} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    return await client.answer()


async def status_of(here: Serving, target: str, **headers: str) -> Answered:
    client = await here.connect()
    client.send(request("GET", target, **headers))
    return await client.answer()


@pytest.mark.parametrize("query", ["", "?consistency=linearizable", "?consistency=local"])
def test_a_version_says_which_log_it_belongs_to(query: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            answer = await (await here.connect()).ask("GET", f"/v1/version{query}")
            assert answer.json["log_id"] == here.service.log_id

    run(scenario)


BODIES = [
    pytest.param(b'{"type":"write","key":"YQ==","value":"Yg=="}', "attempt-00000000000000001", id="base64"),
    pytest.param(b'{"type":"write","key_text":"a","value_text":"b"}', "attempt-00000000000000001", id="text"),
    pytest.param(b'{"type":"write","key\\u005ftext":"a","value":"Yg=="}', "attempt-00000000000000001", id="escape"),
    pytest.param(b'{"type":"write","key":"YQ==","value":"Yg=="}', "order-000000000000000003=", id="request-id"),
]


@pytest.mark.parametrize("lane", ["fast", "framework", "stream"])
@pytest.mark.parametrize(("operation", "request_id"), BODIES)
def test_every_form_of_a_commit_carries_the_log_id(lane: str, operation: bytes, request_id: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()

            async def ask(log_id: str) -> Answered:
                fields = {"request_id": request_id, "read_version": here.service.local_version(), "log_id": log_id}
                body = b'{"operations":[%b],%b' % (operation, json.dumps(fields).encode()[1:])
                if lane == "fast":
                    return await client.ask("POST", "/v1/commit", body)
                if lane == "framework":
                    return await chunked(client, "/v1/commit", body)
                return await chunked(client, "/v1/commits", body + b"\n")

            refused = (await ask(FOREIGN)).json["error"]
            assert (refused["code"], refused["log_id"]) == ("log_mismatch", here.service.log_id)
            assert (await ask(here.service.log_id)).json["status"] == "committed"

    run(scenario)


def test_the_description_of_a_commit_has_the_log_id() -> None:
    async def scenario() -> None:
        async with serving() as here:
            described = (await (await here.connect()).ask("GET", "/openapi.json")).json
            assert "log_id" in described["components"]["schemas"]["JsonTransaction"]["properties"]

    run(scenario)


@pytest.mark.parametrize("lane", ["fast", "framework"])
def test_a_commit_of_another_log_is_refused_and_changes_nothing(lane: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            before = here.service.local_version()

            async def ask(body: bytes) -> Answered:
                if lane == "framework":
                    return await chunked(client, "/v1/commit", body)
                return await client.ask("POST", "/v1/commit", body)

            refused = await ask(write(log_id=FOREIGN))
            assert (refused.status, refused.code) == (409, "log_mismatch")
            assert refused.json["error"]["log_id"] == here.service.log_id
            assert FOREIGN in refused.json["error"]["message"]
            assert here.service.local_version() == before
            assert (await ask(write(log_id=here.service.log_id))).json["status"] == "committed"

    run(scenario)


def test_an_item_of_another_log_is_refused_alone_in_a_stream_of_commits() -> None:
    async def scenario() -> None:
        async with serving() as here:
            items = [write(log_id=here.service.log_id), write(log_id=FOREIGN), write()]
            answer = await chunked(await here.connect(), "/v1/commits", b"\n".join(items) + b"\n")
            first, second, third = map(json.loads, answer.body.splitlines())
            assert (first["status"], third["status"]) == ("committed", "committed")
            assert (second["index"], second["error"]["code"]) == (1, "log_mismatch")
            assert second["error"]["log_id"] == here.service.log_id

    run(scenario)


def test_every_event_id_has_the_log_id_and_the_first_event_names_it() -> None:
    async def scenario() -> None:
        async with serving() as here:
            log_id, leader_id = here.service.log_id, here.service.leader_id
            client = await here.connect()
            early = await Stream.open(here, "?durable=false")
            assert (await early.next("log", "transaction", "checkpoint")).data == {"log_id": log_id}
            version = (await client.ask("POST", "/v1/commit", write())).json["version"]
            assert (await early.next("transaction")).identity in (
                f"{version}~{leader_id}@{log_id}",
                f"{version}@{log_id}",
            )
            for query in ("", f"?after={version}", "?prefix=eg"):
                stream = await Stream.open(here, query)
                first = await stream.next("log", "transaction", "checkpoint")
                assert (first.name, first.data, first.identity) == ("log", {"log_id": log_id}, None)
                following = await stream.next("transaction", "checkpoint")
                assert following.identity is not None
                assert following.identity.endswith(f"@{log_id}")
            await here.service.step_down()
            change = await early.next("leader_change")
            assert change.identity == f"{change.data['roll_back_to']}~{leader_id}@{log_id}"

    run(scenario)


@pytest.mark.parametrize("where", ["after", "Last-Event-ID"])
def test_a_stream_resumes_by_ids_with_and_without_the_log_id_and_refuses_a_foreign_one(where: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            log_id, leader_id = here.service.log_id, here.service.leader_id
            client = await here.connect()
            first, second = [(await client.ask("POST", "/v1/commit", write())).json["version"] for _ in range(2)]

            def asked(position: str) -> tuple[str, dict[str, str]]:
                return (f"?after={position}", {}) if where == "after" else ("?after=0", {"Last_Event_ID": position})

            for position in (f"{first}", f"{first}@{log_id}", f"{first}~{leader_id}", f"{first}~{leader_id}@{log_id}"):
                query, headers = asked(position)
                stream = await Stream.open(here, query, **headers)
                assert [event.data["version"] for event in await stream.until(second)] == [second], position
            for position in (f"{first}@{FOREIGN}", f"0@{FOREIGN}", f"{first}~{leader_id}@{FOREIGN}"):
                query, headers = asked(position)
                refused = await status_of(here, f"/v1/subscribe{query}", **headers)
                assert (refused.status, refused.code) == (409, "log_mismatch")
                assert refused.json["error"]["log_id"] == log_id
            for position in (f"{first}@", f"{first}@{log_id[1:]}", f"{first}@{log_id.upper()}Z", f"@{log_id}", "~"):
                query, headers = asked(position)
                refused = await status_of(here, f"/v1/subscribe{query}", **headers)
                assert (refused.status, refused.code) == (400, "malformed"), position

    run(scenario)


@pytest.mark.parametrize(
    "target", ["/v1/keys/a2V5?at=", "/v1/range?at=", "/v1/status/an-id-of-twenty-chars?min_version="]
)
def test_every_parameter_that_is_a_version_takes_the_log_id_and_refuses_a_foreign_one(target: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            version = (await (await here.connect()).ask("POST", "/v1/commit", write())).json["version"]
            assert (await status_of(here, f"{target}{version}")).status == 200
            assert (await status_of(here, f"{target}{version}@{here.service.log_id}")).status == 200
            refused = await status_of(here, f"{target}{version}@{FOREIGN}")
            assert (refused.status, refused.code) == (409, "log_mismatch")

    run(scenario)


def test_a_process_that_does_not_lead_does_not_judge_a_log_id() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            here.front.stop_leading(here.front.leader)
            client.send(commit(log_id=FOREIGN))
            assert (await client.answer()).code == "not_leader"
            assert (await status_of(here, f"/v1/subscribe?after=1@{FOREIGN}")).code == "not_leader"

    run(scenario)
