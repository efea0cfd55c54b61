"""The console where much is there and much goes wrong: many stores and durables, awkward keys, a leader that is killed
while its page is open, a slow service, a token that ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.integration.console_harness import ADMIN, PROVE, ConsoleProcess, Pages, Service, chromium

from holdfast import Client, Transaction, Write
from holdfast.client.stores import StoreClient
from holdfast.console.options import read_tokens
from holdfast.testing.fault_proxy import Latency
from holdfast.testing.fault_proxy_process import FaultProxyProcess

pytestmark = [pytest.mark.program("chromium"), pytest.mark.matrix, pytest.mark.timeout(1_800)]

STORES = 1_000 if PROVE else 30
DURABLES = 5_000 if PROVE else 150
"""In one store; as many again in all others together."""
KEYS = 100_000 if PROVE else 2_000
PAGE_SECONDS_MAX = 3.0
COMMIT_SECONDS_MAX = 2.0
MEMORY_MAX = 200 << 20


def awkward_key(number: int) -> bytes:
    """No two are equal, most are not text."""
    return b"k/" + number.to_bytes(4, "big") + bytes([number % 256, 0, 255 - number % 256]) + b'"<\xff\n'


def fill(url: str) -> None:
    """Stores, durables and keys."""
    durable = {"type": "shared"}
    with StoreClient(url, token=ADMIN) as stores:
        for store in range(STORES):
            names = range(DURABLES // STORES)
            stores.define_store(f"store-{store:04}", {"durables": {f"d{name}": durable for name in names}})
        stores.define_store("many")
        for first in range(0, DURABLES, 500):
            named = {f"durable-{number:05}": durable for number in range(first, min(first + 500, DURABLES))}
            stores.edit("many", {"durables": named})
        with stores.publisher("many") as publisher:
            publisher.publish(b"for all of them")
    with Client(url, token=ADMIN) as client:
        for result in client.commits_many(Transaction([Write(awkward_key(n), b"\xff\x00" * 9)]) for n in range(KEYS)):
            assert not isinstance(result, Exception), result


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def slowest_commit(url: str, seconds: float) -> float:
    """The longest of single commits for this time."""
    slowest, end = 0.0, time.monotonic() + seconds
    with Client(url, token=ADMIN) as client:
        while time.monotonic() < end:
            began = time.monotonic()
            client.commit([Write(b"probe", b"x")])
            slowest = max(slowest, time.monotonic() - began)
    return slowest


def test_many_stores_durables_and_keys_are_shown_without_a_stall(browser: Browser, tmp_path: Path) -> None:
    service = Service(tmp_path)
    fill(service.url)
    console = ConsoleProcess(tmp_path, [service.url])
    tab = Pages(browser, console.url)
    try:
        for path, said in {
            "/": "commits",
            "/stores": "store-0000",
            "/stores?stores.find=store-0007": "store-0007",
            "/store?store=many": "durable-00000",
            "/store?store=many&durables.sort=Durable&durables.desc=1": f"durable-{DURABLES - 1:05}",
            "/store?store=many&durables.page=2": "durable-00050",
            "/messages?store=many": "durable-00000",
            "/messages?store=many&durable=durable-00003": "for all of them",
            "/keys": "0x",
            "/keys?prefix=0x6b2f0000": "0x6b2f0000",
            "/log": "write",
            "/maps": "Maps",
        }.items():
            began = time.monotonic()
            page = tab.go(path)
            expect(page.locator("main")).to_contain_text(said)
            took = time.monotonic() - began
            assert took < PAGE_SECONDS_MAX, (path, took)
            tab.check()
        page = tab.go("/keys?prefix=k%2F")
        page.locator("tbody a").first.click()
        expect(page.locator("main")).to_contain_text("History")
        tab.check()
        tab.go("/store?store=many")
        assert slowest_commit(service.url, 10.0) < COMMIT_SECONDS_MAX
        assert console.resident_bytes < MEMORY_MAX
    finally:
        tab.close()
        console.end()
        service.end()


def test_a_leader_that_is_killed_while_its_page_is_open_is_followed_by_the_next(
    browser: Browser, tmp_path: Path
) -> None:
    leader = Service(tmp_path)
    standby = Service(tmp_path, "--standby", waits=False)
    console = ConsoleProcess(tmp_path, [leader.url, standby.url])
    tab = Pages(browser, console.url)
    try:
        page = tab.go("/")
        expect(page.locator("#health")).to_contain_text(f"127.0.0.1:{leader.port}")
        # A standby that has never met the leader waits for a minute of silence.
        expect(page.locator("#health")).to_contain_text("1 stand by or follow", timeout=30_000)
        page.evaluate("window.wasHere = true")
        leader.process.kill()
        expect(page.locator("#health")).to_contain_text("do not answer", timeout=15_000)
        expect(page.locator("#health")).to_contain_text(f"127.0.0.1:{standby.port}", timeout=60_000)
        expect(page.locator("#health")).to_contain_text("accepts commits", timeout=30_000)
        assert page.evaluate("window.wasHere") is True
        tab.check()
        assert "is written" in tab.act("/key/edit?new=1", {"key": "after", "value": "the kill"}, compare=True)
        page = tab.go("/cluster")
        expect(page.locator("main")).to_contain_text("does not answer")
        assert page.locator("#leaders tbody tr").count() == 2
        tab.check()
    finally:
        tab.close()
        console.end()
        standby.end()


def test_a_slow_service_is_shown_slowly_and_not_asked_more(browser: Browser, tmp_path: Path) -> None:
    service = Service(tmp_path)
    with FaultProxyProcess("127.0.0.1", service.port) as proxy:
        console = ConsoleProcess(tmp_path, [proxy.endpoint])
        tab = Pages(browser, console.url)
        try:
            proxy.set_latency(Latency(median_ms=1_500, p99_ms=1_500))
            page = tab.go("/")
            expect(page.locator("#health")).to_contain_text("accepts commits", timeout=30_000)
            before = proxy.report().requests
            page.wait_for_timeout(20_000)
            assert proxy.report().requests - before < 30, "only who leads is asked all the time"
            assert not page.locator(".notice.bad").count()
            tab.check()
        finally:
            tab.close()
            console.end()
    service.end()


def test_a_token_that_ends_is_reported(browser: Browser, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    until = (datetime.now(UTC) + timedelta(seconds=20)).isoformat()
    tokens.write_text(f"admin:{ADMIN}\nread:{ADMIN}-for-now until={until}\n")
    assert read_tokens(tokens) == (ADMIN, f"{ADMIN}-for-now")
    service = Service(tmp_path, tokens_file=tokens)
    console = ConsoleProcess(tmp_path, [service.url], token=f"{ADMIN}-for-now")
    tab = Pages(browser, console.url)
    try:
        page = tab.go("/stores")
        expect(page.locator("#t-stores")).to_contain_text("default")
        expect(page.locator("main")).to_contain_text("expired", timeout=40_000)
        page = tab.go("/keys")
        expect(page.locator("main")).to_contain_text("expired")
        tab.check()
    finally:
        tab.close()
        console.end()
        service.end()
