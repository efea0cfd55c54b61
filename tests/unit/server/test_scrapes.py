"""A scrape costs as much as many commits: those of one second share a text when there are many."""

from __future__ import annotations

from holdfast.server.metrics import SCRAPES_PER_SECOND, Scrapes


def test_many_scrapes_of_one_second_share_the_last_text_and_few_are_exact() -> None:
    now, made = 100.0, 0

    def scrape() -> bytes:
        nonlocal made
        made += 1
        return b"%d" % made

    text = Scrapes(scrape, lambda: now)
    assert [text() for _ in range(SCRAPES_PER_SECOND)] == [b"%d" % number for number in range(1, 21)]
    assert {text() for _ in range(10_000)} == {b"20"}
    now += 1.0
    assert (text(), text(), made) == (b"21", b"22", 22)
