"""The console in a browser, against a real service with traffic: every page, every action, and a service that goes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.integration.console_harness import (
    ADMIN,
    NARROW,
    PROVE,
    READER,
    WIDE,
    ConsoleProcess,
    Pages,
    Service,
    chromium,
)
from tests.unit.console.test_links import numbers_without_detail

from holdfast import Client, Conflict, PointRead, Write
from holdfast.client.stores import PublisherOptions, StoreClient, SubscriberOptions
from holdfast.console.pages import ACTIONS, PAGES

pytestmark = pytest.mark.program("chromium")

AWKWARD = "a b ü&<\"'>/?#"
NAME = "a.b_c-d:e@f~"
"""A name of a store may have these characters."""
KEY = bytes(range(0, 256, 5))
FIRST_PAGE_SECONDS_MAX = 1.0


class Traffic:
    """Commits until it is stopped; a service that is away is waited for."""

    def __init__(self, url: str) -> None:
        self._stopped = threading.Event()
        self._url = url
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with Client(self._url, token=ADMIN) as client:
            number = 0
            while not self._stopped.wait(0.02):
                number += 1
                client.commit([Write(b"seat/%d" % (number % 9), b'{"number": %d}' % number), Write(b"hot", b"x")])

    def stop(self) -> None:
        """Stop it."""
        self._stopped.set()
        self._thread.join(70)


def seed(url: str) -> None:
    """What the pages show."""
    with Client(url, token=ADMIN) as client, StoreClient(url, token=ADMIN) as stores:
        client.commit(
            [Write(KEY, b"\x00\xff"), Write(b"doc", b'{"a": [1, 2]}'), Write("ключ".encode(), b"\x81\xa1a\x01")]
        )
        stores.define_store("dead")
        stores.define_durable("dead", "letters", {"type": "shared"})
        stores.define_store("orders", {"message_limit": 1000})
        given = {"type": "shared", "max_delivery": 1, "retention_time": 3600}
        stores.define_durable("orders", "work", given | {"dead_letter_store": "dead"})
        stores.define_durable("orders", "parked", given)
        stores.define_durable("orders", "audit", {"type": "standard"})
        stores.define_durable("orders", "prices", {"type": "map"})
        stores.define_store(NAME)
        stores.define_durable(NAME, NAME, {"type": "shared"})
        stores.map("orders", "prices").set_many({"eu.bread": b"2", AWKWARD: b"3"})
        for store in ("orders", NAME):
            with stores.publisher(store, options=PublisherOptions(retry_duration=5)) as publisher:
                for number in range(3):
                    publisher.publish(b'{"order": %d}' % number, fields={"kind": AWKWARD}, key=f"k{number}")
        explicit = SubscriberOptions(explicit_ack=True)
        for durable in ("work", "parked"):
            with stores.subscriber("orders", durable, subscriber="broken", options=explicit) as subscriber:
                if durable == "work":
                    subscriber.reject(next(iter(subscriber)))
                else:
                    subscriber.put_back(next(iter(subscriber)))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(tmp_path_factory.mktemp("service"))
    seed(started.url)
    traffic = Traffic(started.url)
    try:
        yield started
    finally:
        traffic.stop()
        started.end()


@pytest.fixture(scope="module")
def console(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    started = ConsoleProcess(tmp_path_factory.mktemp("console"), [service.url])
    yield started
    started.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def tab(browser: Browser, console: ConsoleProcess) -> Iterator[Pages]:
    opened = Pages(browser, console.url)
    yield opened
    opened.close()


@pytest.fixture
def pages(tab: Pages) -> Iterator[Pages]:
    tab.start_over()
    yield tab
    assert not tab.errors, tab.errors


ORDERS = "store=orders&durable=work"
VIEWS = {
    "/": "Healthy|attention",
    "/log": "seat/",
    "/keys": "seat/",
    f"/key?key={'ZG9j'}": '"a"',
    "/stores": "orders",
    "/store?store=orders": "parked",
    f"/store?store={NAME}": re.escape(NAME),
    f"/durable?{ORDERS}": "retention_time",
    "/definition": "dead_letter_store",
    "/messages": "orders",
    "/messages?store=orders&durable=audit": "k2",
    "/messages?store=orders&durable=parked&parked=1": "parked",
    "/message?store=orders&durable=audit&seq=1": "waiting",
    "/maps": "orders/prices",
    "/map?store=orders&map=prices": "eu.bread",
    "/map/entry?store=orders&map=prices&key=eu.bread": "Revision",
    "/retention": "whole log stays",
    "/cluster": "leads",
    "/pipelines": "table",
    "/configuration": "log.url",
    "/runbooks": "HoldfastNoLeader",
}
IN_DARK = {"/", f"/durable?{ORDERS}", "/definition", "/retention", "/messages?store=orders&durable=parked&parked=1"}
"""Together they have every part that a page is made of."""


@pytest.mark.matrix  # test_the_first_page_is_there_within_a_second opens one
@pytest.mark.timeout(400)
def test_every_page_shows_its_object_to_everybody(pages: Pages) -> None:
    for path, said in VIEWS.items():
        pages.go(path)
        assert pages.title()
        assert re.search(said, pages.text()), (path, pages.text())
        assert not pages.page.locator(".notice.bad").count(), (path, pages.text())
        assert not numbers_without_detail(pages.page.content()), path
        pages.check(in_dark=path in IN_DARK, with_axe=path in IN_DARK)


def test_every_page_of_the_table_is_looked_at() -> None:
    looked_at = {path.partition("?")[0] for path in VIEWS} | {"/transaction"}
    assert {page.path for page in PAGES} == looked_at


def test_the_first_page_is_there_within_a_second(pages: Pages) -> None:
    pages.go("/runbooks")
    took = []
    for _ in range(3):
        pages.go("/")
        took.append(pages.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"))
    assert min(took) < FIRST_PAGE_SECONDS_MAX, took


def test_what_changes_is_shown_without_loading_the_page_again(pages: Pages, service: Service) -> None:
    page = pages.go("/key?key=bGl2ZQ")
    expect(page.locator("#value")).to_contain_text("does not exist")
    page.evaluate("window.wasHere = true")
    with Client(service.url, token=ADMIN) as client:
        version = client.commit([Write(b"live", b"it moved")]).version
    expect(page.locator("#value")).to_contain_text("it moved")
    assert page.evaluate("window.wasHere") is True
    found = pages.go(f"/transaction?version={version}")
    expect(found.locator("main")).to_contain_text("it moved")
    pages.check()


@pytest.mark.matrix  # test_the_keys_of_conflicts_are_shown goes there too
def test_the_log_is_searched_by_version_time_request_and_key(pages: Pages, service: Service) -> None:
    with Client(service.url, token=ADMIN) as client:
        before = client.version().version
        asked = client.commit([Write(KEY, b"once more")], read_version=before, request_id="console-test-request-1")
    page = pages.go("/log?request=console-test-request-1")
    expect(page.locator("#t-txn, main table").first).to_contain_text("console-test-request-1")
    page = pages.go(f"/log?key=0x{KEY.hex()}")
    assert page.locator("tbody tr").first.locator("a").first.inner_text() == str(asked.version)
    page = pages.go(f"/log?at={asked.version}")
    assert page.locator("main table").first.locator("tbody a").first.inner_text() == str(asked.version)
    page = pages.go("/log?time=2001-01-01T00:00:00")
    expect(page.locator("main")).to_contain_text("No transaction")
    page = pages.go("/log")
    page.get_by_label("Older transactions").locator("a").click()
    expect(page.locator("main")).to_contain_text("found")
    page = pages.go("/log?time=yesterday")
    expect(page.locator("main")).to_contain_text("ISO 8601")


def test_the_keys_of_conflicts_are_shown(pages: Pages, service: Service) -> None:
    with Client(service.url, token=ADMIN) as client:
        before = client.version().version
        client.commit([Write(b"fought/over", b"1")])
        with pytest.raises(Conflict):
            client.commit([Write(b"fought/over", b"2")], [PointRead(b"fought/over")], read_version=before)
    page = pages.go("/keys")
    expect(page.locator("#t-conflicts")).to_contain_text("fought/over")
    pages.check()


def test_tables_are_sorted_and_filtered_by_their_address(pages: Pages) -> None:
    page = pages.go("/store?store=orders")
    page.locator("th a", has_text="Durable").click()
    names = page.locator("#t-durables tbody tr td:first-child")
    expect(names).to_have_text(["audit", "parked", "prices", "work"])
    page.locator("th a", has_text="Durable").click()
    expect(names).to_have_text(["work", "prices", "parked", "audit"])
    assert "durables.sort=Durable" in page.url
    page = pages.go("/store?store=orders&durables.find=PRIC")
    expect(page.locator("#t-durables tbody tr")).to_have_count(1)


@pytest.mark.matrix  # test_retention_is_set_and_removed edits too
def test_a_key_is_edited_where_it_has_not_changed(pages: Pages) -> None:
    said = pages.act("/key/edit?new=1", {"key": "made/here", "value": "one"}, compare=True)
    assert "made/here is written at version" in said
    pages.page.locator("text=Edit").first.click()
    pages.check()
    assert pages.page.locator('[name="value"]').input_value() == "one"
    stale = pages.page.locator('[name="version"]').input_value()
    page = pages.go("/key/edit?key=bWFkZS9oZXJl")
    page.locator('[name="value"]').fill("two\nlines")
    page.locator("form.act button").click()
    expect(page.locator(".effect")).to_contain_text(f"unchanged since version {stale}")
    assert page.locator(".effect pre").all_inner_texts() == ["one", "two\nlines"]
    pages.check()
    page.locator("form.act button[type=submit]").click()
    expect(page.locator(".flashes")).to_contain_text("is written at version")
    page = pages.go("/key/edit?key=bWFkZS9oZXJl")
    page.locator('[name="value"]').fill("three")
    page.locator('[name="version"]').evaluate("(field, version) => { field.value = version; }", stale)
    page.locator("form.act button").click()
    expect(page.locator(".effect")).to_contain_text(f"changed since version {stale}")
    assert page.locator(".effect pre").all_inner_texts() == ["two\nlines", "three"]
    pages.go("/key?key=bWFkZS9oZXJl")
    expect(pages.page.locator("#value pre")).to_have_text("two\nlines")
    assert "Nothing was done" in pages.act("/key/delete?key=bWFkZS9oZXJl", {}, confirm="made/there")
    assert "is deleted at version" in pages.act("/key/delete?key=bWFkZS9oZXJl", {}, confirm="made/here")
    expect(pages.page.locator("#value")).to_contain_text("does not exist")


@pytest.mark.matrix  # test_retention_is_set_and_removed sets and removes
def test_a_store_and_a_durable_are_made_changed_and_deleted(pages: Pages, service: Service) -> None:
    assert "is defined" in pages.act("/stores/define", {"name": "made", "parameters": "message_limit: 9"})
    assert "is defined" in pages.act("/store/define-durable?store=made", {"name": "work", "parameters": "type: shared"})
    pages.check()
    assert "is defined" in pages.act(
        "/store/define-template?store=made", {"name": "jobs", "parameters": "type: shared"}
    )
    assert "deleted" in pages.act("/store/delete-template?store=made&template=jobs", {}, confirm="jobs")
    assert "bad_configuration" in pages.act("/store/edit?store=made", {"parameters": "message_limit: many"})
    assert "message_limit" in pages.act("/store/edit?store=made", {"parameters": "message_limit: 12"})
    assert "prefetch" in pages.act("/durable/edit?store=made&durable=work", {"parameters": "prefetch: 7"})
    assert "Published as number 1" in pages.act(
        "/store/publish?store=made", {"body": "hello", "fields": "kind: a", "key": "k"}
    )
    pages.act("/store/publish?store=made", {"body": "again", "fields": ""})
    if PROVE:
        page = pages.go("/store/edit?store=made")
        page.locator('[name="parameters"]').fill("message_limit: 1")
        page.locator("form.act button[type=submit]").click()
        expect(page.locator(".notice.warn")).to_contain_text("2 messages, 1 more than message_limit 1")
        pages.check()
        page.locator("form.act button[type=submit]").click()
        expect(page.locator(".flashes")).to_contain_text("Changed: message_limit")
        assert "message_limit" in pages.act("/store/edit?store=made", {"parameters": "message_limit: 12"})
    place = "store=made&durable=work"
    page = pages.go(f"/messages?{place}&newest=1")
    assert page.locator("#t-messages tbody a").all_inner_texts() == ["2", "1"], "the newest first"
    page = pages.go(f"/message?{place}&seq=1")
    expect(page.locator("pre").first).to_have_text("hello")
    page.locator('select[name="form"]').select_option("hex")
    expect(page.locator("pre").first).to_have_text("68 65 6c 6c 6f")
    assert "is deleted" in pages.act(f"/message/delete?{place}&seq=1", {}, confirm="message 1")
    assert "1 message" in pages.go(f"/durable/purge?{place}").locator(".effect").inner_text()
    said = pages.act(f"/durable/purge?{place}", {"at_most_message": "0"}, confirm="made/work")
    assert "would now delete 1 message, and the form allows 0" in said
    assert "Removed 1 message," in pages.act(f"/durable/purge?{place}", {}, confirm="made/work")
    assert "Nothing was done" in pages.act("/store/delete?store=made", {}, confirm="work")
    with StoreClient(service.url, token=ADMIN) as stores:
        assert stores.describe_store("made")["message_limit"] == 12
    assert "is deleted" in pages.act(f"/durable/delete?{place}", {}, confirm="made/work")
    assert "is deleted" in pages.act("/store/delete?store=made", {}, confirm="made")
    with StoreClient(service.url, token=ADMIN) as stores:
        assert "made" not in [store["name"] for store in stores.stores()["stores"]]  # type: ignore[attr-defined]


def test_messages_are_delivered_again_and_letters_sent_back(pages: Pages, service: Service) -> None:
    assert "Delivered again: 1 message." in pages.act("/durable/redeliver?store=orders&durable=parked", {})
    assert "Delivered again: 1 message." in pages.act("/durable/redeliver?store=dead&durable=letters", {"max": "5"})
    with StoreClient(service.url, token=ADMIN) as stores:
        assert stores.describe_durable("dead", "letters")["counts"]["messages"] == 0  # type: ignore[index]
    assert "Rewound: work, parked" in pages.act("/durable/rewind?store=orders&durable=work", {"also": "parked"})
    assert "Not done" in pages.act("/durable/rewind?store=orders&durable=work", {"seq": "1", "time": "2026-01-01"})


@pytest.mark.matrix  # test_retention_is_set_and_removed sets and removes
def test_a_map_is_set_removed_and_locked(pages: Pages, service: Service) -> None:
    place = "store=orders&map=prices"
    said = pages.act(f"/map/set?{place}", {"key": "us.bread", "value": "4"}, compare=True)
    assert "us.bread is set at revision" in said
    page = pages.go(f"/map/set?{place}")
    page.locator('[name="key"]').fill("us.bread")
    page.locator('[name="value"]').fill("5")
    page.locator("form.act button").click()
    expect(page.locator(".effect")).to_contain_text("The key exists by now")
    with StoreClient(service.url, token=ADMIN) as stores:
        entry = stores.map("orders", "prices").get("us.bread")
        assert entry is not None
        assert entry.value == b"4"
        stores.map("orders", "prices").lock("us.bread", owner="desk", ttl_ms=60_000)
    expect(pages.go(f"/map?{place}").locator("#t-locks")).to_contain_text("desk")
    assert "lock_held" in pages.act(f"/map/lock?{place}&key=us.bread", {})
    assert "console has the lock" in pages.act(f"/map/lock?{place}&key=us.bread", {"steal": True})
    pages.check()
    assert "is free; console had it" in pages.act(f"/map/unlock?{place}&key=us.bread", {})
    assert "the lock is free" in pages.go(f"/map/unlock?{place}&key=us.bread").locator(".notice").first.inner_text()
    assert "is removed" in pages.act(f"/map/remove?{place}&key=us.bread", {}, confirm="us.bread")


def test_retention_is_set_and_removed(pages: Pages) -> None:
    form = {"policy": "week", "kind": "max_age_seconds", "amount": "604800"}
    assert "is set" in pages.act("/retention/set", form, confirm="set retention", compare=True)
    expect(pages.page.locator("main")).to_contain_text("the last 7 d")
    pages.check()
    assert "is removed" in pages.act("/retention/remove?policy=week", {}, confirm="week")


@pytest.mark.matrix  # test_the_log_level_is_changed changes a running service
def test_the_definition_and_the_cluster_are_changed(pages: Pages, service: Service) -> None:
    with StoreClient(service.url, token=ADMIN) as stores:
        revision = int(str(stores.definition()["revision"]))
        stores.define_store("later")
        stores.define_durable("later", "work", {"type": "shared"})
        with stores.publisher("later") as publisher:
            publisher.publish(b"it would be lost")
    said = pages.act("/stores/parameters", {"parameters": "max_deployment_history: 30"})
    assert re.search(r"Changed in revision \d+: max_deployment_history", said)
    users = "users: {ann: {token: ann-has-16-characters, roles: [all]}}\nroles: {all: {stores: {'*': [browse]}}}"
    assert "changed" in pages.act("/stores/permissions", {"permissions": users})
    expect(pages.page.locator("main")).to_contain_text("ann")
    assert "ann-has-16-characters" not in pages.text()
    page = pages.go(f"/stores/rollback?revision={revision}")
    page.locator('[name="confirm"]').fill(f"revision {revision}")
    page.locator("form.act button").click()
    expect(page.locator(".notice.warn")).to_contain_text("would delete messages of later (1)")
    pages.check()
    page.locator('[name="confirm"]').fill(f"revision {revision}")
    page.locator('[name="at_most_message"]').fill("0")
    page.locator("form.act button").click()
    expect(page.locator(".notice.bad")).to_contain_text("would now delete 1 message")
    with StoreClient(service.url, token=ADMIN) as stores:
        assert "later" in [store["name"] for store in stores.stores()["stores"]]  # type: ignore[attr-defined]
    page.locator('[name="confirm"]').fill(f"revision {revision}")
    page.locator("form.act button").click()
    expect(page.locator(".flashes")).to_contain_text("in force again")
    with StoreClient(service.url, token=ADMIN) as stores:
        assert "later" not in [store["name"] for store in stores.stores()["stores"]]  # type: ignore[attr-defined]
    for path, fields, said in (
        ("save", {}, r"Saved: the index on disk has \d+ messages"),
        ("compact", {}, r"Compacted: the pages take .+ are in use"),
        ("backup", {"name": "monday"}, r"messages are in /.+/monday on the leader's machine"),
    ):
        assert re.search(said, pages.act(f"/cluster/{path}", fields))


@pytest.mark.matrix  # test_http_rows_curl begins and watches both
@pytest.mark.timeout(300)
def test_a_snapshot_and_a_verification_are_begun_and_watched(pages: Pages) -> None:
    assert "being made" in pages.act("/retention/snapshot", {})
    expect(pages.page.locator("#job")).to_contain_text("done", timeout=90_000)
    page = pages.go("/retention")
    expect(page.locator("main")).to_contain_text("Up to the batch")
    pages.check()
    assert "has begun" in pages.act("/log/verify", {"after": "0"})
    expect(pages.page.locator("#job")).to_contain_text("done", timeout=90_000)
    pages.check()
    assert "has begun" in pages.act("/log/verify", {"after": "0"})
    assert "has ended" in pages.act("/log/end-verification", {})
    expect(pages.page.locator("#job")).to_contain_text("ended before its time")
    assert "future_version" in pages.act("/log/verify", {"through": "999999999999999"})
    assert "has ended" in pages.act("/retention/end-snapshot", {})


def test_the_log_level_is_changed(pages: Pages, service: Service) -> None:
    assert "has the level debug" in pages.act("/configuration/log-level", {"level": "debug"})
    expect(pages.page.locator("main")).to_contain_text("debug")
    assert "log_level=debug" in service.process.tail()
    assert "has the level info" in pages.act("/configuration/log-level", {"level": "info"})


@pytest.mark.matrix
def test_the_keyboard_is_enough_and_a_theme_stays(pages: Pages) -> None:
    page = pages.go("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page = pages.go("/log")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    pages.check()


def test_the_menu_of_a_phone_is_one_row_with_the_open_page_in_view(pages: Pages) -> None:
    pages.page.set_viewport_size(NARROW)  # type: ignore[arg-type]
    try:
        page = pages.go("/configuration")
        menu = page.get_by_role("navigation", name="Pages", exact=True)
        links = [each.bounding_box() for each in menu.locator("a").all()]
        assert len({box["y"] for box in links if box is not None}) == 1
        expect(menu.locator("[aria-current]")).to_be_in_viewport(ratio=1)
        page.set_viewport_size(WIDE)  # type: ignore[arg-type]
        expect(menu.locator("a").first).to_be_in_viewport(ratio=1)
    finally:
        pages.page.set_viewport_size(WIDE)  # type: ignore[arg-type]


@pytest.mark.matrix
def test_the_focus_never_goes_to_another_link_while_a_list_moves(pages: Pages) -> None:
    page = pages.go("/log")
    first = page.locator("#t-txn tbody a").first
    place = first.get_attribute("href") or ""
    first.focus()
    expect(first).not_to_have_attribute("href", place)
    focused = page.evaluate("document.activeElement.getAttribute('href') ?? document.activeElement.id")
    assert focused in (place, "t-txn"), "on the same link, or on the list that the link has left"


@pytest.mark.matrix  # test_what_changes_is_shown_... refreshes
def test_a_slow_refresh_is_followed_by_another_and_a_login_that_ended_is_said(pages: Pages) -> None:
    page = pages.context.new_page()
    page.add_init_script(
        "let now = 0; performance.now = () => (now += 60000);"
        "window.waits = []; const real = setTimeout;"
        "window.setTimeout = (act, ms) => { window.waits.push(ms); return real(act, ms); };"
    )
    with page.expect_response("**/runbooks"):
        page.goto(f"{pages.base}/runbooks")
    with page.expect_response("**/runbooks"):
        pass  # the script asks again
    page.wait_for_function("window.waits.length >= 3")
    assert max(page.evaluate("window.waits")) == 10_000, "ten seconds, however long the refresh took"
    page.close()
    page = pages.context.new_page()
    page.goto(f"{pages.base}/log")
    page.route("**/log", lambda route: route.fulfill(status=401, body="A login is needed."))
    expect(page.locator("#live")).to_contain_text("logged out")
    page.close()


def test_times_are_the_viewers_and_utc_on_hover(pages: Pages) -> None:
    time_of = pages.go("/log").locator("main table time").first
    shown, utc = time_of.inner_text(), time_of.get_attribute("title") or ""
    assert re.fullmatch(r"\d\d:\d\d:\d\d", shown), shown
    assert utc.endswith("Z (UTC)")
    assert shown[:2] != utc[11:13], "Berlin is never on UTC"


def test_a_token_that_may_only_read_sees_what_it_may_and_is_refused_the_rest(
    browser: Browser, service: Service, tmp_path: Path
) -> None:
    console = ConsoleProcess(tmp_path, [service.url], token=READER)
    tab = Pages(browser, console.url)
    try:
        assert "permission_denied" in tab.act("/key/edit?new=1", {"key": "no", "value": "no"}, compare=True)
        assert "permission_denied" in tab.act("/stores/define", {"name": "no"})
        tab.go("/keys")
        assert "seat/" in tab.text()
        tab.check()
    finally:
        tab.close()
        console.end()


def test_every_action_is_named_in_this_file() -> None:
    text = Path(__file__).read_text()
    for action in ACTIONS:
        last = action.path.rpartition("/")[2]
        assert action.path in text or f'("{last}", {{' in text, action.path


@pytest.mark.matrix
def test_a_service_that_goes_is_reported_and_found_again(pages: Pages, service: Service) -> None:
    page = pages.go("/")
    expect(page.locator("#state")).to_be_empty()
    service.process.kill()
    expect(page.locator("#state")).to_contain_text("does not answer", timeout=15_000)
    pages.check()
    began = time.monotonic()
    pages.go("/keys")
    assert time.monotonic() - began < 20, "a page does not wait for a service that is away"
    assert "does not answer" in pages.text()
    pages.go("/")
    service.restart()
    expect(page.locator("#state")).to_be_empty(timeout=20_000)
    expect(page.locator("#health")).to_contain_text("accepts commits", timeout=20_000)
    listed = '[aria-labelledby="h-transactions"] tbody tr'
    page = pages.go("/log?key=hot")
    assert page.locator(listed).count() == 50, "also those from before the change of leader"
    assert "rolled_back" not in pages.text()
    begins = pages.go("/log").locator("#leaderships tbody tr td:last-child").first.inner_text().split()[-1]
    last = pages.go(f"/log?at={begins}").locator(f"{listed} a").first.inner_text()
    assert int(last) < int(begins) - 1_000_000
    pages.go(f"/transaction?version={last}")
    assert "none yet" not in pages.text(), "the last transaction before a change of leader has one after it"


@pytest.mark.matrix  # test_http_process asks for both
def test_the_leader_steps_down_and_stands_by(pages: Pages, service: Service) -> None:
    assert "Nothing was done" in pages.act("/step-down", {"then": True}, confirm="no")
    assert "stepped down" in pages.act("/step-down", {"then": True}, confirm="step down")
    service.process.wait_until_leading()


@pytest.mark.matrix
def test_suspending_stops_the_stores_until_they_are_resumed(pages: Pages, service: Service) -> None:
    give_up_at = time.monotonic() + 60
    while not pages.go("/cluster/suspend").locator("form.act").count():  # stores open after the log leads
        assert time.monotonic() < give_up_at, pages.text()
        time.sleep(0.1)
    assert "serve nothing" in pages.act("/cluster/suspend", {}, confirm="suspend")
    expect(pages.page.locator("#cluster")).to_contain_text("suspended")
    assert not pages.page.get_by_role("link", name="Suspend", exact=True).count()
    pages.check()
    assert "Resumed: " in pages.act("/cluster/resume", {})
    assert not pages.page.get_by_role("link", name="Resume", exact=True).count()
    with StoreClient(service.url, token=ADMIN) as stores, stores.publisher("orders") as publisher:
        publisher.publish(b"it goes on")
