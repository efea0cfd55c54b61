"""A scrape costs as much as many commits: those of one second share a text when they take a part of it."""

from __future__ import annotations

from holdfast.server.metrics import SCRAPING_PART, Scrapes


def test_scrapes_that_take_a_part_of_a_second_share_the_last_text_and_few_are_exact() -> None:
    now, made = 100.0, 0

    def scrape() -> bytes:
        nonlocal made, now
        made += 1
        now += SCRAPING_PART / 4
        return b"%d" % made

    text = Scrapes(scrape, lambda: now)
    assert [text() for _ in range(4)] == [b"1", b"2", b"3", b"4"]
    assert {text() for _ in range(10_000)} == {b"4"}
    now += 1.0
    assert (text(), text(), made) == (b"5", b"6", 6)


def test_a_scrape_that_takes_long_is_made_once_a_second() -> None:
    now, made = 100.0, 0

    def scrape() -> bytes:
        nonlocal made, now
        made += 1
        now += 0.5
        return b"%d" % made

    text = Scrapes(scrape, lambda: now)
    assert {text() for _ in range(100)} == {b"1"}
    now += 0.5
    assert text() == b"2"
