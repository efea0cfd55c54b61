"""Laws of the routes that answer whole: commit, version, status, view, health, description, rights."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.http_harness import BY_FRAMEWORK, GatedStore, commit, request, run, serving, until, write

from holdfast.commit.format.transaction import Transaction
from holdfast.commit.reading.feed import EventBatch
from holdfast.commit.service import CommitService, ServiceEnd, ServiceOptions
from holdfast.commit.subscription import subscribe
from holdfast.errors import Code, CorruptData
from holdfast.objects.budget import BudgetedStore, StoreMetrics, TimeLimited
from holdfast.objects.memory import MemoryStore
from holdfast.objects.retrying import ANSWERING, RetryingStore
from holdfast.server.gateway import GatewayLimits
from holdfast.server.http.auth import Role
from holdfast.server.http.responses import STATUS_OF, LeaderHint
from holdfast.server.view.embedded_view import ViewInProcess

REQUEST_ID = "an-id-of-more-than-twenty-characters"


def test_a_conflict_names_the_precondition_and_a_durable_version() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            first = (await client.ask("POST", "/v1/commit", write())).json
            stale = {"type": "point_read", "key": "a2V5", "version": first["version"] - 1}
            answer = await client.ask("POST", "/v1/commit", write(preconditions=[stale]))
            assert answer.status == 200
            assert answer.json == {
                "status": "not_committed",
                "reason": "conflict",
                "conflicts": [{"precondition": 0, "version": first["version"]}],
                "version": answer.json["version"],
                "leader_id": here.service.leader_id,
                "request_id": None,
            }
            assert answer.json["version"] >= first["version"]
            assert here.service.local_version() >= answer.json["version"]

    run(scenario)


def test_an_attempt_is_answered_alike_when_repeated_and_its_id_belongs_to_it() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            version = (await client.ask("GET", "/v1/version")).json["version"]
            body = write(request_id=REQUEST_ID, read_version=version)
            first = (await client.ask("POST", "/v1/commit", body)).json
            assert first["request_id"] == REQUEST_ID
            assert (await client.ask("POST", "/v1/commit", body)).json == first
            other = write("b3RoZXI=", request_id=REQUEST_ID, read_version=version)
            reused = await client.ask("POST", "/v1/commit", other)
            assert (reused.status, reused.code) == (409, "request_id_reused")
            told = await client.ask("GET", f"/v1/status/{REQUEST_ID}?min_version={version}")
            assert told.json == {"status": "committed", "version": first["version"]}

    run(scenario)


def test_asking_the_status_bans_the_attempt() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            version = (await client.ask("GET", "/v1/version")).json["version"]
            told = await client.ask("GET", f"/v1/status/{REQUEST_ID}?min_version={version}")
            assert told.json == {"status": "not_committed"}
            late = await client.ask("POST", "/v1/commit", write(request_id=REQUEST_ID, read_version=version))
            assert (late.json["status"], late.json["reason"]) == ("not_committed", "banned")

    run(scenario)


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        (f"/v1/status/{REQUEST_ID}", 400, "malformed"),
        (f"/v1/status/{REQUEST_ID}?min_version=-1", 400, "malformed"),
        (f"/v1/status/{REQUEST_ID}?min_version=1&min_version=2", 400, "malformed"),
        ("/v1/status/short?min_version=1", 400, "bad_request_id"),
        ("/v1/status/a%0Aline%2Ffeed-and-a-slash-inside?min_version=1", 400, "bad_request_id"),
        ("/v1/version?consistency=strange", 400, "malformed"),
        ("/v1/keys/a", 400, "bad_base64"),
        ("/v1/keys/%FF", 400, "bad_base64"),
        ("/v1/keys/bm9uZQ", 404, "not_found"),
        ("/v1/range?begin=Yg&end=YQ", 400, "bad_range"),
        ("/v1/range?limit=0", 400, "malformed"),
        ("/v1/subscribe?after=x", 400, "malformed"),
        ("/v1/subscribe?affter=1", 400, "malformed"),
        ("/v1/keys/a2V5?version=1", 400, "malformed"),
        ("/v1/version?local=true", 400, "malformed"),
        ("/livez?now=", 400, "malformed"),
        ("/v1/subscribe?durable=maybe", 400, "malformed"),
        ("/v1/subscribe?prefix=YQ&begin=YQ", 400, "malformed"),
        ("/v1/subscribe?begin=Yg&end=YQ", 400, "bad_range"),
        (f"/v1/subscribe?after={2**53 - 1}", 400, "future_version"),
        ("/", 404, "not_found"),
        ("/v1/commit/", 404, "not_found"),
        ("/v1/%2e%2e/livez", 404, "not_found"),
        ("/v1/commit", 405, "method_not_allowed"),
    ],
)
def test_every_refusal_is_coded(target: str, status: int, code: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            answer = await (await here.connect()).ask("GET", target)
            assert (answer.status, answer.code) == (status, code)

    run(scenario)


def test_an_unknown_query_parameter_is_named_with_those_that_there_are() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            answer = await client.ask("GET", "/v1/range?begin=YQ&lmit=5")
            assert (answer.status, answer.code) == (400, "malformed")
            message = answer.json["error"]["message"]
            assert (
                "'lmit'" in message
                and "at, begin, begin_text, consistency, end, end_text, limit, prefix, prefix_text, text" in message
            )
            hot = await client.ask("POST", "/v1/commit?durable=false", write())
            assert (hot.status, hot.code) == (400, "malformed")
            assert "it has none" in hot.json["error"]["message"]
            assert here.service.metrics.committed == 0
            assert (await client.ask("POST", "/v1/commit", write())).json["status"] == "committed"

    run(scenario)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "DELETE", "PATCH", "TRACE", "QUERY"])
def test_other_methods_are_405_and_name_the_right_ones(method: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.send(request(method, "/v1/commit"))
            answer = await client.answer(head_only=method == "HEAD")
            assert (answer.status, answer.headers["allow"]) == (405, "POST")

    run(scenario)


def test_head_of_a_get_route_has_no_body() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            for target in ("/livez", "/metrics", "/openapi.json", "/v1/version"):
                client.send(request("HEAD", target))
                assert (await client.answer(head_only=True)).status == 200
            assert (await client.ask("GET", "/livez")).json["leading"] is True

    run(scenario)


def test_while_the_store_stalls_commits_are_refused_and_health_answers() -> None:
    async def scenario() -> None:
        options = ServiceOptions(address="test", allow_new=True, probe=False, queue_entries_max=100)
        async with serving(options=options) as here:
            here.store.gate.clear()
            stuck = [await here.connect() for _ in range(4)]
            for client in stuck:
                client.send(commit() * 40)
            await until(lambda: here.front.in_flight_commits >= 100)
            client = await here.connect()
            refused = await client.ask("POST", "/v1/commit", write())
            assert (refused.status, refused.code) == (503, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1 and refused.json["error"]["retry_after_ms"] > 0
            assert (await client.ask("GET", "/livez")).status == 200
            assert (await client.ask("GET", "/readyz")).code == "overloaded"
            assert (await client.ask("GET", "/metrics")).status == 200
            here.store.gate.set()
            for other in stuck:
                codes = [(await other.answer()).status for _ in range(40)]
                assert set(codes) <= {200, 503} and codes[0] == 200

    run(scenario)


def test_a_leader_whose_batches_wait_for_the_store_is_not_ready_until_they_get_through() -> None:
    async def scenario() -> None:
        async with serving(stalled_ms_max=20) as here:
            client, asking = await here.connect(), await here.connect()
            ready = (await asking.ask("GET", "/readyz")).json
            assert (ready["ready"], ready["stores"]) == (True, "none")
            assert (await asking.ask("GET", "/readyz?stores=true")).status == 404
            here.watch.store = StoreMetrics(last_failure="no space left")
            here.store.gate.clear()
            client.send(commit())
            while (answer := await asking.ask("GET", "/readyz")).status == 200:
                pass
            assert (answer.status, answer.code) == (503, "store_unavailable")
            assert "no space left" in answer.json["error"]["message"]
            assert int(answer.headers["retry-after"]) >= 1
            assert (await asking.ask("GET", "/livez")).status == 200
            here.store.gate.set()
            assert (await client.answer()).status == 200
            assert (await asking.ask("GET", "/readyz")).status == 200

    run(scenario)


def test_an_idle_leader_whose_store_is_silent_is_not_ready_until_it_answers() -> None:
    async def scenario() -> None:
        async with serving(tokens=TOKENS) as here:
            here.watch.store = store = StoreMetrics(last_failure="key=secret/place")
            asking = await here.connect()
            store.consecutive_failures, store.last_success_seconds = 3, time.monotonic() - 60
            answer = await asking.ask("GET", "/readyz")
            assert (answer.status, answer.code) == (503, "store_unavailable")
            assert "secret" not in answer.json["error"]["message"], "where there are tokens, strangers are told less"
            store.last_success_seconds = time.monotonic()  # a few that failed together are no silence
            assert (await asking.ask("GET", "/readyz")).status == 200
            store.consecutive_failures, store.last_success_seconds = 0, time.monotonic() - 60
            assert (await asking.ask("GET", "/readyz")).status == 200

    run(scenario)


@pytest.mark.parametrize(
    "limits", [GatewayLimits(in_flight_commits_max=8), GatewayLimits(in_flight_bytes_max=8 * len(write()))]
)
def test_commits_and_bytes_in_flight_are_bounded(limits: GatewayLimits) -> None:
    async def scenario() -> None:
        async with serving(limits=limits) as here:
            here.store.gate.clear()
            client = await here.connect()
            client.send(commit() * 20)
            await until(lambda: here.front.counters.answers["/v1/commit", 503] >= 12)
            assert here.front.in_flight_commits == 8
            here.store.gate.set()
            assert [(await client.answer()).status for _ in range(20)] == [200] * 8 + [503] * 12
            assert (here.front.in_flight_commits, here.front.in_flight_bytes) == (0, 0)

    run(scenario)


def test_who_does_not_lead_names_who_does() -> None:
    async def scenario() -> None:
        async with serving() as here:
            here.front.stop_leading(LeaderHint("f" * 32, "elsewhere:1"))
            client = await here.connect()
            for method, target, body in (
                ("POST", "/v1/commit", write()),
                ("GET", "/v1/version", None),
                ("GET", f"/v1/status/{REQUEST_ID}?min_version=1", None),
                ("POST", "/v1/commits", write()),
                ("GET", "/v1/subscribe", None),
                ("GET", "/v1/keys/YQ", None),
                ("GET", "/readyz", None),
                ("GET", "/ok", None),
                ("POST", "/v1/admin/step-down", b""),
            ):
                answer = await client.ask(method, target, body)
                assert (answer.status, answer.code) == (503, "not_leader"), target
                assert answer.json["error"]["leader_address"] == "elsewhere:1"
                assert answer.json["error"]["leader_id"] == "f" * 32
            assert (await client.ask("GET", "/livez")).json["leading"] is False

    run(scenario)


def test_stepping_down_answers_everything_and_then_nothing() -> None:
    async def scenario() -> None:
        async with serving() as here:
            busy, client = await here.connect(), await here.connect()
            busy.send(commit() * 50)
            await until(lambda: here.front.in_flight_commits)
            told = await client.ask("POST", "/v1/admin/step-down", b"")
            assert told.json == {"stepped_down": True, "leader_id": here.service.leader_id}
            assert {(await busy.answer()).status for _ in range(50)} <= {200, 503}
            assert (await client.ask("POST", "/v1/commit", write())).code == "not_leader"
            assert here.service.ended.result().kind == "resigned"

    run(scenario)


@pytest.mark.parametrize("code", ["leader_changed", "not_leader"])
def test_a_deposed_process_does_not_name_itself_as_the_leader(code: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client, framework = await here.connect(), await here.connect()
            successor = await CommitService.lead(here.store, ServiceOptions(take_over=True))
            if code == "not_leader":  # the front still has the service, whose end the process has not seen yet
                assert (await client.ask("GET", "/v1/version")).code == "leader_changed"
                answers = [await client.ask("POST", "/v1/commit", write())]
            else:
                answers = [await client.ask("GET", "/v1/version")]
                answers.append(await framework.ask("GET", "/v1/version", **BY_FRAMEWORK))
                answers.append(await framework.ask("POST", "/v1/admin/step-down", b""))
            for answer in answers:
                assert answer.code == code
                assert not {"leader_id", "leader_address"} & answer.json["error"].keys()
                assert here.service.leader_id not in answer.body.decode()
            here.front.stop_leading(LeaderHint(successor.leader_id, "elsewhere:1"))
            named = (await client.ask("GET", "/v1/version")).json["error"]
            assert (named["leader_id"], named["leader_address"]) == (successor.leader_id, "elsewhere:1")
            await successor.close()

    run(scenario)


def test_who_was_deposed_while_stepping_down_does_not_say_that_it_stepped_down() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            successor = await CommitService.lead(here.store, ServiceOptions(take_over=True))
            told = await client.ask("POST", "/v1/admin/step-down", b"")
            assert (told.status, told.code) == (409, "leader_changed")
            assert here.service.ended.result().kind == "deposed"
            assert not successor.ended.done()
            await successor.close()

    run(scenario)


@pytest.mark.parametrize("kind", ["gave_up", "abandoned"])
def test_a_reign_that_ended_in_trouble_while_stepping_down_is_told_as_trouble(kind: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            here.store.gate.clear()
            client.send(request("POST", "/v1/admin/step-down", b""))
            await until(lambda: here.service.pipeline.draining)
            here.service.ended.set_result(ServiceEnd(kind, "planted"))
            told = await client.answer()
            assert (told.status, told.code) == (503, "store_unavailable")
            assert kind in told.json["error"]["message"]

    run(scenario)


def test_reads_of_the_view_see_ones_own_writes_and_wait_for_at() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            for number in range(30):
                value = json.dumps(
                    {"operations": [{"type": "write", "key": "a2V5", "value": f"{number:04d}"}]}
                ).encode()
                version = (await client.ask("POST", "/v1/commit", value)).json["version"]
                found = (await client.ask("GET", "/v1/keys/a2V5")).json
                assert found == {"key": "a2V5", "value": f"{number:04d}", "version": version, "at": version}
                at = await client.ask("GET", f"/v1/keys/a2V5?at={version}")
                assert at.json == found
            await client.ask("POST", "/v1/commit", write("/+++"))
            assert (await client.ask("GET", "/v1/keys/_---")).json["key"] == "/+++"
            page = (await client.ask("GET", "/v1/range?limit=1")).json
            assert [item["key"] for item in page["items"]] == ["a2V5"] and page["more"] is True
            rest = (await client.ask("GET", "/v1/range?begin=a2V5AA")).json
            assert [item["key"] for item in rest["items"]] == ["/+++"] and rest["more"] is False

    run(scenario)


def test_a_view_in_memory_that_meets_damage_names_it_and_shows_what_was_before() -> None:
    async def scenario() -> None:
        async with serving(view=False) as here:
            client = await here.connect()
            first = (await client.ask("POST", "/v1/commit", write())).json["version"]
            damaged, met = False, 0

            async def stream(after: int, durable: bool) -> AsyncIterator[EventBatch]:
                nonlocal met
                async for batch in subscribe(here.service, after=after, durable=durable):
                    if damaged:
                        met += 1
                        raise CorruptData("body CRC does not match", code=Code.CORRUPT_BATCH, slot="5")
                    yield batch

            view = ViewInProcess(here.service, stream)
            try:
                await view.at(first)
                damaged = True
                second = (await client.ask("POST", "/v1/commit", write())).json["version"]
                for _ in range(2):
                    with pytest.raises(CorruptData, match="slot=5"):
                        await view.at(second)
                (found,) = (await (await view.at(first)).read([b"key"], "latest", 1 << 20)).results
                assert isinstance(found, tuple) and found[1] == first
                assert met == 1, "damage is not looked for again and again"
            finally:
                await view.close()

    run(scenario)


def test_without_a_view_reads_say_so() -> None:
    async def scenario() -> None:
        async with serving(view=False) as here:
            client = await here.connect()
            for target in ("/v1/keys/YQ", "/v1/range"):
                answer = await client.ask("GET", target)
                assert (answer.status, answer.code) == (409, "view_disabled")

    run(scenario)


TOKENS = {"r" * 16: Role.READ, "w" * 16: Role.WRITE, "a" * 16: Role.ADMIN}


@pytest.mark.parametrize(
    ("method", "target", "needed"),
    [
        ("GET", "/livez", Role.OPEN),
        ("GET", "/readyz", Role.OPEN),
        ("GET", "/openapi.json", Role.OPEN),
        ("GET", "/v1/version", Role.READ),
        ("GET", "/v1/version?consistency=local", Role.READ),
        ("GET", "/v1/range", Role.READ),
        ("GET", "/metrics", Role.READ),
        ("GET", f"/v1/status/{REQUEST_ID}?min_version=0", Role.WRITE),
        ("POST", "/v1/commit", Role.WRITE),
        ("POST", "/v1/commits", Role.WRITE),
        ("POST", "/v1/admin/step-down", Role.ADMIN),
    ],
)
def test_a_role_opens_its_routes_and_those_below(method: str, target: str, needed: Role) -> None:
    async def scenario() -> None:
        async with serving(tokens=TOKENS) as here:
            for token, role in [(None, Role.OPEN), ("x" * 16, Role.OPEN), *TOKENS.items()]:
                client = await here.connect()
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                answer = await client.ask(method, target, write() if method == "POST" else None, **headers)
                if role >= needed:
                    assert answer.status == 200
                elif role is Role.OPEN:
                    assert (answer.status, answer.code) == (401, "unauthenticated")
                    assert answer.headers["www-authenticate"] == "Bearer"
                else:
                    assert (answer.status, answer.code) == (403, "permission_denied")

    run(scenario)


@pytest.mark.parametrize(
    ("target", "framing"),
    [
        ("/v1/commit", "Content-Length: 1000000"),
        pytest.param("/v1/commit", "Transfer-Encoding: chunked", marks=pytest.mark.matrix),
        pytest.param("/v1/commit", "Content-Length: 1000000\r\nExpect: 100-continue", marks=pytest.mark.matrix),
        pytest.param("/v1/commits", "Content-Length: 1000000", marks=pytest.mark.matrix),
        ("/v1/commits", "Transfer-Encoding: chunked"),
        pytest.param("/v1/admin/step-down", "Content-Length: 1000000", marks=pytest.mark.matrix),
    ],
)
@pytest.mark.parametrize(("token", "status"), [pytest.param("x" * 16, 401, marks=pytest.mark.matrix), ("r" * 16, 403)])
def test_who_has_no_right_is_told_before_a_byte_of_the_body_is_waited_for(
    target: str, framing: str, token: str, status: int
) -> None:
    async def scenario() -> None:
        async with serving(tokens=TOKENS) as here:
            client = await here.connect()
            head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{framing}\r\n\r\n"
            client.send(head.encode())
            assert (await client.answer()).status == status
            # And nobody waits long for the body that is not wanted.
            assert await client.is_closed_by_peer()

    run(scenario)


def test_a_refused_request_that_arrives_whole_leaves_its_connection_usable() -> None:
    async def scenario() -> None:
        async with serving(tokens=TOKENS) as here:
            for target in ("/v1/commit", "/v1/commits"):
                client = await here.connect()
                for _ in range(2):
                    assert (await client.ask("POST", target, write())).status == 401
                allowed = await client.ask("POST", target, write(), Authorization="Bearer " + "w" * 16)
                assert allowed.status == 200

    run(scenario)


def test_every_code_has_a_status() -> None:
    assert set(STATUS_OF) == set(Code)


def test_the_description_lists_every_route_and_every_error_has_its_shape() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            api = (await client.ask("GET", "/openapi.json")).json
            served = {(row.path, method) for row in here.server.routes for method in row.endpoints}  # type: ignore[attr-defined]
            described = {(path, method.upper()) for path, methods in api["paths"].items() for method in methods}
            assert {(path.replace(":any}", "}"), method) for path, method in served if method != "HEAD"} == described
            for path, methods in api["paths"].items():
                for operation in methods.values():
                    for status, answer in operation["responses"].items():
                        if status != "200":
                            assert "application/json" in answer["content"], path
            text = json.dumps(api)
            for name in api["components"]["schemas"]:
                assert f"#/components/schemas/{name}" in text
            assert "msgspec" not in text and set(Transaction.__struct_fields__) == set(
                api["components"]["schemas"]["Transaction"]["properties"]
            )

    run(scenario)


def test_the_page_of_the_api_loads_nothing_from_elsewhere() -> None:
    async def scenario() -> None:
        async with serving() as here:
            page = await (await here.connect()).ask("GET", "/docs")
            assert page.headers["content-type"].startswith("text/html")
            assert b"http://" not in page.body and b"https://" not in page.body and b"src=" not in page.body

    run(scenario)


def test_metrics_are_well_formed_and_count() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            for _ in range(3):
                await client.ask("POST", "/v1/commit", write())
            text = (await client.ask("GET", "/metrics")).body.decode()
            samples = {
                (sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            assert samples["holdfast_commits_total", (("outcome", "committed"),)] == 3
            assert samples["holdfast_http_answers_total", (("route", "/v1/commit"), ("status", "200"))] == 3
            assert samples["holdfast_commit_seconds_count", ()] == 3
            for stage in ("sequence", "resolve", "persist", "release"):
                assert samples["holdfast_stage_commits_total", (("stage", stage),)] == 3
            assert samples["holdfast_leading", ()] == 1
            assert samples["process_resident_memory_bytes", ()] > 1 << 20

    run(scenario)


class HangingReads(GatedStore):
    """A store that does not answer reads while it hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()
        self.reads = 0

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.reads += 1
        await self.answers.wait()
        return await MemoryStore.read(self, key, start=start, length=length)


def test_a_status_has_one_bound_however_many_requests_to_a_store_that_hangs_it_takes() -> None:
    store = HangingReads()
    # As `serve` has it: each attempt of a reader ends within the time of a request. Here that time never ends.
    reading = RetryingStore(BudgetedStore(TimeLimited(store, 3_600_000), connections_max=4, creates_max=2), ANSWERING)
    options = ServiceOptions(address="test", allow_new=True, take_over=True, probe=False)

    async def scenario() -> None:
        async with serving(store=store) as first:
            client = await first.connect()
            attempt = {"request_id": REQUEST_ID, "read_version": first.service.local_version()}
            committed = await client.ask("POST", "/v1/commit", write(**attempt))
        limits = GatewayLimits(status_seconds_max=0.02)
        async with serving(store=store, reading=reading, options=options, limits=limits, view=False) as here:
            target = f"/v1/status/{REQUEST_ID}?min_version={attempt['read_version']}"
            client = await here.connect()
            store.answers.clear()
            before = store.reads
            answer = await client.ask("GET", target)
            assert (answer.status, answer.code) == (503, "store_unavailable")
            assert answer.json["error"]["retry_after_ms"] > 0
            again = await client.ask("GET", target)
            assert (again.status, again.code) == (503, "store_unavailable")
            assert store.reads == before + 1  # what was begun goes on, and is shared
            store.answers.set()
            await until(lambda: store.reads > before + 1)
            here.front.limits = GatewayLimits(status_seconds_max=60)
            final = await client.ask("GET", target)
            assert final.json == {"status": "committed", "version": committed.json["version"]}

    run(scenario)


@pytest.mark.parametrize("target", ["/v1/commit", "/v1/commits"])
@pytest.mark.parametrize("by_framework", [False, True], ids=["fast", "framework"])
def test_a_commit_with_too_many_operations_or_preconditions_is_refused(target: str, by_framework: bool) -> None:
    operation = {"type": "write", "key": "a2V5", "value": ""}
    read = {"type": "point_read", "key": "a2V5", "version": 0}

    async def scenario() -> None:
        async with serving(limits=GatewayLimits(operations_max=2, preconditions_max=3)) as here:
            for operations, reads, fits in ((2, 3, True), (3, 0, False), (1, 4, False)):
                client = await here.connect()
                body = json.dumps({"operations": [operation] * operations, "preconditions": [read] * reads}).encode()
                answer = await client.ask("POST", target, body, **(BY_FRAMEWORK if by_framework else {}))
                if target == "/v1/commit":
                    assert answer.status == (200 if fits else 413)
                found = json.loads(answer.body.splitlines()[0])
                if fits:
                    assert "error" not in found
                else:
                    assert found["error"]["code"] == "too_large"
                    assert "operations_max=2" in found["error"]["message"]

    run(scenario)
