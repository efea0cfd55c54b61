"""Laws of what waits for a store that is silent: it ends in time, tells the truth, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
from builtins import list as builtin_list
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from unittest import mock

import pytest
from tests.integration.http_harness import Client, GatedStore, Serving, commit, request, run, serving, until, write

from holdfast.commit.reading.feed import Event, FeedCheckpoint, FeedTransaction, LeaderChange
from holdfast.commit.service import ServiceOptions
from holdfast.commit.stages import release
from holdfast.commit.subscription import subscribe
from holdfast.errors import Unavailable
from holdfast.objects.port import Listed
from holdfast.server.gateway import GatewayLimits
from holdfast.server.http import connection as fast_lane

VERSION = request("GET", "/v1/version")
ATTEMPT = {"request_id": "request-id-of-twenty-plus", "read_version": 10**13}
AGES_MS = 3_600_000.0


class SilentStore(GatedStore):
    """A store that answers no listing while it is silent."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = False

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtin_list[Listed]:
        if self.silent:
            raise Unavailable("no route to the store")
        return await super().list(prefix, after=after, limit=limit)


@asynccontextmanager
async def silent(store: SilentStore, answered_within_ms: float, **more: object) -> AsyncGenerator[Serving]:
    """A server whose store falls silent once it leads."""
    options = ServiceOptions(
        address="test", allow_new=True, probe=False, request_timeout_ms=answered_within_ms, idle_check_ms=AGES_MS
    )
    async with serving(store=store, options=options, view=False, **more) as here:  # type: ignore[arg-type]
        store.silent = True
        yield here


def questions(here: Serving) -> int:
    """How many questions for a proof anybody still keeps."""
    pipeline = here.service.pipeline
    riding = sum(len(tickets) for _, tickets in pipeline._riding)
    return riding + len(pipeline._checking or []) + len(pipeline._asked) + len(here.front._tasks)


@pytest.mark.parametrize("target", ["/v1/version", "/v1/version?consistency=linearizable"])
def test_a_version_that_nobody_can_prove_is_refused_in_time_and_leaves_nothing_behind(target: str) -> None:
    store = SilentStore()

    async def scenario() -> None:
        async with silent(store, 50.0) as here:
            client = await here.connect()
            for _ in range(3):
                answer = await client.ask("GET", target)
                assert (answer.status, answer.code) == (503, "store_unavailable")
                assert answer.json["error"]["retry_after_ms"] > 0
            await until(lambda: not questions(here))
            store.silent = False
            while (answer := await client.ask("GET", target)).status == 503:
                pass  # a slow machine may need longer than the bound
            assert answer.json["version"] == here.service.local_version()

    run(scenario)


def test_a_status_that_nobody_can_prove_leaves_nothing_behind() -> None:
    store = SilentStore()

    async def scenario() -> None:
        async with silent(store, 50.0) as here:
            client = await here.connect()
            target = f"/v1/status/{ATTEMPT['request_id']}?min_version={here.service.local_version()}"
            answer = await client.ask("GET", target)
            assert (answer.status, answer.code) == (503, "store_unavailable")
            await until(lambda: not questions(here))

    run(scenario)


def test_who_stops_waiting_for_a_version_is_forgotten_wherever_the_question_stands() -> None:
    store = SilentStore()

    async def scenario() -> None:
        async with silent(store, AGES_MS) as here:
            service, pipeline = here.service, here.service.pipeline
            asked = asyncio.ensure_future(service.version())
            await until(lambda: pipeline._check_again_ms is not None)
            assert len(pipeline._asked) == 1, "it waits for the next check"
            asked.cancel()
            await until(asked.done)
            assert not questions(here)

            store.gate.clear()
            client = await here.connect()
            client.send(commit())
            await until(lambda: pipeline.persist.in_flight)
            client.send(commit())
            other = await here.connect()
            other.send(commit())
            await until(lambda: here.front.in_flight_commits == 3)
            riding = asyncio.ensure_future(service.version())
            await until(lambda: pipeline._riding)
            riding.cancel()
            await until(riding.done)
            assert not questions(here)
            store.gate.set()
            assert [(await one.answer()).status for one in (client, client, other)] == [200] * 3

    run(scenario)


def test_the_service_is_unready_for_as_long_as_the_store_is_silent_whoever_gives_up_asking() -> None:
    store = SilentStore()
    options = ServiceOptions(
        address="test", allow_new=True, probe=False, request_timeout_ms=5.0, idle_check_ms=1.0, sign_interval_ms=AGES_MS
    )

    async def scenario() -> None:
        async with serving(store=store, options=options, view=False, stalled_ms_max=0.0) as here:
            store.silent = True
            pipeline = here.service.pipeline
            await until(lambda: pipeline.unproved_since_ms is not None)
            since_ms = pipeline.unproved_since_ms
            client = await here.connect()
            for _ in range(3):
                assert (await client.ask("GET", "/v1/version")).status == 503
                here.service._tick()
                assert pipeline.unproved_since_ms == since_ms
            store.silent = False
            await until(lambda: pipeline.unproved_since_ms is None)

    run(scenario)


def test_a_commit_whose_future_nobody_can_prove_is_told_that_it_was_not_accepted() -> None:
    store = SilentStore()

    async def scenario() -> None:
        async with silent(store, 50.0) as here:
            client = await here.connect()
            client.send(commit(**ATTEMPT))
            answer = await client.answer()
            assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "overloaded", "1")
            stream = await client.ask("POST", "/v1/commits", write(**ATTEMPT))
            assert b'"overloaded"' in stream.body
            assert here.front.in_flight_commits == 0
            assert not here.service._owed
            assert here.service.pipeline.persist.counters.transactions == 0
            store.silent = False
            while (again := await client.ask("POST", "/v1/commit", write(**ATTEMPT))).status == 503:
                pass  # a slow machine may need longer than the bound
            assert (again.status, again.code) == (400, "future_version")

    run(scenario)


def test_askers_that_went_away_do_not_keep_their_connections_while_the_store_is_silent() -> None:
    store = SilentStore()

    async def scenario() -> None:
        async with silent(store, AGES_MS, limits=GatewayLimits(connections_max=3)) as here:
            for _ in range(3):
                client = await here.connect()
                client.send(VERSION * 2)
                await until(lambda: any(len(lane.queue) == 2 and not lane.eof for lane in here.server.context.open))
                client.close()
                await until(lambda: all(lane.eof for lane in here.server.context.open))
            await until(lambda: not here.server.context.connections)
            assert (await (await here.connect()).ask("GET", "/livez")).status == 200

    with mock.patch.object(fast_lane, "HALF_CLOSED_SECONDS_MAX", 0.05):
        run(scenario)


def test_a_peer_that_sends_no_more_gets_the_answer_of_its_commit_and_the_version_before_it() -> None:
    store = SilentStore()

    async def scenario() -> None:
        async with silent(store, AGES_MS) as here:
            store.gate.clear()
            client = await here.connect()
            client.send(VERSION + commit())
            await until(lambda: here.front.in_flight_commits)
            client.writer.write_eof()
            await until(lambda: all(lane.eof for lane in here.server.context.open))
            await asyncio.sleep(0.05)  # far beyond the patience with those who only ask
            store.silent = False
            store.gate.set()
            assert (await client.answer()).json["version"] > 0
            assert (await client.answer()).json["status"] == "committed"
            assert await client.is_closed_by_peer()

    with mock.patch.object(fast_lane, "HALF_CLOSED_SECONDS_MAX", 0.001):
        run(scenario)


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_held_for_a_proof_is_not_shown_as_durable_to_who_reads_history(durable: bool) -> None:
    store = SilentStore()
    told: list[Event] = []

    async def scenario() -> None:
        async with silent(store, AGES_MS) as here:
            service = here.service
            client = await here.connect()
            client.send(commit())
            first = (await client.answer()).json["version"]
            with mock.patch.object(release, "PROOF_MS_MAX", -1.0):  # every proof is too old
                client.send(commit())
                await until(lambda: service.pipeline.release.holding)
            assert service.local_version() == first == service.durable_header().last_version

            async def read() -> None:
                async for batch in subscribe(service, after=0, durable=durable):
                    told.extend(batch.events)

            reading = asyncio.ensure_future(read())
            await until(lambda: service.feed.durable._waiters)
            assert [event.version for event in told if isinstance(event, FeedTransaction)] == [first]
            assert all(event.committed_version <= first for event in told if isinstance(event, FeedCheckpoint))
            await service.close()
            await reading
            changes = [event.roll_back_to for event in told if isinstance(event, LeaderChange)]
            assert changes == ([] if durable else [first])

    run(scenario)


COMMITS = b"POST /v1/commits HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


async def never_read_results(here: Serving) -> Client:
    """A client whose results are written until the writer has to wait for it."""
    client = await here.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    items = (write() + b"\n") * 500
    client.send(COMMITS)

    def paused() -> bool:
        lanes = here.server.context.open
        if not any(lane._writing_paused for lane in lanes) and not client.writer.transport.get_write_buffer_size():
            client.send(b"%x\r\n%b\r\n" % (len(items), items))
        return any(lane._writing_paused for lane in lanes)

    await until(paused)
    return client


@pytest.mark.parametrize("closing", [False, True])
def test_who_never_reads_is_cut_off_in_the_framework_too_even_if_it_was_closed(closing: bool) -> None:
    async def scenario() -> None:
        async with serving(view=False) as here:
            await never_read_results(here)
            framework = here.server.context
            if closing:
                for lane in framework.open:
                    lane.transport.close()
                    lane._writing_paused = False  # as where less is left than makes a writer wait
            for _ in range(2):
                framework.close_stalled(partial_seconds_max=30, idle_seconds_max=600)  # looks how much is unsent
                framework.seconds += 590
            framework.close_stalled(partial_seconds_max=30, idle_seconds_max=600)
            await until(lambda: not framework.open)
            assert here.server.context.connections == 0

    run(scenario)


def test_who_reads_history_slowly_is_not_cut_off() -> None:
    async def scenario() -> None:
        async with serving(view=False) as here:
            writing, client = await here.connect(), await here.connect()
            large = {"operations": [{"type": "write", "key": "a2V5", "value": "dmFs" * 250_000}]}
            for _ in range(16):  # more than both kernels keep for a connection
                assert (await writing.ask("POST", "/v1/commit", json.dumps(large).encode())).status == 200
            writing.close()
            transport = client.writer.transport
            transport.pause_reading()  # type: ignore[attr-defined]
            client.send(request("GET", "/v1/subscribe?after=0"))
            framework = here.server.context
            await until(lambda: [lane._writing_paused for lane in framework.open] == [True])
            (lane,) = framework.open
            for _ in range(3):
                await until(lambda: lane._writing_paused)
                framework.close_stalled(partial_seconds_max=30, idle_seconds_max=600)
                framework.seconds += 590
                before = lane.transport.get_write_buffer_size()
                transport.resume_reading()  # type: ignore[attr-defined]
                while lane._writing_paused and lane.transport.get_write_buffer_size() == before:
                    await client.reader.read(1)
                transport.pause_reading()  # type: ignore[attr-defined]
            await until(lambda: lane._writing_paused)
            framework.close_stalled(partial_seconds_max=30, idle_seconds_max=600)
            assert framework.open == {lane} and not lane.transport.is_closing()

    run(scenario)
