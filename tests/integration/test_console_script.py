"""The script of the console's pages in a browser: the test makes each answer of the console, on a false clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.integration.console_harness import chromium

import holdfast.console
from holdfast.console.frame import _foot

pytestmark = pytest.mark.program("chromium")

STATIC = Path(holdfast.console.__file__).parent / "static"
ADDRESS = "http://127.0.0.1:9/log"
SECONDS_MAX = 30.0


def page_of(*rows: str) -> str:
    """A page with one live table: in each row a link of its own, and one to a key that every row has."""
    body = "".join(f'<tr><td><a href="/t/{row}">{row}</a></td><td><a href="/hot">hot</a></td></tr>' for row in rows)
    return (
        '<!doctype html><html data-theme="system"><head><link rel="stylesheet" href="/static/console.css">'
        '<script src="/static/console.js" type="module"></script></head><body><button id="theme">Theme</button>'
        f'<main id="main"><div id="t" data-live><table><tbody>{body}</tbody></table></div></main>'
        f"{_foot()}</body></html>"
    )


GONE = f'<!doctype html><html><body><main id="main"><p data-gone>Not found</p></main>{_foot()}</body></html>'
FAILED = f'<!doctype html><html><body><main id="main"><p>Not shown</p></main>{_foot()}</body></html>'


class Answers:
    """What the console answers; ``asked`` counts the refreshes."""

    def __init__(self) -> None:
        self.asked = 0
        self.rows: tuple[str, ...] = ("1",)
        self.hangs = False
        self.instead = ""
        self.waiting: list[Route] = []

    def __call__(self, route: Route) -> None:
        """Answer a request."""
        path = route.request.url.rpartition("/")[2]
        if "/static/" in route.request.url:
            kind = "text/javascript" if path.endswith("js") else "text/css"
            route.fulfill(body=(STATIC / path).read_text(), content_type=kind)
            return
        self.asked += 1
        if self.hangs:
            self.waiting.append(route)
        else:
            self.answer(route)

    def answer(self, route: Route) -> None:
        """Send the page."""
        if route in self.waiting:
            self.waiting.remove(route)
        route.fulfill(body=self.instead or page_of(*self.rows), content_type="text/html")


COUNT_FETCHES = """
window.underWay = window.aborted = 0;
const ask = window.fetch;
window.fetch = async (...given) => {
  window.underWay += 1;
  try {
    const response = await ask(...given);
    const read = response.text.bind(response);
    response.text = () => read().finally(() => { window.underWay -= 1; });
    return response;
  } catch (error) {
    window.underWay -= 1;
    window.aborted += 1;
    throw error;
  }
};
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def page(browser: Browser, answers: Answers) -> Iterator[Page]:
    context = browser.new_context()
    opened = context.new_page()
    opened.add_init_script(COUNT_FETCHES)
    opened.clock.install(time=0)
    opened.route("**/*", answers)
    opened.goto(ADDRESS)
    opened.clock.pause_at(3_600)  # from now on time passes only where a test lets it: a slow machine changes nothing
    answers_arrive(opened, answers)
    yield opened
    context.close()


def answers_arrive(page: Page, answers: Answers) -> None:
    """Wait until the page has every answer that does not hang."""
    give_up_at = time.monotonic() + SECONDS_MAX
    while page.evaluate("window.underWay + window.aborted") > len(answers.waiting):
        assert time.monotonic() < give_up_at, "an answer was sent and did not arrive"


def seconds_pass(page: Page, answers: Answers, seconds: int) -> None:
    """On the page's clock; answers arrive between them."""
    for _ in range(seconds):
        page.clock.run_for(1_000)
        answers_arrive(page, answers)


def refresh(page: Page, answers: Answers, *rows: str) -> None:
    """Let the time of one refresh pass, and wait until its rows are there."""
    answers.rows = rows
    page.clock.run_for(2_100)
    answers_arrive(page, answers)
    expect(page.locator("tbody tr")).to_have_count(len(rows))


def test_a_console_that_hangs_is_given_up_after_ten_seconds_asked_again_and_never_called_live(
    page: Page, answers: Answers
) -> None:
    footer = page.locator("#live")
    expect(footer).to_have_text("live")
    refresh(page, answers, "1", "2")
    expect(footer).to_have_text("live")
    answers.hangs, before = True, answers.asked
    seconds_pass(page, answers, 8)
    assert (footer.text_content() or "").startswith("last answer")
    seconds_pass(page, answers, 5)
    expect(footer).to_contain_text("does not answer; asking again; last answer 1")
    seconds_pass(page, answers, 47)
    assert answers.asked - before == 5, "ten seconds of waiting and two of pause"
    answers.hangs, answers.rows = False, ("1", "2", "3")
    seconds_pass(page, answers, 22)
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(footer).to_have_text("live")


def test_a_slow_answer_is_followed_by_another_request_after_ten_seconds_at_most(page: Page, answers: Answers) -> None:
    answers.hangs = True
    seconds_pass(page, answers, 3)
    (slow,) = answers.waiting
    seconds_pass(page, answers, 6)
    answers.hangs, before, answers.rows = False, answers.asked, ("1", "2")
    answers.answer(slow)
    expect(page.locator("tbody tr")).to_have_count(2)
    seconds_pass(page, answers, 9)
    assert answers.asked == before, "a slow answer is not asked for again at once"
    seconds_pass(page, answers, 2)
    assert answers.asked == before + 1


def test_the_focus_stays_on_the_row_that_had_it_when_rows_come_and_is_nowhere_else_when_it_goes(
    page: Page, answers: Answers
) -> None:
    refresh(page, answers, "2", "1")
    for column, of_row_1 in ((0, "1"), (1, "hot")):
        page.locator("tbody tr").last.locator("a").nth(column).focus()
        refresh(page, answers, *(("4", "3", "2", "1") if column else ("3", "2", "1")))
        focused = "[document.activeElement.textContent, document.activeElement.closest('tr').rowIndex]"
        assert page.evaluate(focused) == [of_row_1, 2 + column]
    refresh(page, answers, "5", "4", "3", "2", "6")
    assert page.evaluate("document.activeElement.id") == "t", "Enter opens no other row"


def test_what_is_not_there_any_more_is_not_shown_and_comes_back(page: Page, answers: Answers) -> None:
    answers.instead = FAILED
    seconds_pass(page, answers, 3)
    expect(page.locator("tbody tr")).to_have_count(1)
    answers.instead = GONE
    seconds_pass(page, answers, 3)
    expect(page.locator("#main")).to_have_text("Not found")
    expect(page.locator("#live")).to_have_text("")
    answers.instead = FAILED
    seconds_pass(page, answers, 3)
    expect(page.locator("#main")).to_have_text("Not found")
    answers.instead = ""
    refresh(page, answers, "1", "2")
    expect(page.locator("#live")).to_have_text("live")


def test_without_a_script_a_page_does_not_say_that_it_is_live_and_has_no_button_that_does_nothing(
    browser: Browser, answers: Answers
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.route("**/*", answers)
    page.goto(ADDRESS)
    expect(page.locator("#live")).to_have_text("")
    expect(page.locator("#theme")).to_be_hidden()
    context.close()


def test_with_a_script_the_theme_button_is_there(page: Page) -> None:
    expect(page.locator("#theme")).to_be_visible()
